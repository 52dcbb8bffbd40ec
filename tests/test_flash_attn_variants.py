"""FlashAttention-3, -4 and torch's varlen through fakes with their own parameters that compute."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.attention.varlen  # not imported by torch
from flash_attn_support import EMULATION, Site, on_cpu, torch_varlen_out, untouched_modules
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import pagedattn as pa
from pagedattn.attention import AttentionBackend
from pagedattn.backends.flash_attn import presence, probe
from pagedattn.backends.flash_attn.backend import FA3, FA4, TorchVarlen
from pagedattn.backends.flash_attn.calls import CALLS, Call
from pagedattn.backends.flash_attn.limits import variant
from pagedattn.backends.flash_attn.presence import functions
from pagedattn.backends.flash_attn.step import Step
from pagedattn.conformance.case import Kind, Outcome
from pagedattn.conformance.runner import judge_case
from pagedattn.conformance.subjects import cases_of, of_backend

CASES = {case.id: case for case in cases_of(Kind.ATTENTION)}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with untouched_modules():
        yield Site(tmp_path, monkeypatch)


@pytest.fixture
def libraries(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """All three, as distributions that are found, inspected and called."""
    monkeypatch.setattr(probe, "place", on_cpu)
    name = "flash_attn_with_kvcache"
    code = f"from flash_attn_support import fa3_with_kvcache as {name}"
    site.distribution("flash_attn_3", "3.0.0", flash_attn_interface=code)
    code = "from flash_attn_support import fa4_varlen as flash_attn_varlen_func"
    site.distribution("flash-attn-4", "4.0.0b36", flash_attn__cute=code)
    site.distribution("torch", "2.13.0")  # a build with CUDA
    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn_out", torch_varlen_out)
    presence.forget()


def emulated(made: AttentionBackend) -> AttentionBackend:
    made.emulated = EMULATION
    return made


@pytest.mark.parametrize("made", [FA3(), FA4(), TorchVarlen()], ids=lambda b: b.variant.name)
@pytest.mark.parametrize(
    "case",
    [
        "core/decode/dim-64/group-4",
        "core/prefill/dim-64/group-1",
        "core/mixed/dim-128/group-4",
        "empty/middle",
        "poison/nan/decode",
        "poison/nan/mixed",
        "table/filler-int-max/mixed",
        "table/no-columns",
        "padding/3-rows/none",
        "random/plain/mixed",
        "random/softcap",
        "random/sinks",
        "random/window/mixed",
        "lse/natural",
        "lse/sinks",
        "launch/temporaries",
        "into/refresh",
    ],
)
def test_the_suite_over_a_fake_that_computes(
    libraries: None, made: AttentionBackend, case: str
) -> None:
    subject = of_backend(emulated(made)).make()
    result = judge_case(subject, CASES[case])
    assert result.outcome in (Outcome.PASSED, Outcome.DECLINED), result.detail
    if CASES[case].core:
        assert result.outcome is Outcome.PASSED
    if result.outcome is Outcome.DECLINED:
        assert {r.code for r in result.refusals} <= {"softcap", "sinks", "window", "return_lse"}


def test_sinks_and_lse_reach_fa4_and_come_back_in_the_contract_s_layout(libraries: None) -> None:
    spec = pa.AttentionSpec(
        num_heads=4, num_kv_heads=2, head_dim=64, block_size=16, dtype=torch.bfloat16, scale=0.125,
        sinks=True, return_lse=True,
    )  # fmt: skip
    op = emulated(FA4()).open(spec, pa.Limits(2, 4, 64, 8), device="cpu")
    batch = pa.AttentionBatch.build(
        query_lens=[1, 2], seq_lens=[0, 40], block_tables=[[], [5, 2, 7]], block_size=16,
        allow_short=True,
    )  # fmt: skip
    cache = pa.KVCache.allocate(spec, 8, "cpu")
    out = torch.full((3, 4, 64), float("nan"), dtype=torch.bfloat16)
    lse, sinks = torch.empty(3, 4), torch.tensor([0.0, 1.0, -2.0, 3.0])
    op.run(torch.randn(3, 4, 64).bfloat16(), cache, op.plan(batch), out=out, lse=lse, sinks=sinks)
    # All scores are 0: the denominator counts the keys that a row sees, and the sink.
    torch.testing.assert_close(lse[0], sinks)
    torch.testing.assert_close(lse[1], torch.log(39 + sinks.exp()))
    torch.testing.assert_close(lse[2], torch.log(40 + sinks.exp()))
    assert bool((out == 0).all())


@pytest.mark.parametrize(
    "fields",
    [
        {"window": (64, None)},
        {"dtype": torch.float16, "head_dim": 64, "num_heads": 2},
        {"mask": pa.Mask.FULL, "layout": pa.Layout.HND},
        {"mask": pa.Mask.FULL, "window": (3, 9), "block_size": 512},
    ],
    ids=str,
)
def test_torch_s_real_operator_takes_the_adapter_s_call(site: Site, fields: dict[str, Any]) -> None:
    """Shapes, dtypes and parameters go through torch's own fake implementation, on CUDA tensors
    that do not exist; what arrives there is what the contract asked for."""
    site.distribution("torch", "2.13.0")  # a build with CUDA
    functions_of = functions(variant("torch_varlen"))
    plain = {
        "num_heads": 8, "num_kv_heads": 2, "head_dim": 128, "block_size": 256,
        "dtype": torch.bfloat16, "scale": 0.1,
    }  # fmt: skip
    spec = pa.AttentionSpec(**{**plain, **fields})
    seen: list[tuple[Any, Any]] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append((func, args))
            return func(*args, **kwargs or {})

    with FakeTensorMode(allow_non_fake_inputs=True):
        cache = pa.KVCache.allocate(spec, 4, "cuda")
        q = torch.empty(5, spec.num_heads, spec.head_dim, dtype=spec.dtype, device="cuda")
        cu_q = torch.empty(4, dtype=torch.int32, device="cuda")
        keys = torch.empty(3, dtype=torch.int32, device="cuda")
        table = torch.empty(3, 2, dtype=torch.int32, device="cuda")
        step = Step(5, 3, 303, False, cu_q, table, torch.empty_like(cu_q), keys, keys)
        call = Call(functions_of, spec, step, cache, q, torch.empty_like(q), None, None)
        with Watch():
            assert CALLS["torch_varlen"](call) == (None, None)
    (arguments,) = [a for f, a in seen if f is torch.ops.torch_attn._varlen_attn_out.default]
    out, query, key, value, starts, _, max_q, max_k, causal, scale, window, *rest = arguments
    assert (out.shape, query.shape) == (q.shape, q.shape)
    assert key.shape == value.shape == (4, spec.block_size, spec.num_kv_heads, spec.head_dim)
    assert (starts.shape, max_q, max_k, scale) == ((4,), 3, 303, 0.1)
    left, right = spec.window
    if spec.mask is pa.Mask.CAUSAL:
        assert window == [-1 if left is None else left, 0]
        assert causal == (left is None)
    else:
        assert window == [-1 if left is None else left, -1 if right is None else right]
        assert not causal
    assert rest[0] == (spec.group_size > 1)
    assert rest[1] is keys
    assert rest[2] is table
