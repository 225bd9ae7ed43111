"""The paired timer against a simulated device: is the recovered time right, and is a slow host noticed?"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from upstream_patch.measure import timer as timing
from upstream_patch.measure.timer import HostTooSlow, NotLinear, Timer, TimerError, orders, paired, plan_ops


@dataclass
class FakeDevice:
    """One in-order stream on a simulated clock; times in us. A batch is a list of durations."""

    submit_us: float = 20.0
    per_op_us: float = 4.0
    """Host time to enqueue one evaluation, and each operation in it."""
    gap_us: float = 1.5
    """Device time between two graphs."""
    tick_ns: int = 32
    jitter: float = 0.0
    stalls: dict[int, float] = field(default_factory=dict)
    """Number of the submit call -> host us lost in it."""
    in_flight: int | None = None
    """Operations after which the host is blocked until the device is idle, as MLX does past 10 graphs."""
    starved_after: int | None = None
    """Operations after which each takes 12 us for no reason that the host's clock shows, as seen on an H200."""
    upload_us: float = 0.0
    """Device time lost before the first operation of a sample."""
    pages_us: float = 0.0
    """Device time lost in the first submit after a read, as where the host took pages of an output along."""
    pages_gone: bool = False
    host: float = 0.0
    free: float = 0.0
    submits: int = 0
    holds: list[float] = field(default_factory=list)
    skew_us: float = 5_000_000.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def host_us(self) -> float:
        return self.host

    def _run(self, us: float) -> tuple[float, float]:
        start = max(self.free + self.gap_us, self.host)
        self.free = start + us
        return start, self.free

    def _ns(self, us: float) -> int:
        return int((us + self.skew_us) * 1e3) // self.tick_ns * self.tick_ns

    def hold(self, us: float) -> Any:
        self.host += self.submit_us
        self.holds.append(us)
        return tuple(self._ns(t) for t in self._run(us))

    def submit(self, batch: Sequence[Any]) -> None:
        self.submits += 1
        lost_us = self.upload_us + (self.pages_us if self.pages_gone else 0.0)
        self.pages_gone = False
        for number, us in enumerate(batch):
            self.host += self.per_op_us
            if self.in_flight is not None and number == self.in_flight:
                self.host = max(self.host, self.free)
            starved = self.starved_after is not None and number >= self.starved_after
            taken = max(us, 12.0) if starved else us + (0 if number else lost_us)
            self._run(taken * (1 + self.jitter * self.rng.random()) - self.gap_us)
        self.host += self.submit_us + self.stalls.get(self.submits, 0.0)

    def stamp(self) -> Any:
        self.host += self.submit_us
        return (self._ns(self._run(0.0)[0]),)

    def wait(self) -> None:
        self.host = max(self.host, self.free) + 30.0

    def read(self, handle: Any) -> tuple[int, ...]:
        self.pages_gone = True
        return tuple(handle)


def work(us: float) -> timing.Work:
    return lambda n: [us] * n


def ready(**about: Any) -> tuple[Timer, FakeDevice]:
    device = FakeDevice(**about)
    timer = Timer(device)
    timer.calibrate()
    return timer, device


@pytest.mark.parametrize("us", [3.0, 40.0, 2000.0])
def test_recovers_the_device_time(us: float) -> None:
    timer, _ = ready()
    ops = plan_ops(timer, [work(us)], copies=4)
    assert ops * us >= timing.SAMPLE_US or ops == 4
    # two gaps in a sample, one in the empty bracket
    assert timer.per_op(work(us), ops) == pytest.approx(us, rel=0.004)


def test_the_empty_bracket_is_measured_and_subtracted() -> None:
    timer, _ = ready(gap_us=40.0)
    assert timer.bracket_us == pytest.approx(40.0, abs=0.1)
    assert timer.sample(work(100.0), 10).device_us == pytest.approx(1040.0, abs=0.1)
    assert timer.per_op(work(100.0), 10) == pytest.approx(100.0, rel=0.001)


@pytest.mark.parametrize("tick_ns", [1, 1000, 1024])
def test_a_coarse_clock_costs_less_than_half_a_percent(tick_ns: int) -> None:
    timer, _ = ready(tick_ns=tick_ns, gap_us=0.5)
    ops = plan_ops(timer, [work(5.0)], copies=1)
    assert timer.per_op(work(5.0), ops) == pytest.approx(5.0, rel=0.005)


def test_a_host_stall_is_noticed_and_the_sample_taken_again() -> None:
    timer, device = ready()
    timer.sample(work(10.0), 60)
    before = timer.discarded
    device.stalls = {device.submits + 2: 30_000.0}  # the first is not timed
    taken = timer.sample(work(10.0), 60)
    assert taken.attempts == 2
    assert timer.discarded == before + 1
    assert taken.host_us < taken.hold_us
    assert taken.device_us == pytest.approx(600.0, rel=0.01)


