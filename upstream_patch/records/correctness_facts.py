"""What a correctness matrix says about our kernel, for one dtype: ordinary data apart from data made to break it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

from upstream_patch.records.schema import CaseResult
from upstream_patch.reference import Distribution

_STRESS = frozenset(get_args(Distribution)) - {"normal"}
KINDS = ("normal", "stress")

Named = tuple[str, float, str, bool]
"""(name, value, unit, whether it says something about our kernel)"""


def kind(case: CaseResult) -> str:
    """``normal``: random data that gives outputs near 1, in any shape and memory form. ``stress``: all other data."""
    label = case.case.split(".")
    return "stress" if _STRESS.intersection(label) or (label[0] == "data" and label[1:]) else "normal"


def is_ours(case: CaseResult) -> bool:
    """Our kernel's case; or one that failed before its kernel was named, which must not vanish from the count."""
    return bool(case.kernels) or not case.passed


def matrix_values(cases: Sequence[CaseResult]) -> Iterator[Named]:
    """Counts and worst errors of our kernel's cases, whole and by kind; of MLX's own route only how many were right."""
    ours = [case for case in cases if is_ours(case)]
    if len(ours) < len(cases):
        yield "other_route_passed", len(cases) - len(ours), "count", True
    yield from _values("", ours)
    for one in KINDS:
        yield from _values(f"{one}.", [case for case in ours if kind(case) == one])


def _values(prefix: str, cases: Sequence[CaseResult]) -> Iterator[Named]:
    if not cases:
        return
    yield f"{prefix}cases", len(cases), "count", True
    yield f"{prefix}passed", sum(case.passed for case in cases), "count", True
    yield f"{prefix}rows_equal_alone", sum(case.rows_equal_alone for case in cases), "count", True
    yield f"{prefix}written", sum(case.written for case in cases), "count", True
    yield f"{prefix}min_repeats_equal", min(case.repeats_equal for case in cases), "count", True
    checks = [case.check for case in cases]
    yield f"{prefix}max_norm_error", max(check.norm_error for check in checks), "norm", True
    yield f"{prefix}max_ulp", max(check.max_ulp for check in checks), "ulp", True
    errors = [check.stock_norm_error for check in checks if check.stock_norm_error is not None]
    ulps = [check.stock_max_ulp for check in checks if check.stock_max_ulp is not None]
    if errors and len(errors) == len(ulps):  # stock runs beside some cases only (correctness.run.asks_stock)
        yield f"{prefix}stock_cases", len(errors), "count", False
        yield f"{prefix}stock_max_norm_error", max(errors), "norm", False
        yield f"{prefix}stock_max_ulp", max(ulps), "ulp", False
