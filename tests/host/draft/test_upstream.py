"""What a checkout says: how far upstream went from what was built, and whether a branch holds that and nothing else."""

from __future__ import annotations

import shlex
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.host.draft.conftest import HEAD, NOW
from tests.host.draft.test_proving import EDITED, built, clang_format, committed, compare, here, mlx
from tests.host.series.conftest import Repository
from upstream_patch.cli.series import app
from upstream_patch.draft import inputs, proving
from upstream_patch.draft.inputs import SeriesProof, Upstream
from upstream_patch.errors import UserError
from upstream_patch.series.checkout import open_checkout

__all__ = ["here", "mlx"]


def said_of_the_branch(here: Any, mlx: Repository, branch: str = "") -> tuple[str | None, str]:
    proving.compare(here.work, open_checkout(mlx.path), inputs.read(here.work, "series", SeriesProof), NOW, branch)
    found = inputs.read(here.work, "upstream", Upstream)
    assert found is not None
    return found.branch, found.branch_fault


def test_the_branch_is_the_series_that_was_built_and_nothing_else(here: Any, mlx: Repository, tmp_path: Path) -> None:
    base = mlx.git("rev-parse", "HEAD")
    here.record(built(base), 100)
    here.status("pr")
    usual = "upstream-patch/folding+cuda"
    assert said_of_the_branch(here, mlx) == (None, f"the checkout has no branch {usual}")
    mlx.commit({"README.md": "upstream went on\n"})
    mine = committed(mlx)
    assert said_of_the_branch(here, mlx) == (mine, "")
    assert said_of_the_branch(here, mlx, "main") == (None, "main has no commit of yours yet")

    mlx.git("branch", "mine", mine)
    tree = Repository(tmp_path / "more")
    mlx.git("worktree", "add", "--quiet", str(tree.path), "mine")
    more = tree.commit({EDITED: (tree.path / EDITED).read_text() + "// one more\n", "notes.txt": "x\n"})
    says = f"mine at {more[:12]} differs from the series that was built: {EDITED}, notes.txt"
    assert said_of_the_branch(here, mlx, "mine") == (None, says)
    tree.git("revert", "--no-edit", "HEAD")
    assert said_of_the_branch(here, mlx, "mine") == (tree.git("rev-parse", "HEAD"), "")

    moved = mlx.commit({EDITED: (mlx.path / EDITED).read_text() + "more\n"})
    here.record(built(moved), 101)
    here.status("pr")
    start = mlx.git("merge-base", "mine", "main")[:12]
    says = f"mine starts at {start}, whose files of the series are not those of {moved[:12]}"
    assert said_of_the_branch(here, mlx, "mine") == (None, says)


def test_upstream_is_compared_with_what_was_built(
    here: Any, mlx: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drift(code: int = 0) -> Upstream:
        asked = [
            "drift",
            "folding",
            "cuda",
            "--mlx",
            str(mlx.path),
            "--out",
            str(here.work.parent),
            "--evidence",
            str(here.evidence),
        ]
        result = CliRunner().invoke(app, asked)
        assert result.output.endswith(f"next: upstream-patch status pr {shlex.join(asked[-4:])}\n")
        assert isinstance(result.exception, UserError) if code else result.exit_code == 0, result.output
        found = inputs.read(here.work, "upstream", Upstream)
        assert found is not None
        return found

    base = mlx.git("rev-parse", "HEAD")
    first = drift()
    assert (first.base_commit, first.head_commit, first.applies, first.touched) == (base, base, True, ())
    assert first.head_committed == NOW
    assert first.unformatted == "MLX's layout is that of clang-format 17.0.6: pip install clang-format==17.0.6"
    clang_format(tmp_path, monkeypatch)
    assert drift().unformatted is None
    clang_format(tmp_path, monkeypatch, says="// more\n")
    assert str(drift().unformatted).startswith("clang-format changes ")

    moved = mlx.commit({EDITED: (mlx.path / EDITED).read_text() + "more\n"})
    assert drift().touched == (EDITED,)
    here.record(built(moved), 100)  # the way out that the gate names
    assert (drift().base_commit, drift().touched) == (moved, ())
    here.record(built("1" * 40), 101)
    with pytest.raises(UserError, match="has not 111111111111, which was built: git -C"):
        compare(here, mlx, None) if here.status("pr") else None
    mlx.commit({EDITED: "nothing\n"})
    here.record(built(moved), 102)
    assert not drift(code=2).applies


def test_a_clone_that_nobody_fetched_is_not_upstream(rehearsal: Any) -> None:
    rehearsal.all()
    for days in (14, 15):
        inputs.write(rehearsal.work, "upstream", rehearsal.upstream(head_committed=NOW - timedelta(days=days)))
        base = next(gate for gate in rehearsal.status("pr") if gate.name == "base")
        assert (base.code, base.why, base.fix) == (
            ("ok", f"no file of the series changed up to {HEAD[:12]} of 2026-11-17", "")
            if days == 14
            else (
                "outdated",
                "HEAD of the clone is of 2026-11-16, more than 14 days ago: fetch upstream's main first",
                f"nox -s drift -- --mlx PATH{rehearsal.where}",
            )
        )


def test_a_head_that_no_remote_of_upstream_has_is_not_upstreams(here: Any, mlx: Repository) -> None:
    here.all()
    here.record(built(mlx.git("rev-parse", "HEAD")), 100)
    here.status("pr")
    git = f"git -C {mlx.path}"

    def base() -> tuple[str, str, str]:
        said_of_the_branch(here, mlx)
        gate = next(gate for gate in here.status("pr") if gate.name == "base")
        return gate.code, gate.why, gate.fix

    drift = f"nox -s drift -- --mlx PATH{here.where}"
    assert base()[0] == "ok"
    mlx.git("symbolic-ref", "--delete", "refs/remotes/origin/main")
    assert base() == ("unknown", "the clone has not fetched origin/main", f"{git} fetch origin, then {drift}")
    mlx.git("update-ref", "refs/remotes/origin/main", "HEAD")
    assert base()[0] == "ok"
    mlx.commit({"README.md": "of my own\n"})
    mine = f"{git} fetch origin && {git} switch --detach origin/main"
    assert base() == ("unknown", "HEAD of the clone is not origin/main", f"{mine}, then {drift}")
    mlx.git("remote", "set-url", "origin", "https://github.com/someone/mlx")
    add = f"{git} remote add upstream https://github.com/ml-explore/mlx && {git} fetch upstream"
    why = "no remote of the clone is ml-explore/mlx, so nobody can know whether its HEAD is upstream's"
    assert base() == ("unknown", why, f"{add}, then {drift}")
