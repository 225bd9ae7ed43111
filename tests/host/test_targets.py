"""The page of targets: every number to reach stands in it with what the facts say, and no stale fact counts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from upstream_patch import targets
from upstream_patch.kernels.tuning import FORMATS
from upstream_patch.problem import Problem
from upstream_patch.records import store
from upstream_patch.records.facts import Fact, derive
from upstream_patch.targets.judged import DTYPES, Outcome, by_id, judge, never_slower
from upstream_patch.targets.wanted import GROUPS, LARGEST, Target


def fact(name: str, value: float | str, record: str = "x") -> Fact:
    return Fact(
        id=name,
        value=value,
        unit="ratio",
        host="h200",
        record_path=f"evidence/records/h200/{record}.json",
        sha256="0" * 64,
        stale=False,
        created=datetime(2026, 1, 1, tzinfo=UTC),
        command="x",
    )


def every() -> dict[str, Target]:
    return {f"{target.fact}{'/1' if target.over else ''}": target for group in GROUPS for target in group.targets}


def test_the_committed_page_is_what_the_facts_say(root: Path) -> None:
    page = (root / "evidence" / targets.FILE).read_text(encoding="utf-8")
    assert page == targets.markdown(derive(store.load_all(root / "evidence"))), "python -m upstream_patch targets"


@pytest.mark.parametrize(
    ("name", "bound", "limit"),
    [
        ("small_m.h200.4096x128256.b4.g64.bf16.M7.read_fraction", "at least", 0.88),
        ("small_m.h200.4096x128256.b4.g64.bf16.M32.read_fraction", "at least", 0.60),
        ("small_m.h200.14336x4096.b4.g64.bf16.M16.read_fraction", "at least", 0.55),
        ("small_m.h200.4096x6144.b4.g64.bf16.M1.read_fraction", "at least", 0.50),
        ("small_m.h200.4096x1024.b4.g64.bf16.M8.ours_us", "at most", 3.5),
        ("small_m.h200.4096x1024.b4.g64.bf16.M16.ours_us", "at most", 4.5),
        ("small_m.h200.8192x8192.b4.g64.bf16.M8.ours_us/1", "at most", 1.05),
        ("small_m.h200.4096x28672.b4.g64.bf16.M16.ours_us/1", "at most", 1.25),
        ("small_m.h200.4096x128256.b4.g64.bf16.M4.speedup", "at least", 4),
        ("peer.h200.14336x4096.b4.g64.bf16.M1.speedup", "at least", 1.5),
        ("peer.h200.14336x4096.b4.g64.bf16.M8.speedup", "at least", 3),
        ("small_m.h200.4096x14336.b8.g32.bf16.M8.read_fraction", "at least", 0.65),
        ("small_m.h200.4096x14336.mxfp8.bf16.M8.read_fraction", "at least", 0.5),
    ],
)
def test_a_number_to_reach_is_asked(name: str, bound: str, limit: float) -> None:
    target = every()[name]
    assert (target.bound, target.limit) == (bound, limit)


def test_what_is_asked_of_no_row_is_not_a_target() -> None:
    names = every()
    for missing in ("4096x4096.b4.g64.bf16.M32.read_fraction", "4096x1024.b4.g64.bf16.M32.ours_us"):
        assert f"small_m.h200.{missing}" not in names
    assert set(LARGEST) == {(8192, 8192), (4096, 28672), (4096, 128256)}
    assert len(names) == sum(len(group.targets) for group in GROUPS)


def test_a_value_at_its_bound_is_met_and_past_it_missed() -> None:
    least = Target(Problem(m=1, n=16, k=64), "a", "at least", 0.5)
    most = replace(least, bound="at most")
    for target, low, high in ((least, Outcome.MISSED, Outcome.MET), (most, Outcome.MET, Outcome.MISSED)):
        found = [judge(target, {"a": fact("a", value)}).outcome for value in (0.4999, 0.5, 0.5001)]
        assert found == [low, Outcome.MET, high]


def test_a_ratio_is_of_one_record() -> None:
    target = Target(Problem(m=8, n=16, k=64), "eight", "at most", 1.05, over="one", beside=("floor",))
    facts = {"eight": fact("eight", 21), "one": fact("one", 20), "floor": fact("floor", 0.5)}
    assert judge(target, facts).value == 1.05
    assert judge(target, facts).beside == {"floor": 0.5}
    assert judge(target, facts | {"floor": fact("floor", 0.5, "y")}).beside == {}
    for lost in ({"one": fact("one", 20, "y")}, {"one": replace(facts["one"], stale=True)}):
        assert judge(target, facts | lost).outcome is Outcome.NONE


def test_a_stale_fact_is_no_record_and_its_value_is_not_shown(root: Path) -> None:
    facts = derive(store.load_all(root / "evidence"))
    name = "small_m.h200.4096x128256.b4.g64.bf16.M16.read_fraction"
    given = [replace(each, value=0.98765, stale=stale) for each in facts if each.id == name for stale in (True, False)]
    rest = [each for each in facts if each.id != name]
    stale, fresh = (targets.markdown([*rest, one]) for one in given)
    assert "0.9877" in fresh and "0.9877" not in stale
    (line,) = [line for line in stale.splitlines() if f"`{name}`" in line]
    assert "no record" in line
    assert targets.counted([*rest, given[0]]) == targets.counted(rest)


def test_every_row_that_is_slower_is_listed_and_a_missing_format_is_no_success() -> None:
    names = [
        Problem(m=8, n=64, k=256, bits=bits, group_size=group, mode=mode, dtype=dtype).id
        for bits, group, mode in FORMATS
        for dtype in DTYPES
    ]
    verdicts = {name: fact(f"small_m.h200.{name}.verdict", "FASTER") for name in names}
    facts = by_id(verdicts.values())
    assert never_slower(facts).outcome is Outcome.MET
    assert never_slower({name: each for name, each in facts.items() if ".mxfp8." not in name}).outcome is Outcome.NONE
    chain = fact(f"small_m.h200.{names[0]}.chain.verdict", "SLOWER")
    found = never_slower(facts | {chain.id: chain})
    assert (found.outcome, found.slower, found.rows) == (Outcome.MISSED, (chain,), len(names) + 1)
    assert f"- SLOWER: `{chain.id}`" in targets.markdown([*facts.values(), chain])
    unclear = replace(chain, value="UNCLEAR")
    assert never_slower(facts | {chain.id: unclear}).outcome is Outcome.NONE
    gone = replace(chain, stale=True)
    assert never_slower(facts | {chain.id: gone}).outcome is Outcome.MET


def test_a_page_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / targets.FILE
    assert targets.update(path, [])
    assert not targets.update(path, [])
    total = targets.counted([])
    assert (total.met, total.missed) == (0, 0)
    assert f"**0 of {total.none} are met" in path.read_text(encoding="utf-8")
