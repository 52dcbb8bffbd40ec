"""Which instantiation a spec gets, and that it computes what the one that knows nothing does."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import pagedattn as pa
from pagedattn.backends.cupy import driver, heuristics, loader, op, schedule
from pagedattn.backends.cupy.backend import CupyBackend, CupyWgmmaBackend
from pagedattn.backends.cupy.heuristics import WGMMA_DIMS, choose
from pagedattn.backends.cupy.instances import COMMON, HEAD_DIMS, Option, options_of, spec_type
from pagedattn.backends.cupy.source import KERNELS
from pagedattn.conformance.emulation.cuda import driver as emulation
from pagedattn.emulation import Emulation

H100 = pa.DeviceInfo("cuda", sm=(9, 0), num_sms=8, shared_mem=232448, real=True)
TOKEN_SCALES = {"kv_dtype": torch.int8, "kv_quant": pa.KVQuant.PER_TOKEN_HEAD}
HEAD_SCALES = {"kv_dtype": torch.float8_e5m2, "kv_quant": pa.KVQuant.PER_HEAD}


def spec_of(**options: Any) -> pa.AttentionSpec:
    values: dict[str, Any] = {
        "num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "block_size": 16,
        "dtype": torch.bfloat16, "scale": 0.125,
    }  # fmt: skip
    return pa.AttentionSpec(**(values | options))


# -- choices -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, "64, 16, NONE"),
        ({"head_dim": 128, "block_size": 32}, "128, 32, NONE"),
        ({"head_dim": 256, "block_size": 64}, "256, 64, NONE"),
        ({"block_size": 128}, "64, 128, NONE"),
        ({"head_dim": 96}, "0, 16, NONE"),
        ({"block_size": 48}, "64, 0, NONE"),
        ({"block_size": 1}, "64, 0, NONE"),
        ({"head_dim": 128, "head_dim_v": 64}, "0, 16, NONE"),
        ({"window": (9, None)}, "64, 16, WINDOW"),
        ({"window": (0, None)}, "64, 16, WINDOW"),
        ({"softcap": 30.0}, "64, 16, SOFTCAP"),
        ({"softcap": 30.0, "window": (9, None)}, "64, 16, WINDOW | SOFTCAP"),
        ({"alibi": True}, "64, 16, SLOPES"),
        ({"mask": pa.Mask.TREE}, "64, 16, TREES"),
        ({"shared_kv": True}, "64, 16, SHARED_KV"),
        (TOKEN_SCALES, "64, 16, TOKEN_SCALES"),
        (HEAD_SCALES, "64, 16, NONE"),
        ({"mask": pa.Mask.FULL}, "64, 16, ANY"),
        ({"mask": pa.Mask.FULL, "window": (None, 3)}, "64, 16, ANY"),
        ({"alibi": True, "window": (9, None)}, "64, 16, ANY"),
        ({"sinks": True, "return_lse": True, "batch_invariant": True}, "64, 16, NONE"),
    ],
    ids=str,
)
def test_what_is_known_of_a_spec(options: dict[str, Any], wanted: str) -> None:
    assert spec_type(spec_of(**options), ~Option(0)) == f"Spec<{wanted}>"


def test_a_kernel_is_told_what_its_loop_looks_at() -> None:
    kernels = choose(
        spec_of(window=(9, None), softcap=30.0, mask=pa.Mask.FULL, **TOKEN_SCALES), H100, {}
    )
    assert kernels is not None
    assert kernels.decode is not None
    assert kernels.tile is not None
    # Two options of the scores are rare in decode; tiles do not mind whose a scale is.
    assert kernels.decode.name == "attention_decode_kernel<q8<INT8>, 2, 1, Spec<64, 16, ANY>>"
    assert kernels.tile.name.endswith("<bf16, q8<INT8>, 4, 2, 2, Spec<64, 16, ANY>>")
    kernels = choose(spec_of(window=(9, None), **TOKEN_SCALES), H100, {})
    assert kernels is not None
    assert kernels.decode is not None
    assert kernels.tile is not None
    assert kernels.decode.name.endswith("Spec<64, 16, TOKEN_SCALES>>")
    assert kernels.tile.name.endswith("Spec<64, 16, WINDOW>>")


def test_wgmma_takes_the_widths_that_have_kernels_of_their_own() -> None:
    assert WGMMA_DIMS <= HEAD_DIMS  # Spec<0, ...> has no tile of registers


def test_the_options_are_those_of_the_header() -> None:
    text = (KERNELS / "spec.cuh").read_text()
    (body,) = re.findall(r"enum Option : unsigned \{(.*?)\};", text, re.DOTALL)
    found = dict(re.findall(r"(\w+) = ([^,/\n]+)", body))
    assert found.pop("NONE") == "0"
    assert found.pop("ANY").strip() == f"(1 << {len(Option)}) - 1"
    assert found == {o.name: f"1 << {o.value.bit_length() - 1}" for o in Option}
    assert all(set(Option) >= set(options) for options in COMMON)


def test_numbers_that_python_and_kernels_share() -> None:
    def number(file: str, name: str) -> int:
        found = re.search(rf"constexpr int {name} = (\w+);", (KERNELS / file).read_text())
        assert found is not None, (file, name)
        return int(found[1], 0)

    def members(file: str, name: str) -> dict[str, int]:
        found = re.search(rf"enum {name} \{{(.*?)\}};", (KERNELS / file).read_text(), re.DOTALL)
        assert found is not None, (file, name)
        return {key: int(value) for key, value in re.findall(r"(\w+) = (\d+)", found[1])}

    for file in ("decode.cu", "prefill.cu"):
        assert number(file, "WARPS") == heuristics.WARPS
    assert number("decode.cu", "STAGES") == heuristics.DECODE_STAGES
    assert number("decode.cu", "TOKENS") == heuristics.DECODE_TOKENS
    assert number("work.cuh", "ITEM_INTS") == schedule.ITEM_INTS
    assert number("spec.cuh", "UNBOUNDED") == op.UNBOUNDED
    assert members("spec.cuh", "MaskKind") == {m.name: op.MASKS[m] for m in pa.Mask}
    names = {"INT8": torch.int8, "E4M3": torch.float8_e4m3fn, "E5M2": torch.float8_e5m2}
    names |= {name.upper(): getattr(torch, name) for name in ("float32", "float16", "bfloat16")}
    assert {names[key]: value for key, value in members("types.cuh", "Dtype").items()} == op.DTYPES


# -- the kernels, executed on the CPU -------------------------------------------------------------

CASES: dict[str, dict[str, Any]] = {
    "WINDOW": {"window": (9, None)},
    "BIDIRECTIONAL": {"mask": pa.Mask.FULL},
    "TREES": {"mask": pa.Mask.TREE},
    "SOFTCAP": {"softcap": 2.0},
    "SLOPES": {"alibi": True},
    "TOKEN_SCALES": TOKEN_SCALES,
    "SHARED_KV": {"shared_kv": True},
    "NONE": {},
}


def run(backend: CupyBackend, spec: pa.AttentionSpec) -> torch.Tensor:
    """A row alone, and eight rows with keys before them; all of V far from K."""
    draw = torch.Generator().manual_seed(3)
    tree = [[column in (0, row) for column in range(8)] for row in range(8)]
    batch = pa.AttentionBatch.build(
        query_lens=[1, 8],
        seq_lens=[90, 40],
        block_tables=[list(range(6)), [6, 7, 8]],
        block_size=16,
        tree_masks=[None, tree] if spec.mask is pa.Mask.TREE else None,
    )
    op = backend.open(spec, pa.Limits(2, 9, 90, 9), device="cpu")
    cache = pa.KVCache.allocate(spec, 9, "cpu")
    k, v = (torch.randn(144, 2, 64, generator=draw) + shift for shift in (0, 2))
    op.write(
        k.to(spec.dtype), None if spec.shared_kv else v.to(spec.dtype), cache, torch.arange(144)
    )
    q = torch.randn(9, 4, 64, generator=draw).to(spec.dtype)
    out = torch.zeros(9, 4, 64, dtype=spec.out_dtype)
    slopes = torch.tensor([0.5, 0.1, 0.3, 0.2]) if spec.alibi else None
    op.run(q, cache, op.plan(batch), out=out, alibi_slopes=slopes)
    return out


@pytest.fixture
def knowing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes every kernel an instantiation of the given Spec<...>."""
    monkeypatch.setattr(driver, "DRIVER", emulation.EmulatedDriver())

    def use(text: str) -> None:
        monkeypatch.setattr(loader, "_loaded", {})
        monkeypatch.setattr(heuristics, "spec_type", lambda spec, looked_at: text)

    return use


