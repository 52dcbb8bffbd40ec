"""What is installed, and whether its functions are the ones that this adapter knows.

absent() looks and imports nothing. functions() imports, and turns whatever goes wrong into Absent
with a sentence: a package that is missing, half installed, of an unknown version, built for another
CUDA, changed in its parameters, or that crashes on import.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib import metadata
from typing import Any

from pagedattn.backends.flash_attn.limits import Variant

__all__ = ["Absent", "absent", "forget", "functions", "installed_version", "version_key"]

TRITON_SWITCH = "FLASH_ATTENTION_TRITON_AMD_ENABLE"
"""flash-attn's switch to its Triton path, which needs no compiled extension."""


class Absent(Exception):
    """The variant cannot be used here; the message is a sentence that says what to do."""


def installed_version(variant: Variant) -> str | None:
    """Version of the first distribution found, None when there is none."""
    return next(filter(None, map(_version_or_none, variant.distributions)), None)


def absent(variant: Variant) -> str | None:
    """Why the variant cannot be here, as a sentence, or None. Imports nothing of it."""
    found = installed_version(variant)
    if found is None:
        return f"{' or '.join(variant.distributions)} is not installed; {variant.install}"
    seen, (first, end) = _seen(variant), variant.known
    if not version_key(first) <= version_key(found) < version_key(end):
        return (
            f"{seen} is installed, this adapter knows {first} up to, not including, {end}; "
            "install one of those"
        )
    if "+cpu" in found:
        return f"{seen} is a build for CPUs; {variant.install}"
    if variant.extension and os.environ.get(TRITON_SWITCH) != "TRUE" and not _there(variant):
        return (
            f"{seen} is installed without its compiled extension {variant.extension}; "
            f"{variant.install}"
        )
    return None


def _there(variant: Variant) -> bool:
    """Whether the extension can be found; a stand-in in sys.modules counts."""
    if variant.extension in sys.modules:
        return True
    try:
        return importlib.util.find_spec(variant.extension) is not None
    except (ImportError, ValueError):
        return False


def functions(variant: Variant) -> dict[str, Callable[..., Any]]:
    """The variant's functions by name, imported and inspected once.

    Raises Absent with a sentence."""
    found = _outcome(variant)
    if isinstance(found, str):
        raise Absent(found)
    return found


def forget() -> None:
    """Look again: something was installed or removed."""
    _outcome.cache_clear()


@cache
def _outcome(variant: Variant) -> dict[str, Callable[..., Any]] | str:
    """The functions, or why there are none: a package that crashes is imported once only."""
    try:
        return _inspected(variant)
    except Absent as error:
        return str(error)


def _inspected(variant: Variant) -> dict[str, Callable[..., Any]]:
    if reason := absent(variant):
        raise Absent(reason)
    module = _import(variant)
    found = {}
    for name, passed in variant.functions.items():
        function = getattr(module, name, None)
        if function is None:
            raise Absent(f"{_seen(variant)} has no function {name}; {_knows(variant)}")
        missing = [p for p in passed if p not in _parameters(function)]
        if missing:
            raise Absent(
                f"{name}() of {_seen(variant)} takes no {', '.join(missing)}; {_knows(variant)}"
            )
        found[name] = function
    return found


def _import(variant: Variant) -> Any:
    missing: BaseException | None = None
    for name in variant.modules:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = missing or error
        except (Exception, SystemExit) as error:  # the plugin border: any package may be broken
            raise Absent(_crashed(variant, name, error)) from error
    assert missing is not None
    raise Absent(f"{_seen(variant)} cannot be imported: {missing}; {variant.install}") from missing


def _crashed(variant: Variant, module: str, error: BaseException) -> str:
    text = f"importing {module} of {_seen(variant)} fails with {type(error).__name__}: {error}"
    if isinstance(error, ImportError):  # undefined symbol, libcudart.so.11: no such file
        return f"{text}; {_built_for()}, install a build for these versions"
    return f"{text}; reinstall it"


def _built_for() -> str:
    import torch

    return f"this is torch {torch.__version__} with CUDA {torch.version.cuda or 'none'}"


def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    """Names that may be passed; empty when they cannot be read."""
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return frozenset()


def _seen(variant: Variant) -> str:
    """Name and version of the distribution that counts."""
    name = next(n for n in variant.distributions if _version_or_none(n))
    return f"{name} {_version_or_none(name)}"


def _version_or_none(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _knows(variant: Variant) -> str:
    return (
        f"this adapter knows versions {variant.known[0]} up to, not including, {variant.known[1]}"
    )


def version_key(text: str) -> tuple[tuple[int, ...], int, int]:
    """Order of versions: release numbers, then pre-releases before and post-releases after it.

    Enough of PEP 440 for the distributions in limits.py; a local part (+cu128) is left out."""
    public = text.partition("+")[0]
    match = re.match(r"(\d+(?:\.\d+)*)(?:\.?(a|b|rc|dev|post)(\d*))?", public)
    if match is None:
        return ((), 0, 0)
    release = [int(part) for part in match[1].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    rank = {"dev": -4, "a": -3, "b": -2, "rc": -1, None: 0, "post": 1}[match[2]]
    return tuple(release), rank, int(match[3] or 0)
