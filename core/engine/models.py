"""From what a user calls a model to a ModelRunner, through the plugins that offer runners."""

from __future__ import annotations

from typing import Any

import torch

from pagedattn.engine.runner import ModelRunner
from pagedattn.errors import NotReady, PluginError, UnknownName
from pagedattn.hooks import OfferKind
from pagedattn.registry import State, load, rows

__all__ = ["resolve_model"]

INSTALL = "install a runner, e.g. plugins/transformers of the pagedattn repository"


def resolve_model(
    model: Any, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> ModelRunner:
    """`model` as a ModelRunner: it is one, or a runner plugin knows it.

    model          a ModelRunner, a name ("smollm2"), a directory, or an object of a library that a
                   runner knows
    dtype, device  for a model that is loaded; must be None for a ModelRunner

    Runners are asked in order of priority; one that does not know the model says so by UnknownName.
    Raises UnknownName when none does, NotReady when no runner can be used."""
    if isinstance(model, ModelRunner):
        if dtype is not None or device is not None:
            raise ValueError("dtype and device belong to the ModelRunner; give them when making it")
        return model
    listed = [row for row in rows(OfferKind.MODEL_RUNNER) if row.kind is OfferKind.MODEL_RUNNER]
    ready = [row for row in listed if row.state is State.READY]
    if not ready:
        reasons = "; ".join(f"{row.name} is {row.state}: {row.detail}" for row in listed)
        raise NotReady("model runner", str(OfferKind.MODEL_RUNNER), "missing", reasons or INSTALL)
    refused: list[UnknownName] = []
    for row in ready:
        runner = load(OfferKind.MODEL_RUNNER, row.name)
        try:
            made = runner(model, dtype=dtype, device=device)
        except UnknownName as error:
            refused.append(error)
            continue
        if not isinstance(made, ModelRunner):
            raise PluginError(f"model runner {row.name!r} of {row.source} returned {made!r}")
        return made
    if len(refused) == 1:
        raise refused[0]
    known = [name for error in refused for name in error.known]
    name = model if isinstance(model, str) else type(model).__name__
    raise UnknownName("model", name, known)
