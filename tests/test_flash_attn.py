"""The flash_attn family over flash-attn 2's own Python functions and a stand-in of its kernels."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flash_attn_support import SM90, untouched_modules

import pagedattn as pa
from pagedattn.backends.flash_attn import presence, probe
from pagedattn.backends.flash_attn.backend import FA2, FlashAttnBackend
from pagedattn.backends.flash_attn.limits import VARIANTS
from pagedattn.backends.flash_attn.offers import CLASSES, flash_attn_offers
from pagedattn.backends.flash_attn.step import Step
from pagedattn.backends.flash_attn.table import markdown
from pagedattn.backends.reference import ReferenceBackend
from pagedattn.conformance.case import Kind, Outcome
from pagedattn.conformance.emulation.flash_attn import install
from pagedattn.conformance.emulation.flash_attn.capture import capture
from pagedattn.conformance.runner import judge_case
from pagedattn.conformance.subjects import cases_of, of_backend
from pagedattn.emulation import Emulation, Judged

CASES = {case.id: case for case in cases_of(Kind.ATTENTION)}


def spec_of(**fields: Any) -> pa.AttentionSpec:
    plain = {
        "num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "block_size": 256,
        "dtype": torch.bfloat16, "scale": 0.125,
    }  # fmt: skip
    return pa.AttentionSpec(**{**plain, **fields})


@pytest.fixture
def emulation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulation]:
    monkeypatch.setattr(probe, "place", probe.place)  # install() replaces it: put it back
    with untouched_modules():
        yield install()


@pytest.fixture
def backend(emulation: Emulation) -> FA2:
    made = FA2()
    made.emulated = emulation
    return made


@pytest.fixture
def all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "absent", lambda variant: None)


# -- which variant ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "fields", "chosen"),
    [
        ("sm90", {"block_size": 16}, "fa3"),
        ("sm90", {"block_size": 16, "sinks": True}, "fa4"),
        ("sm100", {"block_size": 16}, "fa4"),
        ("sm80", {}, "fa2"),
        ("sm90", {}, "fa2"),
        ("sm120", {"alibi": True}, "fa2"),
        ("sm90", {"window": (31, None), "softcap": 30.0}, "fa2"),
    ],
)
def test_the_first_variant_that_serves_is_chosen(
    all_installed: None, device: str, fields: dict[str, Any], chosen: str
) -> None:
    info, spec = pa.DeviceInfo.of(device), spec_of(**fields)
    family = FlashAttnBackend()
    assert pa.check(family, spec, info) == ()
    assert family.choose(spec, info).name == chosen
    assert family.describe(spec, info)["variant"] == chosen


def test_a_family_refuses_with_the_reasons_of_all(all_installed: None) -> None:
    refusals = pa.check(FlashAttnBackend(), spec_of(block_size=16, alibi=True), "sm80")
    found = {(r.backend, r.code) for r in refusals}
    assert found >= {
        ("flash_attn:fa3", "sm"),
        ("flash_attn:fa3", "alibi"),
        ("flash_attn:fa4", "sm"),
        ("flash_attn:fa2", "block_size"),
        ("flash_attn:torch_varlen", "block_size"),
        ("flash_attn:torch_varlen", "alibi"),
    }


def test_pages_of_16_are_refused_with_the_remedy(all_installed: None) -> None:
    refusals = pa.check(FlashAttnBackend(), spec_of(block_size=16), "sm80")
    hint = next(r.hint for r in refusals if (r.backend, r.code) == ("flash_attn:fa2", "block_size"))
    assert hint == (
        "the kernels index pages of multiples of 256 tokens; "
        "open the pool with block_size=256, or choose another variant"
    )
    (refusal,) = pa.check(FA2(), spec_of(block_size=16), "sm80")
    assert "open the cache pool with a supported block_size" in refusal.hint


@pytest.mark.parametrize("scale", [0.0, -0.1])
def test_a_scale_that_turns_scores_around_is_refused(all_installed: None, scale: float) -> None:
    (refusal,) = pa.check(FA2(), spec_of(scale=scale), "sm90")
    assert refusal.code == "scale"
    assert pa.check(FA2(), spec_of(scale=scale, softcap=5.0), "sm90") == ()


def test_a_cpu_is_refused_once() -> None:
    refusals = pa.check(FlashAttnBackend(), spec_of(), "cpu")
    assert [(r.backend, r.code) for r in refusals] == [("flash_attn", "device")]


def test_every_variant_is_offered_behind_the_family() -> None:
    family, *variants = flash_attn_offers()
    assert family.name == "flash_attn"
    assert [o.name for o in variants] == [f"flash_attn:{v.name}" for v in VARIANTS]
    assert set(CLASSES) == {v.name for v in VARIANTS}
    ordered = [family, *variants]
    assert [o.priority for o in ordered] == sorted((o.priority for o in ordered), reverse=True)
    for offer in ordered:
        assert offer.load().name == offer.name


def test_the_document_is_that_of_the_data() -> None:
    document = Path(__file__).parents[1] / "docs" / "backends" / "flash_attn.md"
    assert document.read_text() == markdown(), "run: python -m pagedattn.backends.flash_attn.table"


# -- emulated --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        "core/decode/dim-64/group-4",
        "core/mixed/dim-128/group-1",
        "empty/middle",
        "random/alibi",
        "random/window/mixed",
        "launch/graph",
        "into/refresh",
        "reach/requests",
    ],
)
def test_cases_pass_under_emulation(emulation: Emulation, case: str) -> None:
    family = FlashAttnBackend()
    family.emulated = emulation
    result = judge_case(of_backend(family).make(), CASES[case])
    assert result.outcome is Outcome.PASSED, result.detail


def test_only_fa2_is_emulated_and_only_its_adapter_is_judged(emulation: Emulation) -> None:
    assert emulation.judged is Judged.ADAPTER
    for variant in VARIANTS:
        fault = probe.fault(variant, emulation.device)
        assert (fault is None) == (variant.name == "fa2"), fault


class Setting:
    """A step on a pool of random values, and the reference's answer."""

    def __init__(self, spec: pa.AttentionSpec, query_lens: list[int], seq_lens: list[int]) -> None:
        torch.manual_seed(3)
        self.spec, blocks = spec, 6
        self.rows = sum(query_lens)
        self.limits = pa.Limits(len(seq_lens), max(24, self.rows), 512, blocks)
        tables = [[(r + 2 * j) % blocks for j in range(2)] for r in range(len(seq_lens))]
        self.batch = pa.AttentionBatch.build(
            query_lens=query_lens, seq_lens=seq_lens, block_tables=tables, block_size=256,
            allow_short=True, slot_mapping=[-1] * self.rows,
        )  # fmt: skip
        self.cache = pa.KVCache.allocate(spec, blocks, "cpu")
        for pool in (self.cache.k, self.cache.v):
            pool.copy_(torch.randn(pool.shape))
        self.q = torch.randn(self.rows, spec.num_heads, spec.head_dim).to(spec.dtype)
        self.slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625]) if spec.alibi else None

    def run(self, backend: pa.AttentionBackend) -> tuple[torch.Tensor, torch.Tensor | None]:
        spec = dataclasses.replace(self.spec, graph=pa.Graph.NEVER)
        op = backend.open(spec, self.limits, device="cpu")
        out = torch.empty_like(self.q)
        lse = torch.empty(self.rows, 4) if self.spec.return_lse else None
        op.run(self.q, self.cache, op.plan(self.batch), out=out, lse=lse, alibi_slopes=self.slopes)
        return out, lse

    def agree(self, backend: pa.AttentionBackend) -> None:
        out, lse = self.run(backend)
        expected, expected_lse = self.run(ReferenceBackend())
        torch.testing.assert_close(out, expected, rtol=0.02, atol=0.02)
        if lse is not None:
            assert expected_lse is not None
            torch.testing.assert_close(lse, expected_lse, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("query_lens", [[1, 1, 1], [1, 0, 1], [5, 1, 3]])
@pytest.mark.parametrize(
    "fields",
    [
        {"alibi": True},  # counts from key 0
        {"alibi": True, "window": (40, None)},  # counts from the row
        {"alibi": True, "window": (5000, None)},  # a window that covers all is none
        {"alibi": True, "mask": pa.Mask.FULL},
        {"window": (7, None)},
        {"softcap": 2.0},
    ],
)
def test_the_lse_is_the_contract_s(
    backend: FA2, fields: dict[str, Any], query_lens: list[int]
) -> None:
    Setting(spec_of(return_lse=True, **fields), query_lens, [300, 0, 44]).agree(backend)


@pytest.mark.parametrize("window", [(3, None), (None, 1), (2, 9), (None, None)])
def test_rows_before_the_first_key_count_windows_from_their_own_position(
    backend: FA2, window: tuple[int | None, int | None]
) -> None:
    """An open side must stay open at p = seq_len - query_len + i < 0."""
    spec = spec_of(mask=pa.Mask.FULL, window=window, return_lse=True)
    Setting(spec, [9, 2], [3, 40]).agree(backend)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "fields", [{}, {"alibi": True}, {"mask": pa.Mask.FULL, "window": (None, 2)}], ids=str
)
def test_rows_that_see_no_key_are_not_launched(
    backend: FA2, fields: dict[str, Any], asynchronous: bool
) -> None:
    """The kernel writes the LSE of a tile of such rows outside its tensor; the stand-in refuses."""
    spec = spec_of(return_lse=True, async_lengths=asynchronous, **fields)
    Setting(spec, [70, 1, 3, 0], [2, 0, 300, 9]).agree(backend)


