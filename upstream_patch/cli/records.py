"""Verbs of the records: checked, two beside each other, and all of them as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from upstream_patch.cli.options import EVIDENCE, OUT, Evidence, Out, existing
from upstream_patch.errors import UserError

if TYPE_CHECKING:
    from upstream_patch.records.compare import Comparison, Pair

_NAMED = 6

app = typer.Typer(help="The evidence: what was measured, where, from which bytes.")


@app.command("verify")
def records_verify(evidence: Evidence = EVIDENCE) -> None:
    """Check every record and raw file (form, hashes, rules), derive every fact, and hold the generated files that are
    there against them."""
    from upstream_patch.records import store
    from upstream_patch.verifying import generated

    for path in store.put_in_place(existing(evidence)):
        print(f"{path} was finished, and is in its place now")
    findings = store.verify(evidence)
    for finding in findings:
        print(finding)
    if findings:
        raise UserError(f"{_faults(findings)} in {evidence}; take the files back from git, or measure again")
    records = store.load_all(evidence)
    facts, differences = generated(evidence, records)
    for difference in differences:
        print(difference)
    if differences:
        raise UserError(f"{_faults(differences)} in what is generated from {evidence}; the verbs above write it again")
    print(f"{len(records)} records are as they were written; they give {facts} facts, which the generated files show")


@app.command("compare")
def compare(
    first: Annotated[str, typer.Argument(help="A record: its id, the end of it, or its file.")],
    second: Annotated[str, typer.Argument(help="Another of the same kind.")],
    evidence: Evidence = EVIDENCE,
) -> None:
    """Set two records beside each other: what differs between the runs, and each value's ratio with its interval."""
    from upstream_patch.records import compare, store

    loaded = [store.find(name, existing(evidence)) for name in (first, second)]
    _show(compare.compare(*loaded), *(one.record.id for one in loaded))


@app.command("export")
def export(
    out: Out = OUT,
    evidence: Evidence = EVIDENCE,
    csv: Annotated[bool, typer.Option("--csv", help="As CSV, the only form there is.")] = True,
) -> None:
    """Write every fact and every raw sample as CSV."""
    from upstream_patch.files import write_text
    from upstream_patch.records import export, facts, store

    records = store.load_all(existing(evidence))
    for name, text in (
        ("facts.csv", export.facts_csv(facts.derive(records))),
        ("samples.csv", export.samples_csv(records)),
    ):
        write_text(out / name, text)
        print(f"{out / name}: {text.count(chr(10)) - 1} rows")


def _faults(found: Sequence[object]) -> str:
    return "1 fault" if len(found) == 1 else f"{len(found)} faults"


def _show(found: Comparison, first: str, second: str) -> None:
    print(f"first:  {first}\nsecond: {second}")
    for what, one, other in found.differs:
        print(f"DIFFERENT {what}: {one} | {other}")
    print(f"the same: {'; '.join(found.same) or 'nothing'}")
    if found.control:
        print(found.control)
    wide = max((len(pair.name) for pair in found.pairs), default=0)
    print(f"\n{'':{wide}}  {'first':>12} {'second':>12}  first / second")
    for pair in found.pairs:
        print(f"{pair.name:{wide}}  {pair.first:>12.6g} {pair.second:>12.6g}  {_ratio(pair)}")
    for words, names in (("first", found.only_first), ("second", found.only_second)):
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            print(f"only in the {words}: {', '.join(names[:_NAMED])}{more}")


def _ratio(pair: Pair) -> str:
    if pair.interval is None or pair.judgement is None:
        return f"{pair.ratio:.4g} {pair.unit} (one value each: no interval)"
    low, high = pair.interval.low, pair.interval.high
    return f"{pair.ratio:.3f} [{low:.3f}, {high:.3f}] {pair.unit}  second {pair.judgement.verdict}"
