"""Named barriers in the simulator: they order the warps that meet at them, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from upstream_patch.simulate import ORDERS, Buffer, Fault, Order, Run, cuda_kernel, run

pytestmark = pytest.mark.needs_simulator
LANES = 128


def launch(body: str, **how: Any) -> Run:
    """A block of four warps; the body begins on line 4 and sets ``v``, what lane ``i`` gives out."""
    text = f"""extern "C" __global__ void k(int* out) {{
  extern __shared__ __align__(128) int s[];
  const int i = threadIdx.x, warp = i / 32, lane = i % 32; int v = 0; (void)lane; (void)warp;
{body}
  out[blockIdx.x * 128 + i] = v;
}}
"""
    blocks = how.pop("blocks", 1)
    out = Buffer(np.zeros(LANES * blocks, np.int32), output=True)
    return run(cuda_kernel("k", {}, text, 1024), [out], (blocks, 1, 1), (LANES, 1, 1), shared_limit=65536, **how)


def fault(body: str, **how: Any) -> Fault:
    (found,) = launch(body, **how).report.faults
    return found


def sound(body: str, **how: Any) -> list[int]:
    result = launch(body, **how)
    assert result.report.faults == ()
    return [int(v) for v in result.outputs[0]]


PAIRS = """  for (int round = 0; round < 3; ++round) {
    s[i] = i + round;
    __barrier_sync_count(1 + warp / 2, 64);
    v += s[i ^ 32];
    __barrier_sync_count(1 + warp / 2, 64);
  }"""


@pytest.mark.parametrize("order", ORDERS)
def test_two_pairs_of_warps_exchange_what_they_have(order: Order) -> None:
    assert sound(PAIRS, order=order, seed=5, blocks=2) == [3 * (i ^ 32) + 3 for i in range(128)] * 2


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("which", [0, 1])
def test_each_of_the_two_barriers_is_needed(which: int, order: Order) -> None:
    pieces = PAIRS.split("    __barrier_sync_count(1 + warp / 2, 64);\n")
    pieces[which : which + 2] = [pieces[which] + pieces[which + 1]]
    found = fault("    __barrier_sync_count(1 + warp / 2, 64);\n".join(pieces), order=order)
    assert found.kind in ("race", "unwritten read")
    assert which == 0 or found.kind == "race"


def test_a_barrier_of_other_warps_orders_nothing() -> None:
    found = fault(PAIRS.replace("s[i ^ 32]", "s[i ^ 64]"), order="lockstep")
    assert found.kind == "race"
    assert "no barrier between" in found.text


CHAIN = """  if (warp == 0) s[lane] = 5;
  if (warp < 2) __barrier_sync_count(1, 64);
  if (warp == 1 || warp == 2) __barrier_sync_count(2, 64);
  if (warp == 2) v = s[lane];"""


@pytest.mark.parametrize("order", ORDERS)
def test_order_passes_through_a_warp_that_meets_both(order: Order) -> None:
    assert sound(CHAIN, order=order)[64:96] == [5] * 32
    # the other way round, warp 1 meets the reader before the writer: nothing passes
    wrong = CHAIN.replace("(1, 64)", "(3, 64)").split("\n")
    wrong[1], wrong[2] = wrong[2], wrong[1]
    assert fault("\n".join(wrong), order=order).kind in ("race", "unwritten read")


READ_THEN_WRITTEN = """  if (i == 0) s[0] = 7;
  __syncthreads();
  if (warp < 2) v = s[0];
  if (warp == 1 || warp == 2) __barrier_sync_count(1, 64);
  if (warp == 0 || warp == 2) __barrier_sync_count(2, 64);
  if (i == 64) s[0] = 8;"""


@pytest.mark.parametrize("order", ORDERS)
def test_a_write_comes_after_the_readers_that_met_the_writer(order: Order) -> None:
    assert sound(READ_THEN_WRITTEN, order=order)[:64] == [7] * 64
    for line in READ_THEN_WRITTEN.split("\n")[3:5]:
        assert fault(READ_THEN_WRITTEN.replace(line + "\n", ""), order=order).kind == "race"


def test_a_read_after_the_barrier_is_not_covered_by_it() -> None:
    body = READ_THEN_WRITTEN.replace("  if (i == 64)", "  if (i == 5) v += s[0];\n  if (i == 64)")
    assert fault(body).kind == "race"
    assert fault(body, order="reversed").kind == "race"


def test_what_was_in_order_before_a_barrier_of_the_block_is_not_so_after_it() -> None:
    body = PAIRS + "\n  __syncthreads();\n  s[i] = i;\n  v = s[i ^ 32];"
    assert fault(body, order="lockstep", checks=("races",)).kind == "race"


def test_a_write_comes_after_lanes_of_another_warp_that_met_the_writer() -> None:
    body = """  if (i == 0) s[0] = 7;
  __syncthreads();
  if (warp == 1) __syncwarp();
  if (warp == 1) v = s[0];
  if (warp < 2) __barrier_sync_count(1, 64);
  if (i == 9) s[0] = 8;"""
    assert sound(body)[32:64] == [7] * 32


def test_lanes_of_one_warp_are_ordered_by_a_barrier_of_theirs() -> None:
    body = "  s[i] = i;\n  __barrier_sync_count(1 + warp, 32);\n  v = s[i ^ 1];"
    assert sound(body) == [i ^ 1 for i in range(128)]
    unordered = body.replace("__barrier_sync_count(1 + warp, 32);", "")
    assert fault(unordered, order="lockstep", checks=("races",)).kind == "race"


def test_a_barrier_of_all_lanes() -> None:
    assert sound("  s[i] = i;\n  __barrier_sync(3);\n  v = s[127 - i];") == list(range(127, -1, -1))


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (
            "  if (warp < 2) __barrier_sync_count(1, warp == 0 ? 64 : 96);",
            "divergence",
            "for 96 lanes here, and for 64",
        ),
        ("  __barrier_sync_count(1 + lane % 2, 64);", "divergence", "lanes of one warp come to different barriers"),
        ("  if (lane < 9) __barrier_sync_count(1, 64);", "deadlock", "wait for ever"),
        ("  if (warp < 3) __barrier_sync_count(1, 64);", "divergence", "96 lanes come to barrier 1, which is for 64"),
        (
            "  if (warp == 0) __barrier_sync_count(1, 64);",
            "deadlock",
            "32 of 128 lanes wait for ever at __barrier_sync_count",
        ),
        ("  __barrier_sync_count(0, 64);", "barrier", "0 is that of __syncthreads"),
        ("  __barrier_sync_count(16, 64);", "barrier", "they are 1 to 15"),
        ("  __barrier_sync_count(1, 48);", "barrier", "for 48 lanes of a block of 128: whole warps"),
        ("  __barrier_sync_count(1, 160);", "barrier", "for 160 lanes of a block of 128"),
        ("  __barrier_sync_count(1, 0);", "barrier", "for 0 lanes"),
    ],
)
def test_barriers_that_do_not_fit(body: str, kind: str, text: str) -> None:
    found = fault(body)
    assert (found.kind, found.line) == (kind, 4)
    assert text in found.text


def test_warps_that_meet_at_two_places_are_told_with_both_lines() -> None:
    found = fault("  if (warp == 0) __barrier_sync_count(1, 64);\n  if (warp == 1) __barrier_sync_count(1, 64);")
    assert found.kind == "divergence"
    assert "line 4" in found.text
    assert "line 5" in found.text


def test_a_copy_that_is_waited_for_is_seen_after_a_named_barrier() -> None:
    text = """extern "C" __global__ void k(const int* in, int* out) {
  extern __shared__ __align__(128) int s[];
  using namespace upstream_patch;
  const int i = threadIdx.x;
  copy_async_4(4 * i, in + i);
  copy_async_commit();
  copy_async_wait<0>();
  __barrier_sync_count(1, 64);
  out[i] = s[63 - i];
}
"""
    for edit, faults in ((text, 0), (text.replace("  copy_async_wait<0>();\n", ""), 1)):
        given, out = Buffer(np.arange(64, dtype=np.int32)), Buffer(np.zeros(64, np.int32), output=True)
        result = run(cuda_kernel("k", {}, edit, 256), [given, out], (1, 1, 1), (64, 1, 1), shared_limit=4096)
        assert len(result.report.faults) == faults
        assert faults or list(result.outputs[0]) == list(range(63, -1, -1))
