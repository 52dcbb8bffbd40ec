"""AttentionBatch.build() and plan(): right values, and an error that names request and field."""

import dataclasses

import pytest
import torch

import pagedattn as pa

SPEC = pa.AttentionSpec(
    num_heads=2, num_kv_heads=1, head_dim=8, block_size=4, dtype=torch.float32, scale=1.0
)
LIMITS = pa.Limits(max_requests=4, max_tokens=16, max_seq_len=32, num_blocks=10)


def build(**changes: object) -> pa.AttentionBatch:
    fields: dict[str, object] = {
        "query_lens": [2, 1],
        "seq_lens": [6, 1],
        "block_tables": [[7, 3], [5]],
        "block_size": 4,
        "num_blocks": 10,
    }
    return pa.AttentionBatch.build(**(fields | changes))  # type: ignore[arg-type]


def open_op(**changes: object) -> pa.AttentionOp:
    spec = dataclasses.replace(SPEC, **changes)  # type: ignore[arg-type]
    return pa.backend("reference").open(spec, LIMITS, device="cpu")


def test_build_computes_the_tensors() -> None:
    batch = build()
    assert batch.query_start_loc.tolist() == [0, 2, 3]
    assert batch.seq_lens.tolist() == [6, 1]
    assert batch.block_table.tolist() == [[7, 3], [5, -1]]
    assert batch.slot_mapping is not None
    assert batch.slot_mapping.tolist() == [3 * 4 + 0, 3 * 4 + 1, 5 * 4 + 0]
    assert (batch.num_tokens, batch.max_query_len, batch.max_seq_len) == (3, 2, 6)


def test_slots_follow_scattered_blocks() -> None:
    batch = build(query_lens=[4], seq_lens=[11], block_tables=[[7, 2, 5]])
    assert batch.slot_mapping is not None
    assert batch.slot_mapping.tolist() == [2 * 4 + 3, 5 * 4, 5 * 4 + 1, 5 * 4 + 2]


@pytest.mark.parametrize("n", range(21))
def test_width_is_the_ceiling(n: int) -> None:
    columns = (n + 3) // 4
    blocks = list(range(columns))
    batch = build(query_lens=[0], seq_lens=[n], block_tables=[blocks])
    assert batch.block_table.shape == (1, columns)
    if columns:
        with pytest.raises(pa.InvalidBatch, match=f"needs {columns} blocks"):
            build(query_lens=[0], seq_lens=[n], block_tables=[blocks[:-1]])


@pytest.mark.parametrize(
    ("changes", "request_index", "field"),
    [
        ({"query_lens": [2]}, None, "query_lens"),
        ({"block_tables": [[7, 3]]}, None, "block_tables"),
        ({"query_lens": [2, -1]}, 1, "query_len"),
        ({"seq_lens": [-6, 1]}, 0, "seq_len"),
        ({"query_lens": [2, 2]}, 1, "query_len"),
        ({"block_tables": [[7], [5]]}, 0, "block_tables"),
        ({"block_tables": [[7, 3], [-1]]}, 1, "block_tables[1][0]"),
        ({"block_tables": [[7, 10], [5]]}, 0, "block_tables[0][1]"),
        ({"block_tables": [[7, 5], [5]]}, None, "slot_mapping"),
        ({"slot_mapping": [1, 2]}, None, "slot_mapping"),
        ({"slot_mapping": [1, 2, 40]}, None, "slot_mapping"),
        ({"block_size": 0}, None, "block_size"),
        ({"width": 1}, None, "width"),
        ({"query_lens": [1.7, 1]}, None, "query_lens"),
        ({"seq_lens": ["6", 1]}, None, "seq_lens"),
        ({"block_tables": [[7, 3.0], [5]]}, None, "block_tables[0]"),
        ({"slot_mapping": [1, 2, 3.5]}, None, "slot_mapping"),
        ({"window_left": -1}, None, "window_left"),
    ],
)
def test_build_refuses(changes: dict[str, object], request_index: int | None, field: str) -> None:
    with pytest.raises(pa.InvalidBatch) as caught:
        build(**changes)
    assert (caught.value.request, caught.value.field) == (request_index, field)
    assert str(caught.value.bound) in str(caught.value)


