"""The attention cases as a whole: ids, rules, coverage, and the reference backend."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pagedattn as pa
from pagedattn.conformance.attention import ATTENTION_CASES, AttentionSubject
from pagedattn.conformance.attention.build import edges, seed_of
from pagedattn.conformance.case import Kind, Outcome
from pagedattn.conformance.runner import run_cases, verdict

SPEC = Path(__file__).parents[1] / "docs" / "SPEC.md"


def test_ids_are_unique_and_can_be_typed():
    ids = [case.id for case in ATTENTION_CASES]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z0-9_.+/-]+", id) for id in ids)
    assert all("/" in id for id in ids)


def test_every_rule_is_a_heading_of_the_specification():
    headings = set(re.findall(r"^### (\S+)$", SPEC.read_text(encoding="utf-8"), re.MULTILINE))
    assert {case.rule for case in ATTENTION_CASES} <= headings


def test_every_attention_rule_of_the_specification_has_a_case():
    attention = SPEC.read_text(encoding="utf-8").partition("# Allocators")[0]
    headings = set(re.findall(r"^### (\S+)$", attention, re.MULTILINE))
    assert headings == {case.rule for case in ATTENTION_CASES}


def test_every_reported_kernel_fault_is_covered():
    covered = {fault for case in ATTENTION_CASES for fault in case.faults}
    every = {f"KH-{n:02}" for n in range(1, 60)}
    assert every - covered == set()


def test_the_required_core_names_both_widths_and_groups():
    core = {case.id for case in ATTENTION_CASES if case.core}
    for phase in ("decode", "prefill", "mixed"):
        for dim in (64, 128):
            for group in (1, 4):
                assert f"core/{phase}/dim-{dim}/group-{group}" in core
    options = ("softcap/", "sinks/", "alibi/", "lse/", "window/", "tree/", "quant/", "merge/")
    assert not [id for id in core if id.startswith(options)]


def test_the_seed_is_the_same_in_every_process():
    assert seed_of("core/decode/dim-64/group-1") == 3250752610
    code = "from pagedattn.conformance.attention.build import seed_of; print(seed_of('a/b'))"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(p for p in sys.path if p)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert seen == {f"{seed_of('a/b')}\n"}


@pytest.mark.parametrize(("size", "expected"), [(1, [1, 2, 3]), (4, [1, 3, 4, 5, 7, 8, 9])])
def test_edges(size, expected):
    assert edges(size) == expected


def test_the_reference_backend_conforms():
    subject = AttentionSubject(pa.backend("reference"), torch.device("cpu"))
    results = run_cases(subject, ATTENTION_CASES)
    others = [(r.case, r.detail) for r in results if r.outcome is not Outcome.PASSED]
    launches = ["graph", "run-does-not-wait", "mixed-does-not-wait", "write-does-not-wait"]
    launches.append("write-8-bit-does-not-wait")
    assert [case for case, _ in others] == [f"launch/{name}" for name in launches], others
    judged = verdict(results)
    assert judged.conforms
    assert judged.exit_code == 0
    assert {"float32", "float16", "bfloat16", "float64", "int8"} <= set(judged.headroom)
    assert min(judged.headroom.values()) > 1.5
    assert all(case.kind is Kind.ATTENTION for case in ATTENTION_CASES)
