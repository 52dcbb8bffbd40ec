"""The CuPy backend beside the conformance suite: choices, launches, thread orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from cupy_support import H100, spec_of

import pagedattn as pa
from pagedattn.backends.cupy import driver, loader
from pagedattn.backends.cupy.backend import CupyBackend
from pagedattn.backends.cupy.heuristics import TileKernel, choose
from pagedattn.conformance.emulation.cuda import driver as emulation
from pagedattn.emulation import Emulation

SMALL = pa.DeviceInfo("cuda", sm=(9, 0), num_sms=8, shared_mem=232448, real=True)


# -- choices -------------------------------------------------------------------------------------

SPECS: list[dict[str, Any]] = [
    {},
    {"dtype": torch.float32, "head_dim": 256},
    {"head_dim": 576, "head_dim_v": 512, "shared_kv": True, "num_heads": 16, "num_kv_heads": 1},
    {"head_dim": 192, "head_dim_v": 128},
    {"num_heads": 32, "kv_dtype": torch.int8, "kv_quant": pa.KVQuant.PER_HEAD},
    {"dtype": torch.float32, "head_dim": 576},
    {"head_dim": 59, "mask": pa.Mask.TREE},
    {"kv_dtype": torch.float32, "head_dim": 128},
]


@pytest.mark.parametrize("chip", ["sm80", "sm86", "sm89", "sm90", "sm100", "sm120"])
@pytest.mark.parametrize("options", SPECS, ids=lambda o: "-".join(o) or "plain")
def test_kernels_fit_the_chip_or_are_refused(chip: str, options: dict[str, Any]) -> None:
    spec, device = spec_of(**options), pa.DeviceInfo.of(chip)
    kernels, refusals = choose(spec, device, {}), pa.check("cupy", spec, device)
    if kernels is None:
        assert "head_dim" in {r.code for r in refusals}
        assert (chip, spec.head_dim, spec.dtype) in {
            (c, 576, torch.float32) for c in ("sm80", "sm86", "sm89", "sm120")
        }
        return
    assert "head_dim" not in {r.code for r in refusals}
    assert all(kernel.shared <= device.shared_limit for kernel in kernels.all)
    assert kernels.tile is not None


def test_single_rows_go_where_they_are_cheap() -> None:
    def decode(**options: Any) -> str:
        kernels = choose(spec_of(**options), H100, {})
        assert kernels is not None
        return "" if kernels.decode is None else kernels.decode.name

    assert decode() == "attention_decode_kernel<f16, 4, 1, Spec<64, 16, NONE>>"
    assert decode(num_heads=2) == "attention_decode_kernel<f16, 1, 1, Spec<64, 16, NONE>>"
    assert decode(num_heads=32) == "attention_prefill_kernel<f16, f16, 1, 2, 2, Spec<64, 16, NONE>>"
    tree = decode(mask=pa.Mask.TREE)
    assert tree == "attention_prefill_kernel<f16, f16, 1, 2, 2, Spec<64, 16, TREES>>"
    assert decode(batch_invariant=True) == ""
    wide = decode(dtype=torch.float32, head_dim=256)
    assert wide == "attention_decode_kernel<float, 4, 2, Spec<256, 16, NONE>>"


def test_decode_alone_needs_no_large_tiles() -> None:
    kernels = choose(spec_of(max_query_len=1), H100, {})
    assert kernels is not None
    assert kernels.tile is None
    kernels = choose(spec_of(max_query_len=1, num_heads=32), H100, {})
    assert kernels is not None
    assert isinstance(kernels.tile, TileKernel)
    assert (kernels.decode, kernels.tile.rows) == (None, 16)


def test_an_old_gpu_is_refused() -> None:
    (refusal,) = pa.check("cupy", spec_of(), pa.DeviceInfo.of("sm75"))
    assert refusal.code == "device"
    assert "sm80 and newer" in str(refusal)


def test_more_kv_heads_than_a_grid_has_are_refused() -> None:
    spec = spec_of(num_heads=65536, num_kv_heads=65536)
    assert [r.code for r in pa.check("cupy", spec, H100)] == ["num_kv_heads"]


def test_describe_tells_the_kernels_and_the_bytes() -> None:
    facts = CupyBackend().describe(spec_of(), H100)
    assert facts["kv_bytes_per_token"] == 2 * 2 * 64 * 2
    assert facts["decode_flops_per_kv_byte"] == 4.0
    assert "attention_decode_kernel<f16, 4, 1, Spec<64, 16, NONE>>" in facts["decode"]
    assert "blocks per SM" in facts["prefill"]
    quantised = spec_of(kv_dtype=torch.int8, kv_quant=pa.KVQuant.PER_TOKEN_HEAD)
    assert CupyBackend().describe(quantised, H100)["kv_bytes_per_token"] == 2 * (2 * 64 + 8)


# -- launches, recorded --------------------------------------------------------------------------


class RecordedKernel:
    max_dynamic_shared_size_bytes = 49152

    def __init__(self, name: str, launches: list[tuple[Any, ...]]) -> None:
        self.name, self.launches = name, launches

    def __call__(
        self, grid: Any, block: Any, args: Any, shared_mem: int = 0, stream: Any = None
    ) -> None:
        assert shared_mem <= max(49152, self.max_dynamic_shared_size_bytes)
        self.launches.append((self.name.partition("_kernel")[0], grid, stream))


class RecordingDriver:
    """A driver without a GPU: it only takes notes."""

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.launches: list[tuple[Any, ...]] = []

    def load(self, source: str, options: Any, names: Any, arch: str) -> dict[str, Any]:
        self.loads += [f"{name} {arch}" for name in names]
        return {name: RecordedKernel(name, self.launches) for name in names}

    def stream(self, device: torch.device) -> Any:
        return f"stream of {device}"


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> RecordingDriver:
    made = RecordingDriver()
    monkeypatch.setattr(driver, "DRIVER", made)
    monkeypatch.setattr(loader, "_loaded", {})
    return made


@pytest.fixture
def backend() -> CupyBackend:
    made = CupyBackend()
    made.emulated = Emulation(device=SMALL)
    return made


def step_of(
    spec: pa.AttentionSpec, query_lens: Sequence[int], seq_lens: Sequence[int], width: int = 0
) -> tuple[pa.AttentionBatch, int]:
    """(a batch over blocks 0, 1, 2, ..., how many blocks)"""
    tables, blocks = [], 0
    for keys in seq_lens:
        count = -(-keys // spec.block_size)
        tables.append(list(range(blocks, blocks + count)))
        blocks += count
    batch = pa.AttentionBatch.build(
        query_lens=query_lens,
        seq_lens=seq_lens,
        block_tables=tables,
        block_size=spec.block_size,
        allow_short=True,
        width=width or None,
    )
    return batch, max(1, blocks)


def run(
    backend: CupyBackend, spec: pa.AttentionSpec, query_lens: Sequence[int], seq_lens: Sequence[int]
) -> torch.Tensor:
    batch, blocks = step_of(spec, query_lens, seq_lens)
    limits = pa.Limits(len(query_lens), sum(query_lens), max(*seq_lens, 1), blocks)
    op = backend.open(spec, limits, device="cpu")
    cache = pa.KVCache.allocate(spec, blocks, "cpu")
    random = torch.Generator().manual_seed(3)
    for pool in (cache.k, cache.v):
        pool.copy_(torch.randn(pool.shape, generator=random))
    q = torch.randn(sum(query_lens), spec.num_heads, spec.head_dim, generator=random)
    out = torch.zeros(len(q), spec.num_heads, spec.head_dim_v, dtype=spec.out_dtype)
    op.run(q.to(spec.dtype), cache, op.plan(batch), out=out)
    return out


def test_everything_is_loaded_by_open(backend: CupyBackend, recording: RecordingDriver) -> None:
    spec = spec_of()
    batch, blocks = step_of(spec, [1, 9, 0], [3000, 20, 5])
    op = backend.open(spec, pa.Limits(4, 64, 4096, blocks), device="cpu")
    loaded = list(recording.loads)
    assert [name.partition("_kernel")[0] for name in loaded] == [
        "attention_decode", "attention_prefill", "attention_combine", "attention_write",
    ]  # fmt: skip
    assert all(name.endswith(" sm_90") for name in loaded)
    cache = pa.KVCache.allocate(spec, blocks, "cpu")
    q = torch.zeros(10, 8, 64, dtype=spec.dtype)
    op.run(q, cache, op.plan(batch), out=torch.zeros_like(q))
    op.write(q[:, :2], q[:, :2], cache, torch.arange(10))
    assert recording.loads == loaded
    assert recording.launches == [
        ("attention_decode", (16, 2, 1), "stream of cpu"),
        ("attention_combine", (1, 2, 1), "stream of cpu"),
        ("attention_prefill", (1, 2, 1), "stream of cpu"),
        ("attention_write", (10, 1, 1), "stream of cpu"),
    ]


def test_a_second_op_loads_nothing(backend: CupyBackend, recording: RecordingDriver) -> None:
    for _ in range(2):
        backend.open(spec_of(), pa.Limits(4, 64, 4096, 256), device="cpu")
    assert len(recording.loads) == 4


@pytest.mark.parametrize("graph", [pa.Graph.DECODE, pa.Graph.UNIFORM, pa.Graph.ANY])
def test_the_grid_of_a_graph_does_not_depend_on_the_step(
    backend: CupyBackend, recording: RecordingDriver, graph: pa.Graph
) -> None:
    spec = spec_of(graph=graph)
    batch, _ = step_of(spec, [1, 1, 1], [3000, 1, 40], width=256)
    op = backend.open(spec, pa.Limits(3, 12, 4096, 1024), device="cpu")
    plan, seen = op.plan(batch), []
    cache = pa.KVCache.allocate(spec, 1024, "cpu")
    q = torch.zeros(3, 8, 64, dtype=spec.dtype)
    for lengths in ([3000, 1, 40], [1, 1, 1], [0, 4000, 2000]):
        for tensor in (batch.seq_lens, batch.seq_lens_host):
            assert tensor is not None
            tensor.copy_(torch.tensor(lengths))
        batch.block_table.zero_()
        recording.launches.clear()
        op.run(q, cache, op.plan(batch, into=plan), out=torch.zeros_like(q))
        seen.append(list(recording.launches))
    assert seen[0] == seen[1] == seen[2]
    names = [name for name, *_ in seen[0]]
    tiles = ["attention_prefill", "attention_combine"] if graph > pa.Graph.DECODE else []
    assert names == ["attention_decode", "attention_combine", *tiles]


def test_other_steps_of_a_decode_graph_op_run_too(
    backend: CupyBackend, recording: RecordingDriver
) -> None:
    run(backend, spec_of(graph=pa.Graph.DECODE), [5, 1], [40, 3])
    assert "attention_prefill" in [name for name, *_ in recording.launches]


# -- the kernels, executed on the CPU -------------------------------------------------------------


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch, backend: CupyBackend) -> CupyBackend:
    monkeypatch.setattr(driver, "DRIVER", emulation.EmulatedDriver())
    monkeypatch.setattr(loader, "_loaded", {})
    return backend


STEPS = {
    "decode": ([1, 1, 1], [700, 16, 1]),
    "prefill": ([33, 5], [33, 80]),
    "mixed": ([1, 20, 1, 0], [300, 50, 0, 7]),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_results_do_not_depend_on_the_order_of_threads(
    emulated: CupyBackend, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, step: str
) -> None:
    spec = spec_of(dtype=dtype)
    outs = []
    for order in (0, 1, 2):
        monkeypatch.setenv("PAGEDATTN_SIMT_ORDER", str(order))
        outs.append(run(emulated, spec, *STEPS[step]))
    expected = run(pa.backend("reference"), spec, *STEPS[step])  # type: ignore[arg-type]
    slack = 2e-2 if dtype.itemsize == 2 else 1e-5
    for out in outs:
        assert torch.equal(out, outs[0])
        torch.testing.assert_close(out, expected, rtol=slack, atol=slack)


def test_splitting_changes_rounding_only(emulated: CupyBackend) -> None:
    spec = spec_of(dtype=torch.float32, return_lse=False)
    one = spec_of(dtype=torch.float32, batch_invariant=True)
    split, whole = (run(emulated, s, [1, 1], [1500, 90]) for s in (spec, one))
    assert not torch.equal(split, whole)
    torch.testing.assert_close(split, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("step", ["decode", "prefill"])
def test_a_nan_is_no_empty_part(emulated: CupyBackend, step: str) -> None:
    """lse = -inf would let a merge drop what was NaN."""
    spec = spec_of(return_lse=True)
    rows = 1 if step == "decode" else 5
    batch, blocks = step_of(spec, [rows, rows], [40, 40])
    op = emulated.open(spec, pa.Limits(2, 2 * rows, 40, blocks), device="cpu")
    cache = pa.KVCache.allocate(spec, blocks, "cpu")
    cache.k[0, 3, 0] = float("nan")  # request 0, kv head 0
    q = torch.ones(2 * rows, 8, 64, dtype=spec.dtype)
    out, lse = torch.zeros_like(q), torch.zeros(2 * rows, 8)
    op.run(q, cache, op.plan(batch), out=out, lse=lse)
    assert out[:rows, :4].isnan().all()
    assert lse[:rows, :4].isnan().all()
    assert lse[:rows, 4:].isfinite().all()
    assert lse[rows:].isfinite().all()


@pytest.mark.slow
def test_smollm2_says_the_same_as_on_the_reference(emulated: CupyBackend) -> None:
    from pagedattn_transformers import load_model

    runner = load_model("smollm2")
    prompts = [runner.encode(text, chat=True) for text in ("Hi!", "Name three colours.")]
    wanted = pa.SamplingParams(max_new_tokens=5)
    answers = [
        [done.token_ids for done in pa.Engine(runner, backend=which).generate(prompts, wanted)]
        for which in ("reference", emulated)
    ]
    assert answers[0] == answers[1]
    assert all(len(tokens) == 5 for tokens in answers[0])
