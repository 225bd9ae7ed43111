"""Facts: every number a draft, README or report may hold, derived from the raw samples in records, never stored."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from upstream_patch import kernels
from upstream_patch.errors import StaleFact
from upstream_patch.kernels.tuning import DEVICE_CLASSES
from upstream_patch.problem import Problem, parse_problem
from upstream_patch.records import canonical, dispatch_hash, kernel_hash, rules, stats
from upstream_patch.records.build_body import BuildBody
from upstream_patch.records.correctness_facts import matrix_values
from upstream_patch.records.decode_facts import row_values, trace_values
from upstream_patch.records.decode_schema import DecodeBody
from upstream_patch.records.forward import forward_values
from upstream_patch.records.ncu_facts import UNITS, launch_values
from upstream_patch.records.schema import (
    BenchBody,
    BenchRow,
    Body,
    CaseResult,
    CorrectnessBody,
    HostCost,
    NcuLaunch,
    PeerBody,
    PeerRow,
    Record,
    SanitizerBody,
    WheelBody,
)
from upstream_patch.records.store import LoadedRecord
from upstream_patch.records.wheel_facts import host_hash, wheel_values

VERBS: Mapping[str, str] = {
    "correctness": "correctness",
    "bench": "bench",
    "ncu": "profile",
    "sanitizer": "sanitize",
    "peer": "peers",
    "decode": "decode",
    "wheel": "wheel",
}
"""Kind of record -> the verb, and the nox session, that makes it."""
NAX = "nax"
"""The family of the staged Metal kernels' benchmark rows, which ``python -m upstream_patch m5`` makes."""
MAKES: Mapping[str, str] = {
    family: f"python -m upstream_patch {VERBS[kind]}"
    for family, kind in {"small_m": "bench", **{kind: kind for kind in VERBS if kind != "bench"}}.items()
} | {"build": "python -m upstream_patch build --mlx PATH"}
"""The command that makes a family of facts, to be run on the host that the id names."""


@dataclass(frozen=True)
class Fact:
    """One derived value. ``stale``: it is about our kernel or our dispatch, and that is not today's."""

    id: str
    value: float | str
    unit: str
    """``us``, ``ms``, ``GB/s`` (1e9 bytes), ``tokens/s``, ``byte``, ``ratio``, ``norm``, ``ulp``, ``percent``,
    ``count``, or ``text``."""
    host: str
    record_path: str
    sha256: str
    stale: bool
    created: datetime
    command: str
    """The record's own command: what renews the fact."""


@dataclass(frozen=True)
class _Value:
    id: str
    value: float | str
    unit: str
    ours: bool = False
    """It says something about our kernel."""


@dataclass(frozen=True)
class _Row:
    """Values of one run that are read side by side: all of them come from one record."""

    id: str
    values: tuple[_Value, ...]
    outdated: bool = False
    """What ran is not what runs today: the problem takes another instance of the kernel, or the dispatch changed."""


@dataclass(frozen=True)
class _Speed:
    ratio: stats.Interval
    judgement: stats.Judgement


def derive(
    records: Sequence[LoadedRecord], today: Callable[[str], str] | None = None, dispatch: str | None = None
) -> list[Fact]:
    """Every fact of the records, in the order of their ids.

    Several records may hold one row (a problem's benchmark, its profile, a dtype's correctness). All facts of a row
    come from one of them: the newest in which what is said about our kernel is not stale, or else the newest.
    A correctness record that holds a part of the matrix of an older one gives none. ``today`` maps a kernel's name to
    its hash now, ``dispatch`` is our dispatch's; they are given only in tests.
    """
    kept: dict[str, list[Fact]] = {}
    up_to_date: set[str] = set()
    ordered = sorted(records, key=lambda item: (item.record.created, item.record.id))
    speeds = _speeds(ordered)
    for loaded in ordered:
        record = loaded.record
        if rules.part_of_matrix(record, [other.record for other in ordered]):
            continue
        changed = record.kernel is not None and (today or _hash_today)(record.kernel.name) != record.kernel.hash
        for row in _rows(record, speeds, dispatch or dispatch_hash.today()):
            stale = changed or row.outdated
            fresh = not stale and any(value.ours for value in row.values)
            if row.id in up_to_date and not fresh:
                continue
            if fresh:
                up_to_date.add(row.id)
            kept[row.id] = [
                Fact(
                    id=value.id,
                    value=canonical.tidy(value.value),  # the digits that were measured, whatever rows stand beside
                    unit=value.unit,
                    host=record.host,
                    record_path=loaded.path,
                    sha256=loaded.sha256,
                    stale=value.ours and stale,
                    created=record.created,
                    command=record.command,
                )
                for value in row.values
            ]
    return sorted((fact for facts in kept.values() for fact in facts), key=lambda fact: _natural(fact.id))


