"""The facts of a decode row and of a traced step: a name, and (value, unit, whether it is about our kernel)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from statistics import median

from upstream_patch import kernels
from upstream_patch.records import stats
from upstream_patch.records.decode_schema import DecodeArm, DecodeModel, DecodeRow, DecodeTrace
from upstream_patch.records.watched import judged

Value = tuple[str, tuple[float | str, str, bool]]


def row_values(row: DecodeRow, model: DecodeModel, probe: float, mlx_lm: str) -> Iterator[Value]:
    """What was decoded, times and rates of each arm, and ours against each of the others as the geometric mean of
    paired ratios."""
    yield "weights", (model.weights, "text", False)
    yield "prompt", (row.prompt, "token", False)
    yield "mlx_lm", (mlx_lm, "text", False)
    for arm, measured in row.arms.items():
        for what, value, unit in _arm(row.batch, measured, model.step_bytes, probe):
            yield f"{arm}_{what}", (value, unit, arm == "ours")
    if len(row.ours.matmul_ms) == len(row.stock.matmul_ms):
        (alone,) = stats.geometric_mean_ratios([(row.stock.matmul_ms, row.ours.matmul_ms)])
        yield "matmul_speedup", (alone.value, "ratio", True)
        yield "matmul_speedup_low", (alone.low, "ratio", True)
        yield "matmul_speedup_high", (alone.high, "ratio", True)
    stock, ours_ms = row.stock.step_ms, row.ours.step_ms
    pairs = [(stock, ours_ms), (row.folded.step_ms, ours_ms), (stock, row.aa_ms)]
    over_stock, over_folded, noise = stats.geometric_mean_ratios(pairs)
    for name, ratio in (("speedup", over_stock), ("speedup_over_folded", over_folded)):
        yield name, (ratio.value, "ratio", True)
        yield f"{name}_low", (ratio.low, "ratio", True)
        yield f"{name}_high", (ratio.high, "ratio", True)
        judgement = judged(stats.verdict(ratio, noise, len(ours_ms)), row.watched)
        yield f"{name}_verdict", (str(judgement.verdict), "text", True)
        yield f"{name}_verdict_reason", (judgement.reason, "text", True)


def kernel_function(name: str) -> str:
    """The function of a kernel's name, without its namespaces, template and arguments, with our own instance's whole
    name: what a fact's id can hold. Instances of one template share it."""
    if ours := kernels.INSTANCE.search(name):
        return ours.group()
    plain = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    return re.sub(r"\W+", "_", re.split(r"[<(]", plain, maxsplit=1)[0].rpartition("::")[2]) or "unnamed"


def conditions(stems: Mapping[int, str], value: Callable[[str], float | str | None]) -> str | None:
    """What rows of decode were measured under, in words, which no number of theirs is to be shown without.

    ``stems`` has the rows (``decode.<host>.<model>.B<batch>``) by batch, ``value`` a fact's value by its id. Where rows
    differ, each is named by its batch. None where a row does not say.
    """
    said: dict[str, list[str]] = {}
    for batch, stem in stems.items():
        weights, prompt, mlx_lm = (value(f"{stem}.{name}") for name in ("weights", "prompt", "mlx_lm"))
        if weights is None or prompt is None or mlx_lm is None:
            return None
        said.setdefault(f"{weights} weights, {prompt:.0f}-token prompts, mlx-lm {mlx_lm}", []).append(f"{batch}")
    if len(said) == 1:
        return next(iter(said))
    return "; ".join(f"B = {', '.join(batches)}: {words}" for words, batches in said.items())


def trace_values(trace: DecodeTrace) -> Iterator[Value]:
    """us of a traced step: never a speed, only where its time goes, by function."""
    ours = trace.arm == "ours"
    yield "span_us", (trace.span_us, "us", ours)
    yield "kernels_us", (sum(one.us for one in trace.kernels), "us", ours)
    yield "launches", (sum(one.launches for one in trace.kernels), "count", ours)
    functions = dict.fromkeys(kernel_function(one.kernel) for one in trace.kernels)
    for function in functions:
        those = [one for one in trace.kernels if kernel_function(one.kernel) == function]
        yield f"{function}.us", (sum(one.us for one in those), "us", ours)
        yield f"{function}.launches", (sum(one.launches for one in those), "count", ours)


def _arm(batch: int, arm: DecodeArm, step_bytes: int, probe: float) -> Iterator[tuple[str, float, str]]:
    step, matmuls = median(arm.step_ms), median(arm.matmul_ms)
    yield "ms_step", step, "ms"
    yield "tok_s", 1e3 * batch / step, "tokens/s"
    yield "host_ms", median(arm.host_ms), "ms"
    yield "matmul_ms", matmuls, "ms"
    yield "matmul_share", matmuls / step, "ratio"
    yield "matmul_read_fraction", step_bytes / 1e6 / matmuls / probe, "ratio"
    yield "logits_error", arm.check.logits_error, "norm"
    if arm.generator_ms:
        yield "generator_ms_step", median(arm.generator_ms), "ms"
        yield "generator_tok_s", 1e3 * batch / median(arm.generator_ms), "tokens/s"