def test_without_the_hold_the_device_would_wait_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: with it switched off the same device gives a time that is wrong."""
    monkeypatch.setattr(timing, "MAX_HOLD_US", 1.0)
    timer = Timer(FakeDevice(per_op_us=50.0), _hold_us=1.0)
    wrong = timer._take(work(10.0), 60, 1)
    assert wrong.host_us > wrong.hold_us
    assert wrong.device_us > 2 * 600.0
    with pytest.raises(HostTooSlow, match="enqueue 60 operations"):
        timer.sample(work(10.0), 60)


def test_a_device_that_starves_past_some_number_of_operations_gets_fewer() -> None:
    timer, _ = ready(starved_after=170)
    ops = plan_ops(timer, [work(2.0)], copies=81)
    assert ops <= 170
    assert timer.per_op(work(2.0), ops) == pytest.approx(2.0, rel=0.02)


def test_a_stall_in_every_sample_is_refused() -> None:
    timer, _ = ready(upload_us=300.0)
    with pytest.raises(NotLinear, match="nothing was measured"):
        plan_ops(timer, [work(76.0)], copies=2)


def test_pages_that_a_read_moved_are_back_before_the_sample() -> None:
    timer, _ = ready(pages_us=330.0)
    ops = plan_ops(timer, [work(53.0)], copies=2)
    assert timer.per_op(work(53.0), ops) == pytest.approx(53.0, rel=0.004)


def test_a_stall_that_is_small_against_the_sample_is_allowed() -> None:
    timer, _ = ready(upload_us=10.0)
    ops = plan_ops(timer, [work(76.0)], copies=2)
    assert timer.per_op(work(76.0), ops) == pytest.approx(76.0, rel=0.03)


def test_a_cost_of_the_sample_itself_gets_more_operations() -> None:
    timer, _ = ready(upload_us=60.0)
    ops = plan_ops(timer, [work(2.0)], copies=1)
    assert ops * 2.0 > timing.SAMPLE_US
    assert timer.per_op(work(2.0), ops) == pytest.approx(2.0, rel=0.05)


def test_the_hold_follows_the_host() -> None:
    timer, device = ready(per_op_us=100.0)
    for _ in range(3):
        timer.sample(work(10.0), 100)
    assert 10_000 < device.holds[-1] < 25_000
    for _ in range(50):
        timer.sample(work(10.0), 1)
    assert device.holds[-1] < 500


def test_arms_whose_hosts_differ_are_not_taken_twice() -> None:
    timer, _ = ready(per_op_us=10.0)
    arms = {"stock": work(10.0), "ours": lambda n: [10.0] * (4 * n), "aa": work(10.0)}
    paired(timer, arms, 100, rounds=1)
    before = timer.discarded
    paired(timer, arms, 100, rounds=18)
    assert timer.discarded == before


def test_a_blocked_host_gets_fewer_operations() -> None:
    timer, _ = ready(in_flight=70)
    ops = plan_ops(timer, [work(4.0)], copies=1)
    assert 2 <= ops <= 70
    assert timer.per_op(work(4.0), ops) == pytest.approx(4.0, rel=0.02)


def test_a_host_that_is_always_blocked_is_an_error() -> None:
    timer, _ = ready(in_flight=1)
    with pytest.raises(HostTooSlow, match="fewer operations"):
        plan_ops(timer, [work(4.0)], copies=1)


@pytest.mark.parametrize(
    ("us", "copies", "least"),
    [((5.0, 80.0), 64, 128), ((2000.0, 90.0), 2, 6), ((4000.0, 3000.0), 2, 2), ((3.0,), 1, 2)],
)
def test_a_sample_is_whole_passes_and_long_enough(us: tuple[float, ...], copies: int, least: int) -> None:
    timer, _ = ready()
    ops = plan_ops(timer, [work(t) for t in us], copies)
    assert ops % copies == 0
    assert ops >= least
    assert ops * min(us) >= 0.99 * timing.SAMPLE_US


def test_pairs_come_from_the_same_round_in_changing_order() -> None:
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


def test_work_that_takes_no_time_is_an_error() -> None:
    timer, _ = ready()
    with pytest.raises(TimerError, match="no longer than an empty sample"):
        timer.per_op(lambda _: [], 4)
    with pytest.raises(ValueError, match="at least one"):
        timer.per_op(work(1.0), 0)


def test_a_clock_that_runs_backwards_is_an_error() -> None:
    class Backwards(FakeDevice):
        def stamp(self) -> Any:
            return (0,)

    with pytest.raises(TimerError, match="backwards"):
        Timer(Backwards()).calibrate()
