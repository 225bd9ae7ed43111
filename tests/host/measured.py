"""Every measurement of units, on devices of nothing: a unit takes ROW_S, and its numbers are its place."""

from __future__ import annotations

import subprocess
import sys
import time
import types
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.machine import Gpu, Machine
from upstream_patch.measure import bench, inputs, ncu, peers, suites
from upstream_patch.measure.ncu_report_reader import Expected
from upstream_patch.measure.probe import ReadProbe, Shape
from upstream_patch.measure.suites import Profiled, Spec, Suite
from upstream_patch.problem import Problem
from upstream_patch.records.decode_schema import (
    DecodeArm,
    DecodeBody,
    DecodeCheck,
    DecodeModel,
    DecodeRow,
    DecodeTrace,
    KernelTime,
)
from upstream_patch.records.schema import (
    BenchBody,
    BenchRow,
    Body,
    Check,
    KernelIdentity,
    NcuBody,
    NcuLaunch,
    PeerBody,
    PeerRow,
    Protocol,
)
from upstream_patch.records.store import Root
from upstream_patch.resuming import Measurement

KERNEL = KernelIdentity(name="small_m", hash="ab" * 32)
GPU = Gpu(name="Simulated", vendor="nvidia", multiprocessors=1, l2_bytes=1000)
MACHINE = Machine(os="none", arch="none", cpu="none", cpu_count=1, memory_bytes=1, python="3", gpu=GPU)
ROWS = 10
PROBLEMS = tuple(Problem(m=m, n=64, k=64) for m in range(1, ROWS + 1))
SUITE = Suite("tiny", "for this test", tuple(Spec(problem) for problem in PROBLEMS), rounds=6)
WIDTHS = tuple(Problem(m=1, n=64 * width, k=64) for width in range(1, ROWS + 1))
ROW_S = 0.004
CHECK = Check(passed=True, norm_error=0, max_ulp=0, bound="none", columns=64)
MODEL = DecodeModel(
    name="small",
    weights="random",
    config={},
    step_bytes=PROBLEMS[0].packed_bytes,
    problems=[PROBLEMS[0].model_copy(update={"layout": "b1k"})],
)
UNITS = {
    "bench": [problem.id for problem in PROBLEMS],
    "peers": [problem.id for problem in PROBLEMS],
    "profile": [problem.weights_id for problem in WIDTHS],
    "decode": [*(f"small.B{batch}" for batch in range(1, ROWS + 1)), "traces"],
}
"""Kind of measurement -> its units."""
KINDS = tuple(kind for kind in UNITS if kind != "decode" or find_spec("mlx"))
KERNELS = [KernelTime(kernel="k", launches=1, us=1)]
HOOK = types.SimpleNamespace(number=0, before=None)
"""``before`` is called in each unit, with its number in this process from 1 on."""


def unit() -> None:
    time.sleep(ROW_S)
    HOOK.number += 1
    if HOOK.before:
        HOOK.before(HOOK.number)


def row(_: Any, spec: Spec, *__: Any, **___: Any) -> BenchRow:
    unit()
    times = [1000.0 * spec.problem.m + i for i in range(6)]
    protocol = Protocol(copies=100, ops_per_sample=1, timer="none")
    return BenchRow(
        problem=spec.problem,
        protocol=protocol,
        stock_us=times,
        ours_us=times,
        aa_us=times,
        check=CHECK,
        ours_kernels=[],
        route="stock",
    )


def peer_row(_: Any, __: Any, problem: Problem, *___: Any) -> PeerRow:
    unit()
    times = [1000.0 * problem.m + i for i in range(6)]
    return PeerRow(
        problem=problem,
        copies=100,
        ops_per_sample=1,
        peer_us=times,
        ours_us=times,
        aa_us=times,
        peer_check=CHECK,
        check=CHECK,
        ours_kernel="none",
    )


def decode_row(_: Any, batch: int, *__: Any) -> tuple[DecodeRow, DecodeModel]:
    unit()
    check = DecodeCheck(passed=True, logits_error=0, matmul_error=0, matmuls=1, bound="none")
    ms = [1.0 * batch] * 3
    arm = DecodeArm(step_ms=ms, host_ms=ms, matmul_ms=ms, check=check)
    return DecodeRow(
        model="small", batch=batch, prompt=1, steps=1, stock=arm, folded=arm, ours=arm, aa_ms=ms, ours_kernels={}
    ), MODEL


def traced(model: str, batches: Sequence[int], _: float) -> tuple[list[DecodeTrace], str]:
    unit()
    arm: Any = "ours"
    return [DecodeTrace(model=model, batch=batch, arm=arm, span_us=1, kernels=KERNELS) for batch in batches], "a fake"


