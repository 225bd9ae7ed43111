"""Versions: the same change is the same version, none is ever replaced, and what was sent stays as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.errors import UserError
from upstream_patch.series import Contribution, load
from upstream_patch.series.checkout import Checkout, open_checkout
from upstream_patch.series.exporting import SUBJECT, compare, export, history, of, record_sent, versions
from upstream_patch.series.planning import plan

CUDA = load("cuda")
CODE = "ab" * 20


@pytest.fixture
def checkout(make_repository: Any, make_standin: Any, tmp_path: Path, person: None) -> Checkout:
    return open_checkout(make_repository(tmp_path / "mlx", make_standin([CUDA])).path)


def changed(contribution: Contribution) -> Contribution:
    """Another version of it: one edit has another line."""
    last = contribution.edits[-1]
    return contribution.model_copy(
        update={"edits": [*contribution.edits[:-1], last.model_copy(update={"lines": f"  // new\n{last.lines}"})]}
    )


def test_an_export_is_the_change_in_three_forms(checkout: Checkout, tmp_path: Path) -> None:
    version, folder, _ = export(checkout, CUDA, tmp_path / "out")
    planned = plan([CUDA], checkout.reader())
    assert (version.number, version.base) == (1, checkout.commit())
    assert sorted(version.files) == sorted(planned.changed)
    # the overlay holds the whole files
    overlay = folder / "patches"
    assert {str(p.relative_to(overlay)): p.read_text() for p in overlay.rglob("*") if p.is_file()} == planned.changed
    # diff and mail make that very tree of the base, by git's own strict apply
    mail = (folder / "cuda.patch").read_text()
    assert f"base-commit: {version.base}" in mail
    assert f"Subject: [PATCH v1] {SUBJECT}" in mail
    for name in ("cuda.diff", "cuda.patch"):
        checkout.git("apply", "--check", folder / name)
        checkout.git("apply", "--index", folder / name)
        assert checkout.git("write-tree").strip() == version.tree
        checkout.git("reset", "--quiet", "--hard")
    assert json.loads((folder / "version.json").read_text()) == version.model_dump()


def test_the_same_change_is_the_same_version_and_another_is_the_next(checkout: Checkout, tmp_path: Path) -> None:
    first, folder, _ = export(checkout, CUDA, tmp_path)
    again, *_ = export(checkout, CUDA, tmp_path)
    assert again == first
    second, *_ = export(checkout, changed(CUDA), tmp_path)
    assert (second.number, versions(checkout, "cuda")) == (2, [1, 2])
    assert of(checkout, "cuda", 1) == first
    assert folder.is_dir()
    difference = compare(checkout, "cuda", 1, 2)
    assert difference.startswith("1:") and "+  // new" in difference
    with pytest.raises(UserError, match=r"has no version v3 of cuda; it has v1, v2"):
        compare(checkout, "cuda", 1, 3)


def test_a_version_is_never_replaced(checkout: Checkout, tmp_path: Path) -> None:
    first, *_ = export(checkout, CUDA, tmp_path)
    with pytest.raises(UserError, match="update-ref"):
        checkout.git("update-ref", first.ref, first.base, "")


def test_two_exports_at_once_are_refused(checkout: Checkout, tmp_path: Path) -> None:
    with checkout.locked(), pytest.raises(UserError, match="another apply, unapply or export is at work on"):
        export(checkout, CUDA, tmp_path)
    assert (versions(checkout, "cuda"), list(tmp_path.glob("cuda*"))) == ([], [])
    export(checkout, CUDA, tmp_path)


def test_git_must_know_who_exports(checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "")
    with pytest.raises(UserError, match="git does not know who you are"):
        export(checkout, CUDA, tmp_path)
    assert versions(checkout, "cuda") == []


def test_what_was_sent_is_noted_once_and_a_change_of_the_note_is_seen(checkout: Checkout, tmp_path: Path) -> None:
    export(checkout, CUDA, tmp_path / "out")
    sent = tmp_path / "sent"
    url = "https://example.invalid/pull/1"
    path = record_sent(checkout, "cuda", 1, url, CODE, sent)
    (entry,) = history(sent)
    assert (entry.url, entry.version) == (url, of(checkout, "cuda", 1))
    with pytest.raises(UserError, match="what was sent is never changed"):
        record_sent(checkout, "cuda", 1, url, CODE, sent)
    with pytest.raises(UserError, match="is not the address"):
        record_sent(checkout, "cuda", 1, "pull/1", CODE, sent)
    path.write_text(path.read_text().replace("/pull/1", "/pull/2"))
    with pytest.raises(UserError, match="was changed after it was written"):
        history(sent)
