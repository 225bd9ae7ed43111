"""Routes on Metal: the request's table, the header that the change ships, and everything that must stay as it was."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from upstream_patch.kernels.metal import FOLDER
from upstream_patch.machine import find_cxx
from upstream_patch.measure.suites import REQUESTED
from upstream_patch.problem import Problem
from upstream_patch.routing_metal import (
    M5,
    AppleGpu,
    Kernel,
    MetalRoute,
    apple_gpu,
    instance,
    parts,
    qmv_batch_limit,
    route,
    splitk_parts,
    stock_route,
    takes_staged,
)
from upstream_patch.simulate.library import cache_folder

M5_ULTRA, M3, M1 = AppleGpu(17, "d", True), AppleGpu(15, "g", False), AppleGpu(13, "s", False)
UNIT = """
#include "qmm_nax_routing.h"
using namespace upstream_patch;
static_assert(qmm_nax_parts({16, 4096, 4096, 64, 1, 25, true, true, true, true}) == 4, "constexpr");
extern "C" {
int parts_of(const long long* p) {
  return qmm_nax_parts(
      {p[0], p[1], p[2], (int)p[3], p[4], (int)p[5], p[6] != 0, p[7] != 0, p[8] != 0, p[9] != 0});
}
int staged(const long long* p, long long x_bytes) {
  return qmm_nax_is_staged(
      {p[0], p[1], p[2], (int)p[3], p[4], (int)p[5], p[6] != 0, p[7] != 0, p[8] != 0, p[9] != 0}, x_bytes);
}
void over(long long k, int group, const int* limits, long long most_m, long long columns, signed char* out) {
  for (long long m = 1; m <= most_m; ++m)
    for (long long n = 1; n <= columns; ++n)
      *out++ = (signed char)qmm_nax_parts({m, 64 * n, k, group, 1, limits[n - 1], true, true, true, true});
}
}
"""


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The header as the series ships it, compiled as C++17 with every warning an error."""
    cxx = find_cxx()
    assert cxx is not None
    folder = tmp_path_factory.mktemp("header")
    (folder / "unit.cpp").write_text(UNIT, encoding="utf-8")
    shutil.copy(FOLDER / "qmm_nax_routing.h", folder)
    flags = ["-std=c++17", "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wconversion"]
    lean = [] if cxx.family == "gcc" else ["-nostdlib"]  # zig would build its libraries first
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(cache_folder() / "zig")}
    for step in ([*flags, "-c", "unit.cpp", "-o", "unit.o"], ["-shared", *lean, "unit.o", "-o", "unit.so"]):
        command = [*cxx.command, *step]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(folder / "unit.so"))


def asked(problem: Problem, gpu: AppleGpu, batch: int = 1) -> Any:
    """The header's argument for a problem with x of [M, K]."""
    p = problem
    limit = qmv_batch_limit(gpu, p.n, p.k)
    told = (True, p.mode == "affine", p.dtype != "f32", gpu.nax)
    return (ctypes.c_longlong * 10)(p.m, p.n, p.k, p.group_size, batch, limit, *told)


