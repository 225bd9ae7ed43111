"""The comments that the person who commits finds in the message's file: facts, and what MLX asks for. No prose."""

from __future__ import annotations

import re
from collections.abc import Sequence

from upstream_patch.records.facts import Fact
from upstream_patch.series.model import Contribution
from upstream_patch.series.planning import Plan

_SPEEDUP = re.compile(r"small_m\.\w+\.\d+x\d+\.b4\.g64\.bf16\.M\d+\.speedup")


def measured(facts: Sequence[Fact]) -> list[str]:
    """The usual format's speedups, a line each; nothing that was measured on another kernel than today's."""
    return [
        f"{fact.id} {fact.value:.2f} ({fact.record_path})"
        for fact in facts
        if _SPEEDUP.fullmatch(fact.id) and isinstance(fact.value, float) and not fact.stale
    ]


def message(contributions: Sequence[Contribution], base: str, planned: Plan, facts: Sequence[Fact] = ()) -> str:
    """Every line but the first is a comment; the first is for the person. ``facts`` are about the CUDA kernel."""
    lines = [
        "MLX prohibits commit messages that an AI wrote: write this one yourself; git drops lines that begin with #.",
        f"Base: {base} (the series was made for {contributions[0].base.tag})",
        "",
    ]
    for contribution in contributions:
        lines += [f"{contribution.name}: {contribution.title}"]
        lines += [f"  new   {file.path}" for file in contribution.files]
        lines += [f"  edit  {edit.file} ({edit.name}): {' '.join(edit.reason.split())}" for edit in contribution.edits]
        lines += [""]
    moved = [item for item in planned.items if item.line is not None and item.state.value == "moved"]
    lines += [f"{len(planned.changed)} files change, {len(planned.new)} of them new; {len(moved)} anchors have moved"]
    if any(contribution.name == "cuda" for contribution in contributions):
        lines += ["", *measured(facts), ""]
    lines += ["More numbers: python -m upstream_patch facts. Disclose AI-assisted code in the pull request."]
    return "\n" + "".join(f"# {line}".rstrip() + "\n" for line in lines)
