"""The request's timing: a chain of calls that depend on one another, by the difference of two lengths of it.

A chain of r + 8 calls is timed, and one of 8; the least difference of three, over r = 64, is the slope. The slope of
the glue alone, which makes a call's input from the output before, is taken off. Nothing here imports MLX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from upstream_patch.errors import UserError

CALLS, SHORT, REPEATS = 64, 8, 3
"""r, the short chain's length, and how many differences the least is taken of."""
ROUNDS = 12
"""The request has 6, which are too few for a verdict (``stats.ENOUGH_SAMPLES``); 12 turn the three arms evenly."""
Seconds = Callable[[int], float]
"""How long a chain of that many calls takes, from handing it over to its end."""


class NoSlope(UserError):
    """A longer chain took no longer: the machine did something else meanwhile."""

    exit_code = 4


@dataclass(frozen=True)
class Arm:
    """A chain of calls and its glue."""

    whole: Seconds
    glue: Seconds


def slope_us(chain: Seconds) -> float:
    """us a call, glue included."""
    differences = [chain(CALLS + SHORT) - chain(SHORT) for _ in range(REPEATS)]
    return min(differences) / CALLS * 1e6


def call_us(arm: Arm) -> float:
    """us of one call. Raises NoSlope where nothing is left."""
    found = slope_us(arm.whole) - slope_us(arm.glue)
    if found <= 0:
        raise NoSlope("a chain of calls took no longer than its glue: stop what else uses the GPU, and run again")
    return found


def rounds(arms: Mapping[str, Arm], count: int = ROUNDS) -> dict[str, list[float]]:
    """us of one call, by arm; entry i of every list is of round i. The arms' order is turned from round to round.

    A round that is not counted comes first.
    """
    names = list(arms)
    times: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        call_us(arms[name])
    for number in range(count):
        for name in _turned(names, number):
            times[name].append(call_us(arms[name]))
    return times


def _turned(names: Sequence[str], number: int) -> list[str]:
    """Every arm comes first, in the middle and last as often; each second round runs backwards."""
    at = number // 2 % len(names)
    order = [*names[at:], *names[:at]]
    return order[::-1] if number % 2 else order
