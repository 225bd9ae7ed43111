"""The simulator's engine on small kernels: each fault is found where it is, and a sound kernel gives the right bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from upstream_patch.simulate import ORDERS, Buffer, Fault, Kernel, Order, Run, cuda_kernel, library, run

pytestmark = pytest.mark.needs_simulator
LANES = 64


def kernel(body: str, shared_bytes: int = 1024) -> Kernel:
    """One block of 64 lanes: ``in`` and ``out`` are 64 ints, ``s`` the shared memory, ``i`` the lane."""
    text = f"""extern "C" __global__ void k(const int* in, int* out, int n) {{
  extern __shared__ __align__(128) int s[];
  using namespace upstream_patch;
  const int i = threadIdx.x;
{body}
}}
"""
    return cuda_kernel("k", {}, text, shared_bytes)


def launch(body: str, *, shared_bytes: int = 1024, blocks: int = 1, **how: Any) -> Run:
    given = Buffer(np.arange(LANES, dtype=np.int32), at_end=how.pop("at_end", False))
    out = Buffer(np.zeros(LANES * blocks, np.int32), output=True)
    arguments: list[Buffer | int] = [given, out, LANES]
    return run(kernel(body, shared_bytes), arguments, (blocks, 1, 1), (LANES, 1, 1), shared_limit=65536, **how)


def fault(body: str, **how: Any) -> Fault:
    faults = launch(body, **how).report.faults
    assert len(faults) == 1
    return faults[0]


def sound(body: str, **how: Any) -> list[int]:
    result = launch(body, **how)
    assert result.report.faults == ()
    return [int(v) for v in result.outputs[0]]


# Line 5 of the unit is the first of the body.
REVERSE = """  s[i] = in[i];
  __syncthreads();
  out[i] = s[63 - i];"""


@pytest.mark.parametrize("order", ORDERS)
def test_a_sound_kernel_gives_the_same_under_every_schedule(order: Order) -> None:
    assert sound(REVERSE, order=order, seed=7) == list(range(63, -1, -1))


@pytest.mark.parametrize("order", ORDERS)
def test_a_missing_barrier_is_a_race_whatever_the_schedule(order: Order) -> None:
    found = fault(REVERSE.replace("__syncthreads();", ""), order=order, seed=3)
    # a lane that reads before anybody wrote meets a byte nobody wrote; one that writes after a reader, a race
    assert found.kind in ("race", "unwritten read")
    assert (found.file, found.kernel, found.block) == ("k.cu", "k", (0, 0, 0))
    assert found.line in (5, 7)
    assert found.lane is not None


def test_a_race_names_both_lanes_and_both_lines() -> None:
    found = fault("  s[i % 32] = i;\n  out[i] = 0;")
    assert found.kind == "race"
    assert "lane 0 (warp 0) wrote it at k.cu:5, lane 32 (warp 1) writes it" in found.text


def test_a_warp_barrier_orders_its_own_warp_and_no_other() -> None:
    assert sound("  s[i] = i;\n  __syncwarp();\n  out[i] = s[i ^ 1];")[:4] == [1, 0, 3, 2]
    found = fault("  s[i] = i;\n  __syncwarp();\n  out[i] = s[i ^ 32];", order="lockstep")
    assert found.kind == "race"


def test_readers_of_one_byte_do_not_race_but_a_later_writer_does() -> None:
    assert sound("  if (i == 0) s[0] = 5;\n  __syncthreads();\n  out[i] = s[0];") == [5] * LANES
    body = "  if (i == 0) s[0] = 5;\n  __syncthreads();\n  out[i] = s[0];\n  if (i == 63) s[0] = 6;"
    assert fault(body).kind == "race"
    assert fault(body.replace("i == 63", "i == 1")).kind == "race"


def test_a_collective_is_no_fence() -> None:
    body = "  s[i] = i;\n  out[i] = static_cast<int>(shuffle(0.f, 0));\n  out[i] = s[i ^ 1];"
    assert fault(body, checks=("races",)).kind == "race"


def test_reads_of_memory_nobody_wrote() -> None:
    found = fault("  out[i] = s[i];")
    assert (found.kind, found.line) == ("unwritten read", 5)
    assert sound("  out[i] = s[i];", checks=(), fill=0xFF) == [-1] * LANES
    # what an earlier block left does not count
    body = "  if (blockIdx.x == 0) s[i] = 1;\n  __syncthreads();\n  out[blockIdx.x * 64 + i] = s[i];"
    assert fault(body, blocks=2).block == (1, 0, 0)


@pytest.mark.parametrize(
    "body", ["  s[i] += in[i]; out[i] = s[i];", "  int* at = s + i; *at = *at + in[i]; out[i] = *at;"]
)
def test_a_read_right_before_a_write_to_the_same_place_counts(body: str) -> None:
    if library.compiler().family == "gcc":
        pytest.skip("g++ has instrumented such reads all along, or has no switch for it")
    found = fault(body)
    assert (found.kind, found.line) == ("unwritten read", 5)


def test_an_array_at_the_end_of_a_struct_has_its_length() -> None:
    if library.compiler().family == "gcc":
        pytest.skip("g++ before 13 has no switch for it")
    body = """  struct Last { int n, v[4]; } last = {4, {1, 2, 3, 4}};
  last.v[in[i] + i % 2] = i;
  out[i] = last.v[0];"""
    found = fault(body)
    assert (found.kind, found.line) == ("out of bounds", 6)


def test_barriers_that_not_all_lanes_reach() -> None:
    assert "of 64 lanes" in fault("  if (i < 32) __syncthreads();\n  out[i] = 0;").text
    found = fault("  if (i < 40) {\n    __syncthreads();\n  } else {\n    __syncthreads();\n  }\n  out[i] = 0;")
    assert found.kind == "divergence"
    assert "line 6" in found.text
    assert "line 8" in found.text
    assert fault("  if (i) __syncwarp();\n  out[i] = 0;").kind in ("deadlock", "divergence")
    assert fault("  if (i % 2) __syncwarp(); else __syncthreads();\n  out[i] = 0;").kind == "deadlock"


def test_accesses_outside_of_shared_memory() -> None:
    assert fault("  s[i] = 0;\n  out[i] = 0;", shared_bytes=252).kind == "out of bounds"
    assert sound("  s[i] = 0;\n  out[i] = 0;", shared_bytes=256) == [0] * LANES
    assert fault("  out[i] = 0;", shared_bytes=100_000).kind == "launch"


@pytest.mark.parametrize(("index", "byte"), [("i + 1", 256), ("i - 1", -4), ("i - 100", -400)])
@pytest.mark.parametrize("at_end", [False, True])
def test_reads_outside_of_a_buffer(index: str, byte: int, at_end: bool) -> None:
    found = fault(f"  out[i] = in[{index}];", at_end=at_end)
    assert (found.kind, found.line) == ("out of bounds", 5)
    assert f"byte {byte} of buffer 0" in found.text


def test_an_access_far_from_everything_does_not_end_the_process() -> None:
    found = fault("  out[i] = in[i + (1 << 28)];")
    assert found.kind == "out of bounds"
    assert found.line == 5


def test_outputs_are_written_once_each() -> None:
    assert fault("  out[i / 2] = 0;").kind == "written twice"
    found = fault("  if (i != 5) out[i] = 0;")
    assert found.kind == "never written"
    assert "first byte 20" in found.text
    assert fault("  const_cast<int*>(in)[i] = out[i] = 0;").kind == "write to an input"


def test_undefined_arithmetic_and_alignment() -> None:
    assert fault("  out[i] = (in[i] + 1) * (1 << 30) * 2;").kind == "overflow"
    assert fault("  out[i] = 1 << (in[i] + 1);").kind == "overflow"
    assert fault("  out[i] = 64 / in[i];").kind == "arithmetic"
    body = "  const u32x4 v = *reinterpret_cast<const u32x4*>(in + i % 8);\n  out[i] = v.x;"
    found = fault(body)
    assert (found.kind, found.line, found.lane) == ("misaligned", 5, 1)
    assert fault("  s[i] = 0;\n  __syncwarp();\n  load_shared_8(4 * i);\n  out[i] = 0;").kind == "misaligned"


COPY = """  copy_async_4(4 * i, in + i);
  copy_async_commit();
  copy_async_wait<0>();
  __syncthreads();
  out[i] = s[63 - i];"""


@pytest.mark.parametrize("order", ORDERS)
def test_async_copies_land_by_their_wait(order: Order) -> None:
    assert sound(COPY, order=order) == list(range(63, -1, -1))


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("  copy_async_wait<0>();\n", "", "race"),
        ("copy_async_wait<0>", "copy_async_wait<1>", "race"),
        ("  copy_async_commit();\n", "", "race"),  # a wait covers committed groups only
        ("  __syncthreads();\n", "", "race"),
        ("in + i)", "in + i + 1)", "out of bounds"),
        ("4 * i,", "4 * i + 2,", "misaligned"),
        ("out[i] = s[63 - i];", "out[i] = 0; copy_async_4(4 * i, in);", "unfinished copy"),
    ],
)
def test_async_copies_that_are_wrong(old: str, new: str, kind: str) -> None:
    found = fault(COPY.replace(old, new))
    assert found.kind in (kind, "unwritten read") if old.startswith("  __sync") else found.kind == kind


def test_without_the_checks_the_schedule_shows_a_missing_wait() -> None:
    body = COPY.replace("  copy_async_wait<0>();\n", "")
    assert sound(body, checks=(), order="in_order") == [-1] * LANES
    assert sound(body, checks=(), order="reversed") == list(range(63, -1, -1))


def test_a_random_schedule_is_the_same_for_the_same_seed() -> None:
    body = "  if (i % 32 == 0) s[0] = i;\n  __syncthreads();\n  out[i] = s[0];"
    got = [sound(body, checks=(), order="random", seed=seed) for seed in (*range(12), *range(12))]
    assert got[:12] == got[12:]
    assert len({values[0] for values in got}) == 2


def test_what_runs_out_of_a_buffer_lands_in_no_other() -> None:
    found = fault("  out[i] = in[i + 3 * 4096];")
    assert found.kind == "out of bounds"
    assert "of buffer 0" in found.text


@pytest.mark.parametrize("where", ["s[i - 64]", "s[i + 262144]"])
def test_a_write_beside_the_shared_memory_is_found(where: str) -> None:
    found = fault(f"  {where} = 0;\n  out[i] = 0;")
    assert (found.kind, found.line) == ("out of bounds", 5)
    assert "in no buffer" in found.text or "array index" in found.text  # g++ knows how long the memory is


def test_a_kernel_that_never_ends_is_a_fault() -> None:
    found = fault("  volatile int* p = s + i;\n  *p = 1;\n  while (*p) {}\n  out[i] = 0;", steps=100_000)
    assert found.kind == "endless"


@pytest.mark.parametrize("call", ["shuffle(0.f, 0)", "static_cast<float>(0) + shuffle(1.f, 31)"])
def test_a_warp_of_fewer_lanes_cannot_shuffle(call: str) -> None:
    out = Buffer(np.zeros(16, np.int32), output=True)
    given = Buffer(np.zeros(16, np.int32))
    text = kernel(f"  out[i] = static_cast<int>({call});")
    (found,) = run(text, [given, out, 16], (1, 1, 1), (16, 1, 1), shared_limit=65536).report.faults
    assert (found.kind, found.line) == ("partial warp", 5)


@pytest.mark.parametrize(("file", "found"), [("k.cu", ()), ("other.cuh", ("unwritten read",))])
def test_a_line_is_excused_in_its_own_file_only(file: str, found: tuple[str, ...]) -> None:
    """A plain access has its line from the code, which is never excused; the kernel's own loads have a place."""
    body = "  u32 v = load_shared_2(shared_address(&s[i]));\n  out[i] = static_cast<int>(v & 0);"
    result = launch(body, excused=(5,), excused_file=file)
    assert tuple(each.kind for each in result.report.faults) == found
