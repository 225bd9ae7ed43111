"""Tables of the Metal contribution: the request's operators and its models, as ``nox -s m5`` measures them."""

from __future__ import annotations

import re

from upstream_patch.draft.tables import NO_RECORD, Sheet, markdown

PROTOCOL = ".hot.chain"
"""How the rows' ids end."""
_OPERATORS = ("K x N", "M", "stock, us", "ours, us", "stock / ours", "95% interval", "verdict", "route of ours")
_MODELS = (
    *("model", "tokens", "output head on", "stock, ms", "ours, ms", "stock / ours", "95% interval", "verdict"),
    "logits, norm error",
)
_FORWARD = re.compile(r"forward\.\w+\.(?P<model>.+)\.T(?P<tokens>\d+)\.ours_ms")
_TIMED = (
    "each call waits for the one before through a compiled expression, whose own time is taken off; weights are hot, "
    "sets of them take turns; least of the differences of a long chain and a short one"
)


def operators(sheet: Sheet, host: str) -> str:
    """One row a problem, one table a dtype and quantization: both times, the ratio, the verdict, the route."""
    parts, runs = [], dict[str, None]()
    by_form: dict[str, list[list[str]]] = {}
    for problem in sheet.problems("nax", host, PROTOCOL):
        stem = f"nax.{host}.{problem.id}{PROTOCOL}"
        runs[sheet.run_of(f"{stem}.ours_us")] = None
        row = [f"{problem.k} x {problem.n}", str(problem.m), *_arms(sheet, stem, "us"), sheet.cell(f"{stem}.route")]
        by_form.setdefault(f"{problem.dtype}, {problem.bits}-bit, group size {problem.group_size}", []).append(row)
    for form, body in by_form.items():
        parts.append(f"{form}; {_TIMED}\n\n{markdown(_OPERATORS, body)}")
    if not parts:
        return NO_RECORD
    probes = [
        [run, sheet.cell(f"record.{run}.read_gbps", ".0f"), sheet.cell(f"record.{run}.launch_floor_us", ".2f")]
        for run in runs
    ]
    return "\n\n".join([*parts, markdown(["run", "read probe, GB/s", "the expression alone, us"], probes)])


def models(sheet: Sheet, host: str) -> str:
    """One row a model and length: one forward pass over random tokens with a fresh cache."""
    found = [match for fact_id in sheet.ids(f"forward.{host}.") if (match := _FORWARD.fullmatch(fact_id))]
    body = []
    for match in sorted(found, key=lambda one: (one["model"], int(one["tokens"]))):
        stem = f"forward.{host}.{match['model']}.T{match['tokens']}"
        about = [match["model"], match["tokens"], sheet.cell(f"{stem}.head")]
        body.append([*about, *_arms(sheet, stem, "ms"), sheet.cell(f"{stem}.logits_error", ".2g")])
    return markdown(_MODELS, body) if body else NO_RECORD


def _arms(sheet: Sheet, stem: str, unit: str) -> list[str]:
    low, high = (sheet.cell(f"{stem}.speedup_{end}", ".2f") for end in ("low", "high"))
    return [
        *(sheet.cell(f"{stem}.{arm}_{unit}") for arm in ("stock", "ours")),
        sheet.cell(f"{stem}.speedup", ".2f"),
        f"{low} to {high}",
        sheet.cell(f"{stem}.verdict"),
    ]
