"""What every test shares: the repository's root, and the rule on skips.

With ``UPSTREAM_PATCH_STRICT=1``, which ``.ci/run`` sets, a test that needs only tools which can be installed
(``INSTALLABLE``) fails where it would skip. A missing GPU still skips.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

STRICT = "UPSTREAM_PATCH_STRICT"
INSTALLABLE = (
    *("needs_compile", "needs_disassembler", "needs_simulator", "needs_metal_front", "needs_plots", "needs_contract"),
)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return Path(__file__).resolve().parents[1]


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
    from upstream_patch.simulate.library import compiler
    from upstream_patch.simulate.metal.source import mlx_headers

    try:
        compiler("metal")
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


NEEDS = {
    "needs_cuda": _missing_cuda,
    "needs_compile": _missing_nvrtc,
    "needs_disassembler": _missing_disassembler,
    "needs_simulator": _missing_cxx,
    "needs_metal_front": _missing_metal_front,
    "needs_plots": _missing_plots,
}


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
    if report.skipped and not hasattr(report, "wasxfail") and needs and os.environ.get(STRICT) == "1":
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{STRICT}=1 and a test marked {needs[0]} was skipped: {why}"
    return report
