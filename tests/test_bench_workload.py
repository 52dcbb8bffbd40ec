"""Workloads: bytes and FLOPs against numbers computed by hand, and the tensors they become."""

from typing import Any

import pytest
import torch
from bench_support import make_spec

import pagedattn as pa
from pagedattn.benchmarks.inputs import make_inputs
from pagedattn.benchmarks.shapes import SHAPES, Shape, parse_shape
from pagedattn.benchmarks.workload import (
    Phase,
    Placement,
    Workload,
    decode,
    mixed,
    prefill,
    short,
    short_twin,
)

CPU = torch.device("cpu")


def step(query_lens: list[int], seq_lens: list[int], **options: Any) -> Workload:
    return Workload(
        name="step",
        spec=make_spec(**options),
        query_lens=tuple(query_lens),
        seq_lens=tuple(seq_lens),
    )


@pytest.mark.parametrize(
    ("workload", "kv_bytes", "flops"),
    [
        # keys * Hkv * (D + Dv) * itemsize; 2 * pairs * Hq * (D + Dv)
        (step([1, 1], [100, 50]), 150 * 2 * 32 * 4, 2 * 150 * 4 * 32),
        (step([1], [100], dtype=torch.bfloat16), 100 * 2 * 32 * 2, 2 * 100 * 4 * 32),
        (step([3], [5]), 5 * 2 * 32 * 4, 2 * (3 + 4 + 5) * 4 * 32),
        (step([1], [100], window=(9, None)), 10 * 2 * 32 * 4, 2 * 10 * 4 * 32),
        # rows at 2, 3, 4 see {1,2}, {2,3}, {3,4}: keys 1..4
        (step([3], [5], window=(1, None)), 4 * 2 * 32 * 4, 2 * 6 * 4 * 32),
        (step([3], [5], mask=pa.Mask.FULL), 5 * 2 * 32 * 4, 2 * 15 * 4 * 32),
        # rows at 2, 3, 4 see {2,3}, {3,4}, {4}
        (step([3], [5], mask=pa.Mask.FULL, window=(0, 1)), 3 * 2 * 32 * 4, 2 * 5 * 4 * 32),
        (step([1], [100], head_dim_v=8), 100 * 2 * 24 * 4, 2 * 100 * 4 * 24),
        # V is a part of K and is read with it, yet multiplied too
        (
            step([1], [10], num_kv_heads=1, head_dim_v=8, shared_kv=True),
            10 * 16 * 4,
            2 * 10 * 4 * 24,
        ),
        (
            step([1], [10], kv_quant=pa.KVQuant.PER_TENSOR, kv_dtype=torch.int8),
            10 * 2 * 32 + 2 * 4,
            2 * 10 * 4 * 32,
        ),
        (
            step([1], [10], kv_quant=pa.KVQuant.PER_HEAD, kv_dtype=torch.int8),
            10 * 2 * 32 + 2 * 2 * 4,
            2 * 10 * 4 * 32,
        ),
        (
            step([1], [10], kv_quant=pa.KVQuant.PER_TOKEN_HEAD, kv_dtype=torch.float8_e4m3fn),
            10 * 2 * 32 + 2 * 10 * 2 * 4,
            2 * 10 * 4 * 32,
        ),
    ],
)
def test_bytes_and_flops(workload: Workload, kv_bytes: int, flops: int) -> None:
    assert (workload.kv_bytes, workload.flops) == (kv_bytes, flops)


def test_llama3_decode_reads_128_mebibytes() -> None:
    spec = make_spec(
        num_heads=32, num_kv_heads=8, head_dim=128, block_size=16, dtype=torch.bfloat16
    )
    workload = decode(spec, batch=8, context=4096)
    assert workload.kv_bytes == workload.allocated_bytes == 128 * 2**20
    assert workload.blocks == 2048


def test_names_and_phases() -> None:
    spec = make_spec()
    steps = [
        decode(spec, batch=8, context=4096),
        prefill(spec, batch=2, context=2048, query_len=100),
        mixed(spec, batch=3, context=1024, query_len=512),
    ]
    assert [w.name for w in steps] == [
        "decode b8 ctx4k",
        "prefill b2 100 of 2k",
        "mixed b3+1x512 ctx1k",
    ]
    assert [w.phase for w in steps] == [Phase.DECODE, Phase.PREFILL, Phase.MIXED]
    assert [w.num_tokens for w in steps] == [8, 200, 515]
    assert [short(n) for n in (0, 1000, 1024, 131072)] == ["0", "1000", "1k", "128k"]


