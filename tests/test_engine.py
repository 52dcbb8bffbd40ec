"""The engine on a tiny model: right tokens, whatever the batching, and clear refusals."""

from dataclasses import replace

import pytest
import torch
from engine_support import VOCAB, TinyModel, assert_drained, prompt

import pagedattn as pa
from pagedattn.backends.reference import ReferenceBackend
from pagedattn.device import DeviceInfo
from pagedattn.engine import Completion, FinishReason, Progress
from pagedattn.errors import EngineError, InvalidRequest

PROMPTS = [prompt(n, start) for start, n in enumerate([1, 3, 4, 5, 8, 13, 21])]
GREEDY = pa.SamplingParams(max_new_tokens=9)


def tokens(completions: list[Completion]) -> list[tuple[int, ...]]:
    return [done.token_ids for done in completions]


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("max_batch_tokens", [1, 5, 512])
def test_any_batching_equals_the_model_without_a_cache(
    block_size: int, max_batch_tokens: int
) -> None:
    model = TinyModel()
    engine = pa.Engine(
        model, num_blocks=256, block_size=block_size, max_batch_tokens=max_batch_tokens
    )
    done = engine.generate(PROMPTS, GREEDY)
    assert tokens(done) == [model.dense_greedy(p, 9) for p in PROMPTS]
    assert [c.prompt_len for c in done] == [len(p) for p in PROMPTS]
    assert {c.finish_reason for c in done} == {FinishReason.LENGTH}
    assert all(len(step) <= max_batch_tokens for step in model.seen)
    assert_drained(engine.allocator)


def test_max_requests_bounds_a_step() -> None:
    model = TinyModel()
    engine = pa.Engine(model, max_requests=2)
    assert tokens(engine.generate(PROMPTS, GREEDY)) == [model.dense_greedy(p, 9) for p in PROMPTS]
    assert max(len(step) for step in model.seen[2:]) <= 2 * 21
    assert all(sum(p == 0 for p in step) <= 2 for step in model.seen)


def test_prompts_are_computed_in_chunks_beside_decodes() -> None:
    model = TinyModel()
    engine = pa.Engine(model, max_batch_tokens=4)
    first = engine.submit(prompt(3), pa.SamplingParams(max_new_tokens=6))
    engine.step()
    engine.submit(prompt(8, 2), pa.SamplingParams(max_new_tokens=1))
    outputs = [engine.step() for _ in range(3)]
    # The decode goes first with one row, the new prompt takes what is left: 3 + 3 + 2 tokens.
    assert model.seen[1:] == [[3, 0, 1, 2], [4, 3, 4, 5], [5, 6, 7]]
    assert [[o.request_id for o in step] for step in outputs] == [[first], [first], [first, 1]]


def test_engine_serves_again_and_again() -> None:
    model = TinyModel()
    engine = pa.Engine(model)
    expected = [model.dense_greedy(p, 9) for p in PROMPTS]
    assert tokens(engine.generate(PROMPTS, GREEDY)) == expected
    assert tokens(engine.generate(PROMPTS[::-1], GREEDY)) == expected[::-1]
    assert engine.generate([], GREEDY) == []
    assert_drained(engine.allocator)


def test_params_may_differ_by_prompt() -> None:
    model = TinyModel()
    each = [pa.SamplingParams(max_new_tokens=n) for n in (1, 7, 3)]
    done = pa.Engine(model).generate(PROMPTS[:3], each)
    assert [len(c.token_ids) for c in done] == [1, 7, 3]


