"""The main job's decode stage is the verb, in a process whose MLX has its own graph limits."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from upstream_patch import recording
from upstream_patch.contribution.chain import Context, Outcome, Result, run_chain
from upstream_patch.contribution.stages import STAGES
from upstream_patch.measure import graphs

pytestmark = pytest.mark.needs_decode
LIMIT = "MLX_MAX_OPS_PER_BUFFER"


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """A context, for a stage that starts ``child`` of the folder in the place of Python."""
    for name in graphs.LIMITS:
        monkeypatch.setenv(name, "")  # so that what is set below is taken back, too
        monkeypatch.delenv(name)
    monkeypatch.setattr(graphs, "_raised", set())
    monkeypatch.setattr(recording, "require_cuda", lambda: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "child"))
    graphs.one_graph_a_sample()
    assert os.environ[LIMIT] == graphs.LIMITS[LIMIT]
    return Context(evidence=tmp_path / "evidence", out=tmp_path / "out")


def decoded(context: Context, script: str) -> Result:
    child = context.out.parent / "child"
    child.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    child.chmod(0o755)
    return run_chain([each for each in STAGES if each.name == "decode"], context)["decode"]


def test_it_runs_with_mlx_s_own_limits_and_tells_what_was_stored(
    stage: Context, capfd: pytest.CaptureFixture[str]
) -> None:
    script = (
        f'echo "$@ limit=${LIMIT}." > {stage.out.parent}/asked; echo "decode: 1 of 18" >&2; echo "18 rows: a/b.json"'
    )
    assert decoded(stage, script) == Result(Outcome.RAN, "18 rows: a/b.json")
    asked = (stage.out.parent / "asked").read_text(encoding="utf-8").strip()
    assert asked == f"-m upstream_patch decode --evidence {stage.evidence} --out {stage.out} limit=."
    assert capfd.readouterr().err == "decode: 1 of 18\n", "what it says is passed on"


@pytest.mark.parametrize(
    ("script", "result"),
    [
        ("echo 'error: WRONG: ours' >&2; exit 2", Result(Outcome.FAILED, "WRONG: ours")),
        ("kill -9 $$", Result(Outcome.FAILED, "it ended with code -9 and no word")),
        (
            "echo 'error: no CUPTI: get it' >&2; exit 3",
            Result(Outcome.SKIPPED, "no CUPTI; no committed record either", "get it"),
        ),
    ],
)
def test_its_failure_is_the_stage_s(stage: Context, script: str, result: Result) -> None:
    assert decoded(stage, script) == result
