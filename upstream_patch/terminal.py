"""How the command line looks: progress bars, and the tables of doctor and build."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from upstream_patch.compile import CompileResult
from upstream_patch.draft.gates import Gate
from upstream_patch.machine import Finding

NEWS_S = 30.0
"""Seconds between two lines where there is no bar."""


class Advance(Protocol):
    """Called with what is done, of how many, and what comes next."""

    def __call__(self, done: int, total: int, label: str = "") -> None: ...


@contextmanager
def bar(title: str) -> Iterator[Advance]:
    """A progress bar on stderr while the block runs; where stderr is no terminal, a line now and then."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("[dim]{task.fields[label]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(title, total=None, label="")

        said = time.monotonic()

        def advance(done: int, total: int, label: str = "") -> None:
            nonlocal said
            progress.update(task, completed=done, total=total, label=label)
            if progress.disable and time.monotonic() - said > NEWS_S:
                said = time.monotonic()
                print(f"{title}: {done} of {total}", file=sys.stderr, flush=True)

        yield advance


def show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Doctor's table, and under it the way to what is missing."""
    table = plain_table("", "piece", "found", "enables")
    ways = plain_table("for", "do")
    for finding in findings:
        mark = Text("ok", style="green") if finding.ok else Text("--", style="yellow")
        table.add_row(mark, finding.name, Text(finding.detail), Text(finding.enables, style="dim"))
        if finding.fix:
            ways.add_row(finding.name, Text(finding.fix))
    console.print(table)
    if ways.row_count:
        console.print(ways)


def compile_tables(results: Sequence[CompileResult]) -> Iterator[Table]:
    """A table an architecture, narrow enough for 80 columns: what each kernel takes, spills in red."""
    for arch in dict.fromkeys(result.arch for result in results):
        table = plain_table(arch, "threads", "shared B", "registers", "spilled B")
        for column in table.columns[1:]:
            column.justify = "right"
        for result in (each for each in results if each.arch == arch):
            spilled = Text(str(result.spill_stores + result.spill_loads), style="red" if result.spills else "")
            numbers = (str(result.threads), f"{result.shared_bytes:,}", str(result.registers))
            table.add_row(result.variant, *numbers, spilled)
        yield table


def show_gates(console: Console, gates: Sequence[Gate]) -> None:
    """One row a gate, draft by draft, and under a red one the way out."""
    table = plain_table("draft", "gate", "", "what was found, and the way out")
    for gate in gates:
        told = Text(gate.why)
        if gate.fix:
            told.append(f"\n-> {gate.fix}", style="cyan")
        outcome = Text(str(gate.outcome), style="green" if gate.open else "bold red")
        table.add_row(gate.draft, gate.name, outcome, told)
    console.print(table)


def plain_table(*columns: str, title: str | None = None) -> Table:
    """No lines: it stays readable in a log and at 100 columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
