"""The main job: one chain of stages from doctor to drafts, and the summary at its end."""

from __future__ import annotations

from collections.abc import Sequence

from upstream_patch.contribution.chain import Context, Outcome, Result, Stage, run_chain
from upstream_patch.contribution.stages import STAGES
from upstream_patch.contribution.summary import show_summary

__all__ = ["STAGES", "Context", "Outcome", "Result", "Stage", "contribution", "run_chain", "show_summary"]


def contribution(context: Context, stages: Sequence[Stage] | None = None) -> int:
    """Run every stage, show the summary, and return the exit code: 1 when a stage failed, else 0."""
    stages = STAGES if stages is None else stages
    results = run_chain(stages, context)
    show_summary(stages, results, context)
    return int(any(result.outcome is Outcome.FAILED for result in results.values()))