def table(m: NDArray[Any], n: NDArray[Any], k: int, group: int, limit: NDArray[Any]) -> NDArray[Any]:
    """The request's words, one by one: parts of K for M rows (down) and N columns (across)."""
    threadgroups = -(-m // 64) * (n // 64)
    least = max(64, group)
    eligible = (m >= 8) & ((m >= limit) | (m * n >= 16384)) & (threadgroups * 2 <= 256)
    if k < 512:
        return np.where(eligible, 1, 0)
    if k % (2 * least):
        return np.zeros_like(threadgroups)
    found = np.full_like(threadgroups, 2)
    for ways in (3, 4):
        if k % (ways * least) == 0 and k // ways >= 256:
            found = np.where(threadgroups * ways <= 256, ways, found)
    return np.where(eligible, found, 0)


MOST_M, COLUMNS = 600, 320


@pytest.mark.needs_simulator
@pytest.mark.parametrize("group", [64, 128])
@pytest.mark.parametrize("gpu", [M5, M5_ULTRA], ids=["M5", "Ultra"])
def test_the_header_says_what_the_request_says_of_every_shape(gpu: AppleGpu, group: int, header: Any) -> None:
    """M to 600, N and K to 20,480 in steps of 64: 61 million shapes a case."""
    m = np.arange(1, MOST_M + 1, dtype=np.int32)[:, None]
    n = 64 * np.arange(1, COLUMNS + 1, dtype=np.int32)[None, :]
    out = np.empty((MOST_M, COLUMNS), np.int8)
    for k in range(group, 20480 + 1, group):
        limits = np.array([qmv_batch_limit(gpu, int(each), k) for each in n[0]], np.int32)
        header.over(
            ctypes.c_longlong(k),
            group,
            limits.ctypes.data_as(ctypes.POINTER(ctypes.c_int)),
            ctypes.c_longlong(MOST_M),
            ctypes.c_longlong(COLUMNS),
            out.ctypes.data_as(ctypes.c_char_p),
        )
        assert np.array_equal(out, table(m, n, k, group, limits[None, :])), k


@pytest.mark.needs_simulator
def test_the_header_is_the_python_at_every_edge(header: Any) -> None:
    sizes = (32, 64, 96, 128, 448, 512, 544, 576, 1152, 1728, 2048, 2112, 4096, 4160, 5120, 8192, 8256, 17408)
    ms = (1, 7, 8, 9, 12, 13, 24, 25, 31, 32, 33, 63, 64, 65, 128, 129, 256, 257)
    seen = set()
    for m, n, k, group, gpu in product(ms, sizes, sizes, (32, 64, 128), (M5, M5_ULTRA, M3)):
        if k % group == 0:
            for more in ({}, {"dtype": "f16"}, {"dtype": "f32"}) if m in (8, 33) else ({},):
                problem = Problem(m=m, n=n, k=k, group_size=group, **more)
                found = parts(problem, gpu)
                seen.add(found)
                assert found == header.parts_of(asked(problem, gpu)), problem.id
                assert takes_staged(problem) == bool(header.staged(asked(problem, gpu), 0)), problem.id
    assert seen == {0, 1, 2, 3, 4}
    several = Problem(m=16, n=4096, k=4096)
    assert header.parts_of(asked(several, M5)) == 4
    assert header.parts_of(asked(several, M5, batch=2)) == 0
    floating = Problem(m=16, n=4096, k=4096, mode="mxfp8", bits=8, group_size=32)
    assert header.parts_of(asked(floating, M5)) == parts(floating, M5) == 0
    assert [header.staged(asked(several, M5), each) for each in (0, 2, 4, 6, 8, 24)] == [1, 0, 0, 0, 1, 1]
    assert [takes_staged(several, each) for each in (0, 2, 4, 6, 8, 24)] == [True, False, False, False, True, True]


SPLIT: Kernel = "qmm_t_nax_splitk"


@pytest.mark.parametrize(
    ("k", "n", "m", "stock", "ours"),
    [
        (2048, 2048, 22, MetalRoute("qmv_wide"), MetalRoute(SPLIT, 4, 32, True)),
        (4096, 4096, 16, MetalRoute("qmv_wide"), MetalRoute(SPLIT, 4, 32, True)),
        (768, 4096, 16, MetalRoute("qmv_wide"), MetalRoute(SPLIT, 3, 32, True)),
        (256, 4096, 16, MetalRoute("qmv_wide"), MetalRoute("qmm_t_nax", 1, 32, True)),
        (10752, 2048, 85, MetalRoute("qmm_t_splitk", 2), MetalRoute(SPLIT, 4, 64, True)),
        (14336, 4096, 33, MetalRoute("qmm_t_splitk", 2), MetalRoute(SPLIT, 4, 64, True)),
        (256, 4096, 40, MetalRoute("qmm_t_splitk", 2), MetalRoute("qmm_t_nax", 1, 64, True)),
        (17408, 5120, 56, MetalRoute("qmm_t_nax", 1, 64), MetalRoute(SPLIT, 2, 64, True)),
        (5120, 17408, 28, MetalRoute("qmm_t_nax", 1, 32), MetalRoute("qmm_t_nax", 1, 32, True)),
        (4096, 4096, 512, MetalRoute("qmm_t_nax", 1, 64), MetalRoute("qmm_t_nax", 1, 64, True)),
        (4096, 14336, 8, MetalRoute("qmv_wide"), MetalRoute("qmv_wide")),
    ],
)
def test_the_shapes_of_the_request(k: int, n: int, m: int, stock: MetalRoute, ours: MetalRoute) -> None:
    """The kernels that its table names before and after."""
    problem = Problem(m=m, n=n, k=k)
    assert problem in REQUESTED
    assert stock_route(problem, M5) == stock
    assert route(problem, M5) == ours


@pytest.mark.parametrize(
    ("gpu", "limits"),
    [
        (M5, (33, 25, 13)),
        (AppleGpu(18, "p", True), (33, 25, 13)),
        (M5_ULTRA, (32, 18, 12)),
        (AppleGpu(16, "s", False), (13, 15, 13)),
        (M3, (13, 15, 13)),
        (AppleGpu(15, "d", False), (32, 18, 12)),
        (M1, (14, 10, 6)),
        (AppleGpu(12, "g", False), (18, 12, 10)),
        (AppleGpu(12, "d", False), (32, 18, 12)),
    ],
)
def test_limits_of_the_vector_kernels(gpu: AppleGpu, limits: tuple[int, int, int]) -> None:
    small, middle, large = limits
    assert [qmv_batch_limit(gpu, *nk) for nk in ((2048, 2048), (64, 2048))] == [small, small]
    assert [qmv_batch_limit(gpu, *nk) for nk in ((2049, 64), (64, 2112), (4096, 4096))] == [middle] * 3
    assert [qmv_batch_limit(gpu, *nk) for nk in ((4097, 64), (64, 4160))] == [large] * 2


def test_devices_are_told_by_their_architecture_and_system() -> None:
    assert apple_gpu("applegpu_g17s", (26, 2)) == AppleGpu(17, "s", True)
    assert apple_gpu("applegpu_g17g", (26, 1, 9)) == AppleGpu(17, "g", False)
    assert apple_gpu("applegpu_g17p", (27,)) == AppleGpu(17, "p", False)
    assert apple_gpu("applegpu_g18p", (26, 2)) == AppleGpu(18, "p", True)
    assert apple_gpu("applegpu_g16s", (26, 4)) == AppleGpu(16, "s", False)
    assert apple_gpu("sm_90", (26, 2)) is None


def test_the_boundaries_one_by_one() -> None:
    def taken(**sizes: Any) -> int:
        return parts(Problem(**({"m": 16, "n": 4096, "k": 4096} | sizes)), M5)

    assert [taken(m=m) for m in (7, 8)] == [0, 4]
    assert [taken(m=m, n=1024) for m in (8, 15, 16, 24, 25)] == [0, 0, 4, 4, 4]  # M N = 16,384 at 16 rows
    assert [taken(m=m, n=64) for m in (24, 25)] == [0, 4]  # and at the limit whatever M N is
    assert [taken(n=64 * tiles, k=6144) for tiles in (64, 65, 85, 86, 128, 129)] == [4, 3, 3, 2, 2, 0]
    assert [taken(k=k) for k in (64, 448, 512, 576, 640, 768, 1024, 1152, 1728)] == [1, 1, 2, 0, 2, 3, 4, 3, 0]
    assert [taken(k=k, group_size=128) for k in (1024, 1152, 1280, 1536)] == [4, 0, 2, 4]
    # four parts only fail to divide: three do, as we decided
    assert [taken(k=k) for k in (6 * 192, 6 * 256)] == [3, 4]
    assert [taken(n=n) for n in (4096 - 32, 4096)] == [0, 4]
    assert [taken(k=k, group_size=32) for k in (4096 - 32, 4096)] == [0, 4]
    assert taken(batch=2) == taken(mode="nvfp4", group_size=16) == taken(dtype="f32") == 0
    assert taken(layout="b1k") == taken(layout="1mk") == 4  # one w: the batch of x is rows


def test_what_is_not_of_the_table_keeps_its_route() -> None:
    kinds: list[dict[str, Any]] = [{}, {"dtype": "f32"}, {"batch": 3}, {"bits": 8, "group_size": 32}]
    kinds.append({"batch": 3, "layout": "b1k"})
    ms, ns, ks = (1, 7, 8, 16, 24, 25, 33, 70, 257), (64, 100, 1024, 4096, 17408), (64, 128, 512, 576, 4096)
    for m, n, k, more in product(ms, ns, ks, kinds):
        problem = Problem(m=m, n=n, k=k, **more)
        for gpu in (M5, M5_ULTRA, M3, M1):
            before, after = stock_route(problem, gpu), route(problem, gpu)
            if not gpu.nax or problem.dtype == "f32" or n % 64:
                assert after == before, (problem.id, gpu)
            elif not parts(problem, gpu):
                assert (after.kernel, after.parts, after.rows) == (before.kernel, before.parts, before.rows), problem.id
                assert after.staged == (before.kernel == "qmm_t_nax")


def test_misaligned_x_keeps_the_old_schedule_unless_it_is_split_and_so_copied() -> None:
    wide, narrow = Problem(m=70, n=17408, k=4096), Problem(m=70, n=1024, k=4096)
    assert route(wide, M5) == MetalRoute("qmm_t_nax", 1, 64, staged=True)
    assert route(wide, M5, x_bytes=2) == MetalRoute("qmm_t_nax", 1, 64)
    assert route(narrow, M5, x_bytes=2) == route(narrow, M5) == MetalRoute(SPLIT, 4, 64, staged=True)


def test_stock_details() -> None:
    assert stock_route(Problem(m=2, n=512, k=128), M5).kernel == "qmv_quad"
    assert stock_route(Problem(m=2, n=512, k=128, bits=6), M5).kernel == "qmv_wide"
    assert stock_route(Problem(m=1, n=512, k=4096), M5).kernel == stock_route(Problem(m=2, n=512, k=512), M1).kernel
    assert stock_route(Problem(m=512, n=4096, k=4096, dtype="f32"), M5).kernel == "qmm_t_nax"
    assert stock_route(Problem(m=512, n=4096, k=4096, dtype="f32"), M5, tf32=False).kernel == "qmm_t"
    assert stock_route(Problem(m=512, n=4096, k=4096 + 32, group_size=32), M5).kernel == "qmm_t"
    assert stock_route(Problem(m=512, n=4096, k=4096), M3).kernel == "qmm_t"
    assert [splitk_parts(33, 64, k, 128) for k in (128, 256, 384, 640)] == [1, 2, 3, 5]
    with pytest.raises(ValueError, match="only affine"):
        stock_route(Problem(m=2, n=64, k=64, mode="mxfp4", group_size=32), M5)


def test_every_route_of_ours_has_an_instance() -> None:
    names = set()
    for m, n, k, bits, group, dtype, batch in product(
        (8, 16, 33, 70), (64, 4096, 17408), (256, 4096), (1, 2, 3, 4, 5, 6, 8), (32, 64, 128), ("bf16", "f16"), (1, 2)
    ):
        problem = Problem(m=m, n=n, k=k, bits=bits, group_size=group, dtype=dtype, batch=batch)
        taken = route(problem, M5)
        found = instance(problem, taken)
        assert (found is not None) == taken.staged
        if found is not None:
            assert (found.split, found.bm, found.batched) == (taken.parts > 1, taken.rows, batch > 1)
            names.add(found.host_name)
    assert len(names) == 7 * 3 * 2 * 2 * 3, "bits, groups, dtypes, rows; unbatched, batched, split"
    assert instance(Problem(m=70, n=100, k=64), route(Problem(m=70, n=100, k=64), M5)) is None
