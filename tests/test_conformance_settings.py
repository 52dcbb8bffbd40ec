"""Seeds, the quick part, and shrinking."""

import pytest
import torch

from pagedattn.conformance.allocator import ALLOCATOR_CASES
from pagedattn.conformance.areas import area_of
from pagedattn.conformance.attention import ATTENTION_CASES, AttentionSubject
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.placing import Placing, Storage
from pagedattn.conformance.attention.remedies import remedy
from pagedattn.conformance.attention.shrink import MOST_ATTEMPTS, MOST_KEYS, smallest
from pagedattn.conformance.case import CaseFailure
from pagedattn.conformance.mutants import ATTENTION_MUTANTS
from pagedattn.conformance.quick import quick
from pagedattn.conformance.settings import Settings, current, seed_of, using
from pagedattn.spec import AttentionSpec, Mask

SPEC = AttentionSpec(
    num_heads=2, num_kv_heads=1, head_dim=8, block_size=4, dtype=torch.float32, scale=1.0
)


def test_settings_hold_inside_and_end_even_after_an_error():
    assert current() == Settings()
    seen = []

    def fail_inside():
        with using(seed=3, shrink=True):
            seen.append(current())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_inside()
    assert seen == [Settings(3, True)]
    assert current() == Settings()


def test_seeds_of_contents():
    usual = seed_of("a/b")
    with using(seed=0):
        assert seed_of("a/b") == usual
    with using(seed=1):
        assert seed_of("a/b") not in (usual, seed_of("a/c"))
        other = seed_of("a/b")
    with using(seed=2):
        assert seed_of("a/b") not in (usual, other)


@pytest.mark.parametrize("cases", [ATTENTION_CASES, ALLOCATOR_CASES], ids=["backend", "allocator"])
def test_quick_has_the_core_and_something_of_everything(cases):
    chosen = quick(cases)
    assert len(chosen) < len(cases)
    assert [case for case in cases if case in chosen] == chosen  # the order of the suite
    assert {case for case in cases if case.core} <= set(chosen)
    assert {area_of(case.id) for case in chosen} == {area_of(case.id) for case in cases}
    assert {case.rule for case in chosen} == {case.rule for case in cases}
    assert {f for case in chosen for f in case.faults} == {f for c in cases for f in c.faults}


def lens(content):
    return content.query_lens, content.seq_lens


def test_the_smallest_failing_part_is_one_request_with_its_last_rows_and_keys():
    content = Content.random(SPEC, [1, 6, 2], [9, 40, 30], seed=1)
    found = smallest(content, lambda c: c.seq_lens[-1] >= 7 and c.query_lens[-1] >= 2)
    assert lens(found) == ([2], [7])
    assert torch.equal(found.q[0], content.q[2][-2:])
    assert torch.equal(found.k[0], content.k[2][-7:])


def test_what_only_fails_together_stays_whole():
    content = Content.random(SPEC, [1, 1], [3, 4], seed=1)
    assert smallest(content, lambda c: len(c.q) == 2) is content


def test_shrinking_is_bounded():
    tried = []
    content = Content.random(SPEC, [1] * (MOST_ATTEMPTS + 9), [2] * (MOST_ATTEMPTS + 9), seed=1)
    assert smallest(content, lambda c: tried.append(c) or False) is content
    assert len(tried) == MOST_ATTEMPTS
    long = Content.random(SPEC, [1], [MOST_KEYS + 1], seed=1)
    assert smallest(long, lambda c: pytest.fail("too long to try")) is long


def test_a_tree_keeps_all_of_its_rows():
    spec = AttentionSpec(
        num_heads=2, num_kv_heads=1, head_dim=8, block_size=4, dtype=torch.float32, scale=1.0,
        mask=Mask.TREE,
    )  # fmt: skip
    content = Content.random(spec, [3, 4], [9, 9], seed=1)
    assert lens(smallest(content, lambda c: c.query_lens[-1] == 4)) == ([4], [9])


@pytest.mark.parametrize(
    ("mutant", "id", "words"),
    [
        ("causal-top-left", "core/mixed/dim-64/group-1", "top-left causal alignment"),
        ("window-one-wide", "window/left-3/prefill", "the left window is one key too wide"),
        ("heads-interleaved", "core/decode/dim-64/group-4", "query head h reads kv head h % Hkv"),
    ],
)
def test_a_shrunk_failure_keeps_the_guess_and_fits_a_screen(mutant, id, words):
    case = next(case for case in ATTENTION_CASES if case.id == id)
    subject = AttentionSubject(ATTENTION_MUTANTS[mutant].make(), torch.device("cpu"))
    with pytest.raises(CaseFailure) as failure, using(shrink=True):
        case.run(subject)
    text = str(failure.value)
    assert words in text
    assert "batch: query_lens [1], seq_lens [" in text
    assert "shrunk from: query_lens" in text
    assert len(text.splitlines()) <= 12


@pytest.mark.parametrize(
    ("mutant", "id", "words"),
    [
        ("kv-stride-recomputed", "memory/kv-interleaved/decode", "the pools are contiguous"),
        ("q-contiguous", "memory/q-fused/decode", "q is contiguous"),
        ("out-contiguous", "memory/out-fused/decode", "out is contiguous"),
        ("zero-times-nan-v", "poison/nan/decode", "slots that nobody owns hold 0"),
        ("blocks-in-sequence", "length/many-requests", "blocks lie one behind the other"),
        ("table-flat", "table/strided", "the table is contiguous"),
        ("tree-bytes-packed", "tree/gaps", "no bytes lie between the trees"),
        ("host-lengths", "async/bound-plus-1/decode", "seq_lens_host equals seq_lens"),
    ],
)
def test_a_failure_says_in_which_memory_the_step_is_right(mutant, id, words):
    case = next(case for case in ATTENTION_CASES if case.id == id)
    subject = AttentionSubject(ATTENTION_MUTANTS[mutant].make(), torch.device("cpu"))
    with pytest.raises(CaseFailure) as failure, using(shrink=True):
        case.run(subject)
    text = str(failure.value)
    assert f"  right when {words}" in text
    assert len(text.splitlines()) <= 12


def test_no_remedy_is_named_where_none_helps():
    tried = []
    placing = Placing(seed=3, storage=Storage.GAPS, padding_rows=2)
    assert remedy(placing, lambda tamer: tried.append(tamer) or False) == ""
    assert placing not in tried
    assert {t.storage for t in tried} == {Storage.PLAIN, Storage.GAPS}
    assert remedy(placing, lambda tamer: tamer.padding_rows == 0).startswith("right when q and out")
