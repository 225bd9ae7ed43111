"""The matrix: what it must cover, by default and whole."""

from __future__ import annotations

import numpy as np

from upstream_patch.correctness import matrix
from upstream_patch.correctness.cases import repeats_of
from upstream_patch.kernels.tuning import FORMATS, USUAL, format_of
from upstream_patch.reference import distributions, make_inputs


def test_the_matrix_covers_what_it_must() -> None:
    cases = matrix()
    ours = [case for case in cases if case.route == "small_m"]
    seen = {(c.problem.m, c.problem.dtype, c.problem.layout) for c in ours}
    assert len({case.id for case in cases}) == len(cases) and 1100 < len(cases) < 1450
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
