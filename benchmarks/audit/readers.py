"""Trace files.

CSV    header TIMESTAMP,ContextTokens,GeneratedTokens (more columns are ignored); TIMESTAMP is
       an ISO date and time, or seconds
JSONL  {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [one per block]}
       hash_ids may be missing, in all lines alike; equal ids say equal blocks, and with all ids
       before them equal too, equal prefixes

Either may be compressed by gzip.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pagedattn.benchmarks.audit.trace import Request, Trace, TraceError

__all__ = ["read_trace"]

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MAX_TOKENS = 2**31  # of a request; more is a corrupt line
MAX_SECONDS = 1e15  # of an arrival, before and after 0; more is a corrupt line


class _BadField(ValueError):
    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        super().__init__(problem)


def read_trace(
    path: Path, *, skip_bad_lines: bool = False, hash_block: int = 512, limit: int | None = None
) -> Trace:
    """The requests of a file; the format is told by the first line.

    skip_bad_lines  leave corrupt lines out and list them in Trace.skipped
    hash_block      tokens per entry of hash_ids
    limit           only the first so many requests

    Raises TraceError for a corrupt line, OSError, and ValueError for a file that is no trace or of
    which no request is left."""
    lines = _text(path).split("\n")
    numbered = [(i, text.rstrip("\r")) for i, text in enumerate(lines, 1) if text.strip()]
    if not numbered:
        raise ValueError(f"{path} is empty; a trace has one request a line")
    as_json = numbered[0][1].lstrip().startswith("{") or path.suffix in (".jsonl", ".json")
    parse = _json_parser(hash_block) if as_json else _csv_parser(path.name, *numbered.pop(0))
    found: list[_Parsed] = []
    skipped: list[TraceError] = []
    for line, text in numbered:
        if len(found) == limit:
            break
        try:
            found.append(parse(text))
        except _BadField as bad:
            error = TraceError(path.name, line, bad.field, str(bad))
            if not skip_bad_lines:
                raise error from None
            skipped.append(error)
    if not found:
        raise ValueError(f"{path} has no readable request; {len(skipped)} lines were left out")
    first = min(arrival for arrival, *_ in found)
    dense: dict[tuple[int, int], int] = {}
    requests = [
        Request(arrival - first, prompt, output, _chain(ids, dense), prompt if ids else 0)
        for arrival, prompt, output, ids in found
    ]
    requests.sort(key=lambda request: request.arrival)
    return Trace(path.name, tuple(requests), hash_block if dense else 0, tuple(skipped))


def _text(path: Path) -> str:
    """What the file says. Undecodable bytes become a character that no field accepts: a corrupt
    line, not a crash."""
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path} is a damaged gzip file: {error}") from None
    return data.decode("utf-8-sig", errors="replace")


def _chain(ids: Iterable[int], dense: dict[tuple[int, int], int]) -> tuple[int, ...]:
    """Dense ids of a prompt's blocks. An id after other ids than before is other content, which
    keys and values depend on, and gets another dense id: each has one predecessor."""
    chain, before = [], -1
    for i in ids:
        before = dense.setdefault((before, i), len(dense))
        chain.append(before)
    return tuple(chain)


_Parsed = tuple[float, int, int, list[int]]  # arrival, prompt, output, hash ids


def _csv_parser(source: str, line: int, header: str) -> Callable[[str], _Parsed]:
    names = [name.strip() for name in header.split(",")]
    for column in COLUMNS:
        if column not in names:
            shown = header if len(header) <= 80 else f"{header[:77]}..."
            error = TraceError(source, line, column, f"no such column in the header {shown!r}")
            raise ValueError(str(error))  # which no leaving out of lines mends
    where = [names.index(column) for column in COLUMNS]

    def parse(text: str) -> _Parsed:
        try:
            cells = next(csv.reader([text]))
        except csv.Error as error:
            raise _BadField("line", str(error)) from None
        values = []
        for column, i in zip(COLUMNS, where, strict=True):
            if i >= len(cells):
                raise _BadField(column, f"missing; the line has {len(cells)} of {len(names)} cells")
            values.append(cells[i].strip())
        if len(cells) > len(names):
            raise _BadField("line", f"{len(cells)} cells under {len(names)} columns")
        return (
            _seconds(COLUMNS[0], values[0]),
            _tokens(COLUMNS[1], _whole(COLUMNS[1], values[1]), 1),
            _tokens(COLUMNS[2], _whole(COLUMNS[2], values[2]), 0),
            [],
        )

    return parse


def _json_parser(hash_block: int) -> Callable[[str], _Parsed]:
    hashed: list[bool] = []  # whether the first line has ids; all lines must agree

    def parse(text: str) -> _Parsed:
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _BadField("line", f"not JSON: {error}") from None
        if not isinstance(record, dict):
            raise _BadField("line", f"expected an object, not {_shown(record)}")
        when = record.get("timestamp")
        if isinstance(when, bool) or not isinstance(when, int | float) or not _possible(when):
            raise _BadField("timestamp", f"expected milliseconds, not {_shown(when)}")
        prompt = _tokens("input_length", record.get("input_length"), 1)
        output = _tokens("output_length", record.get("output_length"), 0)
        ids = list(_ids(record, prompt, hash_block))
        if hashed and bool(ids) != hashed[0]:
            raise _BadField("hash_ids", "missing" if hashed[0] else "earlier lines have none")
        hashed[:] = [bool(ids)]
        return when / 1000, prompt, output, ids

    return parse


def _ids(record: dict[str, Any], prompt: int, hash_block: int) -> Iterator[int]:
    ids = record.get("hash_ids", [])
    if not isinstance(ids, list):
        raise _BadField("hash_ids", f"expected a list, not {_shown(ids)}")
    blocks = -(-prompt // hash_block)
    if ids and len(ids) != blocks:
        raise _BadField(
            "hash_ids",
            f"{len(ids)} ids; {prompt} tokens have {blocks} blocks of {hash_block} (--hash-block)",
        )
    for i, value in enumerate(ids):
        if isinstance(value, bool) or not isinstance(value, int):
            raise _BadField("hash_ids", f"expected integers, not {_shown(value)} at index {i}")
        yield value


def _tokens(field: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _BadField(field, f"expected a number of tokens, not {_shown(value)}")
    if not least <= value <= MAX_TOKENS:
        raise _BadField(field, f"{_shown(value)} is not in {least} .. {MAX_TOKENS}")
    return value


def _whole(field: str, text: str) -> int:
    if not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > 20:
        raise _BadField(field, f"expected a number of tokens, not {_shown(text)}")
    return int(text)


def _seconds(field: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            expected = "a date and time, or seconds"
            raise _BadField(field, f"expected {expected}, not {_shown(text)}") from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not abs(value) <= MAX_SECONDS:
        raise _BadField(field, f"expected a date and time, or seconds, not {_shown(text)}")
    return value


def _possible(value: float) -> bool:
    return -MAX_SECONDS * 1000 <= value <= MAX_SECONDS * 1000


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    text = "a huge number" if isinstance(value, int) and abs(value) > 10**30 else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
