"""E4M3 on GPUs without the instruction for it: the very text of the kernel's branch, run by the simulator."""

from __future__ import annotations

import re

import numpy as np
import pytest

from upstream_patch.floating import E4M3
from upstream_patch.kernels import FOLDER
from upstream_patch.reference import from_bits
from upstream_patch.simulate import Buffer, cuda_kernel, run

pytestmark = pytest.mark.needs_simulator
_BRANCH = re.compile(r"f16_from_e4m3\(u32 two\) \{\n#if [^\n]*< 890\n(.*?)#else", re.DOTALL)


@pytest.mark.parametrize("mask", ["0x3F803F80", "0x3F003F00"], ids=["as it is", "a bit of the mask lost"])
def test_placement_gives_every_code_its_value(mask: str) -> None:
    found = _BRANCH.search((FOLDER / "intrinsics.cuh").read_text(encoding="utf-8"))
    assert found is not None
    assert "0x3F803F80" in found[1]
    function = f"""namespace upstream_patch {{
inline u32 placed(u32 two) {{
{found[1].replace("0x3F803F80", mask)}}}
}}
extern "C" __global__ void k(const unsigned* in, unsigned* out) {{
  for (int i = threadIdx.x; i < 256; i += 32) {{
    out[i] = upstream_patch::placed(in[i]);
  }}
}}
"""
    codes = np.arange(256, dtype=np.uint32)
    given = codes | (255 - codes) << np.uint32(8)  # another code beside each
    arguments = [Buffer(given), Buffer(np.zeros(256, np.uint32), output=True)]
    out = run(cuda_kernel("k", {}, function, 0), arguments, (1, 1, 1), (32, 1, 1), shared_limit=0).outputs[0]
    low, high = (from_bits((out >> np.uint32(shift)).astype(np.uint16), "f16") for shift in (0, 16))
    right = np.array_equal(low, E4M3, equal_nan=True) and np.array_equal(high, E4M3[::-1], equal_nan=True)
    assert right == (mask == "0x3F803F80")
    assert not right or np.array_equal(np.signbit(low[~np.isnan(low)]), np.signbit(E4M3[~np.isnan(E4M3)]))
