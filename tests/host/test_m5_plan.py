"""The plan of an M5's owner: whole, and seen to fail where a name or a shape is wrong."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("mlx.core", reason="needs MLX: pip install 'mlx[cpu]'")
from upstream_patch.cli import main
from upstream_patch.errors import UserError
from upstream_patch.kernels import metal_source
from upstream_patch.measure.m5 import bits, cases, models, slope
from upstream_patch.measure.m5.plan import plan
from upstream_patch.measure.suites import MODEL_PASSES, REQUESTED
from upstream_patch.problem import Problem
from upstream_patch.records import stats
from upstream_patch.routing_metal import M5, AppleGpu


def verb(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("sys.argv", ["upstream-patch", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize("gpu", [M5, AppleGpu(17, "s", True), AppleGpu(17, "d", True)], ids=["M5", "Max", "Ultra"])
def test_all_is_well(gpu: AppleGpu) -> None:
    made = plan(gpu)
    assert made.faults == []
    text = "\n".join(made.lines)
    assert all(f"  {problem.id}: " in text for problem in REQUESTED)
    assert "462 cases; 252 of 252 kernels are reached here or above" in text
    assert "  d1-3B-4bit, 85, 643 tokens, the head on the last: not given, left out" in text
    assert text.count("test_qmm_mid_m") == 2 and "MLX_ENABLE_TF32=0" in text and "MLX_ENABLE_TF32 unset" in text
    assert [line for line in made.lines if not line.startswith(" ")] == [
        *("layout:", "bits:", "tests:", "correctness:", "operators:", "models:", "252 kernels' texts were written"),
    ]


def test_a_matrix_that_a_record_of_an_m5_may_hold() -> None:
    from upstream_patch.records.rules import LEAST_CASES

    assert len(list(cases.problems(M5))) >= LEAST_CASES


def test_faults_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault() -> str:
        (only,) = plan(M5).faults
        return only

    with monkeypatch.context() as patch:
        patch.setattr(bits, "AS_STOCK", (Problem(m=16, n=1024, k=1024),))
        assert "stock runs qmv_wide and ours qmm_t_nax_splitk" in fault()
    with monkeypatch.context() as patch:
        patch.setattr(bits, "PROBLEMS", (*bits.PROBLEMS, Problem(m=24, n=1024, k=1024)))
        assert fault() == "expected.json has no digest of 1024x1024.b4.g64.bf16.M24"
    with monkeypatch.context() as patch:
        patch.setattr(cases, "SHAPES", tuple(each for each in cases.SHAPES if each[0] != "batch_few_rows"))
        assert fault().startswith("42 kernels are reached by no case, first affine_qmm_t_nax_staged_bfloat16_t_gs_128")
        assert "; 210 of 252 kernels are reached" in "\n".join(plan(M5).lines)
    with monkeypatch.context() as patch:
        patch.setattr(metal_source, "input_names", lambda instance: ("w", "offset"))
        assert all("its text lacks offset" in each for each in plan(M5).faults)
    assert plan(M5).faults == []


def test_the_dry_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("m5", "--dry-run", "--model", "folder/Qwen3.5-4B-4bit")
    assert verb(*given, monkeypatch=monkeypatch) == 0
    out = capsys.readouterr().out
    assert "  Qwen3.5-4B-4bit, 32, 128 tokens: folder/Qwen3.5-4B-4bit\n" in out
    assert out.count("not given, left out") == len(MODEL_PASSES) - 1
    assert verb("m5", "--dry-run", "--model", "GPT-2", monkeypatch=monkeypatch) == 2
    assert "GPT-2 is no model of the request's table" in capsys.readouterr().err
    monkeypatch.setattr(bits, "AS_STOCK", (Problem(m=16, n=1024, k=1024),))
    assert verb("m5", "--dry-run", monkeypatch=monkeypatch) == 2
    assert "1 faults in the plan" in capsys.readouterr().err
    assert verb("gb10", "--dry-run", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out.splitlines()[:4] == ["health", "build", "correctness", "sanitize"]


def test_models_of_the_table_by_the_last_part_of_their_names() -> None:
    assert models.entry("mlx-community/Llama-3.2-1B-Instruct-4bit").tokens == (128, 512)
    assert models.entry("weights/lfm2.5-1.2b-instruct-4bit/").tokens == (32,)
    assert models.entry("LiquidAI/d1-3B-4bit").last_only
    with pytest.raises(UserError, match="known: d1-3B-4bit, LFM2"):
        models.entry("Llama-3.2-1B")


class Clock:
    """Chains whose calls take ``call`` us and whose start takes ``start`` us; the glue is 2 us."""

    def __init__(self, call: float, start: float = 100.0) -> None:
        self.lengths: list[int] = []
        self.call, self.start = call, start

    def whole(self, count: int) -> float:
        self.lengths.append(count)
        return (self.start + count * (self.call + 2)) * 1e-6

    def glue(self, count: int) -> float:
        return (self.start + count * 2) * 1e-6


def test_the_slope_is_of_one_call_without_its_start_and_its_glue() -> None:
    clock = Clock(40.0)
    assert slope.call_us(slope.Arm(clock.whole, clock.glue)) == pytest.approx(40.0)
    assert clock.lengths == [72, 8] * 3
    with pytest.raises(slope.NoSlope, match="no longer than its glue"):
        slope.call_us(slope.Arm(clock.glue, clock.whole))


def test_the_least_of_three_differences_counts() -> None:
    late = iter([0.0, 0.0, 0.0, 0.0, 5e-3, 0.0])  # something else ran in the last long chain
    clock = Clock(40.0)
    assert slope.slope_us(lambda count: clock.whole(count) + next(late)) == pytest.approx(42.0)


def test_rounds_turn_the_arms() -> None:
    order: list[str] = []

    def arm(name: str, us: float) -> slope.Arm:
        clock = Clock(us)

        def whole(count: int) -> float:
            if not order or order[-1] != name:
                order.append(name)
            return clock.whole(count)

        return slope.Arm(whole, clock.glue)

    times = slope.rounds({"stock": arm("stock", 9.0), "ours": arm("ours", 3.0), "aa": arm("aa", 9.0)})
    assert {name: [round(each, 6) for each in found] for name, found in times.items()} == {
        **{"stock": [9.0] * 12, "ours": [3.0] * 12, "aa": [9.0] * 12},
    }
    counted = order[3:]
    firsts = [slope._turned(["stock", "ours", "aa"], number)[0] for number in range(slope.ROUNDS)]
    assert sorted(firsts) == ["aa"] * 4 + ["ours"] * 4 + ["stock"] * 4
    assert slope.ROUNDS >= stats.ENOUGH_SAMPLES  # or no row gets a verdict
    assert {"stock", "ours", "aa"} == set(counted)
