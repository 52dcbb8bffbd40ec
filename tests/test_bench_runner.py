"""Who may be timed: right answers only, every kind of wrong one caught, the others unharmed."""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bench_support import FAST, GatherBackend, TickClock, make_spec, run_bench, variant

import pagedattn as pa
from pagedattn import registry
from pagedattn.benchmarks import Workload, bench
from pagedattn.benchmarks.results import BenchRow, BenchState
from pagedattn.benchmarks.workload import decode, mixed, prefill
from pagedattn.emulation import Emulation
from pagedattn.errors import UnknownName
from pagedattn.hooks import OfferKind
from pagedattn.measured import spec_fields

DECODE = decode(make_spec(max_query_len=1), batch=2, context=37)


def only_row(workload: Workload, backend: Any, **options: Any) -> BenchRow:
    (group,) = run_bench(workload, backend, **options).groups
    (row,) = group.rows
    return row


# -- right ---------------------------------------------------------------------------------------


def test_right_backends_are_timed_side_by_side() -> None:
    report = run_bench(DECODE, "reference", GatherBackend())
    (group,) = report.groups
    assert [(row.backend, row.state) for row in group.rows] == [
        ("reference", BenchState.TIMED),
        ("gather", BenchState.TIMED),
    ]
    for row in group.rows:
        assert row.detail == ""
        assert row.run == (1e-3,) * 7
        assert len(row.plan) == len(row.write) == 7
        assert row.error is not None
        assert row.budget is not None
        assert row.error <= row.budget
    assert group.read is not None
    assert len(group.read.seconds) == 7
    assert (group.workload, group.phase, group.baseline) == (
        "decode b2 ctx37",
        "decode",
        "reference",
    )
    assert (group.kv_bytes, group.flops) == (DECODE.kv_bytes, DECODE.flops)
    assert group.spec == spec_fields(DECODE.spec)
    assert group.matmul is None


def test_prefill_and_mixed_are_set_against_the_matrix_peak() -> None:
    steps = [
        prefill(make_spec(), batch=2, context=23, query_len=9),
        mixed(make_spec(), batch=2, context=23, query_len=9),
    ]
    report = bench(
        steps,
        [GatherBackend()],
        settings=FAST,
        pool_bytes=1,
        probe_bytes=2**16,
        clock=TickClock(),
    )
    assert [g.phase for g in report.groups] == ["prefill", "mixed"]
    for group in report.groups:
        assert group.rows[0].state is BenchState.TIMED
        assert group.matmul is not None
        fraction = group.peak_fraction(group.rows[0])
        assert fraction is not None
        assert fraction.value == pytest.approx(group.flops / group.matmul.amount)


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": torch.bfloat16},
        {"dtype": torch.float16, "layout": pa.Layout.HND},
        {"out_dtype": torch.bfloat16},
        {"softcap": 5.0, "return_lse": True},
        {"sinks": True, "return_lse": True, "window": (5, None)},
        {"alibi": True},
        {"mask": pa.Mask.FULL, "alibi": True},
        {"mask": pa.Mask.FULL, "window": (3, 4)},
        {"num_kv_heads": 1, "head_dim_v": 8, "shared_kv": True},
        *(
            {"kv_quant": quant, "kv_dtype": dtype, "dtype": torch.bfloat16}
            for quant in (pa.KVQuant.PER_TENSOR, pa.KVQuant.PER_HEAD, pa.KVQuant.PER_TOKEN_HEAD)
            for dtype in (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)
        ),
        {
            "kv_quant": pa.KVQuant.PER_TOKEN_HEAD,
            "kv_dtype": torch.float8_e4m3fn,
            "num_kv_heads": 1,
            "head_dim_v": 8,
            "shared_kv": True,
        },
    ],
    ids=str,
)
@pytest.mark.parametrize("query_len", [1, 7])
def test_the_gate_agrees_with_the_reference_on_every_option(
    options: dict[str, Any], query_len: int
) -> None:
    workload = prefill(make_spec(**options), batch=2, context=21, query_len=query_len)
    row = only_row(workload, "reference", clock=TickClock(idle=True))
    assert (row.state, row.detail) == (BenchState.TIMED, "")


# -- wrong ---------------------------------------------------------------------------------------


Kernel = Callable[..., None]


def scaled(op: Any, right: Kernel, q: Any, cache: Any, plan: Any, out: Any, *rest: Any) -> None:
    right()
    out.mul_(1.1)


