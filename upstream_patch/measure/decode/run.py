"""Measure the decode of models: every batch size checked, then timed in rounds that alternate the arms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from upstream_patch import ops
from upstream_patch.errors import UserError
from upstream_patch.measure.checked import WrongResult
from upstream_patch.measure.conditions import watching
from upstream_patch.measure.decode import checked, generator, loop
from upstream_patch.measure.decode.arms import ARMS, Call
from upstream_patch.measure.decode.models import Built, name_of, named
from upstream_patch.measure.decode.shapes import FIRST, PROMPT
from upstream_patch.measure.timer import orders
from upstream_patch.problem import MLX_DTYPE, Problem
from upstream_patch.records.decode_schema import DecodeArm, DecodeModel, DecodeRow
from upstream_patch.records.keeping import Keeper

ROUNDS = 12
"""A multiple of 4 for the four arms and of 6 for the matmuls of three: ``timer.orders`` is balanced."""
WRONG = "WRONG: "
"""How the line begins of a row that was not recorded since an arm's answer is wrong."""
FEW = 3
"""Samples of mlx-lm's generator, which is shown beside a step."""
_DTYPES = {name: dtype for dtype, name in MLX_DTYPE.items()}


def measure(
    names: Sequence[str],
    make: Callable[[str], Built],
    batches: Sequence[int],
    deadline: float,
    keeper: Keeper,
    tick: Callable[[], None] = lambda: None,
    rounds: int = ROUNDS,
) -> None:
    """Rows of every model and batch size, into the keeper. ``make`` builds a model by its name, one after the other.

    No row starts after ``deadline`` (``time.monotonic``); the batch sizes that matter most come first, and the keeper's
    notes name those that were not reached, and those where an arm's answer is wrong or MLX failed: what was measured
    is kept. Raises UserError where no row was, and one was to be.
    """
    order = sorted(batches, key=lambda batch: FIRST.index(batch) if batch in FIRST else len(FIRST))
    for name in names:
        built: Built | None = None
        for batch in order:
            row = row_id(name, batch)
            if keeper.skips(row, deadline):
                continue
            try:
                with keeper.unit(row):
                    built = built or make(name)
                    measured, model = _row(built, batch, rounds, keeper.notes)
                    keeper.keep(row, models=[model], rows=[measured])
            except WrongResult as error:
                keeper.notes.append(f"{WRONG}{error}")
            except RuntimeError as error:  # MLX: out of memory, or what its CUDA backend lacks
                keeper.notes.append(f"failed: {row}: {' '.join(str(error).split())[:300]}")
            tick()
        del built
        _free()
    if not keeper.units and not keeper.stored:
        raise UserError(f"no row was measured: {'; '.join(keeper.notes)}")


def row_id(model: str, batch: int) -> str:
    """A row by what was asked for, e.g. ``llama-3.1-8b.B8``."""
    return f"{name_of(model)}.B{batch}"


def described(model: str) -> DecodeModel:
    """A model of which no row is measured here."""
    built = named(model)
    _, calls = loop.calls_of(loop.prefill(built, 1), "ours")
    return _model(built, [_problem(call, 1) for call in calls])


def _row(built: Built, batch: int, rounds: int, left_out: list[str]) -> tuple[DecodeRow, DecodeModel]:
    _free()
    state = loop.prefill(built, batch)
    dense = checked.dense_logits(state)
    checks, calls = {}, {}
    for arm in ARMS:
        logits, calls[arm] = loop.calls_of(state, arm)
        checks[arm] = checked.check(arm, logits, calls[arm], dense)
    del dense, logits
    _free()
    problems = [_problem(call, batch) for call in calls["ours"]]

    probes = [loop.sample(state, arm, loop.LEAST_STEPS).step for arm in ARMS]  # compiles, and says how long a step is
    steps = max(loop.LEAST_STEPS, min(loop.MOST_STEPS, round(loop.SAMPLE_MS / max(probes))))
    samples: dict[str, list[loop.Sample]] = {name: [] for name in (*ARMS, "aa")}
    with watching() as watch:
        for names in orders(tuple(samples), rounds, seed=batch):
            for name in names:
                samples[name].append(loop.sample(state, "stock" if name == "aa" else name, steps))
            watch.tick()
    alone: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for arm in ARMS:
        loop.matmuls_alone(calls[arm], steps)  # a warm-up
    for names in orders(tuple(ARMS), rounds, seed=batch):
        for arm in names:
            alone[arm].append(loop.matmuls_alone(calls[arm], steps))
    del calls
    try:
        generated = _generated(built, state.prompts, steps)
    except (RuntimeError, UserError) as error:
        generated = {arm: [] for arm in ARMS}
        left_out.append(f"no BatchGenerator: {built.name}.B{batch}: {' '.join(str(error).split())[:300]}")

    arms = {
        arm: DecodeArm(
            step_ms=[taken.step for taken in samples[arm]],
            host_ms=[taken.host for taken in samples[arm]],
            matmul_ms=alone[arm],
            generator_ms=generated[arm],
            check=checks[arm],
        )
        for arm in ARMS
    }
    row = DecodeRow(
        model=built.name,
        batch=batch,
        prompt=PROMPT,
        steps=steps,
        stock=arms["stock"],
        folded=arms["folded"],
        ours=arms["ours"],
        aa_ms=[taken.step for taken in samples["aa"]],
        ours_kernels={problem.id: symbol for problem in problems if (symbol := ops.kernel_symbol(problem))},
        watched=watch.found(),
    )
    return row, _model(built, problems)


def _generated(built: Built, prompts: Any, steps: int) -> dict[str, list[float]]:
    """ms a step of mlx-lm's generator, by arm."""
    generators = [generator.started(built, arm, prompts) for arm in ARMS]
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for number in range(FEW):
        for one in generators if number % 2 else reversed(generators):
            times[one.arm].append(one.sample(steps))
    return times


def _model(built: Built, problems: Sequence[Problem]) -> DecodeModel:
    return DecodeModel.model_validate(
        {
            "name": built.name,
            "weights": built.weights,
            "config": built.config,
            "step_bytes": sum(problem.packed_bytes for problem in problems),
            "problems": [problem.model_copy(update={"m": 1}) for problem in problems],
        }
    )


def _problem(call: Call, batch: int) -> Problem:
    """Of one quantized matmul of a decode step, whose x is [B, 1, K]."""
    w, scales, _ = call.operands
    bits, group = call.named["bits"], call.named["group_size"]
    return Problem(
        m=batch,
        n=w.shape[0],
        k=scales.shape[1] * group,
        bits=bits,
        group_size=group,
        mode=call.named["mode"],
        dtype=_DTYPES[str(scales.dtype).removeprefix("mlx.core.")],
        layout="b1k",
    )


def _free() -> None:
    mx: Any = import_module("mlx.core")
    mx.synchronize()
    mx.clear_cache()
