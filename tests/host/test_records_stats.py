"""Intervals that hold what they should, and verdicts that need a clear gap."""

from __future__ import annotations

import numpy as np
import pytest

from upstream_patch.records.stats import Interval, Verdict, geometric_mean_ratios, unpaired_ratios, verdict

QUIET = Interval(1.0, 0.998, 1.002)


def samples(seed: int, ratio: float, noise: float, count: int = 40) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(seed)
    return list(ratio * np.exp(rng.normal(0, noise, count))), list(np.exp(rng.normal(0, noise, count)))


def test_the_value_is_the_geometric_mean_of_pairs() -> None:
    (found,) = geometric_mean_ratios([([2.0, 8.0, 4.0], [1.0, 1.0, 1.0])])
    assert found.value == pytest.approx(4.0)
    assert found.low < 4.0 < found.high


@pytest.mark.parametrize("count", [8, 12, 24])
@pytest.mark.parametrize("tails", [False, True])
def test_the_interval_holds_the_truth_as_often_as_it_says(count: int, tails: bool) -> None:
    """Rounds of decode, of a benchmark and of the wheel build; with normal noise, and with a slow one now and then."""
    rng = np.random.default_rng([count, tails])
    sides = np.exp(rng.normal(0, 0.01, (4000, 2, count)))
    if tails:
        sides *= np.where(rng.random(sides.shape) < 0.05, 1.05, 1.0)  # falls on both arms alike
    ratios = geometric_mean_ratios([(3.0 * stock, ours) for stock, ours in sides])
    assert 0.94 <= np.mean([one.low <= 3.0 <= one.high for one in ratios]) <= (0.98 if tails else 0.96)
    apart = unpaired_ratios([(3.0 * first, second) for first, second in sides])
    assert 0.94 <= np.mean([one.low <= 3.0 <= one.high for one in apart]) <= (0.98 if tails else 0.96)


def test_two_runs_of_other_lengths_and_spreads() -> None:
    rng = np.random.default_rng(3)
    pairs = [(np.exp(rng.normal(0, 0.05, 8)).tolist(), np.exp(rng.normal(0, 0.01, 24)).tolist()) for _ in range(4000)]
    assert 0.94 <= np.mean([one.low <= 1.0 <= one.high for one in unpaired_ratios(pairs)]) <= 0.96
    assert unpaired_ratios([([2.0] * 3, [1.0] * 8)]) == [Interval(2.0, 2.0, 2.0)]


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    pairs = [samples(seed, 2.0, 0.1, count) for seed, count in enumerate([12, 40, 12, 9] * 25)]
    together = geometric_mean_ratios(pairs)
    assert together == geometric_mean_ratios(pairs)
    for index in (0, 1, 3, 99):
        (alone,) = geometric_mean_ratios([pairs[index]])
        assert (alone.value, alone.low, alone.high) == pytest.approx(
            (together[index].value, together[index].low, together[index].high), rel=1e-12
        )


def test_equal_samples_are_their_own_interval() -> None:
    (found,) = geometric_mean_ratios([([6.0] * 5, [2.0] * 5)])
    assert (found.value, found.low, found.high) == pytest.approx((3.0, 3.0, 3.0))


@pytest.mark.parametrize(("stock", "ours"), [([1.0], [1.0]), ([1.0, 2.0], [1.0]), ([1.0, 0.0], [1.0, 1.0]), ([], [])])
def test_samples_that_are_not_paired(stock: list[float], ours: list[float]) -> None:
    with pytest.raises(ValueError, match="pair 0: needs two or more"):
        geometric_mean_ratios([(stock, ours)])


@pytest.mark.parametrize(
    ("ratio", "noise", "count", "expected", "reason"),
    [
        (Interval(2.0, 1.9, 2.1), QUIET, 40, Verdict.FASTER, "clear of the noise"),
        (Interval(0.5, 0.4, 0.6), QUIET, 40, Verdict.SLOWER, "clear of the noise"),
        (Interval(1.0, 0.99, 1.01), QUIET, 40, Verdict.SAME, "within 2% of 1"),
        (Interval(1.004, 1.003, 1.0045), QUIET, 40, Verdict.SAME, "within 2% of 1"),
        (Interval(1.02, 0.99, 1.05), QUIET, 40, Verdict.UNCLEAR, "neither"),
        # Faster by 4%, but stock against itself differs by 6%: says nothing.
        (Interval(1.04, 1.035, 1.045), Interval(1.05, 1.04, 1.06), 40, Verdict.UNCLEAR, "noise is wider than 2%"),
        # A bias of the order shows as an A/A interval on one side of 1.
        (Interval(0.96, 0.955, 0.965), Interval(1.05, 1.04, 1.06), 40, Verdict.UNCLEAR, "noise is wider than 2%"),
        (Interval(20.0, 19.0, 21.0), Interval(1.05, 1.04, 1.06), 40, Verdict.FASTER, "clear of the noise"),
        (Interval(20.0, 19.0, 21.0), QUIET, 7, Verdict.UNCLEAR, "7 pairs are too few"),
    ],
)
def test_verdicts(ratio: Interval, noise: Interval, count: int, expected: Verdict, reason: str) -> None:
    judged = verdict(ratio, noise, count)
    assert judged.verdict is expected
    assert reason in judged.reason
