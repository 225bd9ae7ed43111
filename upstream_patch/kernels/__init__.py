"""The kernel sources, each written once, and what their hosts share.

``translation_unit`` of a variant is what compile checks, the simulator and tuning build; ``mx.fast`` gets the same
files through ``entry`` and ``body``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from pathlib import Path

from upstream_patch.kernels.tuning import (
    DEVICE_CLASSES,
    FORMATS,
    USUAL,
    Format,
    Launch,
    SmallM,
    format_of,
    small_m_launch,
)
from upstream_patch.problem import Problem

FOLDER = Path(__file__).parent / "cuda"
KERNELS = ("small_m",)
ARCHS = tuple(device.name for device in DEVICE_CLASSES.values())
OPTIONS = ("--std=c++17",)
CTYPE = {"bf16": "__nv_bfloat16", "f16": "__half"}
INSTANCE = re.compile(r"small_m_(?:bf16|f16)(?:_(?:mxfp4|mxfp8|nvfp4))?(?:_[a-z]\d{1,3}(?![0-9a-z]))+")
"""An instance's name, in that of a kernel which a profiler or a record saw."""
_ENTRY = {"small_m": "smxx_qmm_small_m.cuh"}
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)


def in_f16(problem: Problem) -> bool:
    """Whether the products are of f16, into which x in bf16 goes times a power of two of each row and slice of K."""
    return problem.dtype == "f16" or problem.mode != "affine" or problem.bits > 4


def offset(problem: Problem) -> int:
    """The most that the small-M kernel adds to the integers it multiplies, to take it out again in fp32.

    The error grows with it. 0 for floating-point weights and for dtypes that the kernel does not take.
    """
    if problem.dtype not in CTYPE or problem.mode != "affine":
        return 0
    if problem.dtype == "bf16":
        return 128 if problem.bits <= 4 else 1024
    return 64 if problem.bits <= 6 else 1024


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
    t = tuning
    bits, group, mode = t.format
    weights = f"Affine<{bits}, {group}>" if t.format.affine else mode.capitalize()
    arguments = f"{CTYPE[dtype]}, upstream_patch::{weights}, {t.rows}, {t.warps}, {t.stages}, {t.tiles}"
    return f"upstream_patch::QmmSmallM<{arguments}>"


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
        bits, group, mode = t.format
        weights = f"b{bits}_g{group}" if t.format.affine else mode
        return f"small_m_{self.dtype}_{weights}_r{t.rows}_w{t.warps}_s{t.stages}_t{t.tiles}"

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

    def translation_unit(self, changed: Mapping[str, str] | None = None) -> str:
        """CUDA C++ with one ``extern "C" __global__`` function called ``name``, our files inlined.

        ``changed`` files (name -> text) take the place of ours: faults that a check must find.
        """
        files = closure("small_m") | dict(changed or {})
        inlined = "\n".join(_INCLUDE.sub("", text).replace("#pragma once", "") for text in files.values())
        return f"{inlined}\n{self.entry_function()}"

    def entry_function(self) -> str:
        """The function alone: what follows the kernel's files in its translation unit.

        Its parameters: x, w, scales, biases (none for floating-point weights), out, m, n, k, and in elements from one
        row of x to the next, from one batch entry of x to the next, the same two of out.
        """
        ctype = CTYPE[self.dtype]
        scales, biases = (
            (f"const {ctype}* scales, const {ctype}* biases", "biases")
            if self.tuning.format.affine
            else ("const unsigned char* scales", "nullptr")
        )
        return f"""using Kernel = {small_m_instance(self.dtype, self.tuning)};
static_assert(sizeof(Kernel::Shared) == {self.shared_bytes}, "tuning.py computes another size");
extern "C" __global__ void {self.launch_bounds} {self.name}(
    const {ctype}* x, const unsigned int* w, {scales}, {ctype}* out, int m, int n, int k,
    long long x_row, long long x_batch, long long out_row, long long out_batch) {{
  extern __shared__ __align__(256) char shared[];
  Kernel({{w, scales, {biases}, x, out, m, n, k, x_row, x_batch, out_row, out_batch}}, shared).run();
}}
"""


def strides(problem: Problem, x_padding: int = 0) -> tuple[int, int, int, int]:
    """The last four parameters of ``Variant.entry_function``; ``x_padding`` elements lie between two rows of x."""
    p = problem
    row, entry = (p.batch, 1) if p.layout == "b1k" else (1, p.m)  # x is [M, H, K], else [H, M, K]; out alike
    return row * (p.k + x_padding), entry * (p.k + x_padding), row * p.n, entry * p.n


def small_m_variant(problem: Problem, capability: tuple[int, int], multiprocessors: int) -> tuple[Variant, Launch]:
    """The instance that a problem takes on a device, and its launch."""
    p = problem
    launch = small_m_launch(p.m, p.n, p.k, DEVICE_CLASSES[capability], multiprocessors, format_of(p), p.batch)
    return Variant(p.dtype, launch.tuning), launch


def variants(arch: str | None = None, formats: Sequence[Format] = FORMATS) -> tuple[Variant, ...]:
    """Every instance of these formats that a device class can launch: that of ``arch`` (e.g. ``sm_90``), or any."""
    found: set[SmallM] = set()
    for device in DEVICE_CLASSES.values():
        if arch not in (None, device.name):
            continue
        for form, k, rows in product(formats, (1, 2048, 4096), (8, 16)):
            tunings = (device.tuning(rows, device.warps(k, form), form, tiles) for tiles in device.levels)
            found.update(tuning for tuning in tunings if tuning is not None)
    ordered = sorted(found, key=lambda t: (t.format, t.rows, t.warps, t.stages, t.tiles))
    return tuple(Variant(dtype, tuning) for dtype in CTYPE for tuning in ordered)


def build_variants(arch: str) -> tuple[Variant, ...]:
    """What a build compiles: every 4-bit instance of group size 64, and the most demanding one of each other format."""
    demanding = [v for v in variants(arch) if v.tuning.rows == 16 and v.dtype == "bf16"]
    most = {v.tuning.format: v for v in sorted(demanding, key=lambda v: v.tuning.warps)}
    return (*variants(arch, [USUAL]), *(v for key, v in most.items() if key != USUAL))
