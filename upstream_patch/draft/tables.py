"""Markdown tables from facts. A table is about one host, so no table can set one vendor's numbers beside another's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby, product
from pathlib import Path

from upstream_patch.errors import StaleFact
from upstream_patch.measure import graphs
from upstream_patch.problem import Problem, parse_problem
from upstream_patch.records.correctness_facts import KINDS
from upstream_patch.records.decode_facts import conditions
from upstream_patch.records.facts import Fact, current

NO_RECORD = "no record"
NO_CONDITIONS = f"{NO_RECORD} of the weights, the prompts and mlx-lm's version"
_COUNTS = ("cases", "passed", "rows_equal_alone", "written")
_ERRORS = ("max_norm_error", "stock_max_norm_error", "max_ulp", "stock_max_ulp")
_AGAINST = (
    *("M", "N", "K", "stock, us", "ours, us", "stock / ours", "95% interval", "verdict"),
    *("stock, % of read probe", "ours, % of read probe"),
)
_ORDER = {
    "": "independent calls that the GPU may overlap",
    ".chain": "each call waits for the one before through a link kernel that both arms run and that is not subtracted",
}
_INTERVAL = "95% interval: of the rounds of one run, all of one sample length; not of what differs between those"
_DECODE = re.compile(r"decode\.\w+\.(?P<model>.+)\.B(?P<batch>\d+)\.\w+_tok_s")
_ARMS = ("stock", "folded", "ours")
_X_SHAPE = {"mk": "[M, K]", "1mk": "[1, M, K]", "b1k": "[M, 1, K]"}


class Sheet:
    """The facts of a draft. Reading one that is stale raises UserError with the command that renews it."""

    def __init__(self, facts: Iterable[Fact]) -> None:
        self._facts = {fact.id: fact for fact in facts}
        self.used: dict[str, Fact] = {}
        """Facts that the draft holds, by id."""

    def get(self, fact_id: str) -> Fact | None:
        fact = self._facts.get(fact_id)
        if fact is None:
            return None
        self.used[fact_id] = current(fact)
        return fact

    def value(self, fact_id: str) -> float | str | None:
        fact = self.get(fact_id)
        return None if fact is None else fact.value

    def ids(self, prefix: str) -> list[str]:
        return [fact_id for fact_id in self._facts if fact_id.startswith(prefix)]

    def run_of(self, fact_id: str) -> str:
        """The id of the record that a fact comes from."""
        fact = self._facts.get(fact_id)
        return Path(fact.record_path).stem if fact else NO_RECORD

    def run(self, fact_id: str, about: str) -> str | None:
        """What is known about the run that a fact comes from."""
        about_it = self.get(f"record.{self.run_of(fact_id)}.{about}")
        return str(about_it.value) if about_it else None

    def cell(self, fact_id: str, digits: str = ".1f", scale: float = 1.0) -> str:
        """The value as text, or ``no record``."""
        fact = self.get(fact_id)
        if fact is None:
            return NO_RECORD
        return fact.value if isinstance(fact.value, str) else format(fact.value * scale, digits)

    def problems(self, family: str, host: str, protocol: str = "") -> list[Problem]:
        """The problems that have facts of a family on a host; with no ``protocol``, an id's suffix (``.chain``), only
        short ids: cold weights, queued calls."""
        stems = {
            fact_id.split(".", 2)[2].rpartition(".")[0]
            for fact_id in self._facts
            if fact_id.startswith(f"{family}.{host}.")
        }
        problems = []
        for stem in stems:
            if not stem.endswith(protocol):
                continue
            try:
                problems.append(parse_problem(stem.removesuffix(protocol).removesuffix(".stock").removesuffix(".ours")))
            except ValueError:  # .hot, .chain: other protocols, not for this table
                continue
        return sorted(
            set(problems),
            key=lambda p: (p.dtype, p.mode, p.bits, p.group_size, p.layout != "mk", p.layout, p.k * p.n, p.k, p.m),
        )


def stock_time(sheet: Sheet, host: str) -> str:
    """Stock time by M, one row a shape, one table for each dtype, quantization and shape of x."""
    parts = []
    for problems in _alike(sheet.problems("small_m", host)):
        rows_of_x = sorted({problem.m for problem in problems})
        body = []
        for k, n in dict.fromkeys((problem.k, problem.n) for problem in problems):
            cells = [sheet.cell(f"small_m.{host}.{_at(problems[0], k, n, m).id}.stock_us") for m in rows_of_x]
            body.append([f"{k} x {n}", *cells])
        shown = [f"small_m.{host}.{problem.id}" for problem in problems]
        parts.append(
            f"{_timed(sheet, problems[0], shown)}\n\n" + markdown(["K x N", *(f"M = {m}, us" for m in rows_of_x)], body)
        )
    return "\n\n".join(parts) or NO_RECORD


def ours_against_stock(sheet: Sheet, host: str) -> str:
    """One row a problem: both times, the ratio with its interval, the verdict, the share of the read probe.

    Then the same of chained calls, what the times rest on, and what a call costs the host.
    """
    parts, runs = [], dict[str, None]()
    for protocol in ("", ".chain"):
        for problems in _alike(sheet.problems("small_m", host, protocol)):
            stems = [f"small_m.{host}.{problem.id}{protocol}" for problem in problems]
            runs |= dict.fromkeys(sheet.run_of(f"{stem}.ours_us") for stem in stems)
            body = [_against(sheet, problem, stem) for problem, stem in zip(problems, stems, strict=True)]
            parts.append(f"{_timed(sheet, problems[0], stems, protocol)}\n\n{markdown(_AGAINST, body)}")
    if not parts:
        return NO_RECORD
    probes = [
        [run, sheet.cell(f"record.{run}.read_gbps", ".0f"), sheet.cell(f"record.{run}.launch_floor_us", ".2f")]
        for run in runs
    ]
    parts += [_INTERVAL, markdown(["run", "read probe, GB/s", "empty kernel, us"], probes), _host_cost(sheet, host)]
    return "\n\n".join(part for part in parts if part)


def _against(sheet: Sheet, problem: Problem, stem: str) -> list[str]:
    interval = f"{sheet.cell(f'{stem}.speedup_low', '.2f')} to {sheet.cell(f'{stem}.speedup_high', '.2f')}"
    return [
        *(str(size) for size in (problem.m, problem.n, problem.k)),
        sheet.cell(f"{stem}.stock_us"),
        sheet.cell(f"{stem}.ours_us"),
        sheet.cell(f"{stem}.speedup", ".2f"),
        NO_RECORD if NO_RECORD in interval else interval,
        sheet.cell(f"{stem}.verdict"),
        sheet.cell(f"{stem}.stock_read_fraction", ".1%"),
        sheet.cell(f"{stem}.read_fraction", ".1%"),
    ]


def _host_cost(sheet: Sheet, host: str) -> str:
    """Of building a call, and of building and enqueuing it. A stale one is not shown and withholds no other table."""
    body = []
    for call, what in (("build", "build"), ("run", "build and enqueue")):
        try:
            times = [sheet.cell(f"host.{host}.{call}.{arm}_us", ".2f") for arm in ("stock", "ours")]
        except StaleFact as error:
            return f"host cost of a call: stale, {error.fix}"
        if NO_RECORD not in times:
            body.append([what, *times])
    return markdown(["host cost of a call", "stock, us", "ours, us"], body) if body else ""


def profiled(sheet: Sheet, host: str) -> str:
    """What Nsight Compute counted for one call, stock and ours."""
    body = []
    for problem in sheet.problems("ncu", host):
        for arm in ("stock", "ours"):
            stem = f"ncu.{host}.{problem.id}"
            body.append(
                [
                    *(str(size) for size in (problem.m, problem.n, problem.k)),
                    problem.dtype if problem.layout == "mk" else f"{problem.dtype}, {_X_SHAPE[problem.layout]}",
                    arm,
                    sheet.cell(f"{stem}.packed_bytes", ".2f", 1e-6),
                    sheet.cell(f"{stem}.{arm}.dram_bytes_read", ".2f", 1e-6),
                    sheet.cell(f"{stem}.{arm}.dram_pct"),
                    sheet.cell(f"{stem}.{arm}.duration_us"),
                    sheet.cell(f"{stem}.{arm}.registers", ".0f"),
                    sheet.cell(f"{stem}.{arm}.kernels").replace("|", "\\|"),
                ]
            )
    sizes = ["packed, MB", "DRAM read, MB", "DRAM, % of peak", "time, us", "registers a thread"]
    return markdown(["M", "N", "K", "dtype", "arm", *sizes, "kernel"], body) if body else NO_RECORD


def decode(sheet: Sheet, host: str) -> str:
    """Tokens a second over all clients, one table a model: ``decode.<host>.<model>.B<batch>.<arm>_tok_s``.

    Each with what was decoded: a rate of random weights is no rate of a model that anybody uses.
    """
    models: dict[str, set[int]] = {}
    for fact_id in sheet.ids(f"decode.{host}."):
        if match := _DECODE.fullmatch(fact_id):
            models.setdefault(match["model"], set()).add(int(match["batch"]))
    parts = []
    for model, batches in sorted(models.items()):
        body = [
            [str(batch), *(sheet.cell(f"decode.{host}.{model}.B{batch}.{arm}_tok_s") for arm in _ARMS)]
            for batch in sorted(batches)
        ]
        stems = {batch: f"decode.{host}.{model}.B{batch}" for batch in sorted(batches)}
        caption = f"{model}, tokens a second of all B sequences together"
        what = conditions(stems, sheet.value) or NO_CONDITIONS
        parts.append(f"{caption}; {what}\n\n{markdown(['B', *(f'{arm}, tok/s' for arm in _ARMS)], body)}")
    return "\n\n".join(parts) or NO_RECORD


def correctness(sheet: Sheet, host: str) -> str:
    """Our kernel's cases, ordinary data apart from data made to break it."""
    body = []
    for dtype, kind in product(("bf16", "f16", "f32"), KINDS):
        stem = f"correctness.{host}.{dtype}.{kind}"
        if sheet.get(f"{stem}.cases"):
            body.append(
                [
                    dtype,
                    kind,
                    *(sheet.cell(f"{stem}.{count}", ".0f") for count in _COUNTS),
                    *(sheet.cell(f"{stem}.{error}", ".3g") for error in _ERRORS),
                ]
            )
    header = ["dtype", "data", "cases", "passed", "rows equal alone", "written"]
    errors = ["norm error, ours", "norm error, stock", "max ulp, ours", "max ulp, stock"]
    return markdown([*header, *errors], body) if body else NO_RECORD


