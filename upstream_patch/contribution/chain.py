"""What a stage is, and how a chain of them runs."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from rich.console import Console

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.files import write_text
from upstream_patch.records.store import EVIDENCE, Root


class Outcome(Enum):
    """How a stage ended; the value is the word that the summary shows."""

    RAN = "ran here"
    RECORDS = "rests on records"
    SKIPPED = "skipped"
    FAILED = "FAILED"


@dataclass(frozen=True)
class Result:
    outcome: Outcome
    detail: str
    """What came out, or why nothing did."""
    way_out: str | None = None
    """The command or step that would change it."""


@dataclass(frozen=True)
class Context:
    """Where the chain reads and writes, and where it talks to."""

    evidence: Root = EVIDENCE
    out: Path = Path("out")
    console: Console = field(default_factory=Console)
    command: str = "python -m upstream_patch contribution"
    suite: str = "small-m"
    mlx: str | None = None
    """A checkout of MLX, or the address of one, for the build stage."""


@dataclass(frozen=True)
class Stage:
    """One step of the chain. ``run`` may raise: MissingTool skips the stage, anything else fails it."""

    name: str
    run: Callable[[Context], Result]
    needs: tuple[str, ...] = ()
    """Stages that must not have failed."""


def run_chain(stages: Sequence[Stage], context: Context) -> dict[str, Result]:
    """Run the stages in order. A failed one stops only those that need it, directly or not."""
    results: dict[str, Result] = {}
    blocked: dict[str, str] = {}
    for number, stage in enumerate(stages, 1):
        context.console.rule(f"[bold]{number}/{len(stages)} {stage.name}", align="left", style="dim")
        culprit = next((blocked[need] for need in stage.needs if need in blocked), None)
        if culprit is not None:
            blocked[stage.name] = culprit
            results[stage.name] = Result(Outcome.SKIPPED, f"needs {culprit}, which failed")
        else:
            results[stage.name] = _run(stage, context)
            if results[stage.name].outcome is Outcome.FAILED:
                blocked[stage.name] = stage.name
        result = results[stage.name]
        context.console.print(f"{result.outcome.value}: {result.detail}", highlight=False, markup=False)
    return results


def _run(stage: Stage, context: Context) -> Result:
    try:
        return stage.run(context)
    except MissingTool as error:
        return Result(Outcome.SKIPPED, error.what, error.fix)
    except UserError as error:
        return Result(Outcome.FAILED, str(error))
    except Exception as error:
        # A fault of ours, not the person's: keep the traceback for the report, and let the other stages run.
        said = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        log = context.out / f"{stage.name.replace(' ', '-')}.traceback.txt"
        try:
            write_text(log, traceback.format_exc())
        except OSError as unwritten:
            return Result(Outcome.FAILED, said, f"its traceback could not be kept ({unwritten})")
        return Result(Outcome.FAILED, said, f"traceback in {log}")