def test_steps_whose_rows_all_see_keys_are_launched_as_they_are(backend: FA2) -> None:
    setting = Setting(spec_of(), [5, 0, 3], [5, 0, 300])
    step = Step.of(setting.batch, setting.spec, setting.limits, keyless_rows=False)
    assert step.source is None
    short = Setting(spec_of(), [5, 2, 3], [4, 0, 300])
    step = Step.of(short.batch, short.spec, short.limits, keyless_rows=False)
    assert step.cu_q.tolist() == [0, 4, 4, 7]
    assert step.source is not None
    assert step.place is not None
    assert step.source[:7].tolist() == [1, 2, 3, 4, 7, 8, 9]
    assert step.place[step.source[:7]].tolist() == list(range(7))
    assert step.seen is not None
    assert step.seen.tolist() == [False, True, True, True, True, False, False, True, True, True]
    assert Step.of(short.batch, short.spec, short.limits, keyless_rows=True).source is None


@pytest.mark.parametrize("graph", [pa.Graph.UNIFORM, pa.Graph.ANY])
@pytest.mark.parametrize("extra", [{}, {"alibi": True, "return_lse": True}])
def test_a_captured_step_is_replayed_over_other_lengths(
    backend: FA2, graph: pa.Graph, extra: dict[str, Any]
) -> None:
    spec = spec_of(graph=graph, **extra)
    first, second = Setting(spec, [4, 4, 4], [300, 4, 0]), Setting(spec, [3, 3, 3], [3, 512, 77])
    op = backend.open(spec, first.limits, device="cpu")
    plan = op.plan(first.batch)
    q = torch.cat([first.q, torch.full((5, 4, 64), float("nan"), dtype=spec.dtype)])
    out = torch.full_like(q, 7)
    lse = torch.full((len(q), 4), 7.0) if spec.return_lse else None
    replay = capture(
        lambda: op.run(q, first.cache, plan, out=out, lse=lse, alibi_slopes=first.slopes)
    )
    for setting in (first, second):
        for name in ("query_start_loc", "seq_lens", "block_table"):
            getattr(first.batch, name).copy_(getattr(setting.batch, name))
        op.plan(first.batch, into=plan)
        q.fill_(float("nan"))
        q[: setting.rows] = setting.q
        out.fill_(7)
        replay()
        expected, expected_lse = setting.run(ReferenceBackend())
        torch.testing.assert_close(out[: setting.rows], expected, rtol=0.02, atol=0.02)
        assert bool((out[setting.rows :] == 7).all()), "rows of nobody were written"
        if lse is not None:
            torch.testing.assert_close(lse[: setting.rows], expected_lse, rtol=1e-4, atol=1e-4)


