"""What a Triton backend compiles when it opens an op, noted instead of compiled.

A backend's own open() is called on the CPU with a made-up GPU of the chip, and JITFunction.run
notes what kernel.warmup() hands to it: the variants that the production launcher compiles, and no
list of ours.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagedattn import registry
from pagedattn.attention import AttentionBackend
from pagedattn.capabilities import check
from pagedattn.conformance.compile.specs import ModelSpec
from pagedattn.conformance.compile.usage import CHIPS, Chip
from pagedattn.device import DeviceInfo
from pagedattn.emulation import Emulation

__all__ = ["Job", "Recorder", "on_chip", "record"]

_SMS = {"sm_80": 108, "sm_90": 132, "sm_100": 148, "gfx942": 304}


@dataclass(frozen=True)
class Job:
    """One kernel variant for one chip.

    key     what makes it one: the kernel, its types, constants and options
    models  names of the models whose op launches it
    """

    chip: Chip
    kernel: Any
    args: tuple[Any, ...]
    keywords: dict[str, Any]
    key: str
    models: list[str]

    @property
    def digest(self) -> str:
        """Of the key, the sources of the kernel and of what it calls, the chip, Triton, and the
        rules that it is judged by."""
        import triton

        parts = (self.key, self.kernel.cache_key, self.chip, triton.__version__, _rules())
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]

    @property
    def aligned(self) -> bool:
        """Whether the variant counts on rows that start on 16 bytes."""
        ones = [v for k, v in self.keywords.items() if k.endswith("ALIGN") and v == 1]
        return not ones and "unaligned" not in self.kernel.fn.__name__


@functools.cache
def _rules() -> str:
    folder, names = Path(__file__).parent, ("amdgcn.py", "judging.py", "sass.py", "usage.py")
    return hashlib.sha256(b"".join((folder / n).read_bytes() for n in names)).hexdigest()


class Recorder:
    """Stands for JITFunction.run while a backend opens its op: notes what it would compile."""

    def __init__(self, chip: Chip) -> None:
        self.chip, self.model = chip, ""
        self.jobs: dict[str, Job] = {}

    def __call__(self, kernel: Any, *args: Any, grid: Any, warmup: bool, **keywords: Any) -> None:
        if not warmup:
            raise RuntimeError(f"{kernel.fn.__name__} is launched, not compiled, by open()")
        shown = [getattr(a, "dtype", a) for a in args]
        key = f"{kernel.fn.__name__} {shown} {sorted(keywords.items())}"
        job = self.jobs.setdefault(key, Job(self.chip, kernel, args, keywords, key, []))
        if self.model not in job.models:
            job.models.append(self.model)


class _Driver:
    """What Triton asks of a driver to compile: the target. Each chip is a device of its own, so
    that nothing is remembered from one to the other."""

    def __init__(self, chip: Chip) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget(chip.backend, chip.arch, chip.warp)
        self.device = sorted(CHIPS).index(chip.name)

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int) -> int:
        return 0


def on_chip(chip: Chip) -> None:
    """Triton compiles for `chip` from here on."""
    from triton.runtime import driver

    driver.set_active(_Driver(chip))


def _device(chip: Chip) -> DeviceInfo:
    sm = divmod(chip.arch, 10) if isinstance(chip.arch, int) else None
    return DeviceInfo(
        "cuda", sm=sm, name=chip.name, num_sms=_SMS[chip.name], shared_mem=chip.shared, real=True
    )


def _new_backend(target: str) -> AttentionBackend:
    """A backend of its own: the registry's instance is not told of a made-up GPU."""
    module, _, name = target.partition(":")
    if not name or target in {row.name for row in registry.backends()}:
        return type(registry.backend(target))()
    made: AttentionBackend = getattr(importlib.import_module(module), name)()
    return made


def record(
    target: str, chip: Chip, models: Sequence[ModelSpec]
) -> tuple[list[Job], dict[str, str]]:
    """(what the backend would compile for the models on a chip, refused models with reasons)."""
    from triton.runtime.jit import JITFunction

    backend = _new_backend(target)
    backend.emulated = Emulation(device=_device(chip))
    recorder, refused = Recorder(chip), {}
    original, JITFunction.run = JITFunction.run, lambda self, *a, **k: recorder(self, *a, **k)
    try:
        for model in models:
            if refusals := check(backend, model.spec, backend.emulated.device):
                refused[model.name] = "; ".join(f"{r.code}={r.requested}" for r in refusals)
                continue
            recorder.model = model.name
            backend.open(model.spec, model.limits, device="cpu")
    finally:
        JITFunction.run = original
    return list(recorder.jobs.values()), refused
