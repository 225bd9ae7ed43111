"""What our staged Metal kernels hold in a lane's arrays stays in registers: an optimizing compiler needs no memory."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from upstream_patch.kernels.metal import IMPLEMENTATION, path_of
from upstream_patch.simulate import Kernel
from upstream_patch.simulate.library import _COMMON, _FRONT, _HERE, _sources, compiler
from upstream_patch.simulate.metal.staged_mutations import mutable_kernel

pytestmark = pytest.mark.needs_metal_front

# What the simulator's own matrix product takes by address, scalars that a lambda takes, and MLX's tile of weights,
# which its own loader fills. Arrays of ours would be [N x ...] or a StagedWeights.
_NOT_OURS = re.compile(
    r'ptr|i\d+|%class\.anon[.\d]*|%"struct\.(?:lane_sim|mpp)::[\w:.]+"|%"struct\.mlx::steel::integral_constant[.\d]*"'
    r'|%"struct\.mlx::steel::NAXTile[.\d]*"'
)


def in_memory(kernel: Kernel, folder: Path) -> set[str]:
    """Types, as LLVM names them, of what of ours the optimizer leaves in memory."""
    for name, text in kernel.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder / "unit.cpp").write_text(kernel.unit, encoding="utf-8")
    options = [option for option in _COMMON if option != "-g1"]
    made = ("-O2", "-fno-sanitize=all", "-S", "-emit-llvm", "unit.cpp", "-o", "unit.ll")
    command = [*compiler("metal").command, *options, *_sources("metal"), *_FRONT["metal"], *_HERE["metal"], *made]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    kinds = re.findall(r" = alloca (\[[^\]]*\]|[^,\n]+)", (folder / "unit.ll").read_text("utf-8"))
    assert any("cooperative_tensor" in kind for kind in kinds)
    return {kind for kind in kinds if not _NOT_OURS.fullmatch(kind)}


@pytest.mark.parametrize("launch", ["whole", "parts"])
def test_lanes_arrays_stay_in_registers(launch: str, tmp_path: Path) -> None:
    kernel = mutable_kernel("whole" if launch == "whole" else "parts")
    assert in_memory(kernel, tmp_path) == set()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("words[i] = from[i]", "words[(i + column) % bits] = from[i]"),
        ("now[i] = next[i]", "now[i] = next[i ^ (k >> 6 & 1)]"),
    ],
)
def test_an_index_that_varies_is_seen(old: str, new: str, tmp_path: Path) -> None:
    changed = mutable_kernel("whole").edited("an index that varies", path_of(IMPLEMENTATION), old, new)
    assert len(in_memory(changed, tmp_path)) > 0
