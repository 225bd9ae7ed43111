"""A kernel compiled for this machine, kept under the hash of everything that went into it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.machine import CXX_FIX, CXX_VARIABLE, Cxx, find_cxx, find_metal_cxx
from upstream_patch.simulate.source import KNOWN_MLX, Front, Kernel

NATIVE = Path(__file__).parent / "native"
_KEPT_DAYS = 30
_SEAL = "sha256"
"""The file beside what was compiled that holds the hash of it and of the folder's name."""
CACHE_VARIABLE = "UPSTREAM_PATCH_CACHE"
_CXX_FIX = f"name another one in {CXX_VARIABLE}, or unset that and {CXX_FIX}"
_COMMON = ("-g1", "-fPIC", "-fno-exceptions", "-fno-rtti", "-ffp-contract=off", "-Wno-unknown-pragmas")
_ENGINE = ("-std=c++17", "-O2", "-Wall", "-Wextra")
_KERNEL = (
    "-fsanitize=thread",
    "-fsanitize=alignment,bool,enum,float-cast-overflow,integer-divide-by-zero,return,shift,signed-integer-overflow,"
    "unreachable",
)
_FRONT = {
    # No check of each pointer for null and wrapping, a third of the compile time: the access itself shows both.
    "cuda": ("-std=c++17",),
    # 16-bit arithmetic rounds after every operation. MLX's own attributes mean nothing here.
    "metal": (
        "-std=c++20",
        "-I.",
        *("-Xclang", "-ffloat16-excess-precision=none", "-Xclang", "-fbfloat16-excess-precision=none"),
        *("-Wno-unknown-attributes", "-Wno-ignored-attributes", "-Wno-pass-failed"),
    ),
}
# An x86 instruction that turns float into bfloat, where a CPU has it, makes subnormals 0.
_ROUNDING = ("-mno-avx512bf16", "-mno-avxneconvert") if platform.machine() in ("x86_64", "AMD64") else ()
_HERE: dict[Front, tuple[str, ...]] = {"cuda": (), "metal": _ROUNDING}
_CLANG = (
    # an array at the end of a struct has its declared length, too
    *("-fsanitize=array-bounds", "-fstrict-flex-arrays=3", "-fno-sanitize-trap=all"),
    # instrumented, but with our own run time; func-entry would need an unwinder
    *("-mllvm", "-tsan-instrument-func-entry-exit=0"),
    # a read that a write to the same place follows may be one of memory that nobody wrote
    *("-mllvm", "-tsan-instrument-read-before-write=1"),
    # a check names its file, not where this clone lies
    "-fsanitize-undefined-strip-path-components=-1",
)
_FAMILY = {
    "zig": _CLANG,
    "clang": _CLANG,
    "gcc": ("-fsanitize=bounds", "--param=tsan-instrument-func-entry-exit=0", "-Wno-attributes"),
}
_LINK = {"zig": ("-nostdlib++",), "clang": ("-nostdlib++",), "gcc": ()}
# What the compiler's instrumentation calls must all be ours; a name we lack is an error here, not where it is loaded.
_WHOLE = ("-Wl,-z,defs", "-Wl,-Bsymbolic") if sys.platform == "linux" else ()
_UNKNOWN = (
    re.compile(r"^(?P<at>[^\s:]+:\d+).*error: use of undeclared identifier '(?P<name>\w+)'", re.MULTILINE),
    re.compile(r"^(?P<at>[^\s:]+:\d+).*error: unknown type name '(?P<name>\w+)'", re.MULTILINE),
    re.compile(r"^(?P<at>[^\s:]+:\d+).*error: no member named '(?P<name>\w+)' in namespace 'metal", re.MULTILINE),
    re.compile(r"^(?P<at>[^\s:]+:\d+).*error: .(?P<name>\w+). was not declared in this scope", re.MULTILINE),
    re.compile(r"^(?P<at>[^\s:]+:\d+).*error: there are no arguments to .(?P<name>\w+). that", re.MULTILINE),
)

_NO_CONSTANT = re.compile(r"lane_sim_function_constant_(?P<number>\d+)_(?P<name>\w+)")


class SimulatorCompileError(UserError):
    """The simulator's compiler refused a kernel. The message is one line; ``log`` is all that the compiler said."""

    exit_code = 1

    def __init__(self, kernel: str, log: str, front: Front = "cuda") -> None:
        unknown = next((match for pattern in _UNKNOWN if (match := pattern.search(log))), None)
        if unknown is not None:
            why = f"{unknown['at']} uses {unknown['name']}, which the simulator does not know"
            why += f": give it a CPU meaning under {NATIVE.relative_to(NATIVE.parents[2])}/{front}"
        elif "error: weak declaration" in log:
            why = "a static __shared__ array: the simulator knows only `extern __shared__`"
        elif (undefined := _NO_CONSTANT.search(log)) is not None:
            why = f"function constant {undefined['number']}, {undefined['name']}, is used and has no value"
        else:
            lines = [line.strip() for line in log.strip().splitlines()]
            why = next((line for line in lines if "error" in line), lines[0])
        if "mlx/backend/metal" in why:
            why += f"; the simulator knows the headers of {KNOWN_MLX}"
        super().__init__(f"{kernel} does not compile for the simulator: {why}")
        self.log = log


