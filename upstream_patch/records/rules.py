"""What a record must satisfy beyond its form, at the writer's desk and whenever it is read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import get_args

from upstream_patch import kernels
from upstream_patch.problem import Problem
from upstream_patch.records.build_body import BuildBody
from upstream_patch.records.decode_schema import DecodeBody
from upstream_patch.records.plausible import Violation, implausible
from upstream_patch.records.provenance import HOSTS, TEST_HOST, host_id
from upstream_patch.records.schema import (
    BenchBody,
    Body,
    CorrectnessBody,
    KernelIdentity,
    NcuBody,
    PeerBody,
    Record,
    SanitizerBody,
    Tool,
    WheelBody,
)

PROBE_FLOOR_GBPS = {"h200": 4300.0}
"""Below this read probe (1e9 bytes/s) the machine was not at its normal speed."""
PROBE_SHARE_OF_BEST = 0.98
CACHE_MULTIPLE = 3
"""Cold copies must exceed this many last-level caches."""
MOST_OF_PROBE = 1.05
"""Cold weights cannot be read much faster than this share of what the read probe of the same run reached."""
MOST_OF_PEER_PROBE = 1.1
"""The same of the least probe of a host, where the run has none of its own."""
LEAST_CASES = 400
"""Fewer correctness cases on one of ``HOSTS`` are a part of the matrix."""
LEAST_LAUNCHES = 1100
"""The same of the launches that the sanitizers watched."""
LEAST_LAUNCHES_WITHOUT_HASHES = 600
"""Of records without the outputs' hashes, whose matrix had no batches, no strides and not every instance."""
LEAST_WHEEL_CASES, LEAST_WHEEL_MATRIX = 300, 1000
"""The same of the cases of a wheel build, and of the matrix that they are every n-th case of."""
SHARE_OF_MATRIX = 0.9
"""How far a host's matrix may shrink: another tuning has a few other cases, a part of the matrix lacks many."""
_LARGEST_SIZE = 2**31 - 1  # what MLX can hold as one dimension of an array
_CAPABILITY = re.compile(r"\d{1,2}\.\d", re.ASCII)


def violations(record: Record) -> Iterator[Violation]:
    """Everything wrong with one record taken alone."""
    if record.host != TEST_HOST and record.host != (actual := host_id(record.machine)):
        yield "host", f"says {record.host}, but its machine is {actual}"
    gpu = record.machine.gpu
    if gpu and gpu.compute_capability is not None and not _CAPABILITY.fullmatch(gpu.compute_capability):
        yield "machine.gpu.compute_capability", f"{gpu.compute_capability!r} is not of the form 9.0"
    body = record.body
    if _runs_ours(body) and record.kernel is None:
        yield "kernel", "missing, although our kernel ran"
    impossible = list(_impossible(body))
    yield from impossible
    if impossible:  # what follows computes with the sizes
        return
    if isinstance(body, BenchBody):
        yield from _bench(record, body)
        yield from _twice("body.rows", [row.fact_stem for row in body.rows])
        yield from _twice("body.host_cost", [cost.call for cost in body.host_cost])
        yield from _twice("body.forwards", [one.fact_stem for one in body.forwards])
    elif isinstance(body, CorrectnessBody):
        yield from _twice("body.cases", [(case.case, case.problem, case.seed) for case in body.cases])
        if record.host in HOSTS and len(body.cases) < LEAST_CASES:
            yield "body.cases", f"{len(body.cases)} cases are a part of the matrix, which has more than {LEAST_CASES}"
    elif isinstance(body, SanitizerBody):
        yield from _sanitizer(record, body)
    elif isinstance(body, PeerBody):
        yield from _peer(record, body)
    elif isinstance(body, DecodeBody):
        yield from _decode(record, body)
    elif isinstance(body, BuildBody):
        yield from _twice("body.runs", [(run.arm, run.metal_jit, run.tf32) for run in body.runs])
        if body.failed("base").keys() != body.failed("series").keys():
            yield "body.runs", "the base and the series were not tested in the same environments"
    elif isinstance(body, WheelBody):
        yield from _wheel(record, body)
    else:
        yield from _twice("body.launches", [launch.model_dump_json() for launch in body.launches])
        calls = [(launch.problem, launch.arm) for launch in body.launches]
        begins = [call for at, call in enumerate(calls) if at == 0 or calls[at - 1] != call]
        yield from _twice("body.launches", begins, "a second call of")
    yield from implausible(record)


