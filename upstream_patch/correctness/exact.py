"""The small-M kernel on buffers of exactly its operands' bytes, outside MLX: what compute-sanitizer watches.

``python -m upstream_patch.correctness.exact FOLDER [PLANT]``, where FOLDER holds the cubins of ``units``. Without a
plant it launches all ``cases``, checks each result against the fp64 reference and says how many there were; with one it
makes the one broken launch of ``PLANTS``. MLX's allocator would round sizes up and hide reads past a buffer's end.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upstream_patch.correctness.errors import why_wrong
from upstream_patch.correctness.exact_cases import ExactCase, cases
from upstream_patch.correctness.paths import Device
from upstream_patch.driver import DriverError, Gpu, Kernel, Operands, small_m_arguments
from upstream_patch.errors import UserError
from upstream_patch.kernels import Variant
from upstream_patch.problem import Problem
from upstream_patch.records.schema import Sanitized, Tool
from upstream_patch.reference import make_inputs
from upstream_patch.simulate.mutations import PLANTS as SIMULATED
from upstream_patch.simulate.small_m import FILE, Operand, by_entry, stored_operands
from upstream_patch.simulate.source import small_m_kernel

_UNTOUCHED = 0xFFFF
"""What every output holds before: a NaN in both dtypes."""


@dataclass(frozen=True)
class Plant:
    """A fault that ``tool`` must report in words that hold ``says``."""

    name: str
    tool: Tool
    says: str
    short: Operand | None = None
    """This buffer ends one row too early (memcheck), or its last row is never written (initcheck)."""
    edit: tuple[str, str] | None = None
    """This piece of the kernel's file becomes that."""

    def changed(self, variant: Variant) -> dict[str, str] | None:
        """The kernel's changed file; None where only a buffer is at fault."""
        return dict(small_m_kernel(variant).edited(self.name, FILE, *self.edit).files) if self.edit else None


def _simulated(name: str) -> tuple[str, str]:
    """A fault that the simulator plants too, so that both follow the kernel's text."""
    (found,) = (plant for plant in SIMULATED if plant.name == name)
    return found.old, found.new


_BEFORE_SUMS = _simulated("a barrier of the block that one warp skips")[0]
PLANTS = (
    Plant("x_short", "memcheck", "Invalid __global__ read", "x"),
    Plant("w_short", "memcheck", "Invalid __global__ read", "w"),
    Plant("scales_short", "memcheck", "Invalid __global__ read", "scales"),
    Plant("biases_short", "memcheck", "Invalid __global__ read", "biases"),
    Plant("out_short", "memcheck", "Invalid __global__ write", "out"),
    Plant("x_unwritten", "initcheck", "Uninitialized __global__ memory read", "x"),
    Plant("w_unwritten", "initcheck", "Uninitialized __global__ memory read", "w"),
    Plant("scales_unwritten", "initcheck", "Uninitialized __global__ memory read", "scales"),
    Plant("biases_unwritten", "initcheck", "Uninitialized __global__ memory read", "biases"),
    Plant("no_barrier_after_scales", "racecheck", "Race reported", edit=_simulated("a barrier of the block deleted")),
    Plant("no_barrier_before_sums", "racecheck", "Race reported", edit=(_BEFORE_SUMS, "// the partial")),
    # lanes 16 to 31 come to a barrier that they are not of; a barrier that lanes miss is not reported on every GPU
    Plant(
        "lanes_outside_mask", "synccheck", "Barrier error", edit=(_BEFORE_SUMS, f"__syncwarp(0xFFFF); {_BEFORE_SUMS}")
    ),
)
PLANTED_ON = ExactCase(Problem(m=7, n=40, k=320), seed=1)
"""A tile a block, one pass over K, and scales that lanes store one by one."""


def plant(name: str) -> Plant:
    """Raises UserError that lists the known names."""
    for each in PLANTS:
        if each.name == name:
            return each
    raise UserError(f"there is no plant {name!r}; known: {', '.join(each.name for each in PLANTS)}")


def launched(device: Device) -> list[Sanitized]:
    """What a run without a plant launches, in order."""
    found = []
    for case in cases(device):
        variant, grid = case.cut(device)
        found.append(
            Sanitized(
                problem=case.problem,
                kernel=variant.name,
                grid=grid,
                unaligned=case.unaligned,
                seed=case.seed,
                x_padding=case.x_padding,
            )
        )
    return found


