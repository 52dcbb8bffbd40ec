"""Fake distributions that bring plugins."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest

from pagedattn import registry

GOOD = """
import pagedattn as pa
class Op(pa.AttentionOp):
    def kernel(self, q, cache, plan, out, lse, sinks, alibi_slopes): out.zero_()
class Backend(pa.AttentionBackend):
    '''{name} kernels'''
    name = '{name}'
    op = Op
    api_version = {version}
@pa.hookimpl
def pagedattn_backends(): return [{offer}]
"""


class Plugins:
    """Installs fake distributions: a module and the metadata that names it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        monkeypatch.syspath_prepend(str(root))

    def install(self, name: str, code: str) -> None:
        (self.root / f"{name}_module.py").write_text(code)
        info = self.root / f"{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[pagedattn]\n{name} = {name}_module\n")
        sys.modules.pop(f"{name}_module", None)
        registry.reload()

    def install_again(self, name: str, code: str) -> None:
        shutil.rmtree(self.root / f"{name}-1.2.dist-info", ignore_errors=True)
        importlib.invalidate_caches()
        self.install(name, code)

    def good(self, dist: str, name: str, version: str = "(1, 0)", offer: str = "Backend") -> None:
        self.install(dist, GOOD.format(name=name, version=version, offer=offer))
