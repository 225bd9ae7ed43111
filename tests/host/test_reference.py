"""The fp64 reference against mlx's own quantizer, and its rounding against every 16-bit value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from upstream_patch.problem import DType, Problem
from upstream_patch.reference import (
    BITS,
    DISTRIBUTIONS,
    GROUPS,
    Distribution,
    dequantize,
    from_bits,
    make_inputs,
    matmul_fp64,
    pack,
    round_to,
    ulp,
    unpack,
)

ALL_16 = np.arange(2**16, dtype=np.uint16)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_every_16_bit_value_is_kept(dtype: DType) -> None:
    values = from_bits(ALL_16, dtype)
    np.testing.assert_array_equal(round_to(values, dtype), values)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_ties_go_to_even_between_every_pair_of_neighbours(dtype: DType) -> None:
    positive = from_bits(ALL_16[:0x8000], dtype)
    finite = positive[np.isfinite(positive)]
    low, high = finite[:-1], finite[1:]
    odd_low = np.arange(len(low)) % 2 == 1
    middle = (low + high) / 2
    np.testing.assert_array_equal(round_to(middle, dtype), np.where(odd_low, high, low))
    np.testing.assert_array_equal(round_to(np.nextafter(middle, 0), dtype), low)
    np.testing.assert_array_equal(round_to(-np.nextafter(middle, np.inf), dtype), -high)
    np.testing.assert_array_equal(ulp(low, dtype), high - low)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_overflow_starts_half_an_ulp_past_the_largest(dtype: DType) -> None:
    values = from_bits(ALL_16[:0x8000], dtype)
    largest = values[np.isfinite(values)].max()
    edge = largest + ulp(np.array(largest), dtype) / 2
    got = round_to(np.array([np.nextafter(edge, 0), edge, -edge, np.inf, 1e300, np.nan]), dtype)
    np.testing.assert_array_equal(got, [largest, np.inf, -np.inf, np.inf, np.inf, np.nan])
    assert np.isnan(ulp(np.array([np.inf, np.nan]), dtype)).all()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(width=64), min_size=1, max_size=50))
def test_f16_and_f32_round_as_numpy(values: list[float]) -> None:
    wide = np.array(values)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(round_to(wide, "f32"), wide.astype(np.float32).astype(np.float64))
        np.testing.assert_array_equal(round_to(wide, "f16"), wide.astype(np.float16).astype(np.float64))


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_rounding_of_floats_is_mlx_astype(name: str) -> None:
    mx = pytest.importorskip("mlx.core")
    dtype: DType = "bf16" if name == "bfloat16" else "f16"
    # every upper half, with lower halves around the tie; NaN payloads are not compared, only NaN itself
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x1000, 0x0FFF, 0x1001], np.uint32)
    floats = ((np.arange(2**16, dtype=np.uint32) << 16)[:, None] | lower).view(np.float32).ravel()
    with mx.stream(mx.cpu):
        got = np.array(mx.array(floats).astype(getattr(mx, name)).astype(mx.float32))
    with np.errstate(invalid="ignore"):
        wide = floats.astype(np.float64)
    np.testing.assert_array_equal(round_to(wide, dtype), got.astype(np.float64))


@pytest.mark.parametrize("bits", BITS)
def test_pack_is_the_inverse_of_unpack(bits: int) -> None:
    q = np.random.default_rng(bits).integers(0, 2**bits, (7, 224), np.uint8)
    words = pack(q, bits)
    assert words.shape == (7, 224 * bits // 32)
    np.testing.assert_array_equal(unpack(words, bits), q)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6])
def test_pack_refuses_what_does_not_fit(bits: int) -> None:
    with pytest.raises(ValueError, match="more than"):
        pack(np.full((1, 32), 2**bits, np.uint8), bits)
    with pytest.raises(ValueError, match="whole 32-bit words"):
        pack(np.zeros((1, 33), np.uint8), bits)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("bits", BITS)
def test_layout_and_values_are_mlx(bits: int, group: int) -> None:
    mx = pytest.importorskip("mlx.core")
    with mx.stream(mx.cpu):
        rng = np.random.default_rng(7)
        w = mx.array(rng.standard_normal((33, 384)).astype(np.float32))
        x = mx.array(rng.standard_normal((3, 384)).astype(np.float32))
        packed, scales, biases = mx.quantize(w, group_size=group, bits=bits)
        q = unpack(np.array(packed), bits)
        wide = np.array(scales).astype(np.float64), np.array(biases).astype(np.float64)
        np.testing.assert_array_equal(pack(q, bits), np.array(packed))
        ours = dequantize(q, *wide, group)
        theirs = np.array(mx.dequantize(packed, scales, biases, group_size=group, bits=bits))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
        product = np.array(mx.quantized_matmul(x, packed, scales, biases, group_size=group, bits=bits))
    np.testing.assert_allclose(
        matmul_fp64(np.array(x).astype(np.float64), q, *wide, group), product, rtol=2e-6, atol=5e-5
    )


def test_chunks_of_n_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs(Problem(m=3, n=37, k=192, bits=5), 1)
    whole = inputs.reference()
    monkeypatch.setattr("upstream_patch.reference._CHUNK_BYTES", 192 * 8 * 5)
    np.testing.assert_allclose(make_inputs(Problem(m=3, n=37, k=192, bits=5), 1).reference(), whole, rtol=1e-13)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_inputs_are_exact_in_the_dtype_and_repeatable(distribution: Distribution, dtype: DType) -> None:
    problem = Problem(m=5, n=40, k=320, dtype=dtype)
    one, two = (make_inputs(problem, 3, distribution) for _ in range(2))
    for name in ("x", "scales", "biases"):
        values = getattr(one, name)
        np.testing.assert_array_equal(round_to(values.astype(np.float64), dtype), values)
        np.testing.assert_array_equal(values, getattr(two, name))
    np.testing.assert_array_equal(pack(one.q, 4), one.packed)
    reference = one.reference()
    bad_rows = {"nan_row": 1, "inf_row": 1}.get(distribution, 0)
    assert (~np.isfinite(reference)).any(axis=1).sum() == bad_rows
    some = one.columns([39, 0, 7])
    np.testing.assert_allclose(some.reference(), reference[:, [39, 0, 7]], rtol=1e-6)


def test_distributions_reach_what_they_name() -> None:
    def outputs(distribution: Distribution, dtype: DType = "f16") -> np.ndarray:
        return round_to(make_inputs(Problem(m=16, n=257, k=1024, dtype=dtype), 1, distribution).reference(), dtype)

    large, small = outputs("large"), np.abs(outputs("small"))
    assert 0.001 < np.isinf(large).mean() < 0.9
    assert ((small > 0) & (small < 2.0**-14)).mean() > 0.1
    assert (outputs("zero_groups") == 0).all(axis=0).any()
    coherent = make_inputs(Problem(m=4, n=9, k=1024), 1, "coherent")
    growing = np.abs(coherent.x).astype(np.float64) @ np.abs(coherent.weights()).T
    assert (coherent.reference() > 0.9 * growing).all()
    assert (coherent.biases > 10 * 15 * coherent.scales).all()
    positive, codes, zero = (
        make_inputs(Problem(m=4, n=9, k=1024), 1, name) for name in ("positive", "no_bias", "zero_codes")
    )
    assert (positive.x >= 0).all() and (positive.biases < 0).all()
    assert set(codes.q.ravel()) == {0, 1} and not codes.biases.any()
    assert not zero.q.any() and not zero.reference().any() and (zero.scales != 0).all()
    hot = make_inputs(Problem(m=4, n=9, k=64, dtype="bf16"), 2, "one_hot")
    weights = dequantize(hot.q, hot.scales.astype(np.float64), hot.biases.astype(np.float64), 64)
    np.testing.assert_allclose(hot.reference(), weights[:, 8:12].T, rtol=1e-15)


def test_what_has_no_reference_is_refused() -> None:
    for bad in (Problem(m=1, n=1, k=96), Problem(m=1, n=1, k=64, bits=7), Problem(m=1, n=1, k=64, mode="nvfp4")):
        with pytest.raises(ValueError, match="no reference"):
            make_inputs(bad, 0)
