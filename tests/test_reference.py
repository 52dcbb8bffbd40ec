"""The reference backend against closed forms that need no oracle."""

import math

import pytest
import torch

import pagedattn as pa

N, BS = 16, 4


def attend(
    spec: pa.AttentionSpec,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_len: int,
    **arguments: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One request whose keys are k, v [n, Hkv, D]; returns out and lse."""
    n = k.shape[0]
    limits = pa.Limits(max_requests=1, max_tokens=64, max_seq_len=N * BS, num_blocks=N)
    blocks = torch.randperm(N, generator=torch.Generator().manual_seed(n)).tolist()
    batch = pa.AttentionBatch.build(
        query_lens=[query_len],
        seq_lens=[n],
        block_tables=[blocks[: -(-n // BS)]],
        block_size=BS,
        allow_short=True,
    )
    op = pa.backend("reference").open(spec, limits, device="cpu")
    cache = pa.KVCache.allocate(spec, N, "cpu")
    cache.k.fill_(float("nan"))
    cache.v.fill_(float("nan"))
    slots = torch.tensor([blocks[j // BS] * BS + j % BS for j in range(n)], dtype=torch.int64)
    op.write(k, None if spec.shared_kv else v, cache, slots)
    out = torch.full((query_len, spec.num_heads, spec.head_dim_v), 9.0, dtype=spec.out_dtype)
    lse = torch.full((query_len, spec.num_heads), 9.0)
    op.run(q, cache, op.plan(batch), out=out, lse=lse, **arguments)
    return out, lse


def spec_of(heads: int = 1, kv_heads: int = 1, dim: int = 4, **changes: object) -> pa.AttentionSpec:
    fields: dict[str, object] = {"dtype": torch.float32, "scale": 1.0, "return_lse": True}
    return pa.AttentionSpec(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        block_size=BS,
        **(fields | changes),  # type: ignore[arg-type]
    )


def ramp(n: int, heads: int = 1, dim: int = 4) -> torch.Tensor:
    """V with position j + 1 in every column."""
    return torch.arange(1.0, n + 1)[:, None, None].expand(n, heads, dim).contiguous()


def zeros(rows: int, heads: int = 1, dim: int = 4) -> torch.Tensor:
    return torch.zeros(rows, heads, dim)


@pytest.mark.parametrize(
    ("rows", "keys", "expected"),
    [
        (2, 5, [2.5, 3.0]),
        (1, 9, [5.0]),
        (6, 4, [0.0, 0.0, 1.0, 1.5, 2.0, 2.5]),
        (3, 0, [0.0, 0.0, 0.0]),
    ],
)
def test_causal_is_aligned_at_the_bottom_right(rows: int, keys: int, expected: list[float]) -> None:
    out, lse = attend(spec_of(), zeros(rows), zeros(keys), ramp(keys), rows)
    assert out[:, 0, 0].tolist() == pytest.approx(expected)
    seen = [max(0, keys - rows + i + 1) for i in range(rows)]
    assert lse[:, 0].tolist() == pytest.approx([math.log(n) if n else -math.inf for n in seen])


@pytest.mark.parametrize(
    ("mask", "window", "first", "last"),
    [
        (pa.Mask.CAUSAL, (3, None), 6, 9),
        (pa.Mask.CAUSAL, (0, None), 9, 9),
        (pa.Mask.CAUSAL, (2**62, None), 0, 9),
        (pa.Mask.FULL, (2, 1), 7, 10),
        (pa.Mask.FULL, (None, 0), 0, 9),
        (pa.Mask.FULL, (2**62, 2**62), 0, 11),
    ],
)
def test_window_ends_are_included(
    mask: pa.Mask, window: tuple[int | None, int | None], first: int, last: int
) -> None:
    spec = spec_of(mask=mask, window=window)
    out, lse = attend(spec, zeros(3), zeros(12), ramp(12), 3)  # row 0 sits at p = 9
    count = last - first + 1
    assert lse[0, 0].item() == pytest.approx(math.log(count))
    assert out[0, 0, 0].item() == pytest.approx((first + last) / 2 + 1)


def test_heads_of_a_group_are_neighbours() -> None:
    v = torch.arange(1.0, 4.0)[None, :, None].expand(5, 3, 4).contiguous()
    out, _ = attend(spec_of(6, 3), zeros(1, 6), zeros(5, 3), v, 1)
    assert out[0, :, 0].tolist() == pytest.approx([1, 1, 2, 2, 3, 3])


def test_a_sink_is_one_more_logit_without_a_value() -> None:
    spec = spec_of(sinks=True)
    sink = torch.tensor([6.0])
    out, lse = attend(spec, zeros(1), zeros(40), torch.ones(40, 1, 4), 1, sinks=sink)
    assert out[0, 0, 0].item() == pytest.approx(40 / (40 + math.exp(6)))
    assert lse.item() == pytest.approx(math.log(40 + math.exp(6)))
    out, lse = attend(spec, zeros(1), zeros(0), zeros(0), 1, sinks=sink)
    assert (out.abs().max().item(), lse.item()) == (0.0, 6.0)


def test_softcap_comes_before_the_mask() -> None:
    k = torch.zeros(2, 1, 4)
    k[:, 0, 0] = torch.tensor([3.0, -3.0])
    q = torch.ones(2, 1, 4)
    out, lse = attend(spec_of(softcap=2.0), q, k, ramp(2), 2)
    top, low = (2.0 * math.tanh(x / 2.0) for x in (3.0, -3.0))
    assert lse[0, 0].item() == pytest.approx(top, abs=1e-6)
    assert out[0, 0, 0].item() == 1.0
    assert lse[1, 0].item() == pytest.approx(math.log(math.exp(top) + math.exp(low)), abs=1e-6)


@pytest.mark.parametrize("mask", [pa.Mask.CAUSAL, pa.Mask.FULL])
def test_alibi_starts_at_the_rows_own_position(mask: pa.Mask) -> None:
    slope = torch.tensor([0.5])
    _, lse = attend(
        spec_of(alibi=True, mask=mask), zeros(2), zeros(3), ramp(3), 2, alibi_slopes=slope
    )
    future = [-0.5] if mask is pa.Mask.FULL else []
    row0 = math.log(sum(math.exp(b) for b in (-0.5, 0.0, *future)))
    row1 = math.log(sum(math.exp(b) for b in (-1.0, -0.5, 0.0)))
    assert lse[:, 0].tolist() == pytest.approx([row0, row1])


def test_shared_kv_reads_values_from_the_keys() -> None:
    spec = spec_of(dim=4, head_dim_v=2, shared_kv=True)
    k = torch.randn(3, 1, 4, generator=torch.Generator().manual_seed(0))
    out, _ = attend(spec, zeros(1), k, k, 1)
    torch.testing.assert_close(out[0, 0], k[:, 0, :2].mean(0))


@pytest.mark.parametrize("quant", [pa.KVQuant.PER_TENSOR, pa.KVQuant.PER_HEAD])
def test_constant_scales_multiply_what_is_stored(quant: pa.KVQuant) -> None:
    spec = spec_of(2, 2, kv_dtype=torch.int8, kv_quant=quant)
    cache = pa.KVCache.allocate(spec, 2, "cpu")
    assert cache.k_scale is not None
    assert cache.v_scale is not None
    cache.k_scale.fill_(0.5)
    cache.v_scale.copy_(torch.tensor([0.5, 2.0]) if cache.v_scale.dim() else torch.tensor(0.5))
    limits = pa.Limits(max_requests=1, max_tokens=4, max_seq_len=8, num_blocks=2)
    op = pa.backend("reference").open(spec, limits, device="cpu")
    v = torch.tensor([[[1.25] * 4, [1000.0] * 4]])  # 1.25/0.5 = 2.5 rounds to even, 2
    op.write(v, v, cache, torch.tensor([5]))
    assert cache.v[1, 1, :, 0].tolist() == [2, 127]
    batch = pa.AttentionBatch.build(
        query_lens=[1], seq_lens=[2], block_tables=[[1]], block_size=BS, slot_mapping=[-1]
    )
    cache.v[1, 0] = cache.v[1, 1]
    out, lse = torch.empty(1, 2, 4), torch.empty(1, 2)
    op.run(zeros(1, 2), cache, op.plan(batch), out=out, lse=lse)
    second = 127 * (2.0 if cache.v_scale.dim() else 0.5)
    assert out[0, :, 0].tolist() == [1.0, second]


def test_a_tree_row_sees_its_ancestors_and_the_past() -> None:
    spec = spec_of(mask=pa.Mask.TREE)
    limits = pa.Limits(max_requests=2, max_tokens=8, max_seq_len=16, num_blocks=4)
    op = pa.backend("reference").open(spec, limits, device="cpu")
    cache = pa.KVCache.allocate(spec, 4, "cpu")
    tree = [[True, False, False], [True, True, False], [True, False, True]]
    batch = pa.AttentionBatch.build(
        query_lens=[3, 2],
        seq_lens=[5, 2],
        block_tables=[[2, 0], [3]],
        block_size=BS,
        tree_masks=[tree, None],
    )
    v = ramp(8)
    op.write(zeros(2), v[:2], cache, torch.tensor([8, 9]))
    assert batch.slot_mapping is not None
    op.write(zeros(5), v[2:7], cache, batch.slot_mapping)
    out, lse = torch.empty(5, 1, 4), torch.empty(5, 1)
    op.run(zeros(5), cache, op.plan(batch), out=out, lse=lse)
    expected = [(1 + 2 + 3) / 3, (1 + 2 + 3 + 4) / 4, (1 + 2 + 3 + 5) / 4, 6.0, 6.5]
    assert out[:, 0, 0].tolist() == pytest.approx(expected)


def test_float64_mode_is_float64() -> None:
    q, k, v = (torch.randn(9, 1, 4, dtype=torch.float64) for _ in range(3))
    spec = spec_of(dtype=torch.float64)
    out, _ = attend(spec, q[:1], k, v, 1)
    expected = torch.softmax(k[:, 0] @ q[0, 0], 0) @ v[:, 0]
    assert (out[0, 0] - expected).abs().max().item() < 1e-15
