"""The end of the chain: what ran here, what rests on records and whose, what nobody has run, and what would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from upstream_patch.contribution.chain import Context, Outcome, Result, Stage
from upstream_patch.errors import UserError
from upstream_patch.records.facts import VERBS
from upstream_patch.records.provenance import HOSTS
from upstream_patch.terminal import plain_table

_ONE_COMMAND = {"h200": "contribution", "gb10": "gb10", "m5": "m5"}
"""The session that makes everything on a host; M5 has no other."""
_KINDS = {"m5": ("correctness", "bench")}
"""Kinds of record, where a host cannot make all."""
_STYLE = {
    Outcome.RAN: "green",
    Outcome.RECORDS: "cyan",
    Outcome.SKIPPED: "yellow",
    Outcome.FAILED: "bold red",
}


def show_summary(stages: Sequence[Stage], results: Mapping[str, Result], context: Context) -> None:
    """Print the three tables of the summary."""
    console = context.console
    console.rule("[bold]summary", align="left", style="dim")
    console.print(_stages(stages, results))
    try:
        owned = _records(context)
    except UserError as error:
        console.print(Text(f"\nthe committed records cannot be read: {error}", style="red"))
        return
    if owned:
        console.print(Text("\nCommitted records", style="bold"))
        console.print(_owned(owned))
    missing = {host: [kind for kind in _KINDS.get(host, VERBS) if kind not in owned.get(host, {})] for host in HOSTS}
    if any(missing.values()):
        console.print(Text("\nNobody has run this yet; there are no numbers for it", style="bold"))
        console.print(_missing(missing))


def _stages(stages: Sequence[Stage], results: Mapping[str, Result]) -> Table:
    table = plain_table("stage", "outcome", "what, or why not")
    for stage in stages:
        result = results[stage.name]
        told = Text(result.detail)
        if result.way_out:
            told.append(f"\n-> {result.way_out}", style="cyan")
        table.add_row(stage.name, Text(result.outcome.value, style=_STYLE[result.outcome]), told)
    return table


def _records(context: Context) -> dict[str, dict[str, tuple[int, str, str]]]:
    """host -> kind -> (how many, day of the newest, GPU)."""
    from upstream_patch.records import store

    found: dict[str, dict[str, tuple[int, str, str]]] = {}
    for loaded in store.load_all(context.evidence):
        record = loaded.record
        kinds = found.setdefault(record.host, {})
        count = kinds.get(record.body.kind, (0, "", ""))[0]
        gpu = record.machine.gpu.name if record.machine.gpu else record.machine.cpu
        kinds[record.body.kind] = (count + 1, f"{record.created:%Y-%m-%d}", gpu)
    return found


def _owned(owned: Mapping[str, Mapping[str, tuple[int, str, str]]]) -> Table:
    table = plain_table("host", "machine", "kind", "records", "newest")
    for host, kinds in owned.items():
        for kind, (count, day, gpu) in kinds.items():
            table.add_row(host, gpu, kind, str(count), day)
    return table


def _missing(missing: Mapping[str, Sequence[str]]) -> Table:
    table = plain_table("host", "machine", "not run", "the command that would, on that machine")
    for host, kinds in missing.items():
        anything = len(kinds) == len(_KINDS.get(host, VERBS))
        whole = anything or host == "m5"
        sessions = _ONE_COMMAND[host] if whole else " ".join(VERBS[kind] for kind in kinds)
        if kinds:
            table.add_row(host, HOSTS[host], "anything" if anything else ", ".join(kinds), f"nox -s {sessions}")
    return table
