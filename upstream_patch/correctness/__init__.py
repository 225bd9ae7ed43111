"""The matrix of cases, the error measures and the verdict. mlx is imported only where cases run."""

from __future__ import annotations

from upstream_patch.correctness.case import Answer, Case, answer
from upstream_patch.correctness.cases import matrix
from upstream_patch.correctness.errors import HARD_CAP, STOCK_FACTOR, bounds, check, norm_error
from upstream_patch.correctness.forms import to_mlx
from upstream_patch.correctness.run import (
    Arms,
    MlxArms,
    Progress,
    compile_ahead,
    complaints,
    failures,
    matrix_here,
    run_case,
    run_cases,
    run_matrix,
)

__all__ = [
    "HARD_CAP",
    "STOCK_FACTOR",
    "Answer",
    "Arms",
    "Case",
    "MlxArms",
    "Progress",
    "answer",
    "bounds",
    "check",
    "compile_ahead",
    "complaints",
    "failures",
    "matrix",
    "matrix_here",
    "norm_error",
    "run_case",
    "run_cases",
    "run_matrix",
    "to_mlx",
]
