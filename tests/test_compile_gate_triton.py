"""The Triton compile gate: planted faults are found, and the table cannot go stale."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import pagedattn as pa
from pagedattn.conformance.compile import amdgcn, judging, sass, triton as gate
from pagedattn.conformance.compile.recording import Job
from pagedattn.conformance.compile.specs import MODEL_SPECS
from pagedattn.conformance.compile.table import Row, lines_by_digest, markdown
from pagedattn.conformance.compile.usage import CHIPS, Usage, faults

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def planted():
    """Faults by kernel, of the backend in triton_planted.py on sm_90."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_ALWAYS_COMPILE"] = "1"
    command = [sys.executable, str(HERE / "triton_planted.py"), "sm_90"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=HERE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_sound_kernel_has_no_fault(planted):
    assert planted["sound"] == []


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        ("spilling", "spill instructions"),
        ("greedy", "bytes of shared memory, sm_90 has 232,448"),
        ("narrow", "most bytes are loaded 16 bits at a time, 128 are possible"),
        ("crossed", "does not compile: CompilationError"),
    ],
)
def test_a_planted_fault_is_found(planted, kernel, text):
    (fault,) = planted[kernel]
    assert text in fault


def test_what_a_backend_declines_is_listed_with_its_reason(planted):
    ((name, reasons),) = planted["refused"].items()
    assert name == MODEL_SPECS[1].name
    assert "kv_dtype=torch.int8" in reasons


SOUND = Usage(registers=96, shared=1024, mma={"HMMA.16816.F32.BF16": 8}, loads={32: 4, 128: 8})


def test_faults_of_a_usage():
    chip = CHIPS["sm_80"]
    assert faults(SOUND, chip, mma=True, load_width=128) == []
    assert faults(Usage(registers=96, shared=0), chip, mma=False) == []
    (found,) = faults(Usage(registers=96, shared=0), chip, mma=True)
    assert "no tensor-core instruction" in found
    (found,) = faults(Usage(registers=255, shared=0, stack=16), chip, mma=False)
    assert "16 bytes of stack" in found
    (found,) = faults(Usage(registers=96, shared=chip.shared + 1), chip, mma=False)
    assert "166,913 bytes of shared memory, sm_80 has 166,912" in found
    assert faults(Usage(registers=96, shared=chip.shared), chip, mma=False) == []


