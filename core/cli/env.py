"""`pagedattn env`: what to paste into a bug report."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from rich.markup import escape

from pagedattn.cli.backends import JsonOption
from pagedattn.cli.output import emit_json, print_table

PACKAGES = ("pagedattn", "torch", "triton", "cupy-cuda13x", "flash-attn", "transformers", "numpy")


def env(as_json: JsonOption = False) -> None:
    """Versions, devices and settings."""
    facts = collect()
    if as_json:
        emit_json(facts)
        return
    print_table(["what", "value"], [[key, escape(str(value))] for key, value in facts.items()])


def collect() -> dict[str, object]:
    """Facts about this machine and installation."""
    import torch

    facts: dict[str, object] = {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
    }
    for package in PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = None
    facts["devices"] = [
        torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())
    ] or ["cpu"]
    facts |= {name: os.environ[name] for name in sorted(os.environ) if "PAGEDATTN" in name}
    return facts


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
