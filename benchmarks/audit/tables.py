"""An Audit as tables of text: what the terminal and the Markdown report both show.

Times are in `timed` tables alone: everything else is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pagedattn.benchmarks.audit.results import Audit, Replay
from pagedattn.benchmarks.audit.timeline import Use

__all__ = ["Table", "about", "failures", "tables"]


@dataclass(frozen=True)
class Table:
    """Columns and rows; the first column is text, the others are numbers. note: how to read it."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    timed: bool = False


def about(audit: Audit) -> list[str]:
    """The trace and the server in a few lines."""
    requests, server = audit.trace.requests, audit.server
    n = len(requests)
    lines = [
        f"{audit.trace.name}: {n:,} requests, mean prompt "
        f"{sum(r.prompt for r in requests) / n:,.0f} and output "
        f"{sum(r.output for r in requests) / n:,.0f} tokens"
    ]
    if audit.trace.skipped:
        lines.append(
            f"{len(audit.trace.skipped)} corrupt lines left out, the first: "
            f"{audit.trace.skipped[0]}"
        )
    if not (audit.fixed or audit.replays):
        return lines
    load = "arrivals of the trace" if server.timed else "closed loop"
    if server.timed and server.speed != 1:
        load += f", {server.speed:g} times as fast"
    if not server.timed:
        load += f", {server.clients:,} clients" if server.clients else ", everyone waits at first"
    lines.append(
        f"pool of {server.num_blocks:,} blocks of {server.block_size} "
        f"({server.num_blocks * server.block_size:,} tokens), sequences up to {server.max_len:,} "
        f"tokens; {load}; a step takes {1000 * server.step_seconds:g} ms and 1 s more for every "
        f"{server.prefill_rate:,.0f} prompt tokens that it computes"
    )
    return lines


def tables(audit: Audit) -> list[Table]:
    """Every table that has rows, in the order of reading."""
    found = [*_fixed(audit), *_replays(audit), *_cache(audit)]
    return [table for table in found if table.rows]


def failures(audit: Audit) -> list[str]:
    """What each failed replay died of."""
    return [f"{row.label}: {row.failure}" for row in audit.replays if row.failure]


def _fixed(audit: Audit) -> Iterator[Table]:
    pool = audit.server.num_blocks * audit.server.block_size
    what = {"reserve": "reserve {:,}", "page": "blocks of {:,}"}
    yield Table(
        "Waste at final length",
        "What is held for a request when it ends, prefixes not shared. fit: requests that are not "
        "longer than the reservation; waste: of what is held for these; at once: how many of them "
        "the pool holds on average.",
        ("tokens", "fit", "held", "waste", "at once"),
        tuple(
            (
                what[row.kind].format(row.size),
                f"{row.requests:,}",
                f"{row.held:,}",
                f"{100 * row.waste:.2f} %",
                f"{pool * row.requests / row.held:,.1f}" if row.held else "-",
            )
            for row in audit.fixed
        ),
    )


def _replays(audit: Audit) -> Iterator[Table]:
    rows = [row for row in audit.replays if not row.failure]
    yield Table(
        "Memory",
        "Mean over simulated time, % of the pool. tokens: KV of running requests, the utilisation; "
        "internal: last blocks' tails; reserved: held for a sequence, no token yet; cached: "
        "reclaimable, may be found as a prefix; external: free, and a waiting request would fit "
        "if it were adjacent; idle: free otherwise.",
        ("allocator", *map(str, Use), "peak tokens"),
        tuple(
            (
                row.label,
                *(f"{100 * value:.2f}" for value in row.mean.uses),
                f"{row.peak_tokens:,}",
            )
            for row in rows
        ),
    )
    yield Table(
        "Requests",
        "running: at once; refused: longer than the limit / larger than the pool / no room even "
        "alone; recomputed: tokens after preemptions; time: simulated.",
        (
            "allocator",
            "running",
            "peak",
            "admitted",
            "preemptions",
            "preempted",
            "refused",
            "recomputed",
            "time",
        ),
        tuple(_requests(row) for row in rows),
    )
    yield Table(
        "Blocks",
        "prefix hits: leading blocks found, over all prompt blocks; run: mean length of runs of "
        "adjacent ascending ids in the tables of ended requests.",
        ("allocator", "prefix hits", "copied", "run"),
        tuple(
            (
                row.label,
                f"{100 * row.hit_rate:.1f} %",
                f"{row.blocks_copied:,}",
                f"{row.run_length:.2f}",
            )
            for row in rows
        ),
    )
    unit = audit.server.unit
    grain = "every token" if unit == 1 else "whole blocks: a call of append_many is one block each"
    yield Table(
        "Host time",
        f"Microseconds per call, and seconds in all; replayed by {grain}.",
        ("allocator", "open", "append_many", "commit", "close", "all calls", "replay"),
        tuple(
            (
                row.label,
                *(f"{1e6 * o.seconds / max(1, o.calls):.1f}" for o in row.operations.values()),
                f"{sum(o.seconds for o in row.operations.values()):.2f} s",
                f"{row.wall:.1f} s",
            )
            for row in rows
        ),
        timed=True,
    )


def _requests(row: Replay) -> tuple[str, ...]:
    counts = row.counts
    return (
        row.label,
        f"{row.mean.running:.1f}",
        f"{row.peak_running:,}",
        f"{counts.admitted:,}",
        f"{counts.preemptions:,}",
        f"{counts.preempted:,}",
        f"{counts.too_long:,} / {counts.too_large:,} / {counts.no_room:,}",
        f"{counts.recomputed:,}",
        f"{row.mean.duration:,.0f} s",
    )


def _cache(audit: Audit) -> Iterator[Table]:
    labels = list(dict.fromkeys(label for row in audit.cache for label in row.hits))
    yield Table(
        "Prefix cache",
        f"Leading blocks of {audit.trace.hash_block} tokens found, over all prompt blocks: one "
        "request after the other, prompts alone. In brackets: part of the clairvoyant optimum.",
        ("blocks", *labels, "optimum"),
        tuple(
            (
                f"{row.blocks:,}" + (" (all)" if row.unbounded else ""),
                *(_rate(row.hits[label], row.optimum, row.prompt_blocks) for label in labels),
                _percent(row.optimum, row.prompt_blocks),
            )
            for row in audit.cache
        ),
    )
    yield Table(
        "Prefix cache, host time",
        "Seconds for all requests.",
        ("blocks", *labels),
        tuple(
            (f"{row.blocks:,}", *(f"{row.seconds[label]:.1f}" for label in labels))
            for row in audit.cache
        ),
        timed=True,
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.2f} %"


def _rate(hits: int, optimum: int, blocks: int) -> str:
    share = f" ({hits / optimum:.2f})" if optimum else ""
    return _percent(hits, blocks) + share
