"""PAGEDATTN_EMULATE=1: GPU backends judged on a CPU, and never mistaken for real ones."""

import pytest
import torch
from plugin_support import Plugins

import pagedattn as pa
from pagedattn import registry
from pagedattn.conformance.case import NotRun
from pagedattn.conformance.subjects import resolve

GPU = """
import pagedattn as pa
from pagedattn.backends.reference.backend import ReferenceOp
import silicon  # what the emulator stands in for
class Op(ReferenceOp): pass
class Backend(pa.AttentionBackend):
    name, op = "gpu", Op
    def capabilities(self, device):
        assert device.type == "cuda" or not device.real
        return pa.Capabilities(device={"cuda"}, group_size=None, graph=pa.Graph.DECODE)
class Variant(Backend):
    name = "gpu:two"
"""
HOOKS = """
import pagedattn as pa
@pa.hookimpl
def pagedattn_backends():
    return [pa.Offer("gpu", "gpu_kernels:Backend", priority=500, requires=("silicon",)),
            pa.Offer("gpu:two", "gpu_kernels:Variant", requires=("silicon",))]
"""
EMULATOR = """
import sys, types
import pagedattn as pa
from pagedattn.emulation import Emulation
CALLS = []
def install():
    CALLS.append(1)
    silicon = types.ModuleType("silicon")
    silicon.__spec__ = __import__("importlib.machinery").machinery.ModuleSpec("silicon", None)
    sys.modules["silicon"] = silicon
    return {made}
@pa.hookimpl
def pagedattn_emulators(): return [pa.Offer("gpu", "emu_module:install"{more})]
"""
DEVICE = 'Emulation(pa.DeviceInfo("cuda", sm=(9, 0), name="sm_90 on paper", real=True))'

SPEC = pa.AttentionSpec(
    num_heads=4, num_kv_heads=4, head_dim=64, block_size=16, dtype=torch.float32, scale=0.125
)


@pytest.fixture
def gpu(plugins: Plugins, monkeypatch: pytest.MonkeyPatch) -> Plugins:
    import sys

    monkeypatch.setenv("PAGEDATTN_EMULATE", "1")
    monkeypatch.setenv("PAGEDATTN_BLOCK", "conformance")  # whose emulators would patch this process
    (plugins.root / "gpu_kernels.py").write_text(GPU)
    for name in ("gpu_kernels", "silicon"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    plugins.install("gpu", HOOKS)
    plugins.install("emu", EMULATOR.format(made=DEVICE, more=""))
    return plugins


def row(name: str) -> pa.Row:
    (found,) = [row for row in pa.backends() if row.name == name]
    return found


def test_an_emulated_backend_is_told_of_a_gpu_and_computes_on_the_cpu(gpu: Plugins) -> None:
    assert (row("gpu").state, row("gpu").detail) == (
        "emulated",
        "runs as sm_90 on paper; correctness only",
    )
    backend = pa.backend("gpu")
    assert backend.emulated is not None
    assert backend.device_info("cpu").sm == (9, 0)
    assert backend.device_info("sm80").sm == (8, 0)  # a made-up GPU stays what it is
    assert pa.check("gpu", SPEC, "cpu") == ()
    op = backend.open(SPEC, pa.Limits(1, 1, 16, 1), device="cpu")
    assert op.device == torch.device("cpu")
    assert (op.info.type, op.info.name) == ("cuda", "sm_90 on paper")


def test_the_emulator_serves_variants_and_is_installed_once(gpu: Plugins) -> None:
    import emu_module

    assert (row("gpu:two").state, row("gpu").state) == ("emulated", "emulated")
    assert pa.backend("gpu:two").emulated is pa.backend("gpu").emulated
    assert emu_module.CALLS == [1]


def test_without_the_variable_nothing_is_emulated(
    gpu: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    import emu_module

    monkeypatch.setenv("PAGEDATTN_EMULATE", "0")
    registry.reload()
    assert row("gpu").state == "unavailable"
    assert "silicon is not installed" in row("gpu").detail
    assert emu_module.CALLS == []


def test_select_never_picks_an_emulated_backend(
    gpu: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert row("gpu").priority == 500
    assert pa.select(SPEC).name != "gpu"
    monkeypatch.setenv("PAGEDATTN_BLOCK", "conformance,builtin,template,transformers")
    with pytest.raises(pa.Unsupported, match=r"gpu: unavailable=emulated .* name it to run it"):
        pa.select(SPEC)


def test_other_backends_are_real(gpu: Plugins) -> None:
    assert row("reference").state == "ready"
    assert pa.backend("reference").emulated is None


@pytest.mark.parametrize(
    ("made", "more", "state", "said"),
    [
        ("None", "", "broken", "the emulator returned None"),
        ("1 / 0", "", "broken", "ZeroDivisionError"),
        (DEVICE, ", requires=('fpga',)", "unavailable", "fpga is not installed"),
        (DEVICE, ", missing=lambda: 'no compiler; install one'", "unavailable", "install one"),
    ],
)
def test_an_emulator_that_cannot_work_is_a_row(
    gpu: Plugins, made: str, more: str, state: str, said: str
) -> None:
    gpu.install_again("emu", EMULATOR.format(made=made, more=more))
    assert row("gpu").state == state
    assert said in row("gpu").detail
    with pytest.raises(pa.NotReady, match="gpu"):
        pa.backend("gpu")


@pytest.mark.parametrize("capture", ["none", "stale"])
def test_a_graph_is_judged_by_the_emulators_capture(gpu: Plugins, capture: str) -> None:
    from pagedattn.conformance.attention import ATTENTION_CASES
    from pagedattn.conformance.case import CaseFailure

    (case,) = [case for case in ATTENTION_CASES if case.id == "launch/graph"]
    (subject,) = resolve("gpu")
    made = subject.make()
    if capture == "none":
        with pytest.raises(NotRun, match="cannot capture"):
            case.run(made)
        return
    made.backend.emulated = pa.emulation.Emulation(
        made.backend.emulated.device, capture=lambda launch: launch
    )
    case.run(made)  # launching anew is what a replay must equal
    made.backend.emulated = pa.emulation.Emulation(
        made.backend.emulated.device, capture=lambda launch: lambda: None
    )
    with pytest.raises(CaseFailure):
        case.run(made)
