"""Backends and clocks for the tests of the benchmark harness: right ones, wrong ones, and time that
passes as told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import pagedattn as pa
from pagedattn.backends.reference.backend import ReferenceBackend, ReferenceOp
from pagedattn.benchmarks import Report, Settings, Workload, bench
from pagedattn.benchmarks.results import BenchRow, BenchState, Group, Probe

FAST = Settings(samples=7, min_time=1e-6, max_time=1e-6, warmup=1)


def make_spec(**options: Any) -> pa.AttentionSpec:
    """4/2/16, block 4, float32, unless told otherwise."""
    fields: dict[str, Any] = {
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "block_size": 4,
        "dtype": torch.float32,
        "scale": 0.25,
    }
    return pa.AttentionSpec(**{**fields, **options})


def run_bench(workload: Workload, *backends: Any, **options: Any) -> Report:
    """bench() with a small pool and time that does not pass."""
    options = {
        "settings": FAST,
        "pool_bytes": 2**14,
        "probe_bytes": 2**16,
        "clock": TickClock(),
        **options,
    }
    return bench([workload], list(backends), **options)


class TickClock:
    """Runs the calls (unless `idle`) and says that each took a millisecond."""

    def __init__(self, *, idle: bool = False) -> None:
        self.idle, self.time = idle, 0.0

    def seconds(self, call: Callable[[Any], object], arguments: Sequence[Any]) -> float:
        if not self.idle:
            for argument in arguments:
                call(argument)
        self.time += 1e-3 * len(arguments)
        return 1e-3 * len(arguments)

    def now(self) -> float:
        return self.time


class GatherOp(pa.AttentionOp):
    """Gathers the blocks of a request and calls torch's attention."""

    def kernel(
        self,
        q: Tensor,
        cache: pa.KVCache,
        plan: pa.Plan,
        out: Tensor,
        lse: Tensor | None,
        sinks: Tensor | None,
        alibi_slopes: Tensor | None,
    ) -> None:
        batch, size = plan.batch, self.spec.block_size
        starts = batch.query_start_loc_host.tolist()
        for r, keys in enumerate(batch.seq_lens_host.tolist()):
            rows = slice(starts[r], starts[r + 1])
            table = batch.block_table[r, : -(-keys // size)]
            k, v = (p[table].flatten(0, 1)[:keys].transpose(0, 1) for p in (cache.k, cache.v))
            p = torch.arange(keys - (rows.stop - rows.start), keys)
            out[rows] = torch.nn.functional.scaled_dot_product_attention(
                q[rows].transpose(0, 1),
                k,
                v,
                attn_mask=torch.arange(keys) <= p[:, None],
                scale=self.spec.scale,
                enable_gqa=True,
            ).transpose(0, 1)


class GatherBackend(pa.AttentionBackend):
    """Right, and without options."""

    name = "gather"
    op = GatherOp

    def capabilities(self, device: pa.DeviceInfo) -> pa.Capabilities:
        return pa.Capabilities(
            group_size=None,
            head_dim=None,
            block_size=None,
            dtype={torch.float32, torch.bfloat16},
        )


def variant(name: str, kernel: Callable[..., None] | None = None, **members: Any) -> Any:
    """A reference backend called `name`.

    kernel   replaces the op's; called with (op, right, q, cache, plan, out, *rest), where right()
             runs the reference kernel with the same arguments
    members  further members of the op class"""

    def replaced(op: ReferenceOp, *arguments: Any) -> None:
        assert kernel is not None
        kernel(op, lambda: ReferenceOp.kernel(op, *arguments), *arguments)

    if kernel is not None:
        members["kernel"] = replaced
    op = type("Op", (ReferenceOp,), members)
    return type("Variant", (ReferenceBackend,), {"name": name, "op": op})()


def make_report(
    times: dict[str, Sequence[float] | BenchState],
    *,
    baseline: str | None = None,
    device: str = "test machine",
    workload: str = "decode b1 ctx1k",
    read: Sequence[float] | None = None,
    **environment: Any,
) -> Report:
    """A report of one workload: backend -> samples of run in seconds, or the state of its row.

    1000 bytes of KV, and a read probe of 1000 bytes."""
    rows = tuple(
        BenchRow(backend=name, state=given, detail=f"because {name} is {given}")
        if isinstance(given, BenchState)
        else BenchRow(
            backend=name,
            state=BenchState.TIMED,
            error=1e-4,
            budget=1e-3,
            run=tuple(given),
            plan=(1e-5,) * 7,
            write=(1e-5,) * 7,
        )
        for name, given in times.items()
    )
    samples = max((len(row.run) for row in rows), default=0)
    probe = Probe("torch.sum", 1000, tuple(read or [1e-3] * samples)) if samples else None
    group = Group(
        workload=workload,
        phase="decode",
        spec={"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "dtype": "float32"}
        | {"block_size": 4, "layout": "NHD", "kv_quant": "NONE", "kv_dtype": "float32"},
        query_lens=(1,),
        seq_lens=(1024,),
        placement="random",
        kv_bytes=1000,
        flops=2000,
        replicas=3,
        cold=True,
        baseline=baseline or next(iter(times)),
        read=probe,
        matmul=None,
        rows=rows,
    )
    known = {"device": device, "torch": "2.13.0", "pagedattn": "0.1.0", "threads": 2}
    return Report(
        created="2026-01-01T00:00:00+00:00",
        environment=known | environment,
        settings={"samples": samples},
        groups=(group,),
    )
