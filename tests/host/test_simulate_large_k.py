"""Rows of weights up to the limit of K: the kernel's own set-up, run on the CPU without the weights."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from upstream_patch.kernels import closure, small_m_instance
from upstream_patch.kernels.tuning import FORMATS, TILE, Format, SmallM
from upstream_patch.routing import LARGEST, largest_k
from upstream_patch.simulate import Buffer, Kernel, Run, cuda_kernel, run

pytestmark = pytest.mark.needs_simulator
WIDTHS = tuple({form.bits: form for form in reversed(FORMATS) if form.affine}.values())
"""An affine format of each."""


@cache
def set_up() -> Kernel:
    """Builds the kernel's streams for one of ``WIDTHS``, as every launch does first: addresses only, nothing is read.

    Writes how far the weights are stepped over at once, and where a lane's last rows of a tile begin.
    """
    instances = {form.bits: small_m_instance("bf16", SmallM(8, 4, 2, 1, form)) for form in WIDTHS}
    cases = "\n".join(
        f"    case {bits}: step<{instance}>(w, out, n, k, shared); break;" for bits, instance in instances.items()
    )
    function = f"""template <typename Kernel>
__device__ void step(const unsigned* w, long long* out, int n, int k, char* shared) {{
  const auto* from = reinterpret_cast<const __nv_bfloat16*>(w);
  auto* to = reinterpret_cast<__nv_bfloat16*>(out);
  const Kernel kernel({{w, from, from, from, to, 1, n, k, k, k, n, n}}, shared);
  upstream_patch::WeightStream<Kernel> weights(kernel);
  upstream_patch::ScaleStream<Kernel> scales(kernel);
  out[2 * threadIdx.x] = weights.rows_step;
  out[2 * threadIdx.x + 1] = kernel.slice(kernel.passes - 1) + kernel.first_column(kernel.tiles - 1);
}}
extern "C" __global__ void set_up(const unsigned* w, long long* out, int bits, int n, int k) {{
  extern __shared__ __align__(256) char shared[];
  switch (bits) {{
{cases}
  }}
}}
"""
    return cuda_kernel("set_up", closure("small_m"), function, 65536)


def run_set_up(bits: int, k: int, n: int = LARGEST) -> Run:
    out = Buffer(np.empty(2 * 128, np.int64), output=True)
    return run(
        set_up(), [Buffer(np.zeros(64, np.uint32)), out, bits, n, k], (1, 1, 1), (128, 1, 1), shared_limit=99 * 1024
    )


@pytest.mark.parametrize("form", WIDTHS, ids=lambda form: f"{form.bits} bits")
def test_nothing_overflows_up_to_the_limit_and_something_does_beyond(form: Format) -> None:
    most = largest_k(form.bits) // form.group * form.group
    rows = 16 // (form.bits & -form.bits)
    found = run_set_up(form.bits, most)
    assert found.report.faults == ()
    assert set(found.outputs[0][::2]) == {rows * most * form.bits // 8}
    passes = -(-most // (4 * 256))
    columns = LARGEST - TILE
    assert set(found.outputs[0][1::2]) == {4 * (passes - 1) + warp + columns for warp in range(4)}
    (fault,) = run_set_up(form.bits, most + form.group).report.faults
    assert (fault.kind, fault.file) == ("overflow", "streams.cuh")
