"""The series on MLX's real text, as far as a wheel has it: headers patched, run and asked for names."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from upstream_patch.errors import UserError
from upstream_patch.kernels.metal import FILES, FOLDER, Staged, instances
from upstream_patch.problem import Problem
from upstream_patch.reference import from_bits
from upstream_patch.series import State, load
from upstream_patch.series.contributions import new_text
from upstream_patch.series.model import Contribution
from upstream_patch.series.proof import Wheel, installed_wheel, on_wheel, patched_headers
from upstream_patch.simulate import Kernel, Placement
from upstream_patch.simulate.metal.launches import launch_of, run_matmul
from upstream_patch.simulate.metal.source import Instance, metal_kernel
from upstream_patch.simulate.metal.staged import run_staged
from upstream_patch.simulate.metal.stock import FLAT, HEADERS, LAYOUTS, Layout, Quantization, make_operands

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
    edits = [row for row in rows if row.item.name != "new"]
    seen = {row.item.name: (row.item.state, row.proof) for row in edits if row.item.file == NAX}
    assert seen == dict.fromkeys(("kernels", "call"), (State.APPLIES, "wheel 0.32.4"))
    assert {row.item.state for row in edits if row.item.file != NAX} == {State.UNSEEN}
    assert [row.item.state for row in on_wheel([METAL], None) if row.item.file == NAX] == [State.UNSEEN] * 2


def test_an_anchor_that_the_wheel_lost_is_a_conflict(wheel: Wheel, tmp_path: Path) -> None:
    (tmp_path / NAX).parent.mkdir(parents=True)
    lost = (wheel.include / NAX).read_bytes().replace(b"<metal_stdlib>", b"<metal_math>")
    (tmp_path / NAX).write_bytes(lost + b"// caf\xe9\n")  # any byte may stand in it
    other = Wheel(tmp_path, "0.33.0")
    row, _ = (row for row in on_wheel([METAL], other) if row.item.file == NAX)
    assert (row.item.state, row.proof) == (State.CONFLICT, "wheel 0.33.0, not the base")
    with pytest.raises(UserError, match=r"stands 0 times, nearest .*line 4: #include <metal_math>"):
        patched_headers([METAL], tmp_path / "patched", other)


def bare(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"//[^\n]*", "", text))


def test_the_call_is_that_of_the_kernel_which_the_simulator_tries() -> None:
    """Character by character, but for the name of the tiles: one kernel, two entries."""
    own = bare((FOLDER / FILES[False]).read_text(encoding="utf-8"))
    body = own[own.index("if (batched)") : own.rindex("}")].strip()
    assert body.replace(" Ws,", " tiles,") in bare(lines_of(METAL, "call"))


Q = Quantization(4, 64, "bf16")
"""Of which the unchanged header runs, too; of the two others ours is compared with our own file's kernel elsewhere."""