def test_short_requests_are_legal_when_meant() -> None:
    batch = build(query_lens=[2, 2], allow_short=True)
    assert batch.slot_mapping is not None
    assert batch.slot_mapping.tolist()[2:] == [-1, 20]


def test_blocks_behind_the_window_may_be_freed() -> None:
    fields = {"query_lens": [1], "seq_lens": [14], "block_tables": [[-1, -1, 2, 3]]}
    batch = build(**fields, window_left=5)  # row 13 sees 8..13
    open_op(window=(5, None)).plan(batch)
    with pytest.raises(pa.InvalidBatch, match=r"block_tables\[0\]\[1\] is -1"):
        build(**fields, window_left=6)
    with pytest.raises(pa.InvalidBatch, match=r"block_table\[0, 1\] is -1"):
        open_op(window=(6, None)).plan(batch)


def test_entries_that_nobody_reads_may_be_anything() -> None:
    batch = build(block_tables=[[7, 3, 2**40], [5, -(2**40)]])
    assert batch.block_table.tolist() == [[7, 3, -1], [5, -1, -1]]


def test_trees_are_packed_lowest_bit_first() -> None:
    tree = [[True, False, False], [True, True, False], [True, False, True]]
    batch = build(query_lens=[3, 1], tree_masks=[tree, None])
    assert batch.tree_indptr is not None
    assert batch.tree_mask is not None
    assert batch.tree_indptr.tolist() == [0, 2, 2]
    assert batch.tree_mask.tolist() == [0b01011001, 0b1]
    with pytest.raises(pa.InvalidBatch, match="3 x 3"):
        build(query_lens=[3, 1], tree_masks=[[[True]], None])


def replace(batch: pa.AttentionBatch, **changes: torch.Tensor) -> pa.AttentionBatch:
    """With host copies that follow, so that only one thing is wrong."""
    if "seq_lens" in changes:
        changes.setdefault("seq_lens_host", changes["seq_lens"])
    if "query_start_loc" in changes:
        changes.setdefault("query_start_loc_host", changes["query_start_loc"])
    return dataclasses.replace(batch, **changes)  # type: ignore[arg-type]


i32 = torch.int32


@pytest.mark.parametrize(
    ("changes", "request_index", "field"),
    [
        ({"seq_lens": torch.tensor([6, 1])}, None, "seq_lens"),
        ({"block_table": torch.tensor([[7, 3], [5, 0]])}, None, "block_table"),
        ({"query_start_loc": torch.tensor([0, 2], dtype=i32)}, None, "query_start_loc"),
        ({"query_start_loc": torch.tensor([1, 2, 3], dtype=i32)}, 0, "query_start_loc"),
        ({"query_start_loc": torch.tensor([0, 2, 1], dtype=i32)}, 1, "query_start_loc"),
        ({"query_start_loc": torch.tensor([0, 2, 17], dtype=i32)}, None, "query_start_loc"),
        ({"seq_lens": torch.tensor([6, -1], dtype=i32)}, 1, "seq_lens"),
        ({"seq_lens": torch.tensor([9, 1], dtype=i32)}, 0, "seq_lens"),
        ({"block_table": torch.tensor([[7, -1], [5, 0]], dtype=i32)}, 0, "block_table[0, 1]"),
        ({"block_table": torch.tensor([[7, 3], [10, 0]], dtype=i32)}, 1, "block_table[1, 0]"),
        ({"block_table": torch.zeros(2, 4, dtype=i32)[:, ::2]}, None, "block_table"),
        ({"block_table": torch.zeros(3, 2, dtype=i32)}, None, "block_table"),
        ({"slot_mapping": torch.tensor([1, 2, 1])}, None, "slot_mapping"),
        ({"slot_mapping": torch.tensor([1, 2, 40])}, None, "slot_mapping"),
        ({"slot_mapping": torch.tensor([1, 2, 3], dtype=i32)}, None, "slot_mapping"),
        ({"seq_lens_host": torch.tensor([7, 1], dtype=i32)}, 0, "seq_lens_host"),
        (
            {"query_start_loc_host": torch.tensor([0, 1, 3], dtype=i32)},
            None,
            "query_start_loc_host",
        ),
        ({"tree_mask": torch.zeros(1, dtype=torch.uint8)}, None, "tree_mask"),
    ],
)
def test_plan_refuses(
    changes: dict[str, torch.Tensor], request_index: int | None, field: str
) -> None:
    op = open_op()
    with pytest.raises(pa.InvalidBatch) as caught:
        op.plan(replace(build(), **changes))
    assert (caught.value.request, caught.value.field) == (request_index, field)