def test_an_op_for_decode_graphs_still_serves_other_steps(backend: FA2) -> None:
    setting = Setting(spec_of(graph=pa.Graph.DECODE), [3, 1], [40, 300])
    op = backend.open(setting.spec, setting.limits, device="cpu")
    out = torch.empty_like(setting.q)
    op.run(setting.q, setting.cache, op.plan(setting.batch), out=out)
    torch.testing.assert_close(out, setting.run(ReferenceBackend())[0], rtol=0.02, atol=0.02)


def test_a_misaligned_tensor_is_refused_by_name_before_anything_runs(backend: FA2) -> None:
    setting = Setting(spec_of(), [2], [9])
    op = backend.open(setting.spec, setting.limits, device="cpu")
    plan = op.plan(setting.batch)
    wide = torch.zeros(2, 4, 65, dtype=torch.bfloat16)
    out = torch.full_like(setting.q, 7)
    for q in (wide[..., :64], wide.flatten()[1:513].view(2, 4, 64)):
        with pytest.raises(ValueError, match="q: stride") as caught:
            op.run(q, setting.cache, plan, out=out)
        assert "multiples of 16 bytes" in str(caught.value)
    assert bool((out == 7).all())


def test_more_requests_with_rows_than_a_grid_holds_are_an_invalid_batch(backend: FA2) -> None:
    many = 65536
    spec = spec_of(block_size=256)
    op = backend.open(spec, pa.Limits(many, many, 256, 1), device="cpu")
    starts = torch.arange(many + 1, dtype=torch.int32)
    batch = pa.AttentionBatch(
        query_start_loc=starts,
        seq_lens=torch.ones(many, dtype=torch.int32),
        block_table=torch.zeros(many, 1, dtype=torch.int32),
    )
    with pytest.raises(pa.InvalidBatch, match="at most 65535 that have rows"):
        op.plan(batch)


