"""cupy:wgmma beside the conformance suite: what it takes, its launches, what would break it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import pagedattn as pa
from pagedattn.backends.cupy import driver, loader
from pagedattn.backends.cupy.backend import CupyBackend, CupyWgmmaBackend
from pagedattn.backends.cupy.heuristics import WGMMA_DIMS, Kernel, TileKernel, choose
from pagedattn.backends.cupy.source import source
from pagedattn.conformance.compile import cuda as gate
from pagedattn.conformance.emulation.cuda import KernelFault, driver as emulation
from pagedattn.emulation import Emulation

H100 = pa.DeviceInfo("cuda", sm=(9, 0), num_sms=132, shared_mem=232448)
SMALL = dataclasses.replace(H100, num_sms=2, real=True)


def spec_of(**options: Any) -> pa.AttentionSpec:
    values: dict[str, Any] = {
        "num_heads": 8, "num_kv_heads": 2, "head_dim": 64, "block_size": 16,
        "dtype": torch.bfloat16, "scale": 0.125,
    }  # fmt: skip
    return pa.AttentionSpec(**(values | options))


# -- choices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", sorted(WGMMA_DIMS))
def test_large_tiles_are_of_wgmma_and_fit(head_dim: int, dtype: torch.dtype) -> None:
    spec = spec_of(head_dim=head_dim, dtype=dtype)
    assert pa.check("cupy:wgmma", spec, H100) == ()
    for rows in (64, 128):
        kernels = choose(spec, H100, {"tile_rows": rows}, wgmma=True)
        assert kernels is not None
        tile = kernels.tile
        assert isinstance(tile, TileKernel)
        assert (tile.file, tile.rows, tile.threads, tile.suffix) == (
            "prefill_wgmma.cu", rows, 2 * rows, "a",
        )  # fmt: skip
        assert tile.keys == {64: (128, 128), 128: (64, 128), 256: (64, 64)}[head_dim][rows // 128]
        assert tile.shared <= H100.shared_limit
        assert all(not k.suffix for k in kernels.all if k is not tile)


def test_short_requests_take_one_warpgroup() -> None:
    rows = {}
    for longest in (2, 16, 17, None):
        kernels = choose(spec_of(max_query_len=longest), H100, {}, wgmma=True)
        assert kernels is not None
        assert kernels.tile is not None
        rows[longest] = kernels.tile.rows
    assert rows == {2: 64, 16: 64, 17: 128, None: 128}


def test_decode_alone_needs_no_wgmma() -> None:
    spec = spec_of(max_query_len=1)
    assert choose(spec, H100, {}, wgmma=True) == choose(spec, H100, {})


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"head_dim": 96}, "head_dim"),
        ({"head_dim": 128, "head_dim_v": 64}, "head_dim_v"),
        ({"dtype": torch.float32}, "dtype"),
        ({"kv_dtype": torch.float16}, "kv_dtype"),
        ({"kv_dtype": torch.int8, "kv_quant": pa.KVQuant.PER_HEAD}, "kv_quant"),
        ({"head_dim": 256, "head_dim_v": 128, "shared_kv": True}, "shared_kv"),
    ],
)
def test_the_rest_is_refused_and_left_to_cupy(options: dict[str, Any], code: str) -> None:
    options |= {"num_heads": 2, "num_kv_heads": 1} if "shared_kv" in options else {}
    refusals = pa.check("cupy:wgmma", spec_of(**options), H100)
    assert code in {r.code for r in refusals}
    assert pa.check("cupy", spec_of(**options), H100) == ()


@pytest.mark.parametrize("chip", ["sm80", "sm89", "sm100", "sm120"])
def test_other_chips_are_refused(chip: str) -> None:
    (refusal,) = pa.check("cupy:wgmma", spec_of(), pa.DeviceInfo.of(chip))
    assert refusal.code == "device"
    assert "the backend cupy serves it" in str(refusal)


def test_describe_tells_which_kernel_is_used() -> None:
    facts = {b.name: b.describe(spec_of(), H100) for b in (CupyBackend(), CupyWgmmaBackend())}
    assert facts["cupy"]["prefill"].startswith("attention_prefill_kernel<")
    wgmma = facts["cupy:wgmma"]
    name = "attention_prefill_wgmma_kernel<bf16, 128, 2, Spec<64, 16, NONE>>"
    assert wgmma["prefill"].startswith(name)
    assert wgmma["prefill_flops_per_kv_byte"] == 2 * facts["cupy"]["prefill_flops_per_kv_byte"]
    assert CupyWgmmaBackend().describe(spec_of(head_dim=96), H100) == {}


# -- launches --------------------------------------------------------------------------------------


class Recorder:
    """A driver that only takes notes."""

    def __init__(self) -> None:
        self.loads: dict[str, str] = {}
        self.blocks: dict[str, Any] = {}

    def load(self, source: str, options: Any, names: Any, arch: str) -> dict[str, Any]:
        self.loads |= {name.partition("_kernel")[0]: arch for name in names}
        return {name: Recorded(name.partition("_kernel")[0], self.blocks) for name in names}

    def stream(self, device: torch.device) -> None:
        return None


class Recorded:
    max_dynamic_shared_size_bytes = 49152

    def __init__(self, name: str, blocks: dict[str, Any]) -> None:
        self.name, self.blocks = name, blocks

    def __call__(self, grid: Any, block: Any, args: Any, shared_mem: int, stream: Any) -> None:
        assert shared_mem <= max(49152, self.max_dynamic_shared_size_bytes)
        self.blocks[self.name] = block


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> CupyWgmmaBackend:
    monkeypatch.setattr(loader, "_loaded", {})
    made = CupyWgmmaBackend()
    made.emulated = Emulation(device=SMALL)
    return made


def run(
    backend: pa.AttentionBackend,
    spec: pa.AttentionSpec,
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    tuning: dict[str, int] | None = None,
) -> torch.Tensor:
    tables, blocks = [], 0
    for keys in seq_lens:
        count = -(-keys // spec.block_size)
        tables.append(list(range(blocks, blocks + count)))
        blocks += count
    batch = pa.AttentionBatch.build(
        query_lens=query_lens, seq_lens=seq_lens, block_tables=tables, block_size=spec.block_size
    )
    limits = pa.Limits(len(query_lens), sum(query_lens), max(seq_lens), blocks)
    op = backend.open(spec, limits, device="cpu", tuning=tuning)
    cache = pa.KVCache.allocate(spec, blocks, "cpu")
    random = torch.Generator().manual_seed(3)
    for pool in (cache.k, cache.v):
        pool.copy_(torch.randn(pool.shape, generator=random))
    q = torch.randn(sum(query_lens), spec.num_heads, spec.head_dim, generator=random)
    out = torch.zeros_like(q, dtype=spec.out_dtype)
    op.run(q.to(spec.dtype), cache, op.plan(batch), out=out)
    return out


def test_this_kernel_alone_is_compiled_for_sm_90a(
    backend: CupyWgmmaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    monkeypatch.setattr(driver, "DRIVER", recorder)
    run(backend, spec_of(), [1, 40], [9, 40])
    assert recorder.loads == {
        "attention_decode": "sm_90", "attention_prefill_wgmma": "sm_90a",
        "attention_combine": "sm_90", "attention_write": "sm_90",
    }  # fmt: skip
    assert recorder.blocks == {
        "attention_decode": (128, 1, 1), "attention_prefill_wgmma": (256, 1, 1),
    }  # fmt: skip


# -- the kernel, executed on the CPU ---------------------------------------------------------------


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch, backend: CupyWgmmaBackend) -> CupyWgmmaBackend:
    monkeypatch.setattr(driver, "DRIVER", emulation.EmulatedDriver())
    return backend


STEP = ([70, 1, 20], [70, 90, 300])
"""Tiles that are full and not, one and three steps of keys, a row alone."""


def is_right(out: torch.Tensor, spec: pa.AttentionSpec) -> bool:
    expected = run(pa.backend("reference"), spec, *STEP)
    return torch.allclose(out, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("head_dim", "rows"), [(64, 128), (128, 64), (128, 128), (256, 128)])
def test_results_do_not_depend_on_the_order_of_threads(
    emulated: CupyWgmmaBackend, monkeypatch: pytest.MonkeyPatch, head_dim: int, rows: int
) -> None:
    spec = spec_of(head_dim=head_dim, batch_invariant=True)
    outs = []
    for order in (0, 1, 2):
        monkeypatch.setenv("PAGEDATTN_SIMT_ORDER", str(order))
        outs.append(run(emulated, spec, *STEP, {"tile_rows": rows}))
    assert is_right(outs[0], spec)
    assert all(torch.equal(out, outs[0]) for out in outs)


BROKEN = [
    ("    fence_shared();\n", "", r"no fence\.proxy\.async behind"),
    ("    __syncthreads();", "    ", "race on shared memory|still to fill"),
    ("    copy_async_wait<0>();\n", "", "still to fill"),
    ("    wgmma_wait<1>();\n", "", "accumulator is touched"),
    ("    wgmma_wait<0>();\n", "", "accumulator is touched"),
    ("    wgmma_fence();\n", "", r"without wgmma\.fence"),
    ("((vector ^ row) & 7)", "(vector & 7)", ""),
    ("matrix_descriptor(v_tiles, N * SWIZZLED_ROW, ", "matrix_descriptor(v_tiles, 1024, ", ""),
    ("load_k(start + 2 * N, stage);", "load_k(start + 2 * N, stage ^ 1);", "race on shared|fill"),
    ("(-address & (SWIZZLED_GROUP - 1))", "0", ""),
]


@pytest.mark.parametrize(("old", "new", "message"), BROKEN, ids=lambda text: text.strip()[:32])
def test_a_broken_kernel_is_found_out(
    emulated: CupyWgmmaBackend, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    """By the model of wgmma in checked mode; where there is no message, by its numbers."""
    whole = loader.source("prefill_wgmma.cu")
    assert old in whole
    text = {"prefill_wgmma.cu": whole.replace(old, new)}
    original = loader.source
    monkeypatch.setattr(loader, "source", lambda name: text.get(name) or original(name))
    monkeypatch.setenv("PAGEDATTN_SIMT_CHECKED", "1" if message else "0")
    spec = spec_of(head_dim=128)
    if message:
        with pytest.raises(KernelFault, match=message):
            run(emulated, spec, *STEP)
    else:
        assert not is_right(run(emulated, spec, *STEP), spec)


# -- the compile gate ------------------------------------------------------------------------------


PRODUCT = """
template <int N> __global__ void attention_prefill_wgmma_kernel(
    float* out, unsigned long long a, unsigned long long b) {
  float d[N / 2];
  wgmma_fence();
  wgmma(d, a, b, false, bf16());
  wgmma_commit();
  WAIT
  for (int i = 0; i < N / 2; ++i) out[i * 128 + threadIdx.x] = d[i];
  wgmma_wait<0>();
}
"""


@pytest.mark.parametrize("waits", [True, False])
def test_the_gate_finds_added_waits(monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    wait = "wgmma_wait<0>(); keep_in_place(d);" if waits else ""
    text = source("wgmma.cuh") + PRODUCT.replace("WAIT", wait)
    monkeypatch.setattr(gate, "source", lambda _: text)
    name = "attention_prefill_wgmma_kernel<64>"
    kernel = Kernel("prefill_wgmma.cu", name, 0, suffix="a")
    row = gate.compiled(gate.Job(gate.CHIPS["sm_90"], kernel, 0, ("a model",)))
    assert set(row.usage.mma) == {"HGMMA.64x64x16.F32.BF16"}
    assert ("(C75" in " ".join(row.faults)) is not waits


def test_a_kernel_of_wgmma_without_hgmma_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "template <int N> __global__ void attention_prefill_wgmma_kernel(float* x) { *x = N; }"
    monkeypatch.setattr(gate, "source", lambda _: text)
    kernel = Kernel("prefill_wgmma.cu", "attention_prefill_wgmma_kernel<64>", 0, suffix="a")
    row = gate.compiled(gate.Job(gate.CHIPS["sm_90"], kernel, 0, ("a model",)))
    assert "no HGMMA instruction" in " ".join(row.faults)


def test_the_gate_compiles_both_tiles_for_sm_90a() -> None:
    jobs, declined = gate.jobs_for(gate.CHIPS["sm_90"], ["Llama 3 8B"])
    names = [job.kernel.name for job in jobs if job.arch == "sm_90a"]
    flags = (f"<bf16, {steps}, Spec<128, 16, NONE>>" for steps in ("128, 2", "64, 1"))
    assert names == [f"attention_prefill_wgmma_kernel{f}" for f in flags]
    assert declined == {}
    jobs, _ = gate.jobs_for(gate.CHIPS["sm_100"], ["Llama 3 8B"])
    assert {job.arch for job in jobs} == {"sm_100"}
