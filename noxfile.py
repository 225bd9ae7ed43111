# /// script
# requires-python = ">=3.11"
# dependencies = ["nox>=2026.8.10"]
# ///
"""Names and order of the sessions; what they do is in the package (`python -m upstream_patch --help`).

`nox -l` lists them. With `nox --no-venv` nothing is installed: the sessions run in the Python that nox runs in, so a
GPU host that reaches no package registry runs the very same sessions.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import nox

nox.needs_version = ">=2026.8.10"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True

PROJECT = nox.project.load_toml("pyproject.toml")
PINS = ("--constraint", "constraints.txt")
# MLX's CUDA wheel wants an NVIDIA driver; everywhere else the CPU wheel (on macOS: the Metal one) does.
MLX = "cuda" if sys.platform == "linux" and shutil.which("nvidia-smi") else "cpu"
CUDA_LIBRARY = "mlx-cuda-13==0.32.4"
EXTRAS = (MLX, "compile", "simulate", "decode")
WHOLE = (*EXTRAS, "plots")
TESTED = (*WHOLE, "github")
nox.options.envdir = f".nox/{MLX}"  # the two wheels install the same files, so each has its own environments


@dataclass(frozen=True)
class Verb:
    """A session that runs ``python -m upstream_patch <command> <posargs>``."""

    name: str
    command: tuple[str, ...]
    help: str
    extras: tuple[str, ...] = (MLX,)
    links: bool = False
    """The series' host code to MLX's CUDA library."""


VERBS = (
    Verb("contribution", ("contribution",), "The main job: every stage from doctor to drafts.", WHOLE, links=True),
    Verb("doctor", ("doctor",), "What this machine has, and what each missing piece would enable.", EXTRAS),
    Verb("build", ("build",), "Compile the kernels; -- --mlx PATH builds and tests MLX with them.", ("compile",)),
    Verb("drift", ("series", "drift"), "How far upstream went from the base; -- --mlx PATH.", ()),
    Verb("wheel", ("wheel",), "Host code in a released MLX: -- build; -- run (GPU).", (MLX, "compile"), links=True),
    Verb("simulate", ("simulate",), "Run CUDA and Metal kernels on the CPU with every check.", (MLX, "simulate")),
    Verb("reproduce", ("reproduce",), "Show two faults of stock's Metal kernels on the CPU.", (MLX, "simulate")),
    Verb("correctness", ("correctness",), "Run the matrix on a CUDA GPU and record it."),
    Verb("bench", ("bench",), "Time stock against ours on a CUDA GPU and record it."),
    Verb("m5", ("m5",), "All that an M5's owner can show, recorded; -- --dry-run says what.", (MLX, "simulate")),
    Verb("gb10", ("gb10",), "All that a GB10's owner can show, recorded.", ("cuda", "compile", "decode")),
    Verb("facts", ("facts",), "List every value derived from the records; -- --json.", ()),
    Verb("draft", ("draft", "issue"), "Write the issue's fact sheet; its prose is for a person.", ()),
    Verb("status", ("status",), "What still stands between the drafts and upstream: every gate.", ()),
    Verb("duplicates", ("duplicates",), "Search MLX's threads for the subject of -- issue or -- pr.", ("github",)),
    Verb("file", ("file",), "Send a finished draft, as a person at a terminal: -- issue, or -- pr.", ("github",)),
    Verb("link", ("link",), "Comment on what was filed in lablup/mlxcel #725, when you confirm it.", ("github",)),
    Verb("readme", ("readme",), "Fill README's table from the facts.", ()),
    Verb("plots", ("plots",), "Draw every plot of the facts.", ("plots",)),
    Verb("report", ("report",), "Write the HTML page of what was measured, each number with its record.", ("plots",)),
    Verb("routing", ("routing",), "Write the tables of routes and tuning from the code.", ()),
    Verb("targets", ("targets",), "Write which numbers to reach are met or missed, from the facts.", ()),
    Verb("records", ("records", "verify"), "Check every record and every generated file.", ()),
    Verb("forecast", ("forecast",), "Predict times on a GB10 from the machine code; not a fact.", ("compile",)),
    Verb("profile", ("profile",), "Profile stock and ours with Nsight Compute and record it."),
    Verb("sanitize", ("sanitize",), "Run the kernel under compute-sanitizer and record it.", ("compile",)),
    Verb("decode", ("decode",), "Time batched decode through mlx-lm on a CUDA GPU and record it.", (MLX, "decode")),
    Verb("peers", ("peers",), "Time PyTorch's prepacked int4 against ours and record it.", ("compile",)),
)


def python(session: nox.Session) -> str:
    """The interpreter of the session; with --no-venv, the one nox runs in, whatever PATH says."""
    return sys.executable if session.venv_backend == "none" else "python"


def install(session: nox.Session, *, extras: tuple[str, ...] = (), group: str | None = None) -> None:
    """Install this package and a dependency group at pinned versions; with --no-venv, nothing."""
    if session.venv_backend == "none":
        return
    wanted = nox.project.dependency_groups(PROJECT, group) if group else ()
    package = f".[{','.join(extras)}]" if extras else "."
    session.install("--editable", package, *wanted, *PINS)


def add_cuda_library(session: nox.Session) -> None:
    """MLX's CUDA wheel in a folder of its own, where the CPU's is installed: only to compile against and link to."""
    if sys.platform != "linux" or MLX == "cuda" or session.venv_backend == "none":
        return
    folder = str(Path(".nox", "mlx-cuda").absolute())
    session.install("--target", folder, "--no-deps", CUDA_LIBRARY)
    session.env["UPSTREAM_PATCH_CUDA_WHEEL"] = folder


def add(verb: Verb) -> None:
    @nox.session(name=verb.name, default=False)
    def run(session: nox.Session) -> None:
        install(session, extras=verb.extras)
        if verb.links:
            add_cuda_library(session)
        session.run(python(session), "-m", "upstream_patch", *verb.command, *session.posargs)

    run.__doc__ = verb.help


for _verb in VERBS:
    add(_verb)


@nox.session
def tests(session: nox.Session) -> None:
    """The tests; those that need a GPU skip with a reason where there is none."""
    install(session, extras=TESTED, group="test")
    add_cuda_library(session)
    session.run(python(session), "-m", "pytest", "-n", "auto", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: check and format."""
    if session.venv_backend != "none":
        session.install(*nox.project.dependency_groups(PROJECT, "lint"), *PINS)
    session.run(python(session), "-m", "ruff", "check", *session.posargs)
    session.run(python(session), "-m", "ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """mypy --strict."""
    # With MLX, matplotlib and githubkit, whose stubs are part of their wheels.
    install(session, extras=(MLX, "plots", "github"), group="types")
    session.run(python(session), "-m", "mypy", *session.posargs)


@nox.session
def workflows(session: nox.Session) -> None:
    """Lint the workflows and the runners' scripts, offline; part of tests, too."""
    install(session, group="workflows")
    session.run(python(session), "-m", "ci", "lint")


@nox.session(default=False)
def pins(session: nox.Session) -> None:
    """Write constraints.txt anew: exact versions for every platform, read by pip and uv alike."""
    if session.venv_backend == "none":
        session.error("pins needs an environment of its own: run it without --no-venv")
    session.install(*nox.project.dependency_groups(PROJECT, "run"))
    options = ("--universal", "--python-version=3.11", "--fork-strategy=fewest", "--no-annotate", "--no-emit-index-url")
    header = ("--custom-compile-command", "nox -s pins")
    everything = ("--all-extras", "--group=dev", "pyproject.toml", "--output-file=constraints.txt", "--quiet")
    session.run("uv", "pip", "compile", *options, *header, *everything, *session.posargs)


if __name__ == "__main__":
    nox.main()