def best_probe(host: str, committed: Iterable[Record]) -> float:
    """GB/s of the best committed read probe of a host, 0 without one. A run below ``PROBE_SHARE_OF_BEST`` of it says
    nothing about a kernel: ask before a measurement, since its record would be refused."""
    probed = (old.body for old in committed if old.host == host)
    return max((median(body.probe_gbps) for body in probed if isinstance(body, BenchBody | DecodeBody)), default=0.0)


def slow_probe(record: Record, committed: Iterable[Record]) -> Violation | None:
    """A run whose read probe is too far below the best committed one of its host."""
    if not isinstance(record.body, BenchBody | DecodeBody):
        return None
    best, probe = best_probe(record.host, committed), median(record.body.probe_gbps)
    if probe >= PROBE_SHARE_OF_BEST * best:
        return None
    return (
        "body.probe_gbps",
        f"median {probe:.0f} GB/s is below {PROBE_SHARE_OF_BEST:.0%} of this host's best committed probe, {best:.0f}; "
        "see what else runs on the machine, then measure again",
    )


def part_of_matrix(record: Record, others: Iterable[Record]) -> Violation | None:
    """A correctness run that leaves out what another one of its host tried cannot stand in its place, nor can the
    sanitizers' over fewer launches, nor a wheel build's over fewer cases of the same code."""
    if isinstance(record.body, SanitizerBody):
        return _fewer_launches(record, record.body, others)
    if isinstance(record.body, WheelBody):
        return _fewer_cases(record, record.body, others)
    if not isinstance(record.body, CorrectnessBody):
        return None
    cases = record.body.cases
    labels = {case.case for case in cases}
    for other in others:
        if other.host != record.host or not isinstance(other.body, CorrectnessBody):
            continue
        if other.body.full != record.body.full:  # the cover is no part of the whole cross, nor stands in its place
            continue
        if other.created > record.created:
            continue
        whole = other.body.cases
        lacks = sorted({case.case for case in whole} - labels)
        if len(cases) < SHARE_OF_MATRIX * len(whole) or (lacks and len(cases) < len(whole)):
            names = f", none of {', '.join(lacks[:3])}" if lacks else ""
            return (
                "body.cases",
                f"{len(cases)} cases{names}: a part of the matrix, {other.id} has {len(whole)}; run the whole matrix",
            )
    return None


def _fewer_launches(record: Record, body: SanitizerBody, others: Iterable[Record]) -> Violation | None:
    for other in others:
        if not isinstance(other.body, SanitizerBody) or (other.host != record.host or other.created > record.created):
            continue
        count, whole = len(body.launched), len(other.body.launched)
        if count < SHARE_OF_MATRIX * whole:
            return "body.launched", f"{count} launches are a part of the matrix, {other.id} has {whole}"
    return None


def least_wheel_cases(host: str, host_hash: str, kernel: KernelIdentity | None, committed: Iterable[Record]) -> float:
    """How many cases of this host code and kernel a record needs. Of another code a part says more than nothing; of the
    same it would hide what the whole says."""
    same = (
        len(other.body.cases)
        for other in committed
        if isinstance(other.body, WheelBody) and other.host == host
        if (other.body.host_hash, other.kernel) == (host_hash, kernel)
    )
    return max(SHARE_OF_MATRIX * max(same, default=0), LEAST_WHEEL_CASES if host in HOSTS else 0)


def _fewer_cases(record: Record, body: WheelBody, others: Iterable[Record]) -> Violation | None:
    older = [other for other in others if other.created <= record.created and other.id != record.id]
    least, count = least_wheel_cases(record.host, body.host_hash, record.kernel, older), len(body.cases)
    if count >= least:
        return None
    return "body.cases", f"{count} cases are a part of the matrix: {least:.0f} of this code are needed"


def _impossible(body: Body) -> Iterator[Violation]:
    """Problems of sizes that no array has."""
    parts: dict[str, Sequence[Problem]] = {}
    if isinstance(body, BenchBody):
        parts["rows"] = [row.problem for row in body.rows]
        parts["host_cost"] = [cost.problem for cost in body.host_cost]
    elif isinstance(body, CorrectnessBody):
        parts["cases"] = [case.problem for case in body.cases]
    elif isinstance(body, SanitizerBody):
        parts["launched"] = [launch.problem for launch in body.launched]
    elif isinstance(body, PeerBody | WheelBody):
        parts["rows"] = [row.problem for row in body.rows]
        parts["cases"] = [case.problem for case in body.cases] if isinstance(body, WheelBody) else []
    elif isinstance(body, DecodeBody):
        parts |= {f"models.{index}.problems": model.problems for index, model in enumerate(body.models)}
    elif isinstance(body, NcuBody):
        parts["launches"] = [launch.problem for launch in body.launches]
    for name, problems in parts.items():
        for index, problem in enumerate(problems):
            sizes = {key: getattr(problem, key) for key in ("m", "n", "k", "bits", "group_size", "batch")}
            for key, size in sizes.items():
                if not 1 <= size <= _LARGEST_SIZE:
                    yield f"body.{name}.{index}.problem.{key}", f"must be from 1 to {_LARGEST_SIZE}"