def cache_folder() -> Path:
    """Where compiled kernels are kept: $UPSTREAM_PATCH_CACHE, or a folder of the user's cache."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mlx-upstream-patch"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlx-upstream-patch"


@cache
def compiler(front: Front = "cuda") -> Cxx:
    """Raises MissingTool with the way to get one."""
    found = find_cxx()
    if found is None:
        raise MissingTool("no C++ compiler for the lane simulator", CXX_FIX)
    if shutil.which(found.command[0]) is None:
        raise MissingTool(f"the simulator's compiler, {_says(found)}, is no program", _CXX_FIX)
    if front == "metal" and isinstance(needs := find_metal_cxx(), str):
        raise MissingTool(f"the simulator's Metal front {needs}", CXX_FIX)
    return found


def _says(cxx: Cxx) -> str:
    return f"{' '.join(cxx.command)} ({cxx.origin})"


def _run(
    cxx: Cxx, options: Sequence[str], output: str | Path, folder: Path, kernel: str, front: Front = "cuda"
) -> None:
    """Writes ``output``, a path in ``folder`` or a whole one."""
    # zig keeps what it compiled; its own libraries are worth that, a kernel's object is not
    shared = cache_folder() / "zig"
    try:
        shared.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # zig's own words would be taken for a complaint about the kernel
        raise _no_cache(error, shared) from error
    zig = {"ZIG_GLOBAL_CACHE_DIR": str(shared), "ZIG_LOCAL_CACHE_DIR": str(folder / "zig")}
    try:
        done = subprocess.run(
            [*cxx.command, *options, "-o", str(output)],
            cwd=folder,
            env={**os.environ, **zig},
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise MissingTool(
            f"the simulator's compiler, {_says(cxx)}, does not start ({error.strerror})", _CXX_FIX
        ) from error
    log = done.stderr or done.stdout
    if done.returncode != 0 and log.strip():
        raise SimulatorCompileError(kernel, log, front)
    if done.returncode != 0 or not (folder / output).exists():
        raise MissingTool(
            f"the simulator's compiler, {_says(cxx)}, wrote nothing and gave no reason (exit {done.returncode})",
            _CXX_FIX,
        )


def _digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:24]


@cache
def _native_text(front: Front | None = None) -> str:
    """The engine's sources, and those of a front."""
    every = sorted(path for path in NATIVE.rglob("*") if path.is_file())
    files = [path for path in every if path.parent == NATIVE or path.relative_to(NATIVE).parts[0] == front]
    return "\0".join(f"{path.relative_to(NATIVE)}\0{path.read_text(encoding='utf-8')}" for path in files)


def _identity(cxx: Cxx) -> str:
    """A wheel is the same compiler in every environment, so each session finds what another one compiled."""
    program = Path(shutil.which(cxx.command[0]) or cxx.command[0])
    status = program.stat()
    wheel = sorted(each.name for each in program.parent.parent.glob("ziglang-*.dist-info"))
    which = wheel or [cxx.command[0], str(status.st_mtime_ns)]
    return f"{' '.join([*which, *cxx.command[1:]])} {status.st_size} {_cpu()}"


def _cpu() -> str:
    """What this CPU can do: a compiler may aim at it, and a cache may be carried to another one."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return platform.processor() or platform.machine()


def _sources(front: Front | None = None) -> tuple[str, ...]:
    """The options that name where this clone's sources lie: of the engine, or of a front.

    They are in no hash, and keep the path out of debug information and __builtin_FILE, so that clones of the same
    sources share their libraries. (The checks of g++ still name it; of every path only the last part is ever read.)
    """
    known = (f"-ffile-prefix-map={NATIVE}=native",)
    return known if front is None else (*known, f"-I{NATIVE / front}")


@cache
def engine() -> tuple[Path, ...]:
    """The engine's object files, compiled once."""
    cxx = compiler()
    home = cache_folder() / "simulate" / f"engine-{_digest(_identity(cxx), *_COMMON, *_ENGINE, _native_text())}"
    sources = sorted(NATIVE.glob("*.cpp"))
    if not _is_whole(home):
        with _Workplace(home) as work:
            quiet = ("-fno-sanitize=all",) if cxx.family != "gcc" else ()
            for source in sources:
                options = [*_COMMON, *_ENGINE, *quiet, *_sources(), "-c", str(source)]
                _run(cxx, options, work.folder / f"{source.stem}.o", work.folder, "engine")
            work.done()
    return tuple(home / f"{source.stem}.o" for source in sources)


