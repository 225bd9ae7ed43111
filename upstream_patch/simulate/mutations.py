"""Faults planted in the small-M kernel. Each must be found, or the checks are blind."""

from __future__ import annotations

import re
from dataclasses import dataclass

from upstream_patch.errors import UserError
from upstream_patch.simulate.small_m import FILE
from upstream_patch.simulate.source import Kernel

STREAMS, ACTIVATIONS, FORMATS = "streams.cuh", "activations.cuh", "formats.cuh"
_BARRIER = r"(?:__sync(?:threads|warp)\w*|__barrier_sync\w*|copy_async_wait<[^>]*>)\("
BARRIERS = re.compile(_BARRIER + r"[^;()]*\);")
REGULAR, RAGGED, MXFP8, NVFP4, THREE_BITS = range(5)
"""What is broken: 4-bit weights in whole tiles and rows of scales that 16-byte copies reach, or not; other formats."""
_PLAIN = "rows of scales that 16-byte copies do not reach are stored by the lanes, and a block barrier follows"
EQUIVALENT = {
    (
        False,
        "copy_async_wait<kStages - 2>(); // the first scales; later ones are covered by the waits for weights",
    ): _PLAIN,
    (False, "copy_async_wait<0>(); // too few chunks went by to cover what the next phase needs"): _PLAIN,
}
"""Barriers whose removal changes nothing, by (regular shape, text of the line), each with its proof: no fault and the
same bits in every order of lanes, which ``find_plants`` looks for."""


@dataclass(frozen=True)
class Plant:
    """``old`` becomes ``new`` in ``file``; one of ``kinds`` of fault must be reported."""

    name: str
    old: str
    new: str
    kinds: tuple[str, ...]
    odd_x: bool = False
    """x starts two bytes past a 16-byte boundary."""
    file: str = FILE
    on: tuple[int, ...] = (REGULAR, RAGGED)

    def apply(self, kernel: Kernel) -> Kernel:
        return kernel.edited(self.name, self.file, self.old, self.new)


WRONG_ANSWER = "wrong answer"
PLANTS = (
    Plant(
        "a barrier of the block deleted",
        "__syncthreads();\n      const bool in_k",
        "const bool in_k",
        ("race", "unwritten read"),
    ),
    Plant(
        "a wait for one group too few",
        "copy_async_wait<kStages - 2>();\n        __syncwarp();",
        "copy_async_wait<kStages - 1>();\n        __syncwarp();",
        ("race",),
    ),
    Plant(
        "a barrier of the warp that one lane skips",
        "__syncwarp(); //",
        "if (lane) __syncwarp(); //",
        ("deadlock", "divergence"),
    ),
    Plant(
        "a barrier of the block that one warp skips",
        "__syncthreads(); // the partial",
        "if (warp) __syncthreads(); // the partial",
        ("deadlock", "divergence", "race"),
    ),
    Plant(
        "a unit of weights one too far",
        "reinterpret_cast<const char*>(op.w) + at +",
        "reinterpret_cast<const char*>(op.w) + at + 16 +",
        ("out of bounds",),
        file=STREAMS,
    ),
    Plant(
        "a store past the shared memory",
        "store_shared_16(partial + 512 * j,",
        "store_shared_16(partial + 512 * j + sizeof(Shared),",
        ("out of bounds",),
    ),
    Plant("a column that nobody writes", "if (column < n) {", "if (column + 1 < n) {", ("never written",)),
    Plant(
        "a column that two lanes write",
        "i < count; i += kTogether",
        "i < count; i += (kTogether + 1) / 2",
        ("written twice",),
    ),
    Plant(
        "a vector load of any address",
        "rows.whole() && (slice + 1)",
        "(slice + 1)",
        ("misaligned",),
        odd_x=True,
        file=ACTIVATIONS,
        on=(REGULAR,),
    ),
    Plant("an int that overflows", "groups = k / F::kGroup;", "groups = k * (1 << 30) / F::kGroup;", ("overflow",)),
    Plant(
        "an input written",
        "to[0] = V::from_float(sum.x);",
        "const_cast<T*>(x.x)[0] = V::from_float(sum.x);",
        ("write to an input",),
    ),
    Plant(
        "a sum of the wrong lane",
        "odd = shuffle(s.y, g / 2)",
        "odd = shuffle(s.y, g / 2 + 1)",
        (WRONG_ANSWER,),
        file=ACTIVATIONS,
    ),
    Plant(
        "a column's scale for its neighbour",
        "f1 = group % 2 ? high1 : low1;",
        "f1 = group % 2 ? low1 : high1;",
        (WRONG_ANSWER,),
    ),
    Plant(
        "the scale of the next group",
        "add_group(L::ended_group(i), s0",
        "add_group((L::ended_group(i) + 1) % L::kGroups, s0",
        (WRONG_ANSWER,),
        on=(REGULAR,),
    ),
    Plant(
        "a tail of x that nothing masks",
        "start + at < rows.k",
        "start + at < rows.k + L::kSlice",
        ("out of bounds", WRONG_ANSWER),
        file=ACTIVATIONS,
        on=(RAGGED,),
    ),
    Plant(
        "a tail of weights that nothing masks",
        "if (at < words_left) {",
        "if (at <= words_left) {",
        ("out of bounds",),
        file=STREAMS,
        on=(RAGGED,),
    ),
    Plant(
        "NaN past K that meets a zero of x",
        "kFinite = kBits == 4;",
        "kFinite = true;",
        (WRONG_ANSWER,),
        file=FORMATS,
        on=(MXFP8,),
    ),
    Plant("a lane's scale for its neighbour", "mine = t * 0x11;", "mine = t / 2 * 0x11;", (WRONG_ANSWER,), on=(NVFP4,)),
    Plant(
        "a run that starts a byte late",
        "i + 1 : i], shift)",
        "i + 1 : i], shift ^ 8)",
        (WRONG_ANSWER,),
        on=(THREE_BITS,),
    ),
)


@dataclass(frozen=True)
class Barrier:
    """One barrier of the kernel, and the kernel without it."""

    file: str
    line: int
    text: str
    """The whole line, which tells it from others: what ``EQUIVALENT`` goes by."""
    kernel: Kernel


def without_each_barrier(kernel: Kernel) -> tuple[Barrier, ...]:
    """Every barrier of a block, a warp or named ones, and every wait for copies, one deleted at a time.

    In all of the kernel's files; the intrinsics, which are the simulator's own, are none of them. Raises UserError for
    one that is no statement, which cannot be deleted.
    """
    found = []
    for file, text in kernel.files.items():
        if len(re.findall(_BARRIER, text)) != len(BARRIERS.findall(text)):
            raise UserError(f"{file} has a barrier that is no statement of its own: its removal would go untested")
        seen: dict[str, int] = {}
        for match in BARRIERS.finditer(text):
            occurrence = seen.get(match.group(), 0)
            seen[match.group()] = occurrence + 1
            line = text.count("\n", 0, match.start()) + 1
            name = f"line {line} without {match.group()}"
            changed = kernel.edited(name, file, match.group(), "", occurrence)
            found.append(Barrier(file, line, text.split("\n")[line - 1].strip(), changed))
    return tuple(found)
