"""Searched and generated cases: pairs are covered, ids reproduce, failures are shrunk and shown."""

import subprocess
import sys
from dataclasses import replace
from itertools import combinations

import pytest
import torch

import pagedattn as pa
from pagedattn.backends.reference import ReferenceBackend
from pagedattn.backends.reference.backend import ReferenceOp
from pagedattn.capabilities import Capabilities
from pagedattn.conformance.allocator import ALLOCATOR_CASES, end_to_end, growth, stateful
from pagedattn.conformance.attention import (
    ATTENTION_CASES,
    AttentionSubject,
    end_to_end as attention_end_to_end,
    pairs,
    ragged,
)
from pagedattn.conformance.attention.bounds import edges_of
from pagedattn.conformance.attention.covering import cover, pairs_of
from pagedattn.conformance.case import Outcome
from pagedattn.conformance.mutants import ALLOCATOR_MUTANTS, ATTENTION_MUTANTS
from pagedattn.conformance.runner import judge_case
from pagedattn.spec import Layout

CASES = {case.id: case for case in ATTENTION_CASES}
CPU = torch.device("cpu")


def judged(backend, id):
    return judge_case(AttentionSubject(backend, CPU), CASES[id])


# -- pairs ---------------------------------------------------------------------------------------


def every_pair(axes):
    return {
        ((a, x), (b, y))
        for (a, xs), (b, ys) in combinations(axes.items(), 2)
        for x in xs
        for y in ys
    }


def test_cover_covers_every_pair_with_few_rows():
    axes = {"a": ("1", "2", "3"), "b": ("1", "2", "3"), "c": ("1", "2"), "d": ("1", "2")}
    rows, covered = cover(axes, lambda row: True)
    assert covered == every_pair(axes)
    assert {pair for row in rows for pair in pairs_of(row)} == covered
    assert 9 <= len(rows) <= 11


def test_cover_leaves_out_what_is_not_allowed_and_nothing_else():
    axes = {"a": ("1", "2"), "b": ("1", "2"), "c": ("1", "2")}
    rows, covered = cover(axes, lambda row: (row["a"], row["b"]) != ("2", "2"))
    assert every_pair(axes) - covered == {(("a", "2"), ("b", "2"))}
    assert all((row["a"], row["b"]) != ("2", "2") for row in rows)


def test_cover_needs_no_row_for_pairs_that_are_covered():
    axes = {"a": ("1", "2"), "b": ("1", "2")}
    given = [{"a": a, "b": b} for a in "12" for b in "12"]
    assert cover(axes, lambda row: True, besides=given)[0] == []
    assert cover(axes, lambda row: True, besides=given[:3])[0] == [{"a": "2", "b": "2"}]


IMPOSSIBLE = {
    (("phase", "tree"), ("mask", "full")),
    (("phase", "tree"), ("window", "left")),
    (("phase", "tree"), ("window", "both")),
    (("phase", "tree"), ("alibi", "alibi")),
    (("mask", "causal"), ("window", "both")),
    (("softcap", "cap"), ("alibi", "alibi")),
    *(
        (("quant", quant), ("cache", cache))
        for quant in pairs.AXES["quant"][1:]
        for cache in pairs.AXES["cache"][1:]
    ),
}


def test_the_cases_cover_every_pair_that_the_contract_allows():
    covered = {pair for row in pairs.ROWS for pair in pairs_of(row)}
    assert every_pair(pairs.AXES) - covered == IMPOSSIBLE
    assert all(pairs.case_id(row) in CASES for row in pairs.ROWS)
    assert len({pairs.case_id(row) for row in pairs.ROWS}) == len(pairs.ROWS)
    dims, blocks = pairs.AXES["head_dim"], pairs.AXES["block"]
    assert {"d16", "d59", "d80", "d96", "d112", "d256", "d576v512"} <= set(dims)
    assert {"b1", "b5", "b48", "b256"} <= set(blocks)
    assert {f"g{g}" for g in range(1, 9)} == set(pairs.AXES["group"])


def test_every_row_is_a_spec_of_its_own_values():
    subject = AttentionSubject(ReferenceBackend(), CPU)
    for row in pairs.ROWS:
        spec = subject.spec(pairs.wanted_of(row))
        assert not subject.refusals(spec)
        assert spec.block_size == int(row["block"][1:])
        assert spec.group_size == int(row["group"][1:])
        assert spec.sinks == (row["sinks"] != "-")
        assert (spec.layout is Layout.HND) == (row["layout"] == "hnd")
    assert pairs.left_over(subject) == []


class NarrowBackend(ReferenceBackend):
    """Two dims, one block size, softcap and LSE, half precision; no sinks, no quantisation."""

    name = "narrow"

    def capabilities(self, device):
        return Capabilities(
            device={"cpu"},
            dtype={torch.float16, torch.bfloat16},
            head_dim={64, 96, 128},
            block_size={32, 544},
            softcap=True,
            return_lse=True,
            window=(True, False),
        )


