"""The staged Metal kernels as ``mx.fast.metal_kernel`` takes them: one header string, a body, the names of operands.

MLX's own headers are read from ``root``, the include folder of an installed wheel, when they are asked for.
"""

from __future__ import annotations

from pathlib import Path

from upstream_patch.kernels.metal import Staged

OUTPUT = "y"


def input_names(instance: Staged) -> tuple[str, ...]:
    """In the order of the call. From K on they are int32 scalars; ``partition`` and ``stride`` count elements."""
    names = ("w", "scales", "biases", "x", "K", "N", "M")
    return (*names, "partition", "stride") if instance.split else names


def header(root: Path) -> str:
    """All that stands before the kernel: MLX's headers that its own preamble lacks, then ours. The same for all."""
    raise NotImplementedError


def body(instance: Staged) -> str:
    """The kernel's body; ``mx.fast`` writes the signature from the operands and the built-in values named in it."""
    raise NotImplementedError


def source(instance: Staged, root: Path) -> str:
    """The whole text that ``mx.fast.metal_kernel`` would compile, but for MLX's preamble: header, signature, body."""
    raise NotImplementedError
