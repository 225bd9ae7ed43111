"""What the stored codes of mxfp4, nvfp4 and mxfp8 mean, exactly: elements and scales. numpy only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from upstream_patch.problem import Mode

F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]


def _small_float(exponent_bits: int, mantissa_bits: int, bias: int) -> F64:
    """The value of every code, the sign in its highest bit; no infinities, and NaN is for the caller to put in."""
    half = np.arange(2 ** (exponent_bits + mantissa_bits))
    exponent, mantissa = half >> mantissa_bits, (half & (2**mantissa_bits - 1)) / 2**mantissa_bits
    positive = np.where(exponent == 0, np.ldexp(mantissa, 1 - bias), np.ldexp(1 + mantissa, exponent - bias))
    return np.concatenate([positive, -positive])


E2M1 = _small_float(2, 1, 1)
"""0, 0.5, 1, 1.5, 2, 3, 4, 6, and the same with a sign."""
E4M3 = _small_float(4, 3, 7)
"""Up to 448; 0x7F and 0xFF are NaN."""
E4M3[[0x7F, 0xFF]] = np.nan
E8M0 = np.ldexp(1.0, np.arange(256) - 127)
"""2^-127 to 2^127; 255 is NaN."""
E8M0[255] = np.nan

ELEMENTS: dict[Mode, F64] = {"mxfp4": E2M1, "nvfp4": E2M1, "mxfp8": E4M3}
"""By code."""
SCALES: dict[Mode, F64] = {"mxfp4": E8M0, "nvfp4": E4M3, "mxfp8": E8M0}


def scale_codes(values: F64, mode: Mode) -> U8:
    """The code of the scale nearest to each value; of E8M0, to its size, on a scale of exponents."""
    if SCALES[mode] is E8M0:
        exponents: F64 = np.rint(np.log2(np.abs(values)))
        return np.clip(exponents + 127, 0, 254).astype(np.uint8)
    positive = E4M3[:0x7F]
    code = np.searchsorted((positive[1:] + positive[:-1]) / 2, np.abs(values)).astype(np.uint8)
    return np.where(values < 0, code | 0x80, code).astype(np.uint8)
