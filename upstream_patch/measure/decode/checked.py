"""Is what is timed right? A decode row cannot be made without this module's answer."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

from upstream_patch.measure.checked import WrongResult
from upstream_patch.measure.decode.arms import Call, dense_matmul, matmul_is
from upstream_patch.measure.decode.loop import State, lm_cache
from upstream_patch.records.decode_schema import DecodeCheck

LOGITS_BOUND = 2**-4
"""Of the logits of a row, over their norm: 32 layers of bf16 activations are off by 1 to 2 %."""
MATMUL_BOUND = 2**-5
"""Of the outputs of a row of one matmul: stock's bf16 accumulators are off by 4e-3 on CUDA and by 2e-2 on a CPU, one
wrong output of 1,024 by 4e-2."""


def dense_logits(state: State) -> Any:
    """[B, vocabulary] in fp32: prompt and first step with dense weights, activations and cache all in fp32."""
    mx: Any = import_module("mlx.core")
    cache = lm_cache(state.built)
    with matmul_is(dense_matmul):
        state.built.module(state.prompts, cache=cache)  # its logits are not asked for, so they are not computed
        for layer in cache:
            mx.eval(layer.state)
        logits = state.built.module(state.first[:, None], cache=cache)[:, -1]
        mx.eval(logits)
    return logits


def check(arm: str, logits: Any, calls: list[Call], dense: Any) -> DecodeCheck:
    """Of one arm's step. Raises WrongResult, naming what is wrong, instead of giving a check that did not pass."""
    logits_error = _error(logits, dense)
    matmul_error = _worst([_error(call.y, _dense(call)) for call in calls])
    if logits_error > LOGITS_BOUND or matmul_error > MATMUL_BOUND:
        raise WrongResult(
            f"decode, {arm} at {logits.shape[0]} sequences is wrong, nothing of it was recorded: logits off by "
            f"{logits_error:.3g} (bound {LOGITS_BOUND:g}), the worst of {len(calls)} matmuls by {matmul_error:.3g} "
            f"(bound {MATMUL_BOUND:g})"
        )
    return DecodeCheck(
        passed=True,
        logits_error=logits_error,
        matmul_error=matmul_error,
        matmuls=len(calls),
        bound=f"logits within {LOGITS_BOUND:g}, every matmul within {MATMUL_BOUND:g} of its row's norm",
    )


def _dense(call: Call) -> Any:
    w, scales, biases = call.operands
    return dense_matmul(call.x, w, scales, biases, **call.named)


def _error(got: Any, right: Any) -> float:
    """Norm of the difference over the norm of ``right``, of the worst row; Inf where anything is NaN."""
    mx: Any = import_module("mlx.core")
    got, right = (y.reshape(-1, y.shape[-1]).astype(mx.float32) for y in (got, right))
    rows = mx.sqrt(mx.sum((got - right) ** 2, axis=-1) / mx.sum(right**2, axis=-1))
    return _worst(rows.tolist())


def _worst(errors: list[float]) -> float:
    """The largest; Inf where one is no number, which ``max`` may pass over."""
    return max(math.inf if math.isnan(error) else error for error in errors)
