"""What the simulator's Metal front needs of a machine: a clang that is new enough, and MLX's headers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from upstream_patch.correctness.simulation import metal_front
from upstream_patch.errors import MissingTool
from upstream_patch.machine import (
    CXX_FIX,
    MLX_HEADERS_FIX,
    Answer,
    Cxx,
    System,
    diagnose,
    find_metal_cxx,
    find_mlx_headers,
)
from upstream_patch.simulate import library
from upstream_patch.simulate.metal import source

ZIG, HEADERS = "/site/ziglang/zig", "/site/mlx/include/mlx/backend/metal/kernels/quantized.h"


@dataclass(frozen=True)
class Site(System):
    """A machine that has these files and programs, and no other."""

    paths: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    version: str = "clang version 22.1.8\nTarget: x86_64-unknown-linux"

    def site_folders(self) -> list[str]:
        return ["/site"]

    def glob(self, pattern: str) -> list[str]:
        return [path for path in self.paths if path == pattern]

    def which(self, program: str) -> str | None:
        return f"/usr/bin/{program}" if program in self.programs else None

    def environ(self, name: str) -> str | None:
        return None

    def run(self, command: Sequence[str], timeout: float = 20.0) -> Answer:
        known = command[-1] == "--version" and command[0] in (ZIG, "/usr/bin/clang++")
        return Answer(0, self.version) if known else Answer(None)


def said(system: Site) -> tuple[bool, str, str | None]:
    finding = next(f for f in diagnose(system) if f.name == "simulator's Metal")
    return finding.ok, finding.detail, finding.fix


def test_doctor_says_what_metal_needs() -> None:
    assert find_mlx_headers(Site(paths=(HEADERS,))) == "/site/mlx/include"
    assert said(Site(paths=(ZIG, HEADERS))) == (
        True,
        "clang of the ziglang wheel, Metal headers of the MLX wheel",
        None,
    )
    assert said(Site(paths=(HEADERS,))) == (False, "needs clang, and there is no C++ compiler", CXX_FIX)
    assert said(Site(paths=(HEADERS,), programs=("g++",))) == (False, "needs clang, not the g++ on PATH", CXX_FIX)
    assert said(Site(paths=(ZIG,))) == (False, "no MLX wheel with Metal headers", MLX_HEADERS_FIX)


@pytest.mark.parametrize(
    ("version", "needs"),
    [
        ("Ubuntu clang version 14.0.0-1ubuntu1.1", "needs clang 19 or newer, not the 14 of the clang++ on PATH"),
        ("clang version 18.1.8", "needs clang 19 or newer, not the 18 of the clang++ on PATH"),
        ("clang version 19.1.0", None),
        (
            "Apple clang version 16.0.0 (clang-1600.0.26.6)",
            "needs Apple clang 17 or newer, not the 16 of the clang++ on PATH",
        ),
        ("Apple clang version 17.0.0 (clang-1700.0.13.3)", None),
        ("?", "needs clang 19 or newer, and the clang++ on PATH does not say its version"),
    ],
)
def test_a_clang_that_is_too_old_is_named_with_the_version_needed(
    version: str, needs: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(paths=(HEADERS,), programs=("clang++",), version=version)
    assert said(site)[0] is (needs is None)
    found = find_metal_cxx(site)
    if needs is None:
        assert isinstance(found, Cxx)
        return
    assert found == needs == said(site)[1]
    monkeypatch.setattr(source, "find_metal_cxx", lambda: found)
    with pytest.raises(MissingTool, match=f"^the simulator's Metal front {re.escape(needs)}: pip install"):
        metal_front(False, None)


def test_gcc_has_no_metal_front(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "find_metal_cxx", lambda: find_metal_cxx(Site(programs=("g++",))))
    with pytest.raises(MissingTool, match=r"Metal front needs clang, not the g\+\+ on PATH: pip install"):
        source.metal_compiler()


def test_a_library_is_not_built_with_gcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_cxx", lambda: Cxx(("g++",), "gcc", "g++ on PATH"))
    monkeypatch.setattr(library, "find_metal_cxx", lambda: find_metal_cxx(Site(programs=("g++",))))
    library.compiler.cache_clear()
    try:
        assert library.compiler().family == "gcc"
        with pytest.raises(MissingTool, match=r"Metal front needs clang, not the g\+\+ on PATH: pip install"):
            library.compiler("metal")
    finally:
        library.compiler.cache_clear()


def test_no_mlx_wheel_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "find_mlx_headers", lambda: None)
    with pytest.raises(MissingTool, match=r"no MLX wheel .*: pip install -e '\.\[cpu\]'"):
        source.mlx_headers()
