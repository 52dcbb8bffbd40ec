"""What the adapter asks of FlashInfer, and what it refuses."""

import sys
import types

import fake_flashinfer
import pytest
import torch
from pagedattn_flashinfer import backend as module
from pagedattn_flashinfer.backend import FlashInferBackend
from pagedattn_flashinfer.step import Step

import pagedattn as pa


def spec_of(**fields: object) -> pa.AttentionSpec:
    plain = {
        "num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "block_size": 16,
        "dtype": torch.bfloat16, "scale": 0.125,
    }  # fmt: skip
    return pa.AttentionSpec(**{**plain, **fields})


def batch_of(query_lens: list[int], seq_lens: list[int]) -> pa.AttentionBatch:
    tables = [[10 * (r + 1) + j for j in range(4)] for r in range(len(seq_lens))]
    return pa.AttentionBatch.build(
        query_lens=query_lens, seq_lens=seq_lens, block_tables=tables, block_size=16,
        allow_short=True,
    )  # fmt: skip


def test_pages_behind_the_window_are_not_listed() -> None:
    step = Step.of(batch_of([1, 3], [50, 40]), spec_of(window=(16, None)))
    # Row 49 sees 33..49, pages 2 and 3; rows 37..39 see 21..39, pages 1 and 2.
    assert step.entries == (2, 3, 5, 6)
    assert step.kv_indptr == (0, 2, 4)
    assert step.last_page_len == (2, 8)
    assert step.rows is None


def test_rows_and_requests_without_keys_are_not_launched() -> None:
    step = Step.of(batch_of([2, 1, 4, 0], [9, 0, 2, 5]), spec_of())
    assert step.rows == (0, 1, 5, 6)
    assert step.qo_indptr == (0, 2, 4)
    assert step.entries == (0, 8)


def run(backend: FlashInferBackend, spec: pa.AttentionSpec, out: torch.Tensor) -> None:
    op = backend.open(spec, pa.Limits(2, 4, 64, 40), device="cpu")
    cache = pa.KVCache.allocate(spec, 40, "cpu")
    op.run(torch.randn(2, 4, 64).bfloat16(), cache, op.plan(batch_of([1, 1], [9, 20])), out=out)


def test_decode_only_specs_take_the_decode_wrapper(backend: FlashInferBackend) -> None:
    run(backend, spec_of(max_query_len=1), torch.empty(2, 4, 64, dtype=torch.bfloat16))
    assert [name for name, _ in fake_flashinfer.CALLS] == ["decode.plan", "decode.run"]


@pytest.mark.parametrize("contiguous", [True, False])
def test_out_is_written_in_place_when_it_can_be(
    backend: FlashInferBackend, contiguous: bool
) -> None:
    wide = torch.empty(2, 4, 64 if contiguous else 72, dtype=torch.bfloat16)
    run(backend, spec_of(), wide[..., :64])
    assert fake_flashinfer.CALLS[-1] == ("prefill.run", {"in_place": contiguous})


def test_a_wrapper_serves_again_when_its_plan_is_gone(backend: FlashInferBackend) -> None:
    op = backend.open(spec_of(), pa.Limits(2, 4, 64, 40), device="cpu")
    first = op.plan(batch_of([1], [9]))
    second = op.plan(batch_of([2], [9]))
    freed = op.wrappers[first.data]
    assert op.wrappers[second.data] is not freed
    del first
    assert op.wrappers[op.plan(batch_of([3], [9])).data] is freed


def test_pools_of_other_strides_are_refused_by_name(backend: FlashInferBackend) -> None:
    spec = spec_of()
    op = backend.open(spec, pa.Limits(1, 1, 64, 40), device="cpu")
    pool = torch.zeros(40, 16, 2, 64, dtype=torch.bfloat16)
    wide = torch.zeros(40, 16, 2, 128, dtype=torch.bfloat16)
    q = torch.zeros(1, 4, 64, dtype=torch.bfloat16)
    plan = op.plan(batch_of([1], [9]))
    with pytest.raises(pa.InvalidTensor, match=r"cache\.v"):
        op.run(q, pa.KVCache(k=pool, v=wide[..., :64]), plan, out=torch.empty_like(q))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"sinks": True}, "sinks"),
        ({"alibi": True}, "alibi"),
        ({"head_dim": 80}, "head_dim"),
        ({"dtype": torch.float32}, "dtype"),
        ({"scale": -1.0}, "scale"),
        ({"graph": pa.Graph.DECODE}, "graph"),
        ({"async_lengths": True}, "async_lengths"),
        ({"mask": pa.Mask.FULL, "window": (3, None)}, "window"),
    ],
)
def test_what_it_cannot_do_is_refused(
    backend: FlashInferBackend, fields: dict[str, object], code: str
) -> None:
    assert code in {r.code for r in pa.check(backend, spec_of(**fields), "sm90")}


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ({}, "has no BatchDecodeWithPagedKVCacheWrapper;"),
        (
            {"BatchDecodeWithPagedKVCacheWrapper": type("W", (), {"__init__": lambda self: None})},
            "takes no float_workspace_buffer, kv_layout, use_tensor_cores, backend",
        ),
    ],
)
def test_another_version_is_refused_with_what_it_lacks(
    backend: FlashInferBackend,
    monkeypatch: pytest.MonkeyPatch,
    broken: dict[str, object],
    text: str,
) -> None:
    other = types.ModuleType("flashinfer")
    vars(other).update(broken)
    monkeypatch.setitem(sys.modules, "flashinfer", other)
    (refusal,) = pa.check(backend, spec_of(), backend.emulated.device)
    assert refusal.code == "unavailable"
    assert text in refusal.hint
    assert "this adapter knows 0.6 to 0.7" in refusal.hint


@pytest.mark.parametrize("version", ["0.5.3", "0.8.0", "1.0", "0.60.1"])
def test_an_unknown_version_is_refused_with_those_that_are_known(
    backend: FlashInferBackend, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(module, "installed_version", lambda: version)
    (refusal,) = pa.check(backend, spec_of(), backend.emulated.device)
    assert (refusal.code, refusal.hint) == (
        "unavailable",
        f"flashinfer-python {version} is installed, this adapter knows 0.6 to 0.7; "
        "install one of those",
    )


def test_a_distribution_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "installed_version", lambda: None)
    assert module.fault() == "flashinfer-python is not installed; pip install one of 0.6 to 0.7"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SystemExit("no driver"), "SystemExit: no driver; reinstall it for this torch"),
        (
            ImportError("libcudart.so.12: cannot open shared object file"),
            "ImportError: libcudart.so.12: cannot open shared object file "
            f"(torch {torch.__version__} with CUDA {torch.version.cuda or 'none'}); "
            "reinstall it for this torch",
        ),
    ],
)
def test_an_import_that_crashes_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, text: str
) -> None:
    def crash(name: str) -> None:
        raise error

    monkeypatch.setattr(module.importlib, "import_module", crash)
    assert module.fault() == f"importing flashinfer-python 0.7.4 fails with {text}"


def test_an_old_gpu_is_refused(backend: FlashInferBackend) -> None:
    (refusal,) = pa.check(backend, spec_of(), "sm75")
    assert (refusal.code, refusal.requested) == ("sm", "7.5")