def test_left_over_covers_the_pairs_of_a_narrow_backend():
    subject = AttentionSubject(NarrowBackend(), CPU)

    def served(row):
        return pairs.allowed(row) and not subject.refusals(
            subject.spec(pairs.wanted_of(row), rows=9)
        )

    rows = [row for row in (*pairs.ROWS, *pairs.left_over(subject)) if served(row)]
    covered = {pair for row in rows for pair in pairs_of(row)}
    values = {
        "dtype": ("f16", "bf16"), "head_dim": ("d64", "d96", "d128"), "group": ("g1", "g4"),
        "block": ("b32",), "layout": ("nhd",),
        "phase": ("decode", "prefill", "chunked", "mixed"), "mask": ("causal",),
        "window": ("-", "left"), "softcap": ("-", "cap"), "sinks": ("-",), "alibi": ("-",),
        "lse": ("-", "lse"), "quant": ("-",), "cache": ("-",), "out": ("-",), "lengths": ("-",),
        "batch": ("-",),
    }  # fmt: skip
    assert every_pair(values) <= covered
    # Besides, a cache of q's own dtype may be asked for by name.
    assert all(("cache", "kvbf16") in pair for pair in covered - every_pair(values))
    result = judged(NarrowBackend(), "pairs/left-over")
    assert result.outcome is Outcome.PASSED
    assert result.measures["rows"] == len(pairs.left_over(subject)) > 5


class _LoudOp(ReferenceOp):
    def kernel(self, q, cache, plan, out, lse, sinks, alibi_slopes):
        super().kernel(q, cache, plan, out, lse, sinks, alibi_slopes)
        out[: plan.num_tokens] *= 1.3


class LoudBackend(ReferenceBackend):
    """Everything is 30 % too large."""

    op = _LoudOp


GENERATED = [*pairs.CASES, *ragged.CASES, *attention_end_to_end.CASES]


@pytest.mark.parametrize("case", GENERATED, ids=lambda case: case.id)
def test_every_generated_attention_case_can_fail(case):
    assert judged(LoudBackend(), case.id).outcome is Outcome.FAILED


class _NarrowLoud(NarrowBackend):
    op = type("Op", (ReferenceOp,), {})


def test_left_over_names_the_row_that_fails():
    def kernel(self, q, cache, plan, out, lse, sinks, alibi_slopes):
        ReferenceOp.kernel(self, q, cache, plan, out, lse, sinks, alibi_slopes)
        if self.spec.softcap is not None and self.spec.return_lse:
            out[: plan.num_tokens] *= 1.3

    _NarrowLoud.op.kernel = kernel
    result = judged(_NarrowLoud(), "pairs/left-over")
    assert result.outcome is Outcome.FAILED
    assert result.detail.startswith("pairs/")
    assert "cap" in result.detail
    assert "lse" in result.detail


# -- ragged batches ------------------------------------------------------------------------------


def test_a_failure_shows_the_smallest_batch():
    result = judged(ATTENTION_MUTANTS["own-key-missing"].make(), "random/plain/decode")
    assert result.outcome is Outcome.FAILED
    assert "smallest example: Ragged(requests=((1, 1),), values=0, spread=1.0" in result.detail


KILLED = {
    "random/window/decode": "window-one-wide",
    "random/window/mixed": "window-from-row-0",
    "random/softcap": "softcap-dropped",
    "random/sinks": "sinks-dropped",
    "random/alibi": "alibi-from-0",
    "random/full-window": "window-right-ignored",
    "random/tree": "tree-bit-order",
    "random/hnd": "hnd-read-as-nhd",
    "random/int8-token-head": "scales-read-flat",
    "random/fp8-head": "scale-of-head-0",
    "random/block-5": "block-of-power-of-two",
    "random/group-7": "groups-compiled",
    "random/async": "host-lengths",
    "end-to-end/plain": "blocks-in-sequence",
    "end-to-end/hnd": "write-by-shape",
    "end-to-end/window": "window-one-narrow",
    "end-to-end/int8": "token-scale-stale",
    "end-to-end/block-5": "last-block-empty",
    "last-row/plain": "prefix-ignored",
    "last-row/window": "window-decode-ignored",
    "last-row/lse": "lse-base-2",
    "page-size/window": "window-block-aligned",
    "honesty/edges-group-size": "groups-compiled",
    "honesty/edges-num-heads": "groups-compiled",
    "honesty/edges-num-kv-heads": "heads-all-0",
    "honesty/edges-head-dim-v": "value-dim-cut",
    "honesty/edges-max-query-len": "causal-top-left",
    "plan/one-beyond-max-requests": "plan-unchecked",
    "plan/one-beyond-max-tokens": "plan-unchecked",
    "plan/one-beyond-max-seq-len": "plan-unchecked",
}


