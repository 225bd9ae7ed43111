"""The Metal host code of the series, run: all that it asks MLX for is what Python says and the simulator launches."""

from __future__ import annotations

import ctypes
import random
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import product
from operator import or_
from pathlib import Path

import pytest

from upstream_patch.kernels.metal import BITS, GROUP, GROUPS, TYPES, instances
from upstream_patch.problem import DTYPE_BYTES, MLX_DTYPE, DType, Problem
from upstream_patch.routing_metal import M5, AppleGpu, instance, parts, qmv_batch_limit, route, takes_staged
from upstream_patch.series import load
from upstream_patch.series.contributions import new_text
from upstream_patch.simulate.metal.launches import accumulate_arguments

pytestmark = pytest.mark.needs_host_code
ULTRA, NO_NAX = AppleGpu(17, "d", True), AppleGpu(17, "g", False)
FILES = {
    "launcher": "qmm_nax_splitk.inc",
    "alignment": "qmm_nax_alignment.inc",
    "route": "qmm_nax_route.inc",
}
"""The edits of MLX's host code, and how calls.inc names them."""


@dataclass(frozen=True)
class Plant:
    """``old`` becomes ``new`` once in an edit's lines."""

    edit: str
    old: str
    new: str
    shown: str
    """Of the first line that is not the wanted one."""


PLANTS = {
    "the staged kernel's name": Plant("launcher", '"affine_qmm_t_nax_splitk_"', '"affine_qmm_t_nax_staged_"', "kernel"),
    "no word of N in the name": Plant("launcher", '"_alN_true"', '""', "kernel"),
    "simdgroups swapped in the name": Plant("launcher", '"_wn",\n      wn', '"_wn",\n      wm', "kernel"),
    "another function": Plant("launcher", '"qmm_t_nax_splitk"', '"qmm_t_nax"', "kernel"),
    "an argument of the template more": Plant(
        "launcher", "bits,\n      bm)", "bits,\n      bm,\n      true)", "kernel"
    ),
    "less reserved than the name": Plant("launcher", "reserve(96)", "reserve(64)", "reserved"),
    "a tile of 64 rows for 32": Plant("launcher", "M <= 32", "M < 32", "kernel"),
    "columns past the end": Plant("launcher", "K / parts", "K / parts + 64", "bytes 8"),
    "a part a row apart": Plant("launcher", "partition_stride = M * N", "partition_stride = N", "bytes 9"),
    "rows of another stride in the sum": Plant("launcher", "set_bytes(N, 4)", "set_bytes(M, 4)", "bytes 4"),
    "a part left out of the sum": Plant("launcher", "set_bytes(parts, 2)", "set_bytes(bm, 2)", "bytes 2"),
    "K in 64 bits": Plant("launcher", "set_bytes(K, c++)", "set_bytes(int64_t(K), c++)", "bytes 5"),
    "scales for biases": Plant("launcher", "set_input_array(biases", "set_input_array(scales", "in 2"),
    "sizes swapped": Plant("launcher", "set_bytes(N, c++)", "set_bytes(M, c++)", "bytes 6"),
    "parts into the output": Plant("launcher", "set_output_array(partials", "set_output_array(out", "out 4"),
    "the sum of what was not written": Plant(
        "launcher", "set_input_array(partials, 0)", "set_input_array(x, 0)", "in 0"
    ),
    "a grid of whole tiles": Plant("launcher", "(M + bm - 1) / bm", "M / bm", "threadgroups"),
    "a threadgroup a part": Plant("launcher", "/ bm, parts)", "/ bm, 1)", "threadgroups"),
    "lanes in two axes": Plant("launcher", "group_dims(128, 1, 1)", "group_dims(32, 2, 2)", "threadgroups"),
    "a sum of rows by columns": Plant("launcher", "MTL::Size(N, M, 1)", "MTL::Size(M, N, 1)", "threads"),
    "a threadgroup too large": Plant("launcher", "std::min(1024", "std::min(2048", "threads"),
    "parts in 16 bits": Plant("launcher", "N}, float32", "N}, out.dtype()", "allocate"),
    "one part allocated": Plant("launcher", "({parts, M", "({1, M", "allocate"),
    "parts that may go away": Plant("launcher", "compute_encoder.add_temporary(partials);", "", "temporary"),
    "x never copied": Plant("route", "% kQmmNaxAlignment != 0", "< 0", "copy"),
    "a copy that may go away": Plant("route", "metal::get_command_encoder(s).add_temporary(x);", "", "temporary"),
    "every x copied": Plant("route", "% kQmmNaxAlignment != 0", ">= 0", "copy"),
    "one part only split": Plant("route", "nax_parts > 1", "nax_parts > 0", "qmm"),
    "the limit left out": Plant("route", "N, K, vector_limit, mode", "N, K, 0, mode", "other"),
    "bits for groups": Plant(
        "route", "true,\n        group_size_,\n        bits_", "true,\n        bits_,\n        group_size_", "qmm"
    ),
    "x at any offset": Plant("launcher", "int64_t bytes = x.offset();", "int64_t bytes = 0;", "aligned"),
    "strides in elements": Plant("launcher", "* static_cast<int64_t>(x.itemsize())", "", "aligned"),
    "offset and strides added": Plant("launcher", "bytes |= ", "bytes += ", "aligned"),
    "the last axes' strides": Plant("launcher", "x.ndim()) - 2", "x.ndim())", "aligned"),
    "x aligned or not": Plant("alignment", "qmm_nax_is_staged(problem, qmm_nax_x_bytes(x))", "true", "aligned"),
    "any x where N is aligned": Plant("alignment", "if (qmm_nax_is_staged(problem, 0))", "if (false)", "aligned"),
    "an N that is not aligned": Plant("alignment", "if (qmm_nax_is_staged(problem, 0))", "if (true)", "aligned"),
}