@pytest.fixture(scope="module")
def patched(wheel: Wheel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return patched_headers([METAL], tmp_path_factory.mktemp("patched") / "include", wheel)


@pytest.fixture(scope="module")
def changed(patched: Path) -> Kernel:
    """All instances of MLX's kernel from the wheel's own header with our edits, and our split-K beside them."""
    split = Staged(4, 64, "bf16", 32, split=True)
    calls = [*Q.instances("nax"), Instance(split.function, split.template_arguments)]
    return metal_kernel("patched_nax", calls, headers=HEADERS["nax"], root=patched)


def test_the_kernels_that_gather_are_as_they_were(wheel: Wheel, patched: Path) -> None:
    before, after = ((root / NAX).read_text(encoding="utf-8") for root in (wheel.include, patched))
    own, gather = "[[kernel]] void affine_qmm_t_nax(", "affine_gather_qmm_t_nax("
    assert before.index(own) < before.index(gather)
    assert after[after.index(gather) :] == before[before.index(gather) :]


SHAPES = [(9, 32, FLAT), (70, 64, FLAT), (20, 32, LAYOUTS[-1]), (33, 64, LAYOUTS[-1])]


@pytest.mark.needs_metal_front
@pytest.mark.parametrize(("m", "rows", "layout"), SHAPES)
def test_mlxs_kernel_is_staged_and_gives_the_bits_that_it_gave(
    m: int, rows: int, layout: Layout, changed: Kernel
) -> None:
    """As MLX launches it, in threadgroups of (32, 2, 2): one barrier a step instead of two and one at the end."""
    operands = make_operands(Problem(m=m, n=128, k=192), layout)
    before, after = (run_matmul("nax", operands, rows, Placement(), kernel=each) for each in (None, changed))
    assert (before.report.faults, after.report.faults) == ((), ())
    np.testing.assert_array_equal(after.outputs[0], before.outputs[0])
    groups = 2 * -(-m // rows) * len(operands.batch)
    assert (before.report.stats.barriers, after.report.stats.barriers) == (groups * 7, groups * 3)


@pytest.mark.needs_metal_front
def test_what_cannot_be_staged_keeps_mlxs_schedule(changed: Kernel, patched: Path) -> None:
    """An x off by two bytes, which the host code sends where N is not aligned; such an N; and float32."""
    operands = make_operands(Problem(m=33, n=128, k=192))
    off = Placement(offsets=(2, 0, 0, 0))
    before = run_matmul("nax", operands, 64, Placement()).outputs[0]
    unaligned = launch_of("nax", operands.problem, FLAT, 64, aligned=False)
    moved = run_matmul("nax", operands, 64, off, kernel=changed, launch=unaligned)
    assert (moved.report.faults, moved.report.stats.barriers) == ((), 2 * 7)
    np.testing.assert_array_equal(moved.outputs[0], before)
    wrong = run_matmul("nax", operands, 64, off, kernel=changed)
    assert wrong.report.faults[0].kind == "misaligned"
    single = Quantization(4, 64, "f32").nax(True, False, 64)
    stock, ours = (metal_kernel("one_f32", [single], headers=HEADERS["nax"], root=at) for at in (None, patched))
    for problem, kernels in (
        (Problem(m=9, n=100, k=192), (None, changed)),
        (Problem(m=9, n=128, k=192, dtype="f32"), (stock, ours)),
    ):
        given = make_operands(problem)
        theirs, same = (run_matmul("nax", given, 64, Placement(), kernel=each) for each in kernels)
        assert (same.report.faults, same.report.stats.barriers) == ((), 2 * 7)
        np.testing.assert_array_equal(same.outputs[0], theirs.outputs[0])


@pytest.mark.needs_metal_front
def test_split_k_runs_beside_it(changed: Kernel) -> None:
    operands = make_operands(Problem(m=9, n=64, k=256))
    parts = run_staged(Staged(4, 64, "bf16", 32, split=True), operands, 2, kernel=changed)
    whole = run_matmul("nax", operands, 32, Placement(), kernel=changed)
    assert parts.report.faults == ()
    summed = parts.outputs[0].view(np.float32).sum(0)
    np.testing.assert_allclose(summed, from_bits(whole.outputs[0][0], "bf16"), rtol=1e-2, atol=1e-2)


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
        each.host_name: f"{each.function},{each.template_arguments}".replace(" ", "")
        for each in instances()
        if each.split
    }


@pytest.mark.needs_host_code
def test_the_metal_host_code_compiles_against_mlxs_headers(wheel: Wheel, root: Path, tmp_path: Path) -> None:
    """What no wheel has of MLX's Metal host code stands in as declarations of ours."""
    for file in METAL.files:
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file.path).write_text(new_text(file))
    source = root / "tests" / "data" / "host_code" / "metal" / "compiled.cpp"
    lines = root / "upstream_patch" / "series" / "metal"
    options = ["-std=c++20", "-fsyntax-only", "-Wall", "-Werror", "-Wno-unused-function"]
    include = ["-I", str(lines), "-isystem", str(wheel.include), "-I", str(tmp_path)]
    done = subprocess.run(["g++", *options, *include, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
