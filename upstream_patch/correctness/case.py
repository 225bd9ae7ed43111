"""One problem of the matrix with its data and memory form, and what the right answer is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from upstream_patch.kernels.tuning import Format
from upstream_patch.problem import DType, Layout, Problem
from upstream_patch.records.schema import REPEATS
from upstream_patch.reference import F64, Distribution, Inputs, make_inputs

Form = Literal[
    "plain",
    "margins",
    "odd_offset",
    "x_strided",
    "x_transposed",
    "x_blocks",
    "w_row_strided",
    "w_column_slice",
    "w_batched",
    "w_broadcast",
    "not_transposed",
]
"""How the operands lie in memory.

``margins``: row slices of larger arrays whose other bytes are NaN (w: all ones). ``odd_offset``: the same, starting at
row 3, so scales are 2-byte aligned only. ``x_strided``: every second column of an array. ``x_blocks``: x is
[2, M/2, K]. ``w_row_strided``: every second row. ``w_column_slice``: the first K columns of wider weights.
``w_batched``: weights [2, N/2, K], x expanded with stride 0. ``w_broadcast``: weights expanded to [2, N, K] with stride
0, x is [2, M/2, K]. ``not_transposed``: ``transpose=False``, weights [K, N].
"""
FORMS: tuple[Form, ...] = get_args(Form)
DTYPES: tuple[DType, ...] = ("bf16", "f16")
LAYOUTS: tuple[Layout, ...] = ("mk", "1mk", "b1k")
Route = Literal["small_m", "other", "any"]
MANY_REPEATS = {"repeats": 50, "vllm_56887": 50}
"""By label: how often such a case is repeated. The others REPEATS times."""


def repeats_of(label: str) -> int:
    return MANY_REPEATS.get(label, REPEATS)


@dataclass(frozen=True)
class Case:
    """One problem with its data and memory form; ``route`` is what our operation must do with it."""

    name: str
    problem: Problem
    distribution: Distribution = "normal"
    form: Form = "plain"
    seed: int = 0
    route: Route = "small_m"
    distinct: int | None = None
    """Where N is more, the rows of the weights are this many, in turn: the reference costs no more than these."""

    @property
    def id(self) -> str:
        return f"{self.label}-{self.problem.id}-{self.seed}"

    @property
    def label(self) -> str:
        """The name, with the distribution and the memory form where they are not the usual ones."""
        extra = [part for part in (self.distribution, self.form) if part not in ("normal", "plain", self.name)]
        return ".".join([self.name, *extra])


@dataclass(frozen=True)
class Answer:
    """A case's operands in numpy, and what comes out: [M, N] in fp64, see ``Inputs``."""

    inputs: Inputs
    reference: F64
    magnitude: F64
    removed: F64


def answer(case: Case) -> Answer:
    """``not_transposed`` has inputs for weights [K, N] packed along N; its ``inputs.x`` is still [M, K]."""
    p = case.problem
    if case.form != "not_transposed":
        inputs = make_inputs(p.model_copy(update={"n": min(p.n, case.distinct or p.n)}), case.seed, case.distribution)
        whole = Answer(inputs, inputs.reference(), inputs.magnitude(), inputs.removed())
        if inputs.problem.n == p.n:
            return whole
        row = np.arange(p.n) % inputs.problem.n
        sums = (values[:, row] for values in (whole.reference, whole.magnitude, whole.removed))
        return Answer(inputs.columns(row), *sums)
    weights = make_inputs(p.model_copy(update={"n": p.k, "k": p.n}), case.seed, case.distribution)
    x = make_inputs(p, case.seed, case.distribution).x
    inputs = Inputs(weights.problem, case.seed, case.distribution, x, weights.packed, weights.scales, weights.biases)
    size = replace(weights, scales=np.abs(weights.scales), biases=np.abs(weights.biases))
    wide_x = x.astype(np.float64)
    reference = wide_x @ weights.weights()
    # never our kernel: no offset
    return Answer(inputs, reference, np.abs(wide_x) @ size.weights(), np.zeros_like(reference))


def problem_of(form: Format, m: int, n: int, k: int, dtype: DType, layout: Layout = "mk", batch: int = 1) -> Problem:
    bits, group, mode = form
    return Problem(m=m, n=n, k=k, bits=bits, group_size=group, mode=mode, dtype=dtype, layout=layout, batch=batch)
