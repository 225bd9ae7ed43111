"""The values of a record, row by row: each kind of record has a function of its own, in one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from upstream_patch.problem import Problem, parse_problem
from upstream_patch.records import kernel_hash
from upstream_patch.records.build_body import BuildBody
from upstream_patch.records.correctness_facts import matrix_values
from upstream_patch.records.decode_facts import row_values, trace_values
from upstream_patch.records.decode_schema import DecodeBody
from upstream_patch.records.forward import forward_values
from upstream_patch.records.ncu_facts import UNITS, launch_values
from upstream_patch.records.outdated import retuned, unwatched
from upstream_patch.records.schema import (
    BenchBody,
    BenchRow,
    CaseResult,
    CorrectnessBody,
    HostCost,
    NcuBody,
    NcuLaunch,
    PeerBody,
    PeerRow,
    Record,
    SanitizerBody,
    WheelBody,
)
from upstream_patch.records.speeds import Speed, Speeds
from upstream_patch.records.wheel_facts import host_hash, wheel_values

NAX = "nax"
"""The family of the staged Metal kernels' benchmark rows, which ``python -m upstream_patch m5`` makes."""


@dataclass(frozen=True)
class Value:
    id: str
    value: float | str
    unit: str
    ours: bool = False
    """It says something about our kernel."""


@dataclass(frozen=True)
class Row:
    """Values of one run that are read side by side: all of them come from one record."""

    id: str
    values: tuple[Value, ...]
    outdated: bool = False
    """What ran is not what runs today: the problem takes another instance of the kernel, or the dispatch changed."""


@dataclass(frozen=True)
class Run:
    """A record, and what its rows are read with."""

    record: Record
    speeds: Speeds
    dispatch: str
    """Hash of today's (``records.dispatch_hash``)."""


def rows_of(record: Record, speeds: Speeds, dispatch: str) -> Iterator[Row]:
    """Those about the run, then those of what it measured."""
    yield Row(f"record.{record.id}", tuple(_about_the_run(record)))
    yield from OF_KIND[record.body.kind](Run(record, speeds, dispatch), record.body)


def _bench_rows(run: Run, body: BenchBody) -> Iterator[Row]:
    record, host = run.record, run.record.host
    probe = median(body.probe_gbps)
    floor = Value(f"probe.{host}.launch_floor_us", median(body.launch_floor_us), "us")
    yield Row(f"probe.{host}", (Value(f"probe.{host}.read_gbps", probe, "GB/s"), floor))
    for cost in body.host_cost:
        stem = f"host.{host}.{cost.call}"
        yield Row(stem, tuple(_host_cost(stem, cost)), cost.dispatch_hash != run.dispatch)
    for index, row in enumerate(body.rows):
        if row.check.passed:
            stem = f"{_family(record)}.{host}.{row.fact_stem}"
            outdated = retuned(record, row.problem, row.ours_kernels)
            yield Row(stem, tuple(_bench_row(stem, row, probe, run.speeds[record.id, index])), outdated)
    for one in body.forwards:
        stem = f"forward.{host}.{one.fact_stem}"
        yield Row(stem, tuple(Value(f"{stem}.{name}", *rest) for name, rest in forward_values(one)))


def _correctness_rows(run: Run, body: CorrectnessBody) -> Iterator[Row]:
    record, host = run.record, run.record.host
    by_dtype: dict[str, list[CaseResult]] = {}
    for case in body.cases:
        by_dtype.setdefault(case.problem.dtype, []).append(case)
    for dtype, cases in by_dtype.items():
        stem = f"correctness.{host}.{dtype}"
        outdated = any(retuned(record, case.problem, case.kernels) for case in cases)
        yield Row(stem, tuple(_correctness(stem, cases)), outdated)


def _sanitizer_rows(run: Run, body: SanitizerBody) -> Iterator[Row]:
    record, host = run.record, run.record.host
    stem = f"sanitizer.{host}"
    yield Row(stem, tuple(_sanitizer(stem, body)), unwatched(record, body))