def current(fact: Fact) -> Fact:
    """The fact itself. Raises StaleFact, with the command that renews it, when it is stale."""
    if fact.stale:
        raise StaleFact(
            f"fact {fact.id} is stale, today's kernel, tuning or dispatch is not that of {fact.record_path}",
            f"renew it on {fact.host} with `{fact.command}`",
        )
    return fact


def to_json(facts: Iterable[Fact]) -> str:
    """A JSON list of objects: id, value, unit, host, record, sha256, stale, created, command."""
    rows = [
        {
            "id": fact.id,
            "value": fact.value,
            "unit": fact.unit,
            "host": fact.host,
            "record": fact.record_path,
            "sha256": fact.sha256,
            "stale": fact.stale,
            "created": fact.created.isoformat(),
            "command": fact.command,
        }
        for fact in facts
    ]
    return json.dumps(rows, indent=2, ensure_ascii=False)


def _hash_today(kernel: str) -> str:
    """Empty for a kernel that is no longer in the package."""
    return kernel_hash.identity(kernel).hash if kernel in kernel_hash.KNOWN else ""


def _speeds(records: Sequence[LoadedRecord]) -> dict[tuple[str, int], _Speed]:
    """All bootstrap intervals in one go: (record id, row) -> speedup and its verdict."""
    rows: list[tuple[str, int, BenchRow | PeerRow]] = [
        (loaded.record.id, index, row) for loaded in records for index, row in enumerate(_timed(loaded.record.body))
    ]
    pairs = [(_other_us(row), row.ours_us) for _, _, row in rows] + [(_other_us(row), row.aa_us) for _, _, row in rows]
    intervals = stats.geometric_mean_ratios(pairs)
    return {
        (record, index): _Speed(ratio, stats.verdict(ratio, noise, len(row.ours_us)))
        for (record, index, row), ratio, noise in zip(rows, intervals[: len(rows)], intervals[len(rows) :], strict=True)
    }


def _timed(body: Body) -> Sequence[BenchRow | PeerRow]:
    return body.rows if isinstance(body, BenchBody | PeerBody) else ()


def _other_us(row: BenchRow | PeerRow) -> list[float]:
    """The times of what ours is compared with."""
    return row.stock_us if isinstance(row, BenchRow) else row.peer_us


