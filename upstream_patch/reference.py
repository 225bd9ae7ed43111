"""What the right answer is: fp64 from raw integers, scales and biases. numpy only, no mlx, no GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from upstream_patch.kernels import offset
from upstream_patch.problem import DType, Problem

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
U32 = NDArray[np.uint32]
U8 = NDArray[np.uint8]

BITS = (1, 2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
Distribution = Literal[
    "normal",
    "group_scales",
    "one_hot",
    "zero_groups",
    "nan_row",
    "inf_row",
    "large",
    "small",
    "negative_scales",
    "coherent",
    "positive",
    "no_bias",
    "zero_codes",
]
DISTRIBUTIONS: tuple[Distribution, ...] = get_args(Distribution)

# significand bits with the hidden one, least and greatest exponent of a normal number
_FORMAT: dict[DType, tuple[int, int, int]] = {"bf16": (8, -126, 127), "f16": (11, -14, 15), "f32": (24, -126, 127)}
_CHUNK_BYTES = 64 << 20


def _quantum_exponent(values: F64, dtype: DType) -> NDArray[np.int64]:
    precision, low, high = _FORMAT[dtype]
    exponent = np.where(values == 0, low, np.frexp(values)[1].astype(np.int64) - 1)
    return np.clip(exponent, low, high) - (precision - 1)


def round_to(values: F64, dtype: DType) -> F64:
    """Nearest value of ``dtype``, ties to even, as float64: subnormals kept, overflow to infinity, NaN stays NaN."""
    values = np.asarray(values, np.float64)
    precision, _, high = _FORMAT[dtype]
    quantum = _quantum_exponent(values, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.ldexp(np.rint(np.ldexp(values, -quantum)), quantum)
        largest = np.ldexp(2.0 - 2.0 ** (1 - precision), high)
        overflow = np.copysign(np.inf, values)
        return np.asarray(np.where(np.abs(rounded) > largest, overflow, rounded), np.float64)


def ulp(values: F64, dtype: DType) -> F64:
    """Distance between neighbours of ``dtype`` at each value; past the largest number the top binade's; NaN at Inf."""
    values = np.asarray(values, np.float64)
    spacing = np.ldexp(1.0, _quantum_exponent(values, dtype))
    return np.asarray(np.where(np.isfinite(values), spacing, np.nan), np.float64)


