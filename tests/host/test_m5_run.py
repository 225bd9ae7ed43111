"""The stages of ``nox -s m5`` with the simulator in the Mac's place: what they find right, and what they find wrong."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

mx = pytest.importorskip("mlx.core", reason="needs MLX: pip install 'mlx[cpu]'")
from upstream_patch import ops, ops_metal  # noqa: E402
from upstream_patch.contribution import Context, Outcome, Result, run_chain  # noqa: E402
from upstream_patch.contribution import gb10 as gb10_stages  # noqa: E402
from upstream_patch.contribution import m5 as m5_stages  # noqa: E402
from upstream_patch.correctness.simulated_fast import SimulatedMetalKernel  # noqa: E402
from upstream_patch.errors import UserError  # noqa: E402
from upstream_patch.machine import Gpu, Machine  # noqa: E402
from upstream_patch.measure.m5 import bits, cases, layout, models, operators, slope  # noqa: E402
from upstream_patch.problem import Problem  # noqa: E402
from upstream_patch.records import facts, store  # noqa: E402
from upstream_patch.records.forward import Forward  # noqa: E402
from upstream_patch.records.kernel_hash import METAL, identity  # noqa: E402
from upstream_patch.records.schema import BenchBody  # noqa: E402
from upstream_patch.routing_metal import M5  # noqa: E402

pytestmark = pytest.mark.needs_metal_front
SMALL = Problem(m=8, n=2048, k=64)


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An M5 whose kernels the simulator runs, and whose stock kernels are ours."""
    made = (ops_metal._compiled, ops_metal._copy, ops_metal._sum)
    monkeypatch.setattr(ops_metal, "gpu", lambda: M5)
    monkeypatch.setattr(ops, "_on_gpu", lambda stream: True)
    monkeypatch.setattr(ops_metal, "_plans", {})
    monkeypatch.setattr(ops, "stock_quantized_matmul", ops_metal.staged_call)
    monkeypatch.setattr(mx.fast, "metal_kernel", SimulatedMetalKernel)
    for each in made:
        each.cache_clear()
    yield
    for each in made:
        each.cache_clear()


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "evidence").mkdir()
    console = Console(file=io.StringIO(), width=100)
    return Context(evidence=tmp_path / "evidence", out=tmp_path / "out", console=console, command="python -m x m5")


def stage(name: str, context: Context) -> Result:
    found = run_chain([each for each in m5_stages.stages() if each.name == name], context)
    return found[name]


def test_elsewhere_it_says_once_what_it_needs(context: Context) -> None:
    results = run_chain(m5_stages.stages(), context)
    assert results["machine"].outcome is Outcome.FAILED
    assert "Apple GPU of generation 17 or later" in results["machine"].detail
    rest = {name: each.detail for name, each in results.items() if name not in ("machine", "records verify")}
    assert list(rest) == ["layout", "bits", "tests", "tests without TF32", "correctness", "models", "operators"]
    assert set(rest.values()) == {"needs machine, which failed"}


def test_the_layout_of_the_simulator_is_the_one_expected(mac: None, context: Context) -> None:
    assert stage("layout", context).outcome is Outcome.RAN
    found = layout.probe()
    assert layout.is_a_layout(found) is None
    # two lanes that hold one another's elements: a layout, but another
    swapped = found.copy()
    swapped[:, [3, 4]] = found[:, [4, 3]]
    assert layout.is_a_layout(swapped) is None and layout.digest(swapped) != layout.digest(found)
    for wrong in (found[:, :31], found * 0, np.repeat(found[:1], 256, axis=0)):
        assert layout.is_a_layout(wrong) is not None


