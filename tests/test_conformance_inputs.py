"""Hostile memory and 8-bit numbers: the suite's inputs are what they claim to be."""

import dataclasses

import pytest
import torch

import pagedattn as pa
from pagedattn.conformance.attention import quant
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import check_guards, snapshot
from pagedattn.conformance.attention.place import place
from pagedattn.conformance.attention.placing import INT_MAX, Order, Placing, Poison, Rows, Storage
from pagedattn.conformance.case import CaseFailure

CPU = torch.device("cpu")


def content(query_lens=(1, 3, 0), seq_lens=(5, 9, 4), **options):
    values = {
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "block_size": 4,
        "dtype": torch.float32,
        "scale": 0.25,
        **options,
    }
    return Content.random(pa.AttentionSpec(**values), query_lens, seq_lens, 1)


def owned(step):
    """bool [N, block_size]: slots that hold a key."""
    mask = torch.zeros(step.cache.k.shape[:2], dtype=torch.bool)
    for table, keys in zip(step.tables, step.content.seq_lens, strict=True):
        for p in range(keys):
            if table[p // 4] is not None:
                mask[table[p // 4], p % 4] = True
    return mask


@pytest.mark.parametrize("layout", list(pa.Layout))
@pytest.mark.parametrize("storage", list(Storage))
def test_owned_slots_hold_the_keys_and_all_others_poison(storage, layout):
    step = place(content(layout=layout), CPU, Placing(seed=3, storage=storage))
    mine = owned(step)
    assert mine.sum() == 18
    for pool in (step.cache.k, step.cache.v):
        assert bool(pool[mine].isfinite().all())
        assert not bool(pool[~mine].isfinite().any())
    request, position = 1, 6
    block = step.tables[request][position // 4]
    assert torch.equal(step.cache.k[block, position % 4], step.content.k[request][position])
    assert torch.equal(step.cache.v[block, position % 4], step.content.v[request][position])


def test_core_accepts_every_placement():
    """plan() and run() validate strides and ids; hostile is not malformed."""
    for storage in Storage:
        for rows in Rows:
            for layout in pa.Layout:
                placing = Placing(storage=storage, q_rows=rows, out_rows=rows, padding_rows=2)
                step = place(content(layout=layout), CPU, placing)
                op = pa.backend("reference").open(step.spec, step.limits, device="cpu")
                op.run(step.q, step.cache, op.plan(step.batch), out=step.out)
                assert bool(step.out[:4].isfinite().all())


def test_table_holds_garbage_where_nobody_looks():
    step = place(content(), CPU, Placing(seed=3))
    table = step.batch.block_table
    assert table.shape == (3, 5)
    assert table[0, 2:].tolist() == [INT_MAX] * 3
    assert len(set(table[table != INT_MAX].tolist())) == 6
    windowed = place(content((1,), (13,), window=(2, None)), CPU, Placing())
    assert windowed.batch.block_table[0, :2].tolist() == [INT_MAX] * 2
    assert windowed.tables[0][:2] == [None, None]


def test_bytes_between_trees_belong_to_nobody():
    tree = content(mask=pa.Mask.TREE)
    packed, apart = (place(tree, CPU, Placing(tree_gap=gap)).batch for gap in (0, 3))
    assert packed.tree_indptr.tolist() == [0, 1, 3, 3]
    assert apart.tree_indptr.tolist() == [0, 4, 9, 9]
    assert apart.tree_mask[[0, 4, 5]].tolist() == packed.tree_mask.tolist()
    assert apart.tree_mask[[1, 2, 3, 6, 7, 8]].tolist() == [255] * 6


def test_a_placing_says_what_is_unusual():
    assert repr(Placing(seed=4)) == "Placing(seed=4)"
    unusual = Placing(poison=Poison.NAN, storage=Storage.GAPS, filler=-1)
    assert repr(unusual) == "Placing(seed=0, poison=NAN, storage=GAPS, filler=-1)"


def test_placement_orders():
    ids = {o: place(content(), CPU, Placing(seed=2, order=o)).batch.block_table for o in Order}
    assert ids[Order.ASCENDING][0, :2].tolist() == [0, 1]
    assert ids[Order.DESCENDING][0, 0] > ids[Order.DESCENDING][0, 1]
    assert not torch.equal(ids[Order.SHUFFLED], ids[Order.ASCENDING])


def test_strides_are_what_the_names_say():
    step = place(content(), CPU, Placing(q_rows=Rows.FUSED, out_rows=Rows.TRANSPOSED))
    assert step.q.stride(0) > step.q.shape[1] * step.q.shape[2]
    assert step.out.stride(1) > step.out.stride(0)
    gaps = place(content(), CPU, Placing(storage=Storage.GAPS))
    assert gaps.cache.k.stride(2) > gaps.cache.k.shape[3]
    interleaved = place(content(), CPU, Placing(storage=Storage.INTERLEAVED))
    assert interleaved.cache.k.stride(0) == 2 * 4 * 2 * 16


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (lambda s: s.out[-1].fill_(0), "out"),
        (lambda s: s.lse[-1].fill_(0), "lse"),
        (lambda s: s.q[0].fill_(0), "q"),
        (lambda s: s.cache.k[s.tables[0][0], 0].fill_(0), "KV pool"),
        (lambda s: s.cache.v.view(-1)[-1].fill_(0), "KV pool"),
        (lambda s: s.batch.seq_lens.fill_(1), "seq_lens"),
        (lambda s: s.batch.block_table[0].fill_(1), "block_table"),
        (lambda s: s.sinks.fill_(9), "sinks"),
    ],
)
def test_guards_see_every_forbidden_write(spoil, name):
    step = place(content(return_lse=True, sinks=True), CPU, Placing(padding_rows=2))
    before = snapshot(step.guards)
    step.out[:4] = 1.0
    step.lse[:4] = 1.0
    check_guards(step.guards, before)
    spoil(step)
    with pytest.raises(CaseFailure, match=f"{name} was changed"):
        check_guards(step.guards, before)


def test_requests_may_share_blocks():
    one = content((1, 1), (5, 5))
    shared = dataclasses.replace(one, k=(one.k[0],) * 2, v=(one.v[0],) * 2)
    step = place(shared, CPU, Placing(reuse=(0, 0)))
    assert step.tables[0] == step.tables[1]
    assert step.limits.num_blocks == 2 + 5


def test_cut_and_pick():
    step = content(kv_dtype=torch.int8, kv_quant=pa.KVQuant.PER_TOKEN_HEAD)
    part = step.cut(1, slice(1, 2), slice(0, 8))
    assert part.query_lens == [1]
    assert part.seq_lens == [8]
    torch.testing.assert_close(part.real_k(0), step.real_k(1)[:8], rtol=0, atol=0)
    assert step.pick([2, 0]).seq_lens == [4, 5]


def test_content_depends_on_the_seed_alone():
    assert torch.equal(content().q[1], content().q[1])
    other = Content.random(content().spec, [1], [5], 2)
    assert not torch.equal(other.k[0], content().k[0])


# -- 8-bit numbers -------------------------------------------------------------------------------


def test_int8_rounds_half_to_even_and_saturates():
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 1e9, -1e9, float("nan")])
    codes = quant.encode(x, torch.tensor(1.0), torch.int8)
    assert codes.view(torch.int8).tolist() == [0, 2, 2, 0, -2, 126, 127, 127, -127, 0]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz])
