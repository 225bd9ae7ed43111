"""Verbs of the evidence: records, facts, and the pages that are rendered from them and from the code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from upstream_patch.cli.options import EVIDENCE, Check, Evidence, Json, existing, read_facts
from upstream_patch.errors import UserError

app = typer.Typer()


@app.command()
def facts(
    as_json: Json = False,
    prefix: Annotated[str, typer.Option(help="Only ids that begin so, e.g. small_m.h200.")] = "",
    evidence: Evidence = EVIDENCE,
) -> None:
    """List every value derived from the records: id, value, unit, record, sha256, stale. Needs no MLX."""
    from upstream_patch.records import facts as derived

    found = [fact for fact in read_facts(evidence) if fact.id.startswith(prefix)]
    if as_json:
        print(derived.to_json(found))
        return
    if not found:
        raise UserError(f"no fact{f' that begins with {prefix}' if prefix else ''} in {evidence}")
    for fact in found:
        value = fact.value if isinstance(fact.value, str) else f"{fact.value:.6g}"
        stale = "  STALE" if fact.stale else ""
        print(f"{fact.id}  {value} {fact.unit}  {fact.record_path} {fact.sha256[:12]}{stale}")


@app.command()
def readme(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail where README differs.")] = False,
    path: Annotated[Path, typer.Option(help="The file with the managed block.")] = Path("README.md"),
    evidence: Evidence = EVIDENCE,
) -> None:
    """Fill README's table of measured results from facts."""
    from upstream_patch import readme as page

    text = existing(path, folder=False).read_text(encoding="utf-8")
    found = read_facts(evidence)
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

    found = read_facts(evidence)
    if check:
        if differences := files.differences(evidence, found):
            raise UserError(f"{'; '.join(differences)}: python -m upstream_patch plots puts it right")
        return
    for path in files.write(evidence, found):
        print(path)


@app.command()
def routing(
    check: Check = False,
    evidence: Evidence = EVIDENCE,
) -> None:
    """Write the tables of routes and tuning, and their C++ header, from the code that decides them."""
    from upstream_patch import routing_table
    from upstream_patch.series import cuda_tuning

    path, header = existing(evidence) / routing_table.FILE, cuda_tuning.FILE
    if check:
        _same(header, cuda_tuning.header(), "what the code says", "routing")
        return _same(path, routing_table.markdown(), "what the code says", "routing")
    for each, written in ((path, routing_table.update(path)), (header, cuda_tuning.update())):
        print(f"{each} {'was written' if written else 'is up to date'}")


@app.command()
def targets(
    check: Check = False,
    evidence: Evidence = EVIDENCE,
) -> None:
    """Write which numbers to reach are met, missed or without a record, from facts."""
    from upstream_patch import targets as page

    found = read_facts(evidence)
    path = evidence / page.FILE
    if check:
        return _same(path, page.markdown(found), "what the facts say", "targets")
    print(f"{path} {'was written' if page.update(path, found) else 'is up to date'}")


@app.command()
def forecast(
    check: Check = False,
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


def _same(path: Path, text: str, what: str, verb: str) -> None:
    """Raises UserError where a generated file does not hold what the verb would write."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        raise UserError(f"{path} is not {what}: python -m upstream_patch {verb} writes it")
