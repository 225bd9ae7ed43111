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
from upstream_patch.correctness.exact_cases import batches, instances, of_formats, strides
from upstream_patch.correctness.paths import H200
from upstream_patch.driver import DriverError, Gpu
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.floating import ELEMENTS, SCALES
from upstream_patch.problem import FLOATING
from upstream_patch.records.rules import LEAST_LAUNCHES, LEAST_LAUNCHES_WITHOUT_HASHES
from upstream_patch.reference import from_bits, matmul_fp64, unpack
from upstream_patch.simulate.small_m import FILE, to_bits


def _number(value: Any) -> int:
    return int(value.value or 0) if hasattr(value, "value") else int(value)


UNWRITTEN = 0xA5


class FakeCuda:
    """Just the driver calls that ``Gpu`` makes. A kernel is numpy, and reads no byte outside its buffers."""

    def __init__(self, spoil: Callable[[Any], None] = lambda _: None) -> None:
        self.memory: dict[int, bytearray] = {}
        self.freed: list[int] = []
        self.names: list[str] = []
        self.launches: list[tuple[Any, ...]] = []
        """The name, the grid, and the strides of x and out."""
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
        self.memory[self.next] = bytearray([UNWRITTEN]) * size.value
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
        assert rest[0] >= 1 and rest[3] % 32 == 0
        name = self.names[handle.value - 1]
        found = re.search(r"_(bf16|f16)_(?:b(\d+)_g(\d+)|(mxfp4|mxfp8|nvfp4))_", name)
        assert found is not None
        dtype: Any = found[1]
        mode: Any = found[4]
        bits, group = FLOATING[mode] if mode else (int(found[2]), int(found[3]))
        count = 4 if mode else 5
        pointers = [int(ctypes.c_void_p.from_address(each).value or 0) for each in rest[8][:count]]
        m, n, k = (ctypes.c_int.from_address(each).value for each in rest[8][count : count + 3])
        x_row, x_entry, out_row, out_entry = (
            ctypes.c_longlong.from_address(each).value for each in rest[8][count + 3 :]
        )
        entries = rest[2]
        assert rest[1] == -(-m // 16)
        self.launches.append((name, tuple(rest[:3]), (x_row, x_entry, out_row, out_entry)))
        pitch = min(x_row, x_entry)
        gaps = [bytes(self._at(pointers[0] + 2 * (i * pitch + k), 2 * (pitch - k))) for i in range(entries * m - 1)]
        assert set(b"".join(gaps)) <= {UNWRITTEN}

        def read(at: int, rows: int, columns: int, kind: Any) -> Any:
            data = self._at(at, rows * columns * np.dtype(kind).itemsize)
            return np.frombuffer(bytes(data), kind).reshape(rows, columns)

        def read_x(at: int) -> Any:
            return np.concatenate([read(at + 2 * row * x_row, 1, k, np.uint16) for row in range(m)])

        try:
            for entry in range(entries):
                first = entry * n
                x = from_bits(read_x(pointers[0] + 2 * entry * x_entry), dtype)
                groups = k // group
                if mode:
                    scales = SCALES[mode][read(pointers[2] + first * groups, n, groups, np.uint8)]
                    biases = np.zeros_like(scales)
                else:
                    scales, biases = (
                        from_bits(read(at + 2 * first * groups, n, groups, np.uint16), dtype) for at in pointers[2:4]
                    )
                words = k * bits // 32
                q = unpack(read(pointers[1] + 4 * first * words, n, words, np.uint32), bits)
                out = to_bits(matmul_fp64(x, q, scales, biases, group, ELEMENTS.get(mode)), dtype)
                self.spoil(out)
                for row in range(m):
                    at = pointers[-1] + 2 * (entry * out_entry + row * out_row)
                    self._at(at, 2 * n)[:] = out[row].tobytes()
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
    some = [*_FORMATS[::8], *batches(), *strides(), *list(instances(H200))[::19]]
    monkeypatch.setattr(exact, "cases", lambda _: iter(some))
    assert exact.main(folder) == 0
    planned = exact.launched(H200)
    *hashes, last = capsys.readouterr().out.splitlines()
    assert last == f"launches: {len(planned)}, wrong: 0"
    assert [line.split(": ")[0] for line in hashes] == [f"output {number}" for number in range(len(planned))]
    assert cuda.memory == {} and cuda.ended
    assert [(name, grid) for name, grid, _ in cuda.launches] == [(each.kernel, each.grid) for each in planned]
    for each, (_, _, passed) in zip(planned, cuda.launches, strict=True):
        p, pitch = each.problem, each.problem.k + each.x_padding
        one_after_another = (pitch, p.m * pitch, p.n, p.m * p.n)
        take_turns = (p.batch * pitch, pitch, p.batch * p.n, p.n)
        assert passed == (take_turns if p.layout == "b1k" else one_after_another)


def test_a_wrong_element_is_found_and_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil(out: Any) -> None:
        if out.shape == (7, 17):
            out[6, 16] = 0xFFFF  # as if never written

    monkeypatch.setattr(exact, "Gpu", lambda: Gpu(library=FakeCuda(spoil)))
    monkeypatch.setattr(exact, "cases", lambda _: iter(_SOME))
    assert exact.main(folder) == 1
    *_, first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("wrong: ") and "NaN or Inf out of place" in first
    assert last == f"launches: {len(_SOME)}, wrong: 1"


_FORMATS = list(of_formats())
_FOUR_BITS = [case for case in _FORMATS if case.problem.bits == 4]
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


def test_all_instances_are_launched() -> None:
    assert {each.kernel for each in exact.launched(H200)} == {variant.name for variant in kernels.variants("sm_90")}
    assert set(exact.units(H200)) >= {variant.name for variant in kernels.variants("sm_90")}


def test_a_record_of_a_host_needs_the_matrix() -> None:
    assert len(exact.launched(H200)) > LEAST_LAUNCHES > len(_FORMATS) >= LEAST_LAUNCHES_WITHOUT_HASHES


def test_faults_are_planted_in_every_operand() -> None:
    for tool in ("memcheck", "initcheck"):
        inputs = {plant.short for plant in exact.PLANTS if plant.tool == tool}
        assert inputs >= {"x", "w", "scales", "biases"}
    assert exact.PLANTED_ON.problem.mode == "affine"


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
