"""Versions of a contribution as git objects and files: exported, compared, and kept for good once they were sent.

A version is a commit on the base, under ``refs/upstream-patch/<name>/v<N>`` of the checkout: git's own range-diff
compares two of them. Its message is a hole, which a person fills.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

from pydantic import AwareDatetime, ValidationError

from upstream_patch.errors import UserError
from upstream_patch.files import write_text
from upstream_patch.series.checkout import Checkout, GitError
from upstream_patch.series.model import Contribution, Model, Name
from upstream_patch.series.planning import Plan
from upstream_patch.series.style import laid_out

SUBJECT = "*** SUBJECT HERE ***"
"""git's own placeholder; the sending of a patch that holds it is to be refused."""
HOLE = f"{SUBJECT}\n\n*** A person writes this: MLX prohibits messages that an AI wrote. ***\n"


class Version(Model):
    """What identifies one exported version. It holds no text of MLX."""

    name: Name
    number: int
    base: str
    """Commit of MLX."""
    commit: str
    """Of the checkout it was exported in; another person's has another id."""
    tree: str
    patch_id: str
    """``git patch-id --stable``: the same for the same change, wherever it lies."""
    files: dict[str, str]
    """Changed path -> sha256 of its whole text."""

    @property
    def ref(self) -> str:
        return f"refs/upstream-patch/{self.name}/v{self.number}"


class Sent(Model):
    """One version that a person sent, and where to. Written once, never changed."""

    version: Version
    url: str
    when: AwareDatetime
    code: str
    """Commit of this repository that the version was exported from."""


def export(checkout: Checkout, contribution: Contribution, out: Path, base: str = "HEAD") -> tuple[Version, Path, Plan]:
    """Export a contribution on a commit of the checkout; the same change again is the same version.

    Below ``out/<name>/v<N>``: ``<name>.diff``, ``<name>.patch`` (mail form, with the base's id), the whole changed
    files as an overlay under ``patches/``, and ``version.json``. These hold MLX's text: they are not to be committed
    here. Raises UserError where the contribution does not apply, and where git does not know who you are.
    """
    with checkout.locked():
        commit = checkout.commit(base)
        planned = laid_out([contribution], checkout.reader(commit))
        planned.require()
        tree = checkout.tree(commit, planned.changed)
        version = _known(checkout, contribution.name, commit, tree) or _new(checkout, contribution, commit, tree)
        folder = out / contribution.name / f"v{version.number}"
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        _put(
            partial / f"{contribution.name}.diff", checkout.git("diff-tree", "-p", "--full-index", commit, version.tree)
        )
        _put(partial / f"{contribution.name}.patch", checkout.git("format-patch", *_mail(version)))
        for path, text in planned.changed.items():
            _put(partial / "patches" / path, text)
        _put(partial / "version.json", version.model_dump_json(indent=2) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    return version, folder, planned


def _mail(version: Version) -> tuple[str, ...]:
    """Arguments of format-patch: one mail and nothing else, whatever a person's settings put into theirs."""
    return (
        *("--stdout", "--base", version.base, f"--reroll-count={version.number}", "--subject-prefix=PATCH"),
        *("--src-prefix=a/", "--dst-prefix=b/", "--no-attach", "--no-cover-letter", "--no-thread", "--no-numbered"),
        *("--no-signoff", "--no-signature", "--no-notes", "--no-from", "--no-add-header"),
        *("-1", version.commit),
    )


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(errors="surrogateescape"))


def versions(checkout: Checkout, name: str) -> list[int]:
    """Numbers of the versions that were exported in this checkout."""
    refs = checkout.git("for-each-ref", "--format=%(refname)", f"refs/upstream-patch/{name}/").splitlines()
    return sorted(int(ref.rsplit("/v", 1)[1]) for ref in refs)


def _known(checkout: Checkout, name: str, base: str, tree: str) -> Version | None:
    for number in versions(checkout, name):
        version = of(checkout, name, number)
        if (version.base, version.tree) == (base, tree):
            return version
    return None


