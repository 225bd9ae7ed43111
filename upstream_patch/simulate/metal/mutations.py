"""Faults planted in MLX's Metal kernels, by short anchors in the lowered headers. Each must be found."""

from __future__ import annotations

import re
from dataclasses import dataclass

from upstream_patch.errors import UserError
from upstream_patch.problem import Problem
from upstream_patch.simulate.metal.source import Instance, metal_kernel
from upstream_patch.simulate.metal.stock import FAMILY, HEADERS, Quantization, Route
from upstream_patch.simulate.source import KNOWN_MLX, Kernel

WRONG_ANSWER = "wrong answer"
_FOLDER = "mlx/backend/metal/kernels"
_NAX, _FRAGMENTS = f"{_FOLDER}/quantized_nax.h", f"{_FOLDER}/steel/gemm/nax.h"
_VECTOR, _SUM = f"{_FOLDER}/quantized.h", f"{_FOLDER}/steel/gemm/kernels/steel_gemm_splitk.h"
_MMA = f"{_FOLDER}/steel/gemm/mma.h"
_NAX_LOOP, _WIDE, _LOOP, _PRODUCT = (
    "void qmm_t_nax_tgp_impl(",
    "void qmv_wide_impl(",
    "void qmm_t_impl(",
    "void mma(const threadgroup",
)
PROBLEMS: dict[Route, Problem] = {
    "nax": Problem(m=70, n=100, k=192),
    "wide": Problem(m=7, n=13, k=512, dtype="f16"),
    "splitk": Problem(m=40, n=33, k=256),
}
"""4 bits, groups of 64. Full and partial tiles in both directions, so that every branch and barrier is reached."""
TILES: dict[Route, int] = {"nax": 64, "wide": 5, "splitk": 2}


def mutable_kernel(route: Route) -> Kernel:
    """Only what ``PROBLEMS`` needs of a route's library, so that a changed copy compiles in a second."""
    problem = PROBLEMS[route]
    q = Quantization.of(problem)
    instances: dict[Route, tuple[Instance, ...]] = {
        "nax": (q.nax(False, False, TILES["nax"]),),
        "wide": (q.wide(TILES["wide"], False),),
        "splitk": (q.splitk(False), q.accumulate()),
    }
    return metal_kernel(f"{route}_to_break", instances[route], headers=HEADERS[FAMILY[route]])


def _text(kernel: Kernel, file: str) -> str:
    if file not in kernel.files:
        raise UserError(f"MLX's headers do not include {file}: the mutations fit those of {KNOWN_MLX}")
    return kernel.files[file]


def _body(text: str, signature: str) -> tuple[int, int]:
    """From the signature to the end of the function's body."""
    start = text.find(signature)
    if start < 0:
        raise UserError(f"MLX's headers have no `{signature}`: the mutations fit those of {KNOWN_MLX}")
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0 and text[at] == "}":
            return start, at
    raise UserError(f"`{signature}` in MLX's headers has no whole body: the mutations fit those of {KNOWN_MLX}")


@dataclass(frozen=True)
class MetalPlant:
    """``old`` becomes ``new`` once in a file, in the function of that signature if one is given."""

    name: str
    route: Route
    file: str
    old: str
    new: str
    kinds: tuple[str, ...]
    """One of these faults must be reported."""
    signature: str = ""
    occurrence: int = 0

    def apply(self, kernel: Kernel) -> Kernel:
        text = _text(kernel, self.file)
        start = _body(text, self.signature)[0] if self.signature else 0
        return kernel.edited(self.name, self.file, self.old, self.new, text.count(self.old, 0, start) + self.occurrence)


_BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
_OUT = ("out of bounds",)
PLANTS = (
    MetalPlant(
        "a barrier that one simdgroup skips",
        "nax",
        _NAX,
        _BARRIER,
        f"if (simd_gid) {_BARRIER}",
        ("deadlock", "divergence"),
        _NAX_LOOP,
    ),
    MetalPlant("a barrier without a fence", "nax", _NAX, "mem_threadgroup", "mem_none", ("race",), _NAX_LOOP),
    MetalPlant("a row of weights past N", "nax", _NAX, "bi >= src_tile_dim.y", "bi >= src_tile_dim.y + 1", _OUT),
    MetalPlant(
        "a store past N",
        "nax",
        _NAX,
        "short2(sgp_sn, sgp_sm)",
        "short2(SN, sgp_sm)",
        ("out of bounds", "written twice"),
        _NAX_LOOP,
    ),
    MetalPlant(
        "a column that nobody writes", "nax", _FRAGMENTS, "r < lx && (c", "r < lx && (1 + c", ("never written",)
    ),
    MetalPlant(
        "a scale read at an odd address",
        "nax",
        _NAX,
        "*scales;",
        "*(const device T*)((const device uint8_t*)scales + 1);",
        ("misaligned",),
    ),
    MetalPlant("a store past the array", "nax", _NAX, "dst(dst_ + bi", "dst(dst_ + 16 + bi", _OUT),
    MetalPlant("an int that overflows", "nax", _NAX, "K_w = K *", "K_w = K * (1 << 30) *", ("overflow",), _NAX_LOOP),
    MetalPlant(
        "an input written",
        "nax",
        _NAX,
        "loader_w.next();",
        "loader_w.next(); *(device T*)scales = T(0);",
        ("write to an input",),
        _NAX_LOOP,
    ),
    MetalPlant("an element never set", "nax", _FRAGMENTS, "ct_a[i] =", "if (i) ct_a[i] =", (WRONG_ANSWER,)),
    MetalPlant(
        "a product without one lane",
        "nax",
        _NAX,
        "tile_matmad_nax(",
        "if (simd_lid) tile_matmad_nax(",
        ("deadlock", "divergence"),
        _NAX_LOOP,
    ),
    MetalPlant(
        "a group's scale kept", "nax", _NAX, "else {\n        scales++", "else {\n        scales += 0", (WRONG_ANSWER,)
    ),
    MetalPlant("a row past the last output", "wide", _VECTOR, "min(out_row, out_vec_size - 1)", "out_row", _OUT, _WIDE),
    MetalPlant(
        "a vector past the last",
        "wide",
        _VECTOR,
        "vec0 + v < M",
        "true",
        ("out of bounds", "written twice"),
        _WIDE,
    ),
    MetalPlant("a shuffle from elsewhere", "wide", _VECTOR, "(result[v], 4)", "(result[v], 2)", (WRONG_ANSWER,), _WIDE),
    MetalPlant(
        "parts that overlap", "splitk", _VECTOR, "_partition_stride);", "_partition_stride - 1);", ("written twice",)
    ),
    MetalPlant("a step of K left out", "splitk", _VECTOR, "k < K_eff", "k < K_eff - BK", (WRONG_ANSWER,), _LOOP, 3),
    MetalPlant(
        "a part left out of the sum",
        "splitk",
        _SUM,
        "i = 0; i < k_partitions",
        "i = 1; i < k_partitions",
        (WRONG_ANSWER,),
    ),
)


@dataclass(frozen=True)
class MetalBarrier:
    """One barrier of a kernel, and the kernel without it."""

    route: Route
    signature: str
    number: int
    """In its function, from 0."""
    line: int
    kernel: Kernel

    @property
    def proof(self) -> str | None:
        """Why the kernel is right without it, if it is."""
        return EQUIVALENT.get((self.signature, self.number))


_STORE = "nothing touches threadgroup memory after it: what follows goes from registers to device memory"
_NO_FENCE = "it orders no memory (mem_none), and the product that follows meets the whole simdgroup itself"
EQUIVALENT = {
    (_NAX_LOOP, 2): _STORE,
    (_LOOP, 8): _STORE,
    **{(_PRODUCT, number): _NO_FENCE for number in range(3)},
}
"""Barriers whose removal changes nothing, by function and number, each with its proof: no fault, and the same bits."""
_FUNCTIONS: dict[Route, tuple[tuple[str, str], ...]] = {
    "nax": ((_NAX, _NAX_LOOP),),
    "wide": ((_VECTOR, _WIDE),),
    "splitk": ((_VECTOR, _LOOP), (_MMA, _PRODUCT)),
}
_ANY_BARRIER = re.compile(r"(?:threadgroup|simdgroup)_barrier\([^)]*\);")


def without_each_barrier(route: Route, kernel: Kernel) -> tuple[MetalBarrier, ...]:
    """Every barrier in the functions that the route's kernel runs through, one deleted at a time."""
    found = []
    for file, signature in _FUNCTIONS[route]:
        text = _text(kernel, file)
        for number, match in enumerate(_ANY_BARRIER.finditer(text, *_body(text, signature))):
            line = text.count("\n", 0, match.start()) + 1
            occurrence = text.count(match.group(), 0, match.start())
            changed = kernel.edited(f"line {line} without {match.group()}", file, match.group(), "", occurrence)
            found.append(MetalBarrier(route, signature, number, line, changed))
    return tuple(found)
