"""Where Metal differs from what a C++ compiler would do by itself: built-in values, NaN, types, what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from upstream_patch.simulate import Buffer, Kernel, SimulatorCompileError, run
from upstream_patch.simulate.library import build
from upstream_patch.simulate.metal.source import Instance, metal_kernel

pytestmark = pytest.mark.needs_metal_front

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"
GRID, GROUP = (2, 3, 2), (4, 3, 5)
LANES = 60
PLACES = ("thread_position_in_threadgroup", "threadgroup_position_in_grid", "thread_position_in_grid")


def built_in(kind: str, place: str) -> str:
    """A kernel that writes what a built-in value of that type is, three words a lane of the grid."""
    words = {"2": "v.x, v.y, 0", "3": "v.x, v.y, v.z"}.get(kind[-1], "v, 0, 0")
    return f"""[[kernel]] void {kind}_{place}(
    device uint* out [[buffer(0)]], {kind} v [[{place}]], uint i [[thread_index_in_threadgroup]],
    uint3 g [[threadgroup_position_in_grid]]) {{
  const uint words[] = {{{words}}};
  const uint lane = ((g.z * {GRID[1]} + g.y) * {GRID[0]} + g.x) * {LANES} + i;
  for (uint k = 0; k < 3; ++k) out[3 * lane + k] = words[k];
}}
"""


KINDS = ("ushort", "ushort2", "ushort3", "uint", "uint2", "uint3")
BUILT_INS = list(product(KINDS, PLACES))


def positions(place: str) -> NDArray[np.int64]:
    """x, y, z of every lane of the grid, in the order of ``built_in``."""
    found = []
    for g in product(*(range(size) for size in reversed(GRID))):
        for t in product(*(range(size) for size in reversed(GROUP))):
            whole = tuple(a * size + b for a, size, b in zip(g, reversed(GROUP), t, strict=True))
            found.append(dict(zip(PLACES, (t, g, whole), strict=True))[place][::-1])
    return np.array(found)


@pytest.mark.parametrize(("kind", "place"), BUILT_INS)
def test_built_in_values_have_every_component(kind: str, place: str) -> None:
    text = HEADER + "".join(built_in(*each) for each in BUILT_INS)
    kernel = metal_kernel("k", [Instance(f"{kind}_{place}") for kind, place in BUILT_INS], text=text)
    wanted = positions(place)
    wanted[:, int(kind[-1]) if kind[-1].isdigit() else 1 :] = 0
    out = Buffer(np.zeros(wanted.shape, np.uint32), output=True)
    result = run(kernel, [BUILT_INS.index((kind, place)), out], GRID, GROUP, shared_limit=0)
    assert result.report.faults == ()
    assert np.array_equal(result.outputs[0], wanted)


def computed(body: str, words: int = 1) -> NDArray[np.uint32]:
    """What one lane writes to ``out``."""
    text = f"{HEADER}[[kernel]] void k(device uint* out, constant int& least) {{{body}}}\n"
    out = Buffer(np.zeros(words, np.uint32), output=True)
    kernel = metal_kernel("k", [Instance("k")], text=text)
    result = run(kernel, [0, out, -(2**31)], (1, 1, 1), (1, 1, 1), shared_limit=0)
    assert result.report.faults == ()
    return np.asarray(result.outputs[0], np.uint32)


def test_min_and_max_of_a_number_and_nan_are_the_number() -> None:
    body = """
  const float nan = as_type<float>(0x7fc00000u);
  const half h = half(nan);
  const float got[] = {min(nan, 1.0f), min(1.0f, nan), max(nan, 2.0f), max(2.0f, nan), float(min(h, half(3))),
                       float(max(bfloat(4), bfloat(nan))), min(nan, nan), clamp(nan, 5.0f, 6.0f)};
  for (int i = 0; i < 8; ++i) out[i] = as_type<uint>(got[i]);"""
    got = computed(body, 8).view(np.float32)
    assert np.array_equal(got, np.array([1, 1, 2, 2, 3, 4, np.nan, 5], np.float32), equal_nan=True)


def test_a_literal_without_a_suffix_is_a_float() -> None:
    body = """
  const auto tenth = 0.1;
  static_assert(is_same_v<decltype(tenth), const float>);
  out[0] = as_type<uint>(float(as_type<float>(out == nullptr ? 0u : 0x3f800001u) * 1.1));"""
    assert computed(body)[0] == (np.float32(1 + 2**-23) * np.float32(1.1)).view(np.uint32)


def test_abs_keeps_the_type_and_every_bit() -> None:
    body = """
  const int large = least + 128;
  static_assert(is_same_v<decltype(abs(large)), int> && is_same_v<decltype(abs(half(1))), half>);
  out[0] = uint(abs(large));
  out[1] = uint(abs(least));
  out[2] = uint(abs(short(-7))) + uint(abs(3u));
  out[3] = as_type<uint>(abs(-0.0f)) | as_type<ushort>(abs(half(-1)));"""
    assert list(computed(body, 4)) == [2**31 - 128, 2**31, 10, 0x3C00]


def test_a_matrix_of_a_simdgroup_is_nan_until_it_is_set() -> None:
    body = """
  simdgroup_matrix<float, 8, 8> a;
  simdgroup_matrix<bfloat, 8, 8> b;
  out[0] = as_type<uint>(a.thread_elements()[0]);
  out[1] = as_type<uint>(a.thread_elements()[1]);
  out[2] = as_type<ushort>(b.thread_elements()[1]);"""
    assert list(computed(body, 3)) == [0x7FC00000, 0x7FC00000, 0x7FC0]


def test_a_shuffle_from_a_lane_that_there_is_not_gives_no_number() -> None:
    text = """[[kernel]] void k(device uint* out, uint lane [[thread_index_in_simdgroup]]) {
  out[lane] = simd_shuffle(lane, ushort(lane < 4 ? 28 + 2 * lane : 5));
  out[32 + lane] = simd_shuffle_xor(lane, ushort(lane < 4 ? 1 : 32));
  out[64 + lane] = as_type<uint>(simd_shuffle(float(lane), ushort(32)));
}
"""
    out = Buffer(np.zeros((3, 32), np.uint32), output=True)
    kernel = metal_kernel("k", [Instance("k")], text=HEADER + text)
    result = run(kernel, [0, out], (1, 1, 1), (32, 1, 1), shared_limit=0)
    assert result.report.faults == ()
    none = 2**32 - 1
    assert result.outputs[0].tolist() == [[28, 30, none, none, *[5] * 28], [1, 0, 3, 2, *[none] * 28], [none] * 32]


def refused(text: str) -> str:
    kernel: Kernel = metal_kernel("k", [Instance("k")], text=HEADER + text)
    with pytest.raises(SimulatorCompileError) as e:
        build(kernel)
    assert "\n" not in str(e.value)
    return str(e.value)


@pytest.mark.parametrize("line", ["double v = 1; out[0] = v;", "out[0] = (double)out[1];", "metal::vec<double, 2> v;"])
def test_double_does_not_compile(line: str) -> None:
    assert "k.metal:3" in (said := refused(f"[[kernel]] void k(device uint* out) {{ {line} }}"))
    assert "Metal has no double" in said


def test_a_built_in_value_of_another_type_does_not_compile() -> None:
    said = refused("[[kernel]] void k(device int* out, int3 i [[thread_position_in_grid]]) { out[i.x] = 0; }")
    assert "a built-in value is a ushort or uint, or two or three of them" in said


@pytest.mark.parametrize("often", [False, True], ids=["not optimized", "optimized"])
def test_half_is_what_ieee_says_whoever_converts(often: bool) -> None:
    """Where the compiler calls for a conversion it gets one of the front's own."""
    text = HEADER + (
        "[[kernel]] void k(device const half* h [[buffer(0)]], device const float* f [[buffer(1)]],"
        " device float* wide [[buffer(2)]], device half* narrow [[buffer(3)]],"
        " uint i [[thread_position_in_grid]]) { wide[i] = float(h[i]); narrow[i] = half(f[i]); }"
    )
    kernel = replace(metal_kernel("k", [Instance("k")], text=text), many_launches=often)
    count = 1 << 16
    halves = np.arange(count, dtype=np.uint16)
    # every half's neighbourhood: itself, the middle to the next one, and one bit to either side of that
    floats = np.concatenate([halves.view(np.float16).astype(np.float32)[::4].view(np.uint32)] * 4)
    floats += np.repeat(np.array([0, 0xFFF, 0x1000, 0x1001], np.uint32), count // 4)
    outputs = [Buffer(np.zeros(count, kind), output=True) for kind in (np.uint32, np.uint16)]
    result = run(
        kernel, [0, Buffer(halves), Buffer(floats), *outputs], (count // 256, 1, 1), (256, 1, 1), shared_limit=0
    )
    assert result.report.faults == ()
    wanted: tuple[NDArray[Any], ...]
    with np.errstate(over="ignore"):
        wanted = halves.view(np.float16).astype(np.float32), floats.view(np.float32).astype(np.float16)
    for bits, right in zip(result.outputs, wanted, strict=True):
        found = bits.view(right.dtype)
        assert np.array_equal(np.isnan(found), np.isnan(right))
        assert np.array_equal(bits[~np.isnan(right)], right.view(bits.dtype)[~np.isnan(right)])
