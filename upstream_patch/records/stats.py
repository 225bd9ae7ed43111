"""Ratios of paired samples: the value, its 95% interval, and whether it says anything against the noise."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 1999
SEED = 20261129
_ROWS_AT_ONCE = 64  # bounds memory; every chunk draws the same resamples, so chunking changes no result
_DRAWS_AT_ONCE = 500

SAME_WITHIN = 0.02
"""Two arms are the same when the whole interval lies within 2% of 1."""
LEAST_NOISE = 0.005
"""Noise is never taken to be below 0.5%, however well the A/A samples agree."""
ENOUGH_SAMPLES = 8


@dataclass(frozen=True)
class Interval:
    """A geometric mean of ratios, with the ends of its 95% bootstrap interval. Without unit."""

    value: float
    low: float
    high: float


class Verdict(StrEnum):
    FASTER = "FASTER"
    SAME = "SAME"
    SLOWER = "SLOWER"
    UNCLEAR = "UNCLEAR"


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    reason: str


def geometric_mean_ratios(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> list[Interval]:
    """For each pair (stock, ours), the geometric mean of stock[i] / ours[i]: above 1, ours is faster.

    Sample i of both comes from round i. A pair's result does not depend on the pairs beside it. Raises ValueError when
    the two lists are not paired, hold fewer than two samples, or one that is not positive.
    """
    by_length: dict[int, list[int]] = defaultdict(list)
    logs = []
    for index, (stock, ours) in enumerate(pairs):
        if len(stock) != len(ours) or len(stock) < 2 or min(*stock, *ours) <= 0:
            raise ValueError(f"pair {index}: needs two or more positive samples a side, the same number on both")
        logs.append(np.log(np.asarray(stock, dtype=np.float64) / np.asarray(ours, dtype=np.float64)))
        by_length[len(stock)].append(index)
    found: dict[int, Interval] = {}
    for indices in by_length.values():
        for first in range(0, len(indices), _ROWS_AT_ONCE):
            chunk = indices[first : first + _ROWS_AT_ONCE]
            means, lows, highs = _mean_intervals(np.stack([logs[index] for index in chunk]))
            for row, index in enumerate(chunk):
                found[index] = Interval(math.exp(means[row]), math.exp(lows[row]), math.exp(highs[row]))
    return [found[index] for index in range(len(pairs))]


def unpaired_ratios(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> list[Interval]:
    """For each pair (first, second) of two runs, the ratio of their geometric means, both sides resampled apart.

    Raises ValueError when a list holds fewer than two samples, or one that is not positive.
    """
    found = []
    for first, second in pairs:
        if min(len(first), len(second)) < 2 or min(*first, *second) <= 0:
            raise ValueError("needs two or more positive samples a side")
        sides = [np.log(np.asarray(times, dtype=np.float64)) for times in (first, second)]
        rng = np.random.default_rng(SEED)
        drawn = [side[rng.integers(0, len(side), (RESAMPLES, len(side)))].mean(axis=1) for side in sides]
        low, high = np.percentile(drawn[0] - drawn[1], [50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)])
        found.append(Interval(*(math.exp(one) for one in (sides[0].mean() - sides[1].mean(), low, high))))
    return found


def verdict(ratio: Interval, noise: Interval, samples: int) -> Judgement:
    """What ``ratio`` (stock/ours) says, given ``noise``: the same statistic of stock against stock again.

    FASTER and SLOWER need the whole interval to clear the noise on its side; SAME needs it whole within 2%, with noise
    below that; everything else is UNCLEAR, with the reason.
    """
    if samples < ENOUGH_SAMPLES:
        return Judgement(Verdict.UNCLEAR, f"{samples} pairs are too few, {ENOUGH_SAMPLES} needed")
    spread = max(abs(math.log(noise.low)), abs(math.log(noise.high)), math.log1p(LEAST_NOISE))
    shown = f"interval {ratio.low:.3f}..{ratio.high:.3f}, stock against itself within {math.expm1(spread):.1%}"
    if math.log(ratio.low) > spread:
        return Judgement(Verdict.FASTER, f"{shown}: clear of the noise")
    if math.log(ratio.high) < -spread:
        return Judgement(Verdict.SLOWER, f"{shown}: clear of the noise")
    same = math.log1p(SAME_WITHIN)
    if spread > same:
        return Judgement(Verdict.UNCLEAR, f"{shown}: the noise is wider than {SAME_WITHIN:.0%}")
    if max(abs(math.log(ratio.low)), abs(math.log(ratio.high))) <= same:
        return Judgement(Verdict.SAME, f"{shown}: within {SAME_WITHIN:.0%} of 1")
    return Judgement(Verdict.UNCLEAR, f"{shown}: neither clear of the noise nor within {SAME_WITHIN:.0%} of 1")


def _mean_intervals(rows: Any) -> tuple[Any, Any, Any]:
    """Mean, low and high of every row of [rows, samples]; a row without spread is its own interval."""
    means = rows.mean(axis=-1)
    lows, highs = means.copy(), means.copy()
    spread = np.ptp(rows, axis=-1) > 0
    if spread.any():
        from scipy.stats import bootstrap  # half a second to import, and most commands need none of it

        interval = bootstrap(
            (rows[spread],),
            np.mean,
            axis=-1,
            vectorized=True,
            confidence_level=CONFIDENCE,
            n_resamples=RESAMPLES,
            batch=_DRAWS_AT_ONCE,
            # Not BCa: it counts resamples equal to the mean, where a last bit decides and neighbours would show.
            method="percentile",
            rng=np.random.default_rng(SEED),
        ).confidence_interval
        lows[spread], highs[spread] = interval.low, interval.high
    return means, lows, highs
