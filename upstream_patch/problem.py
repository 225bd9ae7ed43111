"""What a quantized matmul problem is, and how many bytes it must move."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

DType = Literal["bf16", "f16", "f32"]
Mode = Literal["affine", "mxfp4", "mxfp8", "nvfp4"]
Layout = Literal["mk", "1mk", "b1k"]

DTYPE_BYTES: dict[DType, int] = {"bf16": 2, "f16": 2, "f32": 4}
MLX_DTYPE: dict[DType, str] = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


class Problem(BaseModel):
    """y[M, N] = x[M, K] @ dequantize(w[N, K])^T.

    ``layout`` is the shape x has when the operation is called: ``mk`` is [M, K], ``1mk`` is [1, M, K], ``b1k`` is
    [M, 1, K], what batched decode sends. ``batch`` H > 1 is that many such products with weights [H, N, K], and the H
    stands before the last two axes of x: [H, M, K], [1, H, M, K], [M, H, 1, K]. Sizes count elements, not bytes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    m: Annotated[int, Field(ge=1)]
    n: Annotated[int, Field(ge=1)]
    k: Annotated[int, Field(ge=1)]
    bits: int = 4
    group_size: int = 64
    mode: Mode = "affine"
    dtype: DType = "bf16"
    layout: Layout = "mk"
    batch: Annotated[int, Field(ge=1)] = 1

    @property
    def x_shape(self) -> tuple[int, ...]:
        m, k, entries = self.m, self.k, () if self.batch == 1 else (self.batch,)
        return {"mk": (*entries, m, k), "1mk": (1, *entries, m, k), "b1k": (m, *entries, 1, k)}[self.layout]

    @property
    def weight_bytes(self) -> int:
        """Packed integers only."""
        return self.batch * self.n * self.k * self.bits // 8

    @property
    def scale_bytes(self) -> int:
        """Scales, and biases where the mode has them."""
        groups = self.batch * self.n * self.k // self.group_size
        return 2 * groups * DTYPE_BYTES[self.dtype] if self.mode == "affine" else groups

    @property
    def packed_bytes(self) -> int:
        """Weights, scales and biases: the bytes that must be read once, whatever M is."""
        return self.weight_bytes + self.scale_bytes

    def read_fraction(self, us: float, probe_gbps: float) -> float:
        """How fast ``packed_bytes`` in a time (us) are, as a share of a read probe (GB/s, 1e9 bytes)."""
        return self.packed_bytes / 1e9 / (us * 1e-6) / probe_gbps

    @property
    def weights_id(self) -> str:
        """The part of a fact id that names the weights: ``4096x128256.b4.g64.bf16``, or ``4096x4096.mxfp4.bf16``; 32 of
        them in a batch end in ``.h32``."""
        quant = f"b{self.bits}.g{self.group_size}" if self.mode == "affine" else self.mode
        return f"{self.k}x{self.n}.{quant}.{self.dtype}" + (f".h{self.batch}" if self.batch > 1 else "")

    @property
    def id(self) -> str:
        """``<weights_id>.M<m>``, plus ``.1mk`` or ``.b1k`` where x is not [M, K]."""
        return f"{self.weights_id}.M{self.m}" + ("" if self.layout == "mk" else f".{self.layout}")


_ID = re.compile(
    r"(?P<k>\d+)x(?P<n>\d+)\.(?:b(?P<bits>\d+)\.g(?P<g>\d+)|(?P<mode>mxfp4|mxfp8|nvfp4))\.(?P<dtype>bf16|f16|f32)"
    r"(?:\.h(?P<batch>[2-9]|[1-9]\d+))?\.M(?P<m>\d+)(?:\.(?P<layout>1mk|b1k))?"
)
BITS, GROUPS = (2, 3, 4, 5, 6, 8), (32, 64, 128)
"""Of the affine weights that this project is about; MLX also knows 1 bit."""
FLOATING: dict[str, tuple[int, int]] = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}
"""Bits and group size, which these modes fix."""


def parse_problem(text: str) -> Problem:
    """The inverse of ``Problem.id``. Raises ValueError with the expected form."""
    match = _ID.fullmatch(text)
    if match is None:
        raise ValueError(f"not a problem id: {text!r}; expected e.g. 4096x128256.b4.g64.bf16.M7")
    part = match.groupdict()
    mode = part["mode"] or "affine"
    bits, group_size = FLOATING[part["mode"]] if part["mode"] else (int(part["bits"]), int(part["g"]))
    return Problem.model_validate(
        {
            "m": int(part["m"]),
            "n": int(part["n"]),
            "k": int(part["k"]),
            "bits": bits,
            "group_size": group_size,
            "mode": mode,
            "dtype": part["dtype"],
            "layout": part["layout"] or "mk",
            "batch": int(part["batch"] or 1),
        }
    )
