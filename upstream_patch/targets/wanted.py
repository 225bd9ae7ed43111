"""The numbers to reach on the H200, as data: what each is asked of, and the facts that say what was reached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from upstream_patch.kernels.tuning import FORMATS
from upstream_patch.measure.peers import ROWS as PEER_ROWS
from upstream_patch.measure.peers import SHAPES as PEER_SHAPES
from upstream_patch.measure.suites import ROWS
from upstream_patch.problem import Problem

HOST = "h200"
Bound = Literal["at least", "at most"]


@dataclass(frozen=True)
class Decoding:
    """Decode of ``batch`` sequences at once."""

    model: str
    batch: int

    @property
    def id(self) -> str:
        return f"{self.model}.B{self.batch}"


@dataclass(frozen=True)
class Target:
    """A bound on one fact, or on the ratio of two facts of one record (``over`` is the lower one)."""

    asked_of: Problem | Decoding
    fact: str
    bound: Bound
    limit: float
    """A ratio, or us."""
    over: str | None = None
    beside: tuple[str, ...] = ()
    """Facts shown with it, which decide nothing."""
    of_its_run: tuple[str, ...] = ()
    """The same, of the record that its fact comes from: ``record.<its id>.<name>``."""

    def met(self, value: float) -> bool:
        return value >= self.limit if self.bound == "at least" else value <= self.limit


@dataclass(frozen=True)
class Group:
    title: str
    about: str
    targets: tuple[Target, ...]


_FEW = 8
"""Rows that a call of 1 row may become for the same time."""
_SHARES: dict[tuple[int, int], tuple[float, float, float | None]] = {
    (4096, 128256): (0.88, 0.78, 0.60),
    (4096, 14336): (0.65, 0.55, 0.40),
    (14336, 4096): (0.65, 0.55, 0.40),
    (8192, 8192): (0.65, 0.55, 0.40),
    (4096, 4096): (0.45, 0.40, None),
    (4096, 28672): (0.75, 0.65, None),
    (4096, 6144): (0.50, 0.42, None),
}
"""K x N -> the least share of the read probe at M = 1 to 8, 16 and 32."""
_SHORT = (4096, 1024)
_SHORT_US = {_FEW: 3.5, 16: 4.5}
"""Most rows -> the most us."""
LARGEST = tuple(sorted(_SHARES, key=lambda shape: shape[0] * shape[1])[-3:])
"""K x N of the three largest weights."""
_COSTS = {_FEW: 1.05, 16: 1.25}
"""Most rows -> the most that a call may take, in calls of 1 row."""
SPEEDUP, SPEEDUP_ROWS = 4.0, (4, 7)
PEER = {1: 1.5, 8: 3.0}
_OTHERS_AT = (4096, 14336)


DECODED = "llama-3.1-8b"
DECODE = ((1, "speedup", 1.6), (8, "speedup", 8.0), (8, "speedup_over_folded", 3.5), (16, "speedup", 12.0))
"""Sequences, fact, and the least it must be."""
AGGREGATE = (8, 1, 6.0)
"""So many sequences together must reach so many times the tokens of one."""


def _fact(problem: Problem | Decoding, name: str, family: str = "small_m") -> str:
    return f"{family}.{HOST}.{problem.id}.{name}"


def _shares() -> Iterator[Target]:
    for (k, n), (few, middle, many) in _SHARES.items():
        for m in ROWS:
            limit = few if m <= _FEW else middle if m <= 16 else many
            if limit is not None:
                problem = Problem(m=m, n=n, k=k)
                yield Target(problem, _fact(problem, "read_fraction"), "at least", limit)


def _short() -> Iterator[Target]:
    k, n = _SHORT
    for m in ROWS:
        limit = next((us for most, us in _SHORT_US.items() if m <= most), None)
        if limit is not None:
            problem = Problem(m=m, n=n, k=k)
            beside = (_fact(problem, "chain.ours_us"),)
            fact = _fact(problem, "ours_us")
            yield Target(problem, fact, "at most", limit, beside=beside, of_its_run=("launch_floor_us",))


def _costs() -> Iterator[Target]:
    for k, n in reversed(LARGEST):
        one = _fact(Problem(m=1, n=n, k=k), "ours_us")
        for m in ROWS[1:]:
            limit = next((cost for most, cost in _COSTS.items() if m <= most), None)
            if limit is not None:
                problem = Problem(m=m, n=n, k=k)
                yield Target(problem, _fact(problem, "ours_us"), "at most", limit, over=one)


def _speedups() -> Iterator[Target]:
    first, last = SPEEDUP_ROWS
    for k, n in reversed(LARGEST):
        for m in (m for m in ROWS if first <= m <= last):
            problem = Problem(m=m, n=n, k=k)
            yield Target(problem, _fact(problem, "speedup"), "at least", SPEEDUP)


def _peers() -> Iterator[Target]:
    for k, n in PEER_SHAPES:
        for m in PEER_ROWS:
            problem = Problem(m=m, n=n, k=k)
            beside = (_fact(problem, "peer_us", "peer"), _fact(problem, "ours_us", "peer"))
            yield Target(problem, _fact(problem, "speedup", "peer"), "at least", PEER[m], beside=beside)


def _others() -> Iterator[Target]:
    k, n = _OTHERS_AT
    for bits, group, mode in FORMATS:
        if mode != "affine" or bits != 4:
            problem = Problem(m=_FEW, n=n, k=k, bits=bits, group_size=group, mode=mode)
            limit = 0.65 if mode == "affine" and bits == 8 else 0.5
            yield Target(problem, _fact(problem, "read_fraction"), "at least", limit)


def _decode() -> Iterator[Target]:
    for batch, name, limit in DECODE:
        decoding = Decoding(DECODED, batch)
        over = ("stock", "ours") if name == "speedup" else ("folded", "ours")
        beside = tuple(_fact(decoding, f"{arm}_tok_s", "decode") for arm in over)
        yield Target(decoding, _fact(decoding, name, "decode"), "at least", limit, beside=beside)
    many, few, limit = AGGREGATE
    decoding = Decoding(DECODED, many)
    one = _fact(Decoding(DECODED, few), "ours_tok_s", "decode")
    beside = tuple(_fact(decoding, f"ours_{name}", "decode") for name in ("ms_step", "matmul_ms", "host_ms"))
    yield Target(decoding, _fact(decoding, "ours_tok_s", "decode"), "at least", limit, over=one, beside=beside)


GROUPS = (
    Group(
        "Share of the read probe",
        "Packed bytes over time over the read probe of the same run. Affine 4 bits, group size 64, bf16, cold weights, "
        "independent calls that the GPU may overlap.",
        tuple(_shares()),
    ),
    Group(
        "4096 x 1024",
        "Microseconds of the same calls. Beside them: an empty kernel of the same run, and a call that waits for the "
        "one before, with a link kernel in its time.",
        tuple(_short()),
    ),
    Group(
        "What M rows cost",
        "Time at M rows over time at 1 row, both of one record, on the three largest shapes.",
        tuple(_costs()),
    ),
    Group(
        f"Speedup over stock, M = {SPEEDUP_ROWS[0]} to {SPEEDUP_ROWS[1]}",
        "Stock's time over ours, on the three largest shapes.",
        tuple(_speedups()),
    ),
    Group(
        "Speedup over PyTorch's prepacked int4",
        "Its time over ours in one process, one call after the other on one stream. Beside it: both times, "
        "microseconds.",
        tuple(_peers()),
    ),
    Group(
        "Other formats",
        "Share of the read probe at M = 8 in bf16.",
        tuple(_others()),
    ),
    Group(
        "Decode of Llama-3.1-8B's shape",
        "Through mlx-lm with random weights, 128-token prompts, steady steps: ours against stock, and against stock "
        "with the batch folded into rows; and the tokens of 8 sequences against those of one.",
        tuple(_decode()),
    ),
)
