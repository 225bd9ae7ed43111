"""How long does an operation take on the device, when the host is kept out of the measurement?

One sample on one in-order stream, after as many operations that are not timed::

    hold (the GPU spins)  ->  n operations  ->  stamp
            \\__ its end opens the bracket          \\__ closes it

The hold keeps the device busy while the host enqueues the rest, so the device never waits for the host between the two
stamps. That is not assumed but checked: the host's enqueuing time (from before the hold was enqueued to after the
stamp was) must be shorter than the hold itself, both measured; otherwise the sample is thrown away and taken again with
a longer hold. Nothing here imports MLX: ``Device`` is the seam, ``mlx_device.MlxDevice`` the real one.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from upstream_patch.errors import UserError

Work = Callable[[int], Sequence[Any]]
"""``work(n)`` builds n operations without running them, and returns what has to be enqueued, in order."""

SAMPLE_US = 3000.0
"""What a sample of the fastest arm should last: a tick of the device clock (up to 1 us) is then below 0.1 % of it, and
the start of a graph (about 16 us on an H200, in both arms) about 0.5 %. A sample is shorter where MAX_OPS, the slowest
arm, the host or the device does not let it be so long; then such costs weigh more, up to what LINEAR lets through."""
SLOWEST_US, LEAST_US = 60_000.0, 2000.0
"""A sample of the slowest arm should not last longer than the first, while the fastest arm's still lasts the second."""
SHARES = (1.0, 2.0, 4.0, 0.5, 0.25, 0.125, 0.0625)
"""Lengths of a sample that are tried, as shares of the three above."""
LINEAR = 0.04
"""Half the operations must take half the time, within this share of it (and within a clock tick a sample)."""
MAX_OPS = 1024
ATTEMPTS = 6
MAX_HOLD_US = 100_000.0
FIRST_HOLD_US = 2_000.0
LEAST_HOLD_US = 200.0
"""Long enough for the hold's own output page to move to the GPU meanwhile."""


class TimerError(UserError):
    """The device could not be timed; nothing was measured."""

    exit_code = 4


class HostTooSlow(TimerError):
    """The host could not enqueue a sample before the hold ended, however long the hold was."""


class TooShort(TimerError):
    """A sample was no longer than an empty one: it needs more operations."""


class NotLinear(TimerError):
    """The time of an operation depends on how many are timed: something else is in the samples."""


class Device(Protocol):
    """One in-order stream, and the clocks on both sides of it. Times in us unless the name says ns."""

    def host_us(self) -> float:
        """The host's monotonic clock."""
        ...

    def hold(self, us: float) -> Any:
        """Enqueue a kernel that spins for ``us``; ``read`` gives (start ns, end ns) after ``wait``."""
        ...

    def submit(self, batch: Sequence[Any]) -> None:
        """Enqueue what ``Work`` built; returns when the host is done with it, not the device."""
        ...

    def stamp(self) -> Any:
        """Enqueue a kernel that reads the device clock; ``read`` gives (ns,) after ``wait``."""
        ...

    def wait(self) -> None:
        """Return when everything enqueued has finished."""
        ...

    def read(self, handle: Any) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Sample:
    device_us: float
    """From the end of the hold to the stamp, nothing subtracted."""
    host_us: float
    """What the host needed to enqueue hold, operations and stamp."""
    hold_us: float
    """How long the hold really held."""
    attempts: int


@dataclass
class Timer:
    """Times work on ``device``. ``bracket_us`` is what an empty sample costs; ``calibrate`` measures it."""

    device: Device
    bracket_us: float = 0.0
    discarded: int = 0
    """Samples thrown away because the host was slower than the hold."""
    replanned: int = 0
    """How often ``plan_ops`` had to take another number of operations than its first."""
    _hold_us: float = field(default=FIRST_HOLD_US, repr=False)

    def calibrate(self, samples: int = 21) -> float:
        """Measure the empty bracket (median, us) and keep it."""
        self.sample(_nothing, 0)  # the first one builds kernels and graphs
        self.bracket_us = statistics.median(self.sample(_nothing, 0).device_us for _ in range(samples))
        return self.bracket_us

    def sample(self, work: Work, ops: int) -> Sample:
        """Take one sample. Raises HostTooSlow when no hold was long enough."""
        host_us = 0.0
        for attempt in range(1, ATTEMPTS + 1):
            taken = self._take(work, ops, attempt)
            if taken.host_us < taken.hold_us:
                # follow the host down slowly: the next arm may need longer to enqueue than this one
                self._hold_us = max(LEAST_HOLD_US, 2.0 * taken.host_us + 100.0, 0.9 * self._hold_us)
                return taken
            self.discarded += 1
            host_us = taken.host_us
            self._hold_us = min(MAX_HOLD_US, max(2.0 * self._hold_us, 2.0 * host_us + 100.0))
        raise HostTooSlow(
            f"the host needed {host_us:.0f} us to enqueue {ops} operations while the GPU was held {taken.hold_us:.0f} "
            f"us, {ATTEMPTS} times: stop other work on the host, or time fewer operations per sample"
        )

    def _take(self, work: Work, ops: int, attempt: int) -> Sample:
        device = self.device
        if ops:
            # Reading the stamps on the host may have taken pages of the outputs along: bring them back first.
            device.submit(work(ops))
            device.wait()
        batch = work(ops)
        start = device.host_us()
        hold = device.hold(self._hold_us)
        if batch:
            device.submit(batch)
        stamp = device.stamp()
        host_us = device.host_us() - start
        device.wait()
        begin, end = device.read(hold)
        (closed,) = device.read(stamp)
        del batch  # outputs live until the sample has ended, not longer
        if not begin < end <= closed:
            raise TimerError(
                f"the device clock ran backwards ({begin}, {end}, {closed} ns): the stream is not in order, or another "
                "program uses the same kernel names; run it alone"
            )
        return Sample((closed - end) / 1e3, host_us, (end - begin) / 1e3, attempt)

    def per_op(self, work: Work, ops: int) -> float:
        """Device time of one operation, us, from one sample of ``ops`` operations."""
        if ops < 1:
            raise ValueError("a sample needs at least one operation")
        left = self.sample(work, ops).device_us - self.bracket_us
        if left <= 0:
            raise TooShort(
                f"{ops} operations took no longer than an empty sample ({self.bracket_us:.2f} us): time more per sample"
            )
        return left / ops

    def median(self, work: Work, ops: int, samples: int = 3) -> float:
        """Median of ``samples`` after one that is thrown away, us per operation."""
        self.per_op(work, ops)
        return statistics.median(self.per_op(work, ops) for _ in range(samples))