def run_ncu(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    said = "Version 1.0"
    if "-o" in arguments:
        unit()
        Path(arguments[arguments.index("-o") + 1]).write_bytes(b"")
    return subprocess.CompletedProcess(arguments, 0, said, "")


def read_report(_: Path, launches: Sequence[Expected], *__: Any) -> list[NcuLaunch]:
    return [
        NcuLaunch(problem=one.problem, arm=one.arm, kernel="k", grid=(1, 1, 1), block=(1, 1, 1), metrics={})
        for one in launches
    ]


class NoTimer:
    bracket_us, discarded, replanned = 1.0, 0, 0

    def __init__(self, _: Any) -> None: ...

    def calibrate(self) -> None: ...


def void(*_: Any, **__: Any) -> Any: ...


def simulate(patch: pytest.MonkeyPatch) -> None:
    """A device, and operands, of nothing."""
    patch.setattr(HOOK, "number", 0)
    if "decode" in KINDS:
        simulate_decode(patch)
    core = types.ModuleType("mlx.core")
    package = types.ModuleType("mlx")
    patch.setattr(core, "clear_cache", void, raising=False)
    patch.setattr(package, "core", core, raising=False)
    patch.setitem(sys.modules, "mlx", package)
    patch.setitem(sys.modules, "mlx.core", core)
    patch.setitem(suites.SUITES, SUITE.name, SUITE)
    patch.setitem(suites.PROFILES, "tiny", tuple(Profiled(one, "ours") for one in WIDTHS))
    probe = ReadProbe([100.0], 1, Shape(1, 32, 1), {})
    cuda = types.SimpleNamespace(init=void, current_device=void, empty_cache=void)
    gpu = types.SimpleNamespace(capability=(9, 0), multiprocessors=132, load=void)
    instead: dict[Any, dict[str, Any]] = {
        bench: {
            "MlxDevice": lambda: types.SimpleNamespace(resolution_ns=1),
            "read_probe": lambda *_: probe,
            "launch_floor": lambda *_: [1.0],
            "host_costs": list,
            "table": lambda _: "",
            "_row": row,
        },
        inputs: {"make_weights": void},
        peers: {
            "torch_here": lambda: types.SimpleNamespace(cuda=cuda, __version__="0"),
            "Gpu": lambda _: gpu,
            "_build": lambda variants, _: dict.fromkeys(variants),
            "TorchDevice": void,
            "make_copy": void,
            "Arms": void,
            "_row": peer_row,
        },
        ncu: {"_run": run_ncu, "read_report": read_report},
    }
    for module, names in instead.items():
        for name, value in names.items():
            patch.setattr(module, name, value)
    for module in (bench, peers):
        patch.setattr(module, "Timer", NoTimer)
        patch.setattr(module, "conditions", lambda _: [])


def simulate_decode(patch: pytest.MonkeyPatch) -> None:
    """While MLX can still be imported."""
    places: dict[str, dict[str, Any]] = {
        "measure.decode.lm": {"version": lambda: "0"},
        "measure.decode.run": {"_row": decode_row, "_free": void, "described": lambda _: MODEL},
        "measure.decode.trace": {"traced": traced},
        "measure.decode.models": {"named": void},
        "measure.decode.report": {"table": lambda _: "", "kernels": lambda _: ""},
        "measure.mlx_device": {"MlxDevice": void},
        "measure.timer": {"Timer": NoTimer},
        "measure.conditions": {"conditions": lambda _: []},
        "measure.bench": {"normal_probe": lambda *_: ReadProbe([100.0], 1, Shape(1, 32, 1), {})},
        "correctness": {"compile_ahead": void},
    }
    for place, names in places.items():
        module = import_module(f"upstream_patch.{place}")
        for name, value in names.items():
            patch.setattr(module, name, value)


def measure(kind: str) -> Callable[[Any], Body]:
    if kind == "bench":
        return lambda keeper: bench.run_suite(SUITE.name, machine=MACHINE, keeper=keeper)
    if kind == "peers":
        return lambda keeper: peers.run_peers(PROBLEMS, machine=MACHINE, keeper=keeper)
    if kind == "profile":
        return lambda keeper: ncu.profile("tiny", symbol=lambda _: "k", check=void, keeper=keeper)
    from upstream_patch.measure.decode import run_decode

    return lambda keeper: run_decode(["small"], range(1, ROWS + 1), machine=MACHINE, keeper=keeper)


def measurement(kind: str, evidence: Root, say: Callable[[str], None], **changes: Any) -> Measurement:
    given: dict[str, Any] = {
        "name": f"{kind}.tiny",
        "plan": UNITS[kind],
        "asked": UNITS[kind],
        "measure": measure(kind),
        "command": kind,
        "machine": MACHINE,
        "versions": {"commit": "a"},
        "kernel": KERNEL,
        "evidence": evidence,
        "say": say,
        "beside": ("traces",),
    }
    return Measurement(**(given | changes))


def units(body: Body) -> list[str]:
    """The units that a record holds, each as often as it does."""
    if isinstance(body, BenchBody):
        return [one.fact_stem for one in body.rows]
    if isinstance(body, PeerBody):
        return [one.problem.id for one in body.rows]
    if isinstance(body, NcuBody):
        return [one.problem.weights_id for one in body.launches]
    assert isinstance(body, DecodeBody)
    return [*(one.fact_stem for one in body.rows), *(["traces"] if body.traces else [])]