@pytest.mark.parametrize("how", ["eos", "stop_token_ids", "ignored"])
@pytest.mark.parametrize("at", [1, 2, 4, 9])  # with a prompt of 3, position 4 is a block border
def test_stop_tokens_end_a_text_and_belong_to_it(how: str, at: int) -> None:
    expected = TinyModel().dense_greedy(prompt(3), 9)
    at = expected.index(expected[at - 1]) + 1  # where that token comes first
    stop = expected[at - 1]
    model = TinyModel(eos=[] if how == "stop_token_ids" else [stop])
    engine = pa.Engine(model, block_size=4)
    params = pa.SamplingParams(
        max_new_tokens=9,
        stop_token_ids={stop} if how == "stop_token_ids" else (),
        ignore_eos=how == "ignored",
    )
    (done,) = engine.generate([prompt(3)], params)
    if how == "ignored":
        assert (done.token_ids, done.finish_reason) == (expected, FinishReason.LENGTH)
    else:
        assert (done.token_ids, done.finish_reason) == (expected[:at], FinishReason.STOP)
    assert_drained(engine.allocator)


def test_seeded_text_does_not_depend_on_the_batch_or_the_pool() -> None:
    model = TinyModel()
    params = pa.SamplingParams(max_new_tokens=9, temperature=1.3, top_k=20, top_p=0.9, seed=11)
    alone = [pa.Engine(model).generate([p], params)[0].token_ids for p in PROMPTS]
    assert tokens(pa.Engine(model).generate(PROMPTS, params)) == alone
    small = pa.Engine(model, num_blocks=8, block_size=4, max_batch_tokens=6)
    assert tokens(small.generate(PROMPTS, params)) == alone
    assert len(set(alone)) == len(alone)


def test_the_same_prompt_again_is_found_in_the_cache() -> None:
    model = TinyModel()
    engine = pa.Engine(model, block_size=16)
    one_block, two = prompt(16), prompt(33, 3)
    expected = [model.dense_greedy(p, 9) for p in (one_block, two)]
    assert tokens(engine.generate([one_block, two], GREEDY)) == expected
    steps = len(model.seen)
    again = engine.generate([one_block, two], GREEDY)
    assert tokens(again) == expected
    # The whole prompt is never taken from the cache: its last token is computed.
    assert [c.cached_tokens for c in again] == [0, 32]
    assert len(model.seen[steps]) == 16 + 1


def test_prompts_of_one_step_do_not_share_what_is_not_computed_yet() -> None:
    model = TinyModel()
    engine = pa.Engine(model, block_size=4)
    done = engine.generate([prompt(9), prompt(9)], GREEDY)
    assert [c.cached_tokens for c in done] == [0, 0]
    assert tokens(done) == [model.dense_greedy(prompt(9), 9)] * 2


def test_a_finished_chunk_is_shared_and_an_aborted_prompt_is_not() -> None:
    model = TinyModel()
    engine = pa.Engine(model, block_size=4, max_batch_tokens=8)
    first = engine.submit(prompt(20), GREEDY)
    engine.step()  # two blocks of the first prompt are computed, three are not
    second = engine.submit(prompt(20), GREEDY)
    finished = {}
    while engine.pending:
        for output in engine.step():
            if output.completion:
                finished[output.request_id] = output.completion
    assert finished[first].cached_tokens == 0
    assert finished[second].cached_tokens >= 8
    expected = model.dense_greedy(prompt(20), 9)
    assert [finished[i].token_ids for i in (first, second)] == [expected, expected]

    fresh = pa.Engine(model, block_size=4)
    fresh.abort(fresh.submit(prompt(20), GREEDY))
    assert fresh.generate([prompt(20)], GREEDY)[0].cached_tokens == 0


def test_copy_on_write_copies_run_before_the_step_writes() -> None:
    model = TinyModel()
    engine = pa.Engine(model, block_size=4)
    request = engine.submit(prompt(6), GREEDY)
    engine.step()
    # Somebody else shares the half-filled second block: our next token must go to a copy of it.
    shared = engine.allocator.table(request)[1]
    engine.allocator.fork(request, 1000)
    before = engine.layers.caches[0].k[shared].clone()
    (output,) = engine.step()
    assert engine.allocator.table(request)[1] != shared
    assert torch.equal(engine.layers.caches[0].k[shared], before)
    generated = [output.token_id]
    while engine.pending:
        generated += [o.token_id for o in engine.step()]
    assert tuple(generated) == model.dense_greedy(prompt(6), 9)[1:]
    engine.allocator.close(1000)
    assert_drained(engine.allocator)


