"""Forks writers and kills them with -9 at random points; run by test_resuming.py in a process without threads.

Prints one line of JSON: what was left after every kill. Nothing here is measured: a row's numbers are its place.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.host.measured import KINDS, MACHINE, UNITS, measurement, simulate, units, void
from upstream_patch.records.journal import Journal
from upstream_patch.records.schema import NcuBody
from upstream_patch.records.store import load_all, put_in_place, verify, write


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


def measures(folder: Path, rng: random.Random, kind: str) -> dict[str, Any]:
    """Measure units of one kind, killed again and again, until all are measured."""
    evidence, out = folder / "evidence", folder / "out"
    evidence.mkdir(parents=True)
    whole = len(UNITS[kind])
    kills, growth, wrong = 0, [0], []
    while killed(
        lambda: void(measurement(kind, evidence, void).run(out)),
        rng.uniform(0, 0.005 * (kills + 1)),  # longer and longer, so that it ends
        # while it begins; later, once units more have come; and in the end, when all have
        (lambda: True) if kills < 4 else partial(known, out, kind, min(kills, whole)),
    ):
        kills += 1
        put_in_place(evidence)
        wrong += [str(one) for one in verify(evidence)]
        growth.append(len({*stored(evidence), *waiting(out, kind)}))
        if growth[-1] < growth[-2]:
            wrong.append(f"units were lost: {growth}")
        if growth[-1] == whole and not list(out.glob("*.jsonl")):
            break  # the kill came after the run's own end
    left = [path.name for path in folder.rglob("*") if path.name.startswith(".") or path.suffix == ".jsonl"]
    return {
        "kind": kind,
        "kills": kills,
        "wrong": wrong,
        "growth": growth,
        "units": sorted(stored(evidence)),
        "left": left,
        "records": len(load_all(evidence)),
    }


def known(out: Path, kind: str, number: int) -> bool:
    """Whether the running measurement's journal says that so many units are finished, here or before."""
    path = out / f"{kind}.tiny.jsonl"
    if not path.is_file():
        return False
    head, *lines = path.read_bytes().split(b"\n")
    return len(json.loads(head)["stored"]) + len(lines) - 2 >= number


def waiting(out: Path, kind: str) -> list[str]:
    """Units that are in no record yet."""
    earlier = Journal(out / f"{kind}.tiny.jsonl").read()
    return [unit.name for unit in earlier.units] if earlier else []


def stored(evidence: Path) -> list[str]:
    """Every unit of every record."""
    return [name for loaded in load_all(evidence) for name in units(loaded.record.body)]


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


if __name__ == "__main__":
    simulate(pytest.MonkeyPatch())
    place, seed = Path(sys.argv[1]), int(sys.argv[2])
    numbers = random.Random(seed)
    print(
        json.dumps(
            {
                "measures": [measures(place / kind, numbers, kind) for kind in KINDS],
                "writers": [writers(place / f"write{i}", numbers) for i in range(15)],
            }
        )
    )
