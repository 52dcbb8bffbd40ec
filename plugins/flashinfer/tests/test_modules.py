"""What is compiled ahead: the module that FlashInfer itself asks for when the adapter plans."""

import sys
import types
from pathlib import Path

import fake_flashinfer
import pytest
import torch
from pagedattn_flashinfer import backend, modules

import pagedattn as pa

SPEC = pa.AttentionSpec(
    num_heads=4, num_kv_heads=4, head_dim=64, block_size=16, dtype=torch.bfloat16, scale=0.125,
    max_query_len=1,
)  # fmt: skip


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """main() sets these, which FlashInfer reads; afterwards they are as they were."""
    for name in ("WORKSPACE_BASE", "CUDA_ARCH_LIST", "EXTRA_LDFLAGS"):
        monkeypatch.setenv(f"FLASHINFER_{name}", "")
    monkeypatch.setenv("CUDA_HOME", "")


class JitSpec:
    """FlashInfer's object for a module to compile."""

    def __init__(self, name: str) -> None:
        self.name = name

    def build_and_load(self) -> None:
        raise AssertionError("a module was loaded")


@pytest.fixture
def jit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrappers whose plan() loads a module, as the library's do."""
    core = types.ModuleType("flashinfer.jit.core")
    core.JitSpec = JitSpec
    monkeypatch.setitem(sys.modules, "flashinfer.jit.core", core)

    def plan(name: str) -> object:
        def loads(self: object, *args: object, **options: object) -> None:
            torch.empty(1, pin_memory=True)  # which needs a driver
            JitSpec(f"{name} window {options['window_left']}").build_and_load()

        return loads

    for name in ("Decode", "Prefill"):
        wrapper = getattr(fake_flashinfer, f"Batch{name}WithPagedKVCacheWrapper")
        monkeypatch.setattr(wrapper, "plan", plan(name))
    # The parameters are looked at elsewhere.
    monkeypatch.setattr(backend, "NEEDED", {})


def test_the_module_of_a_plan_is_named_and_not_loaded(jit: None) -> None:
    assert modules.wanted(SPEC, (9, 0)).name == "Decode window -1"
    grouped = pa.AttentionSpec(
        num_heads=4, num_kv_heads=2, head_dim=64, block_size=16, dtype=torch.float16, scale=1.0,
        window=(7, None),
    )  # fmt: skip
    assert modules.wanted(grouped, (8, 0)).name == "Prefill window 7"


def test_a_library_that_takes_no_such_plan_fails(
    jit: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def plan(self: object, indptr: object) -> None: ...

    monkeypatch.setattr(fake_flashinfer.BatchDecodeWithPagedKVCacheWrapper, "plan", plan)
    monkeypatch.setattr(modules, "toolkit", lambda: Path("/nowhere"))
    assert modules.main(["max_query_len=1", "num_kv_heads=32"]) == 1
    assert "FAILED" in capsys.readouterr().err


def test_a_spec_that_is_refused_fails_with_the_reasons(
    jit: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(modules, "toolkit", lambda: Path("/nowhere"))
    assert modules.main(["head_dim=80"]) == 1
    assert "head_dim" in capsys.readouterr().err


def test_nothing_to_compile_with_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setenv("PATH", "")
    assert modules.main([]) == 2
    assert "pip install nvidia-cuda-nvcc" in capsys.readouterr().err


SASS = """
arch = sm_90a
 Function decode:
  REG:72 STACK:{stack} SHARED:1024 LOCAL:0 CONSTANT[0]:768 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function : decode
        /*0000*/  LDG.E.128 R4, [R2] ;
"""


def test_what_came_out_is_read_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "decode.so"
    library.touch()
    monkeypatch.setattr(modules.sass, "disassemble", lambda data: SASS.format(stack=0))
    assert modules.read_back(library, "90a", no_spills=True) == (
        "1 kernels for sm_90a, at most 72 registers, none with spills"
    )
    with pytest.raises(ValueError, match="no code for sm_100a"):
        modules.read_back(library, "100a", no_spills=False)
    monkeypatch.setattr(modules.sass, "disassemble", lambda data: SASS.format(stack=8))
    assert modules.read_back(library, "90a", no_spills=False).endswith("1 with spills")
    with pytest.raises(ValueError, match="1 of 1 kernels spill, decode among them"):
        modules.read_back(library, "90a", no_spills=True)
