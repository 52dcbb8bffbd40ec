"""What a benchmark run found, and its JSON form.

A Report holds one Group per workload; a Group holds the probes and the rows that were sampled
together. Rows keep raw samples; every rate, ratio and verdict is computed from them.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from dataclasses import dataclass, field
from typing import Any

from pagedattn.benchmarks.stats import Estimate, Verdict, estimate, judge, paired_ratio

__all__ = ["SCHEMA", "BenchRow", "BenchState", "Group", "Probe", "Report"]

SCHEMA = "pagedattn.bench/1"


class BenchState(enum.StrEnum):
    """TIMED: right, and timed. WRONG: computes something else, so it has no time. REFUSED: the
    backend declines the spec or cannot run here. FAILED: it raised an error."""

    TIMED = "timed"
    WRONG = "wrong"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True)
class Probe:
    """A limit of the machine: `amount` bytes or FLOPs took seconds[i] in round i."""

    method: str
    amount: int
    seconds: tuple[float, ...]

    @property
    def rate(self) -> Estimate:
        """Bytes or FLOPs per second."""
        return estimate(self.seconds).inverse().scaled(self.amount)


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One backend in one workload.

    detail           why it is not TIMED: the reasons, the first wrong element, or the error
    error, budget    largest error of the sampled outputs and what was allowed
    run, plan, write seconds of each sample; `run` is aligned with the group's other rows and
                     probes; all empty unless TIMED
    facts            what the backend says about itself (AttentionBackend.describe)
    """

    backend: str
    state: BenchState
    detail: str = ""
    error: float | None = None
    budget: float | None = None
    run: tuple[float, ...] = ()
    plan: tuple[float, ...] = ()
    write: tuple[float, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Group:
    """One workload's rows.

    spec       plain values of the AttentionSpec
    kv_bytes   cache bytes that must be read      flops   of the visible pairs
    cold       whether keys and values came from memory rather than from a processor cache
    read       linear-read probe; matmul: torch.mm in the dtype (None for decode)
    """

    workload: str
    phase: str
    spec: dict[str, Any]
    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    placement: str
    kv_bytes: int
    flops: int
    replicas: int
    cold: bool
    baseline: str
    read: Probe | None
    matmul: Probe | None
    rows: tuple[BenchRow, ...]

    def speedup(self, row: BenchRow) -> Estimate | None:
        """Baseline's time over the row's, sample by sample; None unless both were timed."""
        base = next((other for other in self.rows if other.backend == self.baseline), None)
        if base is None or not (row.state is base.state is BenchState.TIMED):
            return None
        return paired_ratio(base.run, row.run)

    def verdict(self, row: BenchRow) -> Verdict | None:
        """Against the baseline; None for the baseline itself and without a speed-up."""
        speedup = self.speedup(row)
        return None if speedup is None or row.backend == self.baseline else judge(speedup)

    def read_rate(self, row: BenchRow) -> Estimate:
        """Cache bytes per second of a timed row."""
        return estimate(row.run).inverse().scaled(self.kv_bytes)

    def flop_rate(self, row: BenchRow) -> Estimate:
        """FLOP per second of a timed row."""
        return estimate(row.run).inverse().scaled(self.flops)

    def read_fraction(self, row: BenchRow) -> Estimate | None:
        """read_rate over the machine's, sample by sample."""
        return _fraction(self.read, row, self.kv_bytes)

    def peak_fraction(self, row: BenchRow) -> Estimate | None:
        """flop_rate over the machine's matrix peak, sample by sample."""
        return _fraction(self.matmul, row, self.flops)

    def limit_fraction(self, row: BenchRow) -> Estimate | None:
        """Of the limit that matters: reading for decode, arithmetic for prefill and mixed."""
        return self.read_fraction(row) if self.phase == "decode" else self.peak_fraction(row)


@dataclass(frozen=True, kw_only=True)
class Report:
    """A whole run. created: ISO 8601, UTC."""

    created: str
    environment: dict[str, Any]
    settings: dict[str, Any]
    groups: tuple[Group, ...]

    def rows(self, *states: BenchState) -> list[tuple[Group, BenchRow]]:
        """Rows in one of `states`, all of them when none is given."""
        return [(g, r) for g in self.groups for r in g.rows if not states or r.state in states]

    def to_json(self) -> str:
        """Raw samples, and for readers without this package a `summary` in each row."""
        data = {"schema": SCHEMA, **dataclasses.asdict(self)}
        for group, plain in zip(self.groups, data["groups"], strict=True):
            for row, target in zip(group.rows, plain["rows"], strict=True):
                target["summary"] = _summary(group, row)
        return json.dumps(data, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, *, source: str = "the report") -> Report:
        """Raises ValueError, naming `source`, for anything but a report of this schema."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{source} is not JSON: {error}") from error
        found = data.get("schema") if isinstance(data, dict) else None
        if found != SCHEMA:
            raise ValueError(
                f"{source} has schema {found!r}, this version reads {SCHEMA!r}; "
                "write it again with `pagedattn bench --json`"
            )
        try:
            return cls(
                created=data["created"],
                environment=data["environment"],
                settings=data["settings"],
                groups=tuple(_group(group) for group in data["groups"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{source} is not a whole report: {error!r}") from error


def _fraction(probe: Probe | None, row: BenchRow, amount: int) -> Estimate | None:
    if probe is None or not row.run:
        return None
    return paired_ratio(probe.seconds, row.run).scaled(amount / probe.amount)


def _summary(group: Group, row: BenchRow) -> dict[str, Any]:
    if row.state is not BenchState.TIMED:
        return {}
    figures = {
        "run_seconds": estimate(row.run),
        "plan_seconds": estimate(row.plan),
        "write_seconds": estimate(row.write),
        "read_bytes_per_second": group.read_rate(row),
        "read_fraction": group.read_fraction(row),
        "flop_per_second": group.flop_rate(row),
        "peak_fraction": group.peak_fraction(row),
        "speedup": group.speedup(row),
    }
    summary: dict[str, Any] = {
        name: None if figure is None else dataclasses.asdict(figure)
        for name, figure in figures.items()
    }
    return {**summary, "verdict": group.verdict(row)}


def _group(data: dict[str, Any]) -> Group:
    return Group(
        **{
            **data,
            "query_lens": tuple(data["query_lens"]),
            "seq_lens": tuple(data["seq_lens"]),
            "read": _probe(data["read"]),
            "matmul": _probe(data["matmul"]),
            "rows": tuple(_row(row) for row in data["rows"]),
        }
    )


def _probe(data: dict[str, Any] | None) -> Probe | None:
    if data is None:
        return None
    return Probe(data["method"], data["amount"], tuple(data["seconds"]))


def _row(data: dict[str, Any]) -> BenchRow:
    fields = {name: value for name, value in data.items() if name != "summary"}
    samples = {name: tuple(data[name]) for name in ("run", "plan", "write")}
    return BenchRow(**{**fields, **samples, "state": BenchState(data["state"])})
