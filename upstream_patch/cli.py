"""The verbs. Each only wires; the rooms are imported inside the verb, so that facts and drafts need no MLX."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from upstream_patch.errors import UserError

if TYPE_CHECKING:
    from upstream_patch.records.facts import Fact

app = typer.Typer(
    help="Carry a GPU kernel from 'fast on my machine' to 'merged upstream', with evidence.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
records_app = typer.Typer(help="The evidence: what was measured, where, from which bytes.")
draft_app = typer.Typer(help="Files for a person to finish: facts filled in, prose left as holes.")
app.add_typer(records_app, name="records")
app.add_typer(draft_app, name="draft")

Evidence = Annotated[Path, typer.Option(help="Folder of the records.")]
Out = Annotated[Path, typer.Option(help="Folder that drafts are written to.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
Suite = Annotated[str, typer.Option(help="Problems: small-m, formats, formats-full, or smoke, which takes seconds.")]
EVIDENCE = Path("evidence")
OUT = Path("out")
SUITE = "small-m"


def main() -> None:
    """Run a verb. A person's mistake is one line on stderr and an exit code that is not 0, never a traceback."""
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    try:
        code = app(standalone_mode=False) or 0
        if code == 130:  # typer turns Ctrl-C into it
            fail("stopped", code)
        sys.stdout.flush()
        raise SystemExit(code)
    except UserError as error:
        fail(str(error), error.exit_code)
    except BrokenPipeError:  # as in `facts | head`: nobody reads on, which is no fault
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except (OSError, UnicodeError) as error:
        fail(f"{type(error).__name__}: {error}", 2)
    except (typer.Abort, KeyboardInterrupt):
        fail("stopped", 130)
    except Exception as error:
        # Wrong options: typer's own classes have moved between its versions, the method has not.
        if not hasattr(error, "format_message"):
            raise
        fail(f"{error.format_message()} (--help lists what there is)", getattr(error, "exit_code", 2))


def fail(message: str, code: int) -> NoReturn:
    """One line, whatever the message."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(code)


def command_line() -> str:
    """This command as a record keeps it: the verb and its options, no paths of this machine."""
    return shlex.join(["python", "-m", "upstream_patch", *sys.argv[1:]])


def _facts(evidence: Path) -> list[Fact]:
    """Those of the records in an evidence folder."""
    from upstream_patch.records import facts, store

    return facts.derive(store.load_all(existing(evidence)))


def _same(path: Path, text: str, what: str, verb: str) -> None:
    """Raises UserError where a generated file does not hold what the verb would write."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        raise UserError(f"{path} is not {what}: python -m upstream_patch {verb} writes it")


def existing(path: Path, *, folder: bool = True) -> Path:
    """The path, if it is there: a wrong folder must not look like one without records."""
    if not (path.is_dir() if folder else path.is_file()):
        raise UserError(
            f"no {'folder' if folder else 'file'} {path} here: run from the repository's root, or name another"
        )
    return path


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what this machine has, and what each missing piece would enable."""
    from dataclasses import asdict

    from upstream_patch.machine import diagnose, probe

    if as_json:
        findings = [asdict(finding) for finding in diagnose()]
        print(json.dumps({"machine": probe().model_dump(), "findings": findings}, indent=2))
        return
    from upstream_patch.terminal import show_findings

    show_findings(Console(), diagnose())


@app.command()
def build(
    arch: Annotated[list[str] | None, typer.Option(help="e.g. sm_90; every supported one if left out.")] = None,
) -> None:
    """Compile every kernel with NVRTC and show registers, shared memory and spills. Needs no GPU."""
    from upstream_patch.compile import compile_all
    from upstream_patch.terminal import bar, compile_tables

    with bar("compiling") as advance:
        results = compile_all(arch or None, progress=advance)
    for table in compile_tables(results):
        Console().print(table)


@app.command()
def correctness(
    evidence: Evidence = EVIDENCE,
    full: Annotated[bool, typer.Option("--full", help="Every format with every M, dtype, layout and shape.")] = False,
) -> None:
    """Run the matrix on this machine's CUDA GPU and record it."""
    from upstream_patch.recording import record_correctness

    stored = record_correctness(command_line(), evidence, full)
    print(f"{stored.detail}: {stored.path}")


