"""What is installed, and what is wrong with it: each a row with a sentence."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from flash_attn_support import SM90, Site, on_cpu, untouched_modules

import pagedattn as pa
from pagedattn.backends.flash_attn import presence, probe
from pagedattn.backends.flash_attn.backend import FA2, FA3, FA4, FlashAttnBackend
from pagedattn.backends.flash_attn.limits import VARIANTS, Variant, variant
from pagedattn.backends.flash_attn.presence import Absent, absent, functions, version_key

FA3_PARAMETERS = ", ".join(variant("fa3").functions["flash_attn_with_kvcache"])
GOOD_FA3 = f"def flash_attn_with_kvcache({FA3_PARAMETERS}): pass"
SPEC = pa.AttentionSpec(
    num_heads=4, num_kv_heads=2, head_dim=64, block_size=16, dtype=torch.bfloat16, scale=0.125
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with untouched_modules():
        yield Site(tmp_path, monkeypatch)


def sentence(name: str) -> str:
    with pytest.raises(Absent) as caught:
        functions(variant(name))
    return str(caught.value)


def test_an_absent_distribution_says_how_to_install_it(site: Site) -> None:
    assert absent(variant("fa4")) == (
        "flash-attn-4 is not installed; pip install --pre flash-attn-4"
    )
    assert "flash_attn_3 or flash-attn-3" in sentence("fa3")


@pytest.mark.parametrize("version", ["2.9.1", "4.0.0"])
def test_an_unknown_version_is_refused_with_those_that_are_known(site: Site, version: str) -> None:
    site.distribution("flash_attn_3", version, flash_attn_interface=GOOD_FA3)
    text = sentence("fa3")
    assert f"{version} is installed, this adapter knows 3.0.0b1 up to, not including, 3.1" in text


def test_a_good_distribution_gives_its_functions(site: Site) -> None:
    site.distribution("flash_attn_3", "3.0.0+cu128", flash_attn_interface=GOOD_FA3)
    assert absent(variant("fa3")) is None
    assert list(functions(variant("fa3"))) == ["flash_attn_with_kvcache"]


def test_a_function_that_lost_a_parameter_is_refused_by_name_and_version(site: Site) -> None:
    code = GOOD_FA3.replace("page_table", "block_table").replace("softcap", "logits_cap")
    site.distribution("flash_attn_3", "3.0.0", flash_attn_interface=code)
    assert sentence("fa3") == (
        "flash_attn_with_kvcache() of flash_attn_3 3.0.0 takes no page_table, softcap; "
        "this adapter knows versions 3.0.0b1 up to, not including, 3.1"
    )


def test_a_function_that_is_gone_is_named(site: Site) -> None:
    site.distribution("flash_attn_3", "3.0.0", flash_attn_interface="")
    assert "flash_attn_3 3.0.0 has no function flash_attn_with_kvcache" in sentence("fa3")


def test_a_distribution_without_its_module(site: Site) -> None:
    site.distribution("flash_attn_3", "3.0.0")
    assert "flash_attn_3 3.0.0 cannot be imported: No module named" in sentence("fa3")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise RuntimeError('boom')", "fails with RuntimeError: boom; reinstall it"),
        ("import sys; sys.exit('no GPU here')", "fails with SystemExit: no GPU here; reinstall it"),
        (
            "raise ImportError('libcudart.so.11.0: cannot open shared object file')",
            f"this is torch {torch.__version__} with CUDA {torch.version.cuda or 'none'}, "
            "install a build for these versions",
        ),
    ],
)
def test_an_import_that_crashes_is_a_sentence_and_happens_once(
    site: Site, code: str, expected: str
) -> None:
    counted = f"import pathlib; p = pathlib.Path({str(site.root / 'n')!r})\n"
    counted += "p.write_text(p.read_text() + 'x' if p.exists() else 'x')\n"
    site.distribution("flash_attn_3", "3.0.0", flash_attn_interface=counted + code)
    assert "importing flash_attn_interface of flash_attn_3 3.0.0" in sentence("fa3")
    assert sentence("fa3").endswith(expected)
    assert (site.root / "n").read_text() == "x"


def test_a_torch_for_cpus_has_no_kernels(site: Site) -> None:
    site.distribution("torch", "2.13.0+cpu")
    assert absent(variant("torch_varlen")) == (
        "torch 2.13.0+cpu is a build for CPUs; install a CUDA build of torch 2.12 or 2.13"
    )


def test_a_package_without_its_extension(site: Site) -> None:
    site.distribution("flash-attn", "2.8.3")
    assert absent(variant("fa2")) == (
        "flash-attn 2.8.3 is installed without its compiled extension flash_attn_2_cuda; "
        "pip install flash-attn (needs a CUDA toolkit), or a wheel: docs/offline-gpu.md"
    )


def test_a_broken_variant_is_unavailable_and_the_others_still_work(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "place", on_cpu)
    site.distribution("torch", "2.13.0")  # a build with CUDA
    site.distribution("flash_attn_3", "3.0.0", flash_attn_interface="raise SystemExit(3)")
    (refusal,) = pa.check(FA3(), SPEC, SM90)
    assert (refusal.backend, refusal.code) == ("flash_attn:fa3", "unavailable")
    assert "SystemExit" in refusal.hint
    refusals = pa.check(FlashAttnBackend(), SPEC, SM90)
    codes = {(r.backend, r.code) for r in refusals}
    # torch is there and needs other pages; that fa3 is not here is no reason to call all absent.
    assert {("flash_attn:fa3", "variant"), ("flash_attn:torch_varlen", "block_size")} <= codes
    assert "unavailable" not in {code for _, code in codes}


def test_every_variant_is_a_row_of_explain_with_a_reason(site: Site) -> None:
    rows = {e.row.name: e for e in pa.explain(SPEC, "cpu")}
    for v in VARIANTS:
        assert rows[f"flash_attn:{v.name}"].refusals, v.name
    assert rows["flash_attn"].refusals


def test_naming_an_absent_variant_raises_and_never_substitutes(site: Site) -> None:
    with pytest.raises(pa.NotReady, match="flash-attn-4 is not installed"):
        pa.backend("flash_attn:fa4")


TRITON_PATH = """
import torch
def flash_attn_varlen_func({ragged}): raise NotImplementedError
def flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens, block_table, softmax_scale,
        causal, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, num_splits=0,
        return_softmax_lse=False):
    n = int(cache_seqlens[0])
    {body}
    p = torch.softmax(softmax_scale * (q[0, 0] @ k[:, 0].T).float(), -1)
    return (p @ v[:, 0].float())[None, None]