def test_progress_is_told_after_every_step() -> None:
    told: list[Progress] = []
    model = TinyModel()
    each = [pa.SamplingParams(max_new_tokens=n) for n in (2, 5)]
    pa.Engine(model).generate([prompt(3), prompt(4)], each, progress=told.append)
    assert told[0] == Progress(requests_done=0, requests=2, tokens=2, max_tokens=7)
    assert told[-1] == Progress(requests_done=2, requests=2, tokens=7, max_tokens=7)
    assert len(told) == len(model.seen)


def test_stats_count_what_happened() -> None:
    engine = pa.Engine(TinyModel(), block_size=4)
    engine.generate([prompt(6), prompt(3, 9)], pa.SamplingParams(max_new_tokens=3))
    stats = engine.stats
    assert (stats.steps, stats.generated_tokens, stats.preemptions) == (3, 6, 0)
    assert stats.computed_tokens == 6 + 3 + 2 * 2
    assert stats.peak_blocks == 2 + 2
    assert min(stats.plan_s, stats.write_s, stats.run_s, stats.model_s, stats.sample_s) > 0


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "empty"),
        ([1, VOCAB], rf"prompt\[1\] is {VOCAB}"),
        ([-1], r"prompt\[0\] is -1"),
        ("text", "no tokenizer"),
        (prompt(100), "13 blocks"),
    ],
)
def test_impossible_requests_are_refused_before_anything_runs(bad: object, message: str) -> None:
    model = TinyModel()
    engine = pa.Engine(model, num_blocks=8, block_size=8)
    with pytest.raises(InvalidRequest, match=message):
        engine.generate([prompt(3), bad], pa.SamplingParams(max_new_tokens=3))
    assert model.seen == []
    assert not engine.pending
    (done,) = engine.generate([prompt(3)], GREEDY)
    assert done.token_ids == model.dense_greedy(prompt(3), 9)


def test_prompt_fits_but_not_what_it_may_become() -> None:
    model = TinyModel()
    engine = pa.Engine(model, num_blocks=8, block_size=16)
    with pytest.raises(InvalidRequest, match="num_blocks >= 13"):
        engine.submit(prompt(100), pa.SamplingParams(max_new_tokens=101))
    with pytest.raises(InvalidRequest, match="num_blocks >= 9"):
        engine.submit(prompt(100), pa.SamplingParams(max_new_tokens=30))
    # 100 + 29 - 1 tokens are stored, which is the pool to the last slot.
    (done,) = engine.generate([prompt(100)], pa.SamplingParams(max_new_tokens=29))
    assert done.token_ids == model.dense_greedy(prompt(100), 29)


def test_longer_than_the_model_is_refused() -> None:
    engine = pa.Engine(TinyModel(max_model_len=20))
    with pytest.raises(InvalidRequest, match="21 positions; the model has 20"):
        engine.submit(prompt(12), pa.SamplingParams(max_new_tokens=10))
    (done,) = engine.generate([prompt(12)], GREEDY)
    assert len(done.token_ids) == 9


def test_misuse_of_generate_is_told() -> None:
    engine = pa.Engine(TinyModel())
    with pytest.raises(InvalidRequest, match="one text"):
        engine.generate("hello")
    with pytest.raises(InvalidRequest, match="2 params for 1 prompts"):
        engine.generate([prompt(3)], [GREEDY, GREEDY])
    with pytest.raises(TypeError, match="SamplingParams"):
        engine.submit(prompt(3), {"temperature": 1})  # type: ignore[arg-type]
    engine.submit(prompt(3))
    with pytest.raises(EngineError, match="pending"):
        engine.generate([prompt(3)])


