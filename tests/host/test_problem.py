"""A problem's id, shapes and bytes."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from upstream_patch.problem import DTYPE_BYTES, FLOATING, MLX_DTYPE, DType, Layout, Mode, Problem, parse_problem
from upstream_patch.reference import make_inputs


def test_ids() -> None:
    decode = Problem(m=7, n=128256, k=4096)
    assert decode.id == "4096x128256.b4.g64.bf16.M7"
    assert decode.model_copy(update={"layout": "b1k"}).id == "4096x128256.b4.g64.bf16.M7.b1k"
    assert Problem(m=1, n=8, k=64, mode="nvfp4", group_size=16, layout="1mk").id == "64x8.nvfp4.bf16.M1.1mk"
    heads = Problem(m=3, n=8, k=64, batch=32, layout="b1k")
    assert (heads.weights_id, heads.id) == ("64x8.b4.g64.bf16.h32", "64x8.b4.g64.bf16.h32.M3.b1k")


@given(
    size=st.tuples(*[st.integers(1, 10**6)] * 3),
    bits=st.sampled_from([2, 3, 4, 5, 6, 8]),
    group=st.sampled_from([16, 32, 64, 128]),
    mode=st.sampled_from(get_args(Mode)),
    dtype=st.sampled_from(get_args(DType)),
    layout=st.sampled_from(get_args(Layout)),
    batch=st.integers(1, 200),
)
def test_an_id_reads_back(
    size: tuple[int, int, int], bits: int, group: int, mode: Mode, dtype: DType, layout: Layout, batch: int
) -> None:
    m, n, k = size
    bits, group = FLOATING.get(mode, (bits, group))  # a floating mode fixes both
    problem = Problem(m=m, n=n, k=k, bits=bits, group_size=group, mode=mode, dtype=dtype, layout=layout, batch=batch)
    assert parse_problem(problem.id) == problem


@pytest.mark.parametrize(
    "text",
    [
        *("", "4096x4096", "4096x4096.b4.g64.bf16.M7.mk", "4096x4096.b4.g64.bf16.M7 ", "4096x4096.int4.g64.bf16.M7"),
        *("4096x4096.b4.g64.bf16.h1.M7", "4096x4096.b4.g64.bf16.h0.M7"),
    ],
)
def test_another_text_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected e\.g\. 4096x128256\.b4\.g64\.bf16\.M7"):
        parse_problem(text)
    with pytest.raises(ValidationError):
        parse_problem("4096x4096.b4.g64.bf16.M0")


@pytest.mark.parametrize("dtype", get_args(DType))
@pytest.mark.parametrize(("bits", "group"), [(4, 64), (3, 32), (8, 128)])
def test_bytes_are_those_of_the_arrays(bits: int, group: int, dtype: DType) -> None:
    problem = Problem(m=3, n=40, k=256, bits=bits, group_size=group, dtype=dtype, batch=2)
    inputs = make_inputs(problem, 0)
    assert problem.weight_bytes == inputs.packed.nbytes
    assert problem.scale_bytes == (inputs.scales.size + inputs.biases.size) * DTYPE_BYTES[dtype]
    assert problem.packed_bytes == problem.weight_bytes + problem.scale_bytes


@pytest.mark.parametrize("mode", FLOATING)
def test_a_scale_of_floating_point_weights_is_a_byte(mode: Mode) -> None:
    bits, group = FLOATING[mode]
    problem = Problem(m=3, n=40, k=256, bits=bits, group_size=group, mode=mode)
    inputs = make_inputs(problem, 0)
    assert inputs.scale_codes is not None
    assert (problem.weight_bytes, problem.scale_bytes) == (inputs.packed.nbytes, inputs.scale_codes.nbytes)


def test_the_published_problem() -> None:
    # 4096 x 28672, 4-bit g64 bf16: 66.06 MB, what Nsight Compute saw a one-row matmul read
    assert Problem(m=1, n=28672, k=4096).packed_bytes == 66_060_288
    assert Problem(m=1, n=32, k=64, mode="mxfp4", group_size=32).packed_bytes == 32 * 64 // 2 + 64


@pytest.mark.parametrize(("layout", "shape"), [("mk", (5, 64)), ("1mk", (1, 5, 64)), ("b1k", (5, 1, 64))])
def test_shape_of_x(layout: Layout, shape: tuple[int, ...]) -> None:
    assert Problem(m=5, n=8, k=64, layout=layout).x_shape == shape
    batched = {"mk": (3, 5, 64), "1mk": (1, 3, 5, 64), "b1k": (5, 3, 1, 64)}
    assert Problem(m=5, n=8, k=64, layout=layout, batch=3).x_shape == batched[layout]


def test_tables_cover_every_dtype() -> None:
    assert set(DTYPE_BYTES) == set(MLX_DTYPE) == set(get_args(DType))
