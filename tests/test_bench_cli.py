"""`pagedattn bench` and `pagedattn compare` as a user types them."""

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from bench_support import GatherBackend, make_report, variant
from typer.testing import CliRunner

from pagedattn import Offer, registry
from pagedattn.benchmarks import Report, cli, hooks
from pagedattn.benchmarks.results import BenchState
from pagedattn.hooks import OfferKind

SMALL = ["--shape", "4/2/16", "--batch", "2", "--context", "37", "--dtype", "fp32"]
QUICK = ["--samples", "7", "--max-time", "0.01", "--footprint", "64k"]


@pytest.fixture
def app() -> typer.Typer:
    """The commands, brought in as the console script does."""
    app = typer.Typer()
    for offer in hooks.pagedattn_commands():
        app.command(offer.name)(offer.load())
    return app


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two more backends: gather, which is right, and liar, which is not."""

    def lies(op: Any, right: Any, q: Any, cache: Any, plan: Any, out: Any, *rest: Any) -> None:
        out.zero_()

    own = [row for row in registry.discover(frozenset(), False) if row.name == "reference"]
    ready = registry.State.READY
    for backend in (GatherBackend(), variant("liar", lies)):
        offer = Offer(backend.name, lambda backend=backend: backend)
        own.append(registry.Row(backend.name, OfferKind.BACKEND, ready, "", "test 1.0", offer))
    monkeypatch.setattr(registry, "discover", functools.cache(lambda *_: tuple(own)))


def invoke(app: typer.Typer, *words: str | Path) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_bench_compares_and_writes_every_form(app: typer.Typer, tmp_path: Path) -> None:
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "csv", "md", "svg")}
    result = invoke(
        app,
        *("bench", "decode", "--backend", "reference", "gather", *SMALL, *QUICK),
        *("--json", files["json"], "--csv", files["csv"], "--md", files["md"]),
        *("--svg", files["svg"]),
    )
    assert result.exit_code == 0, result.output
    assert "decode b2 ctx37" in result.output
    assert "2 rows timed" in result.output
    report = Report.from_json(files["json"].read_text())
    assert [row.backend for _, row in report.rows(BenchState.TIMED)] == ["reference", "gather"]
    assert report.groups[0].baseline == "reference"
    assert report.groups[0].spec["max_query_len"] == 1
    assert files["csv"].read_text().count("\n") == 3
    assert "## decode b2 ctx37" in files["md"].read_text()
    assert "decode b2 ctx37" in files["svg"].read_text()


def test_a_wrong_backend_exits_1(app: typer.Typer) -> None:
    result = invoke(app, "bench", "--backend", "liar", "gather", *SMALL, *QUICK)
    assert result.exit_code == 1
    assert "liar: WRONG out[0, 0, 0] is 0, not " in result.output


def test_nothing_timed_exits_2(app: typer.Typer) -> None:
    result = invoke(app, "bench", "--backend", "gather", "--softcap", "5", *SMALL, *QUICK)
    assert result.exit_code == 2
    assert "gather: REFUSED softcap=5.0 is not supported" in result.output
    assert "nothing was timed" in result.output


def test_json_on_stdout_is_nothing_but_json(app: typer.Typer) -> None:
    result = invoke(app, "bench", "--backend", "gather", *SMALL, *QUICK, "--json", "-")
    assert json.loads(result.stdout)["schema"] == "pagedattn.bench/1"
    assert "1 rows timed" in result.stderr


def test_save_writes_the_measured_table(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEDATTN_MEASURED", str(tmp_path / "table.json"))
    result = invoke(app, "bench", "--backend", "gather", *SMALL, *QUICK, "--save")
    assert result.exit_code == 0, result.output
    assert "saved to" in result.output
    (found,) = json.loads((tmp_path / "table.json").read_text())["records"]
    assert (found["backend"], found["workload"]) == ("gather", "decode b2 ctx37")


def test_every_ready_backend_without_names(app: typer.Typer) -> None:
    result = invoke(app, "bench", *SMALL, *QUICK)
    assert all(name in result.output for name in ("reference", "gather", "liar"))


@pytest.mark.parametrize(
    ("words", "options", "expected"),
    [
        ([], [], (["decode"], [])),
        (["prefill", "mixed"], [], (["prefill", "mixed"], [])),
        (["decode", "b"], ["a"], (["decode"], ["a", "b"])),
        (["b", "c", "decode"], ["a"], (["decode"], ["a", "b", "c"])),
        (["decode", "decode"], ["a,b", "c"], (["decode"], ["a", "b", "c"])),
    ],
)
def test_words_are_phases_and_further_backends(
    words: list[str], options: list[str], expected: tuple[list[str], list[str]]
) -> None:
    assert cli._sort_words(words, options) == expected


def test_workloads_are_every_combination() -> None:
    found = cli._workloads(
        phases=["decode", "prefill", "mixed"],
        batches=[1, 8],
        contexts=[1024, 4096],
        query_lens=None,
        shape="llama3-8b",
        dtype="bfloat16",
        block_size=32,
        layout="hnd",
        kv_quant="per_head",
        kv_dtype="int8",
        window=100,
        softcap=None,
        placement="sequential",
    )
    assert len(found) == 12
    names = [w.name for w in found]
    assert names[0] == "decode b1 ctx1k"
    assert "prefill b8 4k of 4k" in names
    assert names[-1] == "mixed b8+1x512 ctx4k"
    spec = found[-1].spec
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (32, 8, 128)
    assert (spec.layout.name, spec.kv_quant.name, spec.kv_dtype) == ("HND", "PER_HEAD", torch.int8)
    assert (spec.window, spec.block_size, spec.scale) == ((100, None), 32, 128**-0.5)
    assert found[0].placement.name == "SEQUENTIAL"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bench", "decoed"], "'decoed' is none of decode, prefill, mixed"),
        (["bench", "--backend", "referense", *SMALL], "did you mean 'reference'"),
        (["bench", "--backend", "gather", "--baseline", "reference"], "does not take part"),
        (["bench", "--context", "many"], "'many' is not a size"),
        (["bench", "--batch", "0"], "every size must be at least 1"),
        (["bench", "--shape", "tiny"], "shape 'tiny' is neither"),
        (["bench", "--layout", "DHN"], "--layout 'DHN' is not one of nhd, hnd"),
        (["bench", "--samples", "3"], "samples=3 is below 7"),
        (["bench", "--threads", "0"], "threads=0 is below 1"),
        (["bench", "prefill", "--context", "8", "--query-len", "9"], "9 rows and 8 keys"),
        (["bench", "--device", "mps"], "no clock for device type 'mps'"),
        (["bench", "--json", "/no/such/folder/out.json"], "is no directory"),
        (["compare", "missing.json", "missing.json"], "missing.json"),
    ],
)
def test_bad_usage_exits_2_and_says_why(app: typer.Typer, words: list[str], message: str) -> None:
    result = invoke(app, *words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (0.5, 0), (2.0, 1)])
def test_compare_exit_codes(app: typer.Typer, tmp_path: Path, factor: float, code: int) -> None:
    for name, seconds in (("old", 1e-3), ("new", 1e-3 * factor)):
        (tmp_path / f"{name}.json").write_text(make_report({"a": [seconds] * 9}).to_json())
    result = invoke(app, "compare", tmp_path / "old.json", tmp_path / "new.json")
    assert result.exit_code == code, result.output
    assert "1 rows timed in both reports" in result.output


def test_compare_of_different_devices_exits_2(app: typer.Typer, tmp_path: Path) -> None:
    for name in ("old", "new"):
        report = make_report({"a": [1e-3] * 9}, device=name)
        (tmp_path / f"{name}.json").write_text(report.to_json())
    result = invoke(app, "compare", tmp_path / "old.json", tmp_path / "new.json")
    assert result.exit_code == 2
    assert "device: old -> new" in result.output


@pytest.mark.parametrize("command", ["bench", "compare"])
def test_help(app: typer.Typer, command: str) -> None:
    result = invoke(app, command, "--help")
    assert result.exit_code == 0, result.output
    assert "Exit code 1" in result.output


def test_commands_load_without_torch() -> None:
    code = "import sys, pagedattn.benchmarks.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