def one_element(
    op: Any, right: Kernel, q: Any, cache: Any, plan: Any, out: Any, *rest: Any
) -> None:
    right()
    out[-1, -1, -1] += 1.0


def forgets_a_row(
    op: Any, right: Kernel, q: Any, cache: Any, plan: Any, out: Any, *rest: Any
) -> None:
    before = out[0].clone()
    right()
    out[0] = before


def base_two(
    op: Any, right: Kernel, q: Any, cache: Any, plan: Any, out: Any, lse: Any, *rest: Any
) -> None:
    right()
    lse.mul_(1.4427)


@pytest.mark.parametrize(
    ("kernel", "where"),
    [
        (scaled, r"out\[0, 0, 0\] is -?\d"),
        (one_element, r"out\[\d+, 3, 15\] is .* \(allowed error "),
        (forgets_a_row, r"out\[0, 0, 0\] is nan"),
        (base_two, r"lse\[0, 0\] is "),
    ],
)
def test_a_wrong_result_gets_no_time_and_names_the_first_element(
    kernel: Kernel, where: str
) -> None:
    row = only_row(
        decode(make_spec(return_lse=True), batch=2, context=37), variant("wrong", kernel)
    )
    assert row.state is BenchState.WRONG
    assert re.match(where, row.detail), row.detail
    assert row.run == row.plan == row.write == ()
    assert row.error is not None
    assert row.budget is not None
    assert row.error > row.budget


def with_batch(change: Callable[[pa.AttentionBatch, pa.AttentionSpec], dict[str, Any]]) -> Kernel:
    """A kernel that answers another question: the batch with some fields replaced."""

    def kernel(op: Any, right: Kernel, q: Any, cache: Any, plan: Any, out: Any, *rest: Any) -> None:
        batch = dataclasses.replace(plan.batch, **change(plan.batch, op.spec))
        other = pa.Plan(op, batch, None, plan.max_block)
        super(type(op), op).kernel(q, cache, other, out, *rest)

    return kernel


