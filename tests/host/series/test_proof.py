"""The series on MLX's real text, as far as a wheel has it: headers patched, run and asked for names."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from upstream_patch.errors import UserError
from upstream_patch.kernels.metal import Staged, instances
from upstream_patch.problem import Problem
from upstream_patch.reference import from_bits
from upstream_patch.series import State, load
from upstream_patch.series.contributions import new_text
from upstream_patch.series.model import Contribution
from upstream_patch.series.proof import Wheel, installed_wheel, on_wheel, patched_headers
from upstream_patch.simulate import Placement
from upstream_patch.simulate.metal.launches import run_matmul
from upstream_patch.simulate.metal.source import Instance, metal_kernel
from upstream_patch.simulate.metal.staged import run_staged
from upstream_patch.simulate.metal.stock import HEADERS, Quantization, make_operands

METAL = load("metal")
NAX = "mlx/backend/metal/kernels/quantized_nax.h"


@pytest.fixture(scope="module")
def wheel() -> Wheel:
    found = installed_wheel()
    if found is None:
        pytest.skip("no MLX wheel")
    return found


def test_edits_of_shipped_headers_are_seen_on_the_wheel_and_others_are_not_claimed(wheel: Wheel) -> None:
    rows = on_wheel([load(name) for name in ("cuda", "folding", "metal")], wheel)
    seen = {row.item.file: (row.item.state, row.proof) for row in rows if row.item.name != "new"}
    assert seen[NAX] == (State.APPLIES, "wheel 0.32.4")
    assert {state for file, (state, _) in seen.items() if file != NAX} == {State.UNSEEN}
    assert [row.item.state for row in on_wheel([METAL], None) if row.item.file == NAX] == [State.UNSEEN]


def test_an_anchor_that_the_wheel_lost_is_a_conflict(wheel: Wheel, tmp_path: Path) -> None:
    (tmp_path / NAX).parent.mkdir(parents=True)
    lost = (wheel.include / NAX).read_bytes().replace(b"<metal_stdlib>", b"<metal_math>")
    (tmp_path / NAX).write_bytes(lost + b"// caf\xe9\n")  # any byte may stand in it
    other = Wheel(tmp_path, "0.33.0")
    (row,) = [row for row in on_wheel([METAL], other) if row.item.file == NAX]
    assert (row.item.state, row.proof) == (State.CONFLICT, "wheel 0.33.0, not the base")
    with pytest.raises(UserError, match=r"stands 0 times, nearest .*line 4: #include <metal_math>"):
        patched_headers([METAL], tmp_path / "patched", other)


@pytest.mark.needs_metal_front
def test_the_kernels_run_from_the_wheels_own_patched_header(wheel: Wheel, tmp_path: Path) -> None:
    """As MLX would compile them: quantized_nax.h brings ours beside its own, and both give the same bits."""
    root = patched_headers([METAL], tmp_path / "include", wheel)
    quantization = Quantization(4, 64, "bf16")
    whole, split = Staged(4, 64, "bf16", 32), Staged(4, 64, "bf16", 32, split=True)
    calls = [Instance(kind.function, kind.template_arguments) for kind in (whole, split)]
    patched = metal_kernel(
        "patched_nax", [quantization.nax(True, False, 32), *calls], headers=HEADERS["nax"], root=root
    )
    operands = make_operands(Problem(m=9, n=64, k=256))
    stock = run_matmul("nax", operands, 32, Placement(), kernel=patched)
    staged = run_staged(whole, operands, kernel=patched)
    parts = run_staged(split, operands, 2, kernel=patched)
    assert [run.report.faults for run in (stock, staged, parts)] == [(), (), ()]
    np.testing.assert_array_equal(staged.outputs[0], stock.outputs[0])
    summed = parts.outputs[0].view(np.float32).sum(0)
    np.testing.assert_allclose(summed, from_bits(stock.outputs[0][0], "bf16"), rtol=1e-2, atol=1e-2)


def lines_of(contribution: Contribution, name: str) -> str:
    return next(edit.lines for edit in contribution.edits if edit.name == name)


@pytest.mark.skipif(shutil.which("cpp") is None, reason="no C preprocessor")
def test_a_build_ahead_has_every_instance_under_the_name_that_the_host_code_forms() -> None:
    wanted = "#define instantiate_kernel(name, ...) AHEAD name FUNCTION __VA_ARGS__ END\n"
    text = subprocess.run(
        ["cpp", "-P"], input=wanted + lines_of(METAL, "instances"), capture_output=True, text=True, check=True
    ).stdout
    made = {
        "".join(re.findall(r'"([^"]*)"', name)): re.sub(r"\s", "", arguments)
        for name, arguments in re.findall(r"AHEAD (.*?) FUNCTION (.*?) END", text, re.DOTALL)
    }
    assert made == {
        each.host_name: f"{each.function},{each.template_arguments}".replace(" ", "") for each in instances()
    }


@pytest.mark.needs_host_code
def test_the_metal_host_code_compiles_against_mlxs_headers(wheel: Wheel, root: Path, tmp_path: Path) -> None:
    """What no wheel has of MLX's Metal host code stands in as declarations of ours."""
    for file in METAL.files:
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file.path).write_text(new_text(file))
    source = root / "tests" / "data" / "host_code" / "metal_surroundings.cpp"
    lines = root / "upstream_patch" / "series" / "metal"
    options = ["-std=c++20", "-fsyntax-only", "-Wall", "-Werror", "-Wno-unused-function"]
    include = ["-I", str(tmp_path), "-I", str(lines), "-isystem", str(wheel.include)]
    done = subprocess.run(["g++", *options, *include, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