@pytest.mark.parametrize("id", KILLED)
def test_case_kills_the_mutant_that_it_is_for(id):
    result = judged(ATTENTION_MUTANTS[KILLED[id]].make(), id)
    assert result.outcome is Outcome.FAILED


def test_the_id_alone_decides_what_is_tried():
    code = (
        "from pagedattn.conformance.runner import judge_case\n"
        "from pagedattn.conformance.attention import ATTENTION_CASES, AttentionSubject\n"
        "from pagedattn.conformance.mutants import ATTENTION_MUTANTS\n"
        "import torch\n"
        "case = next(c for c in ATTENTION_CASES if c.id == 'random/window/decode')\n"
        "mutant = ATTENTION_MUTANTS['window-one-wide'].make()\n"
        "print(judge_case(AttentionSubject(mutant, torch.device('cpu')), case).detail)\n"
    )
    path = ":".join(p for p in sys.path if p)
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1
    assert "smallest example" in seen.pop()


def test_hypothesis_is_not_imported_before_a_search():
    code = (
        "import sys, pagedattn.conformance.attention, pagedattn.conformance.allocator\n"
        "assert 'hypothesis' not in sys.modules\n"
    )
    env = {"PYTHONPATH": ":".join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)


# -- allocators ----------------------------------------------------------------------------------


def killed(case, mutant):
    result = judge_case(ALLOCATOR_MUTANTS[mutant].make, case)
    assert result.outcome is Outcome.FAILED, f"{case.id} lets {mutant} pass"
    return result.detail


def test_stateful_shows_the_shortest_calls():
    """One of the two finds it: what Hypothesis draws depends on the modules that are loaded too."""
    make = ALLOCATOR_MUTANTS["no-copy-on-write"].make
    results = [judge_case(make, case) for case in stateful.CASES[:2]]
    shown = [
        result.detail.partition("smallest sequence of calls:\n")[2].splitlines()
        for result in results
        if result.outcome is Outcome.FAILED
    ]
    assert shown
    for calls in shown:
        assert 5 <= len(calls) <= 15
        assert any("fork(" in call for call in calls)


@pytest.mark.parametrize(
    ("case", "mutant"),
    [
        (stateful.CASES[2], "second-close-ignored"),
        (stateful.CASES[3], "hash-only"),
        *((case, "copy-one-short") for case in end_to_end.CASES[:2]),
        (end_to_end.CASES[2], "parent-ignored"),
        (end_to_end.CASES[3], "copy-one-short"),
        (end_to_end.CASES[4], "window-one-early"),
        *(
            (case, "check-left-on")
            for case in growth.CASES
            if not case.id.endswith(("long-prompt", "host-memory"))  # these count other things
        ),
        *((case, "prefix-rehashed") for case in growth.CASES if "long-prompt" in case.id),
    ],
)
def test_searched_allocator_case_kills(case, mutant):
    killed(case, mutant)


@pytest.mark.parametrize("name", ["contiguous_max", "contiguous_pow2", "contiguous_exact"])
def test_baselines_pass_or_decline_with_reasons(name):
    def make(**options):
        return pa.allocator(name, **options)

    new = (*stateful.CASES, *end_to_end.CASES, *growth.CASES)
    results = [judge_case(make, case) for case in new]
    bad = [r for r in results if r.outcome not in (Outcome.PASSED, Outcome.DECLINED)]
    assert [(r.case, r.detail) for r in bad] == []
    declined = {r.case.removeprefix("allocator/") for r in results if r.outcome is Outcome.DECLINED}
    assert declined <= {
        "stateful/blocks-10x2-collisions", "growth/fork", "growth/evict", "growth/long-prompt",
        *(f"growth/long-sequence/{name}" for name in ("append", "can-append", "commit")),
    }  # fmt: skip


def test_operations_see_loops_and_scans():
    numbers = list(range(1000))

    def loop():
        return sum(1 for number in numbers if number)

    assert growth.operations(lambda: numbers[5]) < 20
    assert growth.operations(lambda: numbers.index(5)) > 1000
    assert growth.operations(loop) > 3000


def test_edges_of_a_declaration():
    assert edges_of(range(16, 257, 16)) == ([16, 144, 256], [15, 17, 143, 145, 255, 257])
    assert edges_of({1}) == ([1], [2])
    assert edges_of({64, 128}) == ([64, 128], [63, 65, 127, 129])
    assert edges_of(range(1, 2**20))[0] == [1, 513, 1024]


def test_allocator_ids_are_unique():
    assert len({case.id for case in ALLOCATOR_CASES}) == len(ALLOCATOR_CASES)
    assert replace(ALLOCATOR_CASES[0]) == ALLOCATOR_CASES[0]
