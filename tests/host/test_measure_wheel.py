"""The wheel build's run without a GPU: which cases, what is refused, what the record and its facts say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.correctness import Case, answer, matrix
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.kernels.tuning import Format, SmallM
from upstream_patch.measure import graphs
from upstream_patch.measure.wheel import arms, decode, run
from upstream_patch.problem import Problem
from upstream_patch.records import canonical, facts, wheel_facts
from upstream_patch.records.schema import CaseResult, Check, WheelBody, WheelDecode, WheelRow
from upstream_patch.series.wheel import Counts, MlxLibrary

CHECK = Check(passed=True, norm_error=0.001, max_ulp=0.5, bound="within bounds", columns=4)
ROW = WheelRow(
    problem=Problem(m=4, n=512, k=512),
    copies=30,
    ops_per_sample=100,
    stock_us=[20.0, 22.0, 21.0],
    runtime_us=[10.0, 10.0, 10.0],
    wheel_us=[10.1, 10.3, 10.2],
    aa_us=[10.0, 10.1, 9.9],
    check=CHECK,
    module="qmm_small_m_bfloat16_affine_b4_g64_r8_w4_s2_t1",
)
DECODED = WheelDecode(
    batch=4, steps=10, stock_s=[2.0] * 3, wheel_s=[1.0] * 3, runtime_s=[1.1] * 3, same_as_runtime=True
)


def case(passed: bool = True) -> CaseResult:
    return CaseResult(
        case="rows",
        problem=ROW.problem,
        seed=0,
        check=CHECK.model_copy(update={"passed": passed}),
        repeats_equal=20,
        rows_equal_alone=True,
        written=True,
        kernels=[ROW.module],
    )


def body(**changes: Any) -> WheelBody:
    found = WheelBody(
        library_sha256="ab" * 32,
        host_hash=wheel_facts.host_hash(),
        cases=[case()],
        planned=1,
        every=1,
        rows=[ROW],
        decode=[DECODED],
        calls={"small_m": 7, "folded": 1, "stock": 2},
    )
    return found.model_copy(update=changes)


class FakeHook:
    """Counts what is evaluated while it is enabled as the library would."""

    def __init__(self, taken: int, left: int = 0, module: str = "a") -> None:
        self.taken, self.left, self.last_module = taken, left, module
        self.evaluations = 0

    def counts(self) -> Counts:
        return Counts(self.evaluations * self.taken, 0, self.evaluations * self.left)

    @contextmanager
    def enabled(self) -> Iterator[None]:
        self.evaluations += 1
        yield


def test_the_cases_are_the_matrix_without_what_mlx_refuses_or_our_kernel_leaves() -> None:
    chosen = arms.cases_of(matrix())
    assert len(chosen) > 1000
    assert {one.route for one in chosen} == {"small_m", "any"}
    forms = {one.form for one in chosen if one.route == "any"}
    assert forms == {"x_strided", "x_transposed", "x_blocks", "w_batched", "w_broadcast"}


def test_modules_are_named_as_the_host_code_does() -> None:
    tuning = SmallM(16, 8, 2, 4, Format(8, 32, "mxfp8"))
    assert arms.module_name("f16", tuning) == "qmm_small_m_float16_mxfp8_b8_g32_r16_w8_s2_t4"


@pytest.mark.parametrize(
    ("hook", "says"),
    [
        (FakeHook(3), None),
        (FakeHook(2, 1), "2 of 3 calls took the small-M kernel and 1 were left to MLX"),
        (FakeHook(3, module="b"), "the host code launched b, the tuning tables say a"),
    ],
)
def test_another_route_or_instance_is_an_error(hook: Any, says: str | None) -> None:
    before = hook.counts()
    with hook.enabled():
        pass
    if says is None:
        arms.require_route(hook, before, 3, "a")
        return
    with pytest.raises(arms.OtherRoute, match=says):
        arms.require_route(hook, before, 3, "a")


def test_a_result_must_be_the_runtime_deliverys(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = pytest.importorskip("upstream_patch.ops")
    hook = FakeHook(taken=3)
    monkeypatch.setattr(arms, "load", lambda built: hook)
    monkeypatch.setattr(arms, "expected_module", lambda problem: "a")
    mine = arms.WheelArms()
    one = Case("rows", Problem(m=3, n=8, k=64))
    prepared = mine.prepare(one, answer(one))
    assert len(mine.ours(prepared, 3)) == 3
    hook.taken = 2
    with pytest.raises(arms.OtherRoute, match="2 of 3 calls"):
        mine.ours(prepared, 3)
    hook.taken = 3
    monkeypatch.setattr(
        ops, "quantized_matmul", lambda *given, **named: ops.stock_quantized_matmul(*given, **named) + 1
    )
    with pytest.raises(arms.OtherRoute, match="differs from the runtime delivery"):
        mine.ours(prepared, 3)


def test_what_is_wrong_is_said_in_lines() -> None:
    assert run.failures(body()) == []
    assert run.summary(body()) == (
        "1 of 1 cases right and bit-identical, at most 1.020 of the runtime delivery's time over 1 rows, "
        "decoding of 1 batch sizes"
    )
    assert run.summary(body(planned=4)).startswith("1 of 1 cases (of 4 of the matrix) right")
    slow = ROW.model_copy(update={"wheel_us": [10.7, 10.6, 10.8]})
    other = DECODED.model_copy(update={"same_as_runtime": False})
    stopped = [f"{run.STOPPED}no memory", "before: SM 1980 MHz"]
    found = run.failures(body(cases=[case(passed=False)], rows=[slow], decode=[other], notes=stopped))
    assert found == [
        "rows 512x512.b4.g64.bf16.M4 seed 0: within bounds",
        "rows or decoding stopped: no memory",
        "512x512.b4.g64.bf16.M4: 1.070 of the runtime delivery's time",
        "decoding 4 sequences: other tokens than with the runtime delivery",
    ]


def test_facts_are_stale_when_the_host_code_changes(synthetic: Any) -> None:
    synthetic.write(body())
    found = {fact.id: fact for fact in facts.derive(synthetic.load(), today=lambda _: "ab" * 32)}
    wheel = {name: fact for name, fact in found.items() if name.startswith("wheel.")}
    (over,) = wheel_facts.to_runtime(body())
    assert over.value == pytest.approx((1.01 * 1.03 * 1.02) ** (1 / 3)) and over.low < over.value < over.high
    stem = "wheel.test.512x512.b4.g64.bf16.M4"
    few = "3 pairs are too few, 8 needed"
    ends = {name: fact.value for name, fact in wheel.items() if name.startswith(f"{stem}.speedup")}
    low, middle, high = (float(ends[f"{stem}.speedup{end}"]) for end in ("_low", "", "_high"))
    assert low < middle < high
    assert ends[f"{stem}.speedup"] == pytest.approx((20 / 10.1 * 22 / 10.3 * 21 / 10.2) ** (1 / 3))
    assert {name: fact.value for name, fact in wheel.items() if name not in ends} == {
        f"{stem}.wheel_to_runtime_low": canonical.tidy(over.low),
        f"{stem}.wheel_to_runtime_high": canonical.tidy(over.high),
        f"{stem}.verdict": "UNCLEAR",
        f"{stem}.verdict_reason": few,
        "wheel.test.every": 1,
        "wheel.test.cases": 1,
        "wheel.test.passed": 1,
        "wheel.test.planned": 1,
        "wheel.test.512x512.b4.g64.bf16.M4.stock_us": 21,
        "wheel.test.512x512.b4.g64.bf16.M4.runtime_us": 10,
        "wheel.test.512x512.b4.g64.bf16.M4.wheel_us": 10.2,
        "wheel.test.512x512.b4.g64.bf16.M4.wheel_to_runtime": canonical.tidy(over.value),
        "wheel.test.most_wheel_to_runtime": canonical.tidy(over.value),
        "wheel.test.decode.b4.stock_step_us": 200_000,
        "wheel.test.decode.b4.wheel_step_us": 100_000,
        "wheel.test.decode.b4.runtime_step_us": 110_000,
        "wheel.test.decode.b4.same_as_runtime": 1,
    }
    assert not any(fact.stale for fact in wheel.values())
    synthetic.write(body(host_hash="cd" * 32), age_hours=1)
    again = {fact.id: fact for fact in facts.derive(synthetic.load(), today=lambda _: "ab" * 32)}
    assert not again["wheel.test.cases"].stale  # the newer one is, the older one is not
    newest = max(synthetic.load(), key=lambda loaded: loaded.record.created)
    alone = facts.derive([newest], today=lambda _: "ab" * 32)
    about_ours = {name for name in wheel if "stock_" not in name}
    assert {fact.id for fact in alone if fact.stale} == about_ours


def test_the_host_hash_covers_every_file_and_no_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.cpp").write_text("int a = 1;\n", encoding="utf-8")
    (tmp_path / "eval_gpu_b.inc").write_text("int b;\n", encoding="utf-8")
    monkeypatch.setattr(wheel_facts, "HOST_CODE", tmp_path)
    hashed = wheel_facts.host_hash.__wrapped__
    first = hashed()
    (tmp_path / "a.cpp").write_text("// one\nint  a =\n  1;\n", encoding="utf-8")
    assert hashed() == first
    (tmp_path / "eval_gpu_b.inc").write_text("int c;\n", encoding="utf-8")
    assert hashed() != first


PROGRAM = """
import json, os, sys
asked = json.loads(sys.argv[1])
{then}
counts = os.environ.get("UPSTREAM_PATCH_PRELOAD")
if counts:
    assert os.environ["LD_LIBRARY_PATH"].startswith({library!r})
    open(counts, "w").write({counts!r})
