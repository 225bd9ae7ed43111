"""Where a record comes from: the short name of the machine, and the versions that were installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import upstream_patch
from upstream_patch.errors import UserError
from upstream_patch.files import sha256_of
from upstream_patch.machine import Machine

HOSTS = {"h200": "NVIDIA H200", "gb10": "NVIDIA GB10", "m5": "Apple M5"}
"""The machines that the two contributions are about: short name -> the GPU's whole product name."""
TEST_HOST = "test"
UNKNOWN = "unknown"
COMMIT_VARIABLE = "UPSTREAM_PATCH_COMMIT"
"""Names the commit of a copied tree that came without its ``.git``."""
REDIRECTING = frozenset(
    f"GIT_{name}"
    for name in (
        *("DIR", "WORK_TREE", "IMPLICIT_WORK_TREE", "COMMON_DIR", "INDEX_FILE", "PREFIX", "NAMESPACE", "SHALLOW_FILE"),
        *("OBJECT_DIRECTORY", "ALTERNATE_OBJECT_DIRECTORIES", "QUARANTINE_PATH", "GRAFT_FILE", "ATTR_SOURCE"),
        *("REPLACE_REF_BASE", "NO_REPLACE_OBJECTS", "EXTERNAL_DIFF", "DIFF_OPTS", "CONFIG_PARAMETERS"),
        *("LITERAL_PATHSPECS", "GLOB_PATHSPECS", "NOGLOB_PATHSPECS", "ICASE_PATHSPECS"),
    )
)
"""Variables that name another repository, index, text or file than git's arguments do, as inside a git hook."""
LIBRARY = "libmlx-sha256"
"""Among the versions: of the library that was loaded, since a version has a wheel for each platform."""

_DISTRIBUTIONS = (
    "mlx",
    "mlx-cuda-13",
    "mlx-cuda-12",
    "mlx-metal",
    "mlx-lm",
    "nvidia-cuda-runtime",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cuda-nvrtc",
    "ncu-report",
    "numpy",
)
_SHORT_NAMES = {product: short for short, product in HOSTS.items()}
_NOISE_WORDS = re.compile(r"\b(?:nvidia|apple|amd|intel|geforce|tesla|quadro|radeon)\b", re.IGNORECASE)


def host_id(machine: Machine) -> str:
    """``h200``, ``gb10`` or ``m5``; any other GPU gets its product name in small letters; no GPU is ``cpu``.

    Only the whole product name counts: a slice of an H200, or an M5 Max, is another machine with another bandwidth.
    """
    if machine.gpu is None:
        return "cpu"
    if machine.gpu.name in _SHORT_NAMES:
        return _SHORT_NAMES[machine.gpu.name]
    slug = re.sub(r"[^a-z0-9]", "", _NOISE_WORDS.sub("", machine.gpu.name).lower())
    if slug in (*HOSTS, TEST_HOST, ""):
        slug += "other"
    return slug if slug[0].isalpha() else "gpu" + slug


def versions() -> dict[str, str]:
    """Installed versions by distribution name, plus ``python``, ``upstream-patch``, its ``commit``, and ``LIBRARY``."""
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
    for path in _libraries():
        found[LIBRARY] = sha256_of(path)
    return found


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Those that MLX and CUDA read, by name; of this process if left out."""
    return {name: value for name, value in sorted(variables.items()) if name.startswith(("MLX_", "CUDA_"))}


def _libraries() -> list[Path]:
    """MLX's, at most one; asked without importing it."""
    try:
        spec = find_spec("mlx")
    except ValueError:  # a stand-in that does not say where it is from
        spec = None
    folders = (spec and spec.submodule_search_locations) or []
    return [path for one in folders for path in sorted(Path(one, "lib").glob("libmlx.*")) if path.is_file()][:1]


def require_commit(host: str, found: Mapping[str, str]) -> None:
    """Raise UserError where a record of one of ``HOSTS`` could not say what code it measured.

    ``found`` is what ``versions()`` returns. The writer asks this; ask it before a long measurement too.
    """
    if host in HOSTS and found.get("commit", UNKNOWN) == UNKNOWN:
        raise UserError(
            f"versions.commit: unknown, and a record of {host} must name the code that it measured; run from a git "
            f"clone, or set {COMMIT_VARIABLE} to the full commit that the tree was copied from"
        )


def _commit(file: Path = Path(__file__)) -> str:
    """The checked-out commit, ``-dirty`` where files differ from it; else the given one, ``-given``; else ``unknown``.

    The checkout must track this very file: a package installed into some other project's checkout is none of its code.
    """
    if _git(file, "ls-files", "--error-unmatch", "--", file.name):
        described = _git(file, "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")
        if described:
            return described
    given = os.environ.get(COMMIT_VARIABLE, "").strip()
    return f"{given}-given" if re.fullmatch(r"[0-9a-f]{40}", given) else UNKNOWN


def _git(file: Path, *arguments: str) -> str:
    """What git prints in the file's folder; empty where it fails or is not there."""
    # A copied tree often belongs to another user, which git refuses by itself; its code is what runs here anyway.
    command = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in REDIRECTING}
    try:
        run = subprocess.run(
            command, cwd=file.parent, env=environment, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""
