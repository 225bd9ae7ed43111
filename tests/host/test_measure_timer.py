"""The paired timer against a simulated device: is the recovered time right, and is a slow host noticed?"""

from __future__ import annotations

import statistics
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from upstream_patch.measure import timer as timing
from upstream_patch.measure.timer import HostTooSlow, Timer, TimerError, TooShort, orders, paired, plan_ops


def work(us: float) -> timing.Work:
    return lambda n: [us] * n


@pytest.mark.parametrize("us", [3.0, 40.0, 2000.0])
def test_recovers_the_device_time(ready: Any, us: float) -> None:
    timer, _ = ready()
    ops = plan_ops(timer, [work(us)], copies=4)
    assert ops * us >= timing.SAMPLE_US or ops == 4
    # two gaps in a sample, one in the empty bracket
    assert timer.per_op(work(us), ops) == pytest.approx(us, rel=0.004)


def test_the_empty_bracket_is_measured_and_subtracted(ready: Any) -> None:
    timer, _ = ready(gap_us=40.0)
    assert timer.bracket_us == pytest.approx(40.0, abs=0.1)
    assert timer.sample(work(100.0), 10).device_us == pytest.approx(1040.0, abs=0.1)
    assert timer.per_op(work(100.0), 10) == pytest.approx(100.0, rel=0.001)


@pytest.mark.parametrize("tick_ns", [1, 1000, 1024])
def test_a_coarse_clock_costs_less_than_half_a_percent(ready: Any, tick_ns: int) -> None:
    timer, _ = ready(tick_ns=tick_ns, gap_us=0.5)
    ops = plan_ops(timer, [work(5.0)], copies=1)
    assert timer.per_op(work(5.0), ops) == pytest.approx(5.0, rel=0.005)


def test_a_host_stall_is_noticed_and_the_sample_taken_again(ready: Any) -> None:
    timer, device = ready()
    timer.sample(work(10.0), 60)
    before = timer.discarded
    device.stalls = {device.submits + 2: 30_000.0}  # the first is not timed
    taken = timer.sample(work(10.0), 60)
    assert taken.attempts == 2
    assert timer.discarded == before + 1
    assert taken.host_us < taken.hold_us
    assert taken.device_us == pytest.approx(600.0, rel=0.01)


def test_without_the_hold_the_device_would_wait_for_the_host(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: with it switched off the same device gives a time that is wrong."""
    device = ready(per_op_us=50.0)[1]
    monkeypatch.setattr(timing, "MAX_HOLD_US", 1.0)
    timer = Timer(device, _hold_us=1.0)
    wrong = timer._take(work(10.0), 60, 1)
    assert wrong.host_us > wrong.hold_us
    assert wrong.device_us > 2 * 600.0
    with pytest.raises(HostTooSlow, match="enqueue 60 operations"):
        timer.sample(work(10.0), 60)


def test_the_hold_follows_the_host(ready: Any) -> None:
    timer, device = ready(per_op_us=100.0)
    for _ in range(3):
        timer.sample(work(10.0), 100)
    assert 10_000 < device.holds[-1] < 25_000
    for _ in range(50):
        timer.sample(work(10.0), 1)
    assert device.holds[-1] < 500


def test_arms_whose_hosts_differ_are_not_taken_twice(ready: Any) -> None:
    timer, _ = ready(per_op_us=10.0)
    arms = {"stock": work(10.0), "ours": lambda n: [10.0] * (4 * n), "aa": work(10.0)}
    paired(timer, arms, 100, rounds=1)
    before = timer.discarded
    paired(timer, arms, 100, rounds=18)
    assert timer.discarded == before


def test_pairs_come_from_the_same_round_in_changing_order(ready: Any) -> None:
    timer, device = ready(jitter=0.05)
    seen: list[str] = []

    def arm(name: str, us: float) -> timing.Work:
        def build(n: int) -> list[float]:
            seen.append(name)
            return [us] * n

        return build

    ticks: list[int] = []
    arms = {"stock": arm("stock", 50.0), "ours": arm("ours", 10.0), "aa": arm("aa", 50.0)}
    times = paired(timer, arms, 60, rounds=12, seed=3, tick=lambda: ticks.append(1))
    assert {name: len(values) for name, values in times.items()} == {"stock": 12, "ours": 12, "aa": 12}
    assert len(ticks) == 12
    # every sample builds its operations twice; what came before was thrown away
    rounds = [tuple(seen[-72:][i : i + 6 : 2]) for i in range(0, 72, 6)]
    assert all(sorted(order) == ["aa", "ours", "stock"] for order in rounds)
    assert Counter(rounds) == Counter({order: 2 for order in rounds})
    ratios = [a / b for a, b in zip(times["stock"], times["ours"], strict=True)]
    assert statistics.geometric_mean(ratios) == pytest.approx(5.0, rel=0.02)
    noise = [a / b for a, b in zip(times["stock"], times["aa"], strict=True)]
    assert statistics.geometric_mean(noise) == pytest.approx(1.0, rel=0.01)
    assert device.submits > 36


def test_every_order_comes_equally_often() -> None:
    counts = Counter(orders(("stock", "ours", "aa"), 18, seed=5))
    assert len(counts) == 6
    assert set(counts.values()) == {3}
    assert list(orders(("a", "b", "c"), 9, 1)) == list(orders(("a", "b", "c"), 9, 1))


@pytest.mark.parametrize(
    ("arms", "rounds"), [("abc", 6), ("abc", 12), ("abcd", 4), ("abcd", 12), ("abcd", 24), ("ab", 2)]
)
def test_no_arm_has_a_place_or_a_neighbour_more_often(arms: str, rounds: int) -> None:
    taken = list(orders(tuple(arms), rounds, seed=rounds))
    places = Counter((place, arm) for order in taken for place, arm in enumerate(order))
    assert set(places.values()) == {rounds // len(arms)} and len(places) == len(arms) ** 2
    after = Counter(pair for order in taken for pair in pairwise(order))
    assert len(after) == len(arms) * (len(arms) - 1) and len(set(after.values())) == 1
    assert taken != list(orders(tuple(arms), rounds, seed=rounds + 1)) or rounds < 4


def test_work_that_takes_no_time_is_an_error(ready: Any) -> None:
    timer, _ = ready()
    with pytest.raises(TooShort, match="no longer than an empty sample"):
        timer.per_op(lambda _: [], 4)
    with pytest.raises(ValueError, match="at least one"):
        timer.per_op(work(1.0), 0)


def test_a_clock_that_runs_backwards_is_an_error(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    timer, device = ready()
    monkeypatch.setattr(device, "stamp", lambda: (0,))
    with pytest.raises(TimerError, match="backwards"):
        timer.calibrate()
