"""The host code that MLX would get does what Python says: predicate, rows and launch, asked in C++ on MLX's arrays."""

from __future__ import annotations

import ctypes
import shutil
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from upstream_patch import kernels
from upstream_patch.kernels.tuning import DEVICE_CLASSES, FORMATS, MAX_BATCH, MAX_ROWS, USUAL, Format, small_m_launch
from upstream_patch.machine import System, find_mlx_headers
from upstream_patch.measure.wheel.arms import module_name
from upstream_patch.problem import DType, Problem
from upstream_patch.routing import LARGEST, largest_k, takes_small_m
from upstream_patch.series import cuda_tuning
from upstream_patch.series.wheel import link
from upstream_patch.series.wheel.library import HOST_CODE, OPTIONS, include_options, run

pytestmark = pytest.mark.needs_host_code
MODES = ("affine", "mxfp4", "mxfp8", "nvfp4")
CAPABILITIES = (*DEVICE_CLASSES, (7, 5), (9, 1), (13, 0))


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory, root: Path) -> ctypes.CDLL:
    """The host code beside the installed MLX, whatever its backend: what that lacks traps, and is never called."""
    work = tmp_path_factory.mktemp("host_code")
    headers = find_mlx_headers(System())
    assert headers is not None
    library = Path(headers).parent / "lib" / "libmlx.so"
    options = [*OPTIONS, "-O0", "-fno-access-control", "-I", str(HOST_CODE), *include_options(work, Path(headers))]
    source, output = root / "tests" / "data" / "host_code" / "shim.cpp", str(work / "shim.o")
    run("shim", ["g++", *options, "-fvisibility=default", "-c", str(source), "-o", output])
    wanted = link.undefined(run("nm", ["nm", "--undefined-only", output]))
    exported = link.symbols(run("nm", ["nm", "--dynamic", "--defined-only", str(library)]))
    absent = sorted(name for name in wanted - exported.keys() if "3mlx4core" in name or name.startswith("cu"))
    (work / "absent.c").write_text(link.stub(absent).replace("{}", "{ __builtin_trap(); }"), encoding="utf-8")
    run("stubs", ["g++", "-fPIC", "-x", "c", "-c", str(work / "absent.c"), "-o", str(work / "absent.o")])
    built = work / "shim.so"
    run("link", ["g++", "-shared", output, str(work / "absent.o"), str(library), "-o", str(built), "-Wl,-z,defs"])
    ctypes.CDLL(str(library))
    return ctypes.CDLL(str(built))


class Layout(ctypes.Structure):
    _fields_ = (("axes", ctypes.c_int), ("shape", ctypes.c_int * 8), ("strides", ctypes.c_long * 8))