@app.command()
def simulate(
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="For a nightly run: Metal in the whole cross of format, M, N, tile and layout, CUDA in 20,000 cases.",
        ),
    ] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Time and memory a tile, too.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of the covers: another one gives other cases.")] = None,
) -> None:
    """Run our CUDA kernel and MLX's Metal kernels on this machine's CPU, with race, bounds and barrier checks."""
    from upstream_patch.correctness import simulation
    from upstream_patch.terminal import bar

    with bar("simulating") as advance:
        summary = simulation.simulate(print, advance, full=full, seed=seed)
    if stats:
        print(summary.per_tile)
    print(simulation.verdict(summary))


@app.command()
def bench(
    suite: Suite = SUITE,
    evidence: Evidence = EVIDENCE,
    minutes: Annotated[float | None, typer.Option(min=0.1, help="Start no row after this; compiling is extra.")] = None,
) -> None:
    """Time stock against ours on this machine's CUDA GPU and record it."""
    from upstream_patch.measure.graphs import one_graph_a_sample
    from upstream_patch.measure.suites import suite as known
    from upstream_patch.recording import record_bench

    known(suite)
    one_graph_a_sample()
    limit_s = math.inf if minutes is None else 60 * minutes
    stored = record_bench(command_line(), suite, evidence, limit_s)
    print(f"{stored.detail}: {stored.path}")


@app.command()
def profile(evidence: Evidence = EVIDENCE) -> None:
    """Profile stock and ours with Nsight Compute and record it."""
    from upstream_patch.recording import record_profile

    stored = record_profile(command_line(), evidence)
    print(f"{stored.detail}: {stored.path}")


@app.command()
def sanitize(evidence: Evidence = EVIDENCE, out: Out = OUT) -> None:
    """Run our kernel under compute-sanitizer's tools, outside MLX, and record it. Needs no MLX."""
    from upstream_patch.recording import record_sanitizer

    stored = record_sanitizer(command_line(), evidence, out / "sanitize")
    print(f"{stored.detail}: {stored.path}")


@app.command()
def peers(evidence: Evidence = EVIDENCE) -> None:
    """Time PyTorch's prepacked int4 against our kernel and record it. Needs PyTorch, not MLX."""
    from upstream_patch.recording import record_peers

    stored = record_peers(command_line(), evidence)
    print(f"{stored.detail}: {stored.path}")


@records_app.command("verify")
def records_verify(evidence: Evidence = EVIDENCE) -> None:
    """Check every record and raw file: form, hashes, rules."""
    from upstream_patch.records import store

    findings = store.verify(existing(evidence))
    for finding in findings:
        print(finding)
    if findings:
        count = "1 fault" if len(findings) == 1 else f"{len(findings)} faults"
        raise UserError(f"{count} in {evidence}; take the files back from git, or measure again")
    print(f"{len(store.load_all(evidence))} records are as they were written")


@app.command()
def facts(
    as_json: Json = False,
    prefix: Annotated[str, typer.Option(help="Only ids that begin so, e.g. small_m.h200.")] = "",
    evidence: Evidence = EVIDENCE,
) -> None:
    """List every value derived from the records: id, value, unit, record, sha256, stale. Needs no MLX."""
    from upstream_patch.records import facts as derived

    found = [fact for fact in _facts(evidence) if fact.id.startswith(prefix)]
    if as_json:
        print(derived.to_json(found))
        return
    if not found:
        raise UserError(f"no fact{f' that begins with {prefix}' if prefix else ''} in {evidence}")
    for fact in found:
        value = fact.value if isinstance(fact.value, str) else f"{fact.value:.6g}"
        stale = "  STALE" if fact.stale else ""
        print(f"{fact.id}  {value} {fact.unit}  {fact.record_path} {fact.sha256[:12]}{stale}")


