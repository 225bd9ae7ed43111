"""Faults planted in the small-M kernel. Each must be found, or the checks are blind."""

from __future__ import annotations

import re
from dataclasses import dataclass

from upstream_patch.simulate.small_m import FILE
from upstream_patch.simulate.source import Kernel

STREAMS, ACTIVATIONS = "streams.cuh", "activations.cuh"
BARRIERS = re.compile(r"(?:__syncthreads\(\)|__syncwarp\(\)|copy_async_wait<[^>]*>\(\));")
_PLAIN = "rows of scales that 16-byte copies do not reach are stored by the lanes, and a block barrier follows"
EQUIVALENT = {
    (
        False,
        "copy_async_wait<kStages - 2>(); // the first scales; later ones are covered by the waits for weights",
    ): _PLAIN,
    (False, "copy_async_wait<0>(); // too few chunks went by to cover what the next phase needs"): _PLAIN,
}
"""Barriers whose removal changes nothing, by (regular shape, text of the line), each with its proof."""


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
)


@dataclass(frozen=True)
class Barrier:
    """One barrier of the kernel, and the kernel without it."""

    line: int
    text: str
    """The whole line, which tells it from others: what ``EQUIVALENT`` goes by."""
    kernel: Kernel


def without_each_barrier(kernel: Kernel) -> tuple[Barrier, ...]:
    """Every ``__syncthreads``, ``__syncwarp`` and ``copy_async_wait`` of the kernel's file, one deleted at a time."""
    text = kernel.files[FILE]
    found = []
    seen: dict[str, int] = {}
    for match in BARRIERS.finditer(text):
        occurrence = seen.get(match.group(), 0)
        seen[match.group()] = occurrence + 1
        line = text.count("\n", 0, match.start()) + 1
        name = f"line {line} without {match.group()}"
        found.append(
            Barrier(line, text.split("\n")[line - 1].strip(), kernel.edited(name, FILE, match.group(), "", occurrence))
        )
    return tuple(found)
