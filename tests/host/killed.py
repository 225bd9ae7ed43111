"""Forks writers and kills them with -9 at random points; run by test_killed.py in a process without threads.

Prints one line of JSON: what was left after every kill. Nothing here is measured: a row's numbers are its place.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.machine import Gpu, Machine
from upstream_patch.measure import bench, inputs, suites
from upstream_patch.measure.probe import ReadProbe, Shape
from upstream_patch.measure.suites import Spec, Suite
from upstream_patch.problem import Problem
from upstream_patch.records.journal import Journal
from upstream_patch.records.schema import BenchBody, BenchRow, Check, KernelIdentity, NcuBody, Protocol
from upstream_patch.records.store import load_all, put_in_place, verify, write
from upstream_patch.resuming import Measurement

KERNEL = KernelIdentity(name="small_m", hash="ab" * 32)
GPU = Gpu(name="Simulated", vendor="nvidia", multiprocessors=1, l2_bytes=1000)
MACHINE = Machine(os="none", arch="none", cpu="none", cpu_count=1, memory_bytes=1, python="3", gpu=GPU)
ROWS = 10
SUITE = Suite("tiny", "for this test", tuple(Spec(Problem(m=m, n=64, k=64)) for m in range(1, ROWS + 1)), rounds=6)
ROW_S = 0.004


def row(_: Any, spec: Spec, *__: Any, **___: Any) -> BenchRow:
    time.sleep(ROW_S)
    times = [1000.0 * spec.problem.m + i for i in range(6)]
    check = Check(passed=True, norm_error=0, max_ulp=0, bound="none", columns=64)
    protocol = Protocol(copies=100, ops_per_sample=1, timer="none")
    return BenchRow(
        problem=spec.problem,
        protocol=protocol,
        stock_us=times,
        ours_us=times,
        aa_us=times,
        check=check,
        stock_kernels=[],
        ours_kernels=[],
        route="stock",
    )


class NoTimer:
    bracket_us, discarded, replanned = 1.0, 0, 0

    def __init__(self, _: Any) -> None: ...

    def calibrate(self) -> None: ...


def simulate(patch: pytest.MonkeyPatch) -> None:
    """A device, and operands, of nothing."""
    core = types.ModuleType("mlx.core")
    package = types.ModuleType("mlx")
    patch.setattr(core, "clear_cache", void, raising=False)
    patch.setattr(package, "core", core, raising=False)
    patch.setitem(sys.modules, "mlx", package)
    patch.setitem(sys.modules, "mlx.core", core)
    patch.setitem(suites.SUITES, SUITE.name, SUITE)
    device = types.SimpleNamespace(resolution_ns=1)
    probe = ReadProbe([100.0], 1, Shape(1, 32, 1), {})
    instead: dict[str, Any] = {
        "MlxDevice": lambda: device,
        "Timer": NoTimer,
        "read_probe": lambda *_: probe,
        "launch_floor": lambda *_: [1.0],
        "host_costs": list,
        "conditions": lambda _: [],
        "table": lambda _: "",
        "_row": row,
    }
    for name, value in instead.items():
        patch.setattr(bench, name, value)
    patch.setattr(inputs, "make_weights", void)


def benchmark(evidence: Path, say: Callable[[str], None], **changes: Any) -> Measurement:
    given: dict[str, Any] = {
        "name": f"bench.{SUITE.name}",
        "plan": [spec.id for spec in SUITE.rows],
        "asked": SUITE.rows,
        "measure": lambda keeper: bench.run_suite(SUITE.name, machine=MACHINE, keeper=keeper),
        "command": "bench",
        "machine": MACHINE,
        "versions": {"commit": "a"},
        "kernel": KERNEL,
        "evidence": evidence,
        "say": say,
    }
    return Measurement(**(given | changes))


def killed(work: Callable[[], None], after_s: float, ready: Callable[[], bool] = lambda: True) -> bool:
    """Kill the work ``after_s`` after it is ``ready``; whether that came before its end."""
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            work()
        except BaseException as error:
            print(f"the work failed: {error!r}", flush=True)
            os._exit(1)
        os._exit(0)
    while not ready() and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.0005)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit(1)
    return os.WIFSIGNALED(status)


def benches(folder: Path, rng: random.Random) -> dict[str, Any]:
    """Run one suite, killed again and again, until it is whole."""
    evidence, out = folder / "evidence", folder / "out"
    evidence.mkdir(parents=True)
    kills, growth, wrong = 0, [0], []
    while killed(
        lambda: void(benchmark(evidence, void).run(out)),
        rng.uniform(0, 0.005 * (kills + 1)),  # longer and longer, so that it ends
        # while it begins; later, once rows more have come; and in the end, when all have
        (lambda: True) if kills < 4 else partial(rows_known, out, min(kills, ROWS)),
    ):
        kills += 1
        put_in_place(evidence)
        wrong += [str(one) for one in verify(evidence)]
        growth.append(len({*stems(evidence), *waiting(out)}))
        if growth[-1] < growth[-2]:
            wrong.append(f"rows were lost: {growth}")
        if growth[-1] == ROWS and not list(out.glob("bench.*")):
            break  # the kill came after the run's own end
    left = [path.name for path in folder.rglob("*") if path.name.startswith(".") or path.suffix == ".jsonl"]
    return {
        "kills": kills,
        "wrong": wrong,
        "growth": growth,
        "rows": stems(evidence),
        "left": left,
        "records": len(load_all(evidence)),
    }


def rows_known(out: Path, number: int) -> bool:
    """Whether the running benchmark's journal says that so many rows are measured, here or before."""
    path = out / f"bench.{SUITE.name}.jsonl"
    if not path.is_file():
        return False
    head, *lines = path.read_bytes().split(b"\n")
    return len(json.loads(head)["stored"]) + len(lines) - 2 >= number


