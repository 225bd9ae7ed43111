"""The compile check: what it reads from the compiler, and how it fails."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO

import pytest
from rich.console import Console

from upstream_patch import compile as compiling
from upstream_patch import kernels
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.terminal import compile_tables

BODY = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
extern "C" __global__ void __launch_bounds__({bounds}) {name}(const __nv_bfloat16* a, float* out, int n) {{
  __shared__ float shared[128];
  float r[64];
  for (int i = 0; i < 64; ++i) r[i] = __bfloat162float(a[i * n + threadIdx.x]);
  for (int j = 0; j < n; ++j)
    for (int i = 0; i < 64; ++i) r[i] = r[i] * r[(i * 7 + 3) % 64] + 1.0f;
  shared[threadIdx.x % 128] = r[0];
  __syncthreads();
  float sum = shared[127 - threadIdx.x % 128];
  for (int i = 0; i < 64; ++i) sum += r[i] * i;
  out[threadIdx.x] = sum;
}}
"""


@dataclass(frozen=True)
class Fake:
    name: str
    bounds: str = "64"
    threads: int = 64
    shared_bytes: int = 1000
    text: str = BODY

    def translation_unit(self) -> str:
        return self.text.format(name=self.name, bounds=self.bounds)


LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'one' for 'sm_90'
ptxas info    : Function properties for one
ptxas         .     8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 80 registers, used 1 barriers, 512 bytes smem
ptxas info    : Compiling entry function 'two' for 'sm_90'
ptxas info    : Function properties for two
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers
"""


def test_the_log_is_read_for_the_kernel_asked_for() -> None:
    one = {"registers": 80, "spill_stores": 12, "spill_loads": 16, "static_shared": 512}
    assert compiling.parse_log(LOG, "one") == one
    assert compiling.parse_log(LOG, "two") == {
        "registers": 24,
        "spill_stores": 0,
        "spill_loads": 0,
        "static_shared": 0,
    }


@pytest.mark.parametrize("log", ["", LOG, LOG.replace("spill", "?")])
def test_a_log_without_the_kernel_is_an_error_not_zeros(log: str) -> None:
    with pytest.raises(UserError, match="says nothing of"):
        compiling.parse_log(log, "three" if log is LOG else "one")


def test_no_nvrtc_ends_in_one_line_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "find_nvrtc", lambda: None)
    compiling.nvrtc.cache_clear()
    with pytest.raises(MissingTool, match=r"no NVRTC.*pip install -e '\.\[compile\]'") as caught:
        compiling.compile_all(["sm_90"], [Fake("k")], [])
    assert "\n" not in str(caught.value)


@pytest.mark.needs_compile
def test_registers_and_shared_memory_of_every_arch() -> None:
    seen: list[tuple[int, int]] = []
    results = compiling.compile_all(
        ["sm_80", "sm_121"], [Fake("a"), Fake("b")], [], progress=lambda *done: seen.append(done)
    )
    assert [(r.variant, r.arch) for r in results] == [("a", "sm_80"), ("b", "sm_80"), ("a", "sm_121"), ("b", "sm_121")]
    assert all(r.shared_bytes == 512 + 1000 for r in results)
    assert all(64 <= r.registers <= 255 and not r.spills for r in results)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.needs_compile
def test_a_kernel_that_must_spill_is_seen_to_spill() -> None:
    # 1,024 threads, two blocks an SM: 32 registers a thread, and the kernel keeps 64 values alive.
    result = compiling.compile_one(Fake("crowded", bounds="1024, 2"), "sm_90")
    assert result.registers <= 32
    assert result.spills
    assert result.spill_stores > 0
    assert result.spill_loads > 0


@pytest.mark.needs_compile
def test_a_kernel_that_does_not_compile_names_itself_and_the_arch() -> None:
    broken = Fake("broken", text=BODY.replace("float sum", "flaot sum"))
    with pytest.raises(compiling.CompileError, match=r"broken does not compile for sm_90: .*flaot") as caught:
        compiling.compile_all(["sm_90"], [broken], [])
    assert "\n" not in str(caught.value)
    assert "flaot" in caught.value.log


@pytest.mark.needs_compile
def test_options_reach_the_compiler() -> None:
    needs_option = Fake("k", text="#ifndef WANTED\n#error no option\n#endif\n" + BODY)
    with pytest.raises(compiling.CompileError, match="no option"):
        compiling.compile_one(needs_option, "sm_90")
    assert compiling.compile_one(needs_option, "sm_90", ["-DWANTED=1"]).registers > 0


@pytest.mark.parametrize(
    ("registers", "shared", "arch", "why"),
    [
        (129, 1000, "sm_90", "x takes 66,048 registers on sm_90, which has 65,536"),
        (128, 227 * 1024 + 1, "sm_90", "x takes 232,449 bytes of shared memory on sm_90, which has 232,448"),
        (128, 100 * 1024, "sm_121", "x takes 102,400 bytes of shared memory on sm_121, which has 101,376"),
    ],
)
def test_a_block_that_no_multiprocessor_holds_is_refused(registers: int, shared: int, arch: str, why: str) -> None:
    compiling.check_launch(compiling.CompileResult("x", "sm_90", 128, 227 * 1024, 0, 0, 512))
    with pytest.raises(compiling.CannotLaunch, match=why):
        compiling.check_launch(compiling.CompileResult("x", arch, registers, shared, 0, 0, 512))


@pytest.mark.needs_compile
def test_the_most_demanding_kernel_compiles_for_every_arch_and_can_be_launched() -> None:
    """``build``, a stage of the main job, compiles all of them."""
    for arch in kernels.ARCHS:
        variants = kernels.build_variants(arch)
        demanding = max(variants, key=lambda variant: (variant.shared_bytes, variant.threads))
        (result,) = compiling.compile_all([arch], [demanding])
        assert (result.variant, result.arch) == (demanding.name, arch)
        assert len({variant.name for variant in variants}) == len(variants) > 5


def test_the_tables_fit_80_columns_and_lose_nothing() -> None:
    def result(variant: str, arch: str, spills: int = 0) -> compiling.CompileResult:
        return compiling.CompileResult(variant, arch, 120, 200_704, spills, 0, 256)

    name = "small_m_bf16_r16_w16_s2_b4"
    console = Console(width=80, record=True, file=StringIO())
    for table in compile_tables([result(name, "sm_80"), result(name, "sm_90", 8), result("b", "sm_90")]):
        console.print(table)
    lines = [line.split() for line in console.export_text().splitlines()]
    assert lines.index(["sm_80", "threads", "shared", "B", "registers", "spilled", "B"]) == 0
    assert [name, "256", "200,704", "120", "8"] in lines
    assert [name, "256", "200,704", "120", "0"] in lines
