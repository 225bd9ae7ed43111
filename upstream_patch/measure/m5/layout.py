"""How the hardware deals a matrix out to the lanes of a simdgroup, compared with what the simulator takes it for.

Each of the 256 elements that the lanes hold of a 16 x 16 fragment of A is set to 1 in turn, all others to 0, and
multiplied with two fragments of B whose elements are numbered. What a lane then holds of the product says to which row,
column and place of K every element belongs. A renaming of rows, columns or places that is the same on all operands
cannot be seen so, and changes no result.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upstream_patch import machine
from upstream_patch.kernels import metal_source

ELEMENTS, LANES, HELD = 256, 32, 16
NAME = "upstream_patch_layout"
BODY = """using Frag = mlx::steel::BaseNAXFrag;
const int lane = int(thread_index_in_simdgroup);
for (int which = 0; which < count; ++which) {
  Frag::dtype_frag_t<half> a;
  Frag::dtype_frag_t<half> b0;
  Frag::dtype_frag_t<half> b1;
  Frag::dtype_frag_t<float> c0;
  Frag::dtype_frag_t<float> c1;
  for (int i = 0; i < 8; ++i) {
    a[i] = half(which == lane * 8 + i ? 1.0f : 0.0f);
    b0[i] = half(float(1 + lane * 8 + i));
    b1[i] = half(float(257 + lane * 8 + i));
    c0[i] = 0.0f;
    c1[i] = 0.0f;
  }
  Frag::mma(c0, c1, a, metal::bool_constant<false>{}, b0, b1, metal::bool_constant<true>{});
  for (int i = 0; i < 8; ++i) {
    y[(which * 32 + lane) * 16 + i] = c0[i];
    y[(which * 32 + lane) * 16 + 8 + i] = c1[i];
  }
}
"""


def probe(make: Callable[..., Any] | None = None) -> NDArray[np.float32]:
    """[element of A, lane, what it holds of the product]. ``make`` takes the place of ``mx.fast.metal_kernel``."""
    mx: Any = import_module("mlx.core")
    kernel = (make or mx.fast.metal_kernel)(
        name=NAME,
        input_names=["count"],
        output_names=["y"],
        source=BODY,
        header=metal_source.header(Path(machine.find_mlx_headers() or "")),
    )
    (y,) = kernel(
        inputs=[mx.array(ELEMENTS, mx.int32)],
        output_shapes=[(ELEMENTS, LANES, HELD)],
        output_dtypes=[mx.float32],
        grid=(LANES, 1, 1),
        threadgroup=(LANES, 1, 1),
    )
    return np.array(y)


def digest(found: NDArray[np.float32]) -> str:
    return sha256(np.ascontiguousarray(found, "<f4").tobytes()).hexdigest()


def is_a_layout(found: NDArray[np.float32]) -> str | None:
    """Why this is no way at all to deal out the elements of a product, or None.

    An element of A is in one row, so 32 columns of it are not 0, and they are numbers of B: 16 elements of A (those of
    one place of K) meet the same 32 numbers, and no two of them in the same places.
    """
    if found.shape != (ELEMENTS, LANES, HELD):
        return f"the probe has shape {found.shape}"
    flat = found.reshape(ELEMENTS, -1)
    if not np.isfinite(flat).all() or ((flat != 0).sum(axis=1) != 32).any():
        return "an element of A does not reach the 32 columns of one row"
    meets: dict[tuple[float, ...], list[int]] = {}
    for which, row in enumerate(flat):
        meets.setdefault(tuple(sorted(row[row != 0])), []).append(which)
    if sorted(number for numbers in meets for number in numbers) != list(range(1, 513)):
        return "the elements of B are not met once by each place of K"
    if any(len(which) != 16 or (flat[which] != 0).sum(axis=0).max() != 1 for which in meets.values()):
        return "two elements of A of one place of K are in the same row"
    return None
