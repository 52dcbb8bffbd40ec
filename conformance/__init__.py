"""The conformance suite: what a backend or an allocator must do, as cases that anyone can run.

    pagedattn check NAME                                        the command
    pytest --pyargs pagedattn.conformance --backend NAME        one pytest test per case

    class TestMine(pagedattn.conformance.BackendConformance):   in your own test files
        backend = "mine"                                        # or an AttentionBackend

The names are lazy: the pytest plugin is loaded in every pytest run and must not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagedattn.conformance.allocator import ALLOCATOR_CASES as ALLOCATOR_CASES
    from pagedattn.conformance.attention import (
        ATTENTION_CASES as ATTENTION_CASES,
        AttentionSubject as AttentionSubject,
    )
    from pagedattn.conformance.case import (
        Case as Case,
        CaseFailure as CaseFailure,
        Declined as Declined,
        Kind as Kind,
        NotRun as NotRun,
        Outcome as Outcome,
        Result as Result,
    )
    from pagedattn.conformance.classes import (
        AllocatorConformance as AllocatorConformance,
        BackendConformance as BackendConformance,
    )
    from pagedattn.conformance.runner import (
        Verdict as Verdict,
        run_cases as run_cases,
        verdict as verdict,
    )
    from pagedattn.conformance.subjects import (
        Subject as Subject,
        cases_of as cases_of,
        resolve as resolve,
    )

_HOME = {
    "allocator": ["ALLOCATOR_CASES"],
    "attention": ["ATTENTION_CASES", "AttentionSubject"],
    "case": ["Case", "CaseFailure", "Declined", "Kind", "NotRun", "Outcome", "Result"],
    "classes": ["AllocatorConformance", "BackendConformance"],
    "runner": ["Verdict", "run_cases", "verdict"],
    "subjects": ["Subject", "cases_of", "resolve"],
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'pagedattn.conformance' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"pagedattn.conformance.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
