"""The worktree of an applied change after a person moved, deleted, switched or filled it; and what fails on the way."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.errors import UserError
from upstream_patch.series import load
from upstream_patch.series.applying import Applied, apply, unapply
from upstream_patch.series.checkout import Checkout, open_checkout

CHANGES = [load("folding")]
BRANCH = "upstream-patch/folding"


@pytest.fixture
def repository(make_repository: Any, make_standin: Any, tmp_path: Path) -> Any:
    return make_repository(tmp_path / "my mlx", make_standin(CHANGES))


@pytest.fixture
def checkout(repository: Any) -> Checkout:
    return open_checkout(repository.path)


def notes(checkout: Checkout) -> list[str]:
    room = checkout.common / "upstream-patch"
    return sorted(str(path.relative_to(room)) for path in room.rglob("*.json"))


def test_a_worktree_that_git_moved_is_taken_away_where_it_is(repository: Any, checkout: Checkout) -> None:
    before = repository.state()
    applied, _ = apply(checkout, CHANGES)
    elsewhere = repository.path.with_name("elsewhere")
    repository.git("worktree", "move", str(applied.worktree), str(elsewhere))
    mine = elsewhere / "mine.txt"
    mine.write_text("my own\n")
    held = repository.state()
    with pytest.raises(UserError, match="elsewhere holds work of yours beside the series"):
        unapply(checkout, CHANGES)
    assert (repository.state(), mine.read_text()) == (held, "my own\n")
    mine.unlink()
    assert unapply(checkout, CHANGES).worktree == elsewhere
    assert (repository.state(), notes(checkout)) == (before, [])
    assert [path.name for path in repository.path.parent.iterdir()] == ["my mlx"]


def move(applied: Applied) -> None:
    applied.worktree.rename(applied.worktree.with_name("elsewhere"))


def replace(applied: Applied) -> None:
    move(applied)
    applied.worktree.mkdir()
    (applied.worktree / "mine.txt").write_text("my own\n")


def delete(applied: Applied) -> None:
    shutil.rmtree(applied.worktree)


def switch(applied: Applied) -> None:
    Checkout(applied.worktree).git("switch", "--quiet", "--create", "mine")


def detach(applied: Applied) -> None:
    Checkout(applied.worktree).git("switch", "--quiet", "--detach")


def take_over(applied: Applied) -> None:
    detach(applied)
    main, _ = Checkout(applied.worktree).worktrees()[0]
    Checkout(main).git("switch", "--quiet", BRANCH)


def ignored_files(applied: Applied) -> None:
    worktree = Checkout(applied.worktree)
    (worktree.common / "info" / "exclude").write_text("*.log\nbuild/\n")
    (applied.worktree / "notes.log").write_text("my own\n")
    (applied.worktree / "build").mkdir()
    (applied.worktree / "build" / "a.o").write_text("made\n")


def in_the_way(applied: Applied) -> None:
    applied.partial.mkdir()


@pytest.mark.parametrize(
    ("done", "told"),
    [
        (move, r"mlx-folding is not there: git -C '\S+ mlx' worktree repair FOLDER where you moved it"),
        (replace, r"mlx-folding is not there: .* worktree prune where you deleted it"),
        (delete, r"mlx-folding is not there: .*git -C '\S+ mlx' worktree prune where you deleted it"),
        (switch, r"is not on branch upstream-patch/folding any more: git -C '\S+ mlx-folding' switch upstream-patch"),
        (detach, r"is not on branch upstream-patch/folding any more"),
        (take_over, r"my mlx is itself on branch upstream-patch/folding: put it on another first"),
        (ignored_files, r"holds what git ignores \(build/ and 1 more\): keep it, or git -C '.*' clean -fdX first"),
        (in_the_way, r"mlx-folding.partial is in the way: move it elsewhere"),
    ],
)
def test_what_a_person_did_is_refused_in_one_line_and_left_as_it_is(
    done: Callable[[Applied], None], told: str, repository: Any, checkout: Checkout
) -> None:
    applied, _ = apply(checkout, CHANGES)
    done(applied)
    before, folders, noted = repository.state(), files(repository.path.parent), notes(checkout)
    for _ in range(2):  # and the second time it is the same
        with pytest.raises(UserError, match=told) as raised:
            unapply(checkout, CHANGES)
        assert "\n" not in str(raised.value)
        assert (repository.state(), files(repository.path.parent), notes(checkout)) == (before, folders, noted)


def files(folder: Path) -> dict[str, bytes]:
    """Below the folder, git's own apart."""
    found = (path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.parametrize(("done", "fix"), [(move, "repair"), (delete, "prune"), (ignored_files, "clean")])
def test_the_way_out_that_is_named_works(done: Any, fix: str, repository: Any, checkout: Checkout) -> None:
    before = repository.state()
    applied, _ = apply(checkout, CHANGES)
    done(applied)
    if fix == "clean":
        Checkout(applied.worktree).git("clean", "--quiet", "-fdX")
    else:
        moved = [str(applied.worktree.with_name("elsewhere"))] if fix == "repair" else []
        repository.git("worktree", fix, *moved)
    unapply(checkout, CHANGES)
    assert (repository.state(), notes(checkout)) == (before, [])
    assert [path.name for path in repository.path.parent.iterdir()] == ["my mlx"]


def failing_hook(repository: Any) -> None:
    hook = repository.path / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho no >&2\nexit 1\n")
    hook.chmod(0o755)


def shouting_filter(repository: Any) -> None:
    repository.commit({".gitattributes": "fold_batch.h filter=shout\n"})
    repository.git("config", "filter.shout.clean", "tr a-z A-Z")


@pytest.mark.parametrize(
    ("spoil", "into", "told"),
    [
        (failing_hook, None, "git worktree add"),
        (shouting_filter, None, "does not hold what was planned: a filter, a hook or an ignore rule"),
        (lambda repository: None, Path("/proc/nowhere"), "git worktree add"),
    ],
)
def test_an_apply_that_fails_leaves_nothing(
    spoil: Any, into: Path | None, told: str, repository: Any, checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(repository)
    before = repository.state()
    with pytest.raises(UserError, match=told):
        apply(checkout, CHANGES, into)
    assert (repository.state(), notes(checkout)) == (before, [])
    assert [path.name for path in repository.path.parent.iterdir()] == ["my mlx"]
    assert "what was stopped is undone" in capsys.readouterr().err


def test_an_unapply_that_fails_leaves_the_whole_change(repository: Any, checkout: Checkout) -> None:
    applied, _ = apply(checkout, CHANGES)
    repository.git("worktree", "lock", str(applied.worktree))
    before, noted = repository.state(), notes(checkout)
    with pytest.raises(UserError, match="git worktree move: fatal: cannot move a locked working tree"):
        unapply(checkout, CHANGES)
    assert (repository.state(), notes(checkout)) == (before, noted)
    repository.git("worktree", "unlock", str(applied.worktree))
    unapply(checkout, CHANGES)
