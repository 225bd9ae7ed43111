"""The program that the sanitizers watch, on a CUDA driver made of bytes: what it launches, what it finds wrong."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from upstream_patch import kernels
from upstream_patch.correctness import exact
from upstream_patch.correctness.paths import H200
from upstream_patch.driver import DriverError, Gpu
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.floating import ELEMENTS, SCALES
from upstream_patch.kernels.tuning import FORMATS, SLICE, TILE, format_of
from upstream_patch.problem import FLOATING
from upstream_patch.reference import from_bits, matmul_fp64, unpack
from upstream_patch.simulate.small_m import FILE, to_bits


def _number(value: Any) -> int:
    return int(value.value or 0) if hasattr(value, "value") else int(value)


class FakeCuda:
    """Just the driver calls that ``Gpu`` makes. A kernel is numpy, and reads no byte outside its buffers."""

    def __init__(self, spoil: Callable[[Any], None] = lambda _: None) -> None:
        self.memory: dict[int, bytearray] = {}
        self.freed: list[int] = []
        self.names: list[str] = []
        self.spoil = spoil
        self.next = 1 << 20
        self.attributes = {16: 132, 75: 9, 76: 0}
        self.ended = False

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name not in ("cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuCtxSynchronize"):
            raise AttributeError(name)
        return lambda *_: 0

    def cuDevicePrimaryCtxRelease_v2(self, _: Any) -> int:
        self.ended = True
        return 0

    def cuGetErrorName(self, code: int, name: Any) -> int:
        name._obj.value = {700: b"CUDA_ERROR_ILLEGAL_ADDRESS"}.get(code)
        return 0

    def cuDeviceGetAttribute(self, value: Any, number: int, _: Any) -> int:
        value._obj.value = self.attributes[number]
        return 0

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:
        return 0 if image == b"cubin" else 200

    def cuModuleGetFunction(self, handle: Any, _: Any, name: bytes) -> int:
        self.names.append(name.decode())
        handle._obj.value = len(self.names)
        return 0

    def cuFuncSetAttribute(self, _: Any, number: int, value: int) -> int:
        return 0 if number == 8 and value < 228 * 1024 else 1

    def cuMemAlloc_v2(self, address: Any, size: Any) -> int:
        address._obj.value = self.next
        self.memory[self.next] = bytearray(size.value)
        self.next += -(-size.value // 512) * 512
        return 0

    def cuMemFree_v2(self, address: Any) -> int:
        self.freed.append(address.value)
        return 0 if self.memory.pop(address.value, None) is not None else 1

    def _at(self, address: int, size: int) -> memoryview:
        start = max(begin for begin in self.memory if begin <= address)
        if address + size > start + len(self.memory[start]):
            raise IndexError("past the end of a buffer")
        return memoryview(self.memory[start])[address - start : address - start + size]

    def cuMemcpyHtoD_v2(self, to: Any, source: Any, size: Any) -> int:
        self._at(to.value, size.value)[:] = ctypes.string_at(source.value, size.value)
        return 0

    def cuMemcpyDtoH_v2(self, to: Any, source: Any, size: Any) -> int:
        ctypes.memmove(to.value, bytes(self._at(source.value, size.value)), size.value)
        return 0

    def cuLaunchKernel(self, handle: Any, *rest: Any) -> int:
        assert rest[2] == 1 and rest[0] >= 1 and rest[3] % 32 == 0
        name = self.names[handle.value - 1]
        found = re.search(r"_(bf16|f16)_(?:b(\d+)_g(\d+)|(mxfp4|mxfp8|nvfp4))_", name)
        assert found is not None
        dtype: Any = found[1]
        mode: Any = found[4]
        bits, group = FLOATING[mode] if mode else (int(found[2]), int(found[3]))
        count = 4 if mode else 5
        pointers = [int(ctypes.c_void_p.from_address(each).value or 0) for each in rest[8][:count]]
        m, n, k = (ctypes.c_int.from_address(each).value for each in rest[8][count : count + 3])
        strides = [ctypes.c_longlong.from_address(each).value for each in rest[8][count + 3 :]]
        assert strides == [k, m * k, n, m * n] and rest[1] == -(-m // 16)

        def read(at: int, rows: int, columns: int, kind: Any) -> Any:
            data = self._at(at, rows * columns * np.dtype(kind).itemsize)
            return np.frombuffer(bytes(data), kind).reshape(rows, columns)

        try:
            x = from_bits(read(pointers[0], m, k, np.uint16), dtype)
            if mode:
                scales = SCALES[mode][read(pointers[2], n, k // group, np.uint8)]
                biases = np.zeros_like(scales)
            else:
                scales, biases = (from_bits(read(at, n, k // group, np.uint16), dtype) for at in pointers[2:4])
            q = unpack(read(pointers[1], n, k * bits // 32, np.uint32), bits)
            out = to_bits(matmul_fp64(x, q, scales, biases, group, ELEMENTS.get(mode)), dtype)
            self.spoil(out)
            self._at(pointers[-1], 2 * m * n)[:] = out.tobytes()
        except IndexError:
            return 700
        return 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in exact.units(H200):
        (tmp_path / f"{name}.cubin").write_bytes(b"cubin")
    return tmp_path


def test_the_matrix_is_right_on_a_right_kernel(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cuda = FakeCuda()
    monkeypatch.setattr(exact, "Gpu", lambda: Gpu(library=cuda))
    assert exact.main(folder) == 0
    planned = exact.launched(H200)
    assert capsys.readouterr().out == f"launches: {len(planned)}, wrong: 0\n"
    assert cuda.memory == {} and cuda.ended
    assert set(cuda.names) == {each.kernel for each in planned}


def test_a_wrong_element_is_found_and_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil(out: Any) -> None:
        if out.shape == (7, 17):
            out[6, 16] = 0xFFFF  # as if never written

    monkeypatch.setattr(exact, "Gpu", lambda: Gpu(library=FakeCuda(spoil)))
    monkeypatch.setattr(exact, "cases", lambda: iter(_SOME))
    assert exact.main(folder) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("wrong: ") and "NaN or Inf out of place" in first
    assert last == f"launches: {len(_SOME)}, wrong: 1"


_FOUR_BITS = [case for case in exact.cases() if case.problem.bits == 4]
_SPOILT = next(case for case in _FOUR_BITS if (case.problem.m, case.problem.n) == (7, 17))
_SOME = [*(case for case in _FOUR_BITS if case.problem.n != 17), _SPOILT][-24:]


@pytest.mark.parametrize("plant", [each for each in exact.PLANTS if each.short], ids=lambda each: each.name)
def test_a_short_buffer_is_short(
    folder: Path, plant: exact.Plant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exact, "Gpu", lambda: Gpu(library=FakeCuda()))
    assert exact.main(folder, plant.name) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == f"planted {plant.name}: 1 launch"
    assert (said[0] == "cuLaunchKernel failed: CUDA_ERROR_ILLEGAL_ADDRESS") == (plant.tool == "memcheck")


def test_the_matrix_holds_what_it_says() -> None:
    cases = list(exact.cases())
    kinds = {(*format_of(c.problem), c.problem.dtype, c.problem.m) for c in cases}
    assert kinds == {(*form, dtype, m) for form in FORMATS for dtype in exact.DTYPES for m in exact.ROWS}
    off = [case for case in cases if case.problem.n % TILE]
    assert all(case.problem.k % SLICE and case.problem.k % case.problem.group_size == 0 for case in off)
    assert {case.unaligned for case in off} == {True, False}
    for m in exact.ROWS:  # neither N nor K follows from M
        assert len({case.problem.n for case in off if case.problem.m == m}) == 5
        assert len({case.problem.k % 1024 for case in off if case.problem.m == m}) > 3
    warps = {case.cut(H200)[0].tuning.warps for case in cases}
    assert warps == {4, 8, 16}


def test_every_changed_kernel_differs_in_one_place_and_is_of_a_tool() -> None:
    on = exact.PLANTED_ON.cut(H200)[0]
    sound = kernels.closure("small_m")
    for plant in exact.PLANTS:
        changed = plant.changed(on)
        assert (changed is None) == (plant.short is not None)
        if changed:
            assert [name for name in changed if changed[name] != sound[name]] == [FILE]
    assert {plant.tool for plant in exact.PLANTS} == {"memcheck", "racecheck", "initcheck", "synccheck"}


@pytest.mark.needs_compile
def test_a_changed_kernel_compiles_to_other_code() -> None:
    from upstream_patch.compile import cubins

    units = exact.units(H200)
    changed = {name: unit for name, unit in units.items() if "." in name}
    name = exact.PLANTED_ON.cut(H200)[0].name
    built = cubins({**changed, name: units[name]}, "sm_90", kernels.OPTIONS)
    assert len(changed) == 3 and len(set(built.values())) == 4
    assert all(code.startswith(b"\x7fELF") for code in built.values())


def test_no_device_and_a_failed_call_are_said() -> None:
    cuda = FakeCuda()
    gpu = Gpu(library=cuda)
    with pytest.raises(DriverError, match="cuModuleLoadData failed: CUDA error 200"):
        gpu.load(exact.PLANTED_ON.cut(H200)[0], b"not a cubin")
    with pytest.raises(UserError, match="no plant 'nothing'; known: x_short"):
        exact.plant("nothing")
    vars(cuda)["cuDeviceGet"] = lambda *_: 100
    with pytest.raises(MissingTool, match="no CUDA device 0"):
        Gpu(library=cuda)
