"""Where a record comes from: the short name of the machine, and the versions that were installed."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import upstream_patch
from upstream_patch.machine import Machine

HOSTS = ("h200", "gb10", "m5")
"""The machines that the two contributions are about."""
TEST_HOST = "test"

_DISTRIBUTIONS = (
    "mlx",
    "mlx-cuda-13",
    "mlx-cuda-12",
    "mlx-metal",
    "nvidia-cuda-runtime",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cuda-nvrtc",
    "ncu-report",
    "numpy",
)
_WHOLE_NAMES = {"NVIDIA H200": "h200", "NVIDIA GB10": "gb10", "Apple M5": "m5"}
_NOISE_WORDS = re.compile(r"\b(?:nvidia|apple|amd|intel|geforce|tesla|quadro|radeon)\b", re.IGNORECASE)


def host_id(machine: Machine) -> str:
    """``h200``, ``gb10`` or ``m5``; any other GPU gets its product name in small letters; no GPU is ``cpu``.

    Only the whole product name counts: a slice of an H200, or an M5 Max, is another machine with another bandwidth.
    """
    if machine.gpu is None:
        return "cpu"
    if machine.gpu.name in _WHOLE_NAMES:
        return _WHOLE_NAMES[machine.gpu.name]
    slug = re.sub(r"[^a-z0-9]", "", _NOISE_WORDS.sub("", machine.gpu.name).lower())
    if slug in (*HOSTS, TEST_HOST, ""):
        slug += "other"
    return slug if slug[0].isalpha() else "gpu" + slug


def versions() -> dict[str, str]:
    """Installed versions by distribution name, plus ``python``, ``upstream-patch`` and its ``commit``."""
    found = {
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "upstream-patch": upstream_patch.__version__,
        "commit": _commit(),
    }
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """The checked-out commit, ``-dirty`` where files differ from it, ``unknown`` outside a git checkout."""
    folder = Path(__file__).parent
    try:
        run = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return run.stdout.strip() if run.returncode == 0 else "unknown"
