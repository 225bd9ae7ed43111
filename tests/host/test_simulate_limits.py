"""What the simulator refuses to launch, and the kernels that touch what they must not or that never end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from upstream_patch.errors import UserError
from upstream_patch.simulate import Buffer, Fault, Run, compiler, cuda_kernel, run
from upstream_patch.simulate.library import build
from upstream_patch.simulate.lines import line_of
from upstream_patch.simulate.metal.source import Instance, metal_kernel

pytestmark = pytest.mark.needs_simulator
LANES = 64


def launch(
    body: str, *extra: int | Buffer | None, parameters: str = "", before: str = "", lanes: int = LANES, **how: Any
) -> Run:
    """A block of ``lanes``: ``in`` and ``out`` are ints, ``s`` the shared memory; the body begins on line 5."""
    text = f"""{before}extern "C" __global__ void k(const int* in, int* out{parameters}) {{
  extern __shared__ __align__(128) int s[];
  using namespace upstream_patch;
  const int i = threadIdx.x;
{body}
}}
"""
    given = Buffer(np.arange(lanes, dtype=np.int32))
    out = Buffer(np.zeros(lanes, np.int32), output=True)
    kernel = cuda_kernel("k", {}, text, 4096)
    return run(kernel, [given, out, *extra], (1, 1, 1), (lanes, 1, 1), shared_limit=65536, **how)


def fault(body: str, **how: Any) -> Fault:
    (found,) = launch(body, **how).report.faults
    return found


PARAMETERS = ", int n, unsigned u, unsigned char c, bool b, long long q, const float* f"
RIGHT = (-5, 2**32 - 1, 255, True, -(2**40), None)


def test_arguments_that_fit_their_parameters_arrive() -> None:
    body = "  out[i] = n + (u == 0xFFFFFFFF) + (c == 255) + b + (q == -(1ll << 40)) + (f == nullptr);"
    result = launch(body, *RIGHT, parameters=PARAMETERS)
    assert result.report.faults == ()
    assert set(result.outputs[0]) == {0}


@pytest.mark.parametrize(
    ("number", "argument", "message"),
    [
        (0, None, "parameter 2 is an integer; it takes an int, not a NoneType"),
        (0, Buffer(np.zeros(4)), "parameter 2 is an integer; it takes an int, not a Buffer"),
        (0, 2**31, "parameter 2 is an integer of 32 bits; 2147483648 does not fit"),
        (1, -1, "parameter 3 is an unsigned integer of 32 bits; -1 does not fit"),
        (2, 256, "parameter 4 is an unsigned integer of 8 bits; 256 does not fit"),
        (3, 2, "parameter 5 is an integer of 1 bit; 2 does not fit"),
        (4, 2**63, "parameter 6 is an integer of 64 bits"),
        (5, 7, "parameter 7 is a pointer; it takes a Buffer or None, not 7"),
    ],
)
def test_an_argument_that_does_not_fit_is_one_line(number: int, argument: Any, message: str) -> None:
    wrong = [*RIGHT[:number], argument, *RIGHT[number + 1 :]]
    with pytest.raises(UserError, match=message):
        launch("  out[i] = 0;", *wrong, parameters=PARAMETERS)


def test_the_number_of_arguments_is_that_of_the_parameters() -> None:
    with pytest.raises(UserError, match="k has 3 parameters, and is given 2 arguments"):
        launch("  out[i] = n;", parameters=", int n")
    with pytest.raises(UserError, match="k has 2 parameters, and is given 3 arguments"):
        launch("  out[i] = 0;", 5)
    with pytest.raises(UserError, match="parameter 2 is neither a pointer nor an integer"):
        launch("  out[i] = 0;", 5, parameters=", float f")


@pytest.mark.needs_metal_front
def test_a_metal_parameter_without_an_argument_is_a_fault_and_not_what_an_earlier_launch_left() -> None:
    text = """#include <metal_stdlib>
