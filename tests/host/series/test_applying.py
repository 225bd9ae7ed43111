"""Apply and unapply on a stand-in checkout: whole or not at all, whatever is in the way and whenever it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from upstream_patch.errors import UserError
from upstream_patch.series import load
from upstream_patch.series.applying import apply, message_of, unapply
from upstream_patch.series.checkout import Checkout, open_checkout

CHANGES = [load(name) for name in ("folding", "cuda")]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def repository(make_repository: Any, make_standin: Any, tmp_path: Path) -> Any:
    return make_repository(tmp_path / "mlx", make_standin(CHANGES))


def test_the_change_lies_in_a_worktree_of_its_own_and_the_checkout_is_as_before(repository: Any) -> None:
    before = repository.state()
    checkout = open_checkout(repository.path)
    applied, planned = apply(checkout, CHANGES)
    assert applied.worktree == repository.path.with_name("mlx-folding+cuda")
    assert {path: (applied.worktree / path).read_text() for path in planned.changed} == planned.changed
    in_it = Checkout(applied.worktree)
    assert in_it.branch == "upstream-patch/folding+cuda"
    assert in_it.commit() == checkout.commit()  # nothing is committed: a person writes the message
    changed = {line[3:] for line in in_it.git("status", "--porcelain", "--untracked-files=all").splitlines()}
    assert changed == set(planned.changed)
    text = message_of(applied).read_text(encoding="utf-8")
    assert text.splitlines()[0] == ""
    assert all(line.startswith("#") for line in text.splitlines()[1:])
    assert all(edit.file in text and edit.name in text for change in CHANGES for edit in change.edits)
    with pytest.raises(UserError, match=r"branch upstream-patch/folding\+cuda is there already"):
        apply(checkout, CHANGES)
    unapply(checkout, CHANGES)
    assert repository.state() == before
    assert not applied.worktree.exists()
    with pytest.raises(UserError, match="is not applied to"):
        unapply(checkout, CHANGES)


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_apply_and_unapply_leave_any_tree_with_the_anchors_as_it_was(
    data: st.DataObject, make_standin: Any, make_repository: Any
) -> None:
    names = data.draw(st.sampled_from([["cuda"], ["folding"], ["folding", "cuda"], ["cuda", "folding"]]), label="names")
    changes = [load(name) for name in names]
    files = make_standin(changes)
    for path in files:
        lines = data.draw(st.lists(st.text("ab{} ;", max_size=8), max_size=4), label=path)
        ends = data.draw(st.sampled_from(["\n", "\r\n"]), label=f"ends of {path}")
        files[path] = (files[path] + "\n".join(lines)).replace("\n", ends)
    with tempfile.TemporaryDirectory() as folder:
        repository = make_repository(Path(folder) / "mlx", files)
        before = repository.state()
        checkout = open_checkout(repository.path)
        applied, planned = apply(checkout, changes)
        for name in planned.changed.keys() - planned.new:
            kept = files[name].encode().split(b"\n")
            rest = iter((applied.worktree / name).read_bytes().split(b"\n"))
            assert all(line in rest for line in kept)  # theirs, byte for byte and in their order
        unapply(checkout, changes)
        assert repository.state() == before


def test_the_messages_file_has_todays_numbers_as_comments(repository: Any, synthetic: Any) -> None:
    from upstream_patch.records.facts import derive

    synthetic.write(synthetic.bench([synthetic.bench_row(4)]))
    fresh = derive(synthetic.load(), lambda kernel: "ab" * 32)
    stale = derive(synthetic.load(), lambda kernel: "cd" * 32)
    for facts, shown in ((fresh, 1), (stale, 0)):
        applied, _ = apply(open_checkout(repository.path), CHANGES, facts=facts)
        lines = message_of(applied).read_text(encoding="utf-8").splitlines()
        assert sum(".M4.speedup 4.0" in line for line in lines) == shown
        assert all(line.startswith("#") for line in lines[1:])
        unapply(open_checkout(repository.path), CHANGES)


def dirty(repository: Any) -> None:
    (repository.path / "mlx/version.h").write_text("changed\n")


def detached(repository: Any) -> None:
    repository.git("checkout", "--quiet", "--detach")


def without_anchor(repository: Any) -> None:
    path = "mlx/backend/cuda/quantized/quantized.cpp"
    text = (repository.path / path).read_text().replace("supports(supports_qmm_sm90)", "supports(supports_qmm_sm100)")
    repository.commit({path: text})


def file_is_there(repository: Any) -> None:
    repository.commit({"mlx/backend/cuda/device/qmm_small_m.cuh": "another\n"})


def folder_is_taken(repository: Any) -> None:
    repository.path.with_name("mlx-folding+cuda").mkdir()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (dirty, r"has changes that are not committed \(mlx/version.h\): commit them first"),
        (detached, r"is detached at [0-9a-f]{12}: git -C \S+ switch -c NAME first"),
        (
            without_anchor,
            r"does not apply: \S+quantized.cpp: the anchor .* stands 0 times, nearest line 41.*2 conflicts",
        ),
        (file_is_there, r"qmm_small_m.cuh is there, with another text"),
        (folder_is_taken, r"mlx-folding\+cuda is there already: name another folder with --into"),
    ],
)
def test_what_is_in_the_way_is_one_line_and_nothing_changes(spoil: Any, told: str, repository: Any) -> None:
    spoil(repository)
    before = repository.state()
    with pytest.raises(UserError, match=told) as raised:
        apply(open_checkout(repository.path), CHANGES)
    assert "\n" not in str(raised.value)
    assert repository.state() == before


def test_a_shallow_clone_is_refused(repository: Any, tmp_path: Path) -> None:
    repository.commit({}, "later")
    clone = tmp_path / "shallow"
    subprocess.run(["git", "clone", "-q", "--depth=1", repository.path.as_uri(), clone], check=True)
    with pytest.raises(UserError, match=r"is a shallow clone: git -C \S+ fetch --unshallow --tags first"):
        apply(open_checkout(clone), CHANGES)


def test_what_is_no_checkout_of_mlx_is_refused(make_repository: Any, tmp_path: Path) -> None:
    other = make_repository(tmp_path / "other", {"README.md": "another project\n"})
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / ".git").mkdir()
    cases = {
        other.path: "is a git checkout, but not MLX's: it has no mlx/version.h",
        tmp_path / "nowhere": "there is no folder",
        tmp_path: "is not a git checkout",
        other.path / ".git": "not a git checkout",
        empty: "not a git checkout",
    }
    for path, told in cases.items():
        with pytest.raises(UserError, match=told):
            open_checkout(path)
    (other.path / "sub").mkdir()
    with pytest.raises(UserError, match="is a folder inside the checkout"):
        open_checkout(other.path / "sub")


def test_work_of_a_person_is_never_taken_away(repository: Any) -> None:
    checkout = open_checkout(repository.path)
    applied, _ = apply(checkout, CHANGES)
    mine = applied.worktree / "mine.txt"
    mine.write_text("my own\n")
    before = repository.state()
    with pytest.raises(UserError, match="holds work of yours beside the series"):
        unapply(checkout, CHANGES)
    assert repository.state() == before
    assert mine.read_text() == "my own\n"
    type(repository)(applied.worktree).commit({}, "written by a person")
    mine.unlink()
    with pytest.raises(UserError, match="holds work of yours beside the series"):
        unapply(checkout, CHANGES)


# Ends the process, as kill -9 would, when git is about to run the given command for the given time.
KILLED = """
import os, signal, sys
from pathlib import Path
from upstream_patch.series import applying, checkout, load
real, left = checkout.git, [int(sys.argv[3])]
def git(*arguments, **given):
    if " ".join(map(str, arguments)).startswith(sys.argv[2]):
        left[0] -= 1
        if left[0] < 0:
            if sys.argv[4] == "after":
                real(*arguments, **given)
            os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **given)