def test_another_layout_is_a_failure_that_keeps_what_was_found(
    mac: None, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = layout.probe()[:, ::-1]
    monkeypatch.setattr(layout, "probe", lambda: found)
    result = stage("layout", context)
    assert result.outcome is Outcome.FAILED and "another layout than MLX's kernels assume" in result.detail
    assert (context.out / "m5" / "layout.json").is_file()


def test_what_is_expected_is_what_the_simulator_says() -> None:
    """``python -m upstream_patch m5 --write-expected`` writes it anew."""
    known = bits.expected()
    for problem in bits.PROBLEMS:
        assert known[bits.key(problem, "exact")] == {"any": bits.digest(bits.simulated(problem, "exact"))}
    problem = bits.PROBLEMS[0]
    for sums, wanted in known[bits.key(problem, "normal")].items():
        assert bits.digest(bits.simulated(problem, "normal", sums)) == wanted  # type: ignore[arg-type]
    # on exact data the order does not matter, so that the hardware has no choice
    assert {bits.digest(bits.simulated(problem, "exact", sums)) for sums in ("descending", "truncating")} == {
        known[bits.key(problem, "exact")]["any"]
    }


def test_bits_through_the_public_way_are_the_expected_ones(
    mac: None, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bits, "AS_STOCK", (Problem(m=40, n=128, k=320, bits=6),))
    result = stage("bits", context)
    assert result.outcome is Outcome.RAN
    assert "1024x1024.b4.g64.bf16.M16 ascending" in result.detail
    monkeypatch.setattr(ops, "stock_quantized_matmul", lambda *a, **k: ops_metal.staged_call(*a, **k) * 2)
    assert stage("bits", context).detail == "320x128.b6.g64.bf16.M40: not the bits of stock"


def test_tests_run_in_a_process_each_with_its_own_setting(
    mac: None, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    answer = SimpleNamespace(returncode=0, stdout="2 tests ran\n", stderr="")

    def run(command: list[str], env: dict[str, str], **_: Any) -> Any:
        assert command[1:] == ["-m", "upstream_patch.measure.m5.mlx_tests"]
        asked.append(env.get("MLX_ENABLE_TF32"))
        return answer

    monkeypatch.setenv("MLX_ENABLE_TF32", "1")
    monkeypatch.setattr(subprocess, "run", run)
    assert stage("tests", context) == Result(Outcome.RAN, "2 tests ran")
    assert stage("tests without TF32", context).outcome is Outcome.RAN
    assert asked == [None, "0"]
    answer.returncode, answer.stdout = 1, "test_qmm_mid_m: wrong\n2 tests ran\n"
    assert stage("tests", context).detail == "2 lines, first: test_qmm_mid_m: wrong"


def test_a_case_is_judged_and_a_wrong_kernel_is_seen(mac: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "REPEATS", 2)
    sound = cases.run_case("small", SMALL, M5)
    assert (sound.check.passed, sound.repeats_equal, sound.rows_equal_alone, sound.written) == (True, 2, True, True)
    assert sound.kernels == ["affine_qmm_t_nax_staged_bfloat16_t_gs_64_b_4_bm32_bn64_bk64_wm2_wn2_alN_true_batch_0"]
    assert 0 < sound.check.max_ulp < 0.6
    right = ops_metal.quantized_matmul

    def next_row(x: Any, *rest: Any, **more: Any) -> Any:
        y = right(x, *rest, **more)
        return y + mx.roll(y, 1, axis=0) / 64

    monkeypatch.setattr(ops_metal, "quantized_matmul", next_row)
    wrong = cases.run_case("small", SMALL, M5)
    assert not wrong.check.passed and "past one rounding" in wrong.check.bound
    assert not wrong.rows_equal_alone and not wrong.written


def test_operators_become_a_record_with_facts_of_their_own_family(
    mac: None, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "REQUESTED", ())
    monkeypatch.setattr(operators, "WEIGHT_SETS", 2)
    monkeypatch.setattr(operators, "_read_gbps", lambda: 150.0)
    monkeypatch.setattr(slope, "CALLS", 2)
    monkeypatch.setattr(slope, "SHORT", 1)
    monkeypatch.setattr(slope, "slope_us", lambda chain: chain(1) and 2.0)
    monkeypatch.setattr(slope, "rounds", lambda arms: {"stock": [9.0] * 6, "ours": [3.0] * 6, "aa": [9.1] * 6})
    run_table = operators.run_table
    monkeypatch.setattr(operators, "run_table", lambda gpu, progress: run_table(gpu, (SMALL,), progress))
    mac_book = Machine(
        **{"os": "macOS 26.2", "arch": "arm64", "cpu": "Apple M5 Max", "cpu_count": 16, "memory_bytes": 2**36},
        python="3.12",
        gpu=Gpu(name="Apple M5 Max", vendor="Apple", multiprocessors=40),
    )
    monkeypatch.setattr("upstream_patch.recording.probe", lambda: mac_book)
    times = {"stock_ms": [9.0] * 8, "ours_ms": [4.0] * 8, "aa_ms": [9.0] * 8}
    forward = Forward(model="LFM2.5-1.2B-Instruct-4bit", tokens=32, logits_error=0.01, **times)
    monkeypatch.setattr(models, "run_models", lambda given: [forward])
    whole = m5_stages.stages(["folder/LFM2.5-1.2B-Instruct-4bit"])
    results = run_chain([each for each in whole if each.name in ("models", "operators")], context)
    assert results["models"] == Result(Outcome.RAN, "LFM2.5-1.2B-Instruct-4bit, 32 tokens: 9.0 -> 4.0 ms")
    assert results["operators"].outcome is Outcome.RAN, results["operators"].detail
    assert store.verify(context.evidence) == []
    (loaded,) = store.load_all(context.evidence)
    assert loaded.record.kernel == identity(METAL)
    body = loaded.record.body
    assert isinstance(body, BenchBody)
    assert body.forwards == [forward]
    (row,) = body.rows
    assert (row.route, row.protocol.order, row.protocol.copies) == ("qmm_t_nax, staged", "chain", 2)
    found = {fact.id: fact for fact in facts.derive([loaded])}
    assert found["forward.m5max.LFM2.5-1.2B-Instruct-4bit.T32.speedup"].value == pytest.approx(2.25)
    assert found["forward.m5max.LFM2.5-1.2B-Instruct-4bit.T32.verdict"].value == "FASTER"
    speedup = found["nax.m5max.64x2048.b4.g64.bf16.M8.hot.chain.speedup"]
    assert speedup.value == pytest.approx(3.0) and not speedup.stale
    changed = facts.derive([loaded], today=lambda name: "0" * 64)
    stale = {fact.id.rpartition(".")[2] for fact in changed if fact.id.startswith("forward.") and fact.stale}
    assert "ours_ms" in stale and "stock_ms" not in stale
    assert next(fact for fact in changed if fact.id == speedup.id).stale


def test_a_wrong_operator_is_not_timed(mac: None, monkeypatch: pytest.MonkeyPatch) -> None:
    right = ops_metal.staged_call
    monkeypatch.setattr(ops_metal, "staged_call", lambda *a, **k: right(*a, **k) * 1.1)
    with pytest.raises(UserError, match="needs a passed check"):
        monkeypatch.setattr(slope, "rounds", lambda arms: {"stock": [9.0] * 6, "ours": [3.0] * 6, "aa": [9.0] * 6})
        operators.run_table(M5, (SMALL,))


def test_gb10_runs_nothing_on_another_machine(context: Context) -> None:
    results = run_chain(gb10_stages.stages(), context)
    assert list(results) == ["health", *gb10_stages.NAMES]
    assert results["health"].outcome is Outcome.FAILED and "this is no NVIDIA GB10" in results["health"].detail
    assert all(each.detail == "needs health, which failed" for name, each in results.items() if name != "health")
