"""The allocator suite finds every planted bug, by the case that is there for it."""

from pathlib import Path

import pytest

from pagedattn.backends.allocators import PagedAllocator
from pagedattn.conformance.allocator import ALLOCATOR_CASES
from pagedattn.conformance.case import CaseFailure, Kind, Outcome
from pagedattn.conformance.mutants.allocator import ALLOCATOR_MUTANTS
from pagedattn.conformance.runner import judge_case

CASES = {case.id.removeprefix("allocator/"): case for case in ALLOCATOR_CASES}

KILLED_BY = {
    "hash-only": "prefix/planted-collisions",
    "parent-ignored": "prefix/parent",
    "namespace-ignored": "prefix/namespace",
    "random-seed": "events/stable-keys",
    "whole-prompt-hit": "prefix/fully-cached",
    "publish-before-commit": "prefix/commit-before-share",
    "partial-block-published": "prefix/commit-before-share",
    "one-copy-indexed": "prefix/two-copies",
    "fork-without-count": "fork/counts",
    "double-free": "close/any-state",
    "leak-last-block": "close/short-requests",
    "second-close-ignored": "close/twice",
    "hit-stays-evictable": "eviction/never-live",
    "no-copy-on-write": "fork/one-copy-per-child",
    "copy-one-short": "fork/one-copy-per-child",
    "every-holder-copies": "can-append/copies",
    "truncate-keeps-key": "truncate/published",
    "window-offset": "window/release",
    "append-not-atomic": "append/atomic",
    "evict-then-fail": "eviction/failed-append",
    "can-append-alone": "can-append/joint",
    "reclaimable-twice": "eviction/failed-append",
    "live-counts-holders": "prefix/hit",
    "commit-unchecked": "commit/bounds",
    "head-first": "eviction/deepest-first",
    "touch-keeps-age": "eviction/touch",
    "last-priority": "eviction/priority",
    "evicted-stays-indexed": "prefix/stale-entry",
    "pin-forgotten": "pin/survives",
    "pin-replaces": "pin/adds",
    "silent-removal": "events/replay",
    "resize-drops-live": "resize/grow-shrink",
    "reset-keeps-prefixes": "reset/forgets",
    "eviction-scans": "growth/append",
    "prefix-rehashed": "growth/long-prompt",
    "check-left-on": "growth/stats",
    "abort-leaks": "close/any-state",
    "too-large-accepted": "append/huge",
    "increment-alone": "append/exact-fill",
    "window-one-early": "window/release",
    "grant-reused": "append/grants-stay",
    "tokens-of-32-bits": "prefix/wide-tokens",
    "tokens-unsigned": "prefix/wide-tokens",
    "namespace-cut": "prefix/namespace-bytes",
    "namespace-as-text": "prefix/namespace-bytes",
    "key-imitated": "prefix/namespace-bytes",
    "ids-of-32-bits": "open/any-id",
    "generated-not-published": "prefix/after-preemption",
    "hit-of-256-blocks": "prefix/long",
    "lists-only": "open/any-sequence",
    "copy-for-nothing": "fork/one-copy-per-child",
    "fork-without-priority": "fork/inherits",
    "empty-fork-unnamed": "fork/inherits",
    "pin-is-a-flag": "pin/counted",
    "pin-ends-at-close": "pin/until-copied",
    "reset-keeps-pins": "reset/pinned",
    "resize-drops-pinned": "resize/pinned",
    "hits-untold": "eviction/policy-told",
    "depth-untold": "eviction/policy-told",
    "policy-ignored": "eviction/policy-obeyed",
    "watermark": "append/whole-pool",
    "freed-at-the-next-close": "append/parked",
    "priority-classes": "eviction/far-priorities",
    "asking-renews": "eviction/asking",
    "table-walked": "growth/long-sequence/append",
    "commit-walks": "growth/long-sequence/commit",
    "last-16-tokens": "prefix/every-token",
    "tokens-as-floats": "prefix/exact-tokens",
    "blocks-of-one": "prefix/block-1",
    "priorities-up-to-10": "eviction/fine-priorities",
    "bad-token-leaks": "open/bad-tokens",
    "pins-end-with-the-id": "pin/id-again",
    "failed-open-counts": "open/twice-counts",
    "grandchildren-of-no-priority": "eviction/priority-of-forks",
    "children-are-pinned": "pin/not-of-children",
    "children-forget-windows": "window/all",
    "pins-of-nothing-ignored": "pin/nothing",
    "good-before-bad": "append/bad-beside-good",
    "available-is-free": "append/figures",
    "table-is-the-list": "table/stays",
    "reset-forgets-counters": "stats/only-grow",
    "released-whole": "window/all",
    "parent-of-the-call": "events/replay",
    "orphans-leave-unseen": "truncate/published",
    "log-cut-short": "events/undrained",
    "resize-untold": "resize/grow-shrink",
    "failing-policy-loses": "eviction/policy-raises",
    "hit-told-too-early": "eviction/policy-told",
    "owned-priority-fixed": "eviction/priority-raised",
    "cached-priority-fixed": "eviction/priority-raised",
    "copy-without-priority": "eviction/priority-of-copies",
    "release-renews-the-oldest": "eviction/lru-order",
    "requests-remembered": "growth/host-memory",
    "content-remembered": "growth/host-memory",
    "pins-of-the-process": "open/two-allocators",
    "long-commits-cut": "prefix/long-commit",
    "committed-before-released": "window/uncommitted",
    "wide-calls-in-parts": "append/wide",
    "wide-calls-promised": "append/wide",
    "wrong-call-evicts": "append/bad-beside-good",
    "evicts-one-more": "eviction/deepest-first",
    "appends-uncounted": "append/exact-fill",
    "slots-of-32-bits": "append/far-slots",
    "namespaces-of-a-byte": "prefix/many-namespaces",
    "staged-first": "eviction/large-priority",
    "large-head-first": "eviction/large-deepest-first",
    "staged-and-hit": "walk/large-pool",
    "growing-forgets": "resize/grow-shrink",
    "pin-of-the-rest": "pin/no-more",
}


