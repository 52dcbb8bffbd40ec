"""Trace files, made-up traces, and what they say about equal content."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pagedattn.benchmarks.audit.content import Contents
from pagedattn.benchmarks.audit.fixed import paging, reservation
from pagedattn.benchmarks.audit.generator import HASH_BLOCK, generate
from pagedattn.benchmarks.audit.optimum import optimal_hits
from pagedattn.benchmarks.audit.readers import read_trace
from pagedattn.benchmarks.audit.trace import Request, Trace, TraceError

SHARED = Path(__file__).parents[2] / "shared" / "traces"
CSV = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
GOOD = '{"timestamp": 1000, "input_length": 700, "output_length": 5, "hash_ids": [7, 9]}\n'


def write(tmp_path: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def record(**changes: Any) -> str:
    return json.dumps({**json.loads(GOOD), **changes}) + "\n"


# -- reading ---------------------------------------------------------------------------------------


def test_csv(tmp_path: Path) -> None:
    rows = "2023-11-16 18:15:46.5000000,374,44\r\n\n2023-11-16 18:15:47.7500000,1,0\r\n"
    trace = read_trace(write(tmp_path, "\ufeff" + CSV + rows))
    assert trace.requests == (Request(0.0, 374, 44), Request(1.25, 1, 0))
    assert (trace.name, trace.hash_block, trace.skipped) == ("trace.csv", 0, ())


def test_csv_with_other_columns_and_plain_seconds(tmp_path: Path) -> None:
    text = "id,GeneratedTokens,ContextTokens,TIMESTAMP\na,3,5,12.5\nb,4,6,10\n"
    trace = read_trace(write(tmp_path, text))
    assert trace.requests == (Request(0.0, 6, 4), Request(2.5, 5, 3))  # sorted by arrival


def test_jsonl(tmp_path: Path) -> None:
    text = GOOD + record(timestamp=3500, hash_ids=[7, 2**70])
    trace = read_trace(write(tmp_path, text, "trace.jsonl"))
    first, second = trace.requests
    assert first == Request(0.0, 700, 5, (0, 1), 700)
    assert second == Request(2.5, 700, 5, (0, 2), 700)
    assert trace.hash_block == 512


def test_jsonl_without_ids_and_with_other_blocks(tmp_path: Path) -> None:
    plain = json.dumps({"timestamp": 0, "input_length": 9, "output_length": 1})
    assert read_trace(write(tmp_path, plain)).hash_block == 0
    small = record(input_length=5, hash_ids=[1, 2, 3])
    assert read_trace(write(tmp_path, small), hash_block=2).requests[0].ids == (0, 1, 2)


def test_an_id_after_another_prefix_is_other_content(tmp_path: Path) -> None:
    chains = ([0, 0, 0], [0, 0, 1], [3, 0, 1], [0, 0, 0])
    text = "".join(record(input_length=1500, hash_ids=chain) for chain in chains)
    trace = read_trace(write(tmp_path, text, "trace.jsonl"))
    ids = [request.ids for request in trace.requests]
    assert ids == [(0, 1, 2), (0, 1, 3), (4, 5, 6), (0, 1, 2)]
    assert optimal_hits(ids, 7) == 5


def test_gzip(tmp_path: Path) -> None:
    packed = gzip.compress((CSV + "1,6,4\n").encode())
    assert read_trace(write(tmp_path, packed)).requests == (Request(0.0, 6, 4),)
    for damaged in (packed[:-9], packed[:3], packed[:12] + b"xxxx" + packed[16:]):
        with pytest.raises(ValueError, match="is a damaged gzip file"):
            read_trace(write(tmp_path, damaged))


def test_a_header_that_is_none_is_no_line_to_leave_out(tmp_path: Path) -> None:
    path = write(tmp_path, ("x," * 500) + "\n1,1,1\n")
    with pytest.raises(ValueError, match="line 1, field TIMESTAMP") as caught:
        read_trace(path, skip_bad_lines=True)
    assert not isinstance(caught.value, TraceError)
    assert len(str(caught.value)) < 200


def test_limit_counts_readable_requests(tmp_path: Path) -> None:
    path = write(tmp_path, CSV + "1,1,1\nbad,1,1\n2,2,2\n3,3,3\n")
    trace = read_trace(path, limit=2, skip_bad_lines=True)
    assert [r.prompt for r in trace.requests] == [1, 2]
    assert len(trace.skipped) == 1


@pytest.mark.parametrize(
    ("line", "field", "problem"),
    [
        ("x,1,1", "TIMESTAMP", "not 'x'"),
        ("nan,1,1", "TIMESTAMP", "not 'nan'"),
        ("1e308,1,1", "TIMESTAMP", "not '1e308'"),
        ("2023-13-16 18:15:46,1,1", "TIMESTAMP", "date and time"),
        ("1,39x,1", "ContextTokens", "not '39x'"),
        ("1,0,1", "ContextTokens", "0 is not in 1"),
        ("1,-5,1", "ContextTokens", "-5 is not in 1"),
        ("1,1.5,1", "ContextTokens", "not '1.5'"),
        ("1,,1", "ContextTokens", "not ''"),
        ("1,²,1", "ContextTokens", "not '²'"),
        ("1," + "9" * 5000 + ",1", "ContextTokens", "not '999"),
        ("1,1,-1", "GeneratedTokens", "-1 is not in 0"),
        ("1,1", "GeneratedTokens", "missing; the line has 2 of 3 cells"),
        ("1,1,1,1", "line", "4 cells under 3 columns"),
    ],
)
def test_corrupt_csv_lines(tmp_path: Path, line: str, field: str, problem: str) -> None:
    path = write(tmp_path, f"{CSV}1,1,1\n{line}\n2,2,2\n")
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert (caught.value.line, caught.value.field) == (3, field)
    assert problem in caught.value.problem
    assert str(caught.value).startswith(f"trace.csv, line 3, field {field}: ")
    trace = read_trace(path, skip_bad_lines=True)
    assert [r.prompt for r in trace.requests] == [1, 2]
    assert [(e.line, e.field) for e in trace.skipped] == [(3, field)]


@pytest.mark.parametrize(
    ("line", "field", "problem"),
    [
        ("{", "line", "not JSON"),
        ("[" * 100_000, "line", "not JSON"),
        ("3", "line", "expected an object, not 3"),
        (record(timestamp=None), "timestamp", "not nothing"),
        (record(timestamp=True), "timestamp", "not True"),
        (record(timestamp=float("nan")), "timestamp", "not nan"),
        (record(timestamp=-(10**40)), "timestamp", "a huge number"),
        (record(input_length="700"), "input_length", "not '700'"),
        (record(input_length=10**40), "input_length", "a huge number"),
        (record(output_length=-1), "output_length", "-1 is not in 0"),
        (record(hash_ids=7), "hash_ids", "expected a list, not 7"),
        (record(hash_ids=[7]), "hash_ids", "1 ids; 700 tokens have 2 blocks of 512"),
        (record(hash_ids=[7, "a"]), "hash_ids", "not 'a' at index 1"),
        (record(hash_ids=[]), "hash_ids", "missing"),
    ],
)
def test_corrupt_jsonl_lines(tmp_path: Path, line: str, field: str, problem: str) -> None:
    path = write(tmp_path, GOOD + line.rstrip("\n") + "\n" + GOOD, "trace.jsonl")
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert (caught.value.line, caught.value.field) == (2, field)
    assert problem in caught.value.problem
    assert len(read_trace(path, skip_bad_lines=True).requests) == 2


def test_bytes_that_are_no_text_are_a_corrupt_line(tmp_path: Path) -> None:
    path = write(tmp_path, CSV.encode() + b"1,1,1\n1,\xff\xfe,1\n\x00\n")
    with pytest.raises(TraceError, match="line 3, field ContextTokens"):
        read_trace(path)
    assert len(read_trace(path, skip_bad_lines=True).skipped) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        (" \n\n", "is empty"),
        ("a,b\n1,2\n", "line 1, field TIMESTAMP: no such column"),
        (CSV, "no readable request; 0 lines"),
        (CSV + "a,b,c\n", "no readable request; 1 lines"),
    ],
)
def test_files_without_a_request(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_trace(write(tmp_path, text), skip_bad_lines=True)


# -- making up -------------------------------------------------------------------------------------


def test_generated_traces_are_reproducible_conversations() -> None:
    trace = generate(400, seed=3)
    assert trace == generate(400, seed=3)
    assert trace.requests != generate(400, seed=4).requests
    assert len(trace.requests) == 400
    arrivals = [r.arrival for r in trace.requests]
    assert arrivals == sorted(arrivals)
    assert all(r.known == r.total and r.prompt > 0 < r.output for r in trace.requests)
    assert all(len(r.ids) == -(-r.total // HASH_BLOCK) for r in trace.requests)
    # Every later turn's prompt goes on from all that an earlier turn said.
    ends = {r.ids[-1]: r for r in trace.requests}
    later = [(r, ends[i]) for r in trace.requests for i in r.ids[:-1] if i in ends]
    assert len(later) > 100
    for turn, before in later:
        assert turn.ids[: len(before.ids)] == before.ids
        assert turn.prompt > before.total
        assert turn.arrival > before.arrival


def test_generator_refuses_nonsense() -> None:
    nonsense: list[dict[str, Any]] = [{"requests": 0}, {"rate": 0.0}, {"rate": float("nan")}]
    for options in nonsense:
        with pytest.raises(ValueError, match="must be positive"):
            generate(**options)


# -- content ---------------------------------------------------------------------------------------

FOUR = Trace(
    "four",
    (
        Request(0, 10, 4, (0, 1, 2), 10),  # blocks of 4: two full ones, and two tokens
        Request(0, 12, 4, (0, 1, 3), 12),
        Request(0, 12, 4, (4, 5, 6), 12),
        Request(0, 5, 3, (0, 7), 8),  # the output is known too
    ),
    hash_block=4,
)


@pytest.mark.parametrize("unit", [1, 2, 4])
def test_units_are_equal_where_the_content_is(unit: int) -> None:
    contents = Contents(FOUR, unit)
    a, b, c, d = (contents.units(i, 0, -(-r.total // unit)) for i, r in enumerate(FOUR.requests))
    assert a[: 8 // unit] == b[: 8 // unit]
    assert a[8 // unit] != b[8 // unit]
    assert not set(c[: 4 // unit]) & set(b)
    assert d[: 4 // unit] == a[: 4 // unit]
    for i, ids in enumerate((a, b, c, d)):
        known = FOUR.requests[i].known // unit
        assert len(set(ids)) == len(ids)
        assert all((x >= 0) == (j < known) for j, x in enumerate(ids))
        for start in range(len(ids)):
            assert contents.units(i, start, len(ids)) == ids[start:]


def test_units_that_do_not_nest_in_hash_blocks() -> None:
    for unit in (3, 8):
        contents = Contents(FOUR, unit)
        a, b, c = (contents.units(i, 0, 12 // unit) for i in range(3))
        assert a[: 8 // unit] == b[: 8 // unit]
        assert b[0] != c[0]
        assert len({*a, *b, *c}) == len([*a, *b, *c]) - 8 // unit


# -- arithmetic ------------------------------------------------------------------------------------


def test_fixed_waste_by_hand() -> None:
    requests = [Request(0, 2, 1), Request(0, 5, 0), Request(0, 1, 8)]  # 3, 5, 9 tokens
    (row,) = reservation(requests, [8])
    assert (row.requests, row.tokens, row.held, row.waste) == (2, 8, 16, 0.5)
    (row,) = paging(requests, [4])
    assert (row.requests, row.tokens, row.held, row.waste) == (3, 17, 24, 1 - 17 / 24)
    (row,) = reservation(requests, [2])
    assert (row.requests, row.held, row.waste) == (0, 0, 0.0)


MINE = "0,100,3\n0,4000,96\n0,4000,97\n0,1,2\n"  # totals 103, 4096, 4097, 3
FIGURES = [
    pytest.param(
        None, {2048: 97.41, 4096: 65.81, 8192: 74.69}, {16: 0.444, 128: 3.230}, id="small"
    ),
    *(
        pytest.param(path, {2048: 51.8, 4096: 73.1, 8192: 83.3}, {16: 0.54, 32: 1.12, 128: 4.38})
        for path in SHARED.glob("azure_llm_conv_2023.csv")
    ),
]


@pytest.mark.parametrize(("path", "reserve", "page"), FIGURES)
def test_published_waste(
    tmp_path: Path, path: Path | None, reserve: dict[int, float], page: dict[int, float]
) -> None:
    trace = read_trace(path or write(tmp_path, CSV + MINE))
    for row in reservation(trace.requests, reserve):
        assert 100 * row.waste == pytest.approx(reserve[row.size], abs=0.05)
    for row in paging(trace.requests, page):
        assert 100 * row.waste == pytest.approx(page[row.size], abs=0.005)
