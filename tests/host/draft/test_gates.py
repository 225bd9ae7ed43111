"""From records to green gates; and each gate broken, with its own word and code."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from upstream_patch.draft import gates, inputs, rules
from upstream_patch.draft.commands import folders
from upstream_patch.draft.documents import DOCUMENTS
from upstream_patch.draft.gates import CODES, FOR, GateClosed, Outcome
from upstream_patch.draft.inputs import Cell, Filed, Link, SuiteRun
from upstream_patch.errors import UserError

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


def test_from_records_to_green_gates(rehearsal: Any) -> None:
    rehearsal.all()
    shown = rehearsal.status()
    assert [gate for gate in shown if not gate.open] == []
    assert [(gate.draft, gate.name) for gate in shown] == [(draft, name) for draft in FOR for name in FOR[draft]]
    for draft in FOR:
        ready = rehearsal.ready(draft)
        assert not re.search(r"TODO|HOLE|FACTS|<!--", ready.body)
        for hole, words in rehearsal.words[draft].items():
            assert (words.partition(" <!--")[0] in ready.body) == (hole != "title")
    assert rehearsal.ready("issue").title == f"[BUG] {rehearsal.words['issue']['title']}"
    assert rehearsal.ready("pr").title == rehearsal.words["pr"]["title"]
    assert "\nRefs #4700\n" in rehearsal.ready("pr").body
    assert "- pull request: https://github.com/ml-explore/mlx/pull/4701\n" in rehearsal.ready("link-back").body
    assert "| 4 | 40.5 | 70.5 |" in rehearsal.ready("docs").body


def test_drafting_again_changes_nothing(rehearsal: Any) -> None:
    rehearsal.all()
    for draft in FOR:
        before = (rehearsal.work / DOCUMENTS[draft].file).read_bytes()
        assert rehearsal.draft(draft).read_bytes() == before


FASTER = Cell(problem="4096x4096.b4.g64.bf16.M7", base_us=70.0, patched_us=10.0, verdict="FASTER", record="a.json")
Break = Callable[[Any], None]


def words(draft: str, hole: str, new: str) -> Break:
    return lambda here: here.change(draft, here.words[draft][hole], new)


def series(**changes: Any) -> Break:
    """Another proof of the series, and the draft renewed after it."""

    def breaks(here: Any) -> None:
        inputs.write(here.work, "series", here.proof(**changes))
        here.draft("pr")

    return breaks


def upstream(**changes: Any) -> Break:
    def breaks(here: Any) -> None:
        inputs.write(here.work, "upstream", here.upstream(**changes))

    return breaks


def lost(name: str) -> Break:
    def breaks(here: Any) -> None:
        inputs.path(here.work, name).unlink()
        here.draft("pr")

    return breaks


def hits_unnamed(here: Any) -> None:
    here.change("issue", "#3764", "another one")


def no_stock(here: Any) -> None:
    for path in (here.evidence / "records").rglob("*-bench-*.json"):
        path.unlink()
    here.draft("issue")


def filed_since(here: Any) -> None:
    inputs.write(here.work, "filed", Filed(issue=Link(number=9, url="x")))


def rules_changed(here: Any) -> None:
    found = inputs.read(here.work, rules.NAME, rules.Readings)
    assert found is not None
    newer = found.seen.model_copy(update={"files": found.seen.files | {"CONTRIBUTING.md": "5" * 64}})
    inputs.write(here.work, rules.NAME, found.model_copy(update={"seen": newer}))


def days_later(here: Any) -> None:
    found = inputs.read(here.work, rules.NAME, rules.Readings)
    assert found is not None
    older = found.seen.model_copy(update={"read": NOW - timedelta(days=8)})
    inputs.write(here.work, rules.NAME, found.model_copy(update={"seen": older}))


test = "test_qmm_few_rows"
BROKEN: tuple[tuple[str, str, Break, str], ...] = (
    (
        "issue",
        "drafted",
        lambda here: (here.work / "issue_cuda_small_m.md").unlink(),
        "there is no .*: upstream-patch draft issue",
    ),
    ("issue", "drafted", lambda here: here.change("issue", "| 70.0 |", "| 7.0 |"), "stock_time was edited by hand"),
    (
        "pr",
        "drafted",
        filed_since,
        "what was filed or built, changed since it was drafted",
    ),
    ("issue", "holes", words("issue", "context", "TODO"), r"open: context \(line \d+\): fill the holes in "),
    ("pr", "holes", lost("filed"), r"1 value waits for a record or a filing, line \d+ first: no issue is filed"),
    ("issue", "disclosure", words("issue", "disclosure", "All of it is mine."), "does not say how AI was used"),
    (
        "issue",
        "claims",
        words("issue", "expected", "An H200 takes 9.0 us."),
        r"line \d+: '9.0 us' is no fact; nearest: ncu.h200.4096x4096",
    ),
    ("issue", "benchmarks", no_stock, "no record times stock and ours: nox -s bench"),
    ("pr", "benchmarks", series(affected=()), "no record times today's host code of the series in MLX: nox -s wheel"),
    ("pr", "benchmarks", lost("series"), "MLX was not built with the series: nox -s build"),
    (
        "pr",
        "benchmarks",
        series(kernel_hashes={"small_m": "0" * 64}),
        "the kernel small_m changed since",
    ),
    (
        "pr",
        "tests",
        series(base=SuiteRun(command="t", ran=9, failed=())),
        "does not fail on the base",
    ),
    (
        "pr",
        "tests",
        series(patched=SuiteRun(command="t", ran=9, failed=(test,))),
        "does not pass with",
    ),
    ("pr", "tests", series(patched=SuiteRun(command="t", ran=0, failed=())), "a build was not tested"),
    (
        "pr",
        "tests",
        series(patched=SuiteRun(command="t", ran=9, failed=("test_qmv",))),
        "test_qmv fails with the series and not on the base",
    ),
    ("pr", "tests", series(new_tests=()), "the series has no new test"),
    ("pr", "tests", series(guards=(test,)), "the series has no new test"),
    (
        "pr",
        "tests",
        series(
            new_tests=(test, "test_kept"),
            guards=("test_kept",),
            base=SuiteRun(command="t", ran=9, failed=(test, "test_kept", "test_known")),
        ),
        "test_kept guards the base, and fails there",
    ),
    ("pr", "formatting", series(tree="4" * 40), "the bytes that were built are not those that are sent: install the"),
    ("pr", "benchmarks", series(series_sha256="6" * 64), "not of today's series: the text of the series changed since"),
    ("pr", "base", upstream(applies=False), "does not apply to 222222222222: correct what upstream-patch series check"),
    ("pr", "unaffected", series(unaffected=(FASTER,)), r"M7 is FASTER \(a.json\): nox -s bench -- --suite boundary"),
    ("pr", "formatting", upstream(unformatted="no clang-format"), "no clang-format: see to it, then nox -s drift"),
    ("issue", "duplicates", lost("duplicates_issue"), "nobody has searched for duplicates: upstream-patch duplicates"),
    ("issue", "duplicates", hits_unnamed, r"1 hits are not named, first #3764 \(closed: qmv_wide\)"),
    (
        "issue",
        "duplicates",
        words("issue", "title", "Another title"),
        "the title changed since duplicates were searched",
    ),
    ("issue", "rules", lost("rules"), "nobody has read upstream's rules at first hand: upstream-patch rules refresh"),
    ("issue", "rules", rules_changed, "upstream's rules changed since they were read: CONTRIBUTING.md"),
    ("issue", "rules", days_later, "last looked at 8 days ago"),
    (
        "issue",
        "size",
        words("issue", "context", "word #3764 " + "o" * 70_000),
        "characters with the hidden marker, GitHub takes 65,536",
    ),
    (
        "issue",
        "mentions",
        words("issue", "context", "See #3764, @someone and a@b.c and `@code`."),
        "it would notify @someone: ",
    ),
    ("pr", "base", upstream(touched=("qmm.h",)), "upstream changed qmm.h since 111111111111"),
    ("pr", "base", upstream(checked=NOW - timedelta(hours=30)), "compared 30 hours ago"),
    ("pr", "formatting", upstream(series_sha256="6" * 64), "another series was laid out than the one that was built"),
    ("pr", "base", upstream(base_commit="6" * 40), "another base or series was compared"),
    (
        "pr",
        "branch",
        upstream(branch=None, branch_fault="x has no commit of yours yet"),
        "x has no commit of yours yet: commit what series apply made, in your own words, then nox -s drift",
    ),
)


@pytest.mark.parametrize(
    ("draft", "name", "breaks", "says"), BROKEN, ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_gate_refuses_with_its_own_message_and_code(
    rehearsal: Any, draft: str, name: str, breaks: Break, says: str
) -> None:
    rehearsal.all()
    before = {gate.name: gate.content_hash for gate in rehearsal.status(draft)}
    breaks(rehearsal)
    closed = {gate.name: gate for gate in rehearsal.status(draft) if not gate.open}
    with pytest.raises(GateClosed, match=says) as refused:
        rehearsal.ready(draft)
    assert refused.value.gate == closed[name]
    assert (refused.value.exit_code, refused.value.gate.outcome) == (CODES[name], Outcome.RED)
    assert refused.value.gate.content_hash != before[name]


def test_every_gate_is_broken_once_and_has_a_code_of_its_own() -> None:
    assert {name for _, name, _, _ in BROKEN} == set(CODES)
    assert len(set(CODES.values())) == len(CODES)


def test_an_excuse_holds_for_its_content_only(rehearsal: Any) -> None:
    rehearsal.all()
    words("issue", "expected", "Downstream reports 74.2 tok/s.")(rehearsal)
    with pytest.raises(UserError, match=r"claims is green and needs no excuse"):
        gates.excuse("pr", "claims", "x", rehearsal.work, rehearsal.evidence, NOW)
    with pytest.raises(UserError, match="an excuse needs a reason"):
        gates.excuse("issue", "claims", " ", rehearsal.work, rehearsal.evidence, NOW)
    gates.excuse("issue", "claims", "their own number,\nquoted", rehearsal.work, rehearsal.evidence, NOW)
    claims = next(gate for gate in rehearsal.status("issue") if gate.name == "claims")
    assert claims.outcome is Outcome.EXCUSED and claims.why.endswith("; excused: their own number, quoted")
    hashed = rehearsal.ready("issue").content_hash
    rehearsal.change("issue", "74.2", "74.3")
    claims = next(gate for gate in rehearsal.status("issue") if gate.name == "claims")
    assert claims.outcome is Outcome.STALE and "the excuse of 2026-12-01 was for other content" in claims.why
    with pytest.raises(GateClosed):
        rehearsal.ready("issue")
    rehearsal.change("issue", "74.3", "74.2")
    assert rehearsal.ready("issue").content_hash == hashed


@pytest.mark.parametrize("name", ["holes", "disclosure", "rules", "size", "mentions", "drafted"])
def test_no_excuse_opens_what_upstream_asks_of_a_person(rehearsal: Any, name: str) -> None:
    rehearsal.draft("issue")
    words("issue", "title", "x")  # nothing is filled
    rehearsal.change("issue", "TODO(person): context", "@someone " * 9000)
    rehearsal.change("issue", "| 70.0 |", "| 71.0 |")
    assert {gate.name for gate in rehearsal.status("issue") if not gate.open} >= {name}
    with pytest.raises(UserError, match=f"the gate {name} takes no excuse"):
        gates.excuse("issue", name, "because", rehearsal.work, rehearsal.evidence, NOW)


def test_an_input_of_another_form_is_one_line_with_the_way_out(rehearsal: Any) -> None:
    rehearsal.all()
    inputs.path(rehearsal.work, "series").write_text('{"base_commit": "short"}')
    with pytest.raises(UserError, match=r"series.json: record: .*: remove it and run the verb that writes it again"):
        rehearsal.status("pr")


def test_every_way_out_names_the_folders_in_use(rehearsal: Any) -> None:
    rehearsal.all()
    rehearsal.change("issue", "70.0 us at M = 7", "71 us at M = 7")
    for name in ("upstream", "rules", "duplicates_issue", "filed"):
        inputs.path(rehearsal.work, name).unlink()
    (rehearsal.work / DOCUMENTS["link-back"].file).unlink()
    shown = rehearsal.status("issue", "pr", "link-back")
    at, out = rehearsal.where, folders(rehearsal.work.parent)
    told = {f"{gate.draft} {gate.name}": gate.fix for gate in shown if re.search("upstream-patch|drift", gate.fix)}
    drift = f"nox -s drift -- --mlx PATH{at}"
    assert told == {
        "issue claims": f"upstream-patch draft claims issue{at} lists them; correct the words, put "
        "<!-- fact ID --> behind what is right, or excuse them",
        "issue duplicates": f"upstream-patch duplicates issue{out}",
        "issue rules": f"upstream-patch rules refresh --mlx PATH{out}",
        "pr drafted": f"upstream-patch draft pr{at}",
        "pr formatting": drift,
        "pr base": drift,
        "pr branch": drift,
        "pr rules": f"upstream-patch rules refresh --mlx PATH{out}",
        "link-back drafted": f"upstream-patch draft link-back{at}",
    }
