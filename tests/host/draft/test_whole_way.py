"""Records -> drafts -> a person's words -> gates -> filed -> linked back -> the doc edited; and each step refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract.fake_github import FakeGitHub, Repo, Stored
from tests.contract.people import Scripted
from tests.host.draft.conftest import BASE, TREE
from tests.host.draft.test_proving import built, in_wheel, with_stock
from upstream_patch import github
from upstream_patch.draft import docs, inputs, proving
from upstream_patch.draft.gates import CODES, GateClosed
from upstream_patch.draft.inputs import Filed, Link
from upstream_patch.draft.proving import refresh
from upstream_patch.errors import UserError
from upstream_patch.filing import duplicates
from upstream_patch.filing.desk import BranchMissing, Changed, Desk
from upstream_patch.filing.person import Stopped
from upstream_patch.github import GitHub

pytestmark = pytest.mark.needs_contract
MLX, FORK = "ml-explore/mlx", "me/mlx"
DOC = (
    "# Continuous batching\n\n## Serving-throughput defaults\n\nEscape hatches.\n\n"
    "> Backend note (CUDA / Blackwell, e.g. GB10): flat.\n\nMemory sizing.\n\n## Other\n"
)
Opening = Callable[..., Desk]


@pytest.fixture
def opening(rehearsal: Any, fake: FakeGitHub, client: GitHub) -> Opening:
    clock = github.Clock(fake.clock.now, fake.clock.sleep)

    def open_desk(types: str = MLX, rehearse: str = "", before: Callable[[], object] = lambda: None) -> Desk:
        return Desk(rehearsal.work, rehearsal.evidence, client, Scripted(types, before), clock, rehearse=rehearse)

    return open_desk


def finish(rehearsal: Any, draft: str) -> None:
    rehearsal.draft(draft)
    rehearsal.fill(draft)


def outline(fake: FakeGitHub) -> str:
    """The state with each body cut to its first line and its last."""
    kept: list[str] = []
    lines = fake.story().splitlines()
    for before, line, after in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        inside = all(part.startswith("  |") for part in (before, line, after))
        if not inside:
            kept.append(line)
    return "\n".join(kept) + "\n"


def test_from_records_to_the_edited_doc(
    rehearsal: Any, synthetic: Any, fake: FakeGitHub, client: GitHub, opening: Opening, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    clock = github.Clock(fake.clock.now, fake.clock.sleep)
    rehearsal.others()
    monkeypatch.setattr(proving, "refresh", refresh)  # what the gates say of the series is of these records
    for age, record in enumerate((built(BASE, TREE), in_wheel(synthetic), with_stock(synthetic)), 100):
        rehearsal.record(record, age)

    finish(rehearsal, "issue")
    path, found = duplicates.search("issue", rehearsal.work, client, clock)
    assert path == inputs.path(rehearsal.work, "duplicates_issue")
    assert [(hit.number, hit.state) for hit in duplicates.hits(found)] == [(3764, "closed")]
    assert opening(FORK, rehearse=FORK).issue().url == f"https://github.com/{FORK}/issues/1"
    assert not inputs.path(rehearsal.work, "filed").exists()  # a rehearsal is no filing
    issue = opening().issue()
    assert (issue.number, issue.created) == (3765, True)

    finish(rehearsal, "pr")
    duplicates.search("pr", rehearsal.work, client, clock)
    assert opening(FORK, rehearse=FORK).pull("small-m").number == 2
    assert opening().pull("small-m").number == 3766

    finish(rehearsal, "link-back")
    assert opening(FORK, rehearse=FORK).link().number == 1
    assert opening("lablup/mlxcel").link().number == 725

    doc = tmp_path / "docs" / "CONTINUOUS_BATCHING.md"
    doc.parent.mkdir()
    doc.write_text(DOC, "utf-8")
    finish(rehearsal, "docs")
    docs.put(doc, rehearsal.work, rehearsal.evidence)

    words = rehearsal.words
    assert (
        outline(fake)
        == f"""\
{MLX}
  closed pull #3764 of they  -> : Metal: multirow qmv
  | qmv rows
  open issue #3765 of me: [BUG] {words["issue"]["title"]}
  | {words["issue"]["rule"]}
  | <!-- change-id: cuda-small-m-issue-1 -->
  open draft pull #3766 of me me:small-m -> main: {words["pr"]["title"]}
  | {words["pr"]["rule"]}
  | <!-- change-id: cuda-small-m-pr-1 -->
{FORK}, a fork of {MLX}
  open issue #1 of me: [BUG] {words["issue"]["title"]}
  | {words["issue"]["rule"]}
  | <!-- change-id: cuda-small-m-issue-1 -->
  open draft pull #2 of me me:small-m -> main: {words["pr"]["title"]}
  | {words["pr"]["rule"]}
  | <!-- change-id: cuda-small-m-pr-1 -->
  open comment #1 of me
  | {words["link-back"]["words"]}
  | <!-- change-id: cuda-small-m-link-back-1 -->