@pytest.mark.parametrize(
    ("words", "warps", "expected"),
    [
        ({"BLOCK_M": 16, "BLOCK_N": 64}, 4, (128, (16 * 128 * 2 + 64 * 256) // 128)),
        ({"BLOCK_M": 128, "BLOCK_N": 16}, 8, (64, (128 * 128 * 2 + 16 * 256) // 256)),
        ({"BLOCK_M": 16, "BLOCK_N": 64, "SHARED_KV": True}, 4, (128, (16 * 256 + 64 * 128) // 128)),
        ({"BLOCK_M": 16}, 4, None),
    ],
)
def test_loads_that_a_tile_has_room_for(words, warps, expected):
    """bf16 queries over an 8-bit cache; 16 keys of 128 bytes are 8 bytes for each of 256 lanes."""
    q, k = (SimpleNamespace(dtype=dtype) for dtype in (torch.bfloat16, torch.int8))
    words = {"D": 128, "DV": 128, "SHARED_KV": False, "num_warps": warps} | words
    job = Job(CHIPS["sm_90"], None, (q, k), words, "key", [])
    assert judging.kv_loads(job) == expected


def test_load_width_is_that_of_most_bytes():
    assert Usage(registers=1, shared=0, loads={128: 2, 16: 10}).load_width == 128
    assert Usage(registers=1, shared=0, loads={128: 1, 16: 10}).load_width == 16
    assert Usage(registers=1, shared=0).load_width == 0
    assert Usage(registers=1, shared=0, loads={128: 2, 64: 1, 16: 10}).bytes_loaded(64) == 40


SASS = """
 Function one:
  REG:40 STACK:8 SHARED:1024 LOCAL:0 CONSTANT[0]:656
 Function two:
  REG:24 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:656
        Function : one
        /*0000*/                   LDC R1, c[0x0][0x28] ;       /* 0x00000a00ff017b82 */
        /*0010*/              @!P0 LDG.E.128 R4, [R2.64] ;
        /*0020*/                   LDGSTS.E.BYPASS.128 [R8], [R2.64] ;
        /*0030*/                   LDG.E.U16 R4, [R2.64] ;
        /*0040*/                   LDG.E R4, [R2.64] ;
        /*0050*/              @UP1 STL [R1], R4 ;
        /*0060*/                   LDL R4, [R1] ;
        /*0070*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0080*/                   UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR4] ;
        Function : two
        /*0000*/                   FFMA R1, R2, R3, R1 ;
"""


def test_sass_is_read_by_function():
    found = sass.parse(SASS, shared=2048)
    assert found["one"] == Usage(
        registers=40,
        shared=2048,
        stack=8,
        spills=2,
        mma={"HGMMA.64x128x16.F32.BF16": 1, "UTCHMMA": 1},
        loads={128: 2, 16: 1, 32: 1},
    )
    assert found["two"] == Usage(registers=24, shared=2048)


def test_what_is_no_cubin_is_named():
    with pytest.raises(ValueError, match="cannot read this cubin"):
        sass.read(b"nothing")


def test_amd_assembly_is_read():
    text = """
        global_load_dwordx4 v[0:3], v[8:9], off
        buffer_load_ushort v4, v9, s[0:3], 0 offen
        v_mfma_f32_32x32x8_bf16 v[0:15], v[16:17], v[18:19], v[0:15]
    .agpr_count:     0
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 64
    .vgpr_count:     223
    .vgpr_spill_count: 3
    """
    assert amdgcn.read(text, shared=4096) == Usage(
        registers=223,
        shared=4096,
        stack=64,
        spills=3,
        mma={"v_mfma_f32_32x32x8_bf16": 1},
        loads={128: 1, 16: 1},
    )
    with pytest.raises(ValueError, match=r"no \.vgpr_count"):
        amdgcn.read("", shared=0)


@pytest.mark.parametrize(
    ("dot", "wanted"),
    [
        ("tt.dot %a, %b, %c : tensor<16x64xbf16> * tensor<64x64xbf16> -> tensor<16x64xf32>", True),
        ("tt.dot %a, %b, %c : tensor<16x64xi8> * tensor<64x64xi8> -> tensor<16x64xi32>", True),
        ("tt.dot %a, %b, %c, inputPrecision = tf32 : tensor<16x16xf32> * tensor<16x16xf32>", True),
        ("tt.dot %a, %b, %c : tensor<16x64xf32> * tensor<64x64xf32> -> tensor<16x64xf32>", False),
        ("tt.load %a : tensor<16x64xbf16>", False),
    ],
)
def test_where_a_tensor_core_is_wanted(dot, wanted):
    assert judging.needs_mma(dot) is wanted


def row(digest="0123456789ab", wrong=()):
    return Row(
        chip="sm_90",
        kernel="attention_tile_kernel",
        variant="bfloat16, head 128",
        models=("Llama", "Qwen"),
        usage=SOUND,
        width=128,
        faults=wrong,
        digest=digest,
    )


def test_the_table_knows_its_sound_rows_by_digest():
    lines = {"sm_90": [row().line, row("ba9876543210", ("spills",)).line]}
    text = markdown(lines, {"sm_90": {"GPT": "sinks=True"}}, title="Title", about="About.")
    assert lines_by_digest(text) == {"0123456789ab": row().line}
    assert "| attention tile | bfloat16, head 128 | 96 | 1,024 | 0 | HMMA.16816.F32.BF16 |" in text
    assert "Llama and 1 more" in text
    assert "- Declined: GPT (sinks=True)" in text


class Gate:
    """Stands for gate(): one row, without a compiler."""

    def __init__(self, wrong=()):
        self.wrong, self.known, self.sample = wrong, None, None

    def __call__(self, target, chips, models, *, workers, known, sample):
        self.known, self.sample = dict(known), sample
        made = row(wrong=self.wrong)
        return gate.Outcome({"sm_90": [made.line]}, {}, [made])


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return tmp_path / "triton.md"


def test_check_fails_until_the_table_is_written(table, monkeypatch, capsys):
    stand_in = Gate()
    monkeypatch.setattr(gate, "gate", stand_in)
    assert gate.main(["--check", str(table)]) == 1
    assert "write it anew" in capsys.readouterr().out
    assert stand_in.known == {}
    assert gate.main(["--write", str(table)]) == 0
    assert gate.main(["--check", str(table), "--sample", "7"]) == 0
    assert stand_in.known == {"0123456789ab": row().line}
    assert stand_in.sample == 7
    assert gate.main(["--check", str(table), "--all"]) == 0
    assert stand_in.known == {}
    table.write_text(table.read_text().replace("| 96 |", "| 97 |"))
    assert gate.main(["--check", str(table)]) == 1


def test_a_faulty_kernel_fails_the_gate_whatever_the_table_says(table, monkeypatch, capsys):
    monkeypatch.setattr(gate, "gate", Gate(("spills: 3",)))
    assert gate.main(["--write", str(table)]) == 1
    assert gate.main(["--check", str(table)]) == 1
    assert "FAILED sm_90 attention_tile_kernel" in capsys.readouterr().out


def test_interpreted_kernels_are_refused(table, monkeypatch, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert gate.main(["--check"]) == 1
    assert "unset it" in capsys.readouterr().err


def test_twenty_models_with_every_option_that_changes_a_kernel():
    specs = [model.spec for model in MODEL_SPECS]
    assert len({model.name for model in MODEL_SPECS}) == len(specs) == 20
    assert {s.group_size for s in specs} >= {1, 2, 3, 4, 7, 8, 16, 128}
    assert {s.head_dim for s in specs} >= {64, 96, 128, 256, 576}
    assert {s.kv_quant for s in specs} == set(pa.KVQuant)
    assert {s.layout for s in specs} == set(pa.Layout)
    assert {s.mask for s in specs} >= {pa.Mask.CAUSAL, pa.Mask.TREE}
    for name in ("sinks", "alibi", "softcap", "return_lse", "shared_kv", "batch_invariant"):
        assert any(getattr(s, name) for s in specs), name
    assert any(s.window[0] == 127 for s in specs)
