"""What ncu watches, on MLX's CPU; the kernel names it must show; and the real reading library on damaged files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

import upstream_patch
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.measure import ncu, ncu_target
from upstream_patch.measure.checked import WrongResult
from upstream_patch.measure.ncu import REQUIRED, expected
from upstream_patch.measure.ncu_report_reader import BadReport, Expected, read_report
from upstream_patch.measure.suites import Profiled, profile_plan
from upstream_patch.problem import Problem

M1, M8 = (Problem(m=m, n=4096, k=4096) for m in (1, 8))
LAUNCHES = [
    Expected(M1, "stock", "qmv_kernel"),
    Expected(M1, "ours", "small_m_x"),
    Expected(M8, "stock", "qmm_sm80_kernel"),
    Expected(M8, "ours", "small_m_x"),
]


def test_the_check_sees_the_operands_that_are_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    mx = pytest.importorskip("mlx.core")
    called: list[Any] = []

    def matmul(x: Any, w: Any, *rest: Any, **more: Any) -> Any:
        called.append((x, w))
        return mx.quantized_matmul(x, w, *rest, **more)

    ops = types.ModuleType("upstream_patch.ops")
    vars(ops).update(stock_quantized_matmul=matmul, quantized_matmul=matmul, require_cuda=lambda: None)
    vars(ops).update(route_of=lambda _: "stock")
    monkeypatch.setitem(sys.modules, "upstream_patch.ops", ops)
    monkeypatch.setattr(upstream_patch, "ops", ops, raising=False)
    plan = [Profiled(Problem(m=m, n=256, k=64), arm) for m in (1, 2) for arm in ("stock", "ours")]
    ncu_target.run(plan)
    profiled, called[:] = list(called), []
    ncu_target.check(plan)
    assert len(profiled) == 4
    for x, w in profiled:
        assert any(x.shape == a.shape and mx.array_equal(x, a) and mx.array_equal(w, b) for a, b in called)
    vars(ops)["quantized_matmul"] = lambda *a, **k: 2 * matmul(*a, **k)
    with pytest.raises(WrongResult, match=r"M1: our result is wrong"):
        ncu_target.check(plan)


def test_the_real_reader_refuses_damaged_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ncu_report")
    damaged = tmp_path / "damaged.ncu-rep"
    damaged.write_bytes(b"NVR\0" + bytes(range(256)) * 40)
    with pytest.raises(BadReport, match=r"damaged\.ncu-rep"):
        read_report(damaged, LAUNCHES, REQUIRED)
    with pytest.raises(BadReport, match="no Nsight Compute report"):
        read_report(tmp_path / "absent.ncu-rep", LAUNCHES, REQUIRED)
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    with pytest.raises(MissingTool, match="pip install ncu-report"):
        read_report(damaged, LAUNCHES, REQUIRED)


@pytest.mark.parametrize("device", [(9, 0), (12, 1)])
def test_the_stock_names_come_from_the_routing_table(monkeypatch: pytest.MonkeyPatch, device: tuple[int, int]) -> None:
    ops = types.ModuleType("upstream_patch.ops")
    vars(ops).update(capability=lambda: device, kernel_symbol=lambda _: "small_m_x")
    monkeypatch.setitem(sys.modules, "upstream_patch.ops", ops)
    monkeypatch.setattr(upstream_patch, "ops", ops, raising=False)
    assert expected(profile_plan("ncu-smoke")) == LAUNCHES
    wanted = ["qmv_kernel", "small_m_x"] * 4 + ["qmm_sm80_kernel", "small_m_x"] * 2
    assert [launch.symbol for launch in expected(profile_plan("ncu"))] == wanted * 2
    vars(ops).update(kernel_symbol=lambda _: None)
    with pytest.raises(UserError, match="no known kernel for ours"):
        expected(profile_plan("ncu"))
    vars(ops).update(capability=lambda: None)
    with pytest.raises(UserError, match=r"no known kernel for stock on 4096x28672\.b4\.g64\.bf16\.M1"):
        expected(profile_plan("ncu"))


def test_the_real_runner_lets_the_target_import_this_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    code = "import json, upstream_patch.measure.ncu_target as t; print(json.dumps(t.__file__))"
    done = ncu._run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout).endswith("ncu_target.py")


@pytest.mark.parametrize("stop", ["timeout", "ctrl-c"])
def test_the_watched_program_ends_with_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: str) -> None:
    """It is ncu's child, and holds the GPU."""
    watched = tmp_path / "watched"
    parent = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    program = f"import os, time; open({str(watched)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    if stop == "timeout":
        monkeypatch.setattr(ncu, "TIMEOUT_S", 1)
    else:

        def interrupted(*_: Any, **__: Any) -> Any:
            while not (watched.is_file() and watched.read_text()):
                time.sleep(0.01)
            raise KeyboardInterrupt

        monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(subprocess.TimeoutExpired if stop == "timeout" else KeyboardInterrupt):
        ncu._run([sys.executable, "-c", parent, program])
    number = int(watched.read_text())
    for _ in range(200):
        if not _alive(number):
            return
        time.sleep(0.01)
    raise AssertionError("it lives on")


def _alive(number: int) -> bool:
    """Not one that waits for its parent to ask for it."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{number}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