def _rows(record: Record, speeds: Mapping[tuple[str, int], _Speed], dispatch: str) -> Iterator[_Row]:
    body, host = record.body, record.host
    yield _Row(f"record.{record.id}", tuple(_about_the_run(record)))
    if isinstance(body, BenchBody):
        probe = median(body.probe_gbps)
        floor = _Value(f"probe.{host}.launch_floor_us", median(body.launch_floor_us), "us")
        yield _Row(f"probe.{host}", (_Value(f"probe.{host}.read_gbps", probe, "GB/s"), floor))
        for cost in body.host_cost:
            stem = f"host.{host}.{cost.call}"
            yield _Row(stem, tuple(_host_cost(stem, cost)), cost.dispatch_hash != dispatch)
        for index, row in enumerate(body.rows):
            if row.check.passed:
                stem = f"{_family(record)}.{host}.{row.fact_stem}"
                retuned = _retuned(record, row.problem, row.ours_kernels)
                yield _Row(stem, tuple(_bench_row(stem, row, probe, speeds[record.id, index])), retuned)
        for one in body.forwards:
            stem = f"forward.{host}.{one.fact_stem}"
            yield _Row(stem, tuple(_Value(f"{stem}.{name}", *rest) for name, rest in forward_values(one)))
    elif isinstance(body, CorrectnessBody):
        by_dtype: dict[str, list[CaseResult]] = {}
        for case in body.cases:
            by_dtype.setdefault(case.problem.dtype, []).append(case)
        for dtype, cases in by_dtype.items():
            stem = f"correctness.{host}.{dtype}"
            retuned = any(_retuned(record, case.problem, case.kernels) for case in cases)
            yield _Row(stem, tuple(_correctness(stem, cases)), retuned)
    elif isinstance(body, SanitizerBody):
        stem = f"sanitizer.{host}"
        yield _Row(stem, tuple(_sanitizer(stem, body)), _unwatched(record, body))
    elif isinstance(body, PeerBody):
        for index, peer in enumerate(body.rows):
            stem = f"peer.{host}.{peer.problem.id}"
            retuned = _retuned(record, peer.problem, [peer.ours_kernel])
            yield _Row(stem, tuple(_peer(stem, body, peer, speeds[record.id, index])), retuned)
    elif isinstance(body, DecodeBody):
        models = {model.name: model for model in body.models}
        changed = body.dispatch_hash != dispatch
        for decoded in body.rows:
            stem = f"decode.{host}.{decoded.fact_stem}"
            took = decoded.ours_kernels.items()
            outdated = changed or any(_retuned(record, parse_problem(one), [kernel]) for one, kernel in took)
            values = row_values(decoded, models[decoded.model], median(body.probe_gbps))
            yield _Row(stem, tuple(_Value(f"{stem}.{name}", *rest) for name, rest in values), outdated)
        for trace in body.traces:
            stem = f"decode.{host}.{trace.model}.B{trace.batch}.{trace.arm}_trace"
            values = trace_values(trace)
            yield _Row(stem, tuple(_Value(f"{stem}.{name}", *rest) for name, rest in values), changed)
    elif isinstance(body, BuildBody):
        stem = f"build.{host}.{body.backend}"
        counts = {"new_tests": body.new_tests, "proven": body.proven, "known": body.known, "broken": body.broken}
        if body.matrix is not None:
            counts |= {"matrix_wrong": body.matrix.wrong}
        yield _Row(stem, tuple(_Value(f"{stem}.{name}", len(of), "count", True) for name, of in counts.items()))
    elif isinstance(body, WheelBody):
        stem = f"wheel.{host}"
        said = tuple(_Value(f"{stem}.{name}", value, unit, ours) for name, value, unit, ours in wheel_values(body))
        yield _Row(stem, said, body.host_hash != host_hash())
    else:
        by_problem: dict[Problem, list[NcuLaunch]] = {}
        for launch in body.launches:
            by_problem.setdefault(launch.problem, []).append(launch)
        for problem, launches in by_problem.items():
            stem = f"ncu.{host}.{problem.id}"
            ours = [launch.kernel for launch in launches if launch.arm == "ours"]
            yield _Row(stem, tuple(_ncu(stem, problem, launches)), _retuned(record, problem, ours))


def _family(record: Record) -> str:
    """The first part of a benchmark row's ids."""
    return NAX if record.kernel is not None and record.kernel.name == kernel_hash.METAL else "small_m"


def _host_cost(stem: str, cost: HostCost) -> Iterator[_Value]:
    extra = median(ours - stock for stock, ours in zip(cost.stock_us, cost.ours_us, strict=True))
    yield _Value(f"{stem}.stock_us", median(cost.stock_us), "us")
    yield _Value(f"{stem}.ours_us", median(cost.ours_us), "us", ours=True)
    yield _Value(f"{stem}.extra_us", extra, "us", ours=True)


def _bench_row(stem: str, row: BenchRow, probe: float, speed: _Speed) -> Iterator[_Value]:
    stock, ours = median(row.stock_us), median(row.ours_us)
    yield _Value(f"{stem}.stock_us", stock, "us")
    yield _Value(f"{stem}.ours_us", ours, "us", ours=True)
    yield from _speed(stem, speed)
    yield _Value(f"{stem}.verdict_reason", speed.judgement.reason, "text", ours=True)
    if row.protocol.cache == "cold":  # hot weights do not come from memory
        yield _Value(f"{stem}.read_fraction", row.problem.read_fraction(ours, probe), "ratio", ours=True)
        yield _Value(f"{stem}.stock_read_fraction", row.problem.read_fraction(stock, probe), "ratio")
    if row.ours_kernels:  # which kernels stock ran is a profiler's to say: ncu.<host>.<problem>.stock.kernels
        yield _Value(f"{stem}.ours_kernels", ", ".join(row.ours_kernels), "text", ours=True)
    yield _Value(f"{stem}.route", row.route, "text", ours=True)


def _speed(stem: str, speed: _Speed) -> Iterator[_Value]:
    yield _Value(f"{stem}.speedup", speed.ratio.value, "ratio", ours=True)
    yield _Value(f"{stem}.speedup_low", speed.ratio.low, "ratio", ours=True)
    yield _Value(f"{stem}.speedup_high", speed.ratio.high, "ratio", ours=True)
    yield _Value(f"{stem}.verdict", str(speed.judgement.verdict), "text", ours=True)


