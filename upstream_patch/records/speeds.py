"""How much faster ours is than what it is compared with, of every timed row at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from upstream_patch.records import stats
from upstream_patch.records.schema import BenchBody, BenchRow, Body, PeerBody, PeerRow, Record
from upstream_patch.records.watched import judged


@dataclass(frozen=True)
class Speed:
    ratio: stats.Interval
    judgement: stats.Judgement


Speeds = Mapping[tuple[str, int], Speed]
"""(record id, row) -> its speed"""


def speeds_of(records: Sequence[Record]) -> Speeds:
    """(record id, row) -> speedup and its verdict."""
    rows: list[tuple[str, int, BenchRow | PeerRow]] = [
        (record.id, index, row) for record in records for index, row in enumerate(_timed(record.body))
    ]
    pairs = [(_other_us(row), row.ours_us) for _, _, row in rows] + [(_other_us(row), row.aa_us) for _, _, row in rows]
    intervals = stats.geometric_mean_ratios(pairs)
    return {
        (record, index): Speed(ratio, judged(stats.verdict(ratio, noise, len(row.ours_us), _control(row)), row.watched))
        for (record, index, row), ratio, noise in zip(rows, intervals[: len(rows)], intervals[len(rows) :], strict=True)
    }


def _timed(body: Body) -> Sequence[BenchRow | PeerRow]:
    return body.rows if isinstance(body, BenchBody | PeerBody) else ()


def _control(row: BenchRow | PeerRow) -> str:
    return "stock" if isinstance(row, BenchRow) else "the peer"


def _other_us(row: BenchRow | PeerRow) -> list[float]:
    """The times of what ours is compared with."""
    return row.stock_us if isinstance(row, BenchRow) else row.peer_us
