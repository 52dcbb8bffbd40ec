"""What an engine forgets easily: whose turn it is, what a failed step has really computed, whose
randomness and parameters a row has."""

import pytest
import torch
from engine_support import TinyModel, assert_drained, prompt

import pagedattn as pa
from pagedattn.engine.sampling import distribution

GREEDY = pa.SamplingParams(max_new_tokens=6)


def test_nothing_of_a_step_that_failed_is_found() -> None:
    """The model breaks between its layers: keys of the first are written, of the second not."""
    model = TinyModel()
    engine = pa.Engine(model, block_size=4)
    model.fail = 0
    first = engine.submit(prompt(13), GREEDY)
    with pytest.raises(RuntimeError, match="the model broke"):
        engine.step()
    assert_drained(engine.allocator)
    assert engine.allocator.stats().reclaimable == 0
    engine.abort(first)
    model.fail = None
    (done,) = engine.generate([prompt(13)], GREEDY)
    assert done.cached_tokens == 0
    assert done.token_ids == model.dense_greedy(prompt(13), 6)


def test_preempted_requests_wait_before_younger_ones() -> None:
    engine = pa.Engine(TinyModel(), num_blocks=32, block_size=4, max_requests=2)
    ids = [engine.submit(prompt(5, start), GREEDY) for start in range(4)]
    engine.step()
    for request in reversed(engine.scheduler.running):
        engine.scheduler.preempt(request)
    assert [request.id for request in engine.scheduler.waiting] == ids
    assert sorted(output.request_id for output in engine.step()) == ids[:2]


def test_rows_of_one_step_keep_their_own_parameters_and_seeds() -> None:
    """Greedy, seeded and narrow sampling beside each other give what each gives alone."""
    prompts = [prompt(4, start) for start in range(5)]
    each = [
        pa.SamplingParams(max_new_tokens=8),
        pa.SamplingParams(max_new_tokens=8, temperature=1.5, seed=3),
        pa.SamplingParams(max_new_tokens=8, temperature=1.5, seed=4),
        pa.SamplingParams(max_new_tokens=8, temperature=0.7, top_k=3, seed=3),
        pa.SamplingParams(max_new_tokens=8, temperature=2.0, top_p=0.5, min_p=0.1, seed=5),
    ]
    alone = [
        pa.Engine(TinyModel()).generate([p], how)[0] for p, how in zip(prompts, each, strict=True)
    ]
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]):
        done = pa.Engine(TinyModel(), block_size=4).generate(
            [prompts[i] for i in order], [each[i] for i in order]
        )
        assert [c.token_ids for c in done] == [alone[i].token_ids for i in order]


def test_completions_come_in_the_order_of_the_prompts() -> None:
    counts = [7, 1, 4, 2]
    prompts = [prompt(3, start) for start in range(4)]
    each = [pa.SamplingParams(max_new_tokens=n) for n in counts]
    done = pa.Engine(TinyModel()).generate(prompts, each)
    assert [len(c.token_ids) for c in done] == counts
    assert [c.token_ids for c in done] == [
        TinyModel().dense_greedy(p, n) for p, n in zip(prompts, counts, strict=True)
    ]


def test_generated_tokens_are_found_again_after_a_preemption() -> None:
    model = TinyModel()
    engine = pa.Engine(model, num_blocks=32, block_size=4)
    engine.submit(prompt(6), pa.SamplingParams(max_new_tokens=12))
    for _ in range(8):  # 6 + 7 tokens are stored, 3 blocks of them are full
        engine.step()
    engine.scheduler.preempt(engine.scheduler.running[0])
    engine.step()
    assert model.seen[-1] == [12, 13]


def test_what_a_prompt_shares_lets_the_next_one_start() -> None:
    """Two equal prompts fit together only because they share: the second need not wait for the
    end of the first."""
    engine = pa.Engine(TinyModel(), num_blocks=9, block_size=4)
    params = pa.SamplingParams(max_new_tokens=8)
    first, second = (engine.submit(prompt(17), params) for _ in range(2))
    steps = []
    while engine.pending:
        steps.append({output.request_id for output in engine.step()})
    assert steps[0] == {first}
    assert {first, second} in steps


def test_an_engine_draws_no_random_numbers_of_others() -> None:
    before = torch.get_rng_state()
    sampled = pa.SamplingParams(max_new_tokens=5, temperature=1.0, seed=1)
    pa.Engine(TinyModel()).generate([prompt(4), prompt(5)], [GREEDY, sampled])
    assert torch.equal(torch.get_rng_state(), before)


def test_top_p_stops_where_it_is_reached() -> None:
    """Two tokens of probability 1/2 each: the first one adds up to 0.5 already."""
    logits = torch.full((6,), float("-inf"))
    logits[[2, 5]] = 0.0
    params = pa.SamplingParams(temperature=1.0, top_p=0.5)
    token, probability = distribution(logits, params)
    assert (token.tolist(), probability.tolist()) == ([2], [1.0])