@pytest.mark.parametrize("case", ALLOCATOR_CASES, ids=lambda case: case.id)
def test_paged_passes(case):
    assert judge_case(PagedAllocator, case).outcome is Outcome.PASSED


@pytest.mark.parametrize("name", ALLOCATOR_MUTANTS)
def test_mutant_is_killed(name):
    case = CASES[KILLED_BY[name]]
    with pytest.raises(CaseFailure, match=r": expected .*, but: "):
        case.run(ALLOCATOR_MUTANTS[name].make)


@pytest.mark.parametrize("name", ALLOCATOR_MUTANTS)
def test_killer_covers_a_fault_of_the_mutant(name):
    faults = ALLOCATOR_MUTANTS[name].faults
    case = CASES[KILLED_BY[name]]
    assert not faults or set(faults) & set(case.faults)


def test_names_are_unique_and_consistent():
    assert len(CASES) == len(ALLOCATOR_CASES)
    assert all(case.id.startswith("allocator/") for case in ALLOCATOR_CASES)
    assert {case.kind for case in ALLOCATOR_CASES} == {Kind.ALLOCATOR}
    assert set(KILLED_BY) == set(ALLOCATOR_MUTANTS)
    assert all(name == mutant.name for name, mutant in ALLOCATOR_MUTANTS.items())


def test_rules_are_headings_of_the_specification():
    text = (Path(__file__).parents[1] / "docs" / "SPEC.md").read_text(encoding="utf-8")
    headings = {line.removeprefix("### ") for line in text.splitlines() if line.startswith("### ")}
    assert {case.rule for case in ALLOCATOR_CASES} <= headings