def _peer(stem: str, body: PeerBody, row: PeerRow, speed: _Speed) -> Iterator[_Value]:
    yield _Value(f"{stem}.peer", f"{body.peer} {body.peer_version}", "text")
    yield _Value(f"{stem}.peer_us", median(row.peer_us), "us")
    yield _Value(f"{stem}.ours_us", median(row.ours_us), "us", ours=True)
    yield from _speed(stem, speed)


def _sanitizer(stem: str, body: SanitizerBody) -> Iterator[_Value]:
    """Counts over all launches of the sound kernel, and how many planted faults each tool found."""
    yield _Value(f"{stem}.version", body.sanitizer_version, "text")
    formats = {(each.problem.mode, each.problem.bits, each.problem.group_size) for each in body.launched}
    yield _Value(f"{stem}.formats", len(formats), "count", ours=True)
    for run in body.sound:
        yield _Value(f"{stem}.{run.tool}.launches", run.launches, "count", ours=True)
        yield _Value(f"{stem}.{run.tool}.errors", run.errors, "count", ours=True)
        yield _Value(f"{stem}.{run.tool}.warnings", run.warnings, "count", ours=True)
        found = sum(other.plant is not None and other.tool == run.tool for other in body.runs)
        yield _Value(f"{stem}.{run.tool}.plants_found", found, "count", ours=True)


def _correctness(stem: str, cases: Sequence[CaseResult]) -> Iterator[_Value]:
    for name, value, unit, ours in matrix_values(cases):
        yield _Value(f"{stem}.{name}", value, unit, ours)


def _ncu(stem: str, problem: Problem, launches: Sequence[NcuLaunch]) -> Iterator[_Value]:
    yield _Value(f"{stem}.packed_bytes", problem.packed_bytes, "byte")
    for arm in ("stock", "ours"):
        call = [launch for launch in launches if launch.arm == arm]
        if call:
            ours = arm == "ours"
            for name, value in launch_values(call).items():
                yield _Value(f"{stem}.{arm}.{name}", value, UNITS[name], ours)
            yield _Value(f"{stem}.{arm}.kernels", ", ".join(launch.kernel for launch in call), "text", ours)


def _retuned(record: Record, problem: Problem, names: Sequence[str]) -> bool:
    """Tuning is no part of the kernel hash, so that one device's does not void another's evidence; it is checked here.

    Names that carry no tuning (other kernels) are not judged; a device that has no tuning any more makes none of them.
    """
    gpu = record.machine.gpu
    ran = [match for name in names if (match := kernels.INSTANCE.search(name))]
    if not ran or gpu is None or gpu.compute_capability is None or gpu.multiprocessors is None:
        return False
    major, minor = gpu.compute_capability.split(".")
    capability = int(major), int(minor)
    if capability not in DEVICE_CLASSES:
        return True
    try:
        variant, _ = kernels.small_m_variant(problem, capability, gpu.multiprocessors)
    except ValueError:  # a format that nothing fits
        return True
    return any(match.group() != variant.name for match in ran)


def _unwatched(record: Record, body: SanitizerBody) -> bool:
    """Whether this device class launches an instance today that the tools did not see. One more does no harm."""
    watched = {match.group() for launch in body.launched if (match := kernels.INSTANCE.search(launch.kernel))}
    gpu = record.machine.gpu
    if not watched or gpu is None or gpu.compute_capability is None:
        return False
    arch = f"sm_{gpu.compute_capability.replace('.', '')}"
    return any(variant.name not in watched for variant in kernels.variants(arch))


def _about_the_run(record: Record) -> Iterator[_Value]:
    """Where the other facts of this record come from; true of the run for ever, so never stale."""
    gpu = record.machine.gpu
    about = {
        "gpu": gpu and gpu.name,
        "vendor": gpu and gpu.vendor,
        "driver": gpu and gpu.driver,
        "os": record.machine.os,
        "arch": record.machine.arch,
        "mlx": record.versions.get("mlx"),
        "cuda": record.versions.get("nvidia-cuda-runtime"),
        "commit": record.versions.get("commit"),
        "command": record.command,
        "kernel_hash": record.kernel and record.kernel.hash,
        "graph_limits": record.body.graph_limits if isinstance(record.body, BenchBody) else None,
    }
    for name, text in about.items():
        if text:
            yield _Value(f"record.{record.id}.{name}", text, "text")
    if isinstance(record.body, BenchBody):
        yield _Value(f"record.{record.id}.read_gbps", median(record.body.probe_gbps), "GB/s")
        yield _Value(f"record.{record.id}.launch_floor_us", median(record.body.launch_floor_us), "us")


def _natural(fact_id: str) -> list[tuple[int, str]]:
    """M2 before M16."""
    return [(int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", fact_id)]