def test_limits_are_enforced() -> None:
    def one(n: int, **kw: object) -> pa.AttentionBatch:
        return build(
            query_lens=[1] * n, seq_lens=[1] * n, block_tables=[[i] for i in range(n)], **kw
        )

    open_op().plan(one(4))
    with pytest.raises(pa.InvalidBatch, match="max_requests"):
        open_op().plan(one(5))
    with pytest.raises(pa.InvalidBatch, match="max_seq_len=32"):
        open_op().plan(build(query_lens=[1], seq_lens=[33], block_tables=[[0] * 9]))
    with pytest.raises(pa.InvalidBatch, match="max_query_len=1"):
        open_op(max_query_len=1).plan(build())


def test_a_table_without_columns_and_a_batch_without_requests() -> None:
    op = open_op()
    op.plan(build(query_lens=[0], seq_lens=[0], block_tables=[[]]))
    empty = op.plan(build(query_lens=[], seq_lens=[], block_tables=[]))
    assert (empty.batch.num_tokens, empty.batch.max_seq_len) == (0, 0)


def test_rows_that_nobody_asks_may_have_garbage_tables() -> None:
    batch = build(query_lens=[2, 0])
    batch.block_table[1] = -7
    open_op().plan(batch)


def test_upper_bounds_need_async_lengths() -> None:
    bounds = replace(build(), seq_lens_host=torch.tensor([8, 4], dtype=i32))
    with pytest.raises(pa.InvalidBatch, match="async_lengths"):
        open_op().plan(bounds)
    open_op(async_lengths=True).plan(bounds)
    low = replace(build(), seq_lens_host=torch.tensor([5, 1], dtype=i32))
    with pytest.raises(pa.InvalidBatch, match="at least seq_lens, 6"):
        open_op(async_lengths=True).plan(low)


def test_changed_contents_are_validated_again() -> None:
    op, batch = open_op(), build()
    op.plan(batch)
    batch.block_table[0, 0] = 99
    with pytest.raises(pa.InvalidBatch, match="is 99"):
        op.plan(batch)


def test_refresh_keeps_the_plan_and_failure_leaves_it() -> None:
    op, batch = open_op(), build()
    plan = op.plan(batch)
    batch.seq_lens.copy_(torch.tensor([7, 2], dtype=i32))
    assert op.plan(batch, into=plan) is plan
    assert plan.batch.max_seq_len == 7
    before = plan.batch
    batch.seq_lens[0] = 1000
    with pytest.raises(pa.InvalidBatch):
        op.plan(batch, into=plan)
    assert plan.batch is before
    with pytest.raises(pa.InvalidBatch, match="pointer, shape and stride"):
        op.plan(build(), into=plan)
    with pytest.raises(pa.InvalidBatch, match="another op"):
        open_op().plan(batch, into=plan)


def test_refresh_sees_writes_that_torch_does_not_know_of() -> None:
    op, batch = open_op(), build()
    plan = op.plan(batch)
    batch.seq_lens.numpy()[0] = 1000
    with pytest.raises(pa.InvalidBatch, match="is 1000"):
        op.plan(batch, into=plan)


def test_inference_tensors_work() -> None:
    with torch.inference_mode():
        batch = build()
        assert open_op().plan(batch).batch.num_tokens == 3
