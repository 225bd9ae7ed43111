"""Metal headers made into C++: each edit of their text, and what ends in one line with the way out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from upstream_patch.errors import UserError
from upstream_patch.simulate import Buffer, Kernel, SimulatorCompileError, library, run
from upstream_patch.simulate.library import build
from upstream_patch.simulate.metal.lower import lower, lowered_headers, parameters
from upstream_patch.simulate.metal.mutations import PLANTS, mutable_kernel, without_each_barrier
from upstream_patch.simulate.metal.source import Instance, metal_kernel
from upstream_patch.simulate.metal.stock import HEADERS, Quantization, Route, stock_kernel


def test_every_edit_keeps_the_lines() -> None:
    text = """
  threadgroup T tile[
      N * (K + 8)];
void f(constant const int64_t strides[2], device T* x [[threadgroup(0)]]) {
  *((threadgroup Both*)(&to[i * 2])) =
      *((const device Both*)(&from[i]));
}
constant bool aligned [[function_constant(7)]];
"""
    lowered = lower(text, {7: True})
    assert lowered.count("\n") == text.count("\n")
    assert "threadgroup T* tile = ::lane_sim::array_of<T>(" in lowered
    assert "void f(constant const int64_t* strides, device T* x) {" in lowered
    assert "::lane_sim::assign(*(threadgroup Both*)(&to[i * 2])," in lowered
    assert "      *(const device Both*)(&from[i]));" in lowered
    assert "static const bool aligned = true;" in lowered
    assert "\nLANE_SIM_NO_VALUE(bool, aligned, 7);" in lower(text)


def test_literals_are_floats() -> None:
    same = "1 0x1.8p3 1.5f 2.0h 1e3f v.x a.b1 0x1e5 [0 ... 9] 1.2.3 x1.5 10u"
    assert lower(same) == same
    assert lower("1.0, .5 (2.) -1e-5+3.5E+7; 1e9\n") == "1.0f, .5f (2.f) -1e-5f+3.5E+7f; 1e9f\n"


def test_parameters_are_read_from_their_attributes() -> None:
    text = """[[kernel, max_total_threads_per_threadgroup(64)]] void k(
  const device T* a [[buffer(3)]], device T* b, const constant int& c,
  uint3 g [[threadgroup_position_in_grid]], vec<T, 2> (*unused)(int, int)) {}"""
    assert parameters(text, "k") == ("3", "4", "5", "threadgroup_position_in_grid", "6")
    with pytest.raises(UserError, match="no kernel other in these Metal sources"):
        parameters(text, "other")
    odd = "[[kernel]] void k(texture2d<float>  t [[texture(0)]]) {}"
    with pytest.raises(
        UserError, match=r"k: the simulator does not know what `texture2d<float> t \[\[texture\(0\)\]\]`"
    ):
        parameters(odd, "k")


def test_headers_that_are_not_those_of_the_known_mlx(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no header mlx/backend/metal/kernels/\S+: .* 0\.32\.4"):
        lowered_headers(tmp_path, HEADERS["nax"])
    for name in HEADERS["nax"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("// another version\n", encoding="utf-8")
    with pytest.raises(UserError, match="no kernel affine_qmm_t_nax in these Metal sources"):
        stock_kernel("nax", Quantization(4, 64, "bf16"), tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"void f() { // }\n", r"is damaged, `{` of line 1 has no other end"),
        (b"\nvoid f(int a[2) {}\n", r"is damaged, `\)` of line 2 has no other end"),
        (b"}\n", r"is damaged, `}` of line 1 has no other end"),
        (b"\n\n/* cut", r"is damaged, a comment of line 3 has no other end"),
        (b"// \xff\n", r"cannot be read \('utf-8' codec can't decode byte 0xff"),
    ],
)
def test_a_damaged_header_is_named(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "h.h").write_bytes(content)
    with pytest.raises(UserError, match=rf"^MLX's header h\.h {said}.*: install .*MLX 0\.32\.4 \(pip install") as e:
        lowered_headers(tmp_path, ["h.h"])
    assert "\n" not in str(e.value)


def test_brackets_that_are_none_and_other_branches_do_not_count(tmp_path: Path) -> None:
    text = """// (
