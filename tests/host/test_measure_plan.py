"""How many operations a sample gets, against a simulated device: enough, whole passes, and nothing else in them; and
which columns are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from upstream_patch.measure import timer as timing
from upstream_patch.measure.checked import sample_columns
from upstream_patch.measure.timer import HostTooSlow, NotLinear, Timer, TooShort, plan_ops


def work(us: float) -> timing.Work:
    return lambda n: [us] * n


def test_a_device_that_starves_past_some_number_of_operations_gets_fewer(ready: Any) -> None:
    timer, _ = ready(starved_after=170)
    ops = plan_ops(timer, [work(2.0)], copies=81)
    assert ops <= 170
    assert timer.per_op(work(2.0), ops) == pytest.approx(2.0, rel=0.02)
    assert timer.replanned == 1


def test_fewer_operations_than_copies_where_more_do_not_work(ready: Any) -> None:
    timer, _ = ready(starved_after=160)
    assert 80 < plan_ops(timer, [work(2.0)], copies=200) <= 160


def test_a_stall_in_every_sample_is_refused(ready: Any) -> None:
    timer, _ = ready(upload_us=900.0)
    with pytest.raises(NotLinear, match="nothing was measured"):
        plan_ops(timer, [work(76.0)], copies=2)


def test_pages_that_a_read_moved_are_back_before_the_sample(ready: Any) -> None:
    timer, _ = ready(pages_us=330.0)
    ops = plan_ops(timer, [work(53.0)], copies=2)
    assert timer.per_op(work(53.0), ops) == pytest.approx(53.0, rel=0.004)


def test_a_stall_that_is_small_against_the_sample_is_allowed(ready: Any) -> None:
    timer, _ = ready(upload_us=10.0)
    ops = plan_ops(timer, [work(76.0)], copies=2)
    assert timer.per_op(work(76.0), ops) == pytest.approx(76.0, rel=0.03)


def test_a_cost_of_the_sample_itself_gets_more_operations(ready: Any) -> None:
    timer, _ = ready(upload_us=180.0)
    ops = plan_ops(timer, [work(10.0)], copies=200)
    assert ops == 600, "400 are enough for the first length; for twice that whole passes, not pairs of passes"
    assert timer.per_op(work(10.0), ops) == pytest.approx(10.0, rel=0.04)
    assert timer.replanned == 1


def test_no_number_of_operations_is_judged_twice(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[int] = []

    def refuse(timer: Timer, work: timing.Work, ops: int) -> None:
        judged.append(ops)
        raise NotLinear("refused")

    monkeypatch.setattr(timing, "_require_linear", refuse)
    timer, _ = ready()
    with pytest.raises(NotLinear):
        plan_ops(timer, [work(1.0)], copies=1)  # MAX_OPS already at the first length
    assert judged[0] == timing.MAX_OPS
    assert len(judged) == len(set(judged)) > 2


def test_a_number_for_which_the_host_was_too_slow_is_not_tried_again(ready: Any) -> None:
    timer, device = ready(per_op_us=200.0)  # 1024 operations take longer to enqueue than any hold
    tried: list[int] = []

    def counted(n: int) -> list[float]:
        tried.append(n)
        return [1.0] * n

    assert plan_ops(timer, [counted], copies=1) < 500
    assert tried.count(timing.MAX_OPS) == 2 * timing.ATTEMPTS  # each attempt builds them twice
    assert device.submits > 0


def test_a_sample_shorter_than_an_empty_one_gets_more_operations(ready: Any) -> None:
    timer, _ = ready()

    def short(n: int) -> list[float]:
        return [5.0] * n if n >= 8 else []

    ops = plan_ops(timer, [short], copies=1)
    assert timer.per_op(short, ops) == pytest.approx(5.0, rel=0.004)
    with pytest.raises(TooShort):
        plan_ops(timer, [lambda n: []], copies=3)


def test_a_first_estimate_that_is_too_slow_does_not_stay(ready: Any) -> None:
    timer, _ = ready(upload_us=9.0)  # two operations of 6 us seem to take 10.5 each
    ops = plan_ops(timer, [work(6.0)], copies=1)
    assert 0.99 * timing.SAMPLE_US <= ops * 6.0 < 1.1 * timing.SAMPLE_US


def test_the_most_operations_are_whole_passes(ready: Any) -> None:
    timer, _ = ready()
    assert plan_ops(timer, [work(1.0)], copies=81) == 972
    assert plan_ops(timer, [work(0.5)], copies=1, most=2048) == 2048


@pytest.mark.parametrize(
    ("slowest", "fastest", "wanted"),
    [(1970.0, 72.0, 60_000 / 1970), (440.0, 18.0, 60_000 / 440), (3730.0, 100.0, 2000 / 100), (63.0, 9.0, 3000 / 9)],
)
def test_a_slow_arm_shortens_the_samples(ready: Any, slowest: float, fastest: float, wanted: float) -> None:
    timer, _ = ready()
    assert plan_ops(timer, [work(slowest), work(fastest)], copies=1) == pytest.approx(wanted, abs=1.1, rel=0.02)


def test_a_blocked_host_gets_fewer_operations(ready: Any) -> None:
    timer, _ = ready(in_flight=70)
    ops = plan_ops(timer, [work(4.0)], copies=1)
    assert 2 <= ops <= 70
    assert timer.per_op(work(4.0), ops) == pytest.approx(4.0, rel=0.02)


def test_a_host_that_is_always_blocked_is_an_error(ready: Any) -> None:
    timer, _ = ready(in_flight=1)
    with pytest.raises(HostTooSlow, match="fewer operations"):
        plan_ops(timer, [work(4.0)], copies=1)


@pytest.mark.parametrize(
    ("us", "copies", "least"),
    [((5.0, 80.0), 64, 128), ((1000.0, 90.0), 2, 34), ((4000.0, 3000.0), 2, 2), ((3.0,), 1, 2)],
)
def test_a_sample_is_whole_passes_and_long_enough(ready: Any, us: tuple[float, ...], copies: int, least: int) -> None:
    timer, _ = ready()
    ops = plan_ops(timer, [work(t) for t in us], copies)
    assert ops % copies == 0
    assert ops >= least
    assert ops * min(us) >= 0.99 * timing.SAMPLE_US


@pytest.mark.parametrize("n", [64, 320, 321, 1024, 128256])
def test_sampled_columns_hold_both_ends_and_256_between(n: int) -> None:
    columns = sample_columns(n, seed=4)
    assert len(np.unique(columns)) == len(columns) == min(n, 320)
    assert set(range(min(32, n))) <= set(columns) and set(range(max(0, n - 32), n)) <= set(columns)
    assert (columns.min(), columns.max()) == (0, n - 1)