def from_bits(bits: NDArray[np.unsignedinteger], dtype: DType) -> F64:
    """Stored bits (uint16 for bf16 and f16, uint32 for f32) to their values."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        if dtype == "bf16":
            return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return bits.view(np.float16 if dtype == "f16" else np.float32).astype(np.float64)


def _row_chunks(rows: int, row_bytes: int) -> Iterator[slice]:
    step = max(1, _CHUNK_BYTES // max(1, row_bytes))
    return (slice(start, min(rows, start + step)) for start in range(0, rows, step))


def unpack(packed: U32, bits: int) -> U8:
    """uint32 [N, K * bits / 32] to integers uint8 [N, K]. A row is one little-endian bit stream, lowest bits first."""
    rows, words = packed.shape
    octets = np.ascontiguousarray(packed).astype("<u4", copy=False).view(np.uint8)
    if bits == 8:
        return octets.copy()
    count = words * 32 // bits
    out = np.empty((rows, count), np.uint8)
    if bits in (2, 4):
        per_octet = 8 // bits
        for i in range(per_octet):
            np.bitwise_and(octets >> np.uint8(i * bits), np.uint8(2**bits - 1), out=out[:, i::per_octet])
        return out
    place = (1 << np.arange(bits)).astype(np.uint8)
    for part in _row_chunks(rows, count * bits):
        stream = np.unpackbits(octets[part], axis=1, bitorder="little")
        out[part] = (stream.reshape(-1, count, bits) * place).sum(axis=2, dtype=np.uint8)
    return out


def pack(q: U8, bits: int) -> U32:
    """Integers [N, K] to uint32 [N, K * bits / 32]: the inverse of ``unpack``. K * bits must be a multiple of 32."""
    rows, count = q.shape
    if count * bits % 32:
        raise ValueError(f"K = {count} at {bits} bits does not fill whole 32-bit words")
    if q.size and int(q.max()) >= 1 << bits:
        raise ValueError(f"an integer needs more than {bits} bits")
    words = np.empty((rows, count * bits // 32), np.uint32)
    for part in _row_chunks(rows, count * bits):
        stream = (q[part, :, None] >> np.arange(bits, dtype=np.uint8)) & 1
        octets = np.packbits(stream.reshape(stream.shape[0], -1), axis=1, bitorder="little")
        words[part] = octets.view("<u4")
    return words


def dequantize(q: U8, scales: F64, biases: F64, group_size: int) -> F64:
    """q [N, K], scales and biases [N, K / g] to weights [N, K]: ``q * scale + bias`` in fp64."""
    grouped = q.reshape(q.shape[0], -1, group_size).astype(np.float64)
    grouped *= scales[:, :, None]
    grouped += biases[:, :, None]
    return grouped.reshape(q.shape)


def matmul_fp64(x: F64, q: U8, scales: F64, biases: F64, group_size: int) -> F64:
    """x [M, K] times the transposed dequantized [N, K]: [M, N]. Weights are expanded 64 MB at a time."""
    out = np.empty((x.shape[0], q.shape[0]))
    # NaN and Inf in x are data here, not an accident worth a warning
    with np.errstate(invalid="ignore", over="ignore"):
        for part in _row_chunks(q.shape[0], q.shape[1] * 8):
            out[:, part] = x @ dequantize(q[part], scales[part], biases[part], group_size).T
    return out


@dataclass(frozen=True)
class Inputs:
    """One problem's operands. x, scales and biases are float32 holding values that the dtype represents exactly."""

    problem: Problem
    seed: int
    distribution: Distribution
    x: F32
    """[M, K]"""
    packed: U32
    """[N, K * bits / 32]"""
    scales: F32
    """[N, K / group]"""
    biases: F32
    """[N, K / group]"""

    @cached_property
    def q(self) -> U8:
        """The raw integers, [N, K]."""
        return unpack(self.packed, self.problem.bits)

    def weights(self) -> F64:
        """Dequantized, [N, K] in fp64: 8 N K bytes, for small problems."""
        scales, biases = self.scales.astype(np.float64), self.biases.astype(np.float64)
        return dequantize(self.q, scales, biases, self.problem.group_size)

    def columns(self, index: Sequence[int] | NDArray[np.intp]) -> Inputs:
        """The same inputs for some of the N outputs: how a large N is checked on a sample."""
        chosen = np.asarray(index, np.intp)
        return replace(
            self,
            problem=self.problem.model_copy(update={"n": len(chosen)}),
            packed=self.packed[chosen],
            scales=self.scales[chosen],
            biases=self.biases[chosen],
        )

    def reference(self) -> F64:
        """The right answer before rounding, [M, N]."""
        return self._matmul(self.x, self.scales, self.biases)

    def magnitude(self) -> F64:
        """sum over k of ``|x| * ((offset + q) * |scale| + |bias|)``, [M, N]: what rounding errors scale with.

        Our kernel multiplies ``offset + q`` and takes the offset out in fp32; for dtypes that it does not take it is 0.
        """
        scales = np.abs(self.scales.astype(np.float64))
        biases = np.abs(self.biases.astype(np.float64)) + offset(self.problem) * scales
        return self._matmul(np.abs(self.x), scales, biases)

    def removed(self) -> F64:
        """``|sum over k of offset * x * scale|``, [M, N]: how much of ``magnitude`` is really there to be taken out.

        Where the signs of x are mixed it is about ``magnitude / sqrt(K)``, where they are equal most of it.
        """
        x = self.x.astype(np.float64).reshape(len(self.x), -1, self.problem.group_size)
        with np.errstate(invalid="ignore"):
            taken: F64 = np.abs(x.sum(axis=2) @ self.scales.T.astype(np.float64))
        return offset(self.problem) * taken

    def _matmul(self, x: F32, scales: F32 | F64, biases: F32 | F64) -> F64:
        wide_x, wide_scales, wide_biases = (a.astype(np.float64) for a in (x, scales, biases))
        return matmul_fp64(wide_x, self.q, wide_scales, wide_biases, self.problem.group_size)


