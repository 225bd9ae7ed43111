"""What is generated from the records, held against them: every fact is derived, and every page, plot and table that is
in the evidence must be what its verb would write today."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from upstream_patch import routing_table, targets
from upstream_patch.plots import files as plots
from upstream_patch.records import facts as derived
from upstream_patch.records.facts import Fact
from upstream_patch.records.schema import json_schema
from upstream_patch.records.store import LoadedRecord
from upstream_patch.report import page

SCHEMA = "schema.json"


def generated(evidence: Path, records: Sequence[LoadedRecord]) -> tuple[int, list[str]]:
    """(number of facts, how the generated files differ from them, each with the verb that writes it).

    A file that is not there claims nothing. The forecast is not looked at: it is no evidence, and needs a compiler.
    """
    facts = derived.derive(records)
    return len(facts), list(_differences(evidence, records, facts))


def _differences(evidence: Path, records: Sequence[LoadedRecord], facts: Sequence[Fact]) -> Iterator[str]:
    texts: dict[str, tuple[Callable[[], str], str]] = {
        targets.FILE: (lambda: targets.markdown(facts), "targets"),
        routing_table.FILE: (routing_table.markdown, "routing"),
        SCHEMA: (json_schema, f"records.schema > {evidence / SCHEMA}"),
    }
    for name, (text, verb) in texts.items():
        path = evidence / name
        if path.is_file() and path.read_text(encoding="utf-8") != text():
            of = "." if verb.startswith("records") else " "
            yield f"{path} is not what the records and the code say: python -m upstream_patch{of}{verb}"
    if (evidence / page.FILE).is_file() and (said := page.differences(evidence, facts, records)):
        yield f"{said}: python -m upstream_patch report"
    if (evidence / plots.FOLDER).is_dir():
        yield from (f"{said}: python -m upstream_patch plots" for said in plots.differences(evidence, facts))
