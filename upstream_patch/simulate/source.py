"""A kernel as the simulator takes it: its files, the unit that calls it, and edits of both for mutation tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from upstream_patch.errors import UserError
from upstream_patch.kernels import Variant, closure

INTRINSICS = "intrinsics.cuh"
"""The one file of a CUDA kernel that the simulator replaces by its own."""
ARENA = """extern "C" {{
__attribute__((weak, aligned(16384))) {element} {name}[1048576 / sizeof({element})];
char* const lane_sim_arena = reinterpret_cast<char*>({name});
}}"""
"""Every unit's shared memory."""
_ARENA = re.compile(r"extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?([\w:\s]+?)\s+(\w+)\s*\[\s*\]\s*;")


Front = Literal["cuda", "metal"]
KNOWN_MLX = "MLX 0.32.4 (pip install 'mlx[cpu]==0.32.4')"
"""The version whose Metal headers are known to lower; others may."""


@dataclass(frozen=True)
class Kernel:
    """One library: ``files`` are written as they are, by their paths; ``unit`` is the text that is compiled."""

    name: str
    files: Mapping[str, str]
    unit: str
    shared_bytes: int
    """Dynamic shared memory of a block."""
    front: Front = "cuda"
    instances: tuple[str, ...] = ()
    """What a Metal library can launch, by the number that its first argument gives."""
    unit_of: Callable[[Mapping[str, str]], str] | None = field(default=None, compare=False, repr=False)
    """The unit of other files: that of a Metal kernel binds what its signature there says."""
    many_launches: bool = False
    """Worth optimizing: compiling takes two to three times as long then, and launches half the time."""

    @property
    def named_barriers(self) -> bool:
        """Whether some of a block's warps may meet without the others."""
        return any("__barrier_sync" in text for text in (self.unit, *self.files.values()))

    def edited(self, name: str, file: str, old: str, new: str, occurrence: int | None = None) -> Kernel:
        """A copy with one piece of a file replaced: the only one, or the one of that number, counted from 0."""
        text = self.files[file]
        places = [match.start() for match in re.finditer(re.escape(old), text)]
        if not places or (occurrence is None and len(places) > 1) or (occurrence or 0) >= len(places):
            raise UserError(f"{self.name}: {old!r} is {len(places)} times in {file}; the mutation does not fit it")
        at = places[occurrence or 0]
        changed = text[:at] + new + text[at + len(old) :]
        files = {**self.files, file: changed}
        unit = self.unit if self.unit_of is None else self.unit_of(files)
        return replace(self, name=f"{self.name}:{name}", files=files, unit=unit, many_launches=False)


def cuda_kernel(name: str, files: Mapping[str, str], function: str, shared_bytes: int) -> Kernel:
    """``function`` is the CUDA text of ``extern "C" __global__ void name(...)``; ``files`` are included before it.

    Every file is compiled unchanged, but the simulator's own intrinsics header stands in for the real one.
    """
    own = {file: text for file, text in files.items() if file != INTRINSICS}
    arenas = set(_ARENA.findall("\n".join([*own.values(), function])))
    if len(arenas) > 1:
        names = ", ".join(sorted(arena for _, arena in arenas))
        raise UserError(f"{name}: one declaration of the dynamic shared memory, please, not {names}")
    element, arena = arenas.pop() if arenas else ("char", "lane_sim_no_shared")
    includes = "".join(f'#include "{file}"\n' for file in own)
    unit = f"""#include "{INTRINSICS}"
{ARENA.format(element=element, name=arena)}
{includes}#line 1 "{name}.cu"
{function}
extern "C" void lane_sim_call(void* const* arguments) {{ lane_sim::call(&{name}, arguments); }}
extern "C" const char* lane_sim_parameters() {{ return lane_sim::parameters(&{name}); }}
"""
    return Kernel(name, own, unit, shared_bytes)


def small_m_kernel(variant: Variant) -> Kernel:
    """The small-M kernel, from the very files that the GPU runs."""
    kernel = cuda_kernel(variant.name, closure("small_m"), variant.entry_function(), variant.shared_bytes)
    return replace(kernel, many_launches=True)