def build(kernel: Kernel) -> Path:
    """The kernel's shared library; compiled when its hash is new. Raises SimulatorCompileError or MissingTool."""
    front = kernel.front
    cxx = compiler(front)
    optimize = "-O1" if kernel.many_launches else "-O0"
    # zig adds checks of its own to what is not optimized, whose findings would end the process
    only_ours = () if cxx.family == "gcc" else ("-fno-sanitize=undefined",)
    options = [*_COMMON, optimize, *only_ours, *_KERNEL, *_FRONT[front], *_HERE[front], *_FAMILY[cxx.family]]
    parts = [_identity(cxx), *options, _native_text(front), kernel.unit]
    parts += [part for file in sorted(kernel.files.items()) for part in file]
    home = cache_folder() / "simulate" / _digest(*parts)
    library = home / "kernel.so"
    if _is_whole(home):
        with suppress(OSError):  # in use, see _prune; a cache that cannot be written is never pruned
            os.utime(library)
    else:
        _prune()
        with _Workplace(home) as work:
            for name, text in kernel.files.items():
                path = work.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            (work.folder / "unit.cpp").write_text(kernel.unit, encoding="utf-8")
            # first the front's folder, then the kernel's own files: a stand-in wins
            _run(cxx, [*_sources(front), *options, "-c", "unit.cpp"], "unit.o", work.folder, kernel.name, front)
            _link(kernel, cxx, work.folder)
            (work.folder / "unit.o").unlink()
            work.done()
    return library


def _link(kernel: Kernel, cxx: Cxx, folder: Path) -> None:
    parts = ["-shared", *_WHOLE, "unit.o", *map(str, engine())]
    libraries = _loaded_libraries() if cxx.family == "zig" else []
    if libraries:
        # zig compiles libraries of its own before its first link, half a minute that these rarely need
        try:
            return _run(cxx, ["-nostdlib", *parts, *libraries], "kernel.so", folder, kernel.name, kernel.front)
        except SimulatorCompileError as error:
            if _NO_CONSTANT.search(error.log):  # no library has it
                raise
    return _run(cxx, [*_LINK[cxx.family], *parts], "kernel.so", folder, kernel.name, kernel.front)


@cache
def _loaded_libraries() -> list[str]:
    """Files of the C library that this Linux process runs with, which a kernel will run with, too."""
    with suppress(OSError):
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        return sorted(set(re.findall(r"/\S*/lib[cm](?:-[\d.]+)?\.so(?:\.\d+)?$", maps, re.MULTILINE)))
    return []


_whole: set[Path] = set()
"""Folders that this process has looked into."""


def _seal(folder: Path, name: str) -> str:
    """Of the object files and libraries in a folder that is to have that name."""
    made = sha256(name.encode())
    for path in sorted(path for path in folder.iterdir() if path.suffix in (".o", ".so")):
        made.update(f"\0{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return made.hexdigest()


def _is_whole(home: Path) -> bool:
    """Whether a folder holds what was put there. One that does not is removed: a cut library would end the process."""
    if not home.is_dir():
        return False
    if home not in _whole:
        try:
            whole = (home / _SEAL).read_text(encoding="utf-8", errors="replace") == _seal(home, home.name)
        except OSError:
            whole = False
        if not whole:
            shutil.rmtree(home, ignore_errors=True)
            return False
        _whole.add(home)
    return True


@cache
def _prune() -> None:
    """Once a process, forget kernels that nobody has used for a month: every edit of a source makes new ones."""
    oldest = time.time() - _KEPT_DAYS * 86400
    for library in (cache_folder() / "simulate").glob("*/kernel.so"):
        with suppress(OSError):  # another process may be at it
            if library.stat().st_mtime < oldest:
                shutil.rmtree(library.parent)


class _Workplace:
    """A folder beside ``home`` that takes its place when all is done: other processes see it whole or not at all."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __enter__(self) -> _Workplace:
        try:
            self.home.parent.mkdir(parents=True, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(dir=self.home.parent, prefix="."))
        except OSError as error:
            raise _no_cache(error) from error
        return self

    def done(self) -> None:
        shutil.rmtree(self.folder / "zig", ignore_errors=True)
        (self.folder / _SEAL).write_text(_seal(self.folder, self.home.name), encoding="utf-8")
        try:
            self.folder.rename(self.home)
        except OSError:
            if not self.home.is_dir():  # else another process was first
                raise

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise _no_cache(error) from error


def _no_cache(error: OSError, folder: Path | None = None) -> UserError:
    return UserError(
        f"the simulator cannot keep what it compiles in {folder or cache_folder()} ({error.strerror or error}): "
        f"name a folder that can be written in {CACHE_VARIABLE}"
    )