def units(device: Device) -> dict[str, tuple[str, str]]:
    """File name of a cubin -> the entry function's name and the translation unit it is compiled from."""
    needed = {variant.name: variant for case in (*cases(device), PLANTED_ON) for variant in [case.cut(device)[0]]}
    found = {name: (name, variant.translation_unit()) for name, variant in needed.items()}
    on = PLANTED_ON.cut(device)[0]
    for each in PLANTS:
        if each.edit:
            found[f"{each.name}.{on.name}"] = (on.name, on.translation_unit(each.changed(on)))
    return found


@dataclass(frozen=True)
class Launched:
    """What is wrong with a result, or None; and the hash of its bits."""

    wrong: str | None = None
    sha256: str = ""


class Runner:
    """Launches cases with the cubins of one folder; a kernel is loaded once."""

    def __init__(self, gpu: Gpu, folder: Path) -> None:
        self._gpu = gpu
        self._folder = folder
        self._loaded: dict[str, Kernel] = {}

    @property
    def device(self) -> Device:
        return self._gpu.capability, self._gpu.multiprocessors

    def run(self, case: ExactCase, fault: Plant | None = None) -> Launched:
        """One launch. With a fault the result is not judged."""
        variant, grid = case.cut(self.device)
        kernel = self._kernel(variant, f"{fault.name}.{variant.name}" if fault and fault.edit else variant.name)
        inputs = make_inputs(case.problem, case.seed)
        out = np.full((case.problem.batch * case.problem.m, case.problem.n), _UNTOUCHED, np.uint16)
        operands: dict[Operand, NDArray[Any]] = {**stored_operands(inputs), "out": out}
        starts: list[int] = []
        at: dict[Operand, int] = {}
        for name, array in operands.items():
            short = array[:-1] if fault and fault.short == name else array
            held = array if fault and fault.tool == "initcheck" else short
            offset = array.itemsize if case.unaligned else 0
            padding = case.x_padding * array.itemsize if name == "x" else 0
            starts.append(self._gpu.allocate(offset + held.nbytes + padding * (len(held) - 1)))
            at[name] = starts[-1] + offset
            if padding:  # stays unwritten, so that initcheck reports who reads it
                for number, row in enumerate(short):
                    self._gpu.upload(at[name] + number * (row.nbytes + padding), row)
            else:
                self._gpu.upload(at[name], short)
        addresses = Operands(at["x"], at["w"], at["scales"], at.get("biases"), at["out"])
        self._gpu.launch(kernel, grid, small_m_arguments(case.problem, addresses, case.x_padding))
        self._gpu.wait()
        if fault is None:
            self._gpu.download(at["out"], out)
        for start in starts:
            self._gpu.free(start)
        if fault:
            return Launched()
        rows = by_entry(case.problem, out)
        return Launched(why_wrong(inputs, rows), sha256(rows.tobytes()).hexdigest())

    def _kernel(self, variant: Variant, file: str) -> Kernel:
        if file not in self._loaded:
            self._loaded[file] = self._gpu.load(variant, (self._folder / f"{file}.cubin").read_bytes())
        return self._loaded[file]


def main(folder: Path, name: str | None = None) -> int:
    """Prints what ``sanitize`` reads: the hash of each output, the wrong ones, the counts. Returns the exit code."""
    gpu = Gpu()
    runner = Runner(gpu, folder)
    if name is not None:
        try:
            runner.run(PLANTED_ON, plant(name))
        except DriverError as error:  # memcheck ends the launch that it reports
            print(error)
        print(f"planted {name}: 1 launch")
        return 0
    done = [(case, runner.run(case)) for case in cases(runner.device)]
    for number, (_, result) in enumerate(done):
        print(f"output {number}: {result.sha256}")
    wrong = [(case, result.wrong) for case, result in done if result.wrong is not None]
    for case, why in wrong:
        print(f"wrong: {case}: {why}")
    print(f"launches: {len(done)}, wrong: {len(wrong)}")
    gpu.close()  # what is still allocated now has leaked
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
