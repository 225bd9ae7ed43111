"""Carry a GPU kernel from "fast on my machine" to "merged upstream", with evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from upstream_patch.installing import install, installed, uninstall
    from upstream_patch.ops import quantized_matmul

__all__ = ["install", "installed", "quantized_matmul", "uninstall"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # mlx is imported only when an operation is asked for: facts, drafts and checks need no mlx.
    if name in __all__:
        from upstream_patch import installing, ops_metal

        return ops_metal.chosen() if name == "quantized_matmul" else getattr(installing, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
