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
    from pagedattn.conformance.attention import ATTENTION_CASES as ATTENTION_CASES
    from pagedattn.conformance.attention import AttentionSubject as AttentionSubject
    from pagedattn.conformance.case import Case as Case
    from pagedattn.conformance.case import CaseFailure as CaseFailure
    from pagedattn.conformance.case import Declined as Declined
    from pagedattn.conformance.case import Kind as Kind
    from pagedattn.conformance.case import NotRun as NotRun
    from pagedattn.conformance.case import Outcome as Outcome
    from pagedattn.conformance.case import Result as Result
    from pagedattn.conformance.classes import AllocatorConformance as AllocatorConformance
    from pagedattn.conformance.classes import BackendConformance as BackendConformance
    from pagedattn.conformance.runner import Verdict as Verdict
    from pagedattn.conformance.runner import run_cases as run_cases
    from pagedattn.conformance.runner import verdict as verdict
    from pagedattn.conformance.subjects import Subject as Subject
    from pagedattn.conformance.subjects import cases_of as cases_of
    from pagedattn.conformance.subjects import resolve as resolve

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
