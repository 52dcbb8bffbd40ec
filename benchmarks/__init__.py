"""Benchmarks: how attention backends are compared.

    pagedattn bench decode --backend reference triton --batch 1,8 --context 1k,4k --json new.json
    pagedattn compare old.json new.json
    pytest --pyargs pagedattn.benchmarks --backend triton      the same workloads, pytest-benchmark

No time is reported for a wrong answer; samples are interleaved; a row is FASTER or SLOWER only by
its interval; decode is set against the read bandwidth of this machine, prefill against its matrix
peak, both measured in the same run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagedattn.benchmarks.results import Report as Report
    from pagedattn.benchmarks.runner import bench as bench
    from pagedattn.benchmarks.timing import Settings as Settings
    from pagedattn.benchmarks.workload import Workload as Workload

_HOME = {"Report": "results", "Settings": "timing", "Workload": "workload", "bench": "runner"}

__all__ = ["Report", "Settings", "Workload", "bench"]


def __getattr__(name: str) -> Any:
    """Lazy, so that the command-line hooks of this package import no torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
