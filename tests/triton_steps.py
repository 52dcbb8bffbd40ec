"""Steps on the Triton backend under emulation, for test_triton_backend.py.

    PAGEDATTN_EMULATE=1 python triton_steps.py

prints a JSON object: what each step found. A process of its own: TRITON_INTERPRET is read when
triton is imported.
"""

import copy
import dataclasses
import json
import warnings

import torch

import pagedattn as pa

warnings.simplefilter("error")
torch.set_num_threads(1)
CPU = torch.device("cpu")
STEPS = {}


def step(function):
    STEPS[function.__name__] = function
    return function


def spec_of(**options):
    values = {
        "num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "block_size": 8,
        "dtype": torch.float32, "scale": 32**-0.5,
    }  # fmt: skip
    return pa.AttentionSpec(**(values | options))


class Step:
    """Random keys of one pool and a batch over them."""

    def __init__(self, spec, query_lens, seq_lens, *, bound=None, blocks=None, width=None, seed=0):
        random = torch.Generator().manual_seed(seed)
        counts = [-(-n // spec.block_size) for n in seq_lens]
        self.blocks = blocks or sum(counts) + 1
        order = torch.randperm(sum(counts), generator=random).tolist()
        tables = [[order.pop() for _ in range(c)] for c in counts]
        self.spec = spec
        self.batch = pa.AttentionBatch.build(
            query_lens=query_lens, seq_lens=seq_lens, block_tables=tables,
            block_size=spec.block_size, width=width or max(counts),
        )  # fmt: skip
        if bound is not None:
            self.batch = pa.AttentionBatch(
                query_start_loc=self.batch.query_start_loc,
                seq_lens=self.batch.seq_lens,
                block_table=self.batch.block_table,
                seq_lens_host=torch.full((len(seq_lens),), bound, dtype=torch.int32),
            )
        self.cache = pa.KVCache.allocate(spec, self.blocks, CPU)
        self.cache.k.copy_(torch.randn(self.cache.k.shape, generator=random))
        self.cache.v.copy_(torch.randn(self.cache.v.shape, generator=random))
        self.q = torch.randn(sum(query_lens), spec.num_heads, spec.head_dim, generator=random)
        self.q = self.q.to(spec.dtype)
        self.out = torch.full_like(self.q, float("nan"))
        most = max(bound or 0, *seq_lens)
        self.limits = pa.Limits(len(seq_lens), max(1, sum(query_lens)), most, self.blocks)

    def on(self, name, **tuning):
        spec = self.spec
        if name == "reference":
            spec = dataclasses.replace(spec, graph=pa.Graph.NEVER)
        op = pa.backend(name).open(spec, self.limits, device=CPU, tuning=tuning or None)
        plan = op.plan(self.batch)
        op.run(self.q, self.cache, plan, out=self.out)
        return self.out.clone(), plan

    def error(self, **tuning):
        """(largest difference to the reference, the plan)"""
        right, _ = self.on("reference")
        got, plan = self.on("triton", **tuning)
        return float((got - right).abs().max()), plan


def parts(plan):
    """Parts of every tile of the first phase that is shared out."""
    phase = plan.data.phases[0]
    return phase.merges[: phase.num_merges, 3].tolist()


@step
def uneven_parts():
    """A long request beside short ones: it alone is shared out, and not evenly."""
    found = Step(spec_of(), [1, 1, 1], [1003, 5, 64]).error(per_sm=4)
    return {"error": found[0], "parts": parts(found[1])}


@step
def windowed_parts():
    """Parts are of the window, not of the keys before it."""
    found = Step(spec_of(window=(299, None)), [1], [2000]).error(per_sm=4)
    return {"error": found[0], "parts": parts(found[1])}


@step
def empty_parts():
    """Lengths are far below the bound that the host knows: most parts have no key."""
    found = Step(spec_of(async_lengths=True), [1, 1], [70, 3], bound=4000).error(per_sm=4)
    return {"error": found[0], "parts": parts(found[1])}


@step
def long_chunk():
    """Few rows of a prefill over many keys are shared out, too."""
    found = Step(spec_of(max_query_len=None), [40], [1500]).error()
    phase = found[1].data.phases[-1]
    return {"error": found[0], "parts": phase.merges[: phase.num_merges, 3].tolist()}


@step
def invariant_whoever_merges():
    """One request of 1100 keys has a program per chunk; three of them one program each."""
    spec = spec_of(batch_invariant=True, num_heads=8, num_kv_heads=8)
    alone = Step(spec, [1], [1100])
    expected, plan = alone.on("triton", per_sm=1)
    crowd = copy.copy(alone)
    crowd.batch = pa.AttentionBatch(
        query_start_loc=torch.arange(4, dtype=torch.int32),
        seq_lens=alone.batch.seq_lens.repeat(3),
        block_table=alone.batch.block_table.repeat(3, 1),
    )
    crowd.q, crowd.out = alone.q.repeat(3, 1, 1), alone.out.repeat(3, 1, 1)
    crowd.limits = pa.Limits(3, 3, 1100, alone.blocks)
    got, together = crowd.on("triton", per_sm=1)
    return {
        "equal": bool((got == expected).all()),
        "parts": parts(plan),
        "together": parts(together),
    }


@step
def replay():
    """Captured once, refreshed by plan(into=) over other lengths, rows and trees of work."""
    spec = spec_of(graph=pa.Graph.ANY)
    first = Step(spec, [1, 1, 6], [300, 9, 6], blocks=120, width=50)
    second = Step(spec, [7, 1, 0], [40, 400, 20], blocks=120, width=50, seed=1)
    limits = pa.Limits(3, 8, 400, 120)
    backend = pa.backend("triton")
    op = backend.open(spec, limits, device=CPU)
    plan = op.plan(first.batch)
    launch = backend.emulated.capture(lambda: op.run(first.q, first.cache, plan, out=first.out))
    pointers = [plan.data.memory.data_ptr(), *(p.items.data_ptr() for p in plan.data.phases)]
    captured = first.out.clone()
    errors = [float((captured - first.on("reference")[0]).abs().max())]
    for name in ("query_start_loc", "seq_lens", "block_table"):
        getattr(first.batch, name).copy_(getattr(second.batch, name))
    first.q.copy_(second.q)
    for mine, other in ((first.cache.k, second.cache.k), (first.cache.v, second.cache.v)):
        mine.copy_(other)
    op.plan(first.batch, into=plan)
    first.out.fill_(float("nan"))
    launch()
    errors.append(float((first.out - second.on("reference")[0]).abs().max()))
    moved = pointers != [
        plan.data.memory.data_ptr(),
        *(p.items.data_ptr() for p in plan.data.phases),
    ]
    launched = [
        (p.num_items == len(p.items), p.num_merges == len(p.merges)) for p in plan.data.phases
    ]
    return {"errors": errors, "moved": moved, "launched": launched}


@step
def unaligned_rows():
    """Rows that start anywhere: the other variant, the same result up to rounding."""
    plain = Step(spec_of(), [1, 5], [70, 20])
    right, _ = plain.on("triton")
    odd = torch.zeros(plain.q.numel() + 1)[1:].view(plain.q.shape)
    odd.copy_(plain.q)
    plain.q = odd
    got, _ = plain.on("triton")
    return {"error": float((got - right).abs().max())}


if __name__ == "__main__":
    print(json.dumps({name: function() for name, function in STEPS.items()}))
