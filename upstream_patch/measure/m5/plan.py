"""What ``nox -s m5`` will do, step by step, with every name and shape checked before a GPU is touched."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from upstream_patch import machine
from upstream_patch.kernels import metal_source
from upstream_patch.kernels.metal import COLUMNS, GROUP, STEP, Staged, instances
from upstream_patch.measure.m5 import bits, cases, mlx_tests, models, operators, slope
from upstream_patch.measure.suites import MODEL_PASSES, REQUESTED
from upstream_patch.problem import Problem
from upstream_patch.routing_metal import AppleGpu, instance, route, rows_and_batch, stock_route

TF32 = "MLX_ENABLE_TF32"
SETTINGS: tuple[dict[str, str], ...] = ({}, {TF32: "0"})
"""Environments in which MLX's own style of tests runs: MLX reads the variable once in a process."""
STEPS = ("layout", "bits", "tests", "tests without TF32", "correctness", "operators", "models")
_MOST = 2**31 - 1


@dataclass(frozen=True)
class Plan:
    """``lines`` for people; ``faults``: what would not work, empty where all is well."""

    lines: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def plan(gpu: AppleGpu, given_models: Sequence[str] = ()) -> Plan:
    """Raises UserError for a model that the request's table does not have."""
    made = Plan()
    reached: set[Staged] = set()
    for step, lines in (
        ("layout", _layout(made)),
        ("bits", _bits(made, gpu, reached)),
        ("tests", _tests(made)),
        ("correctness", _correctness(made, gpu, reached)),
        ("operators", _operators(made, gpu, reached)),
        ("models", _models(given_models)),
    ):
        made.lines.append(f"{step}:")
        made.lines.extend(f"  {line}" for line in lines)
    _check_sources(made, reached)
    return made


def _layout(made: Plan) -> Iterator[str]:
    if set(bits.expected().get("layout", {})) != {"probe"}:
        made.faults.append(f"{bits.FILE.name} has no digest of the layout probe")
    yield "one simdgroup, 256 products of 16 x 32 x 16; must be the simulator's digest"


def _bits(made: Plan, gpu: AppleGpu, reached: set[Staged]) -> Iterator[str]:
    known = bits.expected()
    for problem in bits.PROBLEMS:
        yield f"{_one(made, problem, gpu, reached)}: the simulator's bits on exact data"
        if bits.key(problem, "exact") not in known:
            made.faults.append(f"{bits.FILE.name} has no digest of {problem.id}")
    for name in known:
        if name.endswith(" normal"):
            yield f"{name.removesuffix(' normal')}: which order of summation the hardware has"
    for problem in bits.AS_STOCK:
        stock, ours = stock_route(problem, gpu), route(problem, gpu)
        if (stock.kernel, ours.kernel, ours.staged) != ("qmm_t_nax", "qmm_t_nax", True):
            made.faults.append(f"{problem.id}: stock runs {stock.text} and ours {ours.text}, so bits may differ")
        yield f"{_one(made, problem, gpu, reached)}: the bits of stock's qmm_t_nax"


def _tests(made: Plan) -> Iterator[str]:
    tree = ast.parse(f"class T:\n{mlx_tests.FILE.read_text(encoding='utf-8')}")
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name[:5] == "test_"]
    if not names:
        made.faults.append(f"{mlx_tests.FILE.name} has no test")
    for setting in SETTINGS:
        said = " ".join(f"{name}={value}" for name, value in setting.items()) or f"{TF32} unset"
        yield f"{', '.join(names)}; {said}"


def _correctness(made: Plan, gpu: AppleGpu, reached: set[Staged]) -> Iterator[str]:
    found = list(cases.problems(gpu))
    for _, problem in found:
        _one(made, problem, gpu, reached)
    for name, count in Counter(name for name, _ in found).items():
        _, m, n, k, batch = next(shape for shape in cases.SHAPES if shape[0] == name)
        yield f"{name}: M {m}, N {n}, K {k}, {batch} matrices; {count} formats and dtypes"
    every = {each.host_name for each in instances()}
    missing = every - {each.host_name for each in reached}
    if missing:
        made.faults.append(f"{len(missing)} kernels are reached by no case, first {min(missing)}")
    yield f"{len(found)} cases; {len(every) - len(missing)} of {len(every)} kernels are reached here or above"


def _operators(made: Plan, gpu: AppleGpu, reached: set[Staged]) -> Iterator[str]:
    for problem in REQUESTED:
        stock, ours = stock_route(problem, gpu), route(problem, gpu)
        if ours.staged:
            _one(made, problem, gpu, reached)
        size = operators.WEIGHT_SETS * problem.packed_bytes / 1e6
        yield f"{problem.id}: {stock.text} -> {ours.text}; {operators.WEIGHT_SETS} sets of weights, {size:.0f} MB"
    calls = 2 * slope.REPEATS * (slope.CALLS + 2 * slope.SHORT) * (slope.ROUNDS + 1)
    yield f"{slope.ROUNDS} rounds of stock, ours, stock; {calls} calls or glues an arm"


def _models(given: Sequence[str]) -> Iterator[str]:
    chosen = {models.entry(each).name: each for each in given}
    for row in MODEL_PASSES:
        tokens = ", ".join(map(str, row.tokens))
        head = ", the head on the last" if row.last_only else ""
        yield f"{row.name}, {tokens} tokens{head}: {chosen.get(row.name, 'not given, left out (--model FOLDER_OR_ID)')}"


def _one(made: Plan, problem: Problem, gpu: AppleGpu, reached: set[Staged]) -> str:
    """The problem with its kernel; what is wrong with its launch goes into the faults."""
    taken = route(problem, gpu)
    staged = instance(problem, taken)
    if staged is None:
        made.faults.append(f"{problem.id} does not take the staged kernels")
        return problem.id
    reached.add(staged)
    m, batch = rows_and_batch(problem)
    across, down, deep = staged.grid(m, problem.n, taken.parts if staged.split else batch)
    wrong = [
        problem.n % COLUMNS != 0,
        problem.k % (taken.parts * max(STEP, problem.group_size if staged.split else STEP)) != 0,
        max(across * GROUP[0], down, deep, m * problem.n * taken.parts) > _MOST,
        (across * COLUMNS, down * staged.bm >= m) != (problem.n, True),
    ]
    if any(wrong):
        made.faults.append(f"{problem.id}: {staged.host_name} cannot be launched on {across} x {down} x {deep}")
    return f"{problem.id} {taken.text}"


def _check_sources(made: Plan, reached: set[Staged]) -> None:
    """Every kernel's text can be written, and has the operands that the call passes."""
    root = machine.find_mlx_headers()
    if root is None:
        made.lines.append("(no MLX here: the kernels' texts were not written)")
        return
    for each in sorted(reached):
        text = metal_source.source(each, Path(root))
        lacking = [name for name in metal_source.input_names(each) if f" {name} [[buffer(" not in text]
        if lacking or f"void {each.host_name}(" not in text:
            made.faults.append(f"{each.host_name}: its text lacks {', '.join(lacking) or 'its name'}")
    made.lines.append(f"{len(reached)} kernels' texts were written")
