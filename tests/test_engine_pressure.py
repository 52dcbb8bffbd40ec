"""The engine when blocks are short, when requests are aborted, and when things break."""

import pytest
import torch
from engine_support import TinyModel, assert_drained, prompt

import pagedattn as pa
from pagedattn.engine import FinishReason, LayerAttention
from pagedattn.engine.request import Request, RequestState
from pagedattn.errors import EngineError

GREEDY = pa.SamplingParams(max_new_tokens=12)


def run_all(
    engine: pa.Engine, streamed: dict[int, list[int]] | None = None
) -> dict[int, list[int]]:
    """Step to the end; the tokens of each request in the order in which they came, after those of
    `streamed`."""
    streamed = {} if streamed is None else streamed
    while engine.pending:
        for output in engine.step():
            streamed.setdefault(output.request_id, []).append(output.token_id)
            if output.completion is not None:
                assert output.completion.token_ids == tuple(streamed[output.request_id])
    return streamed


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_every_running_request_needs_a_block_and_none_is_free(prefix_cache: bool) -> None:
    model = TinyModel()
    pool = pa.allocator("paged", num_blocks=6, block_size=4, prefix_cache=prefix_cache)
    engine = pa.Engine(model, allocator=pool)
    prompts = [prompt(7, start) for start in range(3)]
    ids = [engine.submit(p, GREEDY) for p in prompts]
    streamed = run_all(engine)
    assert [tuple(streamed[i]) for i in ids] == [model.dense_greedy(p, 12) for p in prompts]
    assert 1 <= engine.stats.preemptions <= 6
    assert engine.stats.peak_blocks <= 6
    assert_drained(pool)


@pytest.mark.parametrize("generated", [1, 3, 4, 5])
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize(
    "params", [GREEDY, pa.SamplingParams(max_new_tokens=12, temperature=1.2, seed=4)]
)
def test_a_preempted_request_goes_on_where_it_was(
    generated: int, prefix_cache: bool, params: pa.SamplingParams
) -> None:
    model = TinyModel()
    (expected,) = pa.Engine(model).generate([prompt(6)], params)
    pool = pa.allocator("paged", num_blocks=32, block_size=4, prefix_cache=prefix_cache)
    engine = pa.Engine(model, allocator=pool)
    request = engine.submit(prompt(6), params)
    streamed = [engine.step()[0].token_id for _ in range(generated)]
    engine.scheduler.preempt(engine.scheduler.running[0])
    assert_drained(pool)
    completion = None
    while engine.pending:
        for output in engine.step():
            streamed.append(output.token_id)
            completion = output.completion
    assert completion is not None
    assert completion.request_id == request
    assert tuple(streamed) == completion.token_ids == expected.token_ids
    assert (completion.prompt_len, completion.preemptions) == (6, 1)
    assert completion.cached_tokens == 0  # what it finds of its own is no hit


def test_the_youngest_is_preempted_and_the_oldest_finishes_first() -> None:
    engine = pa.Engine(TinyModel(), num_blocks=6, block_size=4)
    ids = [engine.submit(prompt(7, start), GREEDY) for start in range(3)]
    order, preempted = [], {}
    while engine.pending:
        for output in engine.step():
            if output.completion is not None:
                order.append(output.request_id)
                preempted[output.request_id] = output.completion.preemptions
    assert order[0] == ids[0]
    assert preempted[ids[0]] == 0


def test_small_pools_give_the_same_text_for_many_requests() -> None:
    model = TinyModel()
    prompts = [prompt(1 + (7 * i) % 19, i) for i in range(24)]
    params = [pa.SamplingParams(max_new_tokens=1 + (5 * i) % 13) for i in range(24)]
    expected = [
        model.dense_greedy(p, how.max_new_tokens) for p, how in zip(prompts, params, strict=True)
    ]
    for blocks, rows in ((8, 512), (8, 3), (11, 16), (200, 512)):
        engine = pa.Engine(model, num_blocks=blocks, block_size=4, max_batch_tokens=rows)
        done = engine.generate(prompts, params)
        assert [c.token_ids for c in done] == expected
        assert_drained(engine.allocator)


def test_a_waiting_request_starts_as_soon_as_it_fits() -> None:
    engine = pa.Engine(TinyModel(), num_blocks=7, block_size=4)
    for length, count in ((1, 4), (1, 2), (21, 1)):  # which store 1, 1 and 6 blocks at most
        engine.submit(prompt(length, length + count), pa.SamplingParams(max_new_tokens=count))
    steps = []
    while engine.pending:
        steps.append([output.request_id for output in engine.step()])
    assert steps == [[0, 1], [0, 1], [0, 2], [0]]


