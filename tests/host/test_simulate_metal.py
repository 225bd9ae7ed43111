"""The simulator's Metal: what its types and simdgroup functions compute, against numpy, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from upstream_patch.problem import DType
from upstream_patch.reference import round_to
from upstream_patch.simulate import ORDERS, SUMS, Buffer, Fault, Kernel, Order, Run, SimulatorCompileError, Sums, run
from upstream_patch.simulate.library import build
from upstream_patch.simulate.metal.source import Instance, metal_kernel
from upstream_patch.simulate.small_m import to_bits

pytestmark = pytest.mark.needs_metal_front

# `in` and `out` are words; 64 lanes, two simdgroups.
HEAD = "(const device uint* in [[buffer(0)]], device uint* out [[buffer(1)]], uint i [[thread_index_in_threadgroup]])"
BODIES = {
    "reverse": """
  threadgroup uint s[64];
  s[i] = in[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = s[63 - i];""",
    "unfenced": """
  threadgroup uint s[64];
  s[i] = in[i];
  threadgroup_barrier(mem_flags::mem_none);
  out[i] = s[63 - i];""",
    "in_simdgroup": """
  threadgroup uint s[64];
  s[i] = in[i];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = s[i ^ 1];""",
    "unwritten": """
  threadgroup uint s[64];
  out[i] = s[i];""",
    "past_the_array": """
  threadgroup uint s[64];
  threadgroup uint t[64];
  t[i] = 0;
  (s + 192)[i] = 0;
  out[i] = 0;""",
    "too_much": """
  threadgroup uint s[8193];
  s[i] = 0;
  out[i] = 0;""",
    "different_arrays": """
  if (i < 32) {
    threadgroup uint s[4];
    out[i] = s == nullptr;
  } else {
    threadgroup uint s[4];
    out[i] = s == nullptr;
  }""",
    "one_side_waits": """
  if (i < 32) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  out[i] = 0;""",
    "two_sides_meet": """
  for (uint k = 0; k < 2; ++k) {
    const auto meet = [&](auto side) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (k == 1) out[i] = side.value;
    };
    if (i < 32) meet(integral_constant<uint, 5>{}); else meet(integral_constant<uint, 6>{});
  }""",
    "odd_address": """
  out[i] = *(const device uint*)((const device uchar*)in + 2 * i);""",
    "past_the_end": """
  out[i] = in[i + 1];""",
    "simd": """
  const uint lane = __metal_get_thread_index_in_simdgroup(ushort());
  const float v = as_type<float>(in[i]);
  const float got[] = {
    simd_sum(v), simd_min(v), simd_max(v), simd_prefix_inclusive_sum(v), simd_shuffle(v, ushort(31 - lane)),
    simd_shuffle_xor(v, ushort(5)), simd_shuffle_down(v, ushort(3)), simd_shuffle_up(v, ushort(3)),
    simd_shuffle_and_fill_up(v, -1.0f, ushort(3)), quad_sum(v)};
  for (uint k = 0; k < 10; ++k) out[k * 64 + i] = as_type<uint>(got[k]);""",
    "types": """
  const uint2 pair = uint2(in[i], 7);
  const short2 point = short2(i, 2 * i) - short2(1, 1);
  const half h = static_cast<half>(as_type<float>(in[i]));
  const bfloat b = static_cast<bfloat>(as_type<float>(in[i]));
  out[i] = as_type<ushort>(h) | uint(as_type<ushort>(b)) << 16;
  out[64 + i] = as_type<ushort>(half(h * h + h)) | uint(as_type<ushort>(bfloat(b * b + b))) << 16;
  const uint2 both = ((const device uint2*)in)[i / 2];
  threadgroup uint s[64];
  const bool same = both[i % 2] == in[i] && space(in) == 1 && space(s) == 2;
  out[128 + i] = same * pair.y * 1000 + uint(point.y) * 8 + clamp(int(i), 1, 3);""",
}
# Overloads by address space, as Metal has them.
SPACES = """using std::integral_constant;
uint space(const device uint*) { return 1; }
uint space(const threadgroup uint*) { return 2; }
"""
KERNELS = SPACES + "".join(f"[[kernel]] void {name}{HEAD} {{{body}\n}}\n" for name, body in BODIES.items())
HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"


def metal(text: str, *names: str, **how: Any) -> Kernel:
    return metal_kernel("k", [Instance(name) for name in names], text=HEADER + text, **how)


def launch(name: str, given: NDArray[Any] | None = None, outputs: int = 64, lanes: int = 64, **how: Any) -> Run:
    kernel = metal(KERNELS, *BODIES)
    words = np.arange(64, dtype=np.uint32) if given is None else given
    out = Buffer(np.zeros(outputs, np.uint32), output=True)
    arguments: list[Buffer | int | None] = [list(BODIES).index(name), Buffer(words, at_end=True), out]
    return run(kernel, arguments, (1, 1, 1), (lanes, 1, 1), shared_limit=32768, **how)


def fault(name: str, **how: Any) -> Fault:
    (found,) = launch(name, **how).report.faults
    return found


def sound(name: str, given: NDArray[Any] | None = None, outputs: int = 64, **how: Any) -> NDArray[np.uint32]:
    result = launch(name, given, outputs, **how)
    assert result.report.faults == ()
    return np.asarray(result.outputs[0], np.uint32)


@pytest.mark.parametrize("order", ORDERS)
def test_threadgroup_memory_and_barriers(order: Order) -> None:
    assert list(sound("reverse", order=order, seed=3)) == list(range(63, -1, -1))
    assert list(sound("in_simdgroup", order=order))[:4] == [1, 0, 3, 2]
    # two instances of one lambda are one line of the source, and that is what barriers are matched by
    assert list(sound("two_sides_meet", order=order)) == [5] * 32 + [6] * 32


def test_a_barrier_without_a_memory_flag_orders_nothing() -> None:
    assert fault("unfenced").kind in ("race", "unwritten read")
    assert fault("unfenced", order="lockstep").kind == "race"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("unwritten", "unwritten read"),
        ("past_the_array", "out of bounds"),
        ("too_much", "launch"),
        ("different_arrays", "divergence"),
        ("one_side_waits", "divergence"),
        ("odd_address", "misaligned"),
        ("past_the_end", "out of bounds"),
    ],
)
def test_faults(name: str, kind: str) -> None:
    found = fault(name)
    assert found.kind == kind
    assert found.file == "k.metal"
    lines = (HEADER + KERNELS).split("\n")
    start = next(n for n, line in enumerate(lines, 1) if f"void {name}(" in line)
    assert found.line is not None
    assert start < found.line <= start + BODIES[name].count("\n")


def test_a_simdgroup_of_fewer_lanes_cannot_shuffle() -> None:
    assert fault("simd", lanes=48, outputs=640).kind == "partial warp"


def test_simdgroup_functions() -> None:
    values = np.random.default_rng(1).integers(-50, 50, 64).astype(np.float32)
    got = sound("simd", values.view(np.uint32), 640).view(np.float32).reshape(10, 2, 32)
    rows = values.reshape(2, 32)
    lane = np.arange(32)

    def whole(each: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.repeat(each[:, None], 32, 1)

    down, up = np.where(lane + 3 < 32, lane + 3, lane), np.where(lane - 3 >= 0, lane - 3, lane)
    quads = np.repeat(rows.reshape(2, 8, 4).sum(2), 4, 1)
    wanted = [
        *(whole(rows.sum(1)), whole(rows.min(1)), whole(rows.max(1)), rows.cumsum(1), rows[:, ::-1]),
        *(rows[:, lane ^ 5], rows[:, down], rows[:, up], np.where(lane < 3, -1, rows[:, up]), quads),
    ]
    names = ("sum", "min", "max", "prefix", "shuffle", "xor", "down", "up", "fill", "quad")
    for name, have, want in zip(names, got, wanted, strict=True):
        assert np.array_equal(have, want), name


def test_types_round_as_metal_does() -> None:
    values = np.random.default_rng(2).standard_normal(64).astype(np.float32)
    values[:6] = 1e-39, -3e-40, 1e-45, 6e-8, -1e-6, 65519.0  # subnormal in one type or both; f16's largest
    got = sound("types", values.view(np.uint32), 192).reshape(3, 64)
    kinds: dict[int, DType] = {0: "f16", 16: "bf16"}
    for shift, kind in kinds.items():
        once = round_to(values.astype(np.float64), kind)
        assert np.array_equal(got[0] >> shift & 0xFFFF, to_bits(once, kind))
        # after every operation, not after the last one only
        assert np.array_equal(got[1] >> shift & 0xFFFF, to_bits(round_to(once * once, kind) + once, kind))
    lane = np.arange(64)
    assert np.array_equal(got[2], 7000 + (2 * lane - 1).astype(np.uint32) * 8 + np.clip(lane, 1, 3))


PRODUCTS = """#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace mpp::tensor_ops;
// A [16, 16], B [16, 32] or its transpose, and C [16, 32] through MLX's map of elements to lanes.
template <typename T, bool left, bool right>
[[kernel]] void product(
    const device T* a, const device T* b, device float* c, uint lane [[thread_index_in_simdgroup]]) {
  constexpr auto how = matmul2d_descriptor(
      16, 32, 16, left, right, true, matmul2d_descriptor::mode::multiply_accumulate);
  matmul2d<how, execution_simdgroup> op;
  auto A = op.template get_left_input_cooperative_tensor<T, T, float>();
  auto B = op.template get_right_input_cooperative_tensor<T, T, float>();
  auto C = op.template get_destination_cooperative_tensor<decltype(A), decltype(B), float>();
  const int row = (lane / 16) * 4 + (lane / 2) % 4, column = (lane / 8 % 2) * 8 + (lane % 2) * 4;
  for (int i = 0; i < 8; ++i) {
    const int r = row + i / 4 * 8, k = column + i % 4;
    A[i] = a[r * 16 + k];
    for (int n = 0; n < 2; ++n) {
      B[8 * n + i] = right ? b[(r + 16 * n) * 16 + k] : b[r * 32 + k + 16 * n];
      C[8 * n + i] = 1;
    }
  }
  op.run(A, B, C);
  for (int i = 0; i < 16; ++i) c[(row + i / 4 % 2 * 8) * 32 + column + i % 4 + i / 8 * 16] = C[i];
}
[[kernel]] void small(
    const device float* a, const device float* b, device float* c, uint lane [[thread_index_in_simdgroup]]) {
  const int row = (lane / 16) * 4 + (lane / 2) % 4, column = (lane / 8 % 2) * 4 + (lane % 2) * 2;
  simdgroup_matrix<float, 8, 8> A, B, C;
  A.thread_elements() = float2(a[row * 8 + column], a[row * 8 + column + 1]);
  B.thread_elements() = float2(b[row * 8 + column], b[row * 8 + column + 1]);
  C.thread_elements() = float2(1, 1);
  simdgroup_multiply_accumulate(C, A, B, C);
  c[row * 8 + column] = C.thread_elements()[0];
  c[row * 8 + column + 1] = C.thread_elements()[1];
}
"""
PRODUCT_OF: dict[DType, str] = {"bf16": "bfloat", "f16": "half", "f32": "float"}
INSTANCES = [
    *(Instance("product", f"{PRODUCT_OF[kind]}, {a}, {b}") for kind in PRODUCT_OF for a, b in (("false", "true"),)),
    Instance("product", "float, true, false"),
    Instance("small"),
]


def product(number: int, a: NDArray[Any], b: NDArray[Any], size: int, sums: Sums = "exact") -> NDArray[np.float32]:
    kernel = metal_kernel("products", INSTANCES, text=HEADER + PRODUCTS)
    out = Buffer(np.zeros(size, np.float32), output=True)
    result = run(kernel, [number, Buffer(a), Buffer(b), out], (1, 1, 1), (32, 1, 1), shared_limit=0, sums=sums)
    assert result.report.faults == ()
    got: NDArray[np.float32] = result.outputs[0]
    return got


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize(("number", "kind"), list(enumerate(PRODUCT_OF)))
def test_matmul2d(number: int, kind: DType, sums: Sums) -> None:
    rng = np.random.default_rng(4)
    a, b = (round_to(rng.standard_normal(shape), kind) for shape in ((16, 16), (32, 16)))
    got = product(number, to_bits(a, kind), to_bits(b, kind), 512, sums).reshape(16, 32)
    exact = a @ b.T + 1
    assert np.abs(got - exact).max() < 1e-5
    assert sums != "exact" or np.array_equal(got, exact.astype(np.float32))


def test_the_other_operand_transposed_and_the_small_matrix() -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((16, 16), (16, 32)))
    assert np.allclose(product(3, a, b, 512).reshape(16, 32), a.T.astype(np.float64) @ b + 1, rtol=1e-6, atol=1e-6)
    c, d = (rng.standard_normal((8, 8)).astype(np.float32) for _ in range(2))
    assert np.allclose(product(4, c, d, 64).reshape(8, 8), c.astype(np.float64) @ d + 1, rtol=1e-6, atol=1e-6)


def test_sums_differ_in_their_last_bits_only() -> None:
    rng = np.random.default_rng(6)
    a, b = (to_bits(rng.standard_normal(s) * 2.0 ** rng.integers(-9, 9, s), "bf16") for s in ((16, 16), (32, 16)))
    assert len({product(0, a, b, 512, sums).tobytes() for sums in SUMS}) > 2


@pytest.mark.parametrize(
    "line",
    [
        "threadgroup uint* p = in;",
        "device uint* p = in;",
        "uint* p = (device uint*)in;",
        "uint v = 0; device uint* p = &v;",
        "\n  threadgroup uint s[4];\n  device uint* p = s;",
    ],
)
def test_pointers_of_different_address_spaces_do_not_mix(line: str) -> None:
    with pytest.raises(SimulatorCompileError, match=r"cannot initialize a variable of type") as e:
        build(metal(f"[[kernel]] void k{HEAD} {{ {line} out[i] = 0; }}", "k"))
    assert "\n" not in str(e.value)


def test_an_array_that_was_not_lowered_does_not_compile() -> None:
    with pytest.raises(SimulatorCompileError, match="automatic variable qualified with an address space"):
        build(metal(f"[[kernel]] void k{HEAD} {{ threadgroup uint s[2][2]; out[i] = s[0][0]; }}", "k"))
