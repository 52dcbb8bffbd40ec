"""Medians, intervals, ratios and verdicts, against values computed by hand."""

import pytest

from pagedattn.benchmarks.stats import (
    MIN_SAMPLES,
    Estimate,
    Verdict,
    estimate,
    judge,
    paired_ratio,
    unpaired_ratio,
)


def test_interval_is_the_binomial_one() -> None:
    # n = 10: P(X <= 1) = 11/1024, twice that is 2.1%; P(X <= 2) = 56/1024 is too much already.
    assert estimate(range(10, 0, -1)) == Estimate(5.5, 2, 9)


def test_seven_samples_use_their_extremes() -> None:
    assert estimate([3, 1, 2, 7, 5, 4, 6]) == Estimate(4, 1, 7)


def test_twenty_samples() -> None:
    # P(X <= 5) = 0.0207, P(X <= 6) = 0.0577: the 6th smallest and the 6th largest.
    assert estimate(range(1, 21)) == Estimate(10.5, 6, 15)


@pytest.mark.parametrize(("n", "confidence"), [(0, 0.95), (5, 0.95), (6, 0.975)])
def test_too_few_samples_have_no_interval(n: int, confidence: float) -> None:
    with pytest.raises(ValueError, match=f"{n} samples give no"):
        estimate([1.0] * n, confidence=confidence)


def test_min_samples_gives_every_interval() -> None:
    assert estimate([1.0] * MIN_SAMPLES, confidence=0.975) == Estimate(1, 1, 1)


def test_outlier_moves_neither_median_nor_interval() -> None:
    samples = [1.0] * 19 + [1000.0]
    assert estimate(samples) == Estimate(1, 1, 1)


def test_paired_ratio_cancels_drift() -> None:
    drift = [1, 2, 4, 8, 16, 32, 64]
    assert paired_ratio([3.0 * d for d in drift], [2.0 * d for d in drift]) == Estimate(
        1.5, 1.5, 1.5
    )


def test_paired_ratio_needs_pairs() -> None:
    with pytest.raises(ValueError, match="zip"):
        paired_ratio([1.0] * 8, [1.0] * 7)


def test_unpaired_ratio_takes_the_worst_of_both_intervals() -> None:
    old, new = [10.0, 10, 10, 12, 14, 14, 14], [4.0, 4, 4, 6, 8, 8, 8]
    assert unpaired_ratio(old, new) == Estimate(2.0, 10 / 8, 14 / 4)


def test_rate_of_a_time_swaps_the_ends() -> None:
    assert Estimate(0.5, 0.25, 1.0).inverse() == Estimate(2, 1, 4)
    assert Estimate(2, 1, 4).scaled(10) == Estimate(20, 10, 40)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.001, 1.5, Verdict.FASTER),
        (0.5, 0.999, Verdict.SLOWER),
        (0.98, 1.02, Verdict.SAME),
        (1.001, 1.019, Verdict.SAME),  # beyond doubt faster, by an amount that nobody notices
        (0.97, 1.01, Verdict.UNCLEAR),
        (0.5, 2.0, Verdict.UNCLEAR),
        (1.0, 1.5, Verdict.UNCLEAR),
    ],
)
def test_verdict_is_by_the_interval_alone(low: float, high: float, verdict: Verdict) -> None:
    assert judge(Estimate((low + high) / 2, low, high)) is verdict


def test_tolerance_of_a_verdict() -> None:
    slower = Estimate(0.95, 0.94, 0.96)
    assert judge(slower) is Verdict.SLOWER
    assert judge(slower, tolerance=0.1) is Verdict.SAME
