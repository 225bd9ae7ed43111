"""The one writer and the one reader of records.

Layout: ``<root>/records/<host>/<record id>.json`` and ``<root>/raw/<record id>/<attachment>``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from upstream_patch.errors import UserError
from upstream_patch.machine import Machine
from upstream_patch.records import canonical, rules, scrub
from upstream_patch.records.placing import finish, place
from upstream_patch.records.provenance import TEST_HOST, environment, require_commit
from upstream_patch.records.schema import SCHEMA_VERSION, Body, KernelIdentity, Record

EVIDENCE = Path("evidence")
LINKED = "is a symbolic link: what it leads to is not in the evidence"
LEAK = "holds a path or an id of the machine that wrote it: write it again through the writer"


@dataclass(frozen=True)
class SyntheticRoot:
    """The one way to touch records of host ``test``: it holds nothing else, and no other root holds them.

    Only tests build one. (A test reads the package's own syntax trees to see that.)
    """

    path: Path


Root = Path | SyntheticRoot


@dataclass(frozen=True)
class Finding:
    """One thing wrong with the evidence: the file, the field (or empty), and what is wrong."""

    path: str
    field: str
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.path, self.field, self.message) if part)


class RecordError(UserError):
    """A record that cannot be trusted; says the file, the field and the reason."""

    def __init__(self, findings: list[Finding]) -> None:
        more = f" (and {len(findings) - 1} more: python -m upstream_patch records verify)" if len(findings) > 1 else ""
        super().__init__(f"{findings[0]}{more}")
        self.findings = findings


@dataclass(frozen=True)
class LoadedRecord:
    record: Record
    path: str
    """From the root's own name on, with forward slashes, e.g. ``evidence/records/h200/....json``."""
    sha256: str
    """Of the file's bytes."""


def write(
    body: Body,
    *,
    host: str,
    command: str,
    machine: Machine,
    versions: Mapping[str, str],
    kernel: KernelIdentity | None,
    root: Root = EVIDENCE,
    attachments: Mapping[str, bytes] | None = None,
    created: datetime | None = None,
    scrubber: scrub.Scrubber | None = None,
    variables: Mapping[str, str] | None = None,
) -> Path:
    """Store one record and its raw files, and return the record's path. ``variables`` are those of the process that
    measured; this one's if left out.

    Paths, user names and machine names are replaced before anything is hashed. Raises UserError, and leaves nothing
    behind, when the record breaks a rule: a wrong result in a benchmark, a slow read probe, a part of the correctness
    matrix in place of the whole, a host that is not this machine, one of ``HOSTS`` with code of no known commit, host
    ``test`` outside a SyntheticRoot, a value that is not finite.
    """
    base = folder_of(root)
    scrubber = scrubber or scrub.here()
    _refuse_host(host, root, f"{base.name}/records/{host}")
    require_commit(host, versions)
    raw = {name: scrubber.data(name, data) for name, data in (attachments or {}).items()}
    created = (created or datetime.now(UTC)).astimezone(UTC).replace(microsecond=0)
    kind = body.kind
    tree = scrubber.tree(
        {
            "command": command,
            "machine": machine.model_dump(),
            "versions": dict(versions),
            "environment": dict(environment() if variables is None else variables),
            "kernel": kernel and kernel.model_dump(),
            "body": body.model_dump(),
        }
    )
    tree |= {
        "schema_version": SCHEMA_VERSION,
        "host": host,
        "created": created.isoformat().replace("+00:00", "Z"),
        "attachments": [
            {"path": name, "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
            for name, data in sorted(raw.items())
        ],
    }
    try:
        tree = canonical.tidy(tree)
    except ValueError as error:
        raise UserError(f"not stored: {error}") from None
    identifier = f"{host}-{created:%Y%m%dT%H%M%SZ}-{kind}-{canonical.digest(tree)[:8]}"
    tree["id"] = identifier
    shown = f"{base.name}/records/{host}/{identifier}.json"
    record = _validated(tree, shown)
    broken = list(rules.violations(record))
    committed = list(readable(root, host))
    broken += [one for rule in (rules.slow_probe, rules.part_of_matrix) if (one := rule(record, committed))]
    if broken:
        raise RecordError([Finding(shown, field, message) for field, message in broken])
    return place(base, identifier, canonical.dumps(tree), raw)


def put_in_place(root: Root = EVIDENCE) -> list[Path]:
    """The records that a killed writer had finished but not moved to their place; the next ``write`` does it, too."""
    return finish(folder_of(root))


def load_all(root: Root = EVIDENCE) -> list[LoadedRecord]:
    """Every record, oldest first. Raises RecordError at the first one that is damaged or breaks a rule."""
    base, loaded = folder_of(root), []
    for file in _files(base):
        record, findings = _examine(file, base, root)
        if record is None or findings:
            raise RecordError(findings)
        loaded.append(record)
    return sorted(loaded, key=lambda item: (item.record.created, item.record.id))


def find(name: str, root: Root = EVIDENCE) -> LoadedRecord:
    """The record of that id, of an id that begins or ends so, or in that file, which may lie in another root.

    Raises UserError where there is none, or more than one.
    """
    file = Path(name)
    if file.suffix == ".json" and file.is_file() and isinstance(root, Path):
        root, name = file.resolve().parents[2], file.stem
    loaded = load_all(root)
    exact = [one for one in loaded if one.record.id == name]
    fits = exact or [one for one in loaded if one.record.id.startswith(name) or one.record.id.endswith(name)]
    if len(fits) != 1:
        some = ", ".join(one.record.id for one in fits[:3]) or "there is none"
        raise UserError(f"no one record is {name!r} ({some}): name one of {folder_of(root)}/records by its whole id")
    return fits[0]


def verify(root: Root = EVIDENCE) -> list[Finding]:
    """Everything wrong with the records and raw files, in file order: form, hashes, rules, local paths, stray files,
    links. A changed record with the id that fits is seen only where a rule breaks: git's history is the guard."""
    base, owned = folder_of(root), set()
    findings: list[Finding] = []
    sound: list[LoadedRecord] = []
    for file in _files(base):
        loaded, wrong = _examine(file, base, root)
        findings += wrong
        owned.add(file.stem)
        if loaded is not None:
            findings += [Finding(_shown(leaking, base), "", LEAK) for leaking in _leaks(file, base)]
            sound += [] if wrong else [loaded]
    for loaded in sound:
        others = [other.record for other in sound]
        older = [other for other in others if other.created < loaded.record.created]
        for found in (rules.slow_probe(loaded.record, older), rules.part_of_matrix(loaded.record, others)):
            findings += [Finding(loaded.path, *found)] if found else []
    for stray in sorted((base / "records").glob("**/*")):
        if stray.is_file() and (stray.suffix != ".json" or stray.parent.parent != base / "records"):
            findings.append(Finding(_shown(stray, base), "", "not a record"))
    for folder in sorted((base / "raw").glob("*")):
        if folder.name not in owned:
            findings.append(Finding(_shown(folder, base), "", "raw data that no record names"))
    for folder in (base / "records", base / "raw"):
        for path in (folder, *sorted(folder.rglob("*"))):
            if path.is_symlink() and path.suffix != ".json":  # a record that is one was said above
                findings.append(Finding(_shown(path, base), "", LINKED))
    return findings


def _examine(file: Path, base: Path, root: Root) -> tuple[LoadedRecord | None, list[Finding]]:
    shown = _shown(file, base)
    if any(path.is_symlink() for path in (file, file.parent, file.parent.parent)):
        return None, [Finding(shown, "", LINKED)]
    try:
        data = file.read_bytes()
        text = data.decode()
        tree = canonical.loads(text)
        if not isinstance(tree, dict):
            raise ValueError("not a JSON object")
        _refuse_version(tree, shown)
        record = _validated(tree, shown)
        _refuse_host(record.host, root, shown)
        canonical.tidy(tree)
        expected, form = canonical.digest(tree)[:8], canonical.dumps(tree)
    except RecordError as error:
        return None, error.findings
    except RecursionError:
        return None, [Finding(shown, "", "cannot be read: nested too deep to be a record")]
    except (OSError, ValueError) as error:
        return None, [Finding(shown, "", f"cannot be read: {error}")]
    findings = []
    if record.id.rsplit("-", maxsplit=1)[1] != expected:
        findings.append(
            Finding(shown, "id", f"the content's sha256 begins {expected}: the record was changed after writing")
        )
    elif text != form:
        findings.append(Finding(shown, "", "not in the writer's form: the file was edited by hand"))
    if record.id != f"{record.host}-{record.created:%Y%m%dT%H%M%SZ}-{record.body.kind}-{expected}" and not findings:
        findings.append(Finding(shown, "id", "does not agree with host, created or kind"))
    if file.stem != record.id or file.parent.name != record.host:
        findings.append(Finding(shown, "id", f"the file should lie at records/{record.host}/{record.id}.json"))
    findings += _attachments(record, base / "raw" / record.id, shown)
    findings += [Finding(shown, field, message) for field, message in rules.violations(record)]
    return LoadedRecord(record, shown, hashlib.sha256(data).hexdigest()), findings


def _attachments(record: Record, folder: Path, shown: str) -> list[Finding]:
    findings = []
    for index, attachment in enumerate(record.attachments):
        file = folder / attachment.path
        if not file.is_file() or file.is_symlink() or folder.is_symlink() or folder.parent.is_symlink():
            wrong = "is missing"
        elif hashlib.sha256(file.read_bytes()).hexdigest() != attachment.sha256:
            wrong = "was changed after writing"
        else:
            continue
        findings.append(Finding(shown, f"attachments.{index}", f"raw/{record.id}/{attachment.path} {wrong}"))
    named = {attachment.path for attachment in record.attachments}
    for file in sorted(folder.rglob("*")):
        if file.relative_to(folder).as_posix() not in named:
            name = file.relative_to(folder.parent).as_posix()
            findings.append(Finding(shown, "attachments", f"raw/{name} is not named by the record"))
    return findings


def _leaks(file: Path, base: Path) -> Iterator[Path]:
    """A record's files that hold what the writer takes out wherever it runs."""
    tree = canonical.loads(file.read_text(encoding="utf-8"))  # as text, a line's end would be the letter before a path
    if scrub.ANYWHERE.tree(tree) != tree:
        yield file
    for raw in sorted(path for path in (base / "raw" / file.stem).rglob("*") if path.is_file()):
        text = raw.read_bytes().decode("latin-1")
        if scrub.ANYWHERE.text(text) != text:
            yield raw


def readable(root: Root, host: str) -> Iterator[Record]:
    """A host's records, without the damaged ones: those are for verify, and must not cost a run its result."""
    base = folder_of(root)
    for file in sorted((base / "records" / host).glob("*.json")):
        loaded, wrong = _examine(file, base, root)
        if loaded is not None and not wrong:
            yield loaded.record


def _validated(tree: dict[str, Any], shown: str) -> Record:
    try:
        return Record.model_validate(tree)
    except ValidationError as error:
        raise RecordError(
            [Finding(shown, ".".join(str(part) for part in one["loc"]), one["msg"]) for one in error.errors()]
        ) from None


def _refuse_version(tree: dict[str, Any], shown: str) -> None:
    version = tree.get("schema_version")
    if version != SCHEMA_VERSION:
        message = f"is {version!r}, this upstream-patch reads {SCHEMA_VERSION}: use the version that wrote the record"
        raise RecordError([Finding(shown, "schema_version", message)])


def _refuse_host(host: str, root: Root, shown: str) -> None:
    if isinstance(root, SyntheticRoot) != (host == TEST_HOST):
        what = (
            "is for synthetic records, which only tests use"
            if host == TEST_HOST
            else "has no place in a synthetic root"
        )
        raise RecordError([Finding(shown, "host", f"{host!r} {what}")])


def folder_of(root: Root) -> Path:
    """The folder itself."""
    return root.path if isinstance(root, SyntheticRoot) else root


def _files(base: Path) -> list[Path]:
    return sorted((base / "records").glob("*/*.json"))


def _shown(path: Path, base: Path) -> str:
    return f"{base.name}/{path.relative_to(base).as_posix()}"