def two_requests(
    *, num_blocks: int, max_batch_tokens: int, lengths: tuple[int, int]
) -> tuple[pa.Engine, list[Request], dict[int, list[int]]]:
    """Both have generated something and the older one has just been preempted; nothing of it can
    be found again."""
    pool = pa.allocator("paged", num_blocks=num_blocks, block_size=4, prefix_cache=False)
    engine = pa.Engine(TinyModel(), allocator=pool, max_batch_tokens=max_batch_tokens)
    ids = [engine.submit(prompt(n, n), pa.SamplingParams(max_new_tokens=28)) for n in lengths]
    requests = list(engine.scheduler.waiting)
    streamed: dict[int, list[int]] = {i: [] for i in ids}
    while not all(streamed.values()):
        for output in engine.step():
            streamed[output.request_id].append(output.token_id)
    engine.scheduler.preempt(requests[0])
    return engine, requests, streamed


def test_an_older_prompt_computed_again_does_not_hold_up_decodes() -> None:
    engine, _, _ = two_requests(num_blocks=64, max_batch_tokens=3, lengths=(5, 3))
    assert [[o.request_id for o in engine.step()] for _ in range(3)] == [[1], [1], [1]]
    assert 0 in [o.request_id for o in engine.step()]


def test_an_older_prompt_takes_the_blocks_of_a_decode_of_the_same_step() -> None:
    engine, (old, young), streamed = two_requests(
        num_blocks=13, max_batch_tokens=2, lengths=(24, 1)
    )
    run_all(engine, streamed)
    assert (old.preemptions, young.preemptions) == (1, 1)
    model = TinyModel()
    assert tuple(streamed[old.id]) == model.dense_greedy(prompt(24, 24), 28)
    assert tuple(streamed[young.id]) == model.dense_greedy(prompt(1, 1), 28)
    assert_drained(engine.allocator)


def test_hundreds_of_requests_leak_no_block() -> None:
    pool = pa.allocator("paged", num_blocks=64, block_size=4, prefix_cache=False)
    engine = pa.Engine(TinyModel(), allocator=pool)
    for round_ in range(5):
        prompts = [prompt(1 + (round_ * 60 + i) % 40, i) for i in range(60)]
        params = [pa.SamplingParams(max_new_tokens=1 + i % 3) for i in range(60)]
        engine.generate(prompts, params)
        assert pool.stats().free == 64


# -- abort -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["waiting", "chunk", "running", "preempted"])
def test_abort_in_any_state_returns_every_block(state: str) -> None:
    model = TinyModel()
    engine = pa.Engine(model, num_blocks=64, block_size=4, max_batch_tokens=8)
    other = engine.submit(prompt(5, 9), GREEDY)
    victim = engine.submit(prompt(21), GREEDY)
    request = engine.scheduler.waiting[1]
    steps = {"waiting": 0, "chunk": 2, "running": 6, "preempted": 6}[state]
    streamed = [o.token_id for _ in range(steps) for o in engine.step() if o.request_id == other]
    if state == "preempted":
        engine.scheduler.preempt(request)
    assert request.state is (
        RequestState.RUNNING if state in ("chunk", "running") else RequestState.WAITING
    )
    assert (request.generated > 0) == (state in ("running", "preempted"))
    generated = tuple(request.tokens[21:])
    completion = engine.abort(victim)
    assert completion is not None
    assert completion.finish_reason is FinishReason.ABORTED
    assert completion.token_ids == generated
    assert engine.abort(victim) is None
    done = run_all(engine, {other: streamed})
    assert victim not in done
    assert tuple(done[other]) == model.dense_greedy(prompt(5, 9), 12)
    assert_drained(engine.allocator)


def test_abort_of_unknown_and_finished_requests_does_nothing() -> None:
    engine = pa.Engine(TinyModel())
    (done,) = engine.generate([prompt(3)], GREEDY)
    assert engine.abort(done.request_id) is None
    assert engine.abort(12345) is None
    assert_drained(engine.allocator)


def test_close_aborts_what_is_pending() -> None:
    with pa.Engine(TinyModel()) as engine:
        engine.submit(prompt(9), GREEDY)
        engine.step()
        engine.submit(prompt(9), GREEDY)
    assert not engine.pending
    assert_drained(engine.allocator)


# -- things that break -----------------------------------------------------------------------------


def test_an_exception_in_the_model_releases_every_block() -> None:
    model = TinyModel()
    engine = pa.Engine(model, block_size=4)
    model.fail = 3
    with pytest.raises(RuntimeError, match="the model broke"):
        engine.generate([prompt(9), prompt(5)], GREEDY)
    assert not engine.pending
    assert_drained(engine.allocator)
    model.fail = None
    (done,) = engine.generate([prompt(9)], GREEDY)
    assert done.token_ids == model.dense_greedy(prompt(9), 12)


def test_a_failed_step_can_be_taken_again() -> None:
    model = TinyModel()
    engine = pa.Engine(model, block_size=4)
    prompts = [prompt(9), prompt(5, 2)]
    ids = [engine.submit(p, GREEDY) for p in prompts]
    streamed: dict[int, list[int]] = {i: [] for i in ids}

    def step() -> None:
        for output in engine.step():
            streamed[output.request_id].append(output.token_id)

    for _ in range(3):
        step()
    model.fail = 3
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the model broke"):
            step()
        assert_drained(engine.allocator)
    model.fail = None
    while engine.pending:
        step()
    assert [tuple(streamed[i]) for i in ids] == [model.dense_greedy(p, 12) for p in prompts]


