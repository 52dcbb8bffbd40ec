"""The default write()."""

import pytest
import torch

import pagedattn as pa
from pagedattn.write import quantise

LIMITS = pa.Limits(max_requests=4, max_tokens=16, max_seq_len=32, num_blocks=5)


def open_op(**changes: object) -> tuple[pa.AttentionOp, pa.KVCache]:
    spec = pa.AttentionSpec(
        num_heads=3,
        num_kv_heads=3,
        head_dim=8,
        block_size=4,
        dtype=torch.bfloat16,
        scale=1.0,
        **changes,  # type: ignore[arg-type]
    )
    return pa.backend("reference").open(spec, LIMITS, device="cpu"), pa.KVCache.allocate(
        spec, 5, "cpu"
    )


@pytest.mark.parametrize("layout", list(pa.Layout))
def test_only_the_named_slots_change(layout: pa.Layout) -> None:
    op, cache = open_op(layout=layout)
    cache.k.fill_(5.0)
    cache.v.fill_(6.0)
    k = torch.randn(6, 3, 8).bfloat16()
    k[[1, 2, 5]] = float("nan")  # skipped rows and one beyond slot_mapping
    op.write(k, k, cache, torch.tensor([-1, -1, -5, 19, 3])[[3, 1, 2, 4, 0]])
    flat_k, flat_v = cache.k.flatten(0, 1), cache.v.flatten(0, 1)
    assert torch.equal(flat_k[[19, 3]], k[[0, 3]])
    assert torch.equal(flat_v[[19, 3]], k[[0, 3]])
    rest = [slot for slot in range(20) if slot not in (3, 19)]
    assert torch.equal(flat_k[rest], torch.full_like(flat_k[rest], 5.0))
    assert torch.equal(flat_v[rest], torch.full_like(flat_v[rest], 6.0))


@pytest.mark.parametrize("slots", [[], [-1], [-1, -7]])
def test_nothing_to_write(slots: list[int]) -> None:
    op, cache = open_op()
    cache.k.fill_(5.0)
    k = torch.full((2, 3, 8), float("nan")).bfloat16()
    op.write(k, k, cache, torch.tensor(slots, dtype=torch.int64))
    assert torch.equal(cache.k, torch.full_like(cache.k, 5.0))


def test_slices_of_a_fused_qkv() -> None:
    op, cache = open_op()
    qkv = torch.randn(2, 9, 8).bfloat16()
    op.write(qkv[:, 3:6], qkv[:, 6:], cache, torch.tensor([7, 8]))
    assert torch.equal(cache.k.flatten(0, 1)[[7, 8]], qkv[:, 3:6])
    assert torch.equal(cache.v.flatten(0, 1)[[7, 8]], qkv[:, 6:])


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        (torch.int8, [0.5, 1.5, -2.5, 300.0, -300.0], [0, 2, -2, 127, -127]),
        (torch.float8_e4m3fn, [1.0625, 500.0, -1e9, 17.0], [1.0, 448.0, -448.0, 16.0]),
        (torch.float8_e5m2, [1.125, 1e9], [1.0, 57344.0]),
    ],
)
def test_rounding_and_saturation(
    dtype: torch.dtype, values: list[float], expected: list[float]
) -> None:
    assert quantise(torch.tensor(values), torch.tensor(1.0), dtype).float().tolist() == expected


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_scales_per_token_and_head(dtype: torch.dtype) -> None:
    op, cache = open_op(kv_dtype=dtype, kv_quant=pa.KVQuant.PER_TOKEN_HEAD)
    k = torch.randn(3, 3, 8).bfloat16()
    k[1, 2] = 0
    op.write(k, k * 2, cache, torch.tensor([9, -1, 0]))
    op.write(k[1:2], k[1:2], cache, torch.tensor([4]))
    assert cache.k_scale is not None
    assert cache.v_scale is not None
    qmax = 127.0 if dtype is torch.int8 else 448.0
    for row, (block, offset) in ((0, (2, 1)), (1, (1, 0)), (2, (0, 0))):
        expected = k[row].float().abs().amax(-1) / qmax
        expected[expected == 0] = 1.0
        assert torch.equal(cache.k_scale[block, offset], expected)
        real = cache.k[block, offset].float() * expected[:, None]
        step = expected if dtype is torch.int8 else k[row].float().abs().amax(-1) / 16
        assert ((real - k[row].float()).abs() <= step[:, None]).all()
    assert torch.equal(cache.v_scale[2, 1], 2 * cache.k_scale[2, 1])
    untouched = cache.k_scale.clone()
    untouched[2, 1] = untouched[1, 0] = untouched[0, 0] = 1.0
    assert torch.equal(untouched, torch.ones_like(untouched))


def test_a_step_sees_its_own_keys() -> None:
    op, cache = open_op()
    v = torch.randn(1, 3, 8).bfloat16()
    batch = pa.AttentionBatch.build(query_lens=[1], seq_lens=[1], block_tables=[[4]], block_size=4)
    assert batch.slot_mapping is not None
    op.write(v, v, cache, batch.slot_mapping)
    out = torch.empty(1, 3, 8, dtype=torch.bfloat16)
    op.run(v, cache, op.plan(batch), out=out)
    assert torch.equal(out, v)