def _new(checkout: Checkout, contribution: Contribution, base: str, tree: str) -> Version:
    try:
        checkout.git("var", "GIT_AUTHOR_IDENT")
    except GitError:
        raise UserError("git does not know who you are: git config --global user.name and user.email first") from None
    number = max(versions(checkout, contribution.name), default=0) + 1
    commit = checkout.git("commit-tree", tree, "-p", base, given=HOLE).strip()
    # An empty old value: the reference must not be there, so that no version is ever replaced.
    checkout.git("update-ref", f"refs/upstream-patch/{contribution.name}/v{number}", commit, "")
    return of(checkout, contribution.name, number)


def of(checkout: Checkout, name: str, number: int) -> Version:
    """An exported version. Raises UserError where this checkout has none of that number."""
    ref = f"refs/upstream-patch/{name}/v{number}"
    if not checkout.has(ref):
        have = ", ".join(f"v{number}" for number in versions(checkout, name)) or "none; series export makes one"
        raise UserError(f"{checkout.path} has no version v{number} of {name}; it has {have}")
    commit = checkout.commit(ref)
    base = checkout.commit(f"{ref}^")
    changed = checkout.git("diff-tree", "-r", "--name-only", "--no-commit-id", base, commit).splitlines()
    return Version(
        name=name,
        number=number,
        base=base,
        commit=commit,
        tree=checkout.git("rev-parse", f"{commit}^{{tree}}").strip(),
        patch_id=patch_id(checkout, base, commit),
        files={path: _sha256(checkout.git("cat-file", "blob", f"{commit}:{path}")) for path in changed},
    )


def patch_id(checkout: Checkout, before: str, after: str) -> str:
    """git's stable id of the change between two commits or trees; empty where there is none."""
    diff = checkout.git("diff-tree", "-p", before, after)
    return (checkout.git("patch-id", "--stable", given=diff).split() or [""])[0]


def compare(checkout: Checkout, name: str, one: int, other: int) -> str:
    """git's range-diff between two versions of a contribution."""
    ranges = [f"{version.base}..{version.commit}" for version in (of(checkout, name, one), of(checkout, name, other))]
    # range-diff has no --no-textconv: a person's attributes must not name a program that shows files.
    return checkout.git("-c", f"core.attributesFile={os.devnull}", "range-diff", "--no-color", *ranges)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def record_sent(checkout: Checkout, name: str, number: int, url: str, code: str, history: Path) -> Path:
    """Note that a person sent a version. Raises UserError where it was noted already."""
    if not re.fullmatch(r"https://\S+", url):
        raise UserError(f"{url} is not the address of what was sent (https://...)")
    version = of(checkout, name, number)
    path = history / f"{name}-v{number}.json"
    if path.exists():
        raise UserError(f"{path} is there already: what was sent is never changed; export a new version")
    sent = Sent(version=version, url=url, when=datetime.now(UTC).replace(microsecond=0), code=code)
    text = sent.model_dump_json(indent=2)
    write_text(path, f"{text}\n")
    write_text(path.with_suffix(".sha256"), f"{_sha256(text)}\n")
    return path


def history(folder: Path) -> list[Sent]:
    """What was sent, the oldest first. Raises UserError where a file was changed after it was written."""
    found = []
    for path in sorted(folder.glob("*.json")):
        text = path.read_text(encoding="utf-8").removesuffix("\n")
        seal = path.with_suffix(".sha256")
        if not seal.is_file() or seal.read_text(encoding="utf-8").strip() != _sha256(text):
            raise UserError(f"{path} was changed after it was written: take it from the repository's history again")
        try:
            found.append(Sent.model_validate_json(text))
        except ValidationError as error:
            raise UserError(f"{path}: {error.errors()[0]['msg']}") from None
    return sorted(found, key=lambda sent: sent.when)
