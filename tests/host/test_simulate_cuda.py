"""The simulator's CUDA: what its intrinsics compute, against numpy, and what it refuses to compile."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from upstream_patch.errors import MissingTool
from upstream_patch.kernels import FOLDER
from upstream_patch.machine import Cxx, find_cxx
from upstream_patch.problem import DType
from upstream_patch.reference import from_bits, round_to
from upstream_patch.simulate import SUMS, Buffer, Kernel, SimulatorCompileError, Sums, cuda_kernel, library, run
from upstream_patch.simulate.library import NATIVE, build, cache_folder
from upstream_patch.simulate.small_m import to_bits

pytestmark = pytest.mark.needs_simulator


def one_warp(body: str, given: NDArray[np.uint32], outputs: int, sums: Sums = "ascending") -> NDArray[np.uint32]:
    text = f"""extern "C" __global__ void k(const unsigned* in, unsigned* out) {{
  using namespace upstream_patch;
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
{body}
}}
"""
    arguments = [Buffer(given), Buffer(np.zeros(outputs, np.uint32), output=True)]
    result = run(cuda_kernel("k", {}, text, 0), arguments, (1, 1, 1), (32, 1, 1), shared_limit=0, sums=sums)
    assert result.report.faults == ()
    out: NDArray[np.uint32] = result.outputs[0]
    return out


STORE = """
  const float d[4] = {c.x, c.y, c.z, c.w};
  for (int i = 0; i < 4; ++i) out[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = __float_as_uint(d[i]);"""
# in: A [16, 16], then B [16, 8] as columns, two values a word
MMA_16 = """
  const unsigned* b = in + 128;
  const u32 a[4] = {in[g * 8 + t], in[(g + 8) * 8 + t], in[g * 8 + t + 4], in[(g + 8) * 8 + t + 4]};
  const f32x4 c = mma_m16n8k16<TYPE>(a, b[g * 8 + t], b[g * 8 + t + 4], f32x4{1, 1, 1, 1});"""
MMA_8 = """
  const unsigned* b = in + 128;
  const float a[4] = {__uint_as_float(in[g * 8 + t]), __uint_as_float(in[(g + 8) * 8 + t]),
                      __uint_as_float(in[g * 8 + t + 4]), __uint_as_float(in[(g + 8) * 8 + t + 4])};
  const f32x4 c = mma_m16n8k8_tf32(a, __uint_as_float(b[t * 8 + g]), __uint_as_float(b[(t + 4) * 8 + g]), f32x4{});"""


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize(("kind", "ctype"), [("bf16", "__nv_bfloat16"), ("f16", "__half")])
def test_mma_of_16_bit_types(kind: DType, ctype: str, sums: Sums) -> None:
    rng = np.random.default_rng(5)
    a, b = (round_to(rng.standard_normal(shape), kind) for shape in ((16, 16), (16, 8)))
    words = [to_bits(m, kind).astype(np.uint16).reshape(-1).view(np.uint32) for m in (a, np.ascontiguousarray(b.T))]
    got = one_warp(MMA_16.replace("TYPE", ctype) + STORE, np.concatenate(words), 128, sums).view(np.float32)
    exact = (a @ b + 1).reshape(-1)
    assert np.abs(got - exact).max() < 1e-5
    if sums == "exact":
        assert np.array_equal(got, exact.astype(np.float32))


def test_mma_of_tf32_ignores_the_low_bits() -> None:
    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal(shape).astype(np.float32).view(np.uint32) for shape in ((16, 8), (8, 8)))
    got = one_warp(MMA_8 + STORE, np.concatenate([a.reshape(-1), b.reshape(-1)]), 128, "exact").view(np.float32)
    cut = [(m & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64) for m in (a, b)]
    assert np.array_equal(got.reshape(16, 8), (cut[0] @ cut[1]).astype(np.float32))


def test_sums_differ_in_their_last_bits_only() -> None:
    given = np.random.default_rng(7).integers(0x3C00, 0x4400, 2 * 192, np.uint16).view(np.uint32)
    body = MMA_16.replace("TYPE", "__nv_bfloat16") + STORE
    got = {sums: one_warp(body, given, 128, sums).tobytes() for sums in SUMS}
    assert len(set(got.values())) > 2


def test_16_bit_conversions_are_those_of_the_hardware() -> None:
    rng = np.random.default_rng(8)
    special = np.array([0, 1, 0x7F800000, 0xFF800000, 0x7FC00000, 0x33000000, 0x33000001, 0x477FEFFF, 0x477FF000])
    bits = np.concatenate([special, rng.integers(0, 2**32, 8000), rng.integers(0x32000000, 0x48000000, 8000)])
    given = np.resize(bits, 16128).astype(np.uint32)
    body = """
  for (int i = lane; i < 16128; i += 32) {
    const float v = __uint_as_float(in[i]);
    out[i] = __float2bfloat16(v).bits | static_cast<unsigned>(__float2half(v).bits) << 16;
  }"""
    got = one_warp(body, given, 16128)
    floats = given.view(np.float32)
    real = ~np.isnan(floats)
    with np.errstate(invalid="ignore", over="ignore"):
        wide = floats.astype(np.float64)
        assert np.array_equal((got & 0xFFFF)[real], to_bits(wide[real], "bf16"))
        assert np.array_equal((got >> 16)[real], floats.astype(np.float16).view(np.uint16)[real])
    assert set(got[~real]) == {0x7FFF7FFF}


def test_every_half_becomes_its_float() -> None:
    body = """
  for (int i = lane; i < 65536; i += 32) out[i] = __float_as_uint(__half2float(__ushort_as_half(i)));"""
    got = one_warp(body, np.zeros(1, np.uint32), 65536).view(np.float32)
    want = from_bits(np.arange(65536, dtype=np.uint16), "f16")
    nan = np.isnan(want)
    assert np.array_equal(got[~nan].astype(np.float64), want[~nan])
    assert np.isnan(got[nan]).all()


def test_words() -> None:
    body = """
  out[lane * 4] = byte_permute(0x33221100, 0xF7665544, 0x5410 + lane % 2 * 0xA000);
  out[lane * 4 + 1] = and_or(0xABCD, 0x0F0F, 0x4300);
  out[lane * 4 + 2] = static_cast<unsigned>(shuffle(static_cast<float>(lane), 31 - lane));
  out[lane * 4 + 3] = is_aligned(in, 16) + 2 * is_aligned(in + 1, 16) + min(lane, 5) * 16 + max(7, lane) * 256;"""
    got = one_warp(body, np.zeros(4, np.uint32), 128).reshape(32, 4)
    assert [hex(v) for v in got[:2, 0]] == ["0x55441100", "0xff441100"]
    assert set(got[:, 1]) == {0x4B0D}
    assert list(got[:, 2]) == list(range(31, -1, -1))
    assert list(got[:, 3]) == [1 + min(i, 5) * 16 + max(7, i) * 256 for i in range(32)]


def test_fma_of_halves_rounds_once() -> None:
    rng = np.random.default_rng(9)
    a, b, c = (rng.integers(0, 0x7C00, 4096, np.uint16) | rng.integers(0, 2, 4096, np.uint16) << 15 for _ in range(3))
    a[:2048] = a[:2048] & 0x83FF | 0x3C00  # near 1, so that the sum is seldom beyond f16
    b[:2048] = b[:2048] & 0x83FF | 0x3800
    c[:1024] = c[:1024] & 0x83FF | 0x3400
    # (1 + 2^-10) 1.5 - 2^-24: a bit less than half way, which fp32 takes for half way
    a[0], b[0], c[0] = 0x3C01, 0x3E00, 0x8001
    body = "  for (int i = lane; i < 2048; i += 32) out[i] = fma_f16(in[i], in[2048 + i], in[4096 + i]);"
    got = one_warp(body, np.concatenate([a, b, c]).view(np.uint32), 2048).view(np.float16)
    with np.errstate(over="ignore"):
        x, y, z = (v.view(np.float16).astype(np.float64) for v in (a, b, c))
        assert np.array_equal(got, (x * y + z).astype(np.float16))


VOTES = """
  const u32 all = 0xFFFFFFFF, v = in[lane];
  out[lane * 16] = __shfl_sync(all, v, (lane + 3) % 32);
  out[lane * 16 + 1] = __shfl_xor_sync(all, v, 5);
  out[lane * 16 + 2] = __shfl_up_sync(all, v, 4);
  out[lane * 16 + 3] = __shfl_down_sync(all, v, 4);
  out[lane * 16 + 4] = __ballot_sync(all, v & 1);
  out[lane * 16 + 5] = __any_sync(all, lane == 7) + 2 * __any_sync(all, 0);
  out[lane * 16 + 6] = __all_sync(all, lane != 7) + 2 * __all_sync(all, 1);
  out[lane * 16 + 7] = __reduce_add_sync(all, v);
  out[lane * 16 + 8] = __reduce_min_sync(all, v);
  out[lane * 16 + 9] = __reduce_max_sync(all, v);
  out[lane * 16 + 10] = __reduce_min_sync(all, static_cast<int>(v));
  out[lane * 16 + 11] = __reduce_max_sync(all, static_cast<int>(v));
  out[lane * 16 + 12] = __reduce_and_sync(all, v | 9);
  out[lane * 16 + 13] = __reduce_or_sync(all, v & 0xFF00);
  out[lane * 16 + 14] = __reduce_xor_sync(all, v);
  out[lane * 16 + 15] = static_cast<u32>(__reduce_add_sync(all, static_cast<int>(v)));"""


def test_shuffles_votes_and_reductions_of_a_warp() -> None:
    v = np.random.default_rng(10).integers(0, 2**32, 32, np.uint32)
    lane = np.arange(32)
    want = np.empty((32, 16), np.uint32)
    want[:, 0] = v[(lane + 3) % 32]
    want[:, 1] = v[lane ^ 5]
    want[:, 2] = v[np.where(lane < 4, lane, lane - 4)]
    want[:, 3] = v[np.where(lane > 27, lane, lane + 4)]
    want[:, 4] = ((v & 1).astype(np.uint64) << lane.astype(np.uint64)).sum()
    want[:, 5], want[:, 6] = 1, 2
    want[:, 7] = want[:, 15] = v.sum(dtype=np.uint32)
    want[:, 8], want[:, 9] = v.min(), v.max()
    signed = v.view(np.int32)
    want[:, 10], want[:, 11] = np.array([signed.min(), signed.max()]).view(np.uint32)
    want[:, 12], want[:, 13] = np.bitwise_and.reduce(v | 9), np.bitwise_or.reduce(v & 0xFF00)
    want[:, 14] = np.bitwise_xor.reduce(v)
    assert np.array_equal(one_warp(VOTES, v, 512).reshape(32, 16), want)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("shuffle(0.f, lane + 1)", "shuffle source"),
        ("shuffle(0.f, lane - 1)", "shuffle source"),
        ("__shfl_sync(0xFFFFFFFF, lane, lane + 1)", "shuffle source"),
        ("__shfl_xor_sync(0xFFFFFFFF, lane, 32)", "shuffle source"),
        ("__shfl_sync(0xFFFF, lane, 0)", "warp mask"),
        ("__ballot_sync(0x7FFFFFFF, 1)", "warp mask"),
        ("lane < 9 ? __any_sync(0xFFFFFFFF, 1) : __all_sync(0xFFFFFFFF, 1)", "divergence"),
    ],
)
def test_a_shuffle_from_no_lane_or_for_a_part_of_a_warp_is_a_fault(call: str, kind: str) -> None:
    text = f"""extern "C" __global__ void k(int* out) {{
  using namespace upstream_patch;
  const int lane = threadIdx.x;
  out[lane] = static_cast<int>({call});
}}
"""
    out = Buffer(np.zeros(32, np.int32), output=True)
    (found,) = run(cuda_kernel("k", {}, text, 0), [out], (1, 1, 1), (32, 1, 1), shared_limit=0).report.faults
    assert (found.kind, found.line) == (kind, 4)


def test_an_unknown_intrinsic_is_one_line_that_names_it() -> None:
    with pytest.raises(
        SimulatorCompileError, match=r"k\.cu:2 uses __nanosleep, which the simulator does not know"
    ) as e:
        build(cuda_kernel("k", {}, 'extern "C" __global__ void k(int* out) {\n  __nanosleep(1);\n}\n', 0))
    assert "\n" not in str(e.value)


def test_a_static_shared_array_does_not_compile() -> None:
    with pytest.raises(SimulatorCompileError, match="static __shared__"):
        build(cuda_kernel("k", {}, 'extern "C" __global__ void k(int* out) { __shared__ int a[4]; out[0] = a[0]; }', 0))


def test_every_name_of_the_real_intrinsics_has_a_meaning() -> None:
    """Both headers declare the same functions and types."""
    name = re.compile(r"(?:void|bool|float|u32|u32x2|f32x4) (\w+)\(|^struct alignas\(\d+\) (\w+)", re.MULTILINE)
    real, ours = (
        {a or b for a, b in name.findall(path.read_text(encoding="utf-8"))}
        for path in (FOLDER / "intrinsics.cuh", NATIVE / "cuda" / "intrinsics.cuh")
    )
    assert len(real) > 15
    assert real - ours == set()


def test_no_compiler_is_one_line_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_cxx", lambda: None)
    library.compiler.cache_clear()
    try:
        with pytest.raises(
            MissingTool, match=r"no C\+\+ compiler for the lane simulator: pip install -e '\.\[simulate"
        ):
            library.compiler()
    finally:
        library.compiler.cache_clear()


def test_the_compiler_and_the_cache_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UPSTREAM_PATCH_CXX", "/opt/bin/clang++-19")
    assert find_cxx() == Cxx(("/opt/bin/clang++-19",), "clang", "$UPSTREAM_PATCH_CXX")
    monkeypatch.setenv("UPSTREAM_PATCH_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("UPSTREAM_PATCH_CACHE")
    assert os.fspath(cache_folder()).endswith("mlx-upstream-patch")


@pytest.mark.parametrize("damage", ["cut", "foreign", "unsealed", "moved"])
def test_a_damaged_library_in_the_cache_is_compiled_again(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_whole", set())

    def made(value: int) -> Kernel:
        return cuda_kernel("k", {}, f'extern "C" __global__ void k(int* out) {{ out[0] = {value}; /* {damage} */ }}', 0)

    kernel = made(7)
    path = build(kernel)
    whole, seal = path.read_bytes(), (path.parent / "sha256").read_text(encoding="utf-8")
    path.unlink()  # never in place: another test may have it open
    path.write_bytes({"cut": whole[: len(whole) // 2], "foreign": b"\x7fELF" + bytes(4096)}.get(damage, whole))
    if damage == "unsealed":
        (path.parent / "sha256").unlink()
    if damage == "moved":  # all of another kernel's folder
        other = build(made(8))
        path.write_bytes(other.read_bytes())
        (path.parent / "sha256").write_bytes((other.parent / "sha256").read_bytes())
    library._whole.clear()
    out = Buffer(np.zeros(1, np.int32), output=True)
    result = run(kernel, [out], (1, 1, 1), (1, 1, 1), shared_limit=0)
    assert list(result.outputs[0]) == [7]
    assert (path.parent / "sha256").read_text(encoding="utf-8") == library._seal(path.parent, path.parent.name)
    assert len(seal) == 64


@pytest.mark.parametrize("target", ["aarch64-linux-gnu", "aarch64-macos", "x86_64-macos"])
def test_the_engine_compiles_for_other_machines(target: str, tmp_path: Path) -> None:
    cxx = library.compiler()
    if cxx.family != "zig":
        pytest.skip("only zig compiles for other machines")
    options = ["-target", target, "-std=c++17", "-fno-exceptions", "-Wall", "-Wextra", "-Werror", "-fPIC"]
    sources = [str(NATIVE / name) for name in ("fiber.cpp", "memory.cpp", "engine.cpp", "budget.cpp", "image.cpp")]
    for source in sources:
        library._run(cxx, [*options, "-c", source], "x.o", tmp_path, target)