def layout(array: Any) -> Any:
    """Of a numpy array; strides in elements."""
    sizes = [stride // array.itemsize for stride in array.strides]
    return Layout(array.ndim, (ctypes.c_int * 8)(*array.shape), (ctypes.c_long * 8)(*sizes))


def view(shape: Sequence[int]) -> Any:
    """Row-contiguous, of a byte that takes no memory worth the name."""
    return np.empty(shape, np.uint8)


def rows_seen(
    shim: ctypes.CDLL, p: Problem, x: Any, w: Any, scales: Any, device: tuple[int, int] = (9, 0), transpose: bool = True
) -> tuple[int, ...] | None:
    """(m, batch, stride, batch stride) where the predicate takes the arguments, else None."""
    dtype = {"bf16": 0, "f16": 1, "f32": 2}[p.dtype]
    affine, found = p.mode == "affine", (ctypes.c_long * 4)()
    arguments = (dtype, dtype if affine else 3, transpose, p.bits, p.group_size, MODES.index(p.mode), *device)
    layouts = [ctypes.byref(layout(each)) for each in (x, w, scales)]
    return tuple(found) if shim.shim_supports(*layouts, affine, p.n, *arguments, found) else None


def operands(p: Problem) -> tuple[Any, Any, Any]:
    """x, w and scales as MLX's operation hands them on: weights of a batch are expanded to all axes of x."""
    entries = () if p.batch == 1 else (p.batch,)
    w, scales = view((*entries, p.n, p.k * p.bits // 32)), view((*entries, p.n, p.k // p.group_size))
    x = view(p.x_shape)
    if p.batch > 1:
        w, scales = (np.broadcast_to(each, (*p.x_shape[:-2], *each.shape[-2:])) for each in (w, scales))
    return x, w, scales


def launch(shim: ctypes.CDLL, device: tuple[int, int], sms: int, form: Format, *sizes: int) -> tuple[int, ...]:
    into = (ctypes.c_int * 7)()
    shim.shim_launch(*device, sms, form.bits, form.group, form.affine, *sizes, into)
    return tuple(into)


def test_the_header_of_the_tuning_tables_is_what_the_code_says() -> None:
    assert cuda_tuning.FILE.read_text(encoding="utf-8") == cuda_tuning.header(), "nox -s routing writes it"


def test_launches_are_those_of_the_tuning_tables(shim: ctypes.CDLL) -> None:
    ks = (1, 2, 8, 15, 16, 17, 32, 33, 64, 224)  # groups, so that every number of warps and passes comes up
    columns = (1, 16, 17, 1000, 4096, 14336, 28672, 128256)
    count = 0
    for (device, tuning), form in product(DEVICE_CLASSES.items(), FORMATS):
        for number, (groups, n, m) in enumerate(product(ks, columns, (1, 8, 9, 16, 17, 32))):
            if (number + form.bits) % 3 and form != USUAL:
                continue
            k, batch, sms = groups * form.group, (1, 1, 4, 300)[number % 4], (48, 132, 84)[number % 3]
            wanted = small_m_launch(m, n, k, tuning, sms, form, batch)
            t = wanted.tuning
            expected = (t.rows, t.warps, t.stages, t.tiles, t.shared_bytes, *wanted.grid[:2])
            assert launch(shim, device, sms, form, m, n, k, batch) == expected, (device, form, m, n, k, batch, sms)
            count += 1
    assert count > 30_000


EDGES_OF_K = [(4, 64, 0, 1), (4, 64, -1, 1)]
"""The most groups that a row may have, and one more."""


def test_it_takes_what_the_routes_say(shim: ctypes.CDLL) -> None:
    sizes = [(m, 64, 8, 1) for m in (1, MAX_ROWS, MAX_ROWS + 1)]
    sizes += [(4, n, 8, 1) for n in (1, LARGEST, LARGEST + 1)]
    sizes += [(4, 64, 8, batch) for batch in (2, MAX_BATCH, MAX_BATCH + 1)]
    forms = [*FORMATS, Format(1, 64), Format(4, 16), Format(7, 64), Format(8, 256)]
    seen = set()
    for device, form, (m, n, groups, batch), extra in product(CAPABILITIES, forms, [*sizes, *EDGES_OF_K], (0, 8)):
        edge = largest_k(form.bits) // form.group
        k = (groups if groups > 0 else edge - groups) * form.group + extra
        p = Problem(m=m, n=n, k=k, bits=form.bits, group_size=form.group, mode=form.mode, batch=batch)
        taken = bool(
            shim.shim_takes(*device, form.bits, form.group, form.affine, *map(ctypes.c_long, (m, n, k, batch)))
        )
        assert taken == takes_small_m(p, device), (device, p)
        seen.add(taken)
    assert seen == {False, True}


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_rows_lie_where_the_kernel_looks(shim: ctypes.CDLL, form: Format) -> None:
    dtypes: tuple[DType, ...] = ("bf16", "f16", "f32")
    for m, dtype, shape, batch in product((1, 2, 8, 32, 33), dtypes, ("mk", "1mk", "b1k"), (1, 2, 5)):
        p = Problem.model_validate(
            {"m": m, "n": 7, "k": 256, "bits": form.bits, "group_size": form.group, "mode": form.mode, "dtype": dtype}
            | {"layout": shape, "batch": batch}
        )
        seen = rows_seen(shim, p, *operands(p))
        if not takes_small_m(p, (9, 0)):
            assert seen is None, p
            continue
        assert seen is not None, p
        rows, entries, stride, entry_stride = seen
        assert (rows, entries) == (m, batch), p
        row, entry, *_ = kernels.strides(p)
        assert m == 1 or stride * p.k == row, p
        assert batch == 1 or entry_stride * p.k == entry, p


def test_other_forms(shim: ctypes.CDLL) -> None:
    p = Problem(m=4, n=6, k=64)
    x, w, scales = operands(p)
    plain: dict[str, Any] = {"x": x, "w": w, "scales": scales}

    def seen(device: tuple[int, int] = (9, 0), transpose: bool = True, **changed: Any) -> tuple[int, ...] | None:
        given = plain | changed
        return rows_seen(shim, p, given["x"], given["w"], given["scales"], device, transpose)

    def weights(of: Sequence[int], to: Sequence[int]) -> dict[str, Any]:
        """Arrays with these leading axes, expanded to those."""
        return {
            name: np.broadcast_to(view((*of, *each.shape)), (*to, *each.shape))
            for name, each in (("w", w), ("scales", scales))
        }

    assert seen() == (4, 1, 1, 0)
    assert seen(device=(7, 5)) is None
    assert seen(transpose=False) is None
    # one row without axes, and rows over several axes
    assert seen(x=view((64,))) == (1, 1, 1, 0)
    assert seen(x=view((2, 2, 64))) == (4, 1, 1, 0)
    # weights that every entry shares are one matrix
    assert seen(x=view((2, 3, 64)), **weights((1,), (2,))) == (6, 1, 1, 0)
    # every second row, and the first columns
    assert seen(w=np.repeat(w, 2, axis=0)[::2], scales=np.repeat(scales, 2, axis=0)[::2]) is None
    assert seen(w=view((6, 16))[:, :8]) is None
    assert seen(scales=view((6, 4))[:, :1]) is None
    # scales of a batch, weights without
    assert seen(x=view((2, 3, 64)), w=weights((1,), (2,))["w"], scales=weights((2,), (2,))["scales"]) is None
    # expanded along the second axis: the rows of one matrix are not evenly spaced
    assert seen(x=view((2, 3, 1, 64)), **weights((2, 1), (2, 3))) is None
    # two matrices, each for three sequences: of one row, and of several
    assert seen(x=view((3, 2, 1, 64)), **weights((2,), (3, 2))) == (3, 2, 2, 1)
    assert seen(x=view((3, 2, 4, 64)), **weights((2,), (3, 2))) is None


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_the_launch_is_the_one_that_python_makes(shim: ctypes.CDLL, form: Format) -> None:
    """Module, kernel, grid, block, shared memory, and every argument in its place; on 132 multiprocessors."""
    shim.shim_run.restype = ctypes.c_char_p
    dtypes: tuple[DType, ...] = ("bf16", "f16")
    for number, (m, dtype, shape, batch) in enumerate(product((1, 8, 9, 32), dtypes, ("mk", "1mk", "b1k"), (1, 1, 3))):
        p = Problem.model_validate(
            {"m": m, "n": (7, 4096)[number % 2], "k": (256, 4096)[number // 2 % 2], "bits": form.bits}
            | {"group_size": form.group, "mode": form.mode, "dtype": dtype, "layout": shape, "batch": batch}
        )
        variant, wanted = kernels.small_m_variant(p, (9, 0), 132)
        t, into = variant.tuning, (ctypes.c_long * 14)()
        weights = f"Affine<{form.bits}, {form.group}>" if form.affine else form.mode.capitalize()
        cut = f"{t.rows}, {t.warps}, {t.stages}, {t.tiles}"
        kernel = f"mlx::core::cu::qmm_small_m<{kernels.CTYPE[dtype]}, mlx::core::cu::{weights}, {cut}>"
        layouts = [ctypes.byref(layout(each)) for each in operands(p)]
        names = module_name(dtype, t).encode(), kernel.encode()
        numbers = form.affine, p.n, dtypes.index(dtype), form.bits, form.group, MODES.index(form.mode)
        assert shim.shim_run(*layouts, *numbers, *names, into) is None, p
        row, entry, out_row, out_entry = kernels.strides(p)
        assert list(into[:7]) == [*wanted.grid, variant.threads, 1, 1, variant.shared_bytes], p
        assert list(into[7:10]) == [p.m, p.n, p.k], p
        assert m == 1 or (into[10], into[12]) == (row, out_row), p
        assert batch == 1 or (into[11], into[13]) == (entry, out_entry), p


def folded(shim: ctypes.CDLL, x: Any, w: Any) -> list[int]:
    """Rows' shape and strides, and those of an output of them; empty where the batch is not folded."""
    into = (ctypes.c_long * 11)()
    assert shim.shim_fold(ctypes.byref(layout(x)), ctypes.byref(layout(w)), into) == 1
    return list(into[1:]) if into[0] else []


def test_a_batch_of_single_rows_is_folded(shim: ctypes.CDLL) -> None:
    w = view((6, 8))
    assert folded(shim, view((9, 1, 64)), w) == [9, 64, 64, 1, 9, 1, 64, 64, 64, 1]
    # every second sequence: the rows stay where they are
    assert folded(shim, view((18, 1, 64))[::2], w)[:4] == [9, 64, 128, 1]
    for x, other in (
        (view((7, 1, 64)), w),  # stock runs row by row
        (view((9, 2, 64)), w),
        (view((9, 64)), w),
        (view((2, 9, 1, 64)), w),
        (view((9, 1, 64)), view((9, 6, 8))),
    ):
        assert folded(shim, x, other) == []


def test_the_device_code_has_one_namespace_and_no_include_of_ours() -> None:
    from upstream_patch.series.cuda_device import device_source

    text = device_source()
    assert "upstream_patch" not in text
    assert '#include "' not in text
    assert text.count("#pragma once") == 1
    assert "__launch_bounds__" in text


def test_the_layout_is_that_of_the_formatter() -> None:
    beside = str(Path(sys.executable).parent)
    formatter = shutil.which("clang-format", path=beside) or shutil.which("clang-format")
    if formatter is None:
        pytest.skip("no clang-format")
    for path in sorted(HOST_CODE.iterdir()):
        if path.suffix in (".h", ".cpp", ".cuh"):
            assert run("clang-format", [formatter, str(path)]) == path.read_text(encoding="utf-8"), path.name
