"""Floating-point codes: the decode against mlx and against the formats' definitions, and the data made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from upstream_patch.floating import E2M1, E4M3, E8M0, ELEMENTS, SCALES, scale_codes
from upstream_patch.problem import FLOATING, DType, Mode, Problem
from upstream_patch.reference import (
    DISTRIBUTIONS,
    LOST,
    Distribution,
    distributions,
    make_inputs,
    matmul_fp64,
    pack,
    round_to,
)

MODES: tuple[Mode, ...] = ("mxfp4", "nvfp4", "mxfp8")


def problem_of(mode: Mode, m: int = 5, n: int = 40, k: int = 320, dtype: DType = "bf16", batch: int = 1) -> Problem:
    bits, group = FLOATING[mode]
    return Problem(m=m, n=n, k=k, bits=bits, group_size=group, mode=mode, dtype=dtype, batch=batch)


def test_the_tables_are_the_formats() -> None:
    np.testing.assert_array_equal(E2M1, [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    assert (E4M3[0x01], E4M3[0x07], E4M3[0x08], E4M3[0x38], E4M3[0x7E]) == (2**-9, 7 * 2**-9, 2**-6, 1, 448)
    assert np.flatnonzero(np.isnan(E4M3)).tolist() == [0x7F, 0xFF] and np.signbit(E4M3[0x80:]).sum() == 127
    assert (E8M0[0], E8M0[127], E8M0[254]) == (2.0**-127, 1, 2.0**127)
    assert np.flatnonzero(np.isnan(E8M0)).tolist() == [255] and len(E8M0) == 256


@pytest.mark.parametrize("mode", MODES)
def test_every_code_and_every_scale_is_mlx(mode: Mode) -> None:
    mx: Any = pytest.importorskip("mlx.core")
    bits, group = FLOATING[mode]
    every = np.arange(2**bits, dtype=np.uint8)
    q = np.tile(every, 256 // len(every))[None, :].repeat(256, axis=0)
    codes = np.arange(256, dtype=np.uint8)[:, None].repeat(256 // group, axis=1)
    with mx.stream(mx.cpu):
        theirs = mx.dequantize(
            mx.array(pack(q, bits)), mx.array(codes), group_size=group, bits=bits, mode=mode, dtype=mx.float32
        )
        values = np.array(theirs).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        ours = (ELEMENTS[mode][q] * SCALES[mode][np.arange(256)][:, None]).astype(np.float32).astype(np.float64)
    # E8M0's 255 is NaN; mlx's CPU backend takes it for 2^128
    rows = slice(None) if mode == "nvfp4" else slice(0, 255)
    np.testing.assert_array_equal(ours[rows], values[rows])
    assert np.isnan(ours[255]).all()


@pytest.mark.parametrize("mode", MODES)
def test_a_product_is_mlx(mode: Mode) -> None:
    mx: Any = pytest.importorskip("mlx.core")
    inputs = make_inputs(problem_of(mode, dtype="f32"), 1)
    bits, group = FLOATING[mode]
    with mx.stream(mx.cpu):
        x, w, scales = (mx.array(each) for each in (inputs.x, inputs.packed, inputs.scale_codes))
        theirs = np.array(mx.quantized_matmul(x, w, scales, group_size=group, bits=bits, mode=mode))
    np.testing.assert_allclose(inputs.reference(), theirs, rtol=0, atol=2e-6 * inputs.magnitude().max())


@pytest.mark.parametrize("mode", MODES)
def test_what_mlx_quantizes_is_what_it_was_to_an_element(mode: Mode) -> None:
    mx: Any = pytest.importorskip("mlx.core")
    bits, group = FLOATING[mode]
    with mx.stream(mx.cpu):
        w = mx.random.normal((16, 256), key=mx.random.key(1))
        packed, codes = mx.quantize(w, group_size=group, bits=bits, mode=mode)
        given = np.array(w).astype(np.float64)
        q = ELEMENTS[mode][np.array(packed).view(np.uint8)[:, :, None] >> np.array([0, 4])[: 8 // bits] & (2**bits - 1)]
        scales = np.repeat(SCALES[mode][np.array(codes)], group, axis=1)
    error = np.abs(q.reshape(16, 256) * scales - given)
    assert np.sqrt(np.mean(error**2)) < {"mxfp4": 0.15, "nvfp4": 0.15, "mxfp8": 0.04}[mode]


@pytest.mark.parametrize("mode", MODES)
def test_every_scale_is_its_own_nearest_code(mode: Mode) -> None:
    values = SCALES[mode]
    codes = np.flatnonzero(np.isfinite(values) & (values != 0))
    np.testing.assert_array_equal(scale_codes(values[codes], mode), codes)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(("mode", "distribution"), [(mode, name) for mode in MODES for name in distributions(mode)])
def test_inputs_are_what_their_codes_say(mode: Mode, distribution: Distribution, dtype: DType) -> None:
    problem = problem_of(mode, dtype=dtype)
    one, two = (make_inputs(problem, 3, distribution) for _ in range(2))
    assert one.scale_codes is not None
    for name in ("x", "packed", "scales", "scale_codes"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    np.testing.assert_array_equal(round_to(one.x.astype(np.float64), dtype), one.x)
    np.testing.assert_array_equal(one.scales, SCALES[mode][one.scale_codes])
    reference = one.reference()
    bad_rows = {"nan_row": 1, "inf_row": 1, "nan_codes": problem.m}.get(distribution, 0)
    assert (~np.isfinite(reference)).any(axis=1).sum() == bad_rows
    right = np.isfinite(reference)
    assert (np.abs(reference) <= one.magnitude() * (1 + 1e-12))[right].all()
    assert not one.removed().any() and not one.biases.any()
    some = one.columns([39, 0, 7])
    np.testing.assert_allclose(some.reference(), reference[:, [39, 0, 7]], rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_distributions_reach_what_they_name(mode: Mode) -> None:
    def outputs(distribution: Distribution, dtype: DType = "f16") -> np.ndarray[Any, Any]:
        return round_to(make_inputs(problem_of(mode, 16, 257, 1024, dtype), 1, distribution).reference(), dtype)

    large, small = outputs("large"), np.abs(outputs("small"))
    assert 0.001 < np.isinf(large).mean() < 0.9
    assert ((small > 0) & (small < 2.0**-14)).mean() > 0.1
    assert np.abs(outputs("large", "bf16")).max() > 1e26 and np.abs(outputs("small", "bf16")).max() < 1e-28
    assert (outputs("zero_groups") == 0).all(axis=0).any()
    nan = np.isnan(outputs("nan_codes")).all(axis=0)
    assert set(np.flatnonzero(nan)) == ({0, 128} if mode == "mxfp8" else {128})
    ends = make_inputs(problem_of(mode, 4, 257, 64), 1, "scale_ends")
    assert ends.scale_codes is not None and set(ends.scale_codes[:, 0]) >= set(range(127))
    zero = make_inputs(problem_of(mode), 1, "zero_codes")
    assert set(ELEMENTS[mode][zero.q].ravel()) == {0.0} and len(set(zero.q.ravel())) == 2 and (zero.scales > 0).all()
    growing = make_inputs(problem_of(mode), 1, "coherent")
    assert (growing.weights() >= 0).all() and (growing.x >= 0).all()


def test_which_distributions_there_are() -> None:
    assert distributions("affine") == DISTRIBUTIONS
    assert set(distributions("nvfp4")) - set(distributions("mxfp4")) == {"negative_scales"}
    assert (make_inputs(problem_of("nvfp4"), 1, "negative_scales").scales < 0).any()
    refused: list[tuple[Problem, Distribution]] = [
        (problem_of("mxfp4"), "negative_scales"),
        (problem_of("nvfp4"), "no_bias"),
        (Problem(m=1, n=1, k=64), "nan_codes"),
        (Problem(m=1, n=1, k=64, mode="nvfp4"), "normal"),  # groups of 64
    ]
    for problem, name in refused:
        with pytest.raises(ValueError, match="no reference"):
            make_inputs(problem, 0, name)


def test_the_magnitude_holds_what_is_lost() -> None:
    """An x that is lost, against a large weight, beside a large x, against a weight of 0."""
    inputs = make_inputs(problem_of("mxfp4", m=1, n=1, k=64), 0)
    inputs.x[:] = 0
    inputs.x[0, :2] = 1.0, LOST * 0.99
    codes = inputs.q.copy()
    codes[0, :2] = 0, 7
    for dtype, held in (("bf16", True), ("f16", False)):
        problem = inputs.problem.model_copy(update={"dtype": dtype})
        given = make_inputs(problem, 0)
        changed = type(given)(
            problem, 0, "normal", inputs.x, pack(codes, 4), given.scales, given.biases, given.scale_codes
        )
        lost = np.abs(changed.reference()).item()
        assert lost > 0 and (2.0**-20 * changed.magnitude().item() >= lost) == held


@pytest.mark.parametrize("mode", [*MODES, "affine"])
def test_a_batch_is_its_entries(mode: Mode) -> None:
    problem = problem_of(mode, batch=3) if mode in FLOATING else Problem(m=5, n=40, k=320, batch=3)
    inputs = make_inputs(problem, 1)
    for name in ("reference", "magnitude", "removed"):
        whole = getattr(inputs, name)()
        assert whole.shape == (15, 40)
        parts = [getattr(inputs.entry(i), name)() for i in range(3)]
        np.testing.assert_array_equal(whole, np.concatenate(parts))
        np.testing.assert_allclose(getattr(inputs.row(2), name)(), whole[2::5], rtol=1e-12, atol=1e-300)
    x, scales, biases = (a.astype(np.float64) for a in (inputs.x, inputs.scales, inputs.biases))
    last = matmul_fp64(x[10:], inputs.q[80:], scales[80:], biases[80:], problem.group_size, inputs.elements)
    np.testing.assert_array_equal(inputs.reference()[10:], last)
    assert not np.array_equal(inputs.entry(0).packed, inputs.entry(1).packed)
