"""Collected by `pytest --pyargs pagedattn.conformance --backend NAME`: one test per case.

Without --backend or --allocator there is nothing to judge, which is an error, not a success."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pagedattn.conformance.pytest_plugin import BoundCase


def test_case(pagedattn_case: BoundCase, request: pytest.FixtureRequest) -> None:
    pagedattn_case.judge(request.node)