[[kernel]] void k(const device uint* in [[buffer(0)]], device uint* out [[buffer(1)]]) { out[0] = in[0]; }
"""
    kernel = metal_kernel("k", [Instance("k")], text=text)
    given, out = Buffer(np.ones(1, np.uint32)), Buffer(np.zeros(1, np.uint32), output=True)
    assert run(kernel, [0, given, out], (1, 1, 1), (1, 1, 1), shared_limit=0).report.faults == ()
    (found,) = run(kernel, [0, given], (1, 1, 1), (1, 1, 1), shared_limit=0).report.faults
    assert (found.kind, found.file) == ("out of bounds", "launch.h")


@pytest.mark.parametrize("optimized", [False, True])
def test_what_nobody_asked_to_be_checked_does_not_end_the_process(optimized: bool) -> None:
    """zig checks more by itself in what is not optimized, and its own run time would abort."""
    text = (
        'extern "C" __global__ void k(const int* in, int* out) { out[threadIdx.x] = __builtin_clz(in[threadIdx.x]); }'
    )
    kernel = replace(cuda_kernel("k", {}, text, 0), many_launches=optimized)
    given, out = Buffer(np.zeros(32, np.int32)), Buffer(np.zeros(32, np.int32), output=True)
    assert run(kernel, [given, out], (1, 1, 1), (32, 1, 1), shared_limit=65536).report.faults == ()


POINTER = "  const long long at = {at};\n  out[i] = *reinterpret_cast<const int*>(at + in[i] * 0);"


# The second is an address that can be read: nothing but the check stands in the way.
@pytest.mark.parametrize("at", ["1ll << 40", "reinterpret_cast<long long>(&elsewhere)"])
def test_a_read_outside_of_every_buffer_has_its_line(at: str) -> None:
    found = fault(POINTER.format(at=at), before="int elsewhere[4];\n#line 1\n", checks=("bounds",))
    assert (found.kind, found.line) == ("out of bounds", 6)
    assert "read of 4 bytes at 0x" in found.text
    assert "in no buffer" in found.text


def test_an_index_out_of_a_lanes_array_does_not_land_in_another_lanes() -> None:
    body = "  int own[4] = {1, 2, 3, 4};\n  const int* at = own;\n  out[i] = at[(in[i] + 1) * 60000];"
    found = fault(body, checks=("bounds",))
    assert (found.kind, found.line, found.lane) == ("out of bounds", 7, 0)


def test_a_table_of_constants_can_be_read() -> None:
    body = "  out[i] = table[in[i] % 5] + *pointers[in[i] % 2];"
    before = "static const int table[5] = {3, 1, 4, 1, 5};\nstatic const int* const pointers[2] = {table, table + 2};\n"
    result = launch(body, before=before)
    assert result.report.faults == ()
    assert list(result.outputs[0][:4]) == [6, 5, 7, 5]


WIDE = "struct Wide { int v[8]; };\n#line 1\n"


TO, FROM = "*reinterpret_cast<Wide*>", "*reinterpret_cast<const Wide*>"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (f"  {TO}(out + 8 * i) = {FROM}(in + 8 * i);", "out of bounds"),
        (f"  {TO}(s + 8 * (i % 32)) = {FROM}(in + 8 * (i % 8));\n  out[i] = 0;", "race"),
        (f"  Wide own = {FROM}(s + 8 * i);\n  out[i] = own.v[i % 8];", "unwritten read"),
        (f"  if (i < 8) {TO}(out + 4 * i) = {FROM}(in + 4 * i);", "written twice"),
        (f"  {TO}(const_cast<int*>(in)) = Wide{{}};\n  out[i] = 0;", "write to an input"),
    ],
)
def test_a_whole_structure_of_more_than_16_bytes_is_seen(body: str, kind: str) -> None:
    found = fault(body, before=WIDE)
    assert (found.kind, found.line) == (kind, 5)


def test_a_loop_that_polls_shared_memory_ends_and_says_where_all_lanes_are() -> None:
    body = """  volatile int* flag = s;
  if (i == 0) *flag = 0;
  __syncthreads();
  if (i >= 32) { while (*flag == 0) {} }
  __syncthreads();
  out[i] = 0;"""
    found = fault(body, steps=1 << 22)
    assert (found.kind, found.line) == ("endless", 8)
    assert "no end after 4194304 steps of one block" in found.text
    assert "lane 0 and 31 more: wait at __syncthreads (line 9)" in found.text
    assert "more: run, last at k.cu:8" in found.text


def test_a_loop_that_polls_a_buffer_ends() -> None:
    found = fault("  volatile const int* at = in;\n  while (*at == 0) {}\n  out[i] = 0;", steps=1 << 16)
    assert (found.kind, found.line) == ("endless", 6)


ENDLESS = """  unsigned n = in[i];
  do {
    n = n * 3 + 1;
    asm volatile("" : "+r"(n));
  } while (n != 0 || i == 0);
  out[i] = n;"""


def test_code_of_no_line_of_its_own_is_of_the_line_before() -> None:
    """Where the two conditions of a loop meet, unoptimized code has line 0; an alarm may come there, too."""
    if compiler().family == "gcc":
        pytest.skip("g++ gives every instruction a line")
    elf = pytest.importorskip("elftools.elf.elffile")
    text = f'extern "C" __global__ void k(const int* in, int* out) {{ const int i = threadIdx.x;\n{ENDLESS} }}'
    library = build(cuda_kernel("k", {}, text, 0))
    with library.open("rb") as stream:
        debug = elf.ELFFile(stream).get_dwarf_info()
        programs = [debug.line_program_for_CU(unit) for unit in debug.iter_CUs()]
        states = [entry.state for each in programs for entry in each.get_entries() if entry.state is not None]
    lineless = [state.address for state in states if not state.line and not state.end_sequence]
    assert ("k.cu", 6) in [line_of(library, address + 1) for address in lineless]


def test_a_loop_that_touches_nothing_ends() -> None:
    found = fault(ENDLESS, seconds=0.3)
    assert found.kind == "endless"
    assert found.line in (6, 7, 8, 9)
    assert "the launch has run for 0.3 s; lane 0: run, last at k.cu:5; lane 1 and 62 more: run" in found.text
    again = launch("  out[i] = in[i];")
    assert again.report.faults == ()


def test_the_time_of_a_launch_ends_a_loop_that_touches_memory() -> None:
    found = fault("  volatile const int* at = in;\n  while (*at == 0) {}\n  out[i] = 0;", seconds=0.1)
    assert (found.kind, found.line) == ("endless", 6)
    assert "no end after 0.1 s" in found.text


@pytest.mark.parametrize("read", ["out[i] = in[i];", "(void)0;"], ids=["after an access", "before any"])
def test_a_loop_over_a_lanes_own_memory_is_named_and_not_the_engine(read: str) -> None:
    body = f"""  int volatile own[4] = {{1, 2, 3, 4}};
  {read}
  while (own[i % 4] != 0) {{
    own[(i + 1) % 4] = 7;
  }}
  out[i] = own[0];"""
    for seconds in (0.02, 0.05, 0.1):
        found = fault(body, seconds=seconds)
        assert (found.kind, found.file) == ("endless", "k.cu")
        assert found.line in (7, 8)
        assert f"no end after {seconds} s; lane 0: run, last at k.cu:" in found.text


def test_a_loop_in_the_simulators_own_work_is_placed_at_the_lanes_last_access() -> None:
    found = fault(
        "  int n = in[i];\n  for (;;) { copy_async_commit(); if (n < 0) break; }\n  out[i] = n;", seconds=0.05
    )
    assert (found.kind, found.file) == ("endless", "k.cu")
    assert found.line in (5, 6)


@pytest.mark.parametrize("how", [{"steps": 0}, {"seconds": 0.0}, {"seconds": float("inf")}])
def test_a_launch_without_a_limit_is_refused(how: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="a launch needs steps and time"):
        launch("  out[i] = 0;", **how)


@pytest.mark.parametrize("order", ["in_order", "reversed", "random"])
def test_a_warp_that_polls_for_another_one_gets_its_answer(order: str) -> None:
    body = """  volatile int* flag = s;
  if (i == 0) *flag = 0;
  __syncthreads();
  if (i == 40) *flag = 7;
  int seen = 7;
  if (i < 8 || i > 60) { while ((seen = *flag) == 0) {} }
  out[i] = seen;"""
    result = launch(body, order=order, checks=("outputs", "bounds"))
    assert result.report.faults == ()
    assert set(result.outputs[0]) == {7}
