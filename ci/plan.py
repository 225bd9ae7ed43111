"""The matrix of a workflow's hosted jobs, and whether all of them passed."""

from __future__ import annotations

import json

from ci.machines import LEGS, MINUTES, SETUP_MINUTES
from upstream_patch.errors import UserError


def matrix(workflow: str) -> dict[str, list[dict[str, str | int]]]:
    """As ``strategy.matrix`` takes it: one entry a job, with the session's limit and the job's."""
    if workflow not in LEGS:
        raise UserError(f"no matrix for {workflow!r}: there is one for {', '.join(LEGS)}")
    return {
        "include": [
            {
                "name": f"{session}, {leg.name}",
                "runner": leg.runner,
                "python": leg.python,
                "session": session,
                "minutes": MINUTES[session],
                "job_minutes": MINUTES[session] + SETUP_MINUTES,
            }
            for leg in LEGS[workflow]
            for session in leg.sessions
        ]
    }


def require_success(needs: str) -> None:
    """``needs`` is GitHub's own context as JSON. Raises UserError where a job did not succeed, or was skipped."""
    try:
        results = {name: job["result"] for name, job in json.loads(needs or "{}").items()}
    except (ValueError, AttributeError, KeyError, TypeError):
        raise UserError("$NEEDS is not what GitHub says of the jobs before") from None
    wrong = [f"{name}: {result}" for name, result in results.items() if result != "success"]
    if wrong or not results:
        raise UserError(f"not passed: {', '.join(wrong) or 'no job was asked for'}")