char c = '{', *s = "\\"[";  /* { */
#if defined(A)
void f(int a) {
#elif B
void f() {
#else
  #ifdef C
  {
  #endif
void f(int b) {
#endif
}
"""
    (tmp_path / "h.h").write_text(text, encoding="utf-8")
    assert lowered_headers(tmp_path, ["h.h"])["h.h"] == text


def test_headers_that_the_mutations_do_not_fit() -> None:
    kernel = Kernel("k", {}, "", 0)
    with pytest.raises(UserError, match=r"MLX's headers do not include mlx/\S+nax\.h: the mutations fit .* MLX 0"):
        without_each_barrier("nax", kernel)
    with pytest.raises(UserError, match=r"do not include mlx/\S+: the mutations fit those of MLX 0"):
        PLANTS[0].apply(kernel)
    file = PLANTS[0].file
    for cut in ("(int a)", "(int a) { if (a) { }"):
        with pytest.raises(UserError, match=r"`void qmm_t_nax_tgp_impl\(` in MLX's headers has no whole body.* MLX"):
            without_each_barrier("nax", replace(kernel, files={file: f"void qmm_t_nax_tgp_impl{cut}"}))


def test_a_parameter_in_threadgroup_memory_is_refused(tmp_path: Path) -> None:
    text = "[[kernel]] void k(device int* out, threadgroup int* s [[threadgroup(0)]]) { out[0] = s[0]; }\n"
    (tmp_path / "h.h").write_text(text, encoding="utf-8")
    of_ours: dict[str, Any] = {"text": text}
    for given in (of_ours, {"headers": ["h.h"], "root": tmp_path}):
        with pytest.raises(
            UserError, match=r"^k: the simulator gives a parameter no threadgroup memory, `threadgroup i"
        ):
            metal_kernel("k", [Instance("k")], **given)


CONSTANTS = """
constant bool doubled [[function_constant(3)]];
[[kernel]] void k(device int* out [[buffer(0)]], uint i [[thread_position_in_grid]]) { out[i] = doubled ? 2 : 1; }
"""


@pytest.mark.needs_metal_front
def test_function_constants() -> None:
    for value in (True, False):
        kernel = metal_kernel("k", [Instance("k")], text=CONSTANTS, constants={3: value})
        out = Buffer(np.zeros(4, np.int32), output=True)
        assert set(run(kernel, [0, out], (2, 1, 1), (2, 1, 1), shared_limit=0).outputs[0]) == {1 + value}
    with pytest.raises(SimulatorCompileError, match="function constant 3, doubled, is used and has no value"):
        build(metal_kernel("k", [Instance("k")], text=CONSTANTS))


@pytest.mark.needs_metal_front
def test_another_error_beside_a_function_constant_is_told_as_it_is() -> None:
    text = CONSTANTS.replace(";\n[[kernel]]", '; static_assert(sizeof(doubled) == 2, "two bytes");\n[[kernel]]')
    assert text != CONSTANTS
    with pytest.raises(SimulatorCompileError, match=r"k\.metal:2:.* two bytes$"):
        build(metal_kernel("k", [Instance("k")], text=text))


@pytest.mark.needs_metal_front
@pytest.mark.parametrize(("call", "name"), [("simd_ballot(true)", "simd_ballot"), ("metal::fast::tanh(1)", "fast")])
def test_an_unknown_intrinsic_is_one_line_that_names_it(call: str, name: str) -> None:
    text = f"using namespace metal;\n[[kernel]] void k(device int* out) {{\n  out[0] = {call};\n}}\n"
    with pytest.raises(
        SimulatorCompileError, match=rf"k\.metal:3 uses {name}, which the .* upstream_patch/simulate/native/metal$"
    ) as e:
        build(metal_kernel("k", [Instance("k")], text=text))
    assert "\n" not in str(e.value)


@pytest.mark.needs_metal_front
@pytest.mark.parametrize(("target", "route"), [("aarch64-linux-gnu", "nax"), ("aarch64-macos", "wide")])
def test_stock_kernels_compile_for_other_machines(target: str, route: Route, tmp_path: Path) -> None:
    cxx = library.compiler("metal")
    if cxx.family != "zig":
        pytest.skip("only zig compiles for other machines")
    kernel = mutable_kernel(route)
    for name, text in {**kernel.files, "unit.cpp": kernel.unit}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    options = [*library._sources("metal"), *library._COMMON, *library._KERNEL, *library._FRONT["metal"]]
    library._run(
        cxx, ["-target", target, *options, *library._FAMILY["zig"], "-c", "unit.cpp"], "unit.o", tmp_path, route
    )


def test_an_edit_of_a_signature_changes_what_is_bound(tmp_path: Path) -> None:
    text = "[[kernel]] void k(device int* out [[buffer(0)]], device int* more [[buffer(1)]]) {}\n"
    (tmp_path / "k.h").write_text(text, encoding="utf-8")
    kernel = metal_kernel("k", [Instance("k")], headers=["k.h"], root=tmp_path)
    changed = kernel.edited("exchanged", "k.h", text, text.replace("0", "2"))
    assert "kinds[] = {0, 1};" in kernel.unit
    assert changed.unit == kernel.unit.replace("kinds[] = {0, 1};", "kinds[] = {2, 1};")
    with pytest.raises(UserError, match="no kernel k in these"):
        kernel.edited("gone", "k.h", "void k(", "void other(")


@pytest.mark.needs_metal_front
def test_a_header_that_does_not_compile_names_the_mlx_that_does(tmp_path: Path) -> None:
    header = "mlx/backend/metal/kernels/k.h"
    (tmp_path / header).parent.mkdir(parents=True)
    text = 'template <int bits> [[kernel]] void k(device int* out) { static_assert(bits == 2, "2 bits only"); }\n'
    (tmp_path / header).write_text(text, encoding="utf-8")
    kernel = metal_kernel("k", [Instance("k", "3")], headers=[header], root=tmp_path)
    with pytest.raises(
        SimulatorCompileError, match=r"k\.h:1.* 2 bits only; the simulator knows the headers of MLX 0"
    ) as e:
        build(kernel)
    assert "\n" not in str(e.value)
