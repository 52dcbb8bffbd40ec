"""merge_states and copy_blocks."""

import math

import pytest
import torch

import pagedattn as pa


def state(rows: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, 2, 4, generator=generator),
        torch.randn(rows, 2, generator=generator),
    )


EMPTY = torch.full((3, 2, 4), float("nan")), torch.full((3, 2), -math.inf)


def test_an_empty_part_changes_nothing_not_even_a_bit() -> None:
    out, lse = state()
    for merged in (pa.merge_states(out, lse, *EMPTY), pa.merge_states(*EMPTY, out, lse)):
        assert torch.equal(merged[0], out)
        assert torch.equal(merged[1], lse)


def test_two_empty_parts_are_empty() -> None:
    out, lse = pa.merge_states(*EMPTY, *EMPTY)
    assert torch.equal(out, torch.zeros(3, 2, 4))
    assert torch.equal(lse, torch.full((3, 2), -math.inf))


def test_plus_infinity_counts_as_empty() -> None:
    out, lse = state()
    other = torch.full((3, 2), math.inf)
    assert torch.equal(pa.merge_states(out, lse, EMPTY[0], other)[0], out)


def test_merging_is_softmax_over_the_union() -> None:
    out_a, lse_a = state(seed=1)
    out_b, lse_b = state(seed=2)
    out, lse = pa.merge_states(out_a, lse_a, out_b, lse_b)
    weight = torch.softmax(torch.stack([lse_a, lse_b]).double(), 0)
    expected = weight[0][..., None] * out_a + weight[1][..., None] * out_b
    torch.testing.assert_close(out.double(), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(lse.exp(), lse_a.exp() + lse_b.exp())


def test_extreme_but_finite_weights() -> None:
    out_a, out_b = torch.ones(1, 1, 1), torch.full((1, 1, 1), 3.0)
    low = torch.full((1, 1), -1e30)
    out, lse = pa.merge_states(out_a, low, out_b, low)
    assert out.item() == 2.0
    assert lse.item() == pytest.approx(-1e30)


def test_fold_with_empty_parts() -> None:
    parts = [EMPTY, state(seed=3), EMPTY, state(seed=4), EMPTY]
    out, lse = parts[0]
    for part in parts[1:]:
        out, lse = pa.merge_states(out, lse, *part)
    expected = pa.merge_states(*parts[1], *parts[3])
    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])


def test_shapes_are_checked() -> None:
    out, lse = state()
    with pytest.raises(pa.InvalidTensor, match="out_b"):
        pa.merge_states(out, lse, out[:2], lse[:2])
    with pytest.raises(pa.InvalidTensor, match="lse_a"):
        pa.merge_states(out, lse.T, out, lse)
    with pytest.raises(pa.InvalidTensor, match="out_a"):
        pa.merge_states(out.int(), lse, out.int(), lse)
    with pytest.raises(pa.InvalidTensor, match="lse_b"):
        pa.merge_states(out, lse, out, None)  # type: ignore[arg-type]


# -- copy_blocks -----------------------------------------------------------------------------------


def cache_of(layout: pa.Layout = pa.Layout.NHD, **changes: object) -> pa.KVCache:
    spec = pa.AttentionSpec(
        num_heads=2,
        num_kv_heads=2,
        head_dim=4,
        block_size=3,
        dtype=torch.float32,
        scale=1.0,
        layout=layout,
        **changes,  # type: ignore[arg-type]
    )
    cache = pa.KVCache.allocate(spec, 6, "cpu")
    for tensor in (cache.k, cache.v, cache.k_scale, cache.v_scale):
        if tensor is not None and tensor.dim() == 4:
            values = torch.arange(tensor.numel()).reshape(tensor.shape) % 100
            tensor.copy_(values.to(tensor.dtype))
        elif tensor is not None and tensor.dim() == 3:
            tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape))
    return cache


def snapshot(cache: pa.KVCache) -> list[torch.Tensor]:
    tensors = (cache.k, cache.v, cache.k_scale, cache.v_scale)
    return [t.float().clone() for t in tensors if t is not None]


@pytest.mark.parametrize("layout", list(pa.Layout))
@pytest.mark.parametrize(
    "pairs", [[(0, 1), (1, 2)], [(1, 2), (0, 1)], [(0, 1), (2, 1)], [(3, 3)], [(0, 1), (2, 0)], []]
)
def test_pairs_run_in_order(layout: pa.Layout, pairs: list[tuple[int, int]]) -> None:
    cache = cache_of(layout, kv_dtype=torch.float8_e4m3fn, kv_quant=pa.KVQuant.PER_TOKEN_HEAD)
    expected = snapshot(cache)
    for src, dst in pairs:
        for tensor in expected:
            tensor[dst] = tensor[src].clone()
    pa.copy_blocks(cache, cache, pairs)
    for got, want in zip(snapshot(cache), expected, strict=True):
        assert torch.equal(got, want)


def test_only_the_first_tokens() -> None:
    cache = cache_of()
    before = cache.k.clone()
    pa.copy_blocks([cache], [cache], [pa.CopyOp(0, 5, 2), pa.CopyOp(1, 4, 0)])
    assert torch.equal(cache.k[5, :2], before[0, :2])
    assert torch.equal(cache.k[5, 2:], before[5, 2:])
    assert torch.equal(cache.k[4], before[4])


def test_swapping_between_pools() -> None:
    device, host = cache_of(), cache_of(pa.Layout.HND)
    before = device.k.clone()
    host.k.zero_()
    pa.copy_blocks(device, host, [(2, 0), (4, 1)])
    device.k.zero_()
    pa.copy_blocks(host, device, [(0, 2), (1, 4)])
    assert torch.equal(device.k[2], before[2])
    assert torch.equal(device.k[4], before[4])


def test_shared_kv_is_copied_once() -> None:
    cache = cache_of(shared_kv=True, head_dim_v=2)
    pa.copy_blocks(cache, cache, [(0, 1), (1, 2)])
    assert torch.equal(cache.k[2], cache.k[0])
    assert torch.equal(cache.v[2], cache.k[0, ..., :2])


@pytest.mark.parametrize("pair", [(0, 6), (-1, 0), (6, 0), (0, 1, 2), (0.5, 1), 3])
def test_bad_ids_are_refused_before_anything_moves(pair: tuple[int, int]) -> None:
    cache = cache_of()
    before = cache.k.clone()
    with pytest.raises(pa.InvalidTensor, match=r"pairs\[1\]"):
        pa.copy_blocks(cache, cache, [(0, 1), pair])
    assert torch.equal(cache.k, before)


def test_pools_must_match() -> None:
    quantised = {"kv_dtype": torch.int8, "kv_quant": pa.KVQuant.PER_HEAD}
    with pytest.raises(pa.InvalidTensor, match=r"k_scale|dst k"):
        pa.copy_blocks(cache_of(), cache_of(**quantised), [(0, 1)])
    a, b = cache_of(**quantised), cache_of(**quantised)
    assert b.k_scale is not None
    b.k_scale[0] = 2.0
    with pytest.raises(pa.InvalidTensor, match="as on the source"):
        pa.copy_blocks(a, b, [(0, 1)])
    with pytest.raises(pa.InvalidTensor, match="layers"):
        pa.copy_blocks([a], [a, b], [(0, 1)])
