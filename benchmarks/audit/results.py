"""What an audit found, and its JSON (docs/audit/README.md describes every field)."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from pagedattn.benchmarks.audit.clocked import Operation
from pagedattn.benchmarks.audit.counts import Counts
from pagedattn.benchmarks.audit.fixed import Fixed
from pagedattn.benchmarks.audit.prefix import CacheRow
from pagedattn.benchmarks.audit.server import Server
from pagedattn.benchmarks.audit.timeline import Point, Use
from pagedattn.benchmarks.audit.trace import Trace

__all__ = ["SCHEMA", "Audit", "Replay"]

SCHEMA = "pagedattn.audit/1"


@dataclass(frozen=True)
class Replay:
    """One contender's replay. `failure` says why there is none: the rest is empty then.

    mean        over the whole replay; mean.duration is the simulated time in seconds
    points      the same over pieces of it
    operations  host calls by name         wall   seconds that the replay took, simulator included
    """

    label: str
    counts: Counts
    mean: Point
    points: tuple[Point, ...]
    peak_running: int
    peak_tokens: int
    blocks_copied: int
    operations: dict[str, Operation]
    wall: float
    failure: str = ""

    @property
    def hit_rate(self) -> float:
        """Leading blocks found over prompt blocks, of admitted requests."""
        return self.counts.hit_blocks / max(1, self.counts.prompt_blocks)

    @property
    def run_length(self) -> float:
        """Mean run of adjacent ascending ids in the tables of ended requests; 0 without any."""
        return self.counts.table_blocks / max(1, self.counts.table_runs)


@dataclass(frozen=True)
class Audit:
    """Everything that was asked for; empty parts were not."""

    trace: Trace
    server: Server
    fixed: tuple[Fixed, ...]
    replays: tuple[Replay, ...]
    cache: tuple[CacheRow, ...]

    def to_json(self) -> str:
        """One JSON document."""
        trace = self.trace
        document = {
            "schema": SCHEMA,
            "trace": {
                "name": trace.name,
                "requests": len(trace.requests),
                "prompt_tokens": sum(r.prompt for r in trace.requests),
                "output_tokens": sum(r.output for r in trace.requests),
                "hash_block": trace.hash_block,
                "skipped": [
                    {"line": e.line, "field": e.field, "problem": e.problem} for e in trace.skipped
                ],
            },
            "server": dataclasses.asdict(self.server),
            "fixed": [{**dataclasses.asdict(row), "waste": row.waste} for row in self.fixed],
            "replay": [_replay(row) for row in self.replays],
            "prefix": [_cache(row) for row in self.cache],
        }
        return json.dumps(document, indent=1) + "\n"


def _replay(row: Replay) -> dict[str, Any]:
    if row.failure:
        return {"label": row.label, "failure": row.failure}
    return {
        "label": row.label,
        "simulated_seconds": row.mean.duration,
        "mean": _point(row.mean),
        "peak_running": row.peak_running,
        "peak_tokens": row.peak_tokens,
        "requests": {**dataclasses.asdict(row.counts), "refused": row.counts.refused},
        "hit_rate": row.hit_rate,
        "run_length": row.run_length,
        "blocks_copied": row.blocks_copied,
        "operations": {
            name: {"calls": o.calls, "seconds": o.seconds} for name, o in row.operations.items()
        },
        "wall_seconds": row.wall,
        "over_time": [_point(point) for point in row.points],
    }


def _point(point: Point) -> dict[str, float]:
    uses = {str(use): value for use, value in zip(Use, point.uses, strict=True)}
    return {"time": point.time, **uses, "running": point.running, "waiting": point.waiting}


def _cache(row: CacheRow) -> dict[str, Any]:
    rates = {label: hits / row.prompt_blocks for label, hits in row.hits.items()}
    return {**dataclasses.asdict(row), "hit_rates": rates}
