"""An excuse opens a gate for the finding that it was given for, and for no other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from upstream_patch.draft import build_checks, claims, gates, inputs
from upstream_patch.draft.gates import Outcome
from upstream_patch.draft.inputs import SuiteRun
from upstream_patch.errors import UserError

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


def gate(here: Any, name: str, draft: str = "pr", now: datetime = NOW) -> gates.Gate:
    return next(one for one in gates.status(here.work, here.evidence, (draft,), now) if one.name == name)


def excuse(here: Any, name: str, draft: str = "pr", now: datetime = NOW) -> None:
    gates.excuse(draft, name, "we know", here.work, here.evidence, now)


@pytest.mark.parametrize("name", ["base", "duplicates"])
def test_it_does_not_outlive_the_look_that_it_was_given_after(rehearsal: Any, name: str) -> None:
    rehearsal.all()
    if name == "base":
        inputs.write(rehearsal.work, "upstream", rehearsal.upstream(touched=("qmm.h",)))
    else:
        rehearsal.change("pr", "see also #3764", "nothing else")
    found = gate(rehearsal, name)
    excuse(rehearsal, name)
    assert gate(rehearsal, name).outcome is Outcome.EXCUSED
    later = gate(rehearsal, name, now=NOW + timedelta(hours=30))  # every file is what it was
    assert (later.outcome, later.code) == (Outcome.STALE, "outdated")
    assert later.why.endswith(f"30 hours ago; the excuse of 2026-12-01 was for another finding ({found.code})")
    with pytest.raises(
        UserError, match=f"{name} is red because something is outdated, which takes no excuse: renew it"
    ):
        excuse(rehearsal, name, now=NOW + timedelta(hours=30))


def test_it_does_not_cover_a_build_of_another_kernel(rehearsal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal.all()
    proof = rehearsal.proof(base=SuiteRun(command="t", ran=9, failed=()))
    inputs.write(rehearsal.work, "series", proof)
    rehearsal.draft("pr")
    excuse(rehearsal, "tests")
    assert (gate(rehearsal, "tests").outcome, gate(rehearsal, "tests").code) == (Outcome.EXCUSED, "proves-nothing")
    monkeypatch.setattr(build_checks, "_outdated", lambda proof: "the kernel small_m changed since")
    assert (gate(rehearsal, "tests").outcome, gate(rehearsal, "tests").code) == (Outcome.STALE, "outdated")
    with pytest.raises(UserError, match="tests is red because something is outdated"):
        excuse(rehearsal, "tests")


def test_it_does_not_cover_another_reading_of_the_same_words(rehearsal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal.all()
    rehearsal.change("issue", "I would send", "Downstream reports 74.2 tok/s. I would send")
    excuse(rehearsal, "claims", "issue")
    assert gate(rehearsal, "claims", "issue").outcome is Outcome.EXCUSED
    check = claims.check
    more = claims.Remark(1, "x", "is no fact", "")
    monkeypatch.setattr(claims, "check", lambda *given: [*check(*given), more])
    assert gate(rehearsal, "claims", "issue").outcome is Outcome.STALE


def test_no_reason_makes_a_stale_fact_true(rehearsal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal.all()
    stale = claims.Remark(1, "x", "is a stale fact", "", stale=True)
    monkeypatch.setattr(claims, "check", lambda *given: [stale])
    assert gate(rehearsal, "claims", "issue").code == "stale"
    with pytest.raises(UserError, match="claims is red because something is stale, which takes no excuse"):
        excuse(rehearsal, "claims", "issue")


def test_no_reason_sends_what_does_not_apply(rehearsal: Any) -> None:
    rehearsal.all()
    inputs.write(rehearsal.work, "upstream", rehearsal.upstream(applies=False))
    assert gate(rehearsal, "base").code == "does-not-apply"
    with pytest.raises(
        UserError, match=r"^base is red because the series does not apply, which takes no excuse: correct it$"
    ):
        excuse(rehearsal, "base")
    inputs.write(rehearsal.work, "upstream", rehearsal.upstream(touched=("qmm.h",)))
    excuse(rehearsal, "base")
    assert gate(rehearsal, "base").outcome is Outcome.EXCUSED
