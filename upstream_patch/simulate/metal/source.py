"""A unit of Metal kernels as the simulator takes it: lowered headers, and one entry for each instance of a template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.machine import CXX_FIX, MLX_HEADERS_FIX, Cxx, find_metal_cxx, find_mlx_headers
from upstream_patch.simulate.metal.lower import Constant, lower, lowered_headers, parameters
from upstream_patch.simulate.source import ARENA, Kernel


@dataclass(frozen=True)
class Instance:
    """One kernel function with its template arguments, as Metal text: ``affine_qmm_t_nax``, ``bfloat16_t, 64, 4``."""

    function: str
    arguments: str = ""

    @property
    def call(self) -> str:
        return f"{self.function}<{self.arguments}>" if self.arguments else self.function


def metal_compiler() -> Cxx:
    """Raises MissingTool where there is no clang, or one that is too old."""
    found = find_metal_cxx()
    if isinstance(found, str):
        raise MissingTool(f"the simulator's Metal front {found}", CXX_FIX)
    return found


def mlx_headers() -> Path:
    """The folder that ``mlx/backend/metal/kernels`` is in. Raises MissingTool where no MLX wheel is installed."""
    found = find_mlx_headers()
    if found is None:
        raise MissingTool("no MLX wheel whose Metal headers the simulator could run", MLX_HEADERS_FIX)
    return Path(found)


def metal_kernel(
    name: str,
    instances: Sequence[Instance],
    *,
    headers: Sequence[str] = (),
    text: str = "",
    root: Path | None = None,
    constants: Mapping[int, Constant] | None = None,
    own: Mapping[str, str] | None = None,
) -> Kernel:
    """Instances of the kernels of some headers, and of Metal ``text`` of our own that may use them, in one library.

    ``headers`` are paths below ``root``, in the order of their inclusion; without ``root``, below the installed MLX.
    ``own`` are headers of ours, by the path that they would have there.
    ``constants`` are the values of function constants by number. Raises UserError, see ``lower``, or MissingTool.
    """
    if not instances:
        raise UserError(f"{name}: no kernel to run")
    files = lowered_headers(root or mlx_headers(), headers, constants, own) if headers else {}
    unit_of = partial(_unit, name, tuple(instances), tuple(headers), text, constants)
    calls = tuple(instance.call for instance in instances)
    return Kernel(name, files, unit_of(files), 0, "metal", calls, unit_of)


def _unit(
    name: str,
    instances: Sequence[Instance],
    headers: Sequence[str],
    text: str,
    constants: Mapping[int, Constant] | None,
    files: Mapping[str, str],
) -> str:
    """What is compiled: the launches of ``instances``, bound as the signatures in ``files`` and ``text`` say."""
    sources = "\n".join([*files.values(), text])
    cases = []
    for number, instance in enumerate(instances):
        kinds = ", ".join(
            kind if kind.isdigit() else f"lane_sim::{kind}" for kind in parameters(sources, instance.function)
        )
        cases.append(
            f"    case {number}: {{\n      static constexpr int kinds[] = {{{kinds}}};\n"
            f"      return lane_sim::call(&{instance.call}, kinds, arguments + 1);\n    }}\n"
        )
    includes = "".join(f'#include "{header}"\n' for header in headers)
    return f"""#include "front.h"
{ARENA.format(element="char", name="lane_sim_memory")}
{includes}#line 1 "{name}.metal"
{lower(text, constants)}
extern "C" void lane_sim_call(void* const* arguments) {{
  switch (*static_cast<const int*>(arguments[0])) {{
{"".join(cases)}  }}
}}
"""
