"""The CUDA compile gate: what it compiles, what it finds, and what it believes of its table."""

from __future__ import annotations

import dataclasses

import pytest

from pagedattn.backends.cupy import driver, heuristics, loader, op
from pagedattn.backends.cupy.backend import CupyBackend
from pagedattn.conformance.compile import cuda as gate
from pagedattn.conformance.compile.opening import loaded
from pagedattn.conformance.compile.specs import MODEL_SPECS
from pagedattn.conformance.compile.table import spread
from pagedattn.device import DeviceInfo

LLAMA = "Llama 3 8B"


def job_of(kernel: heuristics.Kernel, chip: str = "sm_80") -> gate.Job:
    return gate.Job(gate.CHIPS[chip], kernel, kernel.shared, ("a model",))


DECODE = heuristics.Kernel(
    "decode.cu", "attention_decode_kernel<f16, 1, 1, Spec<128, 16, NONE>>", 24576
)


def test_the_gate_reads_what_the_compiler_made() -> None:
    row = gate.compiled(job_of(DECODE))
    assert row.faults == ()
    assert 30 < row.usage.registers < 256
    assert row.usage.shared == 24576
    assert row.line.endswith(f"| a model | {row.job.digest} |")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("BLOCKS<KV, GROUP, VECTORS>)", "16)", "spill"),
        ("if (vectors) {", "if (false) {", "loads of 128 bits"),
        ("extern __shared__ uint4 shared[];", "extern __shared__ int shared[];", "not compile"),
    ],
)
def test_the_gate_finds_a_planted_fault(
    monkeypatch: pytest.MonkeyPatch, old: str, new: str, fault: str
) -> None:
    text = gate.source("decode.cu")
    assert old in text
    monkeypatch.setattr(gate, "source", lambda _: text.replace(old, new))
    row = gate.compiled(job_of(DECODE))
    assert fault in " ".join(row.faults)
    assert row.line.endswith("| fault |")


def test_shared_memory_beyond_the_chip_is_a_fault() -> None:
    large = dataclasses.replace(DECODE, shared=101377)
    row = gate.compiled(job_of(large, "sm_86"))
    assert "101,377 bytes of shared memory" in " ".join(row.faults)


def test_known_rows_are_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, declined = gate.jobs_for(gate.CHIPS["sm_90"], ["Llama 3 8B"])
    files = ["decode.cu", "prefill.cu", "combine.cu", "write.cu", *["prefill_wgmma.cu"] * 2]
    assert [job.kernel.file for job in jobs] == files
    assert declined == {}
    known = {job.digest: f"| row of {job.kernel.file} | others | {job.digest} |" for job in jobs}
    monkeypatch.setattr(gate, "compiled", lambda job: pytest.fail("compiled"))
    found = gate.gate(["sm_90"], ["Llama 3 8B"], known=known)
    rows = [row.replace("others", "Llama 3 8B") for row in known.values()]
    assert found.lines == {"sm_90": rows}  # who launches them is of now
    assert "row of decode.cu" in gate.document(found, 1)


def known_rows() -> dict[str, str]:
    jobs, _ = gate.jobs_for(gate.CHIPS["sm_80"], [LLAMA])
    return {job.digest: f"| known {job.kernel.file} | {LLAMA} | {job.digest} |" for job in jobs}


def test_a_sample_of_the_known_rows_is_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known, again = known_rows(), []

    def compiled(job: gate.Job) -> gate.Compiled:
        again.append(job.digest)
        return gate.Compiled(job, gate.Usage(registers=99, shared=0), ())

    monkeypatch.setattr(gate, "compiled", compiled)
    found = gate.gate(["sm_80"], [LLAMA], known=known, sample=2, workers=1)
    assert again == spread(sorted(known), 2)
    assert len(again) == 2
    stale = [line for line in found.lines["sm_80"] if line not in known.values()]
    assert len(stale) == 2  # a table that is no longer right is found out
    assert all("| 99 |" in line for line in stale)


@pytest.mark.parametrize(
    ("count", "wanted"), [(0, []), (1, [9]), (3, [2, 5, 8]), (4, [1, 3, 5, 7]), (99, [*range(10)])]
)
def test_a_sample_is_spread(count: int, wanted: list[int]) -> None:
    assert spread(list(range(10)), count) == wanted


def test_a_digest_covers_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    before = job_of(DECODE).digest
    assert job_of(DECODE).digest == before
    monkeypatch.setattr(gate, "_rules", lambda: "other rules")
    assert job_of(DECODE).digest != before


def test_what_open_loads_is_noted_and_nothing_else_is_changed() -> None:
    before = driver.DRIVER, op.load
    (llama,) = [m for m in MODEL_SPECS if m.name == LLAMA]
    device = DeviceInfo("cuda", sm=(8, 6), name="made up", real=True)
    found = loaded(CupyBackend, llama, device, {})
    assert [given.kernel.file for given in found] == [
        "decode.cu", "prefill.cu", "combine.cu", "write.cu"
    ]  # fmt: skip
    assert {given.arch for given in found} == {"sm_86"}
    assert all("__global__" in given.source for given in found)
    assert (driver.DRIVER, op.load) == before


def test_a_gate_that_compiles_in_another_way_than_open_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loader, "OPTIONS", ("-std=c++20",))
    with pytest.raises(RuntimeError, match=r"open\(\) compiles .* in another way than this gate"):
        gate.jobs_for(gate.CHIPS["sm_80"], [LLAMA])
