"""run() and write() against memory that is shared: refused by name, or right."""

import pytest
import torch

import pagedattn as pa
from pagedattn.validate.aliases import distinct, extent, overlap

LIMITS = pa.Limits(max_requests=4, max_tokens=16, max_seq_len=64, num_blocks=8)
N, BLOCK, HEADS, DIM = 8, 4, 2, 8
POOL = (N, BLOCK, HEADS, DIM)


def opened(**options):
    spec = pa.AttentionSpec(
        num_heads=4,
        num_kv_heads=HEADS,
        head_dim=DIM,
        block_size=BLOCK,
        dtype=torch.float32,
        scale=0.3,
        **options,
    )
    op = pa.backend("reference").open(spec, LIMITS, device="cpu")
    batch = pa.AttentionBatch.build(
        query_lens=[2, 1],
        seq_lens=[5, 3],
        block_tables=[[1, 2], [3]],
        block_size=BLOCK,
        num_blocks=N,
    )
    return op, op.plan(batch)


def cache(k=None, v=None):
    generator = torch.Generator().manual_seed(1)
    own = [torch.randn(POOL, generator=generator) for _ in range(2)]
    return pa.KVCache(k=own[0] if k is None else k, v=own[1] if v is None else v)


Q = torch.randn(3, 4, DIM, generator=torch.Generator().manual_seed(2))


def rows(buffer, at):
    return buffer.flatten()[at : at + Q.numel()].view(Q.shape)


def test_out_in_the_gaps_of_a_pool_is_right():
    op, plan = opened()
    expected, out = torch.empty(Q.shape), torch.zeros(N, BLOCK, HEADS, 2 * DIM)
    op.run(Q, cache(), plan, out=expected)
    wide = out.clone()
    wide[..., :DIM] = cache().k
    gaps = wide.as_strided(Q.shape, (2 * HEADS * 2 * DIM, 2 * DIM, 1), DIM)
    for _ in range(2):  # checked, then remembered
        op.run(Q, cache(k=wide[..., :DIM]), plan, out=gaps)
        assert torch.equal(gaps, expected)
        assert torch.equal(wide[..., :DIM], cache().k)


def interleaved():
    both = torch.zeros(N, 2, *POOL[1:])
    return both, pa.KVCache(k=both[:, 0], v=both[:, 1])


def test_out_must_not_lie_in_pools_of_any_stride():
    op, plan = opened()
    both, pools = interleaved()
    for block in range(N):  # beyond k.numel() elements from its first one, too
        with pytest.raises(pa.InvalidTensor, match=r"^out: overlaps cache\.[kv]"):
            op.run(Q, pools, plan, out=rows(both[block], 16))
    buffer = torch.zeros(1000)
    reached = cache(k=buffer[48 : 48 + 512].view(POOL))
    with pytest.raises(pa.InvalidTensor, match=r"^out: overlaps cache\.k"):
        op.run(Q, reached, plan, out=rows(buffer, 0))  # begins before the pool


def test_lse_has_memory_of_its_own():
    op, plan = opened(return_lse=True)
    pools, buffer = cache(), torch.zeros(300)
    out, lse = rows(buffer, 0), buffer[90:102].view(3, 4)
    with pytest.raises(pa.InvalidTensor, match=r"^out: overlaps lse"):
        op.run(Q, pools, plan, out=out, lse=lse)
    with pytest.raises(pa.InvalidTensor, match=r"^lse: overlaps q"):
        op.run(out, pools, plan, out=torch.empty(Q.shape), lse=lse)
    with pytest.raises(pa.InvalidTensor, match=r"^lse: overlaps cache\.v"):
        op.run(Q, pools, plan, out=torch.empty(Q.shape), lse=pools.v.flatten()[:12].view(3, 4))
    op.run(Q, pools, plan, out=out, lse=buffer[96:108].view(3, 4))  # neighbours are fine


def test_what_was_fine_once_is_looked_at_again_elsewhere():
    """Equal shapes and strides are remembered, addresses are not."""
    op, plan = opened()
    buffer = torch.zeros(400)
    q, out = rows(buffer, 0), rows(buffer, 200)
    op.run(q, cache(), plan, out=out)
    with pytest.raises(pa.InvalidTensor, match="overlaps q"):
        op.run(q, cache(), plan, out=rows(buffer, 40))


