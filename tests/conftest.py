"""Shared by our own tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from plugin_support import Plugins

import pagedattn.registry


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No setting of the user's shell reaches a test, and no discovery outlives one."""
    for name in [name for name in os.environ if name.startswith("PAGEDATTN_")]:
        monkeypatch.delenv(name)
    yield
    pagedattn.registry.reload()


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plugins:
    return Plugins(tmp_path, monkeypatch)
