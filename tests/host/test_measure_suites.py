"""The suites as data: does small-m hold what the evidence needs, and are cold weights cold?"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from upstream_patch import kernels
from upstream_patch.contribution import m5
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.kernels.tuning import FORMATS
from upstream_patch.machine import Gpu, Machine
from upstream_patch.measure.bench import run_suite
from upstream_patch.measure.inputs import Weights, cold_copies, last_level_cache
from upstream_patch.measure.model_shapes import CONFIGS, projections
from upstream_patch.measure.suites import (
    LLAMA_8B,
    MODEL_PASSES,
    PROFILES,
    ROWS,
    SLOPE,
    SUITES,
    Slope,
    profile_plan,
    suite,
)
from upstream_patch.problem import Problem, parse_problem
from upstream_patch.recording import record_bench
from upstream_patch.routing import route, stock_route

H200_L2 = 60 << 20


def test_small_m_holds_every_shape_row_count_and_layout() -> None:
    cold = {spec.problem.id for spec in suite("small-m").rows if (spec.cache, spec.order) == ("cold", "queue")}
    wanted = {
        Problem(m=m, n=n, k=k, layout=layout).id
        for k, n in [(4096, 1024), (4096, 4096), (4096, 14336), (14336, 4096), (4096, 28672), (4096, 128256)]
        for layout, rows in (("mk", (1, 2, 4, 7, 8, 16, 32)), ("b1k", (2, 8, 16)))
        for m in rows
    }
    assert len(wanted) == 60
    assert cold >= wanted | {Problem(m=32, n=n, k=k).id for k, n in ((8192, 8192), (4096, 6144))}
    assert {(spec.cache, spec.order) for spec in suite("small-m").rows} == {
        ("cold", "queue"),
        ("cold", "chain"),
        ("hot", "queue"),
    }
    chained = [spec.problem for spec in suite("small-m").rows if spec.order == "chain"]
    assert {(problem.k, problem.n, problem.m) for problem in chained} == {
        *((k, n, m) for k, n in ((4096, 4096), (4096, 28672), (14336, 4096)) for m in (1, 7, 8, 16)),
        *((4096, 1024, m) for m in (8, 16, 32)),
    }


def test_the_suites_of_formats_hold_every_one() -> None:
    few = [spec.problem for spec in suite("formats").rows]
    assert {(*p.weights_id.split(".")[1:], p.m) for p in few} >= {("mxfp4", "bf16", 8), ("b3", "g128", "bf16", 8)}
    assert {(p.bits, p.group_size, p.mode) for p in few} == set(FORMATS) - {(4, 64, "affine")}
    full = {(p.bits, p.group_size, p.mode, p.dtype, p.m) for p in (spec.problem for spec in suite("formats-full").rows)}
    assert full == {(*form, dtype, m) for form in FORMATS for dtype in ("bf16", "f16") for m in (1, 4, 8, 16, 32)}


def test_the_models_suite_holds_the_projections_of_five_models() -> None:
    shapes = {name: set(projections(config)) for name, config in CONFIGS.items()}
    assert shapes["llama-3.1-8b"] == {(4096, 4096), (4096, 1024), (4096, 14336), (14336, 4096), (4096, 128256)}
    assert shapes["llama-3.2-1b"] == {(2048, 2048), (2048, 512), (2048, 8192), (8192, 2048), (2048, 128256)}
    # as an inspected checkpoint has them: q with its gate and DeltaNet's q, k, v; k or v; o and DeltaNet's output; ...
    assert shapes["qwen3.5-4b"] == {
        *((2560, n) for n in (8192, 1024, 4096, 32, 9216, 248320)),
        *((k, 2560) for k in (4096, 9216)),
    }
    assert shapes["qwen3.6-27b"] == {
        *((5120, n) for n in (12288, 1024, 10240, 6144, 48, 17408, 248320)),
        *((k, 5120) for k in (6144, 17408)),
    }
    assert shapes["gemma-2-9b"] == {
        *((3584, n) for n in (4096, 2048, 14336, 256000)),
        *((k, 3584) for k in (4096, 14336)),
    }
    rows = {(row.problem.k, row.problem.n, row.problem.m) for row in suite("models").rows}
    assert rows == {(k, n, m) for those in shapes.values() for k, n in those for m in (1, 8, 16)}


def test_the_boundary_suite_has_both_sides_of_every_change() -> None:
    device = (9, 0)
    rows = [row.problem for row in suite("boundary").rows]
    assert {p.m for p in rows if (p.layout, p.n, p.bits) == ("mk", 4096, 4)} == set(range(1, 34))
    for kind in {(p.layout, p.n, p.bits) for p in rows}:
        measured = {p.m: p for p in rows if (p.layout, p.n, p.bits) == kind}
        one = next(iter(measured.values()))
        taken = {m: _taken(one.model_copy(update={"m": m}), device) for m in range(1, 34)}
        changes = [m for m in range(2, 34) if taken[m] != taken[m - 1]]
        assert len(changes) > 2
        assert {side for m in changes for side in (m - 1, m)} <= measured.keys()
    assert {stock_route(p, device) for p in rows} == {"qmv", "qmm_sm80", "qmm_naive"}


def _taken(problem: Problem, device: tuple[int, int]) -> tuple[str, str, str]:
    """Route, stock's kernel and our instance with its blocks of rows."""
    ours = ""
    if route(problem, device) == "small_m":
        variant, launch = kernels.small_m_variant(problem, device, 132)
        ours = f"{variant.name} {launch.grid[1]}"
    return route(problem, device), stock_route(problem, device), ours


