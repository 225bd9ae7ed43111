"""Inputs of public fault reports of quantized matmul, in every format: cases are named after the report."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from upstream_patch.correctness.case import DTYPES, Case, Form, problem_of
from upstream_patch.kernels.tuning import FORMATS, MAX_BATCH, USUAL
from upstream_patch.problem import Problem

ODD_K = {16: (16, 48, 528), 32: (32, 96, 160, 544, 608), 64: (64, 192, 320, 576), 128: (128, 384, 640)}
"""By group size: K that no tile of K divides."""
_OFF_TILE = (7, 9, 15, 17, 31, 33, 63, 65, 127, 129)
_STRIDE_0: tuple[Form, ...] = ("w_batched", "w_broadcast")
_HOT_ROWS = 32


def bug_cases(full: bool) -> Iterator[Case]:
    """Each once; ``full``: with both dtypes and more M."""
    yield from _tails(full)
    yield from _data(full)
    yield from _batches(full)
    for number, (m, form) in enumerate(product((1, 2, 8, 16), FORMATS if full else FORMATS[1::7])):
        # partial sums that meet in another order show in one call of fifty
        yield Case("vllm_56887", problem_of(form, m, 130, 4352, DTYPES[number % 2]))
    for m in range(2, 17):
        # the same row alone and in a batch
        for form in FORMATS if full else FORMATS[m % 7 :: 7]:
            yield Case("mlx_3473", problem_of(form, m, 33, 8 * form.group, DTYPES[m % 2]))


def _tails(full: bool) -> Iterator[Case]:
    for number, (form, n) in enumerate(product(FORMATS, _OFF_TILE)):
        if full or number % 4 == number // 10 % 4:
            for m in (1, 8, 17, 31) if full else ((1, 7, 9, 17, 31)[number % 5],):
                yield Case("mlx_3487", problem_of(form, m, n, 3 * form.group, DTYPES[number % 2]))
    yield Case("mlx_3487", Problem(m=33, n=129, k=192), route="other")
    for number, (form, turn) in enumerate(product(FORMATS, range(5))):
        if turn < len(ODD_K[form.group]):
            k = ODD_K[form.group][turn]
            for m, dtype in product((1, 8, 9, 17), DTYPES) if full else (((1, 9)[number % 2], DTYPES[turn % 2]),):
                yield Case("mlx_3444", problem_of(form, m, 129, k, dtype))
            # NaN behind x, scales and biases
            yield Case("mlx_1577", problem_of(form, 3, 33, k, DTYPES[number % 2]), form="margins")
    # rows of weights that start at every 4th or 8th byte
    for (form, k), dtype in product(product([f for f in FORMATS if f.bits in (3, 5, 6)], (32, 96, 160, 224)), DTYPES):
        if form.group == 32:
            yield Case("rows_off_16_bytes", problem_of(form, 7, 33, k, dtype))


def _data(full: bool) -> Iterator[Case]:
    for number, (form, m) in enumerate(product(FORMATS, (1, 5, 8, 16) if full else (1, 5))):
        # scales ten times apart from group to group
        yield Case("torch_xpu_5001", problem_of(form, m, 65, 8 * form.group, DTYPES[number // 2 % 2]), "group_scales")
    for form in FORMATS:
        # each position of two groups is the hot one of a row once
        for seed in range(max(1, 2 * form.group // _HOT_ROWS)):
            for dtype in DTYPES if full else DTYPES[seed % 2 :][:1]:
                problem = problem_of(form, _HOT_ROWS, 33, 2 * form.group, dtype)
                yield Case("onnxruntime_134", problem, "one_hot", seed=seed)
        yield Case("nan_row", problem_of(form, 7, 33, 5 * form.group, "bf16"), "nan_row")
        yield Case("nan_row", problem_of(form, 6, 33, 5 * form.group, "f16"), "inf_row")


def _batches(full: bool) -> Iterator[Case]:
    for number, (form, memory) in enumerate(product(FORMATS, _STRIDE_0)):
        for m in (2, 6) if full else (2,):
            problem = problem_of(form, m, 66, 5 * form.group, DTYPES[number // 2 % 2])
            yield Case("mlx_3480", problem, form=memory, route="any")
    for number, (batch, m) in enumerate(product(range(2, 6), range(2, 9))):
        for form in (USUAL, *(FORMATS[number % 3 :: 3] if full else FORMATS[number % len(FORMATS) :][:1])):
            yield Case("mlx_1758", problem_of(form, m, 65, 5 * form.group, DTYPES[number % 2], batch=batch))
    yield Case("mlxcel_648", Problem(m=1, n=16, k=64, batch=MAX_BATCH))
    yield Case("mlxcel_648", Problem(m=MAX_BATCH + 1, n=16, k=128, layout="b1k"), route="other")
