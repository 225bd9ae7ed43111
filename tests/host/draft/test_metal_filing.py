"""The Metal drafts filed beside CUDA's from one folder, and what the verbs say of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract.fake_github import FakeGitHub
from tests.contract.people import Scripted
from tests.host.draft import metal_records
from tests.host.draft.conftest import BASE, NOW, upstream
from tests.host.draft.metal_records import WORDS, draft
from tests.host.draft.test_verbs import where
from tests.host.series.conftest import Repository, standin
from tests.host.series.test_style import HOOKS
from upstream_patch import cli, github
from upstream_patch.draft import gates, inputs
from upstream_patch.draft.contributions import CUDA, METAL, Contribution
from upstream_patch.draft.documents import METAL_ISSUE, METAL_PR
from upstream_patch.draft.inputs import Filed, Upstream
from upstream_patch.errors import UserError
from upstream_patch.filing import duplicates
from upstream_patch.filing.desk import Desk
from upstream_patch.github import GitHub
from upstream_patch.series import load

Call = Callable[..., tuple[int, str, str]]
MLX = "ml-explore/mlx"


@pytest.mark.needs_contract
def test_both_are_filed_from_one_folder_and_nothing_is_taken_for_the_other(
    mac: Any, fake: FakeGitHub, client: GitHub
) -> None:
    clock = github.Clock(fake.clock.now, fake.clock.sleep)

    def desk(about: Contribution) -> Desk:
        return Desk(mac.work, mac.evidence, client, Scripted(MLX, lambda: None), clock, contribution=about)

    mac.others()
    mac.draft("issue")
    mac.fill("issue")
    duplicates.search("issue", mac.work, client, clock)
    assert desk(CUDA).issue().number == 3765

    draft(mac, METAL_ISSUE, fill=True)
    _, found = duplicates.search("issue", mac.work, client, clock, about=METAL)
    assert [search.query for search in found.searches[::2]] == list(METAL.queries)
    assert desk(METAL).issue().number == 3766

    metal_records.built(mac.evidence, BASE)
    inputs.write(mac.work, "upstream_metal", upstream(series_sha256=metal_records.SERIES))
    draft(mac, METAL_PR, fill=True)
    duplicates.search("pr", mac.work, client, clock, about=METAL)
    with pytest.raises(gates.GateClosed, match="pr: benchmarks is red: no record times today's host code"):
        desk(METAL).pull("small-m")
    gates.excuse("pr", "benchmarks", "both builds timed by hand, as the text says", mac.work, mac.evidence, NOW, METAL)
    assert desk(METAL).pull("small-m").number == 3767
    with pytest.raises(UserError, match="no link-back for metal: no thread downstream is known"):
        desk(METAL).link()

    filed = [entry for entry in fake.repos[MLX].entries if entry.number > 3764]
    assert [(entry.title, entry.body.rstrip().splitlines()[-1]) for entry in filed] == [
        (f"[BUG] {mac.words['issue']['title']}", "<!-- change-id: cuda-small-m-issue-1 -->"),
        (f"[BUG] {WORDS['issue']['title']}", "<!-- change-id: metal-qmm-t-nax-issue-1 -->"),
        (WORDS["pr"]["title"], "<!-- change-id: metal-qmm-t-nax-pr-1 -->"),
    ]
    assert "\nRefs #3766\n" in filed[2].body
    numbers = {
        name: [link.number for link in (links.issue, links.pr) if link]
        for name in ("filed", "filed_metal")
        if (links := inputs.read(mac.work, name, Filed))
    }
    assert numbers == {"filed": [3765], "filed_metal": [3766, 3767]}
    receipts = (mac.work.parent / "receipts").rglob("ml-explore__mlx/*")
    assert sorted(path.name for path in receipts) == [
        *("cuda-small-m-issue-1", "metal-qmm-t-nax-issue-1", "metal-qmm-t-nax-pr-1"),
    ]
    assert sorted(path.name for path in mac.work.glob("*.md")) == [
        *("issue_cuda_small_m.md", "issue_metal_qmm_t_nax.md", "pr_metal_qmm_t_nax.md"),
    ]
    assert not [entry.body for entry in filed if "TODO" in entry.body]


def test_drift_compares_the_series_of_its_contribution(rehearsal: Any, tmp_path: Path, call: Call) -> None:
    folder = tmp_path / "mlx"
    folder.mkdir()
    mlx = Repository(folder)
    mlx.git("init", "--quiet", "--initial-branch=main")
    head = mlx.commit({**standin([load("metal")]), ".pre-commit-config.yaml": HOOKS}, "base")
    mlx.git("tag", "v0.32.4")
    code, _, err = call("series", "drift", "metal", "--mlx", str(folder), "--contribution", "metal")
    assert (code, err) == (0, "")
    found = inputs.read(rehearsal.work, "upstream_metal", Upstream)
    assert found is not None
    assert (found.series_sha256, found.head_commit, found.applies) == (metal_records.SERIES, head, True)
    assert not inputs.path(rehearsal.work, "upstream").exists()


@pytest.fixture
def call(rehearsal: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: str) -> tuple[int, str, str]:
        folders = ("--out", str(rehearsal.work.parent), "--evidence", str(rehearsal.evidence))
        monkeypatch.setattr("sys.argv", ["upstream-patch", *arguments, *folders])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_a_draft_names_the_next_verb_with_its_contribution(rehearsal: Any, call: Call) -> None:
    for document in (METAL_ISSUE, METAL_PR):
        code, out, _ = call("draft", document.name, "--contribution", "metal")
        path = rehearsal.work / document.file
        words = len(document.required)
        lacks = f"{len(document.open_holes(path)) - words} values wait for a record or a filing"
        then = f"upstream-patch status {document.name} --contribution metal{where(rehearsal)}"
        assert (code, out) == (0, f"{path}: {words} holes are open, for a person, {lacks}; next: {then}\n")
    code, out, _ = call("status", "--contribution", "metal", "--json")
    assert code == 0 and set(re.findall(r'"draft": "([\w-]+)"', out)) == {"issue", "pr"}
    code, out, _ = call("draft", "claims", "pr", "--contribution", "metal")
    assert (code, out) == (0, f"every number is a fact within its rounding; next: {then}\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("draft", "docs", "--contribution", "metal"),
            "no docs for metal: the note in the downstream doc is about CUDA",
        ),
        (
            ("draft", "link-back", "--contribution", "metal"),
            "no link-back for metal: no thread downstream is known that",
        ),
        (("link", "--contribution", "metal"), "no link-back for metal: no thread downstream is known that"),
        (("draft", "issue", "--contribution", "vulkan"), "no contribution vulkan: cuda, metal"),
        (
            ("status", "docs", "--contribution", "metal"),
            "no docs for metal: the note in the downstream doc is about CUDA",
        ),
    ],
)
def test_what_there_is_none_of_is_refused_in_a_line(
    rehearsal: Any, call: Call, words: tuple[str, ...], told: str
) -> None:
    code, out, err = call(*words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith(f"error: {told}")
    assert not rehearsal.work.exists()
