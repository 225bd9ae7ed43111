"""The matrix: what it must cover, by default and whole."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from upstream_patch.correctness import Case, matrix
from upstream_patch.correctness.case import DTYPES, FORMS, LAYOUTS, repeats_of
from upstream_patch.kernels.tuning import FORMATS, USUAL, format_of
from upstream_patch.reference import distributions, make_inputs

REPORTS = {"mlx_3487", "mlx_3444", "rows_off_16_bytes", "nan_row", "torch_xpu_5001", "onnxruntime_134"} | {
    *("mlx_1758", "vllm_56887", "mlx_3473", "mlxcel_648")
}
"""Those of public reports, in rows that follow one another."""
OWN = REPORTS | {
    *("rows", "n_off_tile", "k_off_tile", "corner", "data", "lane_ownership", "formats", "format_data"),
    *("weight_batch", "repeats", "paths"),
}


def test_the_matrix_covers_what_it_must() -> None:
    cases = matrix()
    ours = [case for case in cases if case.route == "small_m"]
    seen = {(c.problem.m, c.problem.dtype, c.problem.layout) for c in ours}
    assert len({case.id for case in cases}) == len(cases) and 1700 < len(cases) < 2100
    assert seen >= {(m, d, la) for m in range(1, 17) for d in ("bf16", "f16") for la in ("mk", "1mk", "b1k")}
    assert {case[:2] for case in seen} >= {(m, d) for m in range(17, 33) for d in ("bf16", "f16")}
    assert {c.problem.n for c in ours} >= {1, 7, 15, 16, 17, 33, 127, 128, 129, 1000}
    assert {c.problem.k for c in ours} >= {64, 128, 192, 320, 576, 1024, 4096, 4160, 14336}
    hot = [make_inputs(c.problem, c.seed, "one_hot").x for c in ours if c.name == "lane_ownership"]
    many = {c.problem.m for c in ours if repeats_of(c.label) == 50}
    assert many == {1, 2, 8, 16, 32} and {repeats_of(c.label) for c in cases} == {20, 50}
    assert set(np.concatenate([x.argmax(axis=1) for x in hot])) == set(range(128))
    assert all(c.problem.dtype != "f32" for c in ours)
    formats = {(format_of(c.problem), c.problem.m, c.name) for c in ours}
    assert formats >= {(form, m, "formats") for form in FORMATS for m in (*range(1, 17), 17, 24, 25, 31, 32)}
    data = {(format_of(c.problem), c.distribution) for c in ours if c.name == "format_data"}
    assert data == {(form, name) for form in FORMATS for name in distributions(form.mode)}
    odd = [c for c in ours if c.problem.group_size == 32 and c.problem.k % 64]
    assert {c.problem.bits for c in odd} == {2, 3, 4, 5, 6, 8} and {c.problem.mode for c in odd} >= {"mxfp4", "mxfp8"}
    assert {c.problem.k % 64 for c in ours if c.problem.mode == "nvfp4"} == {0, 16, 32, 48}
    batches = [c.problem for c in ours if c.problem.batch > 1]
    assert {format_of(p) for p in batches} == set(FORMATS) and {p.layout for p in batches} == {"mk", "1mk", "b1k"}
    assert {p.m for p in batches if format_of(p) == USUAL} >= {1, 8, 17, 32}


def test_the_full_matrix_is_the_whole_cross_of_the_formats() -> None:
    cases = matrix(full=True)
    assert len(cases) == len({case.id for case in cases}) > 5000
    formats = [case.problem for case in cases if case.name == "formats"]
    assert len(formats) == 21 * 32 * 2 * 3
    assert len({(format_of(p), p.m, p.dtype, p.layout) for p in formats}) == len(formats)
    assert len({(format_of(p), p.dtype, p.layout, p.n) for p in formats}) == 21 * 2 * 3 * 7  # the shapes take turns
    assert len([case for case in cases if case.name == "weight_batch"]) == 21 * 8 * 2 * 3


def test_no_part_of_the_matrix_vanishes_unseen() -> None:
    """Every (name, form, route), by default and whole."""
    own = {("small_m", "plain"): OWN, ("small_m", "margins"): {"margins", "format_memory", "mlx_1577"}}
    own |= {("small_m", "odd_offset"): {"odd_offset", "format_memory"}, ("any", "not_transposed"): {"not_transposed"}}
    own |= {("other", "plain"): {"f32", "more_rows", "huge_batch", "mlx_3487", "mlxcel_648"}}
    own |= {("any", form): {"memory"} for form in ("x_strided", "x_transposed", "x_blocks")}
    own |= {("any", form): {"memory"} for form in ("w_row_strided", "w_column_slice")}
    own |= {("any", form): {"memory", "mlx_3480"} for form in ("w_batched", "w_broadcast")}
    wanted = {(name, form, route) for (route, form), names in own.items() for name in names}
    assert {(case.name, case.form, case.route) for case in matrix()} == wanted
    whole = {(case.name, case.form, case.route) for case in matrix(full=True)}
    assert whole == wanted | {("instances", "plain", "small_m")}
    assert {form for _, form, _ in wanted} == set(FORMS)


def test_memory_is_poisoned_in_every_format_and_each_form_has_every_dtype() -> None:
    cases = matrix()
    for name, forms in {"format_memory": ("margins", "odd_offset"), "mlx_1577": ("margins",)}.items():
        seen = {(format_of(c.problem), c.form) for c in cases if c.name == name}
        assert seen == set(product(FORMATS, forms))
    for name in ("margins", "odd_offset"):
        sizes = {(c.problem.dtype, c.problem.m, c.problem.k) for c in cases if c.name == name}
        assert sizes == set(product(DTYPES, (1, 7, 16), (64, 320, 1024)))
    usual = {(c.form, c.problem.dtype, c.problem.m) for c in cases if c.name == "memory" and c.problem.mode == "affine"}
    plain = [form for form in FORMS if form not in ("plain", "margins", "odd_offset", "not_transposed")]
    assert usual == set(product(plain, DTYPES, (2, 8)))
    assert {c.form for c in cases if c.name == "memory" and c.problem.mode != "affine"} == set(plain)
    assert {(c.problem.layout, c.problem.m) for c in cases if c.name == "more_rows"} == set(product(LAYOUTS, (33, 48)))
    assert {c.problem.layout for c in cases if c.name == "f32"} == set(LAYOUTS)


REPORTED_K = {16: {16, 48, 528}, 32: {32, 96, 160, 544, 608}, 64: {64, 192, 320, 576}, 128: {128, 384, 640}}


def test_the_reported_inputs_are_there_in_every_format() -> None:
    for full in (False, True):
        cases = matrix(full=full)

        def of(name: str, cases: Sequence[Case] = cases) -> list[Case]:
            return [case for case in cases if case.name == name]

        for form in FORMATS:
            ks = {c.problem.k for c in of("mlx_3444") if format_of(c.problem) == form}
            assert ks == REPORTED_K[form.group]
            assert {c.problem.k for c in of("mlx_1577") if format_of(c.problem) == form} == ks
            hot = [c for c in of("onnxruntime_134") if format_of(c.problem) == form]
            positions = [make_inputs(c.problem, c.seed, "one_hot").x.argmax(axis=1) for c in hot]
            assert set(np.concatenate(positions)) == set(range(2 * form.group))
        assert all(c.distribution == "one_hot" for c in of("onnxruntime_134"))
        for name in ("mlx_3444", "mlx_3487", "mlx_3480", "nan_row", "torch_xpu_5001", "mlx_3473", "mlx_1758"):
            assert {format_of(c.problem) for c in of(name)} == set(FORMATS), name
        scales = {(format_of(c.problem), c.problem.m > 1) for c in of("torch_xpu_5001") if "scales" in c.distribution}
        assert scales == set(product(FORMATS, (False, True)))
        rows = {(c.problem.bits, c.problem.k, c.problem.dtype) for c in of("rows_off_16_bytes")}
        assert rows == set(product((3, 5, 6), (32, 96, 160, 224), DTYPES))
        assert {(c.problem.batch, c.problem.m) for c in of("mlx_1758")} == set(product(range(2, 6), range(2, 9)))
        assert {c.problem.m for c in of("vllm_56887")} == {1, 2, 8, 16}
        assert {repeats_of(c.label) for c in of("vllm_56887")} == {50}
        assert {c.problem.m for c in of("mlx_3473")} == set(range(2, 17))
        assert {(c.distribution, format_of(c.problem)) for c in of("nan_row")} == set(
            product(("nan_row", "inf_row"), FORMATS)
        )
        assert {c.problem.m for c in of("mlx_3487")} >= {1, 17, 31, 33}
        assert {c.problem.n for c in of("mlx_3487")} == {7, 9, 15, 17, 31, 33, 63, 65, 127, 129}
        assert {(c.problem.batch, c.problem.m) for c in of("mlxcel_648")} == {(65_535, 1), (1, 65_536)}