FAULTS = {
    # 2048 keys in bfloat16: no single key is visible in the timed step, in its short twin it is
    "drops the newest key": lambda b, s: {"seq_lens": (b.seq_lens - 1).clamp(min=0)},
    "reads the last block to its end": lambda b, s: {
        "seq_lens": (b.seq_lens + s.block_size - 1) // s.block_size * s.block_size
    },
    "takes block ids in order": lambda b, s: {
        "block_table": torch.arange(b.block_table.numel(), dtype=torch.int32).reshape(
            b.block_table.shape
        )
        % int(((b.seq_lens + s.block_size - 1) // s.block_size).sum())
    },
    "gives every request the first one's blocks": lambda b, s: {
        "block_table": b.block_table[:1].expand_as(b.block_table).clamp(min=0)
    },
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_bugs_do_not_pass_at_long_context(fault: str) -> None:
    spec = make_spec(max_query_len=1, block_size=16, dtype=torch.bfloat16)
    workload = decode(spec, batch=2, context=2048)
    backend = variant("wrong", with_batch(FAULTS[fault]))
    assert only_row(workload, backend).state is BenchState.WRONG


def test_a_wrong_write_gets_no_time() -> None:
    def swapped(op: Any, k: Any, v: Any, cache: pa.KVCache, slots: Any) -> None:
        pa.AttentionOp.write_kernel(op, v, k, cache, slots)

    def neighbour(op: Any, k: Any, v: Any, cache: pa.KVCache, slots: Any) -> None:
        pa.AttentionOp.write_kernel(op, k, v, cache, slots)
        cache.v[slots[0] // 4, slots[0] % 4 - 1] = 7.0

    for write_kernel in (swapped, neighbour):
        row = only_row(DECODE, variant("wrong", write_kernel=write_kernel))
        assert row.state is BenchState.WRONG
        assert re.match(r"write: [kv]\[\d+, \d, \d, \d+\] is ", row.detail), row.detail


def test_a_backend_that_turns_wrong_while_it_is_timed_loses_its_times() -> None:
    runs = 0

    def tires(op: Any, right: Kernel, q: Any, cache: Any, plan: Any, out: Any, *rest: Any) -> None:
        nonlocal runs
        runs += 1
        right()
        if runs > 5:
            out.zero_()

    row = only_row(DECODE, variant("tires", tires))
    assert row.state is BenchState.WRONG
    assert row.detail.startswith("right at first, wrong after timing: out[0, 0, 0] is 0, not ")
    assert row.run == ()


def test_a_backend_that_spoils_the_cache_harms_nobody_else() -> None:
    def spoils(op: Any, right: Kernel, q: Any, cache: Any, *rest: Any) -> None:
        right()
        cache.k.zero_()

    def raises(op: Any, right: Kernel, q: Any, cache: Any, *rest: Any) -> None:
        cache.v.zero_()
        raise RuntimeError("out of luck")

    report = run_bench(DECODE, variant("spoils", spoils), variant("raises", raises), "reference")
    assert [row.state for _, row in report.rows()] == [
        BenchState.WRONG,
        BenchState.FAILED,
        BenchState.TIMED,
    ]


# -- refused and failed --------------------------------------------------------------------------


def test_a_refused_spec_is_a_row_with_every_reason() -> None:
    workload = decode(make_spec(softcap=5.0, sinks=True), batch=1, context=8)
    row = only_row(workload, GatherBackend())
    assert row.state is BenchState.REFUSED
    assert "softcap=5.0 is not supported (supported: off)" in row.detail
    assert "sinks=True is not supported" in row.detail
    assert row.run == ()


def test_an_emulated_backend_is_refused() -> None:
    class Emulated(GatherBackend):
        emulated = Emulation(pa.DeviceInfo("cpu", name="a stand-in", real=True))

    row = only_row(DECODE, Emulated())
    assert row.state is BenchState.REFUSED
    assert row.detail.startswith("emulated=a time is not supported (supported: correctness only)")


def test_a_backend_that_is_not_ready_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    offer = pa.Offer("cuckoo", "nowhere:Backend", requires=["no_such_module"], install="buy it")
    row = registry.Row("cuckoo", OfferKind.BACKEND, registry.State.READY, "", "test 1.0", offer)
    found = (*registry.discover(frozenset(), False), row)
    monkeypatch.setattr(registry, "discover", functools.cache(lambda *_: found))
    result = only_row(DECODE, "cuckoo")
    assert result.state is BenchState.REFUSED
    assert "no_such_module is not installed; buy it" in result.detail


def test_an_error_is_a_row_and_the_others_are_timed() -> None:
    def boom(op: Any, *_: Any) -> None:
        raise RuntimeError("boom")

    report = run_bench(DECODE, variant("kernel", boom), variant("setup", setup=boom), "reference")
    rows = {row.backend: row for _, row in report.rows()}
    assert rows["kernel"].state is rows["setup"].state is BenchState.FAILED
    assert rows["kernel"].detail == "RuntimeError: boom"
    assert rows["reference"].state is BenchState.TIMED


def test_an_error_while_timing_is_a_row_and_the_others_are_timed_anew() -> None:
    runs = 0

    def breaks(op: Any, right: Kernel, *_: Any) -> None:
        nonlocal runs
        runs += 1
        if runs == 8:
            raise RuntimeError("worn out")
        right()

    report = run_bench(DECODE, variant("breaks", breaks), "reference")
    (_, broken), (_, fine) = report.rows()
    assert (broken.state, broken.detail) == (BenchState.FAILED, "RuntimeError: worn out")
    assert fine.state is BenchState.TIMED
    assert len(fine.run) == 7


def test_nothing_to_time_still_gives_a_report() -> None:
    workload = decode(make_spec(softcap=5.0), batch=1, context=8)
    (group,) = run_bench(workload, GatherBackend()).groups
    assert (group.read, group.matmul) == (None, None)
    assert [row.state for row in group.rows] == [BenchState.REFUSED]


# -- arguments -----------------------------------------------------------------------------------


def test_a_baseline_must_take_part() -> None:
    with pytest.raises(ValueError, match="baseline 'triton' does not take part"):
        run_bench(DECODE, "reference", baseline="triton")


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="did you mean 'reference'"):
        run_bench(DECODE, "referense")


def test_nobody_and_nothing_twice() -> None:
    with pytest.raises(ValueError, match="no backend"):
        run_bench(DECODE)
    with pytest.raises(ValueError, match="backend reference is given twice"):
        run_bench(DECODE, "reference", "reference")
    with pytest.raises(ValueError, match="workload decode b2 ctx37 is given twice"):
        bench([DECODE, DECODE], ["reference"])


def test_progress_is_told() -> None:
    seen: list[tuple[str, int, int]] = []
    run_bench(DECODE, "reference", progress=lambda *step: seen.append(step))
    assert seen[0] == ("decode b2 ctx37: checking reference", 0, 1)
    assert ("decode b2 ctx37: run", 7, 7) in seen
    assert seen[-1] == ("decode b2 ctx37: write", 7, 7)