def unit(folder: Path) -> str:
    """The lines in a namespace of their own, and once more with every plant."""
    lines = {edit.name: edit.lines for edit in load("metal").edits if edit.name in FILES}
    variants = [lines]
    for plant in PLANTS.values():
        assert lines[plant.edit].count(plant.old) == 1, plant
        variants.append(lines | {plant.edit: lines[plant.edit].replace(plant.old, plant.new)})
    calls = (folder / "calls.inc").read_text(encoding="utf-8")
    text, cases = ['#include "recorder.h"', "namespace mlx::core {"], []
    for number, variant in enumerate(variants):
        whole = calls
        for name, file in FILES.items():
            assert whole.count(f'#include "{file}"\n') == 1
            whole = whole.replace(f'#include "{file}"\n', variant[name])
        text += [f"namespace variant_{number} {{", whole, "}"]
        cases.append(f"case {number}: return record(asked, variant_{number}::eval_gpu, variant_{number}::qmm_nax);")
    visible = 'extern "C" [[gnu::visibility("default")]]'
    text += [f"{visible} const char* recorded(int variant, const Asked& asked) {{", "switch (variant) {", *cases, "}"]
    return "\n".join([*text, "return nullptr;", "}", "}", ""])


class Asked(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("dtype", "transpose", "affine", "nax", "bits", "group_size")),
        *((name, ctypes.c_int) for name in ("m", "n", "k", "limit", "axes")),
        ("x_shape", ctypes.c_int * 8),
        ("x_strides", ctypes.c_int64 * 8),
        ("x_offset", ctypes.c_int64),
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, root: Path) -> ctypes.CDLL:
    work = tmp_path_factory.mktemp("metal_host_code")
    for file in load("metal").files:
        (work / file.path).parent.mkdir(parents=True, exist_ok=True)
        (work / file.path).write_text(new_text(file), encoding="utf-8")
    folder = root / "tests" / "data" / "host_code" / "metal"
    (work / "unit.cpp").write_text(unit(folder), encoding="utf-8")
    # hidden, or the stand-ins' inline variables are those of a real MLX that this process has loaded
    options = ["-std=c++20", "-O0", "-w", "-fPIC", "-shared", "-fvisibility=hidden"]
    options += [f"-I{each}" for each in (folder, folder / "stand_ins", work)]
    command = ["g++", *options, str(work / "unit.cpp"), "-o", str(work / "unit.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = ctypes.CDLL(str(work / "unit.so"))
    found.recorded.restype = ctypes.c_char_p
    return found


@dataclass(frozen=True)
class Case:
    """A call: a problem, and where its x lies; ``shape`` are the leading axes of x, ``strides`` theirs in elements."""

    problem: Problem
    gpu: AppleGpu = M5
    offset: int = 0
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    transpose: bool = True

    @property
    def x_bytes(self) -> int:
        size = DTYPE_BYTES[self.problem.dtype]
        return reduce(or_, (stride * size for stride in self.strides), self.offset)

    def lines(self, library: ctypes.CDLL, variant: int = 0) -> list[str]:
        p = self.problem
        shape, strides = (*self.shape, p.m, p.k), (*self.strides, p.k, 1)
        limit = qmv_batch_limit(self.gpu, p.n, p.k)
        dtype = ("f16", "bf16", "f32").index(p.dtype)
        asked = Asked(
            *(dtype, self.transpose, p.mode == "affine", self.gpu.nax, p.bits, p.group_size),
            *(p.m, p.n, p.k, limit, len(shape), (ctypes.c_int * 8)(*shape), (ctypes.c_int64 * 8)(*strides)),
            self.offset,
        )
        text: bytes = library.recorded(variant, ctypes.byref(asked))
        return text.decode().splitlines()

    @property
    def wanted(self) -> list[str]:
        """By the routes, and by the launches that the simulator makes."""
        p = self.problem
        split = parts(p, self.gpu) if self.transpose and self.shape == () else 0
        # an x that is not aligned matters only to what would be staged with another
        staged = self.transpose and takes_staged(p)
        last = "aligned" if (takes_staged(p, self.x_bytes) if staged else p.n % 64 == 0) else "unaligned"
        return [*(_split(self, split) if split > 1 else _unsplit(self) if split else ["other"]), last]


def _x(case: Case, label: str = "x") -> str:
    at = f" at {case.offset}" if case.offset and label == "x" else ""
    return f"{label} {MLX_DTYPE[case.problem.dtype]} [{case.problem.m}, {case.problem.k}]{at}"


def _unsplit(case: Case) -> list[str]:
    p = case.problem
    return [f"qmm {_x(case)}, w, scales, biases, out, true {p.group_size} {p.bits} {p.m} {p.n} {p.k} affine"]


def _bound(arguments: Sequence[str | int], out: str, said: dict[str, str]) -> Iterator[str]:
    for index, each in enumerate(arguments):
        if isinstance(each, str):
            yield f"{'out' if each == out else 'in'} {index} {said[each]}"
        else:
            yield f"bytes {index} {each.to_bytes(4, 'little').hex()}"


def _split(case: Case, split: int) -> list[str]:
    p = case.problem
    staged = instance(p, route(p, case.gpu))
    assert staged is not None and staged.split
    kind = MLX_DTYPE[p.dtype]
    copied = case.offset % 8 != 0
    partials = f"new float32 [{split}, {p.m}, {p.n}]"
    said = {name: f"{name} {kind} [{p.n}]" for name in ("w", "scales", "biases")}
    said |= {"x": _x(case, "copy" if copied else "x"), "y": partials}
    summed = {"partials": partials, "y": f"out {kind} [{p.m}, {p.n}]"}
    grid, group = (" ".join(map(str, each)) for each in (staged.grid(p.m, p.n, split), GROUP))
    return [
        *([f"copy {_x(case)}", f"temporary {_x(case, 'copy')}"] if copied else []),
        f"allocate {4 * split * p.m * p.n}",
        f"temporary {partials}",
        f"kernel {staged.host_name}, {staged.function}, {staged.template_arguments}",
        *_bound(staged.arguments(p.m, p.n, p.k, split), "y", said),
        f"threadgroups {grid} of {group}",
        f"kernel steel_gemm_splitk_accum_{kind}_float32, new, out, false",
        *_bound(accumulate_arguments(p.m, p.n, split), "y", summed),
        f"threads {p.n} {p.m} 1 by {min(1024, p.m * p.n)} 1 1",
    ]


@cache
def cases() -> list[Case]:
    """Every cell of the routes' table and both sides of its edges, formats and offsets of x drawn from all."""
    ms = (1, 7, 8, 9, 12, 13, 24, 25, 31, 32, 33, 64, 65, 128, 129, 257)
    ns = (32, 64, 100, 128, 256, 1024, 4096, 8192, 8256, 17408)
    ks = (64, 128, 448, 512, 576, 640, 768, 1024, 1152, 1728, 4096, 5120)
    forms = list(product(BITS, GROUPS, TYPES))
    offsets = (0, 8, 2**33, 2, 4, 6, 2**33 + 2)
    drawn = random.Random(6)
    found = []
    for m, n, k in product(ms, ns, ks):
        bits, group, dtype = drawn.choice(forms)
        if k % group == 0:
            p = Problem(m=m, n=n, k=k, bits=bits, group_size=group, dtype=dtype)
            found.append(Case(p, (M5, ULTRA)[m % 2], drawn.choice(offsets)))
    # every instance of split-K, an x of every kind of batch, and what keeps its route
    for bits, group, dtype, m in product(BITS, GROUPS, TYPES, (32, 33)):
        found.append(Case(Problem(m=m, n=512, k=2048, bits=bits, group_size=group, dtype=dtype)))
    kinds: tuple[DType, ...] = ("bf16", "f16", "f32")
    strides: tuple[tuple[int, ...], ...]
    strides = ((8192,), (8194,), (4, 8192), (0, 2), (1, 0), (2**33,), (2**32 + 2,), (2**33 + 1,))
    for kind, each, offset, n in product(kinds, strides, (0, 8, 2, 4), (64, 100)):
        p = Problem(m=40, n=n, k=448, bits=5, dtype=kind)
        found.append(Case(p, M5, offset, (3, 2)[: len(each)], each))
    usual = Problem(m=16, n=4096, k=4096)
    found += [Case(usual, transpose=False), Case(usual, NO_NAX), Case(usual.model_copy(update={"dtype": "f32"}))]
    found.append(Case(Problem(m=16, n=4096, k=4096, mode="mxfp8", bits=8, group_size=32), offset=2))
    return found


def test_all_that_the_host_code_asks_for_is_what_python_says(library: ctypes.CDLL) -> None:
    kernels, seen = set(), set()
    for case in cases():
        lines = case.lines(library)
        assert lines == case.wanted, case
        kernels |= {line.split(", ")[0].removeprefix("kernel ") for line in lines if "nax_splitk" in line}
        seen.add((lines[0].split()[0], lines[-1]))
    assert kernels == {each.host_name for each in instances() if each.split}
    both = product(("qmm", "other"), ("aligned", "unaligned"))
    assert seen == {("copy", "unaligned"), ("allocate", "aligned"), *both}
    assert {parts(case.problem, case.gpu) for case in cases()} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("name", PLANTS)
def test_a_fault_in_the_host_code_is_seen(name: str, library: ctypes.CDLL) -> None:
    variant = 1 + list(PLANTS).index(name)
    pairs = ((case.lines(library, variant), case.wanted) for case in cases())
    lines, wanted = next(each for each in pairs if each[0] != each[1])
    different = [pair for pair in zip(lines, wanted, strict=False) if pair[0] != pair[1]] or [(lines[-1], wanted[-1])]
    assert any(line.startswith(PLANTS[name].shown) for line in different[0]), different[0]