def test_fp8_agrees_with_torch(dtype):
    x = torch.randn(4000, generator=torch.Generator().manual_seed(5)) * 30
    limit = torch.finfo(dtype).max
    expected = x.clamp(-limit, limit).to(dtype).double()
    got = quant.decode(quant.encode(x, torch.tensor(1.0), dtype), dtype)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    assert quant.largest(dtype) == limit


def test_acceptable_is_strict_but_for_the_middle():
    one = torch.tensor(1.0)
    x = torch.tensor([3.2, 3.5, 3.5000001, 200.0])
    codes = torch.tensor([3, 4, 3, 127], dtype=torch.int8).view(torch.uint8)
    assert quant.acceptable(x, one, torch.int8, codes).tolist() == [True, True, True, True]
    wrong = torch.tensor([4, 5, 5, 126], dtype=torch.int8).view(torch.uint8)
    assert not quant.acceptable(x, one, torch.int8, wrong).any()


def test_an_exact_tie_has_one_answer():
    one = torch.tensor(1.0)
    x = torch.tensor([2.5, 2.5, -3.5])
    codes = torch.tensor([2, 3, -4], dtype=torch.int8).view(torch.uint8)
    assert quant.acceptable(x, one, torch.int8, codes).all()
    assert quant.acceptable(x, one, torch.int8, codes, exact=True).tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
def test_middles_are_ties_that_16_bits_hold(dtype):
    middles = quant.middles(dtype)
    assert torch.equal(middles, middles.bfloat16().float())
    up, down = (
        quant.decode(quant.encode(middles * (1 + d), torch.tensor(1.0), dtype), dtype)
        for d in (1e-4, -1e-4)
    )
    assert torch.equal((up + down) / 2, middles.double())
    assert bool((up != down).all())


def test_token_scales():
    x = torch.tensor([[[1.0, -254.0], [0.0, 0.0]]])
    assert quant.token_scales(x, torch.int8).tolist() == [[2.0, 1.0]]


def test_poison_reaches_8_bit_pools_and_scales():
    step = place(
        content(kv_dtype=torch.float8_e4m3fn, kv_quant=pa.KVQuant.PER_TOKEN_HEAD),
        CPU,
        Placing(poison=Poison.NAN),
    )
    mine = owned(step)
    assert bool(step.cache.k.float()[~mine].isnan().all())
    assert bool(step.cache.k_scale[~mine].isnan().all())
    assert bool(step.cache.k_scale[mine].isfinite().all())
