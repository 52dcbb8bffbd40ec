"""A picture of an Audit: utilisation over time, and what the memory holds on average.

matplotlib is imported here only, and nothing else needs it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from pagedattn.benchmarks.audit.results import Audit
from pagedattn.benchmarks.audit.timeline import Use

__all__ = ["require_plotting", "save_plot"]

FORMATS = (".svg", ".png", ".pdf")
_COLOUR = {
    Use.TOKENS: "#2a7f62",
    Use.INTERNAL: "#e0a030",
    Use.RESERVED: "#c8553d",
    Use.CACHED: "#7fb5d6",
    Use.EXTERNAL: "#7b4b94",
    Use.IDLE: "#dddddd",
}


def require_plotting(path: Path) -> None:
    """Raises RuntimeError saying what to install, ValueError for a suffix that cannot be written.
    Called before the work, not after."""
    if path.suffix not in FORMATS:
        raise ValueError(f"cannot plot to {path}: the suffix must be one of {', '.join(FORMATS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise RuntimeError(
            "a plot needs matplotlib, which is not installed; "
            "pip install matplotlib, or write --json instead"
        )


def save_plot(audit: Audit, path: Path) -> None:
    """Equal audits give equal files. Raises ValueError when nothing was replayed."""
    require_plotting(path)
    import matplotlib

    matplotlib.use(path.suffix[1:] if path.suffix != ".png" else "agg")
    from matplotlib.figure import Figure

    rows = [row for row in audit.replays if row.points]
    if not rows:
        raise ValueError("nothing was replayed, so there is nothing to plot")
    figure = Figure(figsize=(10, 4.4 + 0.45 * len(rows)), layout="constrained")
    over_time, mean = figure.subplots(2, 1, height_ratios=[3, 0.5 + 0.5 * len(rows)])
    for row in rows:
        times = [point.time - point.duration / 2 for point in row.points]
        over_time.plot(times, [100 * p.uses[0] for p in row.points], label=row.label, linewidth=1.2)
    over_time.set_xlabel("simulated seconds")
    over_time.set_ylabel("% of the pool that holds tokens")
    over_time.set_ylim(0, 100)
    over_time.set_xlim(left=0)
    over_time.legend(loc="upper right", fontsize="small")
    left = [0.0] * len(rows)
    labels = [row.label for row in rows]
    for i, use in enumerate(Use):
        widths = [100 * row.mean.uses[i] for row in rows]
        mean.barh(labels, widths, left=left, label=str(use), color=_COLOUR[use])
        left = [x + width for x, width in zip(left, widths, strict=True)]
    mean.invert_yaxis()
    mean.set_xlim(0, 100)
    mean.set_xlabel("% of the pool, mean over time")
    mean.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=len(Use), fontsize="small")
    figure.suptitle(audit.trace.name)
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    with matplotlib.rc_context({"svg.hashsalt": "pagedattn"}):
        figure.savefig(path, metadata=metadata)
