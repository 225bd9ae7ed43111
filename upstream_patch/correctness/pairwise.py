"""Choose launches so that every pair of levels of two factors occurs together."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product


def pairwise(
    levels: Sequence[int], count: int, seed: int, fixed: Sequence[Mapping[int, int]] = ()
) -> Iterator[list[int]]:
    """``count`` rows of one level a factor, all pairs among them as far as that allows: each is the best of a few.

    ``levels`` is how many each factor has; the first rows have the levels of ``fixed``, by factor. The same rows for
    the same seed.
    """
    rng = random.Random(seed)
    pairs = list(combinations(range(len(levels)), 2))
    missing = {(a, b): set(product(range(levels[a]), range(levels[b]))) for a, b in pairs}
    for number in range(count):
        given = fixed[number] if number < len(fixed) else {}
        best, gain = [rng.randrange(each) for each in levels], -1
        for _ in range(4):
            row = [rng.randrange(each) for each in levels]
            # begin from a pair that no row has yet
            for a, b in [pair for pair in rng.sample(pairs, 3) if missing[pair]][:1]:
                row[a], row[b] = min(missing[a, b])
            for factor, level in given.items():
                row[factor] = level
            new = sum((row[a], row[b]) in missing[a, b] for a, b in pairs)
            if new > gain:
                best, gain = row, new
        for a, b in pairs:
            missing[a, b].discard((best[a], best[b]))
        yield best


def uncovered(levels: Sequence[int], rows: Iterable[Sequence[int]]) -> int:
    """How many pairs of levels of two factors never occur together."""
    rows = list(rows)
    return sum(
        levels[a] * levels[b] - len({(row[a], row[b]) for row in rows}) for a, b in combinations(range(len(levels)), 2)
    )
