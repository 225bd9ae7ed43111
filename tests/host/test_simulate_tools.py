"""What the simulator runs in: compilers and caches that do not work, and a process with several threads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.machine import Cxx
from upstream_patch.simulate import Buffer, Kernel, cuda_kernel, library, run

TEXT = 'extern "C" __global__ void k(int* out) {{ out[threadIdx.x] = {value}; }}'


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], Kernel]]:
    """An empty cache, and a kernel that is in none."""
    monkeypatch.setenv("UPSTREAM_PATCH_CACHE", str(tmp_path / "cache"))
    library.compiler.cache_clear()
    library.engine.cache_clear()
    yield lambda value: cuda_kernel("k", {}, TEXT.format(value=value), 0)
    library.compiler.cache_clear()
    library.engine.cache_clear()


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    """A script in the compiler's place."""

    def make(text: str) -> str:
        path = tmp_path / "clang++"
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    return make


WAY_OUT = r"name another one in UPSTREAM_PATCH_CXX, or unset that and pip install -e '\.\[simulate\]'"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("#!/bin/sh\nexit 0\n", r"wrote nothing and gave no reason \(exit 0\)"),
        ("#!/bin/sh\nexit 1\n", r"wrote nothing and gave no reason \(exit 1\)"),
        ("#!/bin/sh\nkill -9 $$\n", r"wrote nothing and gave no reason \(exit -9\)"),
        ("#!/no/such/shell\n", r"does not start \(No such file or directory\)"),
    ],
    ids=["does nothing", "fails without a word", "dies", "does not start"],
)
def test_a_compiler_that_does_not_work_is_named_with_the_way_out(
    text: str,
    why: str,
    program: Callable[[str], str],
    fresh: Callable[[str], Kernel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = f"{program(text)} -O0"
    monkeypatch.setenv("UPSTREAM_PATCH_CXX", command)
    with pytest.raises(
        MissingTool,
        match=rf"^the simulator's compiler, {re.escape(command)} \(\$UPSTREAM_PATCH_CXX\), {why}: {WAY_OUT}",
    ):
        library.build(fresh("1"))


def test_a_compiler_that_is_not_there_is_named_with_the_way_out(
    fresh: Callable[[str], Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSTREAM_PATCH_CXX", "/nonexistent/clang")
    with pytest.raises(MissingTool, match=rf"/nonexistent/clang \(\$UPSTREAM_PATCH_CXX\), is no program: {WAY_OUT}"):
        library.build(fresh("1"))


@pytest.mark.needs_simulator
def test_a_compilers_complaint_is_about_the_kernel(
    fresh: Callable[[str], Kernel], program: Callable[[str], str]
) -> None:
    with pytest.raises(library.SimulatorCompileError, match=r"^k does not compile for the simulator: k\.cu:1:.*error"):
        library.build(fresh('"text"'))


@pytest.mark.needs_simulator
def test_a_cache_that_cannot_be_made_or_written_is_named_with_the_way_out(
    fresh: Callable[[str], Kernel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    monkeypatch.setenv("UPSTREAM_PATCH_CACHE", str(file / "cache"))
    way_out = "name a folder that can be written in UPSTREAM_PATCH_CACHE"
    with pytest.raises(UserError, match=rf"in {file}/cache \(Not a directory\): {way_out}$"):
        library.build(fresh("1"))
    monkeypatch.setenv("UPSTREAM_PATCH_CACHE", str(tmp_path / "cache"))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UserError, match=rf"in {tmp_path}/cache \(No space left on device\): {way_out}$"):
        library.build(fresh("2"))


@pytest.mark.needs_simulator
def test_a_file_where_the_compilers_own_cache_goes_is_named(fresh: Callable[[str], Kernel], tmp_path: Path) -> None:
    zig = tmp_path / "cache" / "zig"
    zig.parent.mkdir()
    zig.write_text("", encoding="utf-8")
    with pytest.raises(
        UserError, match=rf"^the simulator cannot keep what it compiles in {zig} \(File exists\): name a"
    ):
        library.build(fresh("1"))


@pytest.mark.needs_simulator
@pytest.mark.usefixtures("fresh")
def test_another_clone_of_the_same_sources_finds_the_same_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names neither, and a fault its line: seen by the compiler's check, by a call of ours, by debug information."""
    clone = tmp_path / "another clone"
    shutil.copytree(library.NATIVE, clone)
    values = {
        "overflow": "1 << (31 + threadIdx.x / 2)",
        "divergence": "0; if (threadIdx.x == 3) __syncthreads()",
        "race": "0; extern __shared__ int s[]; s[0] = threadIdx.x",
    }
    kernels = {kind: cuda_kernel("k", {}, TEXT.format(value=value), 64) for kind, value in values.items()}
    with monkeypatch.context() as there:
        there.setattr(library, "NATIVE", clone)
        library._native_text.cache_clear()
        made = {kind: library.build(kernel) for kind, kernel in kernels.items()}
    library._native_text.cache_clear()
    monkeypatch.setattr(library, "_run", lambda *_: pytest.fail("compiled again"))
    for kind, kernel in kernels.items():
        assert library.build(kernel) == made[kind]
        named = [path for path in (clone, library.NATIVE) if str(path).encode() in made[kind].read_bytes()]
        assert named == [] or library.compiler().family == "gcc"
        out = Buffer(np.zeros(32, np.int32), output=True)
        (fault,) = run(kernel, [out], (1, 1, 1), (32, 1, 1), shared_limit=1024).report.faults
        assert (fault.kind, fault.file, fault.line) == (kind, "k.cu", 1)


THREADS = """
import threading
import numpy as np
from upstream_patch.simulate import Buffer, cuda_kernel, run
text = '''extern "C" __global__ void k(int* out) {
  extern __shared__ int s[];
  int sum = 0;
  for (int n = 0; n < 200; ++n) {
    s[threadIdx.x] = n;
    __syncthreads();
    sum += s[63 - threadIdx.x];
    __syncthreads();
  }
  out[threadIdx.x] = sum;
}'''
kernel = cuda_kernel("k", {}, text, 256)
found = []
def many():
    for _ in range(20):
        out = Buffer(np.zeros(64, np.int32), output=True)
        result = run(kernel, [out], (1, 1, 1), (64, 1, 1), shared_limit=1024)
        found.append((result.report.faults, set(result.outputs[0])))
threads = [threading.Thread(target=many) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert found == [((), {199 * 100})] * 60, found
"""


def test_a_wheel_is_the_same_compiler_in_every_environment(tmp_path: Path) -> None:
    def identity(environment: str, version: str | None, size: int = 9) -> str:
        folder = tmp_path / environment / "site-packages"
        program = folder / "ziglang" / "zig"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_bytes(b"x" * size)
        if version is not None:
            (folder / f"ziglang-{version}.dist-info").mkdir(exist_ok=True)
        os.utime(program, (len(environment), 7))
        return library._identity(Cxx((str(program), "c++"), "zig", "ziglang wheel"))

    assert identity("tests", "0.16.0") == identity("simulate", "0.16.0")
    others = [identity("a", "0.17.0"), identity("b", "0.16.0", size=8), identity("c", None), identity("dd", None)]
    assert len({identity("tests", "0.16.0"), *others}) == 5


@pytest.mark.needs_simulator
def test_threads_launch_one_after_another(root: Path) -> None:
    """In a process of its own: without the lock it ends by a signal."""
    environ = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", THREADS], env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr[-500:]
