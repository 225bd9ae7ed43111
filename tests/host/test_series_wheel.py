"""The wheel build links what MLX's CUDA library has, loads beside it without a GPU, and finds its virtual table."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from itertools import chain
from pathlib import Path

import pytest

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.machine import System
from upstream_patch.series.wheel import CUDA_WHEEL_VARIABLE, MlxLibrary, build, find_mlx_library, library, link, load
from upstream_patch.series.wheel.library import SEAL, run

LOCAL = {name: 0x1000 * (i + 1) for i, name in enumerate((link.BASE, *link.OBJECTS.values(), *link.ALIASES.values()))}
HIDDEN = "_ZN3mlx4core2cu12malloc_asyncEmRNS1_14CommandEncoderE"


def test_symbols_as_nm_prints_them() -> None:
    printed = "0000000000001000 T one\n0000000000002000 t two\n0000000000003000 t again\n0000000000004000 t again\n"
    assert link.symbols(printed + "                 U three\n\nobject.o:\n") == {"one": 0x1000, "two": 0x2000}
    assert link.undefined("\na.o:\n                 U three\n                 w four\n") == {"three", "four"}


def test_what_is_not_exported_is_reached_by_its_distance() -> None:
    local = {**LOCAL, HIDDEN: 0x100, "cudaDeviceGetAttribute": 0x8000, "_ZN3mlx4core4openEv": 0x9000}
    wanted = [HIDDEN, "wheel_get_jit_module", "wheel_vtable", "_ZN3mlx4core4openEv", "cudaDeviceGetAttribute", "strlen"]
    exported = {"_ZN3mlx4core4openEv": 0x9000}
    text, names = link.trampolines(wanted, exported, local, "x86_64")
    assert names == sorted([HIDDEN, "wheel_get_jit_module", "cudaDeviceGetAttribute"])
    for name in names:
        target = link.ALIASES.get(name, name)
        slot = f"wheel_slot_{names.index(name)}"
        assert f"{name}:\n\tjmp *{slot}(%rip)\n" in text
        assert f"{slot}:\n\t.quad {link.BASE} + {local[target] - local[link.BASE]}\n" in text
    assert f"{HIDDEN}:" in text
    assert f".quad {link.BASE} + -3840\n" in text
    assert f"wheel_vtable:\n\t.quad {link.BASE} + {0x1000}\n" in text
    assert "strlen" not in text
    arm, _ = link.trampolines(wanted, exported, local, "aarch64")
    assert f"{HIDDEN}:\n\tadrp x16, wheel_slot_" in arm


def test_what_the_library_lacks_is_named() -> None:
    with pytest.raises(link.MissingSymbol, match=f"this MLX has no {HIDDEN}: the host code is for the version"):
        link.trampolines([HIDDEN], {}, LOCAL, "x86_64")
    stripped = {link.BASE: 1}
    with pytest.raises(link.MissingSymbol, match="_ZTVN3mlx4core15QuantizedMatmulE"):
        link.trampolines([], {}, stripped, "x86_64")
    with pytest.raises(UserError, match="no wheel build for riscv64"):
        link.trampolines([], {}, LOCAL, "riscv64")


def make_mlx(folder: Path, cuda: bool = True) -> MlxLibrary:
    include = folder / "mlx" / "include"
    (include / "mlx").mkdir(parents=True)
    (include / "mlx" / "version.h").write_text("#define MLX_VERSION_MAJOR 1\n#define MLX_VERSION_MINOR 2\n", "utf-8")
    (folder / "mlx" / "lib").mkdir()
    (folder / "mlx" / "lib" / "libmlx.so").write_bytes(b"library")
    if cuda:
        (include / "cccl").mkdir()
    return MlxLibrary(folder / "mlx")


class Elsewhere(System):
    """A machine whose Python finds wheels in one folder only."""

    def __init__(self, folder: Path, named: Path | None) -> None:
        super().__init__()
        object.__setattr__(self, "folders", (folder, named))

    def site_folders(self) -> list[str]:
        return [str(self.folders[0])]  # type: ignore[attr-defined]

    def environ(self, name: str) -> str | None:
        named = self.folders[1]  # type: ignore[attr-defined]
        return str(named) if name == CUDA_WHEEL_VARIABLE and named else None


def test_only_a_library_for_cuda_counts(tmp_path: Path) -> None:
    cpu, cuda = make_mlx(tmp_path / "cpu", cuda=False), make_mlx(tmp_path / "cuda")
    assert find_mlx_library(Elsewhere(cpu.folder.parent, None)) is None
    found = find_mlx_library(Elsewhere(cpu.folder.parent, cuda.folder.parent))
    assert found is not None
    assert (found.folder, found.version) == (cuda.folder, "1.2")
    assert find_mlx_library(Elsewhere(cuda.folder.parent, None)) == cuda


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_mlx_library", lambda: None)
    with pytest.raises(MissingTool, match=r"no MLX for CUDA here: .*mlx-cuda-13==0\.32\.4"):
        build()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool, match=r"no g\+\+ on PATH: apt-get install"):
        build(make_mlx(tmp_path))


def test_a_library_of_another_mlx_is_not_loaded(tmp_path: Path) -> None:
    mlx, built = make_mlx(tmp_path), tmp_path / "built" / "libqmm_small_m.so"
    built.parent.mkdir()
    with pytest.raises(UserError, match="was built for another MLX"):
        load(built, mlx)
    (built.parent / SEAL).write_text(library.sealed(mlx).replace("libmlx ", "libmlx 0"), encoding="utf-8")
    with pytest.raises(UserError, match=r"was built for another MLX than .*wheel build"):
        load(built, mlx)
    (built.parent / SEAL).write_text(library.sealed(mlx).replace("host ", "host 0"), encoding="utf-8")
    with pytest.raises(UserError, match="or from other code than today's"):
        load(built, mlx)
    (built.parent / SEAL).write_text(library.sealed(mlx), encoding="utf-8")
    with pytest.raises(UserError, match="the wheel build does not load"):
        load(built, mlx)


_NVIDIA = re.compile(r"lib(?:nccl|cublas\w*|cufft|cusolver|nvrtc|cuda|cudnn)\.so[.\d]*")


def make_stubs(real: Path, folder: Path) -> None:
    """Empty libraries with the names and versions that MLX's asks for: it then loads without a GPU.

    What has no version goes into the driver's library.
    """
    dynamic = run("readelf", ["readelf", "--wide", "--dynamic", str(real)])
    wanted = [name for name in re.findall(r"NEEDED.*\[(.*)\]", dynamic) if _NVIDIA.fullmatch(name)]
    owner: dict[str, str] = {}
    for part in run("readelf", ["readelf", "--wide", "--version-info", str(real)]).split("File: ")[1:]:
        owner.update((version, part.split()[0]) for version in re.findall(r"Name: (\S+)", part))
    versions: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in run("readelf", ["readelf", "--wide", "--dyn-syms", str(real)]).splitlines():
        match = re.search(r" UND ([^@\s]+)(?:@(\S+))?", line)
        if match is None:
            continue
        name, version = match[1], match[2] or ""
        home = owner.get(version, "") if version else "libcuda.so.1" * name.startswith(("cu", "nccl", "nvrtc"))
        if home in wanted:
            versions[home][version].append(name)
    for name in wanted:
        by_version = versions[name]
        source, script = folder / "stub.c", folder / "stub.map"
        source.write_text(link.stub(sorted(chain.from_iterable(by_version.values()))), encoding="utf-8")
        named = {version: symbols for version, symbols in by_version.items() if version}
        script.write_text(
            "".join(f"{version} {{ global: {'; '.join(symbols)}; }};\n" for version, symbols in named.items()), "utf-8"
        )
        versioned = [f"-Wl,--version-script={script}"] if named else []
        where = ["-o", str(folder / name), f"-Wl,-soname,{name}"]
        run("stub", ["g++", "-shared", "-fPIC", "-w", "-x", "c", str(source), *where, *versioned])


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stubs")
    mlx = find_mlx_library()
    assert mlx is not None
    make_stubs(mlx.path, folder)
    return folder


IN_PROCESS = """
import sys
from pathlib import Path
from upstream_patch.series.wheel import MlxLibrary, load
mlx = MlxLibrary(Path(sys.argv[2]))
hook, again = load(Path(sys.argv[1]), mlx), load(Path(sys.argv[1]), mlx)
with hook.enabled():
    print(*hook.counts(), repr(hook.last_module))
