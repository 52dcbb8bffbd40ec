"""op.write() and op.run() inside torch.compile: one graph, the right bits, no recompilation."""

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import pagedattn as pa

SPEC = pa.AttentionSpec(
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    block_size=16,
    dtype=torch.float32,
    scale=0.125,
    return_lse=True,
    sinks=True,
)
LIMITS = pa.Limits(4, 64, 64, 16)
SINKS = torch.tensor([0.5, -1.0, 0.0, 2.0])
BACKENDS = ["eager", "aot_eager", "inductor"]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning"),  # torch's
]


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def op():
    return pa.backend("reference").open(SPEC, LIMITS, device="cpu")


def make_batch(first: int, seq_lens: tuple[int, ...] = (20, 33)) -> pa.AttentionBatch:
    tables = [[first, first + 1], [first + 2, first + 3, first + 4]]
    return pa.AttentionBatch.build(
        query_lens=[1, 2], seq_lens=seq_lens, block_tables=tables, block_size=16, device="cpu"
    )


def layer(
    op: pa.AttentionOp, cache: pa.KVCache, plan: pa.Plan, slots: Tensor, qkv: Tensor, sinks: Tensor
) -> tuple[Tensor, Tensor]:
    """What a model's layer does: everything around the ops is for the compiler to fuse."""
    q, k, v = (2 * qkv).split([4, 2, 2], 1)
    op.write(k, v, cache, slots)
    out = torch.empty(q.shape[0], 4, 64)
    lse = torch.empty(q.shape[0], 4)
    op.run(q, cache, plan, out=out, lse=lse, sinks=sinks)
    return out * 3, lse


def filled(seed: int) -> pa.KVCache:
    cache = pa.KVCache.allocate(SPEC, 16, "cpu")
    generator = torch.Generator().manual_seed(seed)
    cache.k.normal_(generator=generator)
    cache.v.normal_(generator=generator)
    return cache


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_layer_is_one_graph_and_equals_eager(op: pa.AttentionOp, backend: str) -> None:
    batch, qkv = make_batch(0), torch.randn(3, 8, 64)
    plan = op.plan(batch)
    mine, other = filled(1), filled(1)
    expected = layer(op, other, plan, batch.slot_mapping, qkv, SINKS)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    found = compiled(op, mine, plan, batch.slot_mapping, qkv, SINKS)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(mine.k, other.k, rtol=0, atol=0)  # the pool itself was written
    torch.testing.assert_close(mine.v, other.v, rtol=0, atol=0)
    assert not torch.equal(mine.k, filled(1).k)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_other_plans_layers_and_contents_do_not_recompile(op: pa.AttentionOp, backend: str) -> None:
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for step in range(3):
        for number in range(2):
            batch, qkv = make_batch(step, (20 + step, 33)), torch.randn(3, 8, 64)
            plan = op.plan(batch)
            mine, other = filled(number), filled(number)
            found = compiled(op, mine, plan, batch.slot_mapping, qkv, SINKS)
            expected = layer(op, other, plan, batch.slot_mapping, qkv, SINKS)
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert counter.frame_count == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_and_runs_on_one_cache_keep_their_order(op: pa.AttentionOp, backend: str) -> None:
    batch = make_batch(0)
    plan, slots = op.plan(batch), batch.slot_mapping

    def two_steps(cache: pa.KVCache, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        before, _ = layer(op, cache, plan, slots, first, SINKS)
        after, _ = layer(op, cache, plan, slots, second, SINKS)
        return before, after

    first, second = torch.randn(3, 8, 64), torch.randn(3, 8, 64)
    found = torch.compile(two_steps, fullgraph=True, backend=backend)(filled(2), first, second)
    torch.testing.assert_close(found, two_steps(filled(2), first, second), rtol=1e-6, atol=1e-6)


def test_errors_are_those_of_eager(op: pa.AttentionOp) -> None:
    batch = make_batch(0)
    plan = op.plan(batch)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    with pytest.raises(pa.InvalidTensor, match="sinks"):
        compiled(op, filled(0), plan, batch.slot_mapping, torch.randn(3, 8, 64), SINKS[:3])


def test_a_plan_that_is_gone_is_named(op: pa.AttentionOp) -> None:
    batch = make_batch(0)
    plan = op.plan(batch)
    cache, qkv = filled(0), torch.randn(3, 8, 64)
    handle = plan.handle
    del plan
    with pytest.raises(RuntimeError, match=f"the plan of handle {int(handle)}, which no longer"):
        torch.ops.pagedattn.run(
            op.handle, handle, cache.handle, qkv[:, :4], torch.empty(3, 4, 64), None, None, None
        )


def test_the_nodes_pass_torchs_own_check(op: pa.AttentionOp) -> None:
    batch, cache = make_batch(0), filled(0)
    plan, qkv = op.plan(batch), torch.randn(3, 8, 64)
    out, lse = torch.empty(3, 4, 64), torch.empty(3, 4)
    q, k, v = qkv.split([4, 2, 2], 1)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        torch.ops.pagedattn.run.default,
        (op.handle, plan.handle, cache.handle, q, out, lse, SINKS, None),
        test_utils=tests,
    )
    torch.library.opcheck(
        torch.ops.pagedattn.write.default,
        (op.handle, cache.handle, k, v, batch.slot_mapping),
        test_utils=tests,
    )