def test_write_needs_pools_of_distinct_elements():
    op, _ = opened()
    k, slots = torch.ones(3, HEADS, DIM), torch.tensor([4, 5, 6])
    one = torch.zeros(POOL)
    store = torch.zeros(800)
    halves = [store[at : at + 512].view(POOL) for at in (0, 256)]
    wrong = {
        "cache.v: overlaps cache.k": cache(k=one, v=one),
        "cache.v: overlaps": cache(k=halves[0], v=halves[1]),
        "cache.k: stride": cache(k=torch.zeros(1, *POOL[1:]).expand(POOL)),
    }
    for message, pools in wrong.items():
        with pytest.raises(pa.InvalidTensor, match=f"^{message}"):
            op.write(k, k, pools, slots)
    _, pools = interleaved()
    op.write(k, 2 * k, pools, slots)
    assert torch.equal(pools.k[1, :3], k)
    assert torch.equal(pools.v[1, :3], 2 * k)


def test_write_takes_nothing_from_the_pool_that_it_writes():
    op, _ = opened()
    pools = cache()
    k = torch.ones(3, HEADS, DIM)
    for new_k, new_v, name in ((pools.k[0, 1:], k, "k"), (k, pools.v[2, :3], "v")):
        with pytest.raises(pa.InvalidTensor, match=f"^{name}: overlaps cache.{name}"):
            op.write(new_k, new_v, pools, torch.tensor([0, 1, 2]))


def test_there_is_no_backward():
    op, plan = opened()
    learned, out = Q.clone().requires_grad_(), torch.empty(Q.shape)
    for _ in range(2):
        with torch.no_grad():
            op.run(learned, cache(), plan, out=out)  # remembered, and still refused below
        with pytest.raises(pa.InvalidTensor, match=r"^q: requires grad.*no_grad"):
            op.run(learned, cache(), plan, out=out)
    with pytest.raises(pa.InvalidTensor, match=r"^out: requires grad"):
        op.run(Q, cache(), plan, out=out.clone().requires_grad_())
    with pytest.raises(pa.InvalidTensor, match=r"^k: requires grad"):
        op.write(learned[:, :2], Q[:, :2], cache(), torch.tensor([0, 1, 2]))
    with pytest.raises(pa.InvalidTensor, match=r"^cache\.v: requires grad"):
        op.run(Q, cache(v=torch.zeros(POOL, requires_grad=True)), plan, out=out)


def test_autocast_does_not_reach_a_backend():
    op, plan = opened()
    expected, out = torch.empty(Q.shape), torch.empty(Q.shape)
    op.run(Q, cache(), plan, out=expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        op.run(Q, cache(), plan, out=out)
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(out, expected)


@pytest.mark.parametrize(
    ("shape", "strides", "apart"),
    [
        ((2, 3), (3, 1), True),
        ((2, 3), (2, 1), False),
        ((2, 3), (0, 1), False),
        ((1, 3), (0, 1), True),
        ((3, 2, 4), (4, 12, 1), True),
    ],
)
def test_distinct(shape, strides, apart):
    assert distinct(torch.zeros(64).as_strided(shape, strides)) is apart


def test_extent_and_overlap():
    x = torch.zeros(4, 8)
    assert extent(x) == 128
    assert extent(x[:, :3]) == 4 * (3 * 8 + 3)
    assert extent(x[:0]) == 0
    assert overlap(x[:2], x[1:])
    assert not overlap(x[:, :4], x[:, 4:])
    assert not overlap(x[:0], x)


def test_scales_that_write_computes_lie_apart():
    spec = pa.AttentionSpec(
        num_heads=2,
        num_kv_heads=2,
        head_dim=8,
        block_size=4,
        dtype=torch.float32,
        kv_dtype=torch.int8,
        kv_quant=pa.KVQuant.PER_TOKEN_HEAD,
        scale=1.0,
    )
    limits = pa.Limits(max_requests=1, max_tokens=4, max_seq_len=4, num_blocks=3)
    op = pa.backend("reference").open(spec, limits, device="cpu")
    made = pa.KVCache.allocate(spec, 3, "cpu")
    k, slots = torch.ones(1, 2, 8), torch.tensor([0])
    op.write(k, k, made, slots)
    shared = pa.KVCache(k=made.k, v=made.v, k_scale=made.k_scale, v_scale=made.k_scale)
    with pytest.raises(pa.InvalidTensor, match=r"^cache\.v_scale: overlaps cache\.k_scale"):
        op.write(k, k, shared, slots)
    one = torch.ones(1, 1, 1).expand(3, 4, 2)
    with pytest.raises(pa.InvalidTensor, match=r"^cache\.k_scale: stride .* in one place"):
        op.write(k, k, pa.KVCache(k=made.k, v=made.v, k_scale=one, v_scale=made.v_scale), slots)
    both = torch.zeros(3, 4, 2, 2)  # interleaved is apart
    op.write(
        k, k, pa.KVCache(k=made.k, v=made.v, k_scale=both[..., 0], v_scale=both[..., 1]), slots
    )
