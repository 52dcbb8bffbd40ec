"""docs/backends/triton.md says what the code does: tiles and knobs."""

import re
from pathlib import Path

import pytest

import pagedattn as pa
from pagedattn.backends.triton import heuristics
from pagedattn.backends.triton.backend import MAX_SOFTCAP, TritonBackend
from pagedattn.conformance.compile.specs import MODEL_SPECS

TEXT = (Path(__file__).parents[1] / "docs" / "backends" / "triton.md").read_text(encoding="utf-8")
MODELS = {model.name: model.spec for model in MODEL_SPECS}


def rows_below(heading):
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    return rows[0], rows[2:]


def tiles_of(spec, sm):
    device = pa.DeviceInfo("cuda", sm=sm)
    return "; ".join(
        f"{t.block_m} x {t.block_n}, {t.num_warps}, {t.num_stages}"
        for t in heuristics.choose(spec, device)
    )


def test_the_tiles_are_those_that_are_chosen():
    header, rows = rows_below("Tiles")
    assert header == ["layer", "sm_80", "sm_90"]
    assert len(rows) >= 5
    for name, on_a100, on_h100 in rows:
        found = tiles_of(MODELS[name], (8, 0)), tiles_of(MODELS[name], (9, 0))
        assert (on_a100, on_h100) == found, name


@pytest.mark.parametrize("name", ["Llama 3 8B", "DeepSeek V3, absorbed MLA"])
def test_the_knobs_are_those_of_tunables(name):
    _, rows = rows_below("Knobs")
    shown = {knob: tuple(map(int, values.split(", "))) for knob, values, _ in rows}
    device = pa.DeviceInfo("cuda", sm=(9, 0))
    assert shown == dict(TritonBackend().tunables(MODELS[name], device))


def test_numbers_in_the_text():
    assert f"softcap up to {MAX_SOFTCAP:g}".replace("e+", "e") in TEXT
    assert f"multiples of {heuristics.CHUNK} instead" in " ".join(TEXT.split())
    assert f"number of keys, {heuristics.MIN_PART} at least" in " ".join(TEXT.split())
    kernels = set(re.findall(r"\w+_kernel", TEXT))
    assert kernels == {"attention_tile_kernel", "attention_combine_kernel", "cache_write_kernel"}
