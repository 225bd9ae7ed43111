"""The page of a job, in Markdown: what the machine was, what ran, what did not and why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from ci.machines import DEVICES
from ci.result import DeviceRun, Health

MOST_ROWS, MOST_LETTERS = 200, 500
"""Of a table and of a cell: GitHub shows no page above a mebibyte."""


def health(found: Health) -> str:
    """Of a machine, at the time it was asked."""
    failed = found.failed
    verdict = (
        f"**Not fit to measure**: {', '.join(_cell(each.name) for each in failed)}" if failed else "Fit to measure"
    )
    rows = [
        (
            each.name,
            "ok" if each.ok else ("FAILED" if each.required else "not told"),
            each.found + (f" -> {each.fix}" if each.fix else ""),
        )
        for each in found.checks
    ]
    table = _table(("check", "", "found"), rows)
    return f"## Health of {DEVICES[found.machine].title}\n\n{verdict}\n\n{table}"


def device(run: DeviceRun) -> str:
    """Of a device job: the suite's stages, and the records it made."""
    title = f"## {DEVICES[run.machine].title}\n\nCommit `{run.commit}`: {_verdict(run)}\n"
    parts = [title]
    if run.stages:
        parts.append(
            _table(("stage", "outcome", "what, or why not"), [tuple(s.model_dump().values()) for s in run.stages])
        )
    records = [line for line in run.files if line.path.startswith("evidence/records/")]
    if records:
        parts.append(_table(("record", "sha256"), [(PurePosixPath(r.path).stem, r.sha256[:16]) for r in records]))
        parts.append(f"Raw files beside them: {len(run.files) - len(records)}.\n")
    else:
        parts.append("No record was made.\n")
    return "\n".join(parts)


def _verdict(run: DeviceRun) -> str:
    if run.health is None:
        return "the health check did not come to its end; nothing was measured"
    if run.health.failed:
        return "the machine was not fit to measure; nothing was measured"
    if run.suite == "success":
        return "the suite came to its end"
    if run.stages:
        failed = ", ".join(_cell(stage.stage) for stage in run.stages if stage.outcome == "FAILED")
        return f"**partial**: {failed or 'a stage'} failed; the other stages stand"
    return f"**partial**: the suite ended early ({run.suite}); what it had stored is below"


def collected(runs: Sequence[DeviceRun], records: int) -> str:
    """Of the collector."""
    rows = [(DEVICES[run.machine].title, run.commit[:12], run.suite, str(len(run.files))) for run in runs]
    proof = (
        "The attestation says which workflow of this repository wrote these bytes, from which commit. "
        "It does not say that the machine was honest.\n"
    )
    table = _table(("machine", "commit", "suite", "files"), rows)
    return f"## Collected\n\nRecords that verify: {records}.\n\n{table}\n{proof}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[*map(_cell, head)], ["---"] * len(head), *([*map(_cell, line)] for line in rows[:MOST_ROWS])]
    more = f"\n{len(rows) - MOST_ROWS} more are left out.\n" if len(rows) > MOST_ROWS else ""
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + more


def _cell(text: str) -> str:
    """One line that stays in its cell, and is shown as it is, neither Markdown nor HTML: it may come from a device."""
    plain = " ".join("".join(letter for letter in text if letter.isprintable() or letter.isspace()).split())
    if len(plain) > MOST_LETTERS:
        plain = f"{plain[:MOST_LETTERS]} ... ({len(plain)} letters)"
    plain = re.sub(r"([\\`*_\[\]~$#])", r"\\\1", plain)
    for mark, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "&#124;"), ("@", "@\u200b")):
        plain = plain.replace(mark, safe)
    return plain