def waiting(out: Path) -> list[str]:
    """Rows that are in no record yet."""
    earlier = Journal(out / f"bench.{SUITE.name}.jsonl").read()
    return [unit.name for unit in earlier.units] if earlier else []


def stems(evidence: Path) -> list[str]:
    """Every row of every record."""
    bodies = [loaded.record.body for loaded in load_all(evidence)]
    return sorted(one.fact_stem for body in bodies if isinstance(body, BenchBody) for one in body.rows)


def writers(folder: Path, rng: random.Random) -> dict[str, Any]:
    """Records with raw files, one after the other: what was said to be stored must be there, and nothing by halves."""
    folder.mkdir(parents=True)
    evidence, said = folder / "evidence", folder / "said"

    def work() -> None:
        for number in range(1000):
            path = write(
                NcuBody(ncu_version=f"{os.getpid()}.{number}", launches=[]),
                host="simulated",
                command="profile",
                machine=MACHINE,
                versions={},
                kernel=None,
                root=evidence,
                attachments={"raw.csv": b"x" * 20_000, "more.csv": b"y"},
            )
            with said.open("a") as file:
                file.write(f"{path.name}\n")

    killed(work, rng.uniform(0.01, 0.06))
    put_in_place(evidence)
    there = {path.name for path in evidence.rglob("*.json")}
    lost = set(said.read_text().split() if said.exists() else []) - there
    raw = {path.name for path in evidence.glob("raw/*")}
    wrong = [str(one) for one in verify(evidence)] + [f"lost: {name}" for name in lost]
    wrong += [f"no raw files: {name}" for name in there if name.removesuffix(".json") not in raw]
    return {"wrong": wrong, "left": [path.name for path in evidence.glob(".*")], "records": len(there)}


def void(*_: Any, **__: Any) -> None: ...


if __name__ == "__main__":
    simulate(pytest.MonkeyPatch())
    place, seed = Path(sys.argv[1]), int(sys.argv[2])
    numbers = random.Random(seed)
    print(
        json.dumps(
            {
                "benches": [benches(place / f"bench{i}", numbers) for i in range(4)],
                "writers": [writers(place / f"write{i}", numbers) for i in range(15)],
            }
        )
    )
