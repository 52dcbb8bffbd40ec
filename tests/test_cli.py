"""The command line: what it prints, and its exit codes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import pagedattn as pa
from pagedattn import registry
from pagedattn.cli import build_app
from pagedattn.cli.output import STATE_STYLE
from pagedattn.device import is_present
from pagedattn.errors import NotReady, Unsupported
from pagedattn.hooks import OfferKind


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(build_app(), list(arguments))
    assert result.exit_code == code, result.output
    return result.output


def run_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_backends_lists_states() -> None:
    rows = {row["name"]: row for row in run_json("backends")}
    assert rows["reference"]["state"] == "ready"
    assert rows["reference"]["source"].startswith("pagedattn ")
    assert "reference" in run("backends")
    for name in (name for name, row in rows.items() if row["state"] == "ready"):
        served = pa.backend(name).capabilities(pa.DeviceInfo.of("cpu")).device
        assert any(map(is_present, served)), name


def test_every_state_has_a_style() -> None:
    assert set(STATE_STYLE) == set(registry.State)


def test_allocators_and_policies_are_listed() -> None:
    rows = run_json("allocators")
    assert rows[0]["name"] == "paged"
    assert ("lru", "policy") in {(row["name"], row["kind"]) for row in rows}


def test_brackets_in_a_hint_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    hint = "pip install 'pagedattn[triton]'"
    row = registry.Row("triton", OfferKind.BACKEND, registry.State.UNAVAILABLE, hint, "x 1")
    monkeypatch.setattr(registry, "backends", lambda: (row,))
    assert hint in " ".join(run("backends").split())


def test_a_blocked_command_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEDATTN_BLOCK", "check")
    result = CliRunner().invoke(build_app(), ["check"])
    assert isinstance(result.exception, NotReady)
    assert "PAGEDATTN_BLOCK" in str(result.exception)


def test_explain_gives_reasons() -> None:
    rows = {row["name"]: row for row in run_json("explain", "softcap=50", "head_dim=80")}
    assert rows["reference"]["serves"]
    refusals = rows["template"]["refusals"]
    assert [r["code"] for r in refusals] == ["softcap"]
    text = run("explain", "window=4095,-", "kv_quant=per_head", "kv_dtype=fp8")
    assert "kv_quant" in text
    layer = "num_heads=32 num_kv_heads=8 head_dim=128 block_size=16 dtype=bfloat16 "
    layer += "kv_dtype=float8_e4m3fn window=4095,- kv_quant=PER_HEAD on cpu"
    assert layer in " ".join(text.split())


def test_explain_for_a_made_up_device() -> None:
    rows = {row["name"]: row for row in run_json("explain", "--device", "mps")}
    assert [r["code"] for r in rows["reference"]["refusals"]] == ["device"]
    assert "sm90" in run("explain", "--device", "sm90")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "colour=red"], "expected field=value"),
        (["explain", "head_dim=64", "head-dim=32"], "head_dim is given twice"),
        (["explain", "num_heads=7"], "not a multiple"),
        (["explain", "dtype=float3"], "is not a dtype"),
        (["explain", "head_dim=abc"], "invalid literal"),
        (["explain", "head_dim=0"], "head_dim=0"),
        (["explain", "window=1,2,3"], "not a pair"),
        (["explain", "mask=round"], "not one of CAUSAL, FULL, TREE"),
        (["memory", "--layers", "1", "--kv-heads", "0", "--head-dim", "8"], "num_kv_heads=0"),
        (
            ["memory", "--layers", "1", "--kv-heads", "1", "--head-dim", "8", "--context", "4x"],
            "not a size",
        ),
    ],
)
def test_bad_input_is_said_and_exits_with_2(arguments: list[str], message: str) -> None:
    text = " ".join(run(*arguments, code=2).replace("│", " ").split())
    assert message in text


def test_memory_is_exact() -> None:
    llama = ["memory", "--layers", "80", "--head-dim", "128", "--batch", "32", "--context", "4k"]
    llama += ["--dtype", "float16"]
    assert run_json(*llama, "--kv-heads", "64")["bytes"] == 343_597_383_680
    assert run_json(*llama, "--kv-heads", "8")["bytes"] == 42_949_672_960
    assert "343,597,383,680" in run(*llama, "--kv-heads", "64")
    mla = ["memory", "--layers", "61", "--kv-heads", "1", "--head-dim", "576"]
    mla += ["--head-dim-v", "512"]
    assert run_json(*mla, "--shared-kv", "--context", "16")["bytes_per_token"] == 61 * 576 * 2


def test_env_names_versions() -> None:
    facts = run_json("env")
    assert facts["pagedattn"]
    assert facts["torch"]


def test_unknown_names_end_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pagedattn", "check", "referense"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "did you mean 'reference'" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("'no_such_module:f'", "No module named"),
        ("lambda: 3", "TypeError"),
        ("lambda: __import__('sys').exit(7)", "SystemExit"),
    ],
)
def test_a_broken_command_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, text: str
) -> None:
    (tmp_path / "boom_module.py").write_text(
        "import pagedattn as pa\n@pa.hookimpl\n"
        f"def pagedattn_commands(): return [pa.Offer('boom', {target}), "
        "pa.Offer('backends', 'math:pi')]\n"
    )
    info = tmp_path / "boom-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: boom\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[pagedattn]\nboom = boom_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "boom_module", raising=False)
    registry.reload()
    assert "reference" in run("backends")
    result = CliRunner().invoke(build_app(), ["boom"])
    assert isinstance(result.exception, NotReady)
    assert text in str(result.exception)


def test_warmup_opens_and_says_how_long_it_took() -> None:
    facts = run_json("warmup", "reference", "head_dim=64", "--device", "cpu")
    assert (facts["backend"], facts["device"]) == ("reference", "cpu")
    assert facts["first_open_s"] >= 0
    assert facts["workspace_bytes"] == 0
    assert "first_open_s" in run("warmup", "reference", "--device", "cpu")


@pytest.mark.parametrize("asked", [["softcap=50"], ["--spec", "head_dim=64", "softcap=50"]])
def test_warmup_fails_with_the_reasons(asked: list[str]) -> None:
    result = CliRunner().invoke(build_app(), ["warmup", "template", *asked, "--device", "cpu"])
    assert isinstance(result.exception, Unsupported)
    assert "softcap" in str(result.exception)
