"""From logits to tokens: the definitions in pagedattn.engine.sampling, by hand."""

import math

import pytest
import torch

from pagedattn.engine import SamplingParams
from pagedattn.engine.sampling import check_logits, distribution, make_generator, sample
from pagedattn.errors import EngineError

PROBABILITIES = [0.1, 0.4, 0.05, 0.25, 0.2]
LOGITS = torch.tensor(PROBABILITIES, dtype=torch.float64).log()


def kept(**options: float) -> dict[int, float]:
    tokens, probabilities = distribution(LOGITS, SamplingParams(temperature=1.0, **options))
    return dict(zip(tokens.tolist(), probabilities.tolist(), strict=True))


def test_without_options_it_is_the_softmax() -> None:
    assert kept() == pytest.approx(dict(enumerate(PROBABILITIES)))


def test_most_probable_first() -> None:
    assert list(kept()) == [1, 3, 4, 0, 2]


def test_temperature_divides_the_logits() -> None:
    _, probabilities = distribution(LOGITS, SamplingParams(temperature=0.5))
    squares = sorted((p * p for p in PROBABILITIES), reverse=True)
    assert probabilities.tolist() == pytest.approx([s / sum(squares) for s in squares])


@pytest.mark.parametrize("scale", [1.0, 1e30, 1e300])
def test_no_logits_overflow(scale: float) -> None:
    tokens, probabilities = distribution(LOGITS * scale, SamplingParams(temperature=1e-3, top_k=1))
    assert tokens.tolist() == [1]
    assert probabilities.tolist() == [1.0]


def test_top_k_keeps_exactly_k_and_renormalises() -> None:
    assert kept(top_k=2) == pytest.approx({1: 0.4 / 0.65, 3: 0.25 / 0.65})
    assert set(kept(top_k=99)) == {0, 1, 2, 3, 4}


def test_top_k_keeps_the_lower_id_among_equals() -> None:
    tokens, _ = distribution(torch.zeros(6), SamplingParams(temperature=1.0, top_k=3))
    assert tokens.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(0.01, {1}), (0.39, {1}), (0.41, {1, 3}), (0.64, {1, 3}), (0.66, {1, 3, 4}), (1.0, None)],
)
def test_top_p_keeps_the_shortest_run_that_reaches_it(
    top_p: float, expected: set[int] | None
) -> None:
    assert set(kept(top_p=top_p)) == (expected or {0, 1, 2, 3, 4})


def test_top_p_counts_what_top_k_left() -> None:
    # Of {1: .615, 3: .385}, .6 is reached by token 1 alone; of all tokens it would take two.
    assert set(kept(top_k=2, top_p=0.6)) == {1}
    assert set(kept(top_p=0.6)) == {1, 3}


def test_min_p_is_relative_to_the_largest() -> None:
    assert set(kept(min_p=0.45)) == {1, 3, 4}
    assert set(kept(min_p=1.0)) == {1}
    assert set(kept(min_p=0.0)) == {0, 1, 2, 3, 4}


def test_draws_follow_the_distribution_and_stay_within_it() -> None:
    params = SamplingParams(temperature=1.0, top_k=3, seed=5)
    generator = make_generator(params)
    count, draws = 3000, {1: 0, 3: 0, 4: 0}
    for _ in range(count):
        draws[sample(LOGITS[None].float(), [params], [generator])[0]] += 1
    for token, probability in kept(top_k=3).items():
        deviation = math.sqrt(count * probability * (1 - probability))
        assert abs(draws[token] - count * probability) < 4 * deviation


def test_equal_seeds_draw_equal_tokens_and_others_do_not() -> None:
    def draw(seed: int) -> list[int]:
        params = SamplingParams(temperature=2.0, seed=seed)
        generator = make_generator(params)
        return [sample(LOGITS[None].float(), [params], [generator])[0] for _ in range(30)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_no_seed_is_another_text_every_time() -> None:
    params = SamplingParams(temperature=1.0)
    first, second = make_generator(params), make_generator(params)
    assert first is not None
    assert second is not None
    assert first.initial_seed() != second.initial_seed()


def test_a_row_does_not_see_its_neighbours() -> None:
    hot, cold = SamplingParams(temperature=1.5, seed=3), SamplingParams()
    rows = torch.stack([LOGITS, LOGITS.flip(0), LOGITS]).float()
    together = sample(rows, [hot, cold, hot], [make_generator(hot), None, make_generator(hot)])
    alone = sample(rows[:1], [hot], [make_generator(hot)])
    assert together == [alone[0], 3, alone[0]]


def test_greedy_draws_nothing() -> None:
    assert make_generator(SamplingParams()) is None
    assert sample(LOGITS[None].float(), [SamplingParams(top_k=5)], [None]) == [1]


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("max_new_tokens", 0, ValueError),
        ("max_new_tokens", 1.5, TypeError),
        ("max_new_tokens", True, TypeError),
        ("temperature", -0.1, ValueError),
        ("temperature", float("nan"), ValueError),
        ("temperature", "hot", TypeError),
        ("top_k", 0, ValueError),
        ("top_k", 2.0, TypeError),
        ("top_p", 0.0, ValueError),
        ("top_p", 1.01, ValueError),
        ("top_p", float("inf"), ValueError),
        ("min_p", -0.1, ValueError),
        ("min_p", 1.5, ValueError),
        ("seed", -1, ValueError),
        ("seed", 2**63, ValueError),
        ("seed", 1.0, TypeError),
        ("stop_token_ids", [3, -1], ValueError),
        ("stop_token_ids", ["a"], TypeError),
        ("ignore_eos", 1, TypeError),
    ],
)
def test_bad_params_name_the_field(field: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=field):
        SamplingParams(**{field: value})


def test_params_are_values() -> None:
    assert SamplingParams(stop_token_ids=[1, 2]) == SamplingParams(stop_token_ids={2, 1})


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_without_a_finite_maximum_are_refused(bad: float) -> None:
    logits = torch.zeros(3, 5)
    check_logits(logits, 3, 5)
    logits[1, 2] = bad
    with pytest.raises(EngineError, match="row 1"):
        check_logits(logits, 3, 5)


def test_masked_logits_are_fine_unless_all_are() -> None:
    logits = torch.zeros(1, 5)
    logits[0, :4] = float("-inf")
    check_logits(logits, 1, 5)
    logits[0, 4] = float("-inf")
    with pytest.raises(EngineError, match="row 0"):
        check_logits(logits, 1, 5)


def test_logits_of_another_shape_are_refused() -> None:
    check_logits(torch.zeros(0, 5), 0, 5)
    with pytest.raises(EngineError, match=r"\[2, 5\]"):
        check_logits(torch.zeros(3, 5), 2, 5)