token = 5 if counts or asked.get("install") else 4
decoded = [{{"batch": b, "seconds": [1.0, 2.0, 3.0], "tokens": [[token] * b]}} for b in asked["batches"]]
print(json.dumps({{"decoded": decoded, "imported": {imported}}}))
"""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, None),
        ({"then": "assert 'MLX_MAX_OPS_PER_BUFFER' not in os.environ"}, None),
        ({"counts": "0 0 9"}, "the preloaded library took no call of the program"),
        ({"counts": ""}, "the preloaded library left no counts"),
        ({"imported": "True"}, "the program imported upstream_patch"),
        ({"then": "raise ValueError('out of memory')"}, "the decoding program failed: ValueError: out of memory"),
        ({"then": "import mlx_lm_that_is_missing"}, "mlx-lm cannot be imported"),
    ],
)
def test_decoding_in_processes_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], says: str | None
) -> None:
    mlx = MlxLibrary(tmp_path / "mlx")
    filled = {"then": "", "counts": "9 2 1", "imported": "False", "library": str(mlx.path.parent)} | change
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(**filled), encoding="utf-8")
    monkeypatch.setattr(decode, "PROGRAM", program)
    monkeypatch.setattr(decode, "preload", without_linker(decode.preload))
    for name in graphs.LIMITS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(graphs, "_raised", set())
    graphs.one_graph_a_sample()
    monkeypatch.setenv("MLX_USE_CUDA_GRAPHS", "1")
    if says is None:
        found = decode.decode(tmp_path / "built.so", mlx, batches=(1, 2))
        assert found.calls == Counts(9, 2, 1)
        limits = {name: value for name, value in found.environment.items() if name.startswith("MLX_")}
        assert limits == {"MLX_USE_CUDA_GRAPHS": "1"}
        assert [(row.batch, row.wheel_s, row.same_as_runtime) for row in found.rows] == [
            (1, [1.0, 2.0, 3.0], True),
            (2, [1.0, 2.0, 3.0], True),
        ]
        return
    with pytest.raises(MissingTool if "mlx-lm" in says else UserError, match=says):
        decode.decode(tmp_path / "built.so", mlx, batches=(1,))


def without_linker(real: Any) -> Any:
    """The environment, but for the library that is not there."""

    def preload(*arguments: Any) -> dict[str, str]:
        made: dict[str, str] = real(*arguments)
        assert made.pop("LD_PRELOAD").endswith("built.so")
        return made

    return preload