def test_a_made_up_device_is_answered_without_trying_anything(
    all_installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "fault", lambda *a: pytest.fail("a made-up device was probed"))
    assert pa.check(FA2(), spec_of(), "sm90") == ()
    assert pa.check(FA2(), spec_of(head_dim=320), "sm90")[0].code == "head_dim"


# -- the stand-in ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"k": (2, 16)}, "pages must be multiples of 256 tokens, not 16"),
        ({"table": torch.int64}, "block_table must be int32"),
        ({"pages": 9}, "page 9..9 lies outside the pool"),
        ({"max_q": 1}, "must have one row per request"),
        ({"dtype": torch.float32}, "q must be float16 or bfloat16"),
        ({"max_k": 3}, "more keys than max_seqlen_k"),
        ({"keys": 0}, "2 rows of 0 keys: the LSE of rows without keys is written elsewhere"),
        ({"rows": 80, "max_q": 80}, "80 rows of 5 keys: the LSE of rows without keys"),
    ],
)
def test_the_stand_in_refuses_what_a_gpu_would_not_survive(
    emulation: Emulation, change: dict[str, Any], text: str
) -> None:
    from flash_attn import flash_attn_varlen_func

    pages, page = change.get("k", (2, 256))
    dtype = change.get("dtype", torch.bfloat16)
    k = torch.zeros(pages, page, 2, 64, dtype=dtype)
    table = torch.full((2, 1), change.get("pages", 1), dtype=change.get("table", torch.int32))
    cu_q = torch.tensor([0, 1, 1 + change.get("rows", 2)]).int()
    cu_k = torch.tensor([0, 4, 4 + change.get("keys", 5)]).int()
    if change.get("max_q") == 1:
        cu_q = torch.tensor([0, 1, 1]).int()
    q = torch.zeros(int(cu_q[-1]), 4, 64, dtype=dtype)
    max_q, max_k = change.get("max_q", 2), change.get("max_k", 5)
    with pytest.raises(RuntimeError, match="stand-in") as caught:
        flash_attn_varlen_func(
            q, k, k, cu_q, cu_k, max_q, max_k, causal=True, block_table=table
        )  # fmt: skip
    assert text in str(caught.value)


def test_a_replay_does_not_see_python_numbers_that_changed(emulation: Emulation) -> None:
    x, factor = torch.ones(2), [2.0]
    out = torch.zeros(2)
    replay = capture(lambda: out.copy_(x * factor[0]))
    factor[0] = 5.0
    x.fill_(3.0)
    replay()
    assert out.tolist() == [6.0, 6.0]


def test_waiting_inside_a_capture_is_an_error() -> None:
    x = torch.ones(2)
    with pytest.raises(RuntimeError, match="waits for the device"):
        capture(lambda: x.mul_(x.sum().item()))


def test_a_family_without_a_gpu_serves_nothing_real() -> None:
    spec, device = spec_of(), SM90
    assert "unavailable" in {r.code for r in pa.check(FlashAttnBackend(), spec, device)}