def _bench(record: Record, body: BenchBody) -> Iterator[Violation]:
    yield from _least_probe(record, body)
    probe = median(body.probe_gbps)
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
        if row.protocol.cache == "cold":
            for name, times in (("stock_us", row.stock_us), ("ours_us", row.ours_us), ("aa_us", row.aa_us)):
                fraction = row.problem.read_fraction(median(times), probe)
                if fraction > MOST_OF_PROBE:
                    yield (
                        f"{where}.{name}",
                        f"{row.fact_stem} would read cold weights at {fraction:.4g} of this run's read probe, above "
                        f"{MOST_OF_PROBE}: no such speed is possible",
                    )


def _least_probe(record: Record, body: BenchBody | DecodeBody) -> Iterator[Violation]:
    probe, floor = median(body.probe_gbps), PROBE_FLOOR_GBPS.get(record.host, 0.0)
    if probe < floor:
        yield (
            "body.probe_gbps",
            f"median {probe:.0f} GB/s is below {floor:.0f} on {record.host}; "
            "see what else runs on the machine, then measure again",
        )


def _decode(record: Record, body: DecodeBody) -> Iterator[Violation]:
    yield from _least_probe(record, body)
    yield from _twice("body.models", [model.name for model in body.models])
    yield from _twice("body.rows", [(row.model, row.batch) for row in body.rows])
    yield from _twice("body.traces", [(trace.model, trace.batch, trace.arm) for trace in body.traces])
    models = {model.name: model for model in body.models}
    cache = (record.machine.gpu and record.machine.gpu.l2_bytes) or 0
    for where, name in (
        *((f"body.rows.{index}", row.model) for index, row in enumerate(body.rows)),
        *((f"body.traces.{index}", trace.model) for index, trace in enumerate(body.traces)),
    ):
        if name not in models:
            yield f"{where}.model", f"{name} is not among the record's models"
    for index, model in enumerate(body.models):
        packed = sum(problem.packed_bytes for problem in model.problems)
        if packed != model.step_bytes:
            yield f"body.models.{index}.step_bytes", f"says {model.step_bytes}, its problems have {packed}"
    for index, row in enumerate(body.rows):
        if row.model not in models:
            continue
        model = models[row.model]
        for name, arm in row.arms.items():
            where = f"body.rows.{index}.{name}"
            if not arm.check.passed:
                yield f"{where}.check.passed", f"{row.fact_stem} gave a wrong result, a wrong result has no speed"
            if arm.check.matmuls != len(model.problems):
                yield f"{where}.check.matmuls", f"{arm.check.matmuls} were checked, a step has {len(model.problems)}"
            # what lies in the cache from the step before need not be read again
            for what, times in (("step_ms", arm.step_ms), ("matmul_ms", arm.matmul_ms)):
                least_ms = 1e3 * (model.step_bytes - cache) / 1e9 / median(body.probe_gbps) / MOST_OF_PROBE
                if median(times) < least_ms:
                    yield (
                        f"{where}.{what}",
                        f"{row.fact_stem} takes {median(times):.4g} ms, and reading its weights at this run's probe "
                        f"takes {least_ms:.4g}: no such speed is possible",
                    )


def _sanitizer(record: Record, body: SanitizerBody) -> Iterator[Violation]:
    """Whether the tools saw all launches, and none of them is blind. What they found is not judged here: evidence of a
    fault is evidence."""
    yield from _twice("body.runs", [(run.tool, run.plant) for run in body.runs])
    yield from _twice("body.runs", [run.log for run in body.runs], "has the log of")
    found = Counter(run.tool for run in body.runs if run.plant is not None)
    for tool in get_args(Tool):
        if tool not in {run.tool for run in body.sound}:
            yield "body.runs", f"{tool} did not run"
        if not found[tool]:
            yield "body.runs", f"no fault was planted for {tool}: nothing says that it would report one"
    for index, run in enumerate(body.runs):
        where = f"body.runs.{index}"
        if run.plant is None and run.launches != len(body.launched):
            yield f"{where}.launches", f"{run.tool} saw {run.launches} launches of {len(body.launched)}"
        if run.plant is not None and not run.errors:
            yield f"{where}.errors", f"{run.tool} did not report the planted fault {run.plant}"
        if run.log not in {attachment.path for attachment in record.attachments}:
            yield f"{where}.log", f"{run.log} is not among the attachments"
    for index, launch in enumerate(body.launched):
        if record.host in HOSTS and not kernels.INSTANCE.fullmatch(launch.kernel):
            yield f"body.launched.{index}.kernel", f"{launch.kernel!r} is no instance of our kernel"
    hashed = any(launch.output_sha256 is not None for launch in body.launched)
    least = LEAST_LAUNCHES if hashed else LEAST_LAUNCHES_WITHOUT_HASHES
    if record.host in HOSTS and len(body.launched) < least:
        yield "body.launched", f"{len(body.launched)} launches are a part of the matrix, which has more than {least}"


