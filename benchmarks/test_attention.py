"""The workloads as pytest-benchmark tests, for its statistics, histories and plots:

    pytest --pyargs pagedattn.benchmarks --backend triton --benchmark-group-by=param:workload

Every backend is checked before it is timed: a wrong one fails, one that declines is skipped with
its reasons. `pagedattn bench` is the better judge of who is faster: its samples are interleaved.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from pagedattn import registry
from pagedattn.benchmarks.contender import Contender, Stage, find
from pagedattn.benchmarks.results import BenchRow, BenchState
from pagedattn.benchmarks.workload import Workload, decode, mixed, prefill
from pagedattn.spec import AttentionSpec

_SPEC = AttentionSpec(
    num_heads=9, num_kv_heads=3, head_dim=64, block_size=16, dtype=torch.bfloat16, scale=0.125
)
_DECODE = AttentionSpec(
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    block_size=16,
    dtype=torch.bfloat16,
    scale=0.125,
    max_query_len=1,
)
WORKLOADS = (
    decode(_DECODE, batch=1, context=1024),
    decode(_DECODE, batch=8, context=1024),
    prefill(_SPEC, batch=1, context=512, query_len=512),
    mixed(_SPEC, batch=8, context=512, query_len=128),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per workload and backend named by --backend (default: every ready one)."""
    names = metafunc.config.getoption("--backend", default=None) or [
        row.name for row in registry.backends() if row.state is registry.State.READY
    ]
    metafunc.parametrize("workload", WORKLOADS, ids=lambda w: w.name.replace(" ", "-"))
    metafunc.parametrize("backend", names)


@pytest.fixture
def contender(backend: str, workload: Workload, request: pytest.FixtureRequest) -> Contender:
    """The backend, opened and checked."""
    device = torch.device(request.config.getoption("--pagedattn-device", default="cpu"))
    stage = Stage(workload, device)
    admitted = stage.admit(*find(backend))
    if not isinstance(admitted, BenchRow):
        return admitted
    if admitted.state is BenchState.REFUSED:
        pytest.skip(admitted.detail)
    pytest.fail(f"{backend} is {admitted.state}: {admitted.detail}", pytrace=False)


@pytest.mark.parametrize("what", ["run", "plan", "write"])
def test_step(benchmark: Any, contender: Contender, workload: Workload, what: str) -> None:
    """Time of one run(), plan() or write(), every call on the next replica of the batch."""
    tasks = {
        "run": contender.run_task,
        "plan": contender.plan_task,
        "write": contender.write_task,
    }
    task, number = tasks[what](), itertools.count()
    on_gpu = contender.inputs.device.type == "cuda"

    def step() -> None:
        task.call(task.argument(next(number)))
        if on_gpu:
            torch.cuda.synchronize()

    benchmark.extra_info.update(kv_bytes=workload.kv_bytes, flops=workload.flops)
    benchmark(step)
