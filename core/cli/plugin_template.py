"""The files of a new plugin, as `pagedattn new-plugin` writes them.

plugins/template is the rendering for the name `template`; a test holds the two together, so that
what is written for a stranger is what is tested here.
"""

from __future__ import annotations

from string import Template

__all__ = ["render"]


def render(name: str) -> dict[str, str]:
    """Path inside the plugin's folder -> text, for a backend called `name`."""
    package = f"pagedattn_{name.replace('-', '_')}"
    title = "".join(part.capitalize() for part in name.replace("_", "-").split("-"))
    values = {"name": name, "package": package, "title": title}
    return {
        Template(path).substitute(values): Template(text).substitute(values)
        for path, text in FILES.items()
    }


PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "pagedattn-$name"
version = "0.1.0"
description = "A paged-attention backend for pagedattn."
requires-python = ">=3.11"
dependencies = ["pagedattn", "torch"]

[project.optional-dependencies]
test = ["pytest"]

[project.entry-points.pagedattn]
$name = "$package"

[tool.setuptools.packages.find]
where = ["src"]
"""

HOOKS = '''\
"""The entry point names this module. Its hooks are called whenever backends are listed, so it
imports nothing heavy: the target is resolved on first use."""

from pagedattn import Offer, hookimpl


@hookimpl
def pagedattn_backends() -> list[Offer]:
    return [
        Offer(
            "$name",
            "$package.backend:Backend",
            summary="torch SDPA over gathered blocks, in 25 lines: start yours from it",
            priority=-200,  # an example: select() prefers any other; a real kernel leaves it out
        )
    ]
'''

BACKEND = '''\
"""A complete attention backend: what it can do, and one kernel call."""

import torch
from torch.nn.functional import scaled_dot_product_attention

import pagedattn as pa


class Op(pa.AttentionOp):
    def kernel(self, q, cache, plan, out, lse, sinks, alibi_slopes):
        batch = plan.batch
        starts = batch.query_start_loc_host.tolist()
        for r, seq_len in enumerate(batch.seq_lens_host.tolist()):
            rows = slice(starts[r], starts[r + 1])
            if rows.start == rows.stop:
                continue  # its row of the table may hold anything
            blocks = batch.block_table[r, : -(-seq_len // self.spec.block_size)].long()
            k = cache.k[blocks].flatten(0, 1)[:seq_len].transpose(0, 1)  # [Hkv, seq_len, D]
            v = cache.v[blocks].flatten(0, 1)[:seq_len].transpose(0, 1)
            position = torch.arange(rows.start - rows.stop, 0, device=q.device) + seq_len
            mask = torch.arange(seq_len, device=q.device) <= position[:, None]
            out[rows] = scaled_dot_product_attention(
                q[rows].transpose(0, 1), k, v, mask, scale=self.spec.scale, enable_gqa=True
            ).transpose(0, 1)


class Backend(pa.AttentionBackend):
    """torch SDPA over gathered blocks."""

    name = "$name"
    op = Op

    def capabilities(self, device):
        dtypes = {torch.float32, torch.float16, torch.bfloat16}
        every = {"group_size": None, "head_dim": None, "block_size": None}
        return pa.Capabilities(**every, dtype=dtypes, layout=set(pa.Layout), head_dim_v=None)
'''

TEST = '''\
"""The suite judges the backend: one test per case."""

from pagedattn.conformance import BackendConformance


class Test$title(BackendConformance):
    backend = "$name"
'''

README = """\
# pagedattn-$name

A complete paged-attention backend, the smallest there is: torch SDPA over gathered blocks. To make
it yours, put your kernel in `src/$package/backend.py` and declare what it can do in
`capabilities()`. Then

    pip install -e '.[test]'
    pagedattn check $name
    pytest

The second command gives one verdict (`--quick` while you work on the kernel), the third the same
judgement with one test per case. Whatever `capabilities()` leaves out is refused with a reason;
whatever it claims is tested. `pagedattn new-plugin NAME` writes this folder under another name.
"""

FILES = {
    "pyproject.toml": PYPROJECT,
    "README.md": README,
    "src/$package/__init__.py": HOOKS,
    "src/$package/backend.py": BACKEND,
    "tests/test_conformance.py": TEST,
}
"""The paths are templates too."""