def _wheel(record: Record, body: WheelBody) -> Iterator[Violation]:
    yield from _twice("body.cases", [(case.case, case.problem, case.seed) for case in body.cases])
    yield from _twice("body.rows", [row.problem for row in body.rows])
    yield from _twice("body.decode", [decoded.batch for decoded in body.decode])
    count, every = len(body.cases), body.every
    if count > body.planned or (every is not None and count != -(-body.planned // every)):
        yield "body.cases", f"{count} cases, where every {every or 'n'}-th of {body.planned} were to be run"
    if record.host in HOSTS and (count < LEAST_WHEEL_CASES or body.planned < LEAST_WHEEL_MATRIX):
        asked = f"{LEAST_WHEEL_CASES} of {LEAST_WHEEL_MATRIX} at least are asked on {record.host}"
        yield "body.cases", f"{count} cases of {body.planned}: {asked}"
    for index, row in enumerate(body.rows):
        if not row.check.passed:
            yield f"body.rows.{index}.check.passed", f"{row.problem.id} is wrong, a wrong result has no speed"
        times = {"stock_us": row.stock_us, "runtime_us": row.runtime_us, "wheel_us": row.wheel_us, "aa_us": row.aa_us}
        yield from _cold(record, index, row.problem, row.copies, times)


def _cold(
    record: Record, index: int, problem: Problem, copies: int, times: Mapping[str, Sequence[float]]
) -> Iterator[Violation]:
    """Of a row whose run has no read probe of its own."""
    probe = PROBE_FLOOR_GBPS.get(record.host)
    for name, samples in times.items() if probe else ():
        fraction = problem.read_fraction(median(samples), probe) if probe else 0.0
        if fraction > MOST_OF_PEER_PROBE:
            yield f"body.rows.{index}.{name}", f"{problem.id} reads {fraction:.4g} of {record.host}'s least probe"
    cache, held = record.machine.gpu.l2_bytes if record.machine.gpu else None, copies * problem.packed_bytes
    if cache and held <= CACHE_MULTIPLE * cache:
        yield (
            f"body.rows.{index}.copies",
            f"{copies} copies are {held} bytes: cold needs more than {CACHE_MULTIPLE} x {cache}",
        )


def _peer(record: Record, body: PeerBody) -> Iterator[Violation]:
    yield from _twice("body.rows", [row.problem for row in body.rows])
    for index, row in enumerate(body.rows):
        for name, check in (("peer_check", row.peer_check), ("check", row.check)):
            if not check.passed:
                yield f"body.rows.{index}.{name}", f"{row.problem.id} is wrong, a wrong result has no speed"
        if record.host in HOSTS and not kernels.INSTANCE.match(row.ours_kernel):
            yield f"body.rows.{index}.ours_kernel", f"{row.ours_kernel!r} is no instance of our kernel"
        times = {"peer_us": row.peer_us, "ours_us": row.ours_us, "aa_us": row.aa_us}
        yield from _cold(record, index, row.problem, row.copies, times)


def _twice(where: str, keys: Sequence[Hashable], what: str = "says again what is in") -> Iterator[Violation]:
    """A thing that is there twice: one of the two would be picked, or both summed, without a word."""
    first: dict[Hashable, int] = {}
    for index, key in enumerate(keys):
        if key in first:
            yield f"{where}.{index}", f"{what} {where}.{first[key]}"
        first.setdefault(key, index)


def _runs_ours(body: Body) -> bool:
    if isinstance(body, NcuBody):
        return any(launch.arm == "ours" for launch in body.launches)
    if isinstance(body, BenchBody | PeerBody | DecodeBody):
        return bool(body.rows)
    if isinstance(body, BuildBody):
        return True
    return bool(body.cases if isinstance(body, CorrectnessBody | WheelBody) else body.launched)