"""
RAGGED = ", ".join(variant("fa2").functions["flash_attn_varlen_func"])


@pytest.mark.parametrize(
    ("body", "ignored"),
    [
        ("k, v = k_cache[0, :n], v_cache[0, :n]", "block_table, window, softcap"),
        ("k, v = (x[block_table[0, 0], :n] for x in (k_cache, v_cache))", "window, softcap"),
    ],
)
def test_kernels_that_ignore_arguments_are_found_by_trying_them(
    site: Site, monkeypatch: pytest.MonkeyPatch, body: str, ignored: str
) -> None:
    monkeypatch.setattr(probe, "place", on_cpu)
    monkeypatch.setenv("FLASH_ATTENTION_TRITON_AMD_ENABLE", "TRUE")  # needs no extension
    code = TRITON_PATH.format(ragged=RAGGED, body=body)
    site.distribution("flash-attn", "2.8.3", flash_attn__flash_attn_interface=code)
    spec = pa.AttentionSpec(
        num_heads=4, num_kv_heads=2, head_dim=64, block_size=256, dtype=torch.bfloat16, scale=0.125
    )
    (refusal,) = pa.check(FA2(), spec, SM90)
    assert f"ignore {ignored}, as the Triton path for AMD GPUs does" in refusal.hint
    backend = FA2()
    backend.emulated = pa.emulation.Emulation(SM90)
    with pytest.raises(pa.Unsupported, match=f"ignore {ignored}"):
        backend.open(spec, pa.Limits(1, 1, 256, 1), device="cpu")


def test_a_torch_for_rocm_is_refused_whatever_the_probe_says(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "place", on_cpu)
    monkeypatch.setattr(torch.version, "hip", "7.1")
    site.distribution("flash_attn_3", "3.0.0", flash_attn_interface=GOOD_FA3)
    (refusal,) = pa.check(FA3(), SPEC, SM90)
    assert refusal.code == "unavailable"
    assert "is built for ROCm, and what is promised here was read" in refusal.hint


REAL_TRITON_PATH = """
from pagedattn.conformance.emulation.triton import install
install()
import torch
import pagedattn as pa
from pagedattn.backends.flash_attn import probe
from pagedattn.backends.flash_attn.backend import FA2
probe.place = lambda variant, device: torch.device("cpu")
spec = pa.AttentionSpec(
    num_heads=4, num_kv_heads=2, head_dim=64, block_size=256, dtype=torch.float16, scale=0.125
)
device = pa.DeviceInfo("cuda", sm=(9, 0), name="a GPU in a test", real=True)
(refusal,) = pa.check(FA2(), spec, device)
print(refusal.code, refusal.hint)
backend = FA2()
backend.emulated = pa.emulation.Emulation(device)
try:
    backend.open(spec, pa.Limits(1, 1, 256, 1), device="cpu")
