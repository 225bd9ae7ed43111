"""Where a released MLX with CUDA is: its headers and its library."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from upstream_patch.files import sha256_of
from upstream_patch.machine import System

CUDA_WHEEL_VARIABLE = "UPSTREAM_PATCH_CUDA_WHEEL"
CUDA_WHEEL_FIX = (
    f"pip install -e '.[cuda]' on a GPU host, or anywhere on Linux: pip install --no-deps --target DIR "
    f"mlx-cuda-13==0.32.4, and {CUDA_WHEEL_VARIABLE}=DIR (nox -s tests and nox -s contribution do it)"
)


@dataclass(frozen=True)
class MlxLibrary:
    """A folder ``mlx`` of an installed or unpacked wheel."""

    folder: Path

    @property
    def include(self) -> Path:
        return self.folder / "include"

    @property
    def path(self) -> Path:
        return self.folder / "lib" / "libmlx.so"

    @cached_property
    def sha256(self) -> str:
        """Of the library: addresses in it are only good for these very bytes."""
        return sha256_of(self.path)

    @cached_property
    def version(self) -> str:
        """As its headers say."""
        text = (self.include / "mlx" / "version.h").read_text(encoding="utf-8")
        return ".".join(re.findall(r"#define MLX_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text))


def find_mlx_library(system: System | None = None) -> MlxLibrary | None:
    """The installed MLX, if it is one for CUDA, or the unpacked wheel that the environment names; None where none is.

    MLX's wheels all have headers of the CUDA backend, but only those for CUDA carry CCCL for their JIT.
    """
    system = system or System()
    named = system.environ(CUDA_WHEEL_VARIABLE)
    for folder in [*system.site_folders(), *([named] if named else [])]:
        if system.glob(f"{folder}/mlx/include/cccl") and system.glob(f"{folder}/mlx/lib/libmlx.so"):
            return MlxLibrary(Path(folder).absolute() / "mlx")
    return None
