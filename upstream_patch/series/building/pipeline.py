"""From a checkout to two environments with MLX in them, the base's and the series', and their tests compared."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from upstream_patch.errors import UserError
from upstream_patch.machine import System, cuda_device
from upstream_patch.records.build_body import Arm, BuildBody, Matrix, SuiteRun
from upstream_patch.series.building import preflight
from upstream_patch.series.building.preflight import NAX_MACOS, TARGET_VARIABLE, Backend
from upstream_patch.series.checkout import Checkout, GitError
from upstream_patch.series.contributions import content_hash
from upstream_patch.series.model import Contribution
from upstream_patch.series.style import laid_out

TESTS = "python/tests/test_quantized.py"
_RUNNER = Path(__file__).with_name("unittest_json.py")
_MATRIX = "matrix.json"
_QUESTION = "import mlx.core as mx, mlx; print(list(mlx.__path__)[0])"
_LIBRARIES = ("lib/*.so", "lib/*.dylib", "lib/*.metallib", "core*.so")
Shell = Callable[[Sequence[str], Path, Mapping[str, str], Path], int]
"""(command, folder, variables on top of ours, log to append to) -> exit code."""


def shell(command: Sequence[str], cwd: Path, variables: Mapping[str, str], log: Path) -> int:
    """Run a command, its output to the end of a log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        file.write(f"$ {shlex.join(command)}\n".encode())
        file.flush()
        return subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **variables},
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            check=False,
        ).returncode


@dataclass(frozen=True)
class Plan:
    """What is to be built, and where."""

    checkout: Checkout
    contributions: Sequence[Contribution]
    backend: Backend
    folder: Path
    """Worktrees, environments and logs; kept, so that the next build is an incremental one."""
    run: Shell = shell
    told: Callable[[str], None] = print
    system: System = field(default_factory=System)

    @property
    def new_tests(self) -> list[str]:
        """Test methods that the series adds to the file that is run."""
        return [name for contribution in self.contributions for name in contribution.new_tests]

    @property
    def variants(self) -> tuple[bool | None, ...]:
        """Of MLX_METAL_JIT."""
        return (False, True) if self.backend == "metal" else (None,)


@dataclass(frozen=True)
class _Side:
    """One of the builds: the base or the series, and on Metal with kernels compiled ahead or on the fly."""

    arm: Arm
    jit: bool | None
    root: Path

    @property
    def source(self) -> Path:
        return self.root / self.arm / "mlx"

    @property
    def environment(self) -> Path:
        return self.root / self.arm / ("venv" if self.jit is None else f"venv-jit-{'on' if self.jit else 'off'}")

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    @property
    def log(self) -> Path:
        return self.environment.with_suffix(".log")


