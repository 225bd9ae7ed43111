"""The staged Metal kernels: which instances there are, their host names, and how they are launched."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).parent
PLACE = "mlx/backend/metal/kernels"
"""Where our headers would lie in an MLX checkout, and what their includes say."""
IMPLEMENTATION = "qmm_t_nax_staged.h"
BITS = (1, 2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
ROWS = (32, 64)
"""BM: rows of x that a threadgroup takes."""
COLUMNS = 64
"""BN: outputs that a threadgroup makes. N is a multiple of it."""
STEP = 64
"""BK: columns of K between two barriers. K, and every part of it, is a multiple of it."""
GROUP = (128, 1, 1)
"""Lanes of a threadgroup, flat: four simdgroups."""
X_ALIGNMENT = 8
"""Bytes that the address of x, and of each matrix of a batch of it, is a multiple of."""
DType = Literal["bf16", "f16"]
TYPES: dict[DType, str] = {"bf16": "bfloat16_t", "f16": "float16_t"}
FILES = {False: "affine_qmm_t_nax_staged.h", True: "affine_qmm_t_nax_splitk.h"}


@dataclass(frozen=True, slots=True, order=True)
class Staged:
    """One instance of the staged schedule: ``affine_qmm_t_nax_staged``, or with ``split`` ``affine_qmm_t_nax_splitk``.

    Into how many parts K is split is an argument of the launch, no part of the instance. Raises ValueError for what
    there is no instance of; a batch of weights is never split.
    """

    bits: int
    group_size: int
    dtype: DType
    bm: int = 64
    batched: bool = False
    split: bool = False

    def __post_init__(self) -> None:
        known = self.bits in BITS and self.group_size in GROUPS and self.dtype in TYPES and self.bm in ROWS
        if not known or (self.batched and self.split):
            raise ValueError(
                f"no staged Metal kernel for {self.bits} bits, group {self.group_size}, {self.dtype}, "
                f"{self.bm} rows, batched {self.batched}, split {self.split}"
            )

    @property
    def function(self) -> str:
        """The kernel's template."""
        return FILES[self.split].removesuffix(".h")

    @property
    def simdgroups(self) -> tuple[int, int]:
        """Along M and along N: four of 16 x 64, or for 32 rows 2 x 2 of 16 x 32."""
        down = self.bm // 16
        return down, 4 // down

    @property
    def template_arguments(self) -> str:
        """As Metal text: ``bfloat16_t, 64, 4, 64, false``; without the last for a split kernel."""
        batched = () if self.split else (str(self.batched).lower(),)
        return ", ".join((TYPES[self.dtype], str(self.group_size), str(self.bits), str(self.bm), *batched))

    @property
    def host_name(self) -> str:
        """In the form of MLX's own; of a split kernel that under which the series' host code looks for it.

        In an MLX checkout an unsplit one is ``affine_qmm_t_nax`` itself, and has that one's names.
        """
        wm, wn = self.simdgroups
        tile = f"bm{self.bm}_bn{COLUMNS}_bk{STEP}_wm{wm}_wn{wn}"
        kind = f"{self.function}_{TYPES[self.dtype]}_gs_{self.group_size}_b_{self.bits}"
        return f"{kind}_{tile}_alN_true" + ("" if self.split else f"_batch_{int(self.batched)}")

    @property
    def shared_bytes(self) -> int:
        """Threadgroup memory: two tiles of weights, each row padded by 16 bytes."""
        return 2 * COLUMNS * (STEP * 2 + 16)

    def arguments(self, m: int, n: int, k: int, parts: int = 1) -> tuple[str | int, ...]:
        """What its buffers hold, from 0 on: operands by name, and int32 sizes, the last two of a part of K.

        The shapes and strides of a batch follow, see the kernel.
        """
        sizes = (k // parts, m * n) if self.split else ()
        return ("w", "scales", "biases", "x", "y", k, n, m, *sizes)

    def grid(self, m: int, n: int, parts: int = 1) -> tuple[int, int, int]:
        """Threadgroups for M rows and N outputs. ``parts``: of K where ``split``, else matrices of the batch."""
        return n // COLUMNS, -(-m // self.bm), parts


def path_of(name: str) -> str:
    """The path of a header in an MLX checkout."""
    return f"{PLACE}/{name}"


def sources() -> dict[str, str]:
    """Every header of ours, by its path in an MLX checkout."""
    return {path_of(name): (FOLDER / name).read_text("utf-8") for name in (IMPLEMENTATION, *FILES.values())}


def instances() -> tuple[Staged, ...]:
    """Every one that there is."""
    kinds = ((False, False), (True, False), (False, True))
    return tuple(
        Staged(bits, group, dtype, rows, *kind)
        for bits, group, dtype, rows, kind in product(BITS, GROUPS, TYPES, ROWS, kinds)
    )
