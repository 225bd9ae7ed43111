"""Compile the series' host code with g++ against a released MLX, and link it to its library."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from upstream_patch.compile import nvrtc
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.records.wheel_facts import host_hash
from upstream_patch.series.cuda_device import device_source
from upstream_patch.series.wheel import link
from upstream_patch.series.wheel.mlx import CUDA_WHEEL_FIX, MlxLibrary, find_mlx_library
from upstream_patch.simulate.library import cache_folder

NAME = "libqmm_small_m.so"
SEAL = "libqmm_small_m.seal"
"""Beside the library: what it was made from, ``sealed(mlx)``."""
HOST_CODE = Path(__file__).parents[1] / "cuda"
_NATIVE = Path(__file__).parent / "native"
_QMM = "mlx/backend/cuda/quantized/qmm"
OPTIONS = (
    *("-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing"),
    *("-Wall", "-Werror", "-DFMT_HEADER_ONLY"),
)
CXX_FIX = "apt-get install g++ (binutils comes with it)"


class BuildError(UserError):
    """The compiler or the linker refused the host code. ``log`` is all that it said."""

    exit_code = 1

    def __init__(self, what: str, log: str) -> None:
        lines = [line.strip() for line in log.splitlines() if "error" in line or "undefined" in line]
        super().__init__(f"{what}: {(lines or log.splitlines() or ['no word'])[0]}")
        self.log = log


def build(mlx: MlxLibrary | None = None, folder: Path | None = None) -> Path:
    """The shared library for this MLX, built where it is not in the cache yet; about 10 s on one core.

    ``folder`` takes the place of the cache's. Raises MissingTool without g++ or an MLX for CUDA, BuildError,
    MissingSymbol.
    """
    mlx = mlx or find_mlx_library()
    if mlx is None:
        raise MissingTool("no MLX for CUDA here", CUDA_WHEEL_FIX)
    cxx, nm = shutil.which("g++"), shutil.which("nm")
    if cxx is None or nm is None:
        raise MissingTool(f"no {'g++' if cxx is None else 'nm'} on PATH", CXX_FIX)
    home = folder or cache_folder() / "wheel" / _digest(mlx, cxx)
    if not (home / SEAL).is_file() or folder is not None:
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent, prefix=".wheel-") as name:
            work = Path(name)
            library = _build(mlx, cxx, nm, work)
            home.mkdir(exist_ok=True)
            library.replace(home / NAME)
            (work / SEAL).write_text(sealed(mlx), encoding="utf-8")
            (work / SEAL).replace(home / SEAL)  # last: with it the folder is whole
    return home / NAME


def sealed(mlx: MlxLibrary) -> str:
    """The libmlx.so that the library goes with, and the host and device code that are in it."""
    return f"libmlx {mlx.sha256}\nhost {host_hash()}\ndevice {fingerprint()}\n"


def fingerprint() -> str:
    """Of the device code: MLX keeps what it compiled under the module's name, of which this becomes a part."""
    return sha256(device_source().encode()).hexdigest()[:12]


def _digest(mlx: MlxLibrary, cxx: str) -> str:
    files = sorted(path for folder in (HOST_CODE, _NATIVE) for path in folder.rglob("*") if path.is_file())
    texts = [path.read_text(encoding="utf-8") for path in [*files, Path(__file__), Path(link.__file__)]]
    parts = [mlx.sha256, str(mlx.folder), cxx, device_source(), *texts]
    return sha256("\0".join(parts).encode()).hexdigest()[:24]


def include_options(work: Path, include: Path) -> list[str]:
    """Puts the host code's headers below ``work`` as they would lie in MLX's tree, so that its own #include lines find
    each other; the compiler's options that see them, then MLX's ``include`` folder and CUDA's."""
    tree = work / "include"
    (tree / _QMM).mkdir(parents=True)
    for header in HOST_CODE.glob("*.h"):
        shutil.copy(header, tree / _QMM)
    for lines in HOST_CODE.glob("eval_gpu_*.inc"):
        shutil.copy(lines, tree)
    (tree / "wheel_build.h").write_text(f'#define WHEEL_FINGERPRINT "{fingerprint()}"\n', encoding="utf-8")
    (tree / "cuda_jit_sources.h").write_text(
        "namespace mlx::core {\n"
        f'constexpr char jit_source_qmm_small_m[] = R"source({device_source()})source";\n'
        "} // namespace mlx::core\n",
        encoding="utf-8",
    )
    cuda = [part for path in nvrtc().where.includes for part in ("-isystem", path)]
    return ["-I", str(tree), "-isystem", str(include), *cuda, "-idirafter", str(_NATIVE / "fallback")]


def _build(mlx: MlxLibrary, cxx: str, nm: str, work: Path) -> Path:
    include = include_options(work, mlx.include)
    sources = [*sorted(HOST_CODE.glob("*.cpp")), *sorted(_NATIVE.glob("*.cpp"))]
    objects = [str(work / f"{source.stem}.o") for source in sources]
    for source, output in zip(sources, objects, strict=True):
        run("the host code does not compile", [cxx, *OPTIONS, *include, "-c", str(source), "-o", output])

    mine = link.symbols(run("nm", [nm, "--defined-only", *objects]))
    wanted = link.undefined(run("nm", [nm, "--undefined-only", *objects])) - mine.keys()
    exported = link.symbols(run("nm", [nm, "--dynamic", "--defined-only", str(mlx.path)]))
    local = link.symbols(run("nm", [nm, "--defined-only", str(mlx.path)]))
    text, _ = link.trampolines(wanted, exported, local, platform.machine())
    (work / "hidden.s").write_text(text, encoding="utf-8")
    (work / "driver.c").write_text(link.stub(sorted(name for name in wanted if name.startswith("cu"))), "utf-8")
    driver = work / "libcuda.so"
    stub = [cxx, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-x", "c", str(work / "driver.c"), "-o", str(driver)]
    run("the driver's stub does not compile", stub)
    library = work / NAME
    run(
        "the host code does not link",
        [
            *(cxx, "-shared", *objects, str(work / "hidden.s"), str(mlx.path), str(driver), "-o", str(library)),
            *("-Wl,-z,defs", "-Wl,--no-as-needed", f"-Wl,-soname,{NAME}", "-Wl,--allow-shlib-undefined"),
        ],
    )
    return library


def run(what: str, command: Sequence[str]) -> str:
    done = subprocess.run(
        list(command),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "LC_ALL": "C"},
    )
    if done.returncode != 0:
        raise BuildError(what, done.stderr or done.stdout)
    return done.stdout
