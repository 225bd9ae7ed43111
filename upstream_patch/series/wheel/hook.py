"""Hand the built library to the MLX of this process."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.series.wheel.library import SEAL, build, sealed
from upstream_patch.series.wheel.mlx import CUDA_WHEEL_FIX, MlxLibrary, find_mlx_library

_WHY = {
    1: "the virtual table of QuantizedMatmul is not where this MLX's symbols say",
    2: "the virtual table's page cannot be made writable",
}


class Counts(NamedTuple):
    """Evaluations of quantized matmuls since the library was loaded, while it was enabled."""

    small_m: int
    folded: int
    """[B, 1, K] turned into [B, K] first; counted among the others as well."""
    stock: int


class Hook:
    """The loaded library. ``eval_gpu`` is MLX's own until it is enabled, which acts when arrays are evaluated."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.wheel_last_module.restype = ctypes.c_char_p
        code = library.wheel_install()
        if code != 0:
            raise UserError(f"the library was not hooked into MLX: {_WHY[code]}")

    def enable(self, on: bool = True) -> None:
        self._library.wheel_enable(int(on))

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """What is evaluated inside takes the series' routes; what is only built inside does not."""
        self.enable()
        try:
            yield
        finally:
            self.enable(False)

    def counts(self) -> Counts:
        into = (ctypes.c_long * len(Counts._fields))()
        self._library.wheel_counts(into)
        return Counts(*into)

    @property
    def last_module(self) -> str:
        """Name of the JIT module of the small-M kernel's last launch, e.g. ``qmm_small_m_bfloat16_affine_b4_...``."""
        return str(self._library.wheel_last_module().decode())


def load(built: Path | None = None, mlx: MlxLibrary | None = None) -> Hook:
    """``built`` is the library, built here where it is not given.

    Raises UserError where it was built for another libmlx.so than the installed one, from other code, or does not load.
    """
    mlx = mlx or find_mlx_library()
    if mlx is None:
        raise MissingTool("no MLX for CUDA here", CUDA_WHEEL_FIX)
    built = build(mlx) if built is None else built
    seal = built.parent / SEAL
    if not seal.is_file() or seal.read_text(encoding="utf-8") != sealed(mlx):
        raise UserError(
            f"{built} was built for another MLX than {mlx.path}, or from other code than today's: "
            "python -m upstream_patch wheel build"
        )
    try:
        ctypes.CDLL(str(mlx.path))  # the very one that mlx.core loads, whichever of the two comes first
        return Hook(ctypes.CDLL(str(built.absolute())))
    except OSError as error:
        raise UserError(f"the wheel build does not load: {error}") from error
