"""Whether the Triton that is installed is new enough, without importing it."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

__all__ = ["LEAST", "too_old"]

LEAST = (3, 6)
"""The oldest release that the kernels were compiled and interpreted with."""

_NAMES = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm")


def too_old() -> str | None:
    """A sentence, or None; None also where no distribution tells its version."""
    for name in _NAMES:
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        numbers = re.match(r"(\d+)\.(\d+)", found)
        if numbers is None or (int(numbers[1]), int(numbers[2])) >= LEAST:
            return None
        least = ".".join(map(str, LEAST))
        return (
            f"{name} {found} is installed, the kernels need {least}; install a torch that comes "
            f"with it (2.11 does), or pip install --no-deps 'triton>={least}'"
        )
    return None
