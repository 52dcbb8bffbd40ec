"""open(), run(), write(): arguments are checked before anything is launched."""

from collections.abc import Mapping, Sequence

import pytest
import torch

import pagedattn as pa

LIMITS = pa.Limits(max_requests=4, max_tokens=16, max_seq_len=32, num_blocks=10)


def spec_of(**changes: object) -> pa.AttentionSpec:
    fields: dict[str, object] = {
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "block_size": 4,
        "dtype": torch.float32,
        "scale": 0.5,
    }
    return pa.AttentionSpec(**(fields | changes))  # type: ignore[arg-type]


class Setup:
    """An op with everything that run() needs."""

    def __init__(self, **changes: object) -> None:
        torch.manual_seed(0)
        self.spec = spec_of(**changes)
        self.op = pa.backend("reference").open(self.spec, LIMITS, device="cpu")
        self.cache = pa.KVCache.allocate(self.spec, 10, "cpu")
        self.batch = pa.AttentionBatch.build(
            query_lens=[2, 1], seq_lens=[6, 1], block_tables=[[7, 3], [5]], block_size=4
        )
        self.plan = self.op.plan(self.batch)
        self.q = torch.randn(3, 4, 8, dtype=self.spec.dtype)
        self.out = torch.full((3, 4, self.spec.head_dim_v), 7.0, dtype=self.spec.out_dtype)

    def run(self, **changes: object) -> None:
        arguments: dict[str, object] = {"q": self.q, "out": self.out} | changes
        q, cache = arguments.pop("q"), arguments.pop("cache", self.cache)
        self.op.run(q, cache, arguments.pop("plan", self.plan), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"q": torch.zeros(3, 4, 8, dtype=torch.float16)}, "q"),
        ({"q": torch.zeros(3, 5, 8)}, "q"),
        ({"q": torch.zeros(3, 4, 9)}, "q"),
        ({"q": torch.zeros(3, 32)}, "q"),
        ({"q": torch.zeros(2, 4, 8)}, "q"),
        ({"q": torch.zeros(3, 8, 4).transpose(1, 2)}, "q"),
        ({"q": torch.zeros(3, 4, 8, device="meta")}, "q"),
        ({"out": torch.zeros(3, 4, 8, dtype=torch.bfloat16)}, "out"),
        ({"out": torch.zeros(3, 4, 16)[..., ::2]}, "out"),
        ({"out": torch.zeros(1, 4, 8).expand(3, 4, 8)}, "out"),
        ({"out": torch.zeros(2, 4, 8)}, "out"),
        ({"lse": torch.zeros(3, 4)}, "lse"),
        ({"sinks": torch.zeros(4)}, "sinks"),
        ({"alibi_slopes": torch.zeros(4)}, "alibi_slopes"),
    ],
)
def test_run_names_the_tensor(changes: dict[str, object], name: str) -> None:
    setup = Setup()
    before = setup.out.clone()
    with pytest.raises(pa.InvalidTensor) as caught:
        setup.run(**changes)
    assert caught.value.name == name
    assert isinstance(caught.value, ValueError)
    assert torch.equal(setup.out, before) or "out" in changes


@pytest.mark.parametrize(
    ("option", "name", "good"),
    [
        ("return_lse", "lse", torch.zeros(3, 4)),
        ("sinks", "sinks", torch.zeros(4)),
        ("alibi", "alibi_slopes", torch.zeros(4)),
    ],
)
def test_what_the_spec_asks_for_must_be_given(option: str, name: str, good: torch.Tensor) -> None:
    setup = Setup(**{option: True})
    setup.run(**{name: good})
    bad = [None, good.double(), good[..., :-1], good.repeat_interleave(2, -1)[..., ::2]]
    for tensor in bad:
        with pytest.raises(pa.InvalidTensor, match=f"^{name}"):
            setup.run(**{name: tensor})


def test_out_must_not_be_q() -> None:
    setup = Setup()
    with pytest.raises(pa.InvalidTensor, match="overlaps q"):
        setup.run(out=setup.q)


def test_out_must_not_overlap_what_is_read() -> None:
    setup = Setup()
    fused = torch.zeros(3, 8, 8)
    setup.run(q=fused[:, :4], out=fused[:, 4:])  # neighbours in one buffer are fine
    buffer = torch.zeros(4, 4, 8)
    for q, out in (
        (fused[:, :4], fused[:, 2:6]),
        (buffer[:3], buffer[1:]),
        (setup.q, setup.cache.k.flatten()[8 : 8 + 96].view(3, 4, 8)),
        (setup.q, torch.zeros(400).as_strided((3, 4, 8), (4, 2, 1))),
    ):
        with pytest.raises(pa.InvalidTensor, match=r"^out"):
            setup.run(q=q, out=out)


@pytest.mark.parametrize("name", ["q", "cache", "plan", "out"])
@pytest.mark.parametrize("value", [None, 3, [1.0]])
def test_what_is_no_tensor_is_named(name: str, value: object) -> None:
    with pytest.raises(pa.InvalidTensor) as caught:
        Setup().run(**{name: value})
    assert caught.value.name == name