@pytest.mark.parametrize(
    ("query_lens", "seq_lens", "options", "message"),
    [
        ([], [], {}, "at least one"),
        ([1], [1, 2], {}, "query_lens has 1 requests, seq_lens 2"),
        ([1, 3], [5, 2], {}, "request 1 has 3 rows and 2 keys"),
        ([0], [2], {}, "request 0 has 0 rows"),
        ([1], [2], {"mask": pa.Mask.TREE}, "tree masks"),
        ([1], [2], {"dtype": torch.float64}, "float64"),
    ],
)
def test_what_cannot_be_judged_is_refused(
    query_lens: list[int], seq_lens: list[int], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        step(query_lens, seq_lens, **options)


def test_short_twin_has_the_boundary_lengths() -> None:
    spec = make_spec(block_size=16, max_query_len=1, window=(99, None))
    twin = short_twin(decode(spec, batch=1, context=4096))
    assert {1, 16, 17, 47, 100, 101, 116} <= set(twin.seq_lens)
    assert set(twin.query_lens) == {1}
    chunky = short_twin(prefill(make_spec(block_size=16), batch=1, context=4096, query_len=512))
    assert max(chunky.query_lens) == 19
    assert any(rows < keys for rows, keys in zip(chunky.query_lens, chunky.seq_lens, strict=True))


def test_replicas_share_no_block_and_fill_the_pool() -> None:
    workload = decode(make_spec(), batch=3, context=10)
    inputs = make_inputs(workload, CPU, pool_bytes=5 * workload.kv_bytes)
    blocks = torch.cat([batch.block_table.flatten() for batch in inputs.batches])
    assert len(inputs.batches) == 5
    assert sorted(blocks.tolist()) == list(range(inputs.cache.num_blocks)) == list(range(45))
    assert blocks.tolist() != list(range(45))


def test_sequential_placement() -> None:
    workload = Workload(
        name="w",
        spec=make_spec(),
        query_lens=(1, 1),
        seq_lens=(8, 8),
        placement=Placement.SEQUENTIAL,
    )
    inputs = make_inputs(workload, CPU, pool_bytes=2 * workload.kv_bytes)
    assert [batch.block_table.tolist() for batch in inputs.batches] == [
        [[0, 1], [2, 3]],
        [[4, 5], [6, 7]],
    ]


def test_one_replica_at_least_and_it_is_not_called_cold() -> None:
    inputs = make_inputs(decode(make_spec(), batch=1, context=10), CPU, pool_bytes=1)
    assert len(inputs.batches) == 1
    assert not inputs.cold


def test_the_cache_holds_the_new_keys_and_values() -> None:
    inputs = make_inputs(prefill(make_spec(), batch=1, context=6, query_len=2), CPU, pool_bytes=1)
    table = inputs.batches[0].block_table[0]
    assert torch.equal(inputs.cache.k[table].flatten(0, 1)[4:6], inputs.k)
    assert torch.equal(inputs.cache.v[table].flatten(0, 1)[4:6], inputs.v)


def test_restore_makes_a_spoiled_cache_what_it_was() -> None:
    inputs = make_inputs(decode(make_spec(), batch=2, context=9), CPU, pool_bytes=2**12)
    before = inputs.cache.k.clone(), inputs.cache.v.clone()
    inputs.cache.k.zero_()
    inputs.cache.v.zero_()
    inputs.restore()
    assert torch.equal(inputs.cache.k, before[0])
    assert torch.equal(inputs.cache.v, before[1])


def test_poison_lies_in_unowned_slots_only() -> None:
    inputs = make_inputs(decode(make_spec(), batch=1, context=6), CPU, pool_bytes=1)
    inputs.poison_unowned()
    keys = inputs.cache.k[inputs.batches[0].block_table[0]].flatten(0, 1)
    assert keys[:6].isfinite().all()
    assert keys[6:].isnan().all()


def test_shapes_by_name_and_by_numbers() -> None:
    assert parse_shape("llama3-8b") == Shape(32, 8, 128, 128)
    assert parse_shape("9/3/64") == SHAPES["smollm2"]
    assert parse_shape("128/1/576/512") == Shape(128, 1, 576, 512)
    assert str(SHAPES["deepseek-v3"]) == "128/1/576/512"


@pytest.mark.parametrize("text", ["llama", "9/3", "9/x/64", "9/3/0", "9/2/64", "1/2/3/4/5"])
def test_bad_shapes_say_what_is_expected(text: str) -> None:
    with pytest.raises(ValueError, match="shape"):
        parse_shape(text)