def _peers_rows(run: Run, body: PeerBody) -> Iterator[Row]:
    record, host = run.record, run.record.host
    for index, peer in enumerate(body.rows):
        stem = f"peer.{host}.{peer.problem.id}"
        outdated = retuned(record, peer.problem, [peer.ours_kernel])
        yield Row(stem, tuple(_peer(stem, body, peer, run.speeds[record.id, index])), outdated)


def _decode_rows(run: Run, body: DecodeBody) -> Iterator[Row]:
    record, host = run.record, run.record.host
    models = {model.name: model for model in body.models}
    changed = body.dispatch_hash != run.dispatch
    for decoded in body.rows:
        stem = f"decode.{host}.{decoded.fact_stem}"
        took = decoded.ours_kernels.items()
        outdated = changed or any(retuned(record, parse_problem(one), [kernel]) for one, kernel in took)
        values = row_values(decoded, models[decoded.model], median(body.probe_gbps), body.mlx_lm)
        yield Row(stem, tuple(Value(f"{stem}.{name}", *rest) for name, rest in values), outdated)
    for trace in body.traces:
        stem = f"decode.{host}.{trace.model}.B{trace.batch}.{trace.arm}_trace"
        values = trace_values(trace)
        yield Row(stem, tuple(Value(f"{stem}.{name}", *rest) for name, rest in values), changed)


def _build_rows(run: Run, body: BuildBody) -> Iterator[Row]:
    host = run.record.host
    stem = f"build.{host}.{body.backend}"
    counts = {"new_tests": body.new_tests, "proven": body.proven, "kept": body.kept}
    counts |= {"known": sorted(body.known), "broken": body.broken}
    if body.matrix is not None:
        counts |= {"matrix_wrong": body.matrix.wrong}
    yield Row(stem, tuple(Value(f"{stem}.{name}", len(of), "count", True) for name, of in counts.items()))


def _wheel_rows(run: Run, body: WheelBody) -> Iterator[Row]:
    host = run.record.host
    stem = f"wheel.{host}"
    said = tuple(Value(f"{stem}.{name}", value, unit, ours) for name, value, unit, ours in wheel_values(body))
    yield Row(stem, said, body.host_hash != host_hash())


def _ncu_rows(run: Run, body: NcuBody) -> Iterator[Row]:
    record, host = run.record, run.record.host
    by_problem: dict[Problem, list[NcuLaunch]] = {}
    for launch in body.launches:
        by_problem.setdefault(launch.problem, []).append(launch)
    for problem, launches in by_problem.items():
        stem = f"ncu.{host}.{problem.id}"
        ours = [launch.kernel for launch in launches if launch.arm == "ours"]
        yield Row(stem, tuple(_ncu(stem, problem, launches)), retuned(record, problem, ours))


def _family(record: Record) -> str:
    """The first part of a benchmark row's ids."""
    return NAX if record.kernel is not None and record.kernel.name == kernel_hash.METAL else "small_m"


def _host_cost(stem: str, cost: HostCost) -> Iterator[Value]:
    extra = median(ours - stock for stock, ours in zip(cost.stock_us, cost.ours_us, strict=True))
    yield Value(f"{stem}.stock_us", median(cost.stock_us), "us")
    yield Value(f"{stem}.ours_us", median(cost.ours_us), "us", ours=True)
    yield Value(f"{stem}.extra_us", extra, "us", ours=True)


