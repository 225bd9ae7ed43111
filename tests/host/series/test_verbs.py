"""The verbs as a person meets them, one after the other; and the build stage of the chain."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from upstream_patch import recording
from upstream_patch.cli.series import app
from upstream_patch.contribution import Context, stages
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.recording import Stored, record_build
from upstream_patch.series import load, wheel
from upstream_patch.series.checkout import Checkout, open_or_clone

CHANGES = [load(name) for name in ("folding", "cuda", "metal")]


@pytest.fixture
def repository(
    make_repository: Any, make_standin: Any, tmp_path: Path, person: None, monkeypatch: pytest.MonkeyPatch
) -> Any:
    monkeypatch.setenv("COLUMNS", "220")
    monkeypatch.chdir(tmp_path)
    return make_repository(tmp_path / "mlx", make_standin(CHANGES))


def say(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    if isinstance(result.exception, UserError):
        assert code == result.exception.exit_code, result.exception
        return str(result.exception)
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def test_from_check_to_what_was_sent(repository: Any, tmp_path: Path) -> None:
    mlx = ("--mlx", str(repository.path))
    before = repository.state()
    assert "conflict" not in say("check", *mlx, "metal")
    applied = say("apply", *mlx, "metal")
    assert f"{tmp_path / 'mlx-metal'}: 6 files changed on branch upstream-patch/metal, nothing is committed" in applied
    assert "not formatted: the checkout names no clang-format" in applied
    assert f"git -C {tmp_path / 'mlx-metal'} add --all && git -c 'core.commentChar=#' -C " in applied
    assert f"upstream-patch series drift --mlx {tmp_path / 'mlx'} --contribution metal, which lets" in applied
    say("unapply", *mlx, "metal")
    assert repository.state() == before

    rows = json.loads(say("status", *mlx, "--json"))
    assert {row["state"] for row in rows} == {"applies", "moved"}
    assert {row["proof"] for row in rows} == {f"checkout {repository.git('rev-parse', 'HEAD')[:12]}"}

    assert "v1 of cuda on" in say("export", "cuda", *mlx)
    assert "v1 of cuda on" in say("export", "cuda", *mlx)
    repository.commit({"other.txt": "more\n"})
    assert "v2 of cuda on" in say("export", "cuda", *mlx)
    assert say("compare", "cuda", "1", "2", *mlx).startswith("1:")
    noted = say("sent", "cuda", "2", "--url", "https://example.invalid/pull/1", *mlx)
    assert noted.strip() == "evidence/sent/cuda-v2.json"
    assert "cuda v2 on" in say("history")
    assert "is there already: what was sent is never changed" in say(
        "sent", "cuda", "2", "--url", "https://example.invalid/pull/2", *mlx, code=2
    )


@pytest.mark.parametrize("width", [80, 120])
def test_status_names_every_file_whole_and_an_edit_takes_one_line(
    repository: Any, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = [line.rstrip() for line in say("status", "--mlx", str(repository.path)).splitlines()]
    rows = json.loads(say("status", "--mlx", str(repository.path), "--json"))
    assert max(map(len, lines)) <= width
    assert [line for line in lines if not line.startswith(" ")] == ["cuda", "folding", "metal"]
    files = dict.fromkeys((row["contribution"], row["file"]) for row in rows)
    assert [line[2:] for line in lines if line.startswith("  ") and line[2] != " "] == [file for _, file in files]
    shown = [line.split() for line in lines if line.startswith("    ")]
    assert shown == [[row["name"], row["state"], *row["detail"].split(), *f"({row['proof']})".split()] for row in rows]


def test_a_conflict_is_shown_with_the_commits_that_made_it_and_is_not_zero(repository: Any) -> None:
    path = "mlx/backend/metal/kernels/quantized_nax.h"
    repository.commit({path: "nothing\n"}, "Rewrite NAX")
    mlx = ("--mlx", str(repository.path))
    shown = say("check", *mlx, "metal", code=1)
    assert f"{path}: 1 commits since v0.32.4" in shown
    assert "Rewrite NAX" in shown
    assert "upstream went another way" in say("drift", *mlx, code=2)
    assert "no contribution vulkan; known: cuda, folding, metal" in say("check", *mlx, "vulkan", code=2)


def test_a_rival_of_the_same_name_is_a_conflict_for_drift_as_it_is_for_check(repository: Any) -> None:
    repository.commit({"mlx/backend/cuda/quantized/qmm/qmm_small_m.cpp": "void qmm_small_m();\n"}, "Ours is better")
    mlx = ("--mlx", str(repository.path), "cuda")
    say("check", *mlx, code=1)
    told = say("drift", *mlx, code=2)
    assert "qmm_small_m.cpp is there, with another text (1 conflicts in all)" in told
    assert told.endswith("upstream has a change like cuda, see above")


@pytest.mark.parametrize("verb", ["check", "apply", "unapply", "status", "drift"])
def test_a_contribution_is_named_once(verb: str, repository: Any) -> None:
    before = repository.state()
    told = "cuda is named twice: name each contribution once"
    assert say(verb, "--mlx", str(repository.path), "cuda", "folding", "cuda", code=2) == told
    assert repository.state() == before
    with pytest.raises(UserError, match=told):
        record_build("build", str(repository.path), names=["cuda", "cuda"])


def test_the_commands_that_are_printed_work_where_paths_have_blanks(
    repository: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = tmp_path / "a folder; with $signs"
    told = say("apply", "--mlx", str(repository.path), "--into", str(into), "cuda")
    command = told.rsplit("own words: ", 1)[1].splitlines()[0]
    repository.git("config", "core.commentChar", ";")
    repository.git("config", "commit.cleanup", "verbatim")
    monkeypatch.setenv("GIT_EDITOR", "sed -i '1s/^/My words/'")
    subprocess.run(command, shell=True, check=True, capture_output=True)
    assert Checkout(into).git("log", "-1", "--format=%B").strip() == "My words"
    repository.git("checkout", "--quiet", "--detach")
    told = say("apply", "--mlx", str(repository.path), "metal", code=2)
    assert told.endswith(f"git -C {repository.path} switch -c NAME first")


def test_a_url_is_cloned_once_and_then_fetched(repository: Any, tmp_path: Path) -> None:
    url = repository.path.as_uri()
    clone = open_or_clone(url, tmp_path / "cache")
    first = clone.commit()
    newer = repository.commit({"other.txt": "more\n"})
    again = open_or_clone(url, tmp_path / "cache")
    assert again.path == clone.path
    assert (first, again.commit()) == (repository.git("rev-parse", "HEAD^"), newer)
    assert (again.branch, again.git("status", "--porcelain")) == ("main", "")
    with pytest.raises(UserError, match="is a clone of another repository"):
        open_or_clone(f"{tmp_path.as_uri()}/elsewhere/mlx", tmp_path / "cache")


def test_a_url_serves_every_apply_and_no_work_in_its_clone_is_lost(repository: Any, tmp_path: Path) -> None:
    url, cache = repository.path.as_uri(), Path("out/mlx/mlx")
    for _ in range(2):
        say("apply", "--mlx", url, "cuda")
        say("unapply", "--mlx", url, "cuda")
        repository.commit({"other.txt": "more\n"})
    repository.git("branch", "--move", "main", "trunk")  # upstream may rename its branch
    newest = repository.commit({"other.txt": "even more\n"})
    say("apply", "--mlx", url, "cuda")
    clone = Checkout(tmp_path / cache)
    assert (clone.branch, clone.commit()) == ("trunk", newest)
    (clone.path / "other.txt").write_text("mine\n")
    assert "has changes that are not committed (other.txt)" in say("check", "--mlx", url, code=2)
    mine = type(repository)(clone.path).commit({}, "Mine")
    repository.commit({"other.txt": "and more\n"})
    told = say("check", "--mlx", url, code=2)
    assert told.startswith(f"branch trunk of {cache} has commits that {url} has not")
    assert clone.commit("trunk") == mine


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(evidence=tmp_path, out=tmp_path, console=Console(file=io.StringIO()), mlx="a/clone")


def test_the_build_stage_takes_the_checkout_that_is_named(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def build(command: str, mlx: str, evidence: Any, out: Path) -> Stored:
        asked.append(mlx)
        return Stored(Path("record.json"), "built")

    monkeypatch.setattr(recording, "record_build", build)
    assert stages._host_code(context) == "built: record.json"
    assert asked == ["a/clone"]


def test_and_the_released_wheel_where_none_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(mlx: Any) -> Path:
        raise MissingTool("no g++ on PATH", "install it")

    monkeypatch.setattr(wheel, "find_mlx_library", lambda: None)
    assert "was not built: no MLX for CUDA here, and no --mlx" in stages._host_code(Context())
    monkeypatch.setattr(wheel, "find_mlx_library", lambda: wheel.MlxLibrary(Path("mlx")))
    monkeypatch.setattr(wheel, "build", no_compiler)
    assert "was not built: no g++ on PATH: install it" in stages._host_code(Context())
