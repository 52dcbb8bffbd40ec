"""How cases fit a backend, and how check() and open() are held to the same word."""

import dataclasses

import pytest
import torch

import pagedattn as pa
from pagedattn.backends.reference import ReferenceBackend
from pagedattn.conformance.attention import ATTENTION_CASES, AttentionSubject
from pagedattn.conformance.case import CaseFailure, Declined, Kind, NotRun, Outcome
from pagedattn.conformance.runner import run_cases, verdict
from pagedattn.conformance.subjects import cases_of, of_backend, resolve
from pagedattn.errors import Refusal, UnknownName

CPU = torch.device("cpu")
LIMITS = pa.Limits(4, 8, 64, 8)


def subject(**rows):
    class Restricted(ReferenceBackend):
        def capabilities(self, device):
            return dataclasses.replace(super().capabilities(device), **rows)

    return AttentionSubject(Restricted(), CPU)


def test_the_spec_prefers_the_cheap_and_the_exact():
    spec = subject().spec()
    assert (spec.dtype, spec.block_size, spec.head_dim) == (torch.float32, 16, 64)
    assert spec.group_size == 4
    assert spec.num_kv_heads == 2


def test_the_spec_is_made_of_what_is_declared():
    spec = subject(
        dtype={torch.bfloat16}, block_size={256}, num_kv_heads={8}, head_dim={128}, max_query_len=1
    ).spec()
    assert (spec.dtype, spec.block_size, spec.head_dim) == (torch.bfloat16, 256, 128)
    assert spec.num_kv_heads == 8
    assert spec.max_query_len == 1


def test_ranges_and_odd_values():
    assert subject(block_size=range(24, 4096, 8)).spec().block_size == 32
    assert subject(block_size={11, 544}).spec().block_size == 11
    assert subject(group_size={3}).spec().group_size == 3


def test_combinations_are_searched():
    class Picky(ReferenceBackend):
        def refuse(self, spec, device):
            if spec.softcap and spec.block_size != 64:
                yield Refusal(self.name, "softcap", spec.softcap, "blocks of 64")

    picky = AttentionSubject(Picky(), CPU)
    assert picky.spec().block_size == 16
    assert picky.spec({"softcap": 2.0}).block_size == 64


def test_declined_needs_the_same_reasons_from_both():
    narrow = subject(softcap=False)
    with pytest.raises(Declined) as caught:
        narrow.open(narrow.spec({"softcap": 2.0}), LIMITS)
    assert [r.code for r in caught.value.refusals] == ["softcap"]
    assert narrow.open(narrow.spec(), LIMITS).spec == narrow.spec()


def test_a_query_longer_than_declared_is_declined():
    decode = subject(max_query_len=1)
    with pytest.raises(Declined) as caught:
        decode.open(decode.spec(rows=3), LIMITS)
    assert [r.code for r in caught.value.refusals] == ["max_query_len"]


def test_a_device_that_is_not_served_is_not_run():
    with pytest.raises(NotRun, match="device"):
        subject(device={"cuda"}).spec()


def test_open_must_keep_what_check_says():
    class Liar(ReferenceBackend):
        asked = 0

        def refuse(self, spec, device):
            Liar.asked += 1
            if Liar.asked % 2 == 0:
                yield Refusal(self.name, "sinks", True, "off")

    with pytest.raises(CaseFailure, match="claims this spec but open"):
        AttentionSubject(Liar(), CPU).open(subject().spec(), LIMITS)


@pytest.mark.parametrize(
    "rows",
    [
        {"dtype": {torch.bfloat16}, "block_size": {32}, "kv_dtype": set(), "out_dtype": set()},
        {"max_query_len": 1},
        {
            "dtype": {torch.float16}, "head_dim": {64, 128}, "head_dim_v": set(),
            "kv_quant": {pa.KVQuant.NONE}, "window": (True, False), "softcap": False,
            "sinks": False, "alibi": False, "mask": {pa.Mask.CAUSAL}, "return_lse": False,
        },
    ],
    ids=["bfloat16", "decode-only", "half-and-plain"],
)  # fmt: skip
def test_a_narrow_backend_is_still_judged_and_conforms(rows):
    areas = ("core/", "length/", "poison/", "empty/", "window/", "memory/", "honesty/", "write/")
    cases = [case for case in ATTENTION_CASES if case.id.startswith(areas)]
    results = run_cases(subject(**rows), cases)
    wrong = (Outcome.FAILED, Outcome.NOT_RUN)
    assert [(r.case, r.detail) for r in results if r.outcome in wrong] == []
    judged = verdict(results)
    assert judged.conforms
    assert judged.counts["declined"] > 10
    assert judged.counts["passed"] > 60


# -- names ---------------------------------------------------------------------------------------


def test_names_of_both_kinds_are_found():
    assert [s.kind for s in resolve("reference")] == [Kind.ATTENTION]
    assert [s.kind for s in resolve("paged")] == [Kind.ALLOCATOR]
    found = resolve("reference")[0]
    assert found.label == f"reference {pa.__version__} (cpu)"
    assert found.command("gqa/mapping") == "pagedattn check reference -k gqa/mapping"
    assert (
        resolve("reference", "cuda:1")[0]
        .command("a/b")
        .startswith("pagedattn check reference --device cuda:1")
    )


def test_unknown_names_list_both_kinds():
    with pytest.raises(UnknownName) as caught:
        resolve("referense")
    assert caught.value.closest == "reference"
    assert {"reference", "paged"} <= set(caught.value.known)
    with pytest.raises(UnknownName, match="no backend named 'paged'"):
        resolve("paged", kind=Kind.ATTENTION)


def test_an_allocator_is_judged_by_its_factory():
    make = resolve("paged")[0].make()
    assert make(num_blocks=4, block_size=2).stats().total == 4


def test_capabilities_as_text():
    declared = of_backend(ReferenceBackend()).capabilities()
    assert declared["layout"] == "HND, NHD"
    assert declared["graph"] == "NEVER"
    assert "fork" in resolve("paged")[0].capabilities()


def test_cases_of_each_kind():
    assert cases_of(Kind.ATTENTION) == ATTENTION_CASES
    assert {case.kind for case in cases_of(Kind.ALLOCATOR)} == {Kind.ALLOCATOR}