def _bench_row(stem: str, row: BenchRow, probe: float, speed: Speed) -> Iterator[Value]:
    stock, ours = median(row.stock_us), median(row.ours_us)
    yield Value(f"{stem}.stock_us", stock, "us")
    yield Value(f"{stem}.ours_us", ours, "us", ours=True)
    yield from _speed(stem, speed)
    yield Value(f"{stem}.verdict_reason", speed.judgement.reason, "text", ours=True)
    if row.protocol.cache == "cold":  # hot weights do not come from memory
        yield Value(f"{stem}.read_fraction", row.problem.read_fraction(ours, probe), "ratio", ours=True)
        yield Value(f"{stem}.stock_read_fraction", row.problem.read_fraction(stock, probe), "ratio")
    if row.ours_kernels:  # which kernels stock ran is a profiler's to say: ncu.<host>.<problem>.stock.kernels
        yield Value(f"{stem}.ours_kernels", ", ".join(row.ours_kernels), "text", ours=True)
    yield Value(f"{stem}.route", row.route, "text", ours=True)


def _speed(stem: str, speed: Speed) -> Iterator[Value]:
    yield Value(f"{stem}.speedup", speed.ratio.value, "ratio", ours=True)
    yield Value(f"{stem}.speedup_low", speed.ratio.low, "ratio", ours=True)
    yield Value(f"{stem}.speedup_high", speed.ratio.high, "ratio", ours=True)
    yield Value(f"{stem}.verdict", str(speed.judgement.verdict), "text", ours=True)


def _peer(stem: str, body: PeerBody, row: PeerRow, speed: Speed) -> Iterator[Value]:
    yield Value(f"{stem}.peer", f"{body.peer} {body.peer_version}", "text")
    yield Value(f"{stem}.peer_us", median(row.peer_us), "us")
    yield Value(f"{stem}.ours_us", median(row.ours_us), "us", ours=True)
    yield from _speed(stem, speed)


def _sanitizer(stem: str, body: SanitizerBody) -> Iterator[Value]:
    """Counts over all launches of the sound kernel, and how many planted faults each tool found."""
    yield Value(f"{stem}.version", body.sanitizer_version, "text")
    formats = {(each.problem.mode, each.problem.bits, each.problem.group_size) for each in body.launched}
    yield Value(f"{stem}.formats", len(formats), "count", ours=True)
    for run in body.sound:
        yield Value(f"{stem}.{run.tool}.launches", run.launches, "count", ours=True)
        yield Value(f"{stem}.{run.tool}.errors", run.errors, "count", ours=True)
        yield Value(f"{stem}.{run.tool}.warnings", run.warnings, "count", ours=True)
        found = sum(other.plant is not None and other.tool == run.tool for other in body.runs)
        yield Value(f"{stem}.{run.tool}.plants_found", found, "count", ours=True)


def _correctness(stem: str, cases: Sequence[CaseResult]) -> Iterator[Value]:
    for name, value, unit, ours in matrix_values(cases):
        yield Value(f"{stem}.{name}", value, unit, ours)


def _ncu(stem: str, problem: Problem, launches: Sequence[NcuLaunch]) -> Iterator[Value]:
    yield Value(f"{stem}.packed_bytes", problem.packed_bytes, "byte")
    for arm in ("stock", "ours"):
        call = [launch for launch in launches if launch.arm == arm]
        if call:
            ours = arm == "ours"
            for name, value in launch_values(call).items():
                yield Value(f"{stem}.{arm}.{name}", value, UNITS[name], ours)
            yield Value(f"{stem}.{arm}.kernels", ", ".join(launch.kernel for launch in call), "text", ours)


def _about_the_run(record: Record) -> Iterator[Value]:
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
            yield Value(f"record.{record.id}.{name}", text, "text")
    if isinstance(record.body, BenchBody):
        yield Value(f"record.{record.id}.read_gbps", median(record.body.probe_gbps), "GB/s")
        yield Value(f"record.{record.id}.launch_floor_us", median(record.body.launch_floor_us), "us")


OF_KIND: Mapping[str, Callable[[Run, Any], Iterator[Row]]] = {
    "bench": _bench_rows,
    "correctness": _correctness_rows,
    "sanitizer": _sanitizer_rows,
    "peer": _peers_rows,
    "decode": _decode_rows,
    "build": _build_rows,
    "wheel": _wheel_rows,
    "ncu": _ncu_rows,
}
"""Kind of body -> its rows."""