def test_an_interrupt_releases_every_block() -> None:
    engine = pa.Engine(TinyModel())

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate([prompt(9), prompt(5)], GREEDY, progress=interrupt)
    assert not engine.pending
    assert_drained(engine.allocator)


def test_no_progress_is_an_error_and_not_a_wait() -> None:
    pool = pa.allocator("paged", num_blocks=8, block_size=4)
    pool.open(1000, prompt(9))
    pool.append(1000, 24)  # another user of the pool leaves two blocks
    engine = pa.Engine(TinyModel(), allocator=pool)
    with pytest.raises(EngineError, match="request 0 has 9 tokens, 2 of 8 blocks"):
        engine.generate([prompt(9), prompt(5)], GREEDY)
    assert not engine.pending
    assert pool.stats().live == 6
    pool.close(1000)
    assert len(engine.generate([prompt(9)], GREEDY)[0].token_ids) == 12


def test_a_request_that_can_grow_no_more_is_an_error() -> None:
    pool = pa.allocator("paged", num_blocks=8, block_size=4)
    engine = pa.Engine(TinyModel(), allocator=pool)
    engine.submit(prompt(7), GREEDY)
    engine.step()
    pool.open(1000, prompt(9, 5))
    pool.append(1000, 24)
    engine.step()
    with pytest.raises(EngineError, match="no progress"):
        engine.step()
    assert pool.stats().live == 6


class SkipsALayer(TinyModel):
    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: LayerAttention,
        logits_rows: torch.Tensor,
    ) -> torch.Tensor:
        q, k, v = self._project(0, self.embed[input_ids])
        attention(0, q, k, v)
        return torch.zeros(len(logits_rows), self.vocab_size)


class CallsTwice(SkipsALayer):
    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: LayerAttention,
        logits_rows: torch.Tensor,
    ) -> torch.Tensor:
        super().forward(input_ids, positions, attention, logits_rows)
        return super().forward(input_ids, positions, attention, logits_rows)


class Broken(TinyModel):
    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: LayerAttention,
        logits_rows: torch.Tensor,
    ) -> torch.Tensor:
        logits = super().forward(input_ids, positions, attention, logits_rows)
        return logits.fill_(float("nan")) if len(self.seen) > 2 else logits


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (SkipsALayer, r"did not call attention for layers \[1\]"),
        (CallsTwice, "layer 0 is called twice"),
        (Broken, "row 0 of the model's logits"),
    ],
)
def test_a_model_that_breaks_the_interface_is_told(model: type[TinyModel], message: str) -> None:
    engine = pa.Engine(model())
    with pytest.raises(EngineError, match=message):
        engine.generate([prompt(5)], GREEDY)
    assert_drained(engine.allocator)


def test_attention_outside_of_a_step_is_an_error() -> None:
    engine = pa.Engine(TinyModel())
    engine.generate([prompt(5)], GREEDY)
    with pytest.raises(EngineError, match="outside of a step"):
        engine.layers(0, torch.zeros(1, 4, 8), torch.zeros(1, 2, 8), torch.zeros(1, 2, 8))


@pytest.mark.parametrize("watermark", [1.0, 1.5, -0.1, float("nan")])
def test_a_watermark_that_would_keep_everybody_out_is_refused(watermark: float) -> None:
    with pytest.raises(ValueError, match="watermark is"):
        pa.Engine(TinyModel(), watermark=watermark)


@pytest.mark.parametrize("watermark", [0, 0.01, 0.99])
@pytest.mark.parametrize("num_blocks", [1, 2, 100])
def test_no_watermark_makes_a_pool_unusable(watermark: float, num_blocks: int) -> None:
    model = TinyModel()
    engine = pa.Engine(model, num_blocks=num_blocks, block_size=16, watermark=watermark)
    params = pa.SamplingParams(max_new_tokens=5)
    done = engine.generate([prompt(9, start) for start in range(3)], params)
    wanted = [model.dense_greedy(prompt(9, start), 5) for start in range(3)]
    assert [d.token_ids for d in done] == wanted


@pytest.mark.parametrize(("watermark", "together"), [(0.0, 4), (0.3, 3), (0.6, 2), (0.9, 1)])
def test_a_watermark_keeps_blocks_for_those_that_run(watermark: float, together: int) -> None:
    engine = pa.Engine(TinyModel(), num_blocks=10, block_size=4, watermark=watermark)
    for start in range(4):
        engine.submit(prompt(6, start), pa.SamplingParams(max_new_tokens=2))
    engine.step()
    assert len(engine.scheduler.running) == together


def test_an_allocator_that_reserves_needs_no_watermark() -> None:
    pool = pa.allocator("contiguous_max", num_blocks=10, block_size=4, max_seq_len=8)
    engine = pa.Engine(TinyModel(), allocator=pool, watermark=0.9)
    for start in range(4):
        engine.submit(prompt(6, start), pa.SamplingParams(max_new_tokens=2))
    engine.step()
    assert len(engine.scheduler.running) == 4
