"""Decode of whole models on MLX's CPU backend: a model of one layer, real arms, real checks; no speed is judged."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import pytest

from tests.host.test_records_watched import Nvml
from upstream_patch import ops
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.measure.checked import WrongResult
from upstream_patch.measure.decode import arms, checked, lm, loop, models, plan, run
from upstream_patch.measure.decode.shapes import BATCHES, FIRST, SHAPES, Shape, shape
from upstream_patch.problem import Problem
from upstream_patch.records.keeping import Keeper

pytestmark = pytest.mark.needs_decode

CONFIG = {
    **SHAPES["llama-3.1-8b"].config,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 192,
}
LAYER = [(64, 64), (64, 32), (64, 32), (64, 64), (64, 128), (64, 128), (128, 64)]
"""K x N."""


@pytest.fixture(scope="module")
def built() -> models.Built:
    return models.build(Shape("tiny", CONFIG))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        *((loop, name, 2) for name in ("LEAST_STEPS", "MOST_STEPS")),
        *((module, "PROMPT", 8) for module in (loop, run)),
        (run, "FEW", 3),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def state(built: models.Built) -> loop.State:
    return loop.prefill(built, 2)


def wrong_at(number: int, wrong: Callable[[Any], Any]) -> Callable[[], Any]:
    """An arm whose matmul ``number`` gives another answer."""
    calls = 0

    def matmul(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        y = ops.stock_quantized_matmul(*given, **named)
        return wrong(y) if calls == number else y

    return lambda: arms.matmul_is(matmul)


def test_the_shapes_are_the_models_and_the_225_matmuls_of_a_step() -> None:
    big = shape("llama-3.1-8b").config
    assert 7 * big["num_hidden_layers"] + 1 == 225
    assert (big["hidden_size"], big["intermediate_size"], big["vocab_size"]) == (4096, 14336, 128256)
    assert (shape("llama-3.2-1b").config["hidden_size"], shape("llama-3.2-1b").config["tie_word_embeddings"]) == (
        2048,
        True,
    )
    assert sorted(FIRST) == list(BATCHES) == [1, 2, 4, 6, 7, 8, 12, 16, 32]
    with pytest.raises(UserError, match=r"no model shape 'x'; known: llama-3\.1-8b, llama-3\.2-1b"):
        shape("x")


def measured(
    built: models.Built,
    batches: list[int],
    names: Sequence[str] = ("tiny",),
    deadline: float = math.inf,
    tick: Callable[[], None] = lambda: None,
) -> Keeper:
    keeper = Keeper(plan(names, batches))
    run.measure(names, lambda _: built, batches, deadline, keeper, tick, rounds=3)
    return keeper


def test_a_run_measures_every_arm_of_every_row(built: models.Built, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    keeper = measured(built, [2, 1], tick=lambda: steps.append(1))
    assert ([row.batch for row in keeper.items("rows")], keeper.notes, len(steps)) == ([1, 2], [], 2)
    (model,) = {one.model_dump_json(): one for one in keeper.items("models")}.values()
    monkeypatch.setattr(run, "named", lambda _: built)
    assert run.described("tiny") == model
    assert [(one.k, one.n) for one in model.problems] == [*LAYER, (64, 192)]
    assert model.step_bytes == sum(Problem(m=1, k=k, n=n).packed_bytes for k, n in [*LAYER, (64, 192)])
    for row in keeper.items("rows"):
        assert (row.model, row.prompt, row.steps, len(row.aa_ms), row.ours_kernels) == ("tiny", 8, 2, 3, {})
        assert row.watched.readings == 1 + 3  # before the first round, and after each
        for arm in row.arms.values():
            assert (len(arm.step_ms), len(arm.matmul_ms), len(arm.generator_ms)) == (3, 3, 3)
            assert all(host <= step for host, step in zip(arm.host_ms, arm.step_ms, strict=True))
            assert (arm.check.passed, arm.check.matmuls) == (True, 8)
            assert 0 < arm.check.matmul_error < checked.MATMUL_BOUND


def test_what_was_not_reached_is_named(built: models.Built) -> None:
    clock = iter([0.0])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "monotonic", lambda: next(clock, 2.0))
        keeper = measured(built, [1, 8], ["tiny", "other"], deadline=1.0)
        with pytest.raises(UserError, match=r"no row was measured: not reached in time: tiny\.B8"):
            measured(built, [8], deadline=1.0)
    assert [row.fact_stem for row in keeper.items("rows")] == ["tiny.B8"]  # asked for first by the targets
    assert keeper.notes == [f"not reached in time: {one}" for one in ("tiny.B1", "other.B8", "other.B1")]


@pytest.mark.parametrize("wrong", [lambda y: y * 1.1, lambda y: y[..., ::-1], lambda y: y * float("nan")])
@pytest.mark.parametrize("number", [1, 6, 8])
def test_one_wrong_matmul_leaves_the_row_out(
    built: models.Built, monkeypatch: pytest.MonkeyPatch, number: int, wrong: Callable[[Any], Any]
) -> None:
    monkeypatch.setitem(arms.ARMS, "ours", wrong_at(number, wrong))
    state = loop.prefill(built, 2)
    dense = checked.dense_logits(state)
    with pytest.raises(WrongResult, match=r"ours at 2 sequences is wrong.*8 matmuls"):
        checked.check("ours", *loop.calls_of(state, "ours"), dense)


def test_a_wrong_arm_costs_its_row_and_no_other(built: models.Built, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def once() -> Any:
        nonlocal calls
        calls += 1
        return wrong_at(1, lambda y: -y)() if calls == 1 else nullcontext()

    monkeypatch.setitem(arms.ARMS, "ours", once)
    keeper = measured(built, [1, 8])
    assert [row.batch for row in keeper.items("rows")] == [1]
    (line,) = keeper.notes
    assert line.startswith(f"{run.WRONG}decode, ours at 8 sequences is wrong")


def test_logits_alone_find_what_no_matmul_shows(state: loop.State) -> None:
    """Each product is right for its own input; the input is wrong."""
    dense = checked.dense_logits(state)
    logits, calls = loop.calls_of(state, "stock")
    assert checked.check("stock", logits, calls, dense).logits_error < checked.LOGITS_BOUND
    with pytest.raises(WrongResult, match="logits off by"):
        checked.check("stock", logits[::-1], calls, dense)


def test_folding_gives_rows_to_stock_and_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    mx: Any = import_module("mlx.core")
    w, scales, biases = mx.quantize(mx.random.normal((32, 64)), 64, 4)
    seen: list[Any] = []
    stock = ops.stock_quantized_matmul

    def noting(x: Any, *rest: Any, **named: Any) -> Any:
        seen.append(x.shape)
        return stock(x, *rest, **named)

    monkeypatch.setattr(ops, "stock_quantized_matmul", noting)
    for rows in ((5, 1, 64), (5, 2, 64), (5, 64)):
        x = mx.random.normal(rows)
        y = arms.folded_matmul(x, w, scales=scales, biases=biases, transpose=True, group_size=64, bits=4)
        assert y.shape == (*rows[:-1], 32)
        assert mx.allclose(y, stock(x, w, scales=scales, biases=biases, group_size=64, bits=4), atol=1e-4)
    assert seen == [(5, 64), (5, 2, 64), (5, 64)]


def test_every_sample_starts_from_the_prompt_and_the_arms_give_their_own_matmul(state: loop.State) -> None:
    mx: Any = import_module("mlx.core")
    logits = [state.step(state.start())]
    loop.sample(state, "ours", 2)
    assert {layer.offset for layer in state.cache} == {8 + 2 + loop.LEAD}
    logits.append(state.step(state.start()))
    assert mx.array_equal(*logits)
    seen = {}
    for arm in arms.ARMS:
        with arms.ARMS[arm]():
            seen[arm] = mx.quantized_matmul
    assert seen == {"stock": ops.stock_quantized_matmul, "folded": arms.folded_matmul, "ours": ops.quantized_matmul}
    assert mx.quantized_matmul is ops.stock_quantized_matmul


def test_the_matmuls_alone_wait_for_one_another_as_in_the_step(state: loop.State) -> None:
    _, calls = loop.calls_of(state, "stock")
    given: list[Any] = []
    outputs: dict[int, int] = {}

    def noting(number: int, call: arms.Call) -> Any:
        def matmul(x: Any, *rest: Any, **named: Any) -> Any:
            given.append(outputs.get(id(x)))
            y = call.matmul(x, *rest, **named)
            outputs[id(y)] = number
            kept.append(y)
            return y

        return matmul

    kept: list[Any] = []
    noted = [arms.Call(one.x, one.operands, one.named, one.y, noting(n, one)) for n, one in enumerate(calls)]
    assert loop.matmuls_alone(noted, 1) > 0
    # q, k, v take the recorded x; o waits for q, gate and up for o, down for gate, the head for down
    assert given[:8] == [None, None, None, 0, 3, 3, 4, 6]


@pytest.fixture
def without_tokenizers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(lm, "missing", lambda: ["transformers"])
    yield


def test_a_folder_needs_what_reads_it(without_tokenizers: None, tmp_path: Any) -> None:
    with pytest.raises(MissingTool, match="transformers: mlx-lm's loader needs them"):
        models.named(str(tmp_path))


def test_mlx_lm_is_imported_where_its_tokenizers_are_missing_and_nothing_stays_behind() -> None:
    program = """
import sys
from upstream_patch.measure.decode import lm
lm.missing = lambda: list(lm.TOKENIZERS)
print(lm.lm("generate").BatchGenerator.__name__, "transformers" in sys.modules)
print(any(isinstance(finder, lm._Finder) for finder in sys.meta_path))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["BatchGenerator", "False", "False"], done.stderr
