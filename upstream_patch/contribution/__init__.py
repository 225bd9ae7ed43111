"""The main job: one chain of stages from doctor to drafts, and the summary at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from upstream_patch.contribution.chain import Context, Outcome, Result, Stage, run_chain
from upstream_patch.contribution.stages import STAGES
from upstream_patch.contribution.summary import show_summary
from upstream_patch.files import write_text

__all__ = [
    "STAGES",
    "STAGES_FILE",
    "Context",
    "Outcome",
    "Result",
    "Stage",
    "contribution",
    "run_chain",
    "show_summary",
]

STAGES_FILE = "stages.json"
"""In the folder of drafts: how each stage of the last run ended, for the page of a workflow's job."""


def contribution(context: Context, stages: Sequence[Stage] | None = None) -> int:
    """Run every stage, show the summary, and return the exit code: 1 when a stage failed, else 0."""
    stages = STAGES if stages is None else stages
    results = run_chain(stages, context)
    _keep(results, context)
    show_summary(stages, results, context)
    return int(any(result.outcome is Outcome.FAILED for result in results.values()))


def _keep(results: Mapping[str, Result], context: Context) -> None:
    lines = [
        {"stage": name, "outcome": result.outcome.value, "detail": result.detail} for name, result in results.items()
    ]
    write_text(context.out / STAGES_FILE, json.dumps(lines, indent=1) + "\n")