def _scale_factors(shape: tuple[int, int], distribution: Distribution, dtype: DType) -> F64:
    """What the scales (and with them the biases) are multiplied by, [N, K / g]."""
    if distribution == "group_scales":
        n, group = np.indices(shape)
        return np.asarray(10.0 ** ((group + n) % 5 - 2.0))
    if distribution == "large":
        return np.full(shape, 2.0**4 if dtype == "f16" else 2.0**30)
    if distribution == "small":
        return np.full(shape, 2.0**-6 if dtype == "f16" else 2.0**-40)
    return np.ones(shape)


def make_inputs(problem: Problem, seed: int, distribution: Distribution = "normal") -> Inputs:
    """Affine inputs that give outputs near 1 for ``normal``; the other distributions each aim at one kind of fault.

    ``group_scales``: scales ten times apart from group to group. ``one_hot``: row m is a single 1, so every output is
    one weight. ``zero_groups``: scale and bias zero, also for whole outputs. ``nan_row``: row m // 2 of x is NaN.
    ``inf_row``: that row holds one Inf. ``large``, ``small``: outputs near the ends of the dtype (f16: some overflow,
    some subnormal). ``coherent``: x and biases positive and biases dominant, so that partial sums only grow and a
    16-bit accumulator shows. ``positive``: only x is, so that truncation shows. ``no_bias``: q is 0 or 1 and the biases
    0: the answer is small against the offset that our kernel adds and takes out. ``zero_codes``: q and biases are 0 and
    x is positive: the answer is 0, the offset is all there is.
    """
    if problem.mode != "affine" or problem.bits not in BITS or problem.k % problem.group_size:
        raise ValueError(f"no reference for {problem.id}: affine, bits in {BITS}, K a multiple of the group")
    rng = np.random.default_rng([seed, problem.m, problem.n, problem.k, problem.bits])
    m, n, k, dtype = problem.m, problem.n, problem.k, problem.dtype
    groups = (n, k // problem.group_size)
    # uniform random words are uniform integers at every width
    packed = rng.integers(0, 2**32, (n, k * problem.bits // 32), np.uint32)
    x = rng.standard_normal((m, k))
    step = 2.0 / 2**problem.bits / np.sqrt(k)
    scales = step * rng.uniform(0.5, 1.5, groups) * _scale_factors(groups, distribution, dtype)
    biases = -scales * (2**problem.bits - 1) / 2 * rng.uniform(0.8, 1.2, groups)
    if distribution == "one_hot":
        x = np.zeros((m, k))
        x[np.arange(m), (np.arange(m) + seed * m) % k] = 1.0
    elif distribution == "zero_groups":
        keep = (rng.random(groups) < 0.5) & (rng.random((n, 1)) < 0.9)
        scales, biases = scales * keep, biases * keep
    elif distribution == "nan_row":
        x[m // 2] = np.nan
    elif distribution == "inf_row":
        x[m // 2, k // 3] = np.inf
    elif distribution == "large":
        x *= 2.0**12 if dtype == "f16" else 2.0**60
    elif distribution == "small":
        x *= 2.0**-9 if dtype == "f16" else 2.0**-60
    elif distribution == "negative_scales":
        sign = np.where(rng.random(groups) < 0.5, -1.0, 1.0)
        scales, biases = scales * sign, biases * sign
    elif distribution == "coherent":
        x, biases = np.abs(x), 32 * np.abs(biases)
    elif distribution == "positive":
        x = np.abs(x)
    elif distribution == "no_bias":
        packed, biases = pack(unpack(packed, problem.bits) & np.uint8(1), problem.bits), np.zeros(groups)
    elif distribution == "zero_codes":
        x, packed, biases = np.abs(x), np.zeros_like(packed), np.zeros(groups)
    exact = [round_to(a, dtype).astype(np.float32) for a in (x, scales, biases)]
    return Inputs(problem, seed, distribution, exact[0], packed, exact[1], exact[2])