def markdown(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    rows = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _alike(problems: Sequence[Problem]) -> list[list[Problem]]:
    """Problems of one dtype, quantization and shape of x together, in order."""
    return [
        list(group) for _, group in groupby(problems, key=lambda p: (p.dtype, p.mode, p.bits, p.group_size, p.layout))
    ]


def _at(like: Problem, k: int, n: int, m: int) -> Problem:
    return like.model_copy(update={"k": k, "n": n, "m": m})


def _timed(sheet: Sheet, problem: Problem, stems: Sequence[str], protocol: str = "") -> str:
    """How the rows of a table were timed."""
    parts = [_described(problem), _ORDER[protocol]]
    limits = dict.fromkeys(limit for stem in stems if (limit := sheet.run(f"{stem}.stock_us", "graph_limits")))
    if limits:
        parts.append(f"MLX's graph limits: {' or '.join(limits)}")
    if list(limits) == [graphs.RAISED]:
        parts.append("one CUDA graph a sample")
    return ", ".join(parts)


def _described(problem: Problem) -> str:
    quant = f"affine {problem.bits}-bit" if problem.mode == "affine" else problem.mode
    return f"{problem.dtype}, {quant}, group size {problem.group_size}, x is {_X_SHAPE[problem.layout]}, cold weights"
