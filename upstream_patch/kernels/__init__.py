"""The kernel sources, each written once, and what their hosts share.

``translation_unit`` of a variant is what compile checks, the simulator and tuning build; ``mx.fast`` gets the same
files through ``entry`` and ``body``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from upstream_patch.kernels.tuning import DEVICE_CLASSES, SmallM, small_m_launch

FOLDER = Path(__file__).parent / "cuda"
KERNELS = ("small_m",)
ARCHS = tuple(device.name for device in DEVICE_CLASSES.values())
OPTIONS = ("--std=c++17",)
OFFSET = {"bf16": 128, "f16": 64}
"""What the small-M kernel adds to the integers it multiplies, to take it out again in fp32: the error grows with it."""
CTYPE = {"bf16": "__nv_bfloat16", "f16": "__half"}
_ENTRY = {"small_m": "smxx_affine_qmm_small_m.cuh"}
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)


def entry(kernel: str) -> Path:
    """The file a kernel starts from."""
    return FOLDER / _ENTRY[kernel]


def closure(kernel: str) -> dict[str, str]:
    """File name -> text of the kernel's entry file and all of our files it includes, the included ones first."""
    found: dict[str, str] = {}

    def visit(name: str) -> None:
        text = (FOLDER / name).read_text(encoding="utf-8")
        for included in _INCLUDE.findall(text):
            if included not in found:
                visit(included)
        found[name] = text

    visit(_ENTRY[kernel])
    return found


def small_m_instance(dtype: str, tuning: SmallM) -> str:
    """The C++ type of one instance, for ``dtype`` bf16 or f16."""
    arguments = f"{CTYPE[dtype]}, {tuning.rows}, {tuning.warps}, {tuning.stages}, {tuning.batch}"
    return f"upstream_patch::AffineQmmSmallM<{arguments}>"


def fingerprint(kernel: str) -> str:
    """Changes with every byte of the sources: compiled code is cached under it (records use the token hash)."""
    return sha256("\0".join(closure(kernel).values()).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Variant:
    """One instance of a kernel as a translation unit of its own."""

    dtype: str
    tuning: SmallM

    @property
    def name(self) -> str:
        t = self.tuning
        return f"small_m_{self.dtype}_r{t.rows}_w{t.warps}_s{t.stages}_b{t.batch}"

    @property
    def threads(self) -> int:
        return self.tuning.threads

    @property
    def launch_bounds(self) -> str:
        """For 128 registers a thread: the register file then holds 16 warps, whatever the block's size."""
        return f"__launch_bounds__({self.threads}, {16 // self.tuning.warps})"

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return self.tuning.shared_bytes

    def translation_unit(self) -> str:
        """CUDA C++ with one ``extern "C" __global__`` function called ``name``, our files inlined."""
        files = "\n".join(_INCLUDE.sub("", text).replace("#pragma once", "") for text in closure("small_m").values())
        return f"{files}\n{self.entry_function()}"

    def entry_function(self) -> str:
        """The function alone: what follows the kernel's files in its translation unit."""
        ctype = CTYPE[self.dtype]
        return f"""using Kernel = {small_m_instance(self.dtype, self.tuning)};
static_assert(sizeof(Kernel::Shared) == {self.shared_bytes}, "tuning.py computes another size");
extern "C" __global__ void {self.launch_bounds} {self.name}(
    const {ctype}* x, const unsigned int* w, const {ctype}* scales, const {ctype}* biases, {ctype}* out,
    int m, int n, int k) {{
  extern __shared__ __align__(128) char shared[];
  Kernel(w, scales, biases, x, out, m, n, k, shared).run();
}}
"""


def small_m_variant(
    dtype: str, m: int, n: int, k: int, capability: tuple[int, int], multiprocessors: int
) -> tuple[Variant, int]:
    """The instance that a problem takes on a device, and its number of blocks."""
    launch = small_m_launch(m, n, k, DEVICE_CLASSES[capability], multiprocessors)
    return Variant(dtype, launch.tuning), launch.blocks


def variants(arch: str | None = None) -> tuple[Variant, ...]:
    """Every instance that a device class can launch: that of ``arch`` (e.g. ``sm_90``), or any."""
    tunings = {
        SmallM(rows, warps, *pick)
        for device in DEVICE_CLASSES.values()
        if arch in (None, device.name)
        for table in (device.picks, device.deep)
        for rows, pick in table.items()
        for warps in (4, 8, 16)
    }
    ordered = sorted(tunings, key=lambda t: (t.rows, t.warps, t.stages, t.batch))
    return tuple(Variant(dtype, tuning) for dtype in CTYPE for tuning in ordered)
