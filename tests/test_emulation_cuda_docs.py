"""The example of docs/emulation-cuda.md runs, and its fault is reported as printed there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from pagedattn.conformance.emulation.cuda import KernelFault, RawModule

DOC = Path(__file__).parent.parent / "docs" / "emulation-cuda.md"


def blocks() -> tuple[str, str]:
    text = DOC.read_text()
    cuda = re.search(r"```cuda\n(.*?)```", text, re.DOTALL)
    python = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert cuda
    assert python
    return cuda[1], python[1]


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, python = blocks()
    (tmp_path / "row_sum.cu").write_text(cuda)
    monkeypatch.chdir(tmp_path)
    seen: dict[str, object] = {}
    exec(compile(python, str(DOC), "exec"), seen)
    assert seen["order"] == 3


@pytest.mark.parametrize("order", range(4))
def test_without_its_barrier_the_example_is_reported(tmp_path: Path, order: int) -> None:
    cuda, _ = blocks()
    broken = tmp_path / "row_sum.cu"
    broken.write_text(cuda.replace("  __syncthreads();\n", ""))
    module = RawModule(
        path=broken, name="row_sum.cu", name_expressions=["row_sum<float>"], checked=True
    )
    out, x = torch.zeros(4), torch.randn(4, 1000)
    with pytest.raises(KernelFault, match=r"race on.*byte \d+ of partial\)") as caught:
        module.get_function("row_sum<float>")((4,), (128,), (out, x, np.int32(1000)), order=order)
    if order == 0:
        assert f"KernelFault: {caught.value}" in " ".join(DOC.read_text().split())