def build(planned: Plan) -> tuple[BuildBody, dict[str, bytes]]:
    """Build both sides, test both, and return what came out and the logs by name.

    Raises MissingTool before anything is built where something is missing, UserError where the series does not apply,
    a build fails or the kernels are not inside. What the series breaks, and new tests that show nothing, are in the
    result (``broken``, ``unproven``), for the caller to refuse.
    """
    preflight.require(preflight.findings(planned.backend, planned.folder, planned.system))
    commit = planned.checkout.commit()
    patched = laid_out(planned.contributions, planned.checkout.reader(commit), planned.system)
    patched.require()
    if patched.unformatted:
        planned.told(f"not formatted: {patched.unformatted}")
    trees = {"base": planned.checkout.tree(commit, {}), "series": planned.checkout.tree(commit, patched.changed)}
    options = cmake_options(planned.backend, planned.system)
    root = planned.folder.resolve()
    runs: list[SuiteRun] = []
    logs: dict[str, bytes] = {}
    texts: dict[Arm, dict[str, str]] = {"base": {}, "series": patched.changed}
    for arm, changed in texts.items():
        source = _Side(arm, None, root).source
        _worktree(planned.checkout, source, commit, changed, trees[arm])
        for jit in planned.variants:
            side = _Side(arm, jit, root)
            planned.told(f"building {arm}{'' if jit is None else f' with MLX_METAL_JIT {jit}'}; log: {side.log}")
            _install(planned, side, [*options, *([] if jit is None else [f"-DMLX_METAL_JIT={'ON' if jit else 'OFF'}"])])
            _require_kernels(planned, side, inside=arm == "series")
    # The series' own test file judges both sides: only so can a new test fail on the base.
    tests = _Side("series", None, root).source / TESTS
    for arm, jit, tf32 in product(texts, planned.variants, (False, True)):
        side = _Side(arm, jit, root)
        planned.told(f"testing {arm}, TF32 {'on' if tf32 else 'off'}")
        name = "-".join(
            [arm, *([] if jit is None else [f"jit-{'on' if jit else 'off'}"]), f"tf32-{'on' if tf32 else 'off'}"]
        )
        run, log = _test(planned, side, tests, tf32, f"{name}.log")
        runs.append(run)
        logs[f"{name}.log"] = log
    matrix = None
    if planned.backend == "cuda":
        matrix, logs[_MATRIX] = _matrix(planned, _Side("series", None, root))
    body = BuildBody(
        backend=planned.backend,
        upstream=commit,
        contributions=[contribution.name for contribution in planned.contributions],
        series_sha256=content_hash(planned.contributions),
        tree=trees["series"],
        options=options,
        tests=TESTS,
        new_tests=planned.new_tests,
        guards=[name for contribution in planned.contributions for name in contribution.guards],
        runs=runs,
        matrix=matrix,
    )
    return body, logs


def cmake_options(backend: Backend, system: System) -> list[str]:
    """Of MLX's CMake, by the device and what is installed."""
    options = []
    if backend == "cuda":
        device = cuda_device(system)
        assert device is not None  # preflight saw it
        options = ["-DMLX_BUILD_CUDA=ON", f"-DMLX_CUDA_ARCHITECTURES={preflight.architecture(device[0])}"]
    if system.which("ccache") is not None:
        languages = ("C", "CXX", "CUDA") if backend == "cuda" else ("C", "CXX")
        options += [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in languages]
    return options


def _worktree(checkout: Checkout, path: Path, commit: str, changed: Mapping[str, str], tree: str) -> None:
    """A worktree of ours at a commit with these texts in it; ignored files, as of an earlier build, stay.

    Raises UserError where its files do not make ``tree``: what is built is to be what is sent, byte for byte.
    """
    if path.is_dir():
        worktree = Checkout(path)
        try:
            worktree.git("reset", "--quiet", "--hard", commit)
            worktree.git("clean", "--quiet", "-fd")
        except GitError as error:
            raise UserError(f"{path} cannot be used again ({error}): remove it") from None
    else:
        checkout.git("worktree", "prune")
        checkout.git("worktree", "add", "--quiet", "--detach", path, commit)
    for name, text in changed.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode(errors="surrogateescape"))
    if Checkout(path).working_tree() != tree:
        raise UserError(f"{path} does not hold what was planned: a filter, a hook or an ignore rule of git changed it")


def _install(planned: Plan, side: _Side, options: Sequence[str]) -> None:
    variables = {"CMAKE_ARGS": " ".join(options)}
    if planned.backend == "metal" and planned.system.environ(TARGET_VARIABLE) is None:
        # pip would take the target of the Python it runs in, and MLX would leave the kernels out without a word.
        variables[TARGET_VARIABLE] = ".".join(map(str, NAX_MACOS))
    if not side.python.is_file():
        _run(planned, side, [sys.executable, "-m", "venv", str(side.environment)], side.root, {})
    _run(planned, side, [str(side.python), "-m", "pip", "install", ".[dev]"], side.source, variables)


def _run(planned: Plan, side: _Side, command: Sequence[str], cwd: Path, variables: Mapping[str, str]) -> None:
    side.log.parent.mkdir(parents=True, exist_ok=True)
    if planned.run(command, cwd, variables, side.log) != 0:
        last = _last_line(side.log)
        raise UserError(f"the build of {side.arm} failed at {' '.join(command[1:4])}: {last} (log: {side.log})")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["it said nothing"])[-1].strip()[:200]