@pytest.mark.parametrize("name", ["max_batch_tokens", "max_requests"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_bad_engine_options_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        pa.Engine(TinyModel(), **{name: value})


def test_an_allocator_brings_its_own_numbers() -> None:
    pool = pa.allocator("paged", num_blocks=12, block_size=4)
    engine = pa.Engine(TinyModel(), allocator=pool)
    assert engine.limits.num_blocks == 12
    assert engine.layers.specs[0].block_size == 4
    with pytest.raises(ValueError, match="block_size=16, but the given allocator has block_size=4"):
        pa.Engine(TinyModel(), allocator=pool, block_size=16)


def test_a_used_allocator_forgets_what_lies_in_other_caches() -> None:
    pool = pa.allocator("paged", num_blocks=12, block_size=4)
    texts = []
    for _ in range(2):
        with pa.Engine(TinyModel(), allocator=pool) as engine:
            done = engine.generate([prompt(9)], pa.SamplingParams(max_new_tokens=3))[0]
            with pytest.raises(ValueError, match="the allocator is in use"):
                pa.Engine(TinyModel(), allocator=pool)
        texts.append(done.token_ids)
        assert done.cached_tokens == 0
    assert texts[0] == texts[1]
    with pytest.raises(EngineError, match="closed"):
        engine.submit(prompt(9))


def test_aborting_a_prompt_of_generate_is_an_error_of_generate() -> None:
    engine = pa.Engine(TinyModel())
    with pytest.raises(EngineError, match="1 of the prompts"):
        engine.generate([prompt(5), prompt(6)], progress=lambda _: engine.abort(0))
    assert not engine.pending


@pytest.mark.parametrize("what", ["backend", "allocator"])
def test_what_is_neither_a_name_nor_an_instance(what: str) -> None:
    with pytest.raises(TypeError, match=f"{what}=3 is neither a name"):
        pa.Engine(TinyModel(), **{what: 3})


def test_prompts_must_be_sequences_of_ints() -> None:
    engine = pa.Engine(TinyModel())
    for bad in ([1, 2, 3], [[1.5]]):
        with pytest.raises(InvalidRequest, match="neither text nor a sequence of ints"):
            engine.generate(bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="params="):
        engine.generate([prompt(4)], {"max_new_tokens": 3})  # type: ignore[arg-type]


def test_a_backend_for_another_device_is_refused_before_the_model_loads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OnGPUs(ReferenceBackend):
        def capabilities(self, device: pa.DeviceInfo) -> pa.Capabilities:
            return replace(super().capabilities(device), device={"cuda"})

    def load(*args: object, **options: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("pagedattn.engine.engine.resolve_model", load)
    with pytest.raises(pa.Unsupported, match="device=cpu is not supported"):
        pa.Engine("smollm2", backend=OnGPUs())


def test_a_backend_that_declines_is_not_replaced() -> None:
    class NoWindow(ReferenceBackend):
        name = "no-window"

        def capabilities(self, device: DeviceInfo) -> pa.Capabilities:
            return pa.Capabilities(group_size={2}, head_dim={8}, block_size={16})

    with pytest.raises(pa.Unsupported, match="window") as caught:
        pa.Engine(TinyModel(), backend=NoWindow())
    spec = TinyModel().layer_specs(16)[1]
    assert caught.value.refusals == pa.check(NoWindow(), spec, "cpu")


def test_unknown_names_are_told() -> None:
    with pytest.raises(pa.UnknownName, match="reference"):
        pa.Engine(TinyModel(), backend="referense")
    with pytest.raises(pa.UnknownName, match="paged"):
        pa.Engine(TinyModel(), allocator="pages")


def test_model_runners_own_dtype_and_device() -> None:
    with pytest.raises(ValueError, match="belong to the ModelRunner"):
        pa.Engine(TinyModel(), dtype=torch.float32)


def test_a_model_without_a_runner_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEDATTN_BLOCK", "transformers")
    with pytest.raises(pa.NotReady, match="plugins/transformers"):
        pa.Engine("smollm2")
