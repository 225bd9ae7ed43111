"""What the driver said of the GPU while something was timed, and whether that spoils the times."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from upstream_patch.records.form import FORM, Count
from upstream_patch.records.stats import Judgement, Verdict

MOST_THROTTLED = 0.01
"""Share of the time in which the clocks may be held down."""
MOST_CLOCK_SPREAD = 0.05
"""The SM clock may move by this share of its highest reading."""
TOO_HOT = "thermal"
"""The one limit that spoils times by itself. At those of power and voltage many cards are under any load, both arms
alike: they spoil times only by moving the clock."""
THROTTLING = frozenset(
    {
        "hardware slowdown",
        "software thermal",
        "hardware thermal",
        "hardware power brake",
    }
)
"""Of NVML's clock event reasons, those that say that the card is too hot or its supply fails."""


class Watched(BaseModel):
    """One reading before the first round and one after each; nothing is read inside a sample."""

    model_config = FORM

    readings: Annotated[int, Field(ge=1)]
    seconds: Annotated[float, Field(ge=0)]
    """From the first reading to the last."""
    throttled_ms: dict[str, Annotated[float, Field(ge=0)]] = {}
    """How much the driver's counters of time under a limit grew: power, thermal, board, reliability. Those it has."""
    reasons: list[str] = []
    """Clock event reasons of any reading, but for ``idle``."""
    sm_mhz: tuple[Count, Count] | None = None
    """The lowest reading and the highest, of those after a round."""
    others: Count | None = None
    """The most other programs that had the GPU open at a reading; only counted, never named."""


def trouble(watched: Watched | None) -> str:
    """Why times that were taken meanwhile say nothing; empty where they do, or where nothing was read."""
    if watched is None:
        return ""
    found = [
        f"throttled by {name} for {ms:.0f} of {1e3 * watched.seconds:.0f} ms"
        for name, ms in watched.throttled_ms.items()
        if name == TOO_HOT and ms > MOST_THROTTLED * 1e3 * watched.seconds
    ]
    found += [f"clocks held down: {name}" for name in watched.reasons if name in THROTTLING]
    if watched.sm_mhz is not None and watched.sm_mhz[0] < (1 - MOST_CLOCK_SPREAD) * watched.sm_mhz[1]:
        found.append(f"the SM clock moved between {watched.sm_mhz[0]} and {watched.sm_mhz[1]} MHz")
    if watched.others:
        found.append(f"{watched.others} other program{'s' if watched.others > 1 else ''} on the GPU")
    return "; ".join(found)


def judged(judgement: Judgement, watched: Watched | None) -> Judgement:
    """The verdict, or UNCLEAR with the reason where the GPU was throttled or shared."""
    reason = trouble(watched)
    return Judgement(Verdict.UNCLEAR, reason) if reason else judgement