checkout.git = git
changes = [load(name) for name in ("folding", "cuda")]
getattr(applying, sys.argv[5])(checkout.open_checkout(Path(sys.argv[1])), changes)
"""


def killed(repository: Any, command: str, when: str, verb: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(repository.path), command, "0", when, verb],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("command", "when", "whole"),
    [
        ("worktree add", "before", False),
        ("worktree add", "after", False),
        ("add --all", "before", False),
        ("worktree move", "before", False),
        ("worktree move", "after", True),
    ],
)
def test_a_killed_apply_is_undone_or_found_whole(
    command: str, when: str, whole: bool, repository: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    before = repository.state()
    killed(repository, command, when, "apply")
    checkout = open_checkout(repository.path)
    if whole:
        unapply(checkout, CHANGES)
        assert "what was stopped is whole" in capsys.readouterr().err
    else:
        with pytest.raises(UserError, match="is not applied to"):
            unapply(checkout, CHANGES)
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert repository.state() == before
    assert [path.name for path in repository.path.parent.iterdir()] == ["mlx"]


@pytest.mark.parametrize(
    ("command", "when"), [("worktree move", "before"), ("worktree move", "after"), ("branch", "before")]
)
def test_a_killed_unapply_leaves_all_of_it_or_nothing(command: str, when: str, repository: Any) -> None:
    checkout = open_checkout(repository.path)
    before = repository.state()
    applied, _ = apply(checkout, CHANGES)
    killed(repository, command, when, "unapply")
    if command == "worktree move" and when == "before":
        assert Checkout(applied.worktree).working_tree() == applied.tree
        unapply(checkout, CHANGES)
    else:
        assert not applied.worktree.exists()
        apply(checkout, CHANGES)  # cleans up, then works
        unapply(checkout, CHANGES)
    assert repository.state() == before


def test_a_worktree_that_git_was_killed_over_is_undone_too(repository: Any) -> None:
    before = repository.state()
    killed(repository, "worktree add", "after", "apply")
    (admin,) = (repository.path / ".git" / "worktrees").iterdir()
    (admin / "locked").write_text("initializing\n")  # as git leaves it when it dies on the way
    applied, _ = apply(open_checkout(repository.path), CHANGES)
    unapply(open_checkout(repository.path), CHANGES)
    assert repository.state() == before
    assert not applied.partial.exists()


def test_two_at_once_are_refused(repository: Any) -> None:
    import fcntl

    checkout = open_checkout(repository.path)
    room = checkout.common / "upstream-patch"
    room.mkdir()
    with (room / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another apply, unapply or export is at work"):
            apply(checkout, CHANGES)
