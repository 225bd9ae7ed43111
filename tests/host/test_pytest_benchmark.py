"""The rows of a suite under pytest-benchmark, on a device of nothing: what it stores is what our timer gave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pytest_benchmark")

PLUGIN = """
import importlib.util
import pytest
spec = importlib.util.spec_from_file_location("killed_driver", {driver!r})
driver = importlib.util.module_from_spec(spec)
spec.loader.exec_module(driver)
driver.ROW_S = 0
driver.simulate(pytest.MonkeyPatch())
import types
import mlx.core
import upstream_patch.machine
mlx.core.cuda = types.SimpleNamespace(is_available=lambda: True)
upstream_patch.machine.probe = lambda: driver.MACHINE
"""


def run(root: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "device_of_nothing.py").write_text(PLUGIN.format(driver=str(Path(__file__).with_name("killed.py"))))
    command = [sys.executable, "-m", "pytest", "-p", "device_of_nothing", "-p", "no:cacheprovider", "-q"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # of a worker
    environment = {**own, "PYTHONPATH": f"{root}{os.pathsep}{folder}"}
    return subprocess.run(
        [*command, f"--benchmark-storage={folder}", *arguments, str(root / "tests" / "device" / "test_bench.py")],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_both_arms_are_stored_with_the_machine(root: Path, tmp_path: Path) -> None:
    stored = tmp_path / "stored.json"
    done = run(root, tmp_path, "--benchmark-only", "-k", "tiny and M7", f"--benchmark-json={stored}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    found: dict[str, Any] = json.loads(stored.read_text())
    stem = "64x64.b4.g64.bf16.M7"
    assert [one["name"] for one in found["benchmarks"]] == [f"test_row[tiny-{stem}-{arm}]" for arm in ("stock", "ours")]
    for one in found["benchmarks"]:
        assert one["group"] == stem
        assert one["stats"]["rounds"] == 6
        assert one["stats"]["data"] == pytest.approx([(7000 + i) * 1e-6 for i in range(6)])
        assert one["extra_info"]["speedup"] == 1
        assert one["extra_info"]["check"]["passed"] is True
    assert found["machine_info"]["machine"]["gpu"]["name"] == "Simulated"
    assert found["machine_info"].keys() == {"machine", "versions", "kernel", "dispatch_hash", "graph_limits"}


def test_nothing_is_timed_unless_asked(root: Path, tmp_path: Path) -> None:
    done = run(root, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 skipped" in done.stdout