except pa.Unsupported as error:
    print("refused", error)
"""


def test_the_library_s_own_triton_path_is_refused_because_of_what_it_does() -> None:
    """Its kernels run here, under the Triton emulator."""
    for package in ("triton", "flash_attn"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    done = subprocess.run(
        [sys.executable, "-c", REAL_TRITON_PATH],
        env={**os.environ, "FLASH_ATTENTION_TRITON_AMD_ENABLE": "TRUE"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()[:2]
    ignored = "its kernels on cpu ignore block_table, window, softcap, as the Triton path"
    assert first.startswith(f"unavailable {ignored}")
    assert second.startswith("refused")
    assert ignored in done.stdout.split("refused")[1]


def test_a_probe_that_fails_is_a_sentence(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "place", on_cpu)
    monkeypatch.setenv("FLASH_ATTENTION_TRITON_AMD_ENABLE", "TRUE")
    code = TRITON_PATH.format(ragged=RAGGED, body="raise RuntimeError('no kernel image')")
    site.distribution("flash-attn", "2.8.3", flash_attn__flash_attn_interface=code)
    text = probe.fault(variant("fa2"), SM90)
    assert text is not None
    assert "fails on cpu with RuntimeError: no kernel image" in text


def test_a_real_device_that_torch_does_not_see(site: Site) -> None:
    code = f"def flash_attn_varlen_func({', '.join(_fa4().functions['flash_attn_varlen_func'])}): 0"
    site.distribution("flash-attn-4", "4.0.0b36", flash_attn__cute=code)
    assert probe.fault(_fa4(), SM90) == f"torch {torch.__version__} sees no CUDA device"
    (refusal,) = pa.check(FA4(), SPEC, SM90)
    assert refusal.code == "unavailable"


def _fa4() -> Variant:
    return variant("fa4")


def test_torch_that_was_told_to_use_other_kernels_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "place", on_cpu)
    site.distribution("torch", "2.13.0")
    monkeypatch.setattr(torch.nn.attention, "current_flash_attention_impl", lambda: "FA4")
    text = probe.fault(variant("torch_varlen"), SM90)
    assert text is not None
    assert text.startswith("torch was told to use FA4 for its flash attention")


@pytest.mark.parametrize(
    "ordered",
    [
        ["2.8.0", "2.8.3", "2.8.3.post2", "2.8.4", "2.9", "2.10"],
        ["3.0.0.dev1", "3.0.0a1", "3.0.0b1", "3.0.0b2", "3.0.0rc1", "3.0.0", "3.0.0.post1"],
    ],
)
def test_versions_are_ordered_as_their_numbers(ordered: list[str]) -> None:
    keys = [version_key(text) for text in ordered]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert version_key("2.13.0+cpu") == version_key("2.13")


def test_a_version_that_is_none_is_older_than_all() -> None:
    assert version_key("unknown") < version_key("0.0.1")


def test_looking_imports_nothing(site: Site) -> None:
    site.distribution("flash_attn_3", "3.0.0", flash_attn_interface="raise AssertionError")
    assert absent(variant("fa3")) is None
    assert presence.installed_version(variant("fa3")) == "3.0.0"