def plan_ops(timer: Timer, arms: Sequence[Work], copies: int, most: int = MAX_OPS) -> int:
    """How many operations a sample of these arms needs; the same number for all.

    Enough that the fastest arm lasts SAMPLE_US, less where the slowest would last too long, and at least two; rounded
    up to whole passes over the weight copies unless that is more than ``most``. Half of them must take half the time:
    where a cost of the sample itself shows (a graph's start), more are tried, then fewer, where the host cannot enqueue
    so many or the device waits for something in them; those may end within a pass. The rotation goes on across samples,
    so the weights stay cold even then. No number is judged twice. Raises NotLinear, HostTooSlow or TooShort when none
    is left.
    """
    failed: dict[int, TimerError] = {}
    for share in SHARES:
        ops = _enough_ops(timer, arms, max(1, round(copies * min(1.0, share))), share, failed, most)
        if ops in failed:
            continue
        try:
            for arm in arms:
                _require_linear(timer, arm, ops)
        except (HostTooSlow, NotLinear, TooShort) as error:
            failed[ops] = error
        else:
            timer.replanned += bool(failed)
            return ops
    raise list(failed.values())[-1]


def _enough_ops(
    timer: Timer, arms: Sequence[Work], step: int, share: float, failed: dict[int, TimerError], limit: int
) -> int:
    """A multiple of ``step``, at most ``limit`` or one step, that is long enough for a ``share`` of the lengths.

    Where that number cannot be timed, or none is long enough to be, the last one tried; ``failed`` then says why.
    """
    most, ops = max(step, limit // step * step), step * math.ceil(2 / step)
    while not isinstance(failed.get(ops), HostTooSlow | TooShort):
        try:
            times = [timer.median(arm, ops, 1) for arm in arms]
        except HostTooSlow as error:
            failed[ops] = error
            break
        except TooShort as error:
            if ops == most:
                failed[ops] = error
                break
            ops = min(most, 2 * ops)
            continue
        fastest, slowest = min(times), max(times)
        wanted = share * min(SAMPLE_US / fastest, max(SLOWEST_US / slowest, LEAST_US / fastest))
        if ops == most or ops >= 0.99 * wanted:
            break
        # a few operations seem slower than many: what they are short of shows only with more of them
        ops = min(most, math.ceil(wanted / step) * step)
    return ops


def _require_linear(timer: Timer, work: Work, ops: int) -> None:
    """A stall that every sample has, or that comes from some number of operations on, shows in no A/A comparison."""
    whole, half = timer.median(work, ops), timer.median(work, max(1, ops // 2))
    if abs(whole - half) > LINEAR * whole + 1.0 / ops:
        raise NotLinear(
            f"an operation takes {whole:.2f} us among {ops} and {half:.2f} us among {max(1, ops // 2)}: the samples "
            "hold something else than the operations, so nothing was measured"
        )


def orders(arms: Sequence[str], rounds: int, seed: int) -> Iterator[tuple[str, ...]]:
    """The order of the arms in every round: one balanced square after another, each with its arms and rounds shuffled.

    In a square (Williams') every arm stands in each place equally often, and equally often right after each other arm.
    It has as many rounds as arms where their number is even, else twice as many: all six orders of three arms.
    """
    rng = random.Random(seed)
    pool: list[tuple[str, ...]] = []
    for _ in range(rounds):
        if not pool:
            pool = _square(rng.sample(arms, len(arms)))
            rng.shuffle(pool)
        yield pool.pop()


def _square(arms: Sequence[str]) -> list[tuple[str, ...]]:
    count = len(arms)
    zigzag = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(count)]  # 0, 1, -1, 2, ...
    rows = [tuple(arms[(start + step) % count] for step in zigzag) for start in range(count)]
    return rows if count % 2 == 0 else [*rows, *(row[::-1] for row in rows)]


def paired(
    timer: Timer, arms: dict[str, Work], ops: int, *, rounds: int, seed: int = 0, tick: Callable[[], None] | None = None
) -> dict[str, list[float]]:
    """us per operation, one entry per round and arm: entry i of every list comes from round i.

    Every arm is sampled once per round, in an order that changes from round to round, so that drift and the order
    itself fall on all arms alike. One sample per arm is thrown away first. No sample is dropped for its value.
    """
    for work in arms.values():
        timer.per_op(work, ops)
    times: dict[str, list[float]] = {name: [] for name in arms}
    for order in orders(tuple(arms), rounds, seed):
        for name in order:
            times[name].append(timer.per_op(arms[name], ops))
        if tick is not None:
            tick()
    return times


def _nothing(_: int) -> Sequence[Any]:
    return ()
