"""The committed evidence beside the claim check: no fact of a problem bears out what is said of another."""

from __future__ import annotations

from pathlib import Path

import pytest

from upstream_patch.draft import stating
from upstream_patch.draft.comparing import compare
from upstream_patch.draft.reading import Scope
from upstream_patch.records import facts, store
from upstream_patch.records.facts import Fact

EVIDENCE = Path(__file__).parents[3] / "evidence"
NO_PROBLEM = {"correctness", "host", "probe", "record", "sanitizer"}
"""Families that are of a whole host."""
WHOLE = {f"wheel.h200.{name}" for name in ("cases", "every", "most_wheel_to_runtime", "passed", "planned")}
"""Facts of a whole host in a family of problems."""
EVERY_WORD = frozenset(stating.spoken("host PyTorch hot chain decode probe runtime folded kernels generator packed"))


@pytest.fixture(scope="module")
def committed() -> list[Fact]:
    return facts.derive(store.load_all(EVIDENCE))


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"m": frozenset({97}), "batch": frozenset({97}), "tokens": frozenset({97})},
        {"shape": frozenset({(96, 97)}), "m": frozenset({97})},
    ],
)
def test_every_family_is_placed(committed: list[Fact], elsewhere: dict[str, frozenset[object]]) -> None:
    told = compare("", (0, 0))
    fit = {fact.id for fact in committed if stating.fits(fact, Scope((), elsewhere), told, EVERY_WORD)}
    apart = {fact_id.partition(".")[0] for fact_id in fit - WHOLE}
    assert apart == NO_PROBLEM, sorted(fit - WHOLE)[:5]


def test_every_family_is_stated_where_it_is_of(committed: list[Fact]) -> None:
    told = compare("", (0, 0))
    fit = {fact.id for fact in committed if stating.fits(fact, Scope((), {}), told, EVERY_WORD)}
    assert {fact.id for fact in committed} == fit


@pytest.mark.parametrize("other", ["ours", "stock", "folded", "peer"])
def test_every_time_has_an_arm(committed: list[Fact], other: str) -> None:
    """A time of a problem is of one arm, which its id names."""
    timed = [fact for fact in committed if fact.id.endswith("_us") and fact.id.partition(".")[0] not in NO_PROBLEM]
    told = compare(f"{other.replace('peer', 'PyTorch')} takes", (0, 40))
    mine = {fact.id for fact in timed if stating.fits(fact, Scope((), {}), told, EVERY_WORD)}
    names = {"ours": ("ours", "runtime", "wheel"), "peer": ("peer",)}.get(other, (other,))
    assert mine == {fact.id for fact in timed if set(names) & set(fact.id.replace("_", ".").split(".")[2:])}
