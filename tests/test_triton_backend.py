"""The Triton backend: its host side here, its kernels in a process that interprets them.

Whether results are right in general is the conformance suite's business; these tests pin what only
this backend has: work items, tiles, launch shapes, the two ways to merge parts."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.jit import MockTensor, create_function_from_signature

import pagedattn as pa
from pagedattn.backends.triton import heuristics, launch, version, work
from pagedattn.backends.triton.backend import TritonBackend
from pagedattn.backends.triton.cost import cost
from pagedattn.capabilities import check

HERE = Path(__file__).parent
H100 = pa.DeviceInfo("cuda", sm=(9, 0), num_sms=132, shared_mem=232448)
A100 = pa.DeviceInfo.of("sm80")
SMALL = pa.DeviceInfo("cuda", sm=(9, 0), num_sms=8, shared_mem=232448)


def spec_of(**options):
    values = {
        "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "block_size": 16,
        "dtype": torch.bfloat16, "scale": 0.1,
    }  # fmt: skip
    return pa.AttentionSpec(**(values | options))


# -- kernels, under emulation --------------------------------------------------------------------


@pytest.fixture(scope="module")
def steps():
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TRITON_")}
    command = [sys.executable, str(HERE / "triton_steps.py")]
    done = subprocess.run(
        command, capture_output=True, text=True, env=kept | {"PAGEDATTN_EMULATE": "1"}, cwd=HERE
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "name", ["uneven_parts", "windowed_parts", "empty_parts", "long_chunk", "unaligned_rows"]
)
def test_a_step_is_right(steps, name):
    assert steps[name]["error"] < 2e-6


def test_only_the_long_request_is_shared_out(steps):
    assert steps["uneven_parts"]["parts"] == [8]


def test_parts_are_of_the_window(steps):
    (parts,) = steps["windowed_parts"]["parts"]
    assert parts == round(300 / 128)


def test_parts_follow_the_bound_that_the_host_knows(steps):
    assert steps["empty_parts"]["parts"] == [8, 8]


def test_a_short_chunk_over_many_keys_is_shared_out(steps):
    assert min(steps["long_chunk"]["parts"]) > 1


def test_batch_invariant_bits_do_not_depend_on_who_merges(steps):
    found = steps["invariant_whoever_merges"]
    assert found["parts"] == [2]  # a program per chunk
    assert found["together"] == []  # a program per tile
    assert found["equal"]


def test_a_replayed_graph_sees_the_refreshed_plan(steps):
    found = steps["replay"]
    assert max(found["errors"]) < 2e-6
    assert not found["moved"]
    assert found["launched"] == [[True, True], [True, True]]  # all that the limits allow


# -- work items ----------------------------------------------------------------------------------


def batch_of(query_lens, seq_lens):
    starts = torch.tensor([0, *query_lens]).cumsum(0).int()
    lengths = torch.tensor(seq_lens, dtype=torch.int32)
    return pa.AttentionBatch(
        query_start_loc=starts, seq_lens=lengths, block_table=torch.zeros(len(seq_lens), 1).int()
    )


OPTIONS = st.sampled_from(
    [
        {},
        {"batch_invariant": True},
        {"window": (100, None)},
        {"mask": pa.Mask.FULL, "window": (40, 30)},
        {"num_heads": 7, "num_kv_heads": 1},
        {"async_lengths": True, "window": (64, None)},
    ]
)
REQUESTS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 5000)), max_size=12)


@settings(deadline=None, max_examples=150)
@given(OPTIONS, REQUESTS, st.sampled_from([{}, {"per_sm": 1}, {"per_sm": 4, "block_n": 16}]))
def test_items_cover_every_row_once_and_fit_the_limits(options, requests, tuning):
    spec = spec_of(**options)
    query_lens, seq_lens = [q for q, _ in requests], [n for _, n in requests]
    limits = pa.Limits(max(1, len(requests)), max(1, sum(query_lens)), max([1, *seq_lens]), 8)
    tiles = heuristics.choose(spec, SMALL, tuning)
    plain = heuristics.choose(spec, SMALL)  # the workspace is made for
    found = work.assign(spec, limits, SMALL, tiles, batch_of(query_lens, seq_lens))
    covered = [0] * len(requests)
    for phase, (tile, (items, merges, rows)) in enumerate(zip(tiles, found, strict=True)):
        slots = work.max_slots(spec, limits, SMALL, plain[phase])
        assert len(items) <= work.max_items(spec, limits, SMALL, tiles, phase)
        assert len(merges) <= slots // 2
        assert rows <= tile.block_m
        used = sorted(s for s in items[:, 4].tolist() if s >= 0)
        assert used == list(range(len(used)))
        assert len(used) <= slots
        merged = {(r, t): (first, parts) for r, t, first, parts in merges.tolist()}
        order = [tuple(i) for i in items[:, :3].tolist()]
        assert order == sorted(order)
        for request, number, _, parts, slot in items.tolist():
            if slot >= 0:
                assert merged[request, number][1] == parts > 1
                assert slot - merged[request, number][0] in range(parts)
        for request, number in {(r, t) for r, t, *_ in order}:
            packed = query_lens[request] * spec.group_size
            covered[request] += min(tile.block_m, packed - number * tile.block_m)
    assert covered == [q * spec.group_size for q in query_lens]


def test_parts_are_longer_when_there_is_enough_to_do():
    spec, limits = spec_of(), pa.Limits(512, 512, 8192, 8)
    tiles = heuristics.choose(spec, H100)

    def parts(requests):
        batch = batch_of([1] * requests, [8192] * requests)
        return work.assign(spec, limits, H100, tiles, batch)[0][0][:, 3].max().item()

    assert [parts(n) for n in (1, 8, 64, 512)] == [50, 6, 1, 1]


def test_the_workspace_does_not_grow_with_requests_times_keys():
    backend, spec = TritonBackend(), spec_of()
    sizes = {
        backend.workspace_bytes(spec, pa.Limits(requests, 4096, keys, 8), H100)
        for requests in (1, 4096)
        for keys in (4096, 2**20)
    }
    assert len(sizes) == 1


# -- tiles and variants --------------------------------------------------------------------------


def test_heads_are_covered_by_powers_of_two():
    for dim in range(1, 1025):
        first, rest = heuristics.split_head(dim)
        assert dim <= first + rest < max(2 * dim, 17)
        assert all(n & (n - 1) == 0 for n in (first, rest))
    assert heuristics.split_head(576) == (512, 64)
    assert heuristics.split_head(96) == (64, 32)
    assert heuristics.split_head(120) == (128, 0)


def test_tiles_fit_the_shared_memory_or_are_refused():
    for device in (H100, A100, pa.DeviceInfo("cuda", name="gfx942", shared_mem=65536)):
        for dim in (16, 64, 96, 128, 256, 512, 576):
            for dtype in (torch.bfloat16, torch.float32):
                spec = spec_of(head_dim=dim, dtype=dtype)
                tiles = heuristics.choose(spec, device)
                refused = {r.code for r in TritonBackend().refuse(spec, device)}
                assert bool(tiles) != bool(refused)
                for tile in tiles:
                    needed = heuristics.smem_bytes(
                        spec, tile.block_m, tile.block_n, tile.num_stages
                    )
                    assert needed <= device.shared_limit


@pytest.mark.parametrize("group", [1, 3, 4, 7, 16, 48, 71, 128])
def test_a_decode_step_of_any_group_is_few_tiles(group):
    spec = spec_of(num_heads=group, num_kv_heads=1)
    tiles = heuristics.choose(spec, H100)
    limits = pa.Limits(1, 1, 64, 8)
    items = work.assign(spec, limits, H100, tiles, batch_of([1], [64]))
    assert sum(len(phase[0]) for phase in items) == 1


def test_decode_alone_needs_one_phase():
    assert len(heuristics.choose(spec_of(max_query_len=1), H100)) == 1
    assert len(heuristics.choose(spec_of(), H100)) == 2
    assert len(heuristics.choose(spec_of(batch_invariant=True), H100)) == 1


def test_tuning_is_followed_and_lowered_to_what_fits():
    (tile, _) = heuristics.choose(spec_of(), H100, {"block_n": 32, "num_warps": 2})
    assert (tile.block_n, tile.num_warps) == (32, 2)
    (tile, *_) = heuristics.choose(spec_of(), A100, {"block_n": 128, "num_stages": 4})
    assert heuristics.smem_bytes(spec_of(), tile.block_m, 128, 4) > A100.shared_limit
    assert tile.num_stages < 4


def test_rows_are_aligned_when_every_one_starts_on_16_bytes():
    memory = torch.zeros(1024, dtype=torch.bfloat16)
    rows = memory[:512].view(4, 2, 64)
    assert launch.aligned(rows, None)
    assert not launch.aligned(memory[1:513].view(4, 2, 64))
    assert not launch.aligned(memory.as_strided((4, 2, 64), (132, 64, 1)))


def test_both_alignments_of_every_phase_are_compiled():
    spec = spec_of()
    found = launch.variants(spec, heuristics.choose(spec, H100))
    tiles = [v for v, _ in found if "BLOCK_N" in v.constants]
    seen = {(v.constants["BLOCK_M"], v.constants["KV_ALIGN"]) for v in tiles}
    assert seen == {(16, 8), (16, 1), (128, 8), (128, 1)}
    for variant, arguments in found:
        names = [p for p in variant.kernel.arg_names if p not in variant.constants]
        assert len(names) == len(arguments)


def test_what_open_compiles_is_what_run_launches():
    """Triton keys its compiled kernels by what it sees of the arguments: the same in warmup() and
    in a launch, whatever the strides, so that run() never compiles."""
    backend = make_backend(GPUTarget("cuda", 90, 32))
    spec = spec_of(sinks=True, kv_dtype=torch.int8, kv_quant=pa.KVQuant.PER_TOKEN_HEAD)
    for variant, arguments in launch.variants(spec, heuristics.choose(spec, H100)):
        kernel = variant.kernel
        seen = create_function_from_signature(kernel.signature, kernel.params, backend)
        names = [p.name for p in kernel.params]
        rows = {"Q", "K", "V", "OUT", "K_POOL", "V_POOL"}
        on_16_bytes = {"PARTIAL", "STATS"}
        if variant.constants.get("KV_ALIGN", 1) > 1:
            on_16_bytes |= rows
        expected = seen(*map(MockTensor.wrap_dtype, arguments), **variant.constants)[1]
        for stride in (0, 1, 16, 17, 2**33):
            given = []
            for name, argument, parameter in zip(names, arguments, kernel.params, strict=False):
                if isinstance(argument, torch.dtype):
                    given.append(torch.zeros(9, dtype=argument)[0 if name in on_16_bytes else 1 :])
                elif isinstance(argument, int):
                    given.append(
                        min(stride, 2**31 - 1) if parameter.annotation_type == "i32" else stride
                    )
                else:
                    given.append(argument)
            assert seen(*given, **variant.constants)[1] == expected


# -- what it says of itself ----------------------------------------------------------------------


def test_refusals_name_what_to_do():
    backend = TritonBackend()
    fp8 = spec_of(kv_dtype=torch.float8_e4m3fn, kv_quant=pa.KVQuant.PER_TENSOR)
    (refusal,) = check(backend, fp8, A100)
    assert refusal.code == "kv_dtype"
    assert "int8" in refusal.hint
    (refusal,) = check(backend, spec_of(softcap=1e38), H100)
    assert (refusal.code, refusal.supported) == ("softcap", "up to 1e+30")
    assert check(backend, spec_of(softcap=1e30), H100) == ()


def test_cost_of_a_decode_step_is_its_keys():
    spec = spec_of(max_query_len=1)
    (tile,) = heuristics.choose(spec, H100)
    found = cost(spec, H100, tile, requests=64, query_len=1, seq_len=4096)
    keys = 64 * 4096
    assert found.flop == 2 * keys * 32 * 256
    assert keys * 8 * 256 * 2 <= found.bytes < 1.05 * keys * 8 * 256 * 2
    assert found.parts == 1
    alone = cost(spec, H100, tile, requests=1, query_len=1, seq_len=4096)
    assert alone.parts > 1
    assert alone.programs == 8 * alone.parts


def test_cost_of_a_group_beyond_a_tile_is_loaded_again_but_moved_once():
    """Absorbed MLA of 128 heads in tiles of 32: four programs load every key."""
    fields = {"head_dim": 576, "head_dim_v": 512, "shared_kv": True, "max_query_len": 1}
    spec = spec_of(num_heads=128, num_kv_heads=1, **fields)
    (tile,) = heuristics.choose(spec, H100)
    assert tile.block_m == 32
    found = cost(spec, H100, tile, requests=200, query_len=1, seq_len=1000)
    q_and_out = 200 * 128 * (576 + 512) * 2
    assert found.parts == 1
    assert found.bytes == 200 * 1000 * 576 * 2 + q_and_out
    assert found.loaded == 4 * 200 * 1000 * 576 * 2 + q_and_out


def test_cost_of_a_prefill_is_half_of_the_square():
    spec = spec_of()
    tile = heuristics.choose(spec, H100)[-1]
    found = cost(spec, H100, tile, requests=1, query_len=2048, seq_len=2048)
    assert found.flop == 2 * (2048 * 2049 // 2) * 32 * 256
    window = dataclasses.replace(spec, window=(127, None))
    less = cost(window, H100, tile, requests=1, query_len=2048, seq_len=2048)
    assert less.loaded < found.loaded / 4
    once = 2048 * (2 * 8 * 128 + 2 * 32 * 128) * 2  # K and V, q and out
    assert found.bytes == once
    assert less.bytes == once  # every key is somebody's
    tiles = 2048 * 4 // tile.block_m
    rows = tile.block_m // 4
    assert found.loaded - once == (rows * tiles * (tiles + 1) // 2 - 2048) * 2 * 8 * 128 * 2


def test_describe_says_tiles_and_cost():
    facts = TritonBackend().describe(spec_of(), H100)
    assert "16 packed rows x 64 keys" in facts["decode tile"]
    assert any("waves" in str(v) and "FLOP/byte" in str(v) for v in facts.values())


@pytest.mark.parametrize(
    ("installed", "word"),
    [("3.2.0", "triton 3.2.0 is installed, the kernels need 3.6"), ("3.6.0", None), ("4.0", None)],
)
def test_a_triton_that_is_too_old_is_named(monkeypatch, installed, word):
    monkeypatch.setattr(version, "version", lambda name: installed)
    sentence = version.too_old()
    assert sentence == word if word is None else word in sentence


def test_no_triton_is_not_an_old_one(monkeypatch):
    def absent(name):
        raise version.PackageNotFoundError(name)

    monkeypatch.setattr(version, "version", absent)
    assert version.too_old() is None