def test_write_names_what_is_no_tensor() -> None:
    setup = Setup()
    k = torch.zeros(3, 2, 8)
    with pytest.raises(pa.InvalidTensor, match="slot_mapping: a list"):
        setup.op.write(k, k, setup.cache, [0, 1, 2])  # type: ignore[arg-type]
    with pytest.raises(pa.InvalidTensor, match="k: a NoneType"):
        setup.op.write(None, k, setup.cache, torch.arange(3))  # type: ignore[arg-type]


def test_open_and_plan_name_what_is_no_spec_limits_or_batch() -> None:
    backend, setup = pa.backend("reference"), Setup()
    with pytest.raises(TypeError, match="spec=3"):
        backend.open(3, LIMITS, device="cpu")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="limits=None"):
        backend.open(setup.spec, None, device="cpu")  # type: ignore[arg-type]
    with pytest.raises(pa.InvalidBatch, match="NoneType"):
        setup.op.plan(None)  # type: ignore[arg-type]
    with pytest.raises(pa.InvalidBatch, match="another op"):
        setup.op.plan(setup.batch, into=3)  # type: ignore[arg-type]


def test_devices_that_are_not_here_are_refused() -> None:
    with pytest.raises(pa.Unsupported) as caught:
        pa.backend("reference").open(spec_of(), LIMITS, device="meta")
    assert {r.code for r in caught.value.refusals} == {"device", "unavailable"}
    with pytest.raises(pa.UnknownName, match="no device named 'nope'"):
        pa.check("reference", spec_of(), "nope")


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_constant_scales_must_make_sense(bad: float) -> None:
    setup = Setup(kv_dtype=torch.int8, kv_quant=pa.KVQuant.PER_HEAD)
    assert setup.cache.v_scale is not None
    setup.cache.v_scale[1] = bad
    with pytest.raises(pa.InvalidTensor, match=r"cache\.v_scale"):
        setup.run()


def test_shared_kv_means_the_same_memory() -> None:
    setup = Setup(shared_kv=True, head_dim_v=4)
    setup.run(out=torch.zeros(3, 4, 4))
    k, wide = setup.cache.k, torch.zeros(20, 4, 2, 8)
    for cache in (
        pa.KVCache(k=k, v=k.clone()[..., :4]),
        pa.KVCache(k=wide[::2], v=wide[:10, ..., :4]),
    ):
        with pytest.raises(pa.InvalidTensor, match="shared_kv"):
            setup.run(cache=cache, out=torch.zeros(3, 4, 4))


def test_a_plan_belongs_to_its_op() -> None:
    setup = Setup()
    with pytest.raises(pa.InvalidTensor, match="plan"):
        setup.run(plan=Setup().plan)


def test_more_rows_than_the_batch_has_is_fine_and_they_stay() -> None:
    setup = Setup()
    out = torch.full((5, 4, 8), 7.0)
    q = torch.full((5, 4, 8), float("nan"))
    q[:3] = setup.q
    setup.run(q=q, out=out)
    setup.run()
    assert torch.equal(out[:3], setup.out)
    assert torch.equal(out[3:], torch.full((2, 4, 8), 7.0))


def cache_with(setup: Setup, **changes: torch.Tensor) -> pa.KVCache:
    tensors = {"k": setup.cache.k, "v": setup.cache.v} | changes
    return pa.KVCache(**tensors)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"k": torch.zeros(10, 4, 2, 8, dtype=torch.float16)}, "cache.k"),
        ({"k": torch.zeros(10, 2, 4, 8)}, "cache.k"),
        ({"v": torch.zeros(9, 4, 2, 8)}, "cache.v"),
        ({"v": torch.zeros(10, 2, 4, 8).transpose(1, 2)}, "cache.v"),  # HND
        ({"k": torch.zeros(10, 4, 2, 16)[..., ::2]}, "cache.k"),
        ({"k_scale": torch.ones(())}, "cache.k_scale"),
    ],
)
def test_caches_are_checked(changes: dict[str, torch.Tensor], name: str) -> None:
    setup = Setup()
    cache = cache_with(setup, **changes)
    with pytest.raises(pa.InvalidTensor) as caught:
        setup.run(cache=cache)
    assert caught.value.name == name
    k = torch.zeros(3, 2, 8)
    with pytest.raises(pa.InvalidTensor, match=name):
        setup.op.write(k, k, cache, torch.tensor([0, 1, 2]))


