"""The staged Metal kernels as ``mx.fast.metal_kernel`` takes them: one header string, a body, the names of operands.

MLX's own headers are read from ``root``, the include folder of an installed wheel, when they are asked for.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from upstream_patch.errors import UserError
from upstream_patch.kernels.metal import IMPLEMENTATION, TYPES, Staged, path_of, sources

OUTPUT = "y"
PREAMBLE = path_of("utils.h")
"""``mx.fast`` puts this header, and what it includes, before every kernel."""
_SCALARS = ("K", "N", "M", "partition", "stride")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[^\n]*\n', re.MULTILINE)
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*\n", re.MULTILINE)
_BUILT_INS = {
    "simdgroup_index_in_threadgroup": "uint",
    "thread_index_in_threadgroup": "uint",
    "threadgroup_position_in_grid": "uint3",
}
"""Those that our bodies name, in the order in which ``mx.fast`` declares them."""


def input_names(instance: Staged) -> tuple[str, ...]:
    """In the order of the call. From K on they are int32 scalars, arrays without axes; all count elements.

    ``partition``: columns of K of each part. ``stride``: from one part's output to the next, M x N.
    """
    names = ("w", "scales", "biases", "x", "K", "N", "M")
    return (*names, "partition", "stride") if instance.split else names


@cache
def header(root: Path) -> str:
    """What stands before every kernel: MLX's headers that its preamble lacks, then our implementation.

    Raises UserError where MLX's headers are not there.
    """
    preamble = _closure(PREAMBLE, root)
    whole = _closure(path_of(IMPLEMENTATION), root)
    texts = (_ONCE.sub("", _INCLUDE.sub("", text)) for path, text in whole.items() if path not in preamble)
    return "".join(text if text.endswith("\n") else f"{text}\n" for text in texts)


def _closure(entry: str, root: Path) -> dict[str, str]:
    """Path -> text of a header and all that it includes by a quoted path, the included ones first."""
    own = sources()
    found: dict[str, str] = {}

    def visit(path: str) -> None:
        text = own.get(path) or _read(root / path)
        for included in _INCLUDE.findall(text):
            if included not in found:
                visit(included)
        found[path] = text

    visit(entry)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise UserError(f"MLX's header {path.name} cannot be read ({error.strerror}): install MLX again") from None


def body(instance: Staged) -> str:
    """The kernel's body, without braces; ``mx.fast`` writes the signature from the operands and the names in it."""
    kind = TYPES[instance.dtype]
    batch = f"""qmm_t_nax_staged_batch<{kind}>(
    w, scales, biases, x, y, int64_t(M) * N,
    x_ndim - 2, x_shape, x_strides, w_ndim - 2, w_shape, w_strides, scales_strides, biases_strides,
    threadgroup_position_in_grid.z);
"""
    out, at, span = kind, "y", "0, K"
    if instance.split:
        out, at = "float", "y + int64_t(threadgroup_position_in_grid.z) * stride"
        span = "int(threadgroup_position_in_grid.z) * partition, int(threadgroup_position_in_grid.z + 1) * partition"
    arguments = f"{kind}, {out}, {instance.group_size}, {instance.bits}, {instance.bm}"
    return f"""threadgroup metal::vec<{kind}, 4> Ws[qmm_t_nax_staged_vectors<{kind}>()];
{batch if instance.batched else ""}qmm_t_nax_staged_impl<{arguments}>(
    w, scales, biases, x, {at}, Ws, K, N, M, {span},
    threadgroup_position_in_grid, thread_index_in_threadgroup, simdgroup_index_in_threadgroup);
"""


def parameters(instance: Staged) -> tuple[str, ...]:
    """The parameters that ``mx.fast`` makes of the body, in the order of their buffers, as Metal text without numbers.

    After an array come its shape, its strides and its number of axes, each where the body names it.
    """
    text = body(instance)
    kind = TYPES[instance.dtype]
    found = []
    for name in input_names(instance):
        if name in _SCALARS:
            found.append(f"const constant int32_t& {name}")
            continue
        found.append(f"const device {'uint32_t' if name == 'w' else kind}* {name}")
        facts = (("int*", "shape"), ("int64_t*", "strides"), ("int&", "ndim"))
        found += [f"const constant {of} {name}_{fact}" for of, fact in facts if f"{name}_{fact}" in text]
    return (*found, f"device {'float' if instance.split else kind}* {OUTPUT}")


def function(instance: Staged) -> str:
    """The kernel as ``mx.fast`` writes it, under the instance's host name."""
    numbered = [f"{text} [[buffer({number})]]" for number, text in enumerate(parameters(instance))]
    built_in = [f"{of} {name} [[{name}]]" for name, of in _BUILT_INS.items()]
    listed = ",\n".join(f"  {each}" for each in (*numbered, *built_in))
    return f"[[kernel]] void {instance.host_name}(\n{listed}) {{\n{body(instance)}}}\n"


def source(instance: Staged, root: Path) -> str:
    """The whole text that ``mx.fast.metal_kernel`` compiles after MLX's preamble."""
    return header(root) + function(instance)
