"""The matrix through MLX's own ``quantized_matmul`` with the series' routes in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from upstream_patch.correctness import Answer, Case, MlxArms
from upstream_patch.correctness.forms import Bits, Operands, one_row, outputs_bits
from upstream_patch.errors import UserError
from upstream_patch.kernels import small_m_variant
from upstream_patch.kernels.tuning import SmallM
from upstream_patch.machine import cuda_device
from upstream_patch.problem import MLX_DTYPE, DType, Problem
from upstream_patch.routing import QMV_ROWS
from upstream_patch.series.wheel import Counts, Hook, load

REFUSED = ("w_row_strided", "w_column_slice")
"""Forms of weights that MLX's operation refuses, with the series as without it."""
PLAIN = ("plain", "margins", "odd_offset")
"""Forms whose launch follows from the problem alone."""


class OtherRoute(UserError):
    """The host code did something else than the code that it was written from says."""

    exit_code = 1


def module_name(dtype: DType, t: SmallM) -> str:
    """The JIT module that the host code must take an instance from."""
    bits, group, mode = t.format
    return f"qmm_small_m_{MLX_DTYPE[dtype]}_{mode}_b{bits}_g{group}_r{t.rows}_w{t.warps}_s{t.stages}_t{t.tiles}"


def expected_module(problem: Problem) -> str:
    """Of a problem that takes the small-M kernel on this device."""
    device = cuda_device()
    if device is None:
        raise UserError("no CUDA device")
    return module_name(problem.dtype, small_m_variant(problem, *device)[0].tuning)


def cases_of(cases: Sequence[Case]) -> list[Case]:
    """Those of the matrix that this is about: our kernel's, and what reaches it in other memory forms.

    Of the latter only those whose stock kernel MLX need not compile for half a minute.
    """

    def wanted(case: Case) -> bool:
        other_form = case.form not in (*REFUSED, "not_transposed") and case.problem.m < QMV_ROWS
        return case.route == "small_m" or (case.route == "any" and other_form)

    return [case for case in cases if wanted(case)]


class WheelArms(MlxArms):
    """Ours is MLX's operation with the hook enabled; every result must be the runtime delivery's, bit for bit.

    Stock is asked only where the case leaves the route open: elsewhere the record of the matrix has the comparison.
    """

    def __init__(self, built: Path | None = None) -> None:
        self.hook = load(built)

    def kernels(self, case: Case) -> list[str]:
        return [expected_module(case.problem)] if self.route(case) == "small_m" else []

    def stock(self, prepared: tuple[Operands, Answer]) -> Bits:
        if prepared[0].case.route == "any":
            return super().stock(prepared)
        raise UserError("not asked: the record of the matrix has the comparison")

    def ours(self, prepared: tuple[Operands, Answer], repeats: int) -> list[Bits]:
        from upstream_patch import ops

        given = prepared[0]
        runtime = outputs_bits(given.case, [ops.quantized_matmul(*given.arguments, **given.keywords)])[0]
        outputs = self._evaluated(lambda: [_call(given) for _ in range(repeats)], given.case)
        if not np.array_equal(outputs[0], runtime):
            raise OtherRoute("the result differs from the runtime delivery's")
        return outputs

    def ours_over(self, prepared: tuple[Operands, Answer], fills: Sequence[float]) -> list[Bits]:
        """MLX's allocator is primed with freed blocks of the output's size: whether it takes one is its own choice."""
        import mlx.core as mx

        given, p = prepared[0], prepared[0].case.problem
        outputs: list[Bits] = []
        for fill in fills:
            blocks = [mx.full((p.batch * p.m, p.n), fill, given.x.dtype) for _ in range(4)]
            mx.eval(*blocks)
            del blocks
            outputs += self._evaluated(lambda: [_call(given)], given.case)
        return outputs

    def ours_rows(self, prepared: tuple[Operands, Answer], rows: int) -> list[Bits]:
        alone = [one_row(prepared[0], prepared[1].inputs, m) for m in range(rows)]
        return self._evaluated(lambda: [_call(given) for given in alone], prepared[0].case, launched=False)

    def _evaluated(self, build: Callable[[], list[Any]], case: Case, launched: bool = True) -> list[Bits]:
        """Bits of what was evaluated with the hook enabled. Raises OtherRoute where not every one took our kernel.

        ``launched``: of a form in PLAIN, from the very instance that the tuning tables name, too.
        """
        before = self.hook.counts()
        with self.hook.enabled():
            calls = build()
            outputs = outputs_bits(case, calls)
        if case.route == "small_m" and case.form in PLAIN:
            require_route(self.hook, before, len(calls), expected_module(case.problem) if launched else None)
        return outputs


def require_route(hook: Hook, before: Counts, calls: int, module: str | None) -> None:
    """Raises OtherRoute unless all calls since ``before`` took the small-M kernel, the last from that module."""
    after = hook.counts()
    taken, left = after.small_m - before.small_m, after.stock - before.stock
    if (taken, left) != (calls, 0):
        raise OtherRoute(f"{taken} of {calls} calls took the small-M kernel and {left} were left to MLX")
    if module is not None and hook.last_module != module:
        raise OtherRoute(f"the host code launched {hook.last_module}, the tuning tables say {module}")


def _call(given: Operands) -> Any:
    from upstream_patch import ops

    return ops.stock_quantized_matmul(*given.arguments, **given.keywords)