def test_a_pool_smaller_than_what_the_plan_reads() -> None:
    setup = Setup()
    small = pa.KVCache.allocate(setup.spec, 7, "cpu")
    with pytest.raises(pa.InvalidTensor, match="block 7"):
        setup.run(cache=small)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"k": torch.zeros(3, 2, 8, dtype=torch.float16)}, "k"),
        ({"v": torch.zeros(3, 2, 9)}, "v"),
        ({"v": None}, "v"),
        ({"k": torch.zeros(2, 2, 8)}, "k"),
        ({"slot_mapping": torch.zeros(3, dtype=torch.int32)}, "slot_mapping"),
        ({"slot_mapping": torch.arange(6)[::2]}, "slot_mapping"),
    ],
)
def test_write_names_the_tensor(changes: dict[str, torch.Tensor], name: str) -> None:
    setup = Setup()
    arguments = {
        "k": torch.zeros(3, 2, 8),
        "v": torch.zeros(3, 2, 8),
        "slot_mapping": torch.tensor([0, 1, 2]),
    } | changes
    with pytest.raises(pa.InvalidTensor) as caught:
        setup.op.write(cache=setup.cache, **arguments)
    assert caught.value.name == name


@pytest.mark.parametrize(("slots", "message"), [([3, 5, 3], "rows 0 and 2"), ([0, 40, 1], "40")])
def test_write_refuses_slots(slots: list[int], message: str) -> None:
    setup = Setup()
    k = torch.ones(3, 2, 8)
    with pytest.raises(pa.InvalidBatch, match=message):
        setup.op.write(k, k, setup.cache, torch.tensor(slots))
    assert setup.cache.k.count_nonzero() == 0


def test_open_refuses_with_the_reasons_of_check() -> None:
    class Core(pa.AttentionBackend):
        name = "core"
        op = pa.AttentionOp

    spec = spec_of(softcap=5.0, sinks=True, head_dim=96)
    refusals = pa.check(Core(), spec, "cpu")
    assert {r.code for r in refusals} == {
        "group_size",
        "head_dim",
        "block_size",
        "softcap",
        "sinks",
    }
    with pytest.raises(pa.Unsupported) as caught:
        Core().open(spec, LIMITS, device="cpu")
    assert caught.value.refusals == refusals
    (row,) = [r for r in refusals if r.code == "block_size"]
    assert (row.backend, row.requested, row.supported) == ("core", 4, "16")
    assert "block_size" in row.hint


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"softcap": 5.0, "alibi": True}, "softcap+alibi"),
        ({"mask": pa.Mask.TREE, "window": (3, None)}, "tree+window"),
        ({"mask": pa.Mask.TREE, "alibi": True}, "tree+alibi"),
    ],
)
def test_combinations_without_an_agreed_meaning(changes: dict[str, object], code: str) -> None:
    refusals = pa.check("reference", spec_of(**changes), "cpu")
    assert [r.code for r in refusals] == [code]


def test_check_on_devices_that_are_not_here() -> None:
    assert pa.check("reference", spec_of(), "sm90") == ()
    assert [r.code for r in pa.check("reference", spec_of(), "mps")] == ["device"]
    info = pa.DeviceInfo.of("sm120")
    assert (info.type, info.sm, info.real) == ("cuda", (12, 0), False)


def test_tuning_and_workspace() -> None:
    reference = pa.backend("reference")
    with pytest.raises(ValueError, match="no knob 'splits'"):
        reference.open(spec_of(), LIMITS, device="cpu", tuning={"splits": 2})

    class Hungry(pa.AttentionBackend):
        name = "hungry"
        op = pa.AttentionOp

        def capabilities(self, device: pa.DeviceInfo) -> pa.Capabilities:
            return reference.capabilities(device)

        def workspace_bytes(
            self, spec: pa.AttentionSpec, limits: pa.Limits, device: pa.DeviceInfo
        ) -> int:
            return 64

        def tunables(
            self, spec: pa.AttentionSpec, device: pa.DeviceInfo
        ) -> Mapping[str, Sequence[int]]:
            return {"splits": (1, 2)}

    op = Hungry().open(spec_of(), LIMITS, device="cpu", tuning={"splits": 2})
    assert op.tuning == {"splits": 2}
    with pytest.raises(ValueError, match="splits=3 is not one of 1, 2"):
        Hungry().open(spec_of(), LIMITS, device="cpu", tuning={"splits": 3})
    assert Hungry().open(spec_of(), LIMITS, device="cpu").workspace.numel() == 64
    shared = torch.empty(128, dtype=torch.uint8)
    op = Hungry().open(spec_of(), LIMITS, device="cpu", workspace=shared)
    assert op.workspace is shared
    with pytest.raises(pa.InvalidTensor, match="at least 64 bytes"):
        Hungry().open(spec_of(), LIMITS, device="cpu", workspace=torch.empty(8, dtype=torch.uint8))
    for odd in (shared[::2], shared[1:]):  # a kernel takes an address and counts bytes from there
        with pytest.raises(pa.InvalidTensor, match="contiguous bytes that start on 16"):
            Hungry().open(spec_of(), LIMITS, device="cpu", workspace=odd)


def test_a_default_device_of_torch_changes_nothing() -> None:
    with torch.device("meta"):
        batch = pa.AttentionBatch.build(
            query_lens=[1], seq_lens=[3], block_tables=[[0]], block_size=16, device="cpu"
        )
        assert batch.seq_lens.device.type == batch.block_table.device.type == "cpu"
        op = pa.backend("reference").open(spec_of(), LIMITS, device="cpu")
        op.plan(batch)