@draft_app.command("issue")
def draft_issue(out: Out = OUT, evidence: Evidence = EVIDENCE) -> None:
    """Write the issue's fact sheet: tables from facts, prose as holes for a person."""
    from upstream_patch.draft import issue

    path = issue.write(out / "drafts", _facts(evidence))
    print(f"{path}: {len(issue.open_holes(path))} holes are open, for a person")


@app.command()
def readme(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail where README differs.")] = False,
    path: Annotated[Path, typer.Option(help="The file with the managed block.")] = Path("README.md"),
    evidence: Evidence = EVIDENCE,
) -> None:
    """Fill README's table of measured results from facts."""
    from upstream_patch import readme as page

    text = existing(path, folder=False).read_text(encoding="utf-8")
    found = _facts(evidence)
    if check:
        if page.fill(text, found) != text:
            raise UserError(f"{path} differs from the facts: python -m upstream_patch readme fills it")
        return
    print(f"{path} {'was filled' if page.update(path, found) else 'is up to date'}")


@app.command()
def plots(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail where the files differ.")] = False,
    evidence: Evidence = EVIDENCE,
) -> None:
    """Draw time and share of the read probe over M, stock and ours, from facts."""
    from upstream_patch.plots import files

    found = _facts(evidence)
    if check:
        if differences := files.differences(evidence, found):
            raise UserError(f"{'; '.join(differences)}: python -m upstream_patch plots puts it right")
        return
    for path in files.write(evidence, found):
        print(path)


@app.command()
def routing(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail where the file differs.")] = False,
    evidence: Evidence = EVIDENCE,
) -> None:
    """Write the tables of routes and tuning, from the code that decides them."""
    from upstream_patch import routing_table

    path = existing(evidence) / routing_table.FILE
    if check:
        return _same(path, routing_table.markdown(), "what the code says", "routing")
    print(f"{path} {'was written' if routing_table.update(path) else 'is up to date'}")


@app.command()
def targets(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail where the file differs.")] = False,
    evidence: Evidence = EVIDENCE,
) -> None:
    """Write which numbers to reach are met, missed or without a record, from facts."""
    from upstream_patch import targets as page

    found = _facts(evidence)
    path = evidence / page.FILE
    if check:
        return _same(path, page.markdown(found), "what the facts say", "targets")
    print(f"{path} {'was written' if page.update(path, found) else 'is up to date'}")


@app.command()
def forecast(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail where the file differs.")] = False,
    evidence: Evidence = EVIDENCE,
) -> None:
    """Predict the kernel's times on a GB10 from its machine code: no measurement, no fact. Needs no GPU."""
    from upstream_patch.files import write_text
    from upstream_patch.measure.forecast import report
    from upstream_patch.records import facts as derived
    from upstream_patch.records import store

    records = store.load_all(existing(evidence))
    path, text = evidence / report.NAME, report.render(derived.derive(records), records)
    if check:
        return _same(path, text, "today's forecast", "forecast")
    write_text(path, text)
    print(f"{path} was written")


@app.command()
def contribution(suite: Suite = SUITE, out: Out = OUT, evidence: Evidence = EVIDENCE) -> None:
    """The main job: doctor, build, correctness, bench, profile, records, drafts, and a summary at the end."""
    from upstream_patch.contribution import Context
    from upstream_patch.contribution import contribution as run
    from upstream_patch.measure.graphs import one_graph_a_sample
    from upstream_patch.measure.suites import suite as known

    known(suite)
    one_graph_a_sample()
    existing(evidence)
    context = Context(evidence=evidence, out=out, console=Console(), command=command_line(), suite=suite)
    raise SystemExit(run(context))
