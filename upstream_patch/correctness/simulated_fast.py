"""``mx.fast.metal_kernel`` without a Mac: the same call, run by the simulator on this machine's CPU.

The signature is written from the call by the rules of MLX's documentation, so that what a body may name is what MLX
would give it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any

import numpy as np

from upstream_patch.errors import UserError
from upstream_patch.simulate import Buffer, Check, Kernel, Sums, run
from upstream_patch.simulate.metal import Instance, metal_kernel
from upstream_patch.simulate.metal.launches import SHARED_LIMIT

PREAMBLE = "mlx/backend/metal/kernels/utils.h"
"""MLX puts it before every kernel."""
CONSTANT = 8
"""An input of fewer elements is in the constant address space."""
_BUILT_INS = {
    "thread_position_in_grid": "uint3",
    "threadgroup_position_in_grid": "uint3",
    "thread_position_in_threadgroup": "uint3",
    "thread_index_in_threadgroup": "uint",
    "simdgroup_index_in_threadgroup": "uint",
    "thread_index_in_simdgroup": "uint",
}
_TYPES = {"bfloat16": "bfloat16_t", "float16": "float16_t", "float32": "float", "uint32": "uint32_t", "int32": "int"}
_STORED: dict[str, Any] = {"bfloat16": np.uint16, "float16": np.uint16, "float32": np.uint32}


class KernelFault(UserError):
    """The simulator found a fault in a kernel that was called through ``mx.fast``."""

    exit_code = 1


def _name(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


@dataclass
class SimulatedMetalKernel:
    """What ``mx.fast.metal_kernel`` returns; ``launches`` counts its calls."""

    name: str
    input_names: Sequence[str]
    output_names: Sequence[str]
    source: str
    header: str = ""
    ensure_row_contiguous: bool = True
    checks: Sequence[Check] = ("outputs", "bounds")
    sums: Sums = "ascending"
    launches: int = field(default=0, init=False)

    def __call__(
        self,
        *,
        inputs: Sequence[Any],
        output_shapes: Sequence[tuple[int, ...]],
        output_dtypes: Sequence[Any],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: Sequence[tuple[str, Any]] = (),
        init_value: float | None = None,
        stream: Any = None,
    ) -> list[Any]:
        """``grid`` counts threads; outputs begin as NaN, whatever ``init_value`` says.

        Raises KernelFault with the simulator's report.
        """
        import mlx.core as mx

        if any(threads % lanes for threads, lanes in zip(grid, threadgroup, strict=True)):
            raise UserError(f"{self.name}: the simulator has no threadgroups of unequal size, {grid} by {threadgroup}")
        arguments: list[Buffer | int | None] = []
        for name, array in zip(self.input_names, inputs, strict=True):
            arguments += self._argument(name, array)
        out = [
            Buffer(np.empty(shape, _STORED[_name(dtype)]), output=True)
            for shape, dtype in zip(output_shapes, output_dtypes, strict=True)
        ]
        kernel = self._kernel(tuple((_name(each.dtype), each.ndim, each.size) for each in inputs), template, out)
        found = run(
            kernel,
            [0, *arguments, *out],
            (grid[0] // threadgroup[0], grid[1] // threadgroup[1], grid[2] // threadgroup[2]),
            threadgroup,
            shared_limit=SHARED_LIMIT,
            checks=self.checks,
            sums=self.sums,
        )
        self.launches += 1
        if found.report.faults:
            raise KernelFault(str(found.report.faults[0]))
        return [mx.array(each).view(dtype) for each, dtype in zip(found.outputs, output_dtypes, strict=True)]

    def _argument(self, name: str, array: Any) -> list[Buffer | int | None]:
        """An input, and what the body names of its shape: contiguous, as no array of Python shows its strides."""
        import mlx.core as mx

        if array.ndim == 0:
            return [int(array.item())]
        kind = _name(array.dtype)
        data = np.array(array.view(mx.uint16)) if kind in ("bfloat16", "float16") else np.array(array)
        strides = [prod(array.shape[axis + 1 :]) for axis in range(array.ndim)]
        facts: dict[str, Buffer | int] = {
            "shape": Buffer(np.array(array.shape, np.int32)),
            "strides": Buffer(np.array(strides, np.int64)),
            "ndim": int(array.ndim),
        }
        return [Buffer(data), *(value for fact, value in facts.items() if f"{name}_{fact}" in self.source)]

    def _kernel(self, inputs: tuple[tuple[str, int, int], ...], template: Any, out: Sequence[Buffer]) -> Kernel:
        parameters = []
        for name, (kind, rank, size) in zip(self.input_names, inputs, strict=True):
            where = "constant" if size < CONSTANT else "device"
            parameters.append(f"const {where} {_TYPES[kind]}{'*' if rank else '&'} {name}")
            facts = (("int*", "shape"), ("int64_t*", "strides"), ("int&", "ndim")) if rank else ()
            parameters += [
                f"const constant {of} {name}_{fact}" for of, fact in facts if f"{name}_{fact}" in self.source
            ]
        return _unit(
            self.name,
            tuple(parameters),
            tuple(self.output_names),
            tuple((name, _TYPES[_name(of)]) for name, of in template),
            tuple(str(each.data.dtype) for each in out),
            self.header,
            self.source,
        )


@cache
def _unit(
    name: str,
    parameters: tuple[str, ...],
    outputs: tuple[str, ...],
    template: tuple[tuple[str, str], ...],
    stored: tuple[str, ...],
    header: str,
    body: str,
) -> Kernel:
    """The library of one kernel and the types that it is called with."""
    half = next((kind for kind in ("bfloat16_t", "float16_t") if kind in body or kind in dict(template).values()), "")
    of = {"uint16": half, "uint32": "float"}
    typed = [f"device {of[kind]}* {output}" for output, kind in zip(outputs, stored, strict=True)]
    numbered = [f"{text} [[buffer({number})]]" for number, text in enumerate((*parameters, *typed))]
    built_in = [f"{kind} {each} [[{each}]]" for each, kind in _BUILT_INS.items() if each in body]
    generic = f"template <{', '.join(f'typename {each}' for each, _ in template)}>\n" if template else ""
    text = f"{header}\n{generic}[[kernel]] void {name}({', '.join([*numbered, *built_in])}) {{\n{body}}}\n"
    instance = Instance(name, ", ".join(kind for _, kind in template))
    return metal_kernel(name, (instance,), headers=(PREAMBLE,), text=text)