lablup/mlxcel
  open issue #725 of they: Small-M
  | The rows.
  open comment #725 of me
  | {words["link-back"]["words"]}
  | <!-- change-id: cuda-small-m-link-back-1 -->
"""
    )
    assert inputs.read(rehearsal.work, "filed", Filed) == Filed(
        issue=Link(number=3765, url=f"https://github.com/{MLX}/issues/3765"),
        pr=Link(number=3766, url=f"https://github.com/{MLX}/pull/3766"),
    )
    pull = next(entry for entry in fake.repos[MLX].entries if entry.number == 3766)
    assert "\nRefs #3765\n" in pull.body
    assert "\n| `test_new` | failed | passed |\n" in pull.body  # the build's record, not what others() wrote
    assert re.search(r"\| `evidence/records/h200/h200-\w+-build-\w+\.json` \|", pull.body)
    comment = fake.repos["lablup/mlxcel"].entries[-1]
    assert f"https://github.com/{MLX}/issues/3765" in comment.body
    rehearsed = fake.repos[FORK].entries[-1]
    assert f"https://github.com/{MLX}/" not in rehearsed.body
    assert "70.5 tok/s" in doc.read_text("utf-8") and "flat." not in doc.read_text("utf-8")
    assert [entry.body for repo in fake.repos.values() for entry in repo.entries if "TODO" in entry.body] == []


def test_what_was_filed_is_told_and_not_sent_again(rehearsal: Any, fake: FakeGitHub, opening: Opening) -> None:
    rehearsal.all()
    inputs.path(rehearsal.work, "filed").unlink()
    assert opening().issue().created
    inputs.path(rehearsal.work, "filed").unlink()
    assert not opening().issue().created
    filed = inputs.read(rehearsal.work, "filed", Filed)
    assert filed is not None and filed.issue is not None and filed.issue.number == 3765
    assert len([line for line in fake.log if line.startswith("POST")]) == 1


def test_the_preview_is_all_of_it(rehearsal: Any, opening: Opening) -> None:
    rehearsal.all()
    desk = opening()
    desk.pull("small-m")
    shown, question = desk.person.shown  # type: ignore[attr-defined]
    ready, marker = rehearsal.ready("pr"), "\n<!-- change-id: cuda-small-m-pr-1 -->\n"
    assert shown == (
        f"This is a draft pull request in {MLX}, as me\n"
        f"from me:small-m at {'b' * 12} into main; maintainers may push to it\n"
        f"title: {ready.title}\n"
        f"body, {len(ready.body) + len(marker):,} characters:\n\n{ready.body}{marker}"
    )
    assert question == f"Type {MLX} to send this there, anything else to stop: "


def sent_nothing(fake: FakeGitHub) -> bool:
    return not any(line.startswith("POST") for line in fake.log)


def break_disclosure(here: Any) -> None:
    here.change("issue", here.words["issue"]["disclosure"], "All of it is mine.")


BREAKS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "drafted": ("issue", lambda here: here.change("issue", "| 70.0 |", "| 7.0 |")),
    "benchmarks": ("pr", lambda here: series(here, affected=())),
    "tests": ("pr", lambda here: series(here, new_tests=())),
    "unaffected": ("pr", lambda here: series(here, unaffected=here.proof().affected)),
    "formatting": ("pr", lambda here: inputs.write(here.work, "upstream", here.upstream(unformatted="f"))),
    "base": ("pr", lambda here: inputs.write(here.work, "upstream", here.upstream(touched=("qmm.h",)))),
    "branch": ("pr", lambda here: inputs.write(here.work, "upstream", here.upstream(branch=None, branch_fault="f"))),
    "holes": ("issue", lambda here: here.change("issue", here.words["issue"]["context"], "TODO")),
    "disclosure": ("issue", break_disclosure),
    "claims": ("issue", lambda here: here.change("issue", "takes 10.0 us at M = 7,", "takes 9.0 us at M = 7,")),
    "mentions": ("issue", lambda here: here.change("issue", "I have read #3764", "With @someone I have read #3764")),
    "size": ("issue", lambda here: here.change("issue", "I have read #3764", "I have read #3764 " + "o" * 70_000)),
    "duplicates": ("issue", lambda here: inputs.path(here.work, "duplicates_issue").unlink()),
    "rules": ("issue", lambda here: inputs.path(here.work, "rules").unlink()),
}


def series(here: Any, **changes: Any) -> None:
    inputs.write(here.work, "series", here.proof(**changes))
    here.draft("pr")


@pytest.mark.parametrize("gate", CODES)
def test_a_broken_gate_sends_nothing(gate: str, rehearsal: Any, fake: FakeGitHub, opening: Opening) -> None:
    rehearsal.all()
    draft, breaks = BREAKS[gate]
    breaks(rehearsal)
    desk = opening()
    with pytest.raises(GateClosed, match=f"^{draft}: {gate} is red: ") as closed:
        desk.issue() if draft == "issue" else desk.pull("small-m")
    assert closed.value.exit_code == CODES[gate]
    assert fake.log == []  # GitHub was not even asked
    assert desk.person.shown == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("types", ["", "y", "yes", "mlx", "ml-explore/mlx ml-explore/mlx", "ML-EXPLORE/MLX", FORK])
def test_only_the_repositorys_name_sends(types: str, rehearsal: Any, fake: FakeGitHub, opening: Opening) -> None:
    rehearsal.all()
    with pytest.raises(Stopped, match="nothing was sent"):
        opening(types).issue()
    assert sent_nothing(fake)
    assert not (rehearsal.work.parent / "receipts").exists()


def test_what_changed_under_the_preview_is_not_sent(rehearsal: Any, fake: FakeGitHub, opening: Opening) -> None:
    rehearsal.all()
    desk = opening(before=lambda: rehearsal.change("issue", "I would send", "I will send"))
    with pytest.raises(Changed, match="issue changed since the preview: nothing was sent"):
        desk.issue()
    assert sent_nothing(fake)


def test_nothing_is_pushed_the_command_is_told(rehearsal: Any, fake: FakeGitHub, opening: Opening) -> None:
    rehearsal.all()
    with pytest.raises(BranchMissing) as missing:
        opening().pull("fast-rows")
    assert str(missing.value) == (
        "me/mlx has no branch fast-rows: push it yourself, from your MLX checkout: git push "
        "https://github.com/me/mlx.git fast-rows (a tool or an agent must not)"
    )
    assert sent_nothing(fake)


@pytest.mark.parametrize(
    ("fork", "told"),
    [
        (MLX, "is no fork of ml-explore/mlx that me owns"),
        ("they/mlx", "is no fork of ml-explore/mlx that me owns"),
        ("me/other", "is no fork of ml-explore/mlx that me owns"),
        ("me/closed", "takes no issue: a fork's owner switches issues on"),
        ("me/old", "is archived and takes nothing new"),
        ("me/none", "404"),
    ],
)
def test_a_rehearsal_is_in_the_persons_own_fork(
    fork: str, told: str, rehearsal: Any, fake: FakeGitHub, opening: Opening
) -> None:
    rehearsal.all()
    fake.repos["they/mlx"] = Repo("they", parent=MLX)
    fake.repos["me/other"] = Repo("me")
    fake.repos["me/closed"] = Repo("me", parent=MLX, has_issues=False)
    fake.repos["me/old"] = Repo("me", parent=MLX, archived=True)
    with pytest.raises(UserError, match=told):
        opening(fork, rehearse=fork).issue()
    assert sent_nothing(fake)


def test_a_rehearsed_comment_needs_a_rehearsed_issue(rehearsal: Any, opening: Opening) -> None:
    rehearsal.all()
    with pytest.raises(UserError, match="me/mlx has no rehearsed issue to comment on: rehearse `file issue` first"):
        opening(FORK, rehearse=FORK).link()


def test_a_search_that_is_not_whole_is_no_search(rehearsal: Any, fake: FakeGitHub, client: GitHub) -> None:
    rehearsal.all()
    before = inputs.path(rehearsal.work, "duplicates_issue").read_bytes()
    fake.repos[MLX].entries += [Stored("issue", 4000 + i, "they", "qmv rows on CUDA", "x", 0.0) for i in range(101)]
    clock = github.Clock(fake.clock.now, fake.clock.sleep)
    with pytest.raises(UserError, match="101 hits: nothing was written: give narrower words"):
        duplicates.search("issue", rehearsal.work, client, clock)
    assert inputs.path(rehearsal.work, "duplicates_issue").read_bytes() == before


def test_what_the_person_filed_is_no_duplicate_and_titles_steer_no_terminal(
    rehearsal: Any, fake: FakeGitHub, client: GitHub
) -> None:
    rehearsal.all()
    fake.repos[MLX].entries += [
        Stored("issue", 4700, "me", "qmv CUDA rows", "x", 0.0),
        Stored("issue", 4702, "they", "qmv\x1b[2J CUDA rows", "x", 0.0),
    ]
    clock = github.Clock(fake.clock.now, fake.clock.sleep)
    _, found = duplicates.search("pr", rehearsal.work, client, clock)
    assert [(hit.number, hit.title) for hit in duplicates.hits(found)] == [
        (4702, "qmv[2J CUDA rows"),
        (3764, "Metal: multirow qmv"),
    ]
    assert re.search(r"CUDA", found.searches[0].query)
