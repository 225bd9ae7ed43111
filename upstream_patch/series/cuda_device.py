"""What MLX gets as ``mlx/backend/cuda/device/qmm_small_m.cuh``: the kernel's files in one, and what is launched."""

from __future__ import annotations

import re
from pathlib import Path

from upstream_patch.kernels import closure

NAMESPACE = "mlx::core::cu"
_FOLDER = Path(__file__).parent / "cuda"
_OURS = re.compile(r'^[ \t]*#[ \t]*(?:include[ \t]+"[^"]+"|pragma once)[ \t]*\n', re.MULTILINE)


def device_source() -> str:
    """One file, in MLX's namespace: what is in ``device/`` may include only what MLX's JIT knows by name."""
    kernel = "\n".join(_OURS.sub("", text).strip("\n") + "\n" for text in closure("small_m").values())
    launched = (_FOLDER / "qmm_small_m_kernel.cuh").read_text(encoding="utf-8")
    whole = f"#pragma once\n\n{kernel}\nnamespace upstream_patch {{\n\n{launched}\n}} // namespace upstream_patch\n"
    return re.sub(r"\bupstream_patch\b", NAMESPACE, whole)
