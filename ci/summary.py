"""The page of a job, in Markdown: what the machine was, what ran, what did not and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from ci.machines import DEVICES
from ci.result import DeviceRun, Health


def health(found: Health) -> str:
    """Of a machine, at the time it was asked."""
    failed = found.failed
    verdict = f"**Not fit to measure**: {', '.join(each.name for each in failed)}" if failed else "Fit to measure"
    rows = [
        (
            each.name,
            "ok" if each.ok else ("**FAILED**" if each.required else "not told"),
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
        parts.append(f"{len(run.files) - len(records)} raw files beside them.\n")
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
        failed = ", ".join(stage.stage for stage in run.stages if stage.outcome == "FAILED")
        return f"**partial**: {failed or 'a stage'} failed; the other stages stand"
    return f"**partial**: the suite ended early ({run.suite}); what it had stored is below"


def collected(runs: Sequence[DeviceRun], records: int) -> str:
    """Of the collector."""
    rows = [(DEVICES[run.machine].title, run.commit[:12], run.suite, str(len(run.files))) for run in runs]
    proof = (
        "The attestation says which workflow of this repository wrote these bytes, from which commit. "
        "It does not say that the machine was honest.\n"
    )
    return (
        f"## Collected\n\n{records} records verify.\n\n{_table(('machine', 'commit', 'suite', 'files'), rows)}\n{proof}"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    """One line that stays in its cell, and is shown as it is: it may come from a device."""
    plain = " ".join(text.split())
    for mark, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("@", "@\u200b")):
        plain = plain.replace(mark, safe)
    return plain
