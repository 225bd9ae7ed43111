"""Compile every kernel for every architecture with NVRTC: no GPU and no CUDA toolkit needed.

The compiler's own log says what each kernel takes: registers, static shared memory, spills.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.machine import NVRTC_FIX, Nvrtc, find_nvrtc


class Compilable(Protocol):
    """What is needed of ``upstream_patch.kernels.Variant``."""

    @property
    def name(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def shared_bytes(self) -> int: ...
    def translation_unit(self) -> str: ...


@dataclass(frozen=True)
class CompileResult:
    """One kernel on one architecture. Bytes are per block (shared) or per thread (spills)."""

    variant: str
    arch: str
    registers: int
    shared_bytes: int
    """Static, as compiled, plus dynamic, as launched."""
    spill_stores: int
    spill_loads: int
    threads: int

    @property
    def spills(self) -> bool:
        return self.spill_stores > 0 or self.spill_loads > 0


class CompileError(UserError):
    """NVRTC refused a kernel. The message is one line; ``log`` is all that the compiler said."""

    exit_code = 1

    def __init__(self, variant: str, arch: str, log: str) -> None:
        lines = [line.strip() for line in log.splitlines() if "error" in line] or log.split("\n")[:1]
        super().__init__(f"{variant} does not compile for {arch}: {lines[0]}")
        self.log = log


class CannotLaunch(UserError):
    """A kernel compiles and takes more than the multiprocessor it is meant for has."""

    exit_code = 1


REGISTERS = 65536
"""Of a multiprocessor, of every architecture known here (CUDA C++ programming guide, compute capabilities)."""
SHARED_KIB = {"sm_80": 163, "sm_86": 99, "sm_87": 163, "sm_89": 99, "sm_90": 227, "sm_120": 99, "sm_121": 99}
SHARED_KIB |= dict.fromkeys(["sm_100", "sm_103", "sm_110"], 227)
"""That a block may take, from the same table."""

Progress = Callable[[int, int], None]
"""Called with (done, total) after every compile."""


def compile_all(
    archs: Sequence[str] | None = None,
    variants: Sequence[Compilable] | None = None,
    options: Sequence[str] | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
) -> list[CompileResult]:
    """Compile every variant for every arch, by arch; without ``variants``, those that an arch's device class launches.

    What is not given is what ``upstream_patch.kernels`` lists. Raises MissingTool where there is no NVRTC, or
    one too old for an arch; CompileError or CannotLaunch for the first kernel that does not compile or fit.
    """
    from upstream_patch import kernels

    archs = tuple(kernels.ARCHS if archs is None else archs)
    options = tuple(kernels.OPTIONS if options is None else options)
    compiler = nvrtc()
    archs = tuple(arch if arch.startswith("sm_") else f"sm_{arch}" for arch in archs)
    unknown = [arch for arch in archs if arch.rstrip("af") not in compiler.archs]
    if set(unknown) & set(kernels.ARCHS):
        raise MissingTool(f"NVRTC {compiler.version} does not know {', '.join(unknown)}", NVRTC_FIX)
    if unknown:
        raise UserError(f"no architecture {', '.join(unknown)}; known: {', '.join(sorted(compiler.archs))}")
    if variants is None and (foreign := [arch for arch in archs if not kernels.variants(arch)]):
        raise UserError(f"no kernel is launched on {', '.join(foreign)}; known: {', '.join(kernels.ARCHS)}")
    jobs = [(variant, arch) for arch in archs for variant in (variants or kernels.build_variants(arch))]
    results: list[CompileResult] = []
    # NVRTC is called through ctypes, which lets go of the interpreter's lock meanwhile.
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        futures = [pool.submit(compile_one, variant, arch, options, compiler) for variant, arch in jobs]
        try:
            for future in futures:
                results.append(future.result())
                check_launch(results[-1])
                if progress is not None:
                    progress(len(results), len(jobs))
        finally:
            for future in futures:
                future.cancel()
    return results


def check_launch(result: CompileResult) -> None:
    """Raises CannotLaunch for a block that no multiprocessor of its architecture can hold."""
    takes = {"registers": result.registers * result.threads, "bytes of shared memory": result.shared_bytes}
    has = {"registers": REGISTERS, "bytes of shared memory": SHARED_KIB.get(result.arch.rstrip("af"), 48) * 1024}
    for what, count in takes.items():
        if count > has[what]:
            raise CannotLaunch(f"{result.variant} takes {count:,} {what} on {result.arch}, which has {has[what]:,}")


def compile_one(
    variant: Compilable, arch: str, options: Sequence[str] = (), compiler: Compiler | None = None
) -> CompileResult:
    """Compile one variant to machine code of one arch, e.g. ``sm_90``. Raises CompileError."""
    compiler = compiler or nvrtc()
    log = compiler.compile(variant.name, variant.translation_unit(), arch, options)
    used = parse_log(log, variant.name)
    return CompileResult(
        variant=variant.name,
        arch=arch,
        registers=used["registers"],
        shared_bytes=used["static_shared"] + variant.shared_bytes,
        spill_stores=used["spill_stores"],
        spill_loads=used["spill_loads"],
        threads=variant.threads,
    )


def cubins(units: Mapping[str, tuple[str, str]], arch: str, options: Sequence[str] = ()) -> dict[str, bytes]:
    """Any key -> (name, translation unit), to the same key -> machine code for ``arch``, compiled side by side.

    Raises MissingTool where there is no NVRTC, CompileError for the first unit that does not compile.
    """
    compiler = nvrtc()
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        built = pool.map(lambda unit: compiler.build(unit[0], unit[1], arch, options)[1], units.values())
        return dict(zip(units, built, strict=True))


def parse_log(log: str, kernel: str) -> dict[str, int]:
    """What ``ptxas -v`` says of one entry function. Raises UserError when the log does not name it."""
    _, found, rest = log.partition(f"Compiling entry function '{kernel}'")
    rest = rest.split("Compiling entry function")[0]
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", rest)
    registers = re.search(r"Used (\d+) registers", rest)
    if not found or spills is None or registers is None:
        raise UserError(f'the compiler\'s log says nothing of {kernel}: is it one extern "C" __global__ function?')
    shared = re.search(r"(\d+) bytes smem", rest)
    return {
        "registers": int(registers.group(1)),
        "spill_stores": int(spills.group(1)),
        "spill_loads": int(spills.group(2)),
        "static_shared": int(shared.group(1)) if shared else 0,
    }


class Compiler:
    """NVRTC through ctypes. Safe to use from several threads."""

    def __init__(self, where: Nvrtc) -> None:
        self.where = where
        if where.builtins is not None:
            ctypes.CDLL(where.builtins, ctypes.RTLD_GLOBAL)
        self._lib: Any = ctypes.CDLL(where.library)
        self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p

    @property
    def version(self) -> str:
        """e.g. ``13.0``."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return f"{major.value}.{minor.value}"

    @property
    def archs(self) -> frozenset[str]:
        """What it can compile for, e.g. ``sm_90``; the suffixes a and f are not listed."""
        count = ctypes.c_int()
        self._check(self._lib.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        numbers = (ctypes.c_int * count.value)()
        self._check(self._lib.nvrtcGetSupportedArchs(numbers))
        return frozenset(f"sm_{number}" for number in numbers)

    def compile(self, name: str, source: str, arch: str, options: Sequence[str] = ()) -> str:
        """Compile to machine code and return the log. Raises CompileError with the log."""
        return self.build(name, source, arch, options)[0]

    def build(self, name: str, source: str, arch: str, options: Sequence[str] = ()) -> tuple[str, bytes]:
        """Compile to machine code; returns the log and the cubin. Raises CompileError with the log."""
        includes = [f"--include-path={path}" for path in self.where.includes]
        flags = [f"--gpu-architecture={arch}", *options, *includes, "--ptxas-options=-v"]
        encoded = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
        with self._program(name, source) as program:
            code = self._lib.nvrtcCompileProgram(program, len(flags), encoded)
            log = self._text(program)
            if code != 0:
                raise CompileError(name, arch, log or self._lib.nvrtcGetErrorString(code).decode())
            size = ctypes.c_size_t()
            self._check(self._lib.nvrtcGetCUBINSize(program, ctypes.byref(size)))
            if size.value == 0:
                raise CompileError(name, arch, "error: no machine code came out")
            cubin = ctypes.create_string_buffer(size.value)
            self._check(self._lib.nvrtcGetCUBIN(program, cubin))
        return log, cubin.raw

    @contextmanager
    def _program(self, name: str, source: str) -> Iterator[ctypes.c_void_p]:
        program = ctypes.c_void_p()
        made = self._lib.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), f"{name}.cu".encode(), 0, None, None
        )
        self._check(made)
        try:
            yield program
        finally:
            self._lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._check(self._lib.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        text = ctypes.create_string_buffer(max(size.value, 1))
        self._check(self._lib.nvrtcGetProgramLog(program, text))
        return text.value.decode(errors="replace")

    def _check(self, code: int) -> None:
        if code != 0:
            raise UserError(f"NVRTC failed: {self._lib.nvrtcGetErrorString(code).decode()}")


@cache
def nvrtc() -> Compiler:
    """This machine's NVRTC. Raises MissingTool with the way to get one."""
    where = find_nvrtc()
    if where is None:
        raise MissingTool("no NVRTC on this machine", NVRTC_FIX)
    try:
        return Compiler(where)
    except OSError as error:
        raise MissingTool(f"NVRTC does not load ({error})", NVRTC_FIX) from error
