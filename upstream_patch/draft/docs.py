"""From the finished note to the edited downstream doc."""

from __future__ import annotations

from pathlib import Path

from upstream_patch.draft import body, doc_edit, gates, inputs, managed
from upstream_patch.draft.contributions import CUDA
from upstream_patch.draft.documents import DOCS
from upstream_patch.errors import UserError
from upstream_patch.files import write_text
from upstream_patch.records.provenance import HOSTS

DIFF = "docs_continuous_batching.diff"


def name(work: Path, device: str) -> Path:
    """Say which machine the note is about. Raises UserError for one without an NVIDIA GPU: the caveat is about CUDA."""
    if device not in CUDA.hosts:
        raise UserError(f"the caveat is about CUDA, and {device} is none of its machines: {', '.join(CUDA.hosts)}")
    return inputs.write(work, "device", inputs.Named(host=device))


def edited(doc: Path, draft: Path, work: Path) -> tuple[str, str]:
    """The doc before and after, with the draft as it is: what is missing in it shows as a hole. Writes nothing."""
    before = doc_edit.read(doc)
    device = (inputs.read(work, "device", inputs.Named) or inputs.Named()).host
    quote = doc_edit.note(body.body(managed.read(draft)), HOSTS[device])
    return before, doc_edit.edit(before, quote, HOSTS[device])


def store_diff(work: Path, doc: Path, before: str, after: str) -> Path:
    """Write the edit as a diff that ``git apply`` takes in the doc's repository."""
    parts = doc.resolve().parts
    inside = parts[len(parts) - 1 - parts[::-1].index("docs") :] if "docs" in parts else (doc.name,)
    write_text(work / DIFF, doc_edit.diff("/".join(inside), before, after))
    return work / DIFF


def put(doc: Path, work: Path, evidence: Path) -> None:
    """Make the edit. Raises GateClosed while a gate of the note is not open: a hole, a figure without a record."""
    gates.ready(DOCS.name, work, evidence)
    _, after = edited(doc, work / DOCS.file, work)
    write_text(doc, after)
