"""Kernels with planted faults: how they are launched, and what they should have computed."""

import torch

from pagedattn.conformance.emulation.cuda import Function

WANTED = 63 - torch.arange(64.0)


def line_of(source: str, text: str) -> int:
    """The line of the one place in `source` that holds `text`."""
    (line,) = [i for i, row in enumerate(source.splitlines(), 1) if text in row]
    return line


def launch(kernel: Function, *more: object, order: int = 0) -> torch.Tensor:
    """What 64 threads leave in the 64 floats that are the first argument."""
    out = torch.full((64,), -1.0)
    kernel((1,), (64,), (out, *more), 256, order=order)
    return out


def wrong_orders(kernel: Function, *more: object) -> list[int]:
    """The thread orders in which it does not compute WANTED."""
    return [i for i in range(4) if not torch.equal(launch(kernel, *more, order=i), WANTED)]
