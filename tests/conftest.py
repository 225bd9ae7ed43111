"""What every test shares: the repository's root, and the rule on skips.

With ``UPSTREAM_PATCH_STRICT=1``, which ``.ci/run`` sets, a test that needs only tools which can be installed
(``INSTALLABLE``) fails where it would skip. A missing GPU still skips.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.correctness import Case
from upstream_patch.correctness.case import DTYPES, LAYOUTS
from upstream_patch.kernels.tuning import FORMATS, MAX_ROWS
from upstream_patch.problem import Problem
from upstream_patch.reference import distributions

STRICT = "UPSTREAM_PATCH_STRICT"
INSTALLABLE = (
    *("needs_compile", "needs_disassembler", "needs_simulator", "needs_metal_front", "needs_plots", "needs_contract"),
    "needs_decode",
    # a wheel can be installed, g++ not always
    *(("needs_host_code", "needs_cuda_wheel") if sys.platform == "linux" and shutil.which("g++") else ()),
    "needs_browser",
)
NO_CHROMIUM = "no Chromium: apt-get install chromium, or playwright install chromium"


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def chromium_path() -> str:
    path = chromium()
    if path is None:
        pytest.skip(NO_CHROMIUM)
    return path


@pytest.fixture(scope="session")
def draw_case() -> Callable[..., Case]:
    """``draw_case(data, most_n, most_k)``: any problem that our kernel takes, of any data and row-contiguous form."""
    st = pytest.importorskip("hypothesis.strategies")

    def draw(data: Any, most_n: int, most_k: int) -> Case:
        form = data.draw(st.sampled_from(FORMATS), label="format")
        problem = Problem(
            m=data.draw(st.integers(1, MAX_ROWS), label="m"),
            n=data.draw(st.integers(1, most_n), label="n"),
            k=form.group * data.draw(st.integers(1, most_k // form.group), label="groups"),
            bits=form.bits,
            group_size=form.group,
            mode=form.mode,
            dtype=data.draw(st.sampled_from(DTYPES), label="dtype"),
            layout=data.draw(st.sampled_from(LAYOUTS), label="layout"),
            batch=data.draw(st.sampled_from((1, 1, 1, 2, 5)), label="batch"),
        )
        distribution = data.draw(st.sampled_from(distributions(form.mode)), label="distribution")
        memory = data.draw(st.sampled_from(("plain", "margins", "odd_offset") if problem.batch == 1 else ("plain",)))
        return Case("random", problem, distribution, memory, seed=data.draw(st.integers(0, 99), label="seed"))

    return draw


def _missing_cuda() -> str | None:
    try:
        import mlx.core as mx
    except ImportError as error:
        return f"mlx is not installed ({error})"
    cuda = getattr(mx, "cuda", None)
    return None if cuda is not None and cuda.is_available() else "no CUDA GPU that MLX can use"


def _missing_nvrtc() -> str | None:
    from upstream_patch.machine import NVRTC_FIX, find_nvrtc

    return None if find_nvrtc() else f"no NVRTC: {NVRTC_FIX}"


def _missing_disassembler() -> str | None:
    from upstream_patch.machine import NVDISASM_FIX, find_nvdisasm

    return _missing_nvrtc() or (None if find_nvdisasm() else f"no nvdisasm: {NVDISASM_FIX}")


def _missing_cxx() -> str | None:
    from upstream_patch.machine import CXX_FIX, find_cxx

    return None if find_cxx() else f"no C++ compiler for the lane simulator: {CXX_FIX}"


def _missing_metal_front() -> str | None:
    from upstream_patch.errors import MissingTool
    from upstream_patch.simulate.metal.source import metal_compiler, mlx_headers

    try:
        metal_compiler()
        mlx_headers()
    except MissingTool as error:
        return str(error)
    return None


def _missing_plots() -> str | None:
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        return f"matplotlib is not installed ({error})"
    return None


def _missing_decode() -> str | None:
    from importlib.util import find_spec

    return None if find_spec("mlx_lm") else "mlx-lm is not installed (extra `decode`)"


def _missing_host_code() -> str | None:
    """What the series' CUDA host code needs to compile and link beside any MLX."""
    if sys.platform != "linux":
        return "the CUDA host code is for Linux"
    return "no g++ with binutils" if None in (shutil.which("g++"), shutil.which("nm")) else _missing_nvrtc()


def _missing_cuda_wheel() -> str | None:
    from upstream_patch.series.wheel import CUDA_WHEEL_FIX, find_mlx_library

    return _missing_host_code() or (None if find_mlx_library() else f"no MLX for CUDA: {CUDA_WHEEL_FIX}")


def chromium() -> str | None:
    """A Chromium: the system's, or the one that Playwright has fetched."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if path := shutil.which(name):
            return path
    caches = (Path.home() / ".cache" / "ms-playwright", Path.home() / "Library" / "Caches" / "ms-playwright")
    found = [one for cache in caches for one in sorted(cache.glob("chromium*/*/*hrom*")) if os.access(one, os.X_OK)]
    return next((str(one) for one in found if one.is_file()), None)


def _missing_browser() -> str | None:
    if chromium() is None:
        return NO_CHROMIUM
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError as error:
        return f"Playwright is not installed ({error})"
    return None


def _missing_contract() -> str | None:
    try:
        import githubkit  # noqa: F401
        import openapi_core  # noqa: F401
    except ImportError as error:
        return f"no contract tests: {error}"
    return None


NEEDS = {
    "needs_host_code": _missing_host_code,
    "needs_cuda_wheel": _missing_cuda_wheel,
    "needs_cuda": _missing_cuda,
    "needs_compile": _missing_nvrtc,
    "needs_disassembler": _missing_disassembler,
    "needs_simulator": _missing_cxx,
    "needs_metal_front": _missing_metal_front,
    "needs_plots": _missing_plots,
    "needs_decode": _missing_decode,
    "needs_browser": _missing_browser,
    "needs_contract": _missing_contract,
}


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Tests on several cores time nothing: said here, since pytest-benchmark says it in a warning."""
    parallel = getattr(config.option, "numprocesses", None) or os.environ.get("PYTEST_XDIST_WORKER")
    if parallel and hasattr(config.option, "benchmark_disable"):
        config.option.benchmark_disable = True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for marker, missing in NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = missing() if marked else None
        if reason is not None:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    needs = [marker for marker in INSTALLABLE if item.get_closest_marker(marker)]
    gpu = item.get_closest_marker("needs_record") or item.get_closest_marker("needs_cuda")
    if gpu or (report.skipped and NO_CHROMIUM in str(report.longrepr)):
        needs = []  # a GPU cannot be installed; a browser is no Python package
    if report.skipped and not hasattr(report, "wasxfail") and needs and os.environ.get(STRICT) == "1":
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{STRICT}=1 and a test marked {needs[0]} was skipped: {why}"
    return report