def _require_kernels(planned: Plan, side: _Side, inside: bool) -> None:
    """The names that the series compiles are in its libraries and not in the base's: neither is taken for the other."""
    answer = side.environment.with_suffix(".answer")
    answer.unlink(missing_ok=True)
    if _with_mlx(planned, side, ["-c", _QUESTION], answer) != 0:
        raise UserError(f"the MLX of {side.arm} was built and cannot be imported: {_last_line(answer)}")
    package = Path(answer.read_text(encoding="utf-8").splitlines()[-1])
    libraries = [path for pattern in _LIBRARIES for path in package.glob(pattern)]
    data = b"\0".join(path.read_bytes() for path in libraries)
    for name in (name for contribution in planned.contributions for name in contribution.compiled):
        if (name.encode() in data) is not inside:
            what = "does not hold" if inside else "holds"
            raise UserError(f"the MLX of {side.arm}, in {package}, {what} {name}: it is not what was to be built")


def _with_mlx(
    planned: Plan, side: _Side, arguments: Sequence[str], log: Path, variables: Mapping[str, str] | None = None
) -> int:
    """Run the Python of a side with a kernel cache that is empty: MLX keeps what it compiled by the module's name and
    its own version, and neither changes with the source."""
    with tempfile.TemporaryDirectory(prefix="ptx-", dir=side.root) as cache:
        given = {**(variables or {}), "MLX_PTX_CACHE_DIR": cache}
        return planned.run([str(side.python), *arguments], side.root, given, log)


def _test(planned: Plan, side: _Side, tests: Path, tf32: bool, name: str) -> tuple[SuiteRun, bytes]:
    """The old tests in one process, and each new one in its own: where the base refuses a launch of one, CUDA serves
    that process no more."""
    log = side.root / "logs" / name
    variables = {} if tf32 else {"MLX_ENABLE_TF32": "0"}
    ran, skipped = 0, 0
    failed: list[str] = []
    idle: list[str] = []
    texts: list[str] = []
    for choice in (["without", *planned.new_tests], *(["only", new] for new in planned.new_tests)):
        log.unlink(missing_ok=True)
        code = _with_mlx(planned, side, [str(_RUNNER), str(tests), *choice], log, variables)
        texts.append(log.read_text(encoding="utf-8", errors="replace") if log.is_file() else "")
        try:
            said = json.loads(texts[-1].splitlines()[-1])
            ran, skipped, failed = ran + said["ran"], skipped + said["skipped"], failed + said["failed"]
        except (IndexError, ValueError, TypeError, KeyError) as error:
            if choice[0] == "without":
                raise UserError(f"the tests of {side.arm} ended without a result ({_last_line(log)}): {log}") from error
            ran, failed = ran + 1, [*failed, f"{tests.stem}.{choice[1]} (its process ended with exit code {code})"]
        else:
            idle += [choice[1]] if choice[0] == "only" and said["skipped"] == said["ran"] else []
    text = "".join(texts)
    log.write_text(text, encoding="utf-8")
    run = SuiteRun(
        arm=side.arm, metal_jit=side.jit, tf32=tf32, ran=ran, skipped=skipped, idle=idle, failed=failed, log=name
    )
    return run, text.encode()


def _matrix(planned: Plan, side: _Side) -> tuple[Matrix, bytes]:
    """Our matrix, in the environment of the build: this package goes into it, for its cases and its reference."""
    clone = Path(__file__).resolve().parents[3]
    if not (clone / "pyproject.toml").is_file():
        raise UserError("the matrix needs a clone of this project, not an installed package")
    planned.told("running our matrix through the series' MLX")
    _run(planned, side, [str(side.python), "-m", "pip", "install", str(clone)], side.root, {})
    into = side.root / "logs" / _MATRIX
    into.unlink(missing_ok=True)
    _with_mlx(planned, side, ["-m", "upstream_patch.measure.built", str(into)], side.log)
    try:
        data = into.read_bytes()
        said = json.loads(data)
        return Matrix(cases=len(said["results"]), wrong=said["wrong"], results=_MATRIX), data
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"our matrix ended without a result ({_last_line(side.log)}): {side.log}") from error