"""


@pytest.mark.needs_cuda_wheel
def test_it_links_loads_and_hooks_into_the_real_library(stubs: Path, root: Path, tmp_path: Path) -> None:
    mlx = find_mlx_library()
    assert mlx is not None
    built = build(mlx)
    dynamic = run("readelf", ["readelf", "--wide", "--dynamic", str(built)])
    assert "[libmlx.so]" in dynamic
    assert "[libcuda.so.1]" in dynamic
    assert "TEXTREL" not in dynamic
    paths = os.pathsep.join([str(stubs), str(mlx.path.parent)])
    environment = {**os.environ, "LD_LIBRARY_PATH": paths, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", IN_PROCESS, str(built), str(mlx.folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0 0 0 ''\n"), done.stderr
    counts = tmp_path / "counts"
    preloaded = {**environment, "LD_PRELOAD": str(built), "UPSTREAM_PATCH_PRELOAD": str(counts)}
    done = subprocess.run(
        [sys.executable, "-c", "print('plain')"], env=preloaded, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "plain\n", "")
    assert counts.read_text(encoding="utf-8") == "0 0 0\n", "it is written only by a library that was hooked in"


@pytest.mark.needs_compile
def test_what_does_not_compile_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("g++", "nm"):
        (programs / name).write_text("#!/bin/sh\necho 'hook.cpp:7:1: error: no such member' >&2\nexit 1\n", "utf-8")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    with pytest.raises(library.BuildError, match=r"the host code does not compile: hook\.cpp:7:1: error: no such"):
        build(make_mlx(tmp_path), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "mlx"]
