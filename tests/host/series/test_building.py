"""The build's steps on a stand-in checkout, with a builder that only pretends; the tests it runs are real."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.errors import UserError
from upstream_patch.machine import System
from upstream_patch.series import Contribution
from upstream_patch.series.building import Plan, build, pipeline, preflight
from upstream_patch.series.checkout import open_checkout

TEST_FILE = "python/tests/test_quantized.py"
TESTS = """import unittest

import mlx.core as mx


class TestQuantized(unittest.TestCase):
    def test_old(self):
        self.assertTrue(mx.FINE)

    def test_shapes(self):
        for bits in (2, 4):
            with self.subTest(bits=bits):
                self.assertIn(bits, mx.BITS)
"""
READ = {"version": "0.32.4", "line": 1}
REASON = "for the test of the build"
CHANGE = Contribution.model_validate(
    {
        "name": "cuda",
        "title": "A change",
        "base": {"version": "0.32.4", "tag": "v0.32.4"},
        "compiled": ["new_kernel"],
        "edits": [
            {
                "name": "kernel",
                "file": "mlx/quantized.cpp",
                "anchor": "void old_kernel()",
                "place": "after",
                "lines": "void new_kernel() {}\n",
                "reason": REASON,
                "read": READ,
            },
            {
                "name": "tests",
                "file": TEST_FILE,
                "anchor": "    def test_shapes(self):",
                "place": "before",
                "lines": "    def test_new(self):\n        self.assertTrue(mx.NEW)\n\n",
                "reason": REASON,
                "read": READ,
            },
        ],
    }
)


# As MLX, which takes what it compiled before by the module's name alone.
CACHE = """import os
from pathlib import Path
kept = Path(os.environ.get("MLX_PTX_CACHE_DIR", {default!r})) / "module.ptx"
if not kept.exists():
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("{new}")
NEW = kept.read_text() == "True"
"""


class Pretend:
    """Makes an mlx package of what lies in the source; runs the real test runner on it."""

    def __init__(self, **faults: Any) -> None:
        self.faults = faults
        self.commands: list[tuple[tuple[str, ...], dict[str, str]]] = []

    def __call__(self, command: Sequence[str], cwd: Path, variables: Mapping[str, str], log: Path) -> int:
        self.commands.append((tuple(command), dict(variables)))
        log.parent.mkdir(parents=True, exist_ok=True)
        if "venv" in command:
            (Path(command[-1]) / "bin").mkdir(parents=True)
            (Path(command[-1]) / "bin" / "python").touch()
            return 0
        package = Path(command[0]).parents[1] / "site" / "mlx"
        arm = package.parents[2].name
        if "pip" in command and command[-1] == ".[dev]":
            if self.faults.get("fails") == arm:
                log.write_text("compiling\nquantized.cpp:1: error: no such thing\nninja: stopped\n")
                return 1
            (package / "lib").mkdir(parents=True, exist_ok=True)
            source = (cwd / "mlx/quantized.cpp").read_text()
            (package / "lib" / "libmlx.so").write_text(self.faults.get("library", source))
            new = "new_kernel" in source and not self.faults.get("no_better")
            bits = self.faults.get("bits", {}).get(arm, (2, 4))
            (package / "__init__.py").touch()
            (package / "core.py").write_text(
                CACHE.format(default=str(package.parents[3] / "ptx"), new=new)
                + f"FINE = {arm != self.faults.get('breaks')}\nBITS = {bits}\n"
            )
            return 0
        if "pip" in command:
            return 0
        if "upstream_patch.measure.built" in command:
            if self.faults.get("matrix") != "dies":
                wrong = self.faults.get("matrix", [])
                Path(command[-1]).write_text(
                    json.dumps({"results": [{"case": "one"}, {"case": "two"}], "wrong": wrong})
                )
            return 0
        if "-c" in command:
            log.write_text(f"{package}\n")
            return 0
        if self.faults.get("aborts") == arm and "only" in command:
            log.write_text("invalid argument\nAborted\n")
            return 134
        if self.faults.get("dies"):
            log.write_text("Segmentation fault\n")
            return 139
        with log.open("w") as file:
            env = {"PYTHONPATH": str(package.parent), **variables}
            return subprocess.run(
                [sys.executable, *command[1:]], env=env, stdout=file, stderr=file, check=False
            ).returncode


@pytest.fixture
def planned(make_repository: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    files = {
        "mlx/version.h": "",
        "mlx/primitives.h": "",
        "mlx/quantized.cpp": "void old_kernel()\n{}\n",
        TEST_FILE: TESTS,
    }
    checkout = open_checkout(make_repository(tmp_path / "mlx", files).path)
    monkeypatch.setattr(preflight, "findings", lambda *given: [])
    monkeypatch.setattr(pipeline, "cuda_device", lambda system: ((12, 1), 48))

    def make(backend: str = "cuda", **faults: Any) -> tuple[Plan, Pretend]:
        run = Pretend(**faults)
        system = System()
        return Plan(checkout, [CHANGE], backend, tmp_path / "out", run, lambda line: None, system), run  # type: ignore[arg-type]

    return make


def test_a_new_test_fails_on_the_base_and_passes_with_the_series(planned: Any) -> None:
    plan, run = planned(bits={"base": (2,), "series": (2,)})
    body, logs = build(plan)
    assert body.new_tests == ["test_new"]
    assert body.proven == ["test_new"]
    assert body.known == {"test_quantized.TestQuantized.test_shapes (bits=4)"}
    assert body.broken == []
    assert [(one.arm, one.tf32, one.ran) for one in body.runs] == [
        ("base", False, 3),
        ("base", True, 3),
        ("series", False, 3),
        ("series", True, 3),
    ]
    assert sorted(logs) == sorted(["matrix.json", *(one.log for one in body.runs)])
    assert body.matrix is not None
    assert (body.matrix.cases, body.matrix.wrong) == (2, [])
    tests = [(command, env) for command, env in run.commands if command[1].endswith("unittest_json.py")]
    assert [env.get("MLX_ENABLE_TF32") for _, env in tests] == ["0", "0", None, None] * 2
    assert [command[3:] for command, _ in tests] == [("without", "test_new"), ("only", "test_new")] * 4
    caches = [
        env["MLX_PTX_CACHE_DIR"] for command, env in run.commands if "venv" not in command and "pip" not in command
    ]
    assert len(set(caches)) == len(caches) == 2 + len(tests) + 1
    assert not any(Path(cache).exists() for cache in caches)
    # the very same file judges both
    assert len({command[2] for command, _ in tests}) == 1
    pips = [env["CMAKE_ARGS"] for command, env in run.commands if command[-1] == ".[dev]"]
    assert all(args.startswith("-DMLX_BUILD_CUDA=ON -DMLX_CUDA_ARCHITECTURES=121a") for args in pips)
    assert len(pips) == 2


def test_the_checkout_itself_is_left_alone_and_a_second_build_reuses_the_first(planned: Any) -> None:
    plan, run = planned()
    checkout = plan.checkout
    build(plan)
    assert checkout.git("status", "--porcelain") == ""
    assert checkout.branch == "main"
    build(plan)
    assert sum("venv" in command for command, _ in run.commands) == 2


@pytest.mark.parametrize(
    ("faults", "broken", "proven"),
    [
        ({"breaks": "series"}, ["test_quantized.TestQuantized.test_old"], ["test_new"]),
        ({"bits": {"series": (4,)}}, ["test_quantized.TestQuantized.test_shapes (bits=2)"], ["test_new"]),
        ({"no_better": True}, ["test_quantized.TestQuantized.test_new"], []),
        ({"breaks": "base"}, [], ["test_new"]),
    ],
)
def test_what_the_series_breaks_is_named(
    faults: dict[str, Any], broken: list[str], proven: list[str], planned: Any
) -> None:
    body, _ = build(planned(**faults)[0])
    assert (body.broken, body.proven) == (broken, proven)


def test_a_new_test_that_ends_its_process_has_failed_and_takes_no_other_with_it(planned: Any) -> None:
    body, logs = build(planned(aborts="base")[0])
    assert (body.broken, body.proven, body.known) == ([], ["test_new"], set())
    base = body.runs[0]
    assert (base.ran, base.failed) == (3, ["test_quantized.test_new (its process ended with exit code 134)"])
    assert b"Ran 2 tests" in logs[base.log] and b"Aborted" in logs[base.log]
    body, _ = build(planned(aborts="series")[0])
    assert body.broken == ["test_quantized.test_new (its process ended with exit code 134)"]


@pytest.mark.parametrize(
    ("faults", "told"),
    [
        ({"fails": "series"}, r"the build of series failed at -m pip install: quantized.cpp:1: error: no such thing"),
        ({"library": "old_kernel"}, r"the MLX of series, in \S+, does not hold new_kernel"),
        ({"library": "new_kernel"}, r"the MLX of base, in \S+, holds new_kernel: it is not what was to be built"),
        ({"matrix": "dies"}, r"our matrix ended without a result"),
        ({"dies": True}, r"the tests of base ended without a result \(Segmentation fault\)"),
    ],
)
def test_a_build_that_is_not_one_is_one_line(faults: dict[str, Any], told: str, planned: Any) -> None:
    with pytest.raises(UserError, match=told) as raised:
        build(planned(**faults)[0])
    assert "\n" not in str(raised.value)


def test_metal_is_built_ahead_and_on_the_fly_with_a_target_that_has_nax(planned: Any) -> None:
    plan, run = planned("metal")
    body, _ = build(plan)
    assert {(one.arm, one.metal_jit) for one in body.runs} == {
        (a, j) for a in ("base", "series") for j in (False, True)
    }
    assert body.matrix is None  # of the CUDA kernel
    pips = [env for command, env in run.commands if "pip" in command]
    assert [env["CMAKE_ARGS"].split()[-1] for env in pips] == ["-DMLX_METAL_JIT=OFF", "-DMLX_METAL_JIT=ON"] * 2
    assert {env["MACOSX_DEPLOYMENT_TARGET"] for env in pips} == {"26.2"}