@pytest.mark.parametrize("backend", [CupyBackend, CupyWgmmaBackend], ids=lambda b: b.name)
@pytest.mark.parametrize("option", CASES)
def test_less_knowledge_changes_no_bit_and_a_missing_option_does(
    knowing: Any, backend: type[CupyBackend], option: str
) -> None:
    spec = spec_of(**CASES[option])
    opened = backend()
    opened.emulated = Emulation(device=H100)
    if pa.check(opened, spec, H100):
        assert backend is CupyWgmmaBackend
        assert option in ("TOKEN_SCALES", "SHARED_KV")
        return
    assert options_of(spec) == (Option[option] if option in Option.__members__ else Option(0))
    knowing(f"Spec<64, 16, {option}>")
    exact = run(opened, spec)
    width = 64 if backend is CupyWgmmaBackend else 0
    knowing(f"Spec<{width}, 0, ANY>")
    assert torch.equal(run(opened, spec), exact)
    expected = run(pa.backend("reference"), spec)  # type: ignore[arg-type]
    torch.testing.assert_close(exact, expected, rtol=3e-2, atol=3e-2)
    if option not in ("NONE", "SHARED_KV"):  # without the latter K is read twice
        knowing("Spec<64, 16, NONE>")
        assert not torch.allclose(run(opened, spec), expected, rtol=3e-2, atol=3e-2)
