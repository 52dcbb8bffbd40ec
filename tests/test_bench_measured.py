"""The measured table: what bench --save writes and select(by="measured") reads."""

import json
from pathlib import Path
from typing import Any

import pytest
from bench_support import FAST, GatherBackend, TickClock, make_spec

import pagedattn as pa
from pagedattn.benchmarks import bench, runner
from pagedattn.benchmarks.workload import decode
from pagedattn.measured import Record, device_name, fastest, load, save, spec_fields, table_path
from pagedattn.user_cache import cache_path

SPEC = make_spec()


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The table lies in a folder that does not exist yet."""
    place = tmp_path / "deep" / "measured.json"
    monkeypatch.setenv("PAGEDATTN_MEASURED", str(place))
    return place


def record(backend: str, seconds: float, **fields: Any) -> Record:
    known: dict[str, Any] = {
        "device": device_name("cpu"),
        "spec": spec_fields(SPEC),
        "workload": "decode b1",
        "phase": "decode",
        "backend": backend,
        "seconds": seconds,
    }
    return Record(**{**known, **fields})


def test_round_trip(path: Path) -> None:
    records = [record("a", 1.0), record("b", 2.0)]
    assert save(records) == path
    assert load() == records
    assert [p.name for p in path.parent.iterdir()] == ["measured.json"]


def test_merging_replaces_what_was_measured_again() -> None:
    save([record("a", 1.0), record("b", 2.0)])
    save([record("a", 3.0), record("a", 4.0, workload="decode b8")])
    assert {(r.backend, r.workload): r.seconds for r in load()} == {
        ("a", "decode b1"): 3.0,
        ("b", "decode b1"): 2.0,
        ("a", "decode b8"): 4.0,
    }


def test_fastest_of_the_names_given() -> None:
    save([record("a", 2.0), record("b", 1.0)])
    assert fastest(SPEC, "cpu", ["a", "b"]) == "b"
    assert fastest(SPEC, "cpu", ["a", "c"]) == "a"


def test_several_workloads_count_by_their_geometric_mean() -> None:
    save([record("a", 1.0), record("b", 1.5)])
    save([record("a", 20.0, workload="decode b8"), record("b", 10.0, workload="decode b8")])
    assert fastest(SPEC, "cpu", ["a", "b"]) == "b"  # sqrt(20) > sqrt(15)


def test_only_common_workloads_are_compared() -> None:
    save([record("a", 2.0), record("b", 1.0), record("a", 1e-9, workload="tiny")])
    assert fastest(SPEC, "cpu", ["a", "b"]) == "b"


def test_never_measured_together() -> None:
    save([record("a", 1.0), record("b", 1.0, workload="other")])
    with pytest.raises(LookupError, match="a, b were never measured in the same workload"):
        fastest(SPEC, "cpu", ["a", "b"])


def test_scale_and_max_query_len_are_no_part_of_the_key() -> None:
    save([record("a", 1.0)])
    assert fastest(make_spec(scale=0.5), "cpu", ["a"]) == "a"
    assert fastest(make_spec(max_query_len=1), "cpu", ["a"]) == "a"


def test_decode_only_looks_at_decode() -> None:
    save([record("a", 2.0), record("b", 3.0)])
    save(
        [
            record("a", 9.0, workload="p", phase="prefill"),
            record("b", 1.0, workload="p", phase="prefill"),
        ]
    )
    assert fastest(make_spec(max_query_len=1), "cpu", ["a", "b"]) == "a"
    assert fastest(SPEC, "cpu", ["a", "b"]) == "b"


@pytest.mark.parametrize(
    "fields",
    [
        {"device": "another machine"},
        {"spec": spec_fields(make_spec(block_size=8))},
        {"spec": spec_fields(make_spec(softcap=2.0))},
        {"backend": "nobody"},
    ],
    ids=str,
)
def test_nothing_measured_names_the_command(fields: dict[str, Any]) -> None:
    save([record(**{"backend": "a", "seconds": 1.0, **fields})])
    with pytest.raises(LookupError) as caught:
        fastest(SPEC, "cpu", ["a", "c"])
    assert (
        "pagedattn bench decode --backend a c --shape 4/2/16 --dtype float32 --block-size 4 --save"
    ) in str(caught.value)


def test_no_table_at_all() -> None:
    assert load() == []
    with pytest.raises(LookupError, match="none of a was measured"):
        fastest(SPEC, "cpu", ["a"])


def test_a_made_up_device_was_never_measured() -> None:
    save([record("a", 1.0)])
    with pytest.raises(LookupError, match="on sm90"):
        fastest(SPEC, "sm90", ["a"])


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "something else"}'])
def test_a_foreign_file_is_not_overwritten(text: str, path: Path) -> None:
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ValueError, match="remove it and measure again"):
        save([record("a", 1.0)])
    assert path.read_text() == text


def test_default_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAGEDATTN_MEASURED")
    assert table_path() == cache_path("measured.json", variable="NOT_SET")


def test_spec_fields_are_plain_json() -> None:
    fields = spec_fields(make_spec(window=(3, None), layout=pa.Layout.HND))
    assert json.loads(json.dumps(fields)) == fields
    assert (fields["dtype"], fields["layout"], fields["window"]) == ("float32", "HND", [3, None])


def test_a_saved_run_is_what_select_uses() -> None:
    report = bench(
        [decode(SPEC, batch=1, context=9)],
        ["reference", GatherBackend()],
        settings=FAST,
        pool_bytes=1,
        probe_bytes=2**16,
        clock=TickClock(idle=True),
    )
    save(runner.records(report))
    assert [(r.backend, r.seconds) for r in load()] == [("reference", 1e-3), ("gather", 1e-3)]
    assert pa.select(SPEC, by="measured").name == "reference"