@pytest.mark.parametrize("name", [name for name, known in SUITES.items() if known.where == "cuda"])
def test_hot_weights_fit_the_smallest_cache(name: str) -> None:
    assert all(row.problem.packed_bytes < 24e6 / 2 for row in suite(name).rows if row.cache == "hot")


@pytest.mark.parametrize("name", SUITES)
def test_rows_have_ids_of_their_own_and_rounds_are_balanced(name: str) -> None:
    rows = suite(name).rows
    ids = [row.id for row in rows]
    assert len(set(ids)) == len(ids)
    assert all(parse_problem(row.problem.id) == row.problem for row in rows)
    assert suite(name).rounds % 6 == 0


def test_the_request_is_a_suite_of_an_m5_with_its_own_protocol() -> None:
    request = suite("request-metal")
    assert request.where == "m5"
    assert [name for name, known in SUITES.items() if known.where != "cuda"] == ["request-metal"]
    assert [(row.problem.k, row.problem.n, row.problem.m) for row in request.rows] == [
        *((2048, 2048, 22), (4096, 4096, 16), (768, 4096, 16), (256, 4096, 16), (10752, 2048, 85), (14336, 4096, 33)),
        *((256, 4096, 40), (17408, 5120, 56), (5120, 17408, 28), (4096, 4096, 512), (4096, 14336, 8)),
    ]
    assert {(row.problem.dtype, row.problem.bits, row.problem.group_size) for row in request.rows} == {("bf16", 4, 64)}
    assert {(row.cache, row.order) for row in request.rows} == {("hot", "chain")}
    assert Slope(64, 8, 3, 8, 12) == SLOPE
    assert {one.name: one.tokens for one in MODEL_PASSES} == {
        "d1-3B-4bit": (85, 643),
        "LFM2.5-1.2B-Instruct-4bit": (32,),
        "Llama-3.2-1B-Instruct-4bit": (128, 512),
        "Qwen3.5-4B-4bit": (32, 128),
        "Qwen3.6-27B-4bit": (32, 128),
        "Qwen3.6-35B-A3B-4bit": (128,),
    }


def test_the_suite_of_another_machine_says_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_gpu() -> None:
        raise MissingTool("no Apple GPU", "an M5")

    monkeypatch.setattr(m5, "need_record", no_gpu)
    with pytest.raises(MissingTool, match=r"^suite request-metal runs on an M5 only \(no Apple GPU\): an M5$"):
        record_bench("bench", "request-metal")
    with pytest.raises(UserError, match="suite request-metal is not for CUDA"):
        run_suite("request-metal")


def test_the_profile_plan_is_stock_and_ours_at_every_row_count() -> None:
    plan = profile_plan("ncu")
    assert {(item.problem.k, item.problem.n) for item in plan} == {(4096, 28672), (4096, 128256)}
    for shape in ((4096, 28672), (4096, 128256)):
        for m in (1, 4, 7, 8, 16):
            arms = [item.arm for item in plan if (item.problem.k, item.problem.n) == shape and item.problem.m == m]
            assert arms == ["stock", "ours"]
    assert {item.problem.layout for name in PROFILES for item in PROFILES[name]} == {"mk"}


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(
        UserError, match="no suite 'x'; known: small-m, formats, formats-full, models, boundary, request-metal, smoke"
    ):
        suite("x")
    with pytest.raises(UserError, match="no profile plan 'x'; known: ncu"):
        profile_plan("x")


@pytest.mark.parametrize(("k", "n"), LLAMA_8B)
@pytest.mark.parametrize("l2", [H200_L2, 24 << 20])
def test_cold_copies_exceed_three_caches_and_no_more_than_needed(k: int, n: int, l2: int) -> None:
    problem = Problem(m=1, n=n, k=k)
    copies = cold_copies(problem, l2)
    assert copies >= 2
    assert copies * problem.packed_bytes > 3 * l2
    assert copies == 2 or (copies - 1) * problem.packed_bytes <= 3 * l2


def test_the_rotation_goes_on_across_samples() -> None:
    triples: list[Any] = [("w", i, 0) for i in range(5)]
    weights = Weights(Problem(m=1, n=128, k=64), triples)
    used = [triple[1] for n in (3, 1, 7, 2) for triple in weights.turn(n, hot=False)]
    assert used == [i % 5 for i in range(13)]
    assert weights.turn(4, hot=True) == [triples[0]] * 4
    assert weights.turn(1, hot=False)[0][1] == 13 % 5


def _machine(l2: int | None) -> Machine:
    gpu = Gpu(name="NVIDIA H200", vendor="nvidia", multiprocessors=132, l2_bytes=l2)
    return Machine(os="Linux", arch="x86_64", cpu="cpu", cpu_count=2, memory_bytes=1, python="3.12", gpu=gpu)


def test_the_lists_need_no_mlx() -> None:
    code = "import sys; sys.modules['mlx'] = None; import upstream_patch.measure.suites as s; print(s.LLAMA_8B, s.ROWS)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == f"{LLAMA_8B} {ROWS}", done.stderr


def test_an_unknown_cache_is_not_guessed() -> None:
    assert last_level_cache(_machine(H200_L2)) == H200_L2
    with pytest.raises(MissingTool, match=r"L2 cache is unknown: .*doctor"):
        last_level_cache(_machine(None))
