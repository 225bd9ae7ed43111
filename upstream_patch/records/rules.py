"""What a record must satisfy beyond its form, at the writer's desk and again in ``records verify``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median

from upstream_patch.records.provenance import TEST_HOST, host_id
from upstream_patch.records.schema import BenchBody, CorrectnessBody, NcuBody, Record

PROBE_FLOOR_GBPS = {"h200": 4300.0}
"""Below this read probe (1e9 bytes/s) the machine was not at its normal speed."""
PROBE_SHARE_OF_BEST = 0.98
CACHE_MULTIPLE = 3
"""Cold copies must exceed this many last-level caches."""

Violation = tuple[str, str]
"""(field of the record, what is wrong with it)"""


def violations(record: Record) -> Iterator[Violation]:
    """Everything wrong with one record taken alone."""
    if record.host != TEST_HOST and record.host != (actual := host_id(record.machine)):
        yield "host", f"says {record.host}, but its machine is {actual}"
    body = record.body
    if _runs_ours(body) and record.kernel is None:
        yield "kernel", "missing, although our kernel ran"
    if isinstance(body, BenchBody):
        yield from _bench(record, body)


def slow_probe(record: Record, committed: Iterable[Record]) -> Violation | None:
    """A run whose read probe is below 98% of the best committed one of its host says nothing about a kernel."""
    if not isinstance(record.body, BenchBody):
        return None
    best = max(
        (
            median(old.body.probe_gbps)
            for old in committed
            if old.host == record.host and isinstance(old.body, BenchBody)
        ),
        default=0.0,
    )
    probe = median(record.body.probe_gbps)
    if probe >= PROBE_SHARE_OF_BEST * best:
        return None
    return (
        "body.probe_gbps",
        f"median {probe:.0f} GB/s is below {PROBE_SHARE_OF_BEST:.0%} of this host's best committed probe, {best:.0f}; "
        "see what else runs on the machine, then measure again",
    )


def _bench(record: Record, body: BenchBody) -> Iterator[Violation]:
    probe, floor = median(body.probe_gbps), PROBE_FLOOR_GBPS.get(record.host, 0.0)
    if probe < floor:
        yield (
            "body.probe_gbps",
            f"median {probe:.0f} GB/s is below {floor:.0f} on {record.host}; "
            "see what else runs on the machine, then measure again",
        )
    cache = record.machine.gpu.l2_bytes if record.machine.gpu else None
    for index, row in enumerate(body.rows):
        where = f"body.rows.{index}"
        if not row.check.passed:
            yield f"{where}.check.passed", f"{row.fact_stem} gave a wrong result, a wrong result has no speed"
        if cache and row.protocol.cache == "cold":
            held = row.protocol.copies * row.problem.packed_bytes
            if held <= CACHE_MULTIPLE * cache:
                yield (
                    f"{where}.protocol.copies",
                    f"{row.protocol.copies} copies are {held} bytes: cold needs more than {CACHE_MULTIPLE} x {cache}",
                )


def _runs_ours(body: BenchBody | CorrectnessBody | NcuBody) -> bool:
    if isinstance(body, NcuBody):
        return any(launch.arm == "ours" for launch in body.launches)
    return bool(body.rows if isinstance(body, BenchBody) else body.cases)
