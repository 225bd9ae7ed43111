"""Whether names and counters in a record can be what they say: our kernels, MLX's, and bytes that a call must read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import get_args

from upstream_patch import kernels, routing
from upstream_patch.problem import Problem
from upstream_patch.records import kernel_hash
from upstream_patch.records.decode_schema import DecodeBody
from upstream_patch.records.ncu_facts import launch_values
from upstream_patch.records.provenance import HOSTS
from upstream_patch.records.schema import BenchBody, CorrectnessBody, NcuBody, NcuLaunch, Record, WheelBody

Violation = tuple[str, str]
"""(field, what is wrong)"""

LEAST_READ = 0.97
"""Share of the packed bytes that a call on flushed caches must read from memory."""
MOST_READS = 4.0
"""So many times over may it read what it would if every row read all weights."""
MODULE = re.compile(r"qmm_small_m_(?:bfloat16|float16)_(?:affine|mxfp4|mxfp8|nvfp4)(?:_[bgrwst]\d{1,3}){6}")
"""A JIT module of the series' host code."""


def implausible(record: Record) -> Iterator[Violation]:
    """Names are judged on the machines that drafts are about, since tests have kernels of their own."""
    body = record.body
    if isinstance(body, NcuBody):
        yield from _bytes_read(body)
    if isinstance(body, DecodeBody):
        for index, trace in enumerate(body.traces):
            if not trace.kernels:
                yield f"body.traces.{index}.kernels", f"a step of {trace.model} without a kernel is no step"
    if record.host not in HOSTS or (record.kernel is not None and record.kernel.name == kernel_hash.METAL):
        return
    if isinstance(body, BenchBody):
        yield from _bench(body)
    elif isinstance(body, CorrectnessBody):
        for index, case in enumerate(body.cases):
            yield from _ours(f"body.cases.{index}.kernels", case.kernels)
    elif isinstance(body, NcuBody):
        yield from _launches(body)
    elif isinstance(body, DecodeBody):
        yield from _decode(body)
    elif isinstance(body, WheelBody):
        yield from _wheel(body)


def _ours(where: str, names: Sequence[str]) -> Iterator[Violation]:
    for name in names:
        if not kernels.INSTANCE.match(name):
            yield where, f"{name!r} is no instance of our kernel"


def _bench(body: BenchBody) -> Iterator[Violation]:
    for index, row in enumerate(body.rows):
        where = f"body.rows.{index}"
        if row.route not in get_args(routing.Route):
            yield f"{where}.route", f"{row.route!r} is no route; known: {', '.join(get_args(routing.Route))}"
        elif (row.route == "small_m") != bool(row.ours_kernels):
            yield f"{where}.ours_kernels", f"{row.ours_kernels} on the route {row.route}"
        yield from _ours(f"{where}.ours_kernels", row.ours_kernels)


def _launches(body: NcuBody) -> Iterator[Violation]:
    stock = routing.KERNEL_SYMBOLS.values()
    for index, launch in enumerate(body.launches):
        ours = kernels.INSTANCE.search(launch.kernel) is not None
        if launch.arm == "ours" and not ours:
            yield f"body.launches.{index}.kernel", f"{launch.kernel!r} is no instance of our kernel"
        if launch.arm == "stock" and (ours or not any(name in launch.kernel for name in stock)):
            yield f"body.launches.{index}.kernel", f"{launch.kernel!r} is none of MLX's quantized matmuls"


def _bytes_read(body: NcuBody) -> Iterator[Violation]:
    calls: dict[tuple[Problem, str], list[tuple[int, NcuLaunch]]] = {}
    for index, launch in enumerate(body.launches):
        calls.setdefault((launch.problem, launch.arm), []).append((index, launch))
    for (problem, arm), launches in calls.items():
        read = launch_values([launch for _, launch in launches]).get("dram_bytes_read")
        if read is None:
            continue
        least, most = LEAST_READ * problem.packed_bytes, MOST_READS * problem.m * problem.batch * problem.packed_bytes
        if not least <= read <= most:
            yield (
                f"body.launches.{launches[0][0]}.metrics",
                f"{arm} on {problem.id} read {read:.4g} bytes of memory, and a call on flushed caches reads "
                f"{least:.4g} to {most:.4g}",
            )


def _decode(body: DecodeBody) -> Iterator[Violation]:
    for index, row in enumerate(body.rows):
        yield from _ours(f"body.rows.{index}.ours_kernels", list(row.ours_kernels.values()))
    took = {(row.model, row.batch) for row in body.rows if row.ours_kernels}
    for index, trace in enumerate(body.traces):
        ours = any(kernels.INSTANCE.search(one.kernel) for one in trace.kernels)
        if ours and trace.arm != "ours":
            yield f"body.traces.{index}.kernels", f"our kernel ran in a step of {trace.arm}"
        if trace.arm == "ours" and not ours and (trace.model, trace.batch) in took:
            yield f"body.traces.{index}.kernels", "none of them is an instance of our kernel, which the row says ran"


def _wheel(body: WheelBody) -> Iterator[Violation]:
    named = [(f"body.cases.{index}.kernels", one) for index, case in enumerate(body.cases) for one in case.kernels]
    named += [(f"body.rows.{index}.module", row.module) for index, row in enumerate(body.rows)]
    for where, name in named:
        if not MODULE.fullmatch(name):
            yield where, f"{name!r} is no module of the series' host code"
