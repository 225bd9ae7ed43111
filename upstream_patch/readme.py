"""The table of measured results in README.md, filled from facts between two markers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

from upstream_patch import targets
from upstream_patch.errors import StaleFact, UserError
from upstream_patch.files import write_changed
from upstream_patch.measure import graphs
from upstream_patch.measure.decode.shapes import BATCHES
from upstream_patch.measure.suites import LLAMA_8B, ROWS
from upstream_patch.plots.files import FOLDER
from upstream_patch.plots.gathered import benchmarked
from upstream_patch.records.decode_facts import conditions
from upstream_patch.records.facts import Fact, current
from upstream_patch.records.schema import Tool
from upstream_patch.targets.wanted import DECODED

BEGIN = "<!-- facts:begin small_m -->"
END = "<!-- facts:end -->"
HOST = "h200"
WEIGHTS = tuple(f"{k}x{n}" for k, n in LLAMA_8B)
CHAINED = {
    "4096x1024": (8, 16, 32),
    "4096x4096": (1, 8, 16),
    "14336x4096": (1, 8, 16),
    "4096x28672": (1, 8, 16),
}
"""K x N -> M, of rows whose calls wait for one another."""
PEER = "4096x128256", (1, 8)
"""K x N and M of the rows that are shown against PyTorch."""
_STEPS = ("stock", "runtime", "wheel")
_SPEEDUP = re.compile(r"\(([\d.]+)x\)")
_PROFILED = re.compile(rf"ncu\.{HOST}\.\w+\.b4\.g64\.bf16\.M(\d+)\.ours\.dram_bytes_read")


def table(facts: Iterable[Fact]) -> str:
    """The Markdown table: benchmarked times; before there are any, profiled bytes; one sentence where there is neither.

    Stale facts are not shown: a sentence stands for them, so that a changed kernel needs no GPU to leave README true.
    """
    by_id = {fact.id: fact for fact in facts}
    try:
        shown = _benchmarked(by_id) or _profiled(by_id)
    except StaleFact as error:
        return f"The kernel changed since it was last measured: {error.fix}."
    return f"{_where(by_id)}{shown}" if shown else "No benchmark has been recorded yet."


def _where(facts: dict[str, Fact]) -> str:
    """The machine and MLX of the records that the table is from."""
    table = "small_m" if any(one.startswith(f"small_m.{HOST}.") for one in facts) else "ncu"
    records = {Path(fact.record_path).stem for one, fact in facts.items() if one.startswith(f"{table}.{HOST}.")}
    named = [
        " and ".join(sorted({str(found.value) for one in records if (found := facts.get(f"record.{one}.{what}"))}))
        for what in ("gpu", "mlx")
    ]
    where = f"One {named[0]}, MLX {named[1]}; " if all(named) else ""
    return f"{where}affine 4-bit weights, group size 64, bf16, x is [M, K]. "


def _benchmarked(facts: dict[str, Fact]) -> str:
    title = (
        f"Cold weights, independent calls that the GPU may overlap{_graphs(facts)}: stock -> ours in microseconds "
        "(speedup)."
    )
    rows = {weights: [_times(facts, f"small_m.{HOST}.{weights}.b4.g64.bf16.M{m}") for m in ROWS] for weights in WEIGHTS}
    shown = _markdown(title, ROWS, rows)
    if not shown:
        return ""
    parts = (shown, _slower(rows), _plots(facts), _chained(facts), _peer(facts), _targets(facts), _host_cost(facts))
    return "\n\n".join(
        part for part in (*parts, _decoded(facts), _wheel(facts), _sanitized(facts), _matrix(facts)) if part
    )


def _slower(rows: dict[str, list[str]]) -> str:
    """Where the table's speedup is below 1."""
    found = [
        f"{weights.replace('x', ' x ')} at M = {m}"
        for weights, cells in rows.items()
        for m, cell in zip(ROWS, cells, strict=True)
        if (speedup := _SPEEDUP.search(cell)) and float(speedup[1]) < 1
    ]
    return f"Slower than stock, where calls may overlap: {', '.join(found)}." if found else ""


def _sanitized(facts: dict[str, Fact]) -> str:
    """What compute-sanitizer saw; stale, it withholds nothing else."""
    try:
        counts = [
            _numbers(facts, [f"sanitizer.{HOST}.{tool}.{what}" for what in ("launches", "errors", "plants_found")])
            for tool in get_args(Tool)
        ]
    except StaleFact as error:
        return f"The sanitizers have no record of today's kernel: {error.fix}."
    known = [[number for number in those if number is not None] for those in counts]
    if any(len(those) < 3 for those in known):
        return ""
    launches, errors, plants = min(those[0] for those in known), *(sum(those[i] for those in known) for i in (1, 2))
    return (
        f"compute-sanitizer's {', '.join(get_args(Tool))}, outside MLX on buffers of exact size: {errors:.0f} errors "
        f"in {launches:,.0f} launches each, and each of {plants:.0f} planted faults found."
    )


def _matrix(facts: dict[str, Fact]) -> str:
    """How many cases of the correctness matrix are right; stale, it withholds nothing else."""
    ids = [f"correctness.{HOST}.{dtype}.{what}" for dtype in ("bf16", "f16") for what in ("cases", "passed")]
    try:
        numbers = _numbers(facts, ids)
    except StaleFact as error:
        return f"The correctness matrix has no record of today's kernel: {error.fix}."
    cases, passed = (sum(number or 0 for number in numbers[i::2]) for i in (0, 1))
    return f"Correctness matrix: {passed:,.0f} of {cases:,.0f} cases of our kernel right." if cases else ""


def _graphs(facts: dict[str, Fact]) -> str:
    """How long MLX's graphs could get, where every benchmark that is used says it."""
    records = {Path(fact.record_path).stem for one, fact in facts.items() if one.startswith(f"small_m.{HOST}.")}
    limits = {found.value if (found := facts.get(f"record.{one}.graph_limits")) else "" for one in records}
    return ", one CUDA graph a sample (MLX's graph limits raised)" if limits == {graphs.RAISED} else ""


def _plots(facts: dict[str, Fact]) -> str:
    """The plot of times, and a link to the other of the benchmark. They show more than the table, and may be stale."""
    try:
        drawn = benchmarked(facts.values(), HOST)
    except StaleFact as error:
        return f"The plots have no record of today's kernel: {error.fix}."
    if not drawn:
        return ""
    at = [f"evidence/{FOLDER}/{figure.file_name}" for figure in drawn]
    lines = [f"![{drawn[0].title}: stock MLX and ours, a panel for each K x N]({at[0]})"]
    lines += [f"{figure.title}: [{path}]({path})." for figure, path in zip(drawn[1:], at[1:], strict=True)]
    return "\n\n".join(lines)


def _chained(facts: dict[str, Fact]) -> str:
    """A decode step is a chain, and what waits cannot overlap."""
    rows = {
        weights: {m: _times(facts, f"small_m.{HOST}.{weights}.b4.g64.bf16.M{m}.chain") for m in those}
        for weights, those in CHAINED.items()
    }
    title = (
        "Each call waiting for the one before, as in decode, with one link kernel a call in both that is not "
        "subtracted:"
    )
    ms = sorted({m for those in CHAINED.values() for m in those})
    shown = {weights: [by_m.get(m, "") for m in ms] for weights, by_m in rows.items() if any(by_m.values())}
    return _markdown(title, ms, shown)


def _peer(facts: dict[str, Fact]) -> str:
    """The head against PyTorch's prepacked int4; a stale row is not shown, and withholds nothing else."""
    weights, ms = PEER
    try:
        cells = {m: _times(facts, f"peer.{HOST}.{weights}.b4.g64.bf16.M{m}", "peer_us") for m in ms}
    except StaleFact as error:
        return f"The comparison with PyTorch has no record of today's kernel: {error.fix}."
    said = ", ".join(f"M = {m} {cell}" for m, cell in cells.items() if cell)
    words = f"PyTorch's prepacked int4 kernel on {weights.replace('x', ' x ')}, calls one after the other on one stream"
    return f"{words}, its -> ours: {said}." if said else ""


def _decoded(facts: dict[str, Fact]) -> str:
    """A whole model's tokens a second; stale, they withhold nothing else."""
    stems = {batch: f"decode.{HOST}.{DECODED}.B{batch}" for batch in BATCHES}
    known = {batch: stem for batch, stem in stems.items() if f"{stem}.ours_tok_s" in facts}
    arms = {"stock": "stock", "folded": "stock, batch folded into rows", "ours": "ours"}
    try:
        rows = {
            words: [_numbers(facts, [f"{stem}.{arm}_tok_s"])[0] for stem in known.values()]
            for arm, words in arms.items()
        }
    except StaleFact as error:
        return f"Decode of a whole model has no record of today's kernel and dispatch: {error.fix}."
    if not known:
        return ""
    what = conditions(known, lambda one: facts[one].value if one in facts else None)
    title = (
        f"Decode of the shape of {DECODED} ({what or 'conditions not recorded'}), B sequences, tokens a second of all "
        "of them together:"
    )
    lines = [title, "", _row("tokens/s", [f"B = {batch}" for batch in known]), _row("---", ["---:"] * len(known))]
    lines += [_row(words, ["not run" if one is None else f"{one:,.0f}" for one in row]) for words, row in rows.items()]
    return "\n".join(lines)


def _wheel(facts: dict[str, Fact]) -> str:
    """What the series' host code did in the released library; stale, it withholds nothing else."""
    stem = f"wheel.{HOST}"
    try:
        passed, cases, planned, slowest = _numbers(
            facts, [f"{stem}.{what}" for what in ("passed", "cases", "planned", "most_wheel_to_runtime")]
        )
        steps = {
            batch: [f"{us / 1e3:.1f}" for us in found if us is not None]
            for batch in BATCHES
            if (found := _numbers(facts, [f"{stem}.decode.b{batch}.{arm}_step_us" for arm in _STEPS]))
        }
    except StaleFact as error:
        return f"The series' host code of today has no record: {error.fix}."
    if passed is None or cases is None or planned is None or slowest is None:
        return ""
    said = ", ".join(f"B = {batch} {' / '.join(ms)}" for batch, ms in steps.items() if len(ms) == len(_STEPS))
    decoded = (
        f" Decode by a program that knows nothing of us, each way in a process of its own, ms a step, stock / "
        f"`install()` / host code: {said}."
    )
    of = "" if cases == planned else f" (of {planned:,.0f})"
    return (
        f"The series' host code in the released library: {passed:,.0f} of {cases:,.0f} cases{of} of the default matrix "
        f"that our kernel takes are `install()`'s bits, in at most {slowest:.2f} of its device time."
        + (decoded if said else "")
    )


def _targets(facts: dict[str, Fact]) -> str:
    total = targets.counted(facts.values())
    return (
        f"Of {total.all} targets for this GPU {total.met} are met, {total.missed} missed, {total.none} without a "
        f"record: [evidence/{targets.FILE}](evidence/{targets.FILE})."
    )


def _host_cost(facts: dict[str, Fact]) -> str:
    """A stale host cost is not shown, and withholds nothing else."""
    said = []
    try:
        for call, what in (("build", "building a call"), ("run", "building and enqueuing it")):
            stock, ours = _numbers(facts, [f"host.{HOST}.{call}.{arm}_us" for arm in ("stock", "ours")])
            if stock is not None and ours is not None:
                said.append(f"{what} {stock:.1f} -> {ours:.1f}")
    except StaleFact as error:
        return f"What a call costs the host has no record of today's dispatch: {error.fix}."
    return f"What a call costs that machine's host in Python, microseconds: {', '.join(said)}." if said else ""


def _profiled(facts: dict[str, Fact]) -> str:
    """No times: a profiled call is not a benchmark."""
    title = (
        "Megabytes that one call reads from memory, by Nsight Compute: stock -> ours. No benchmark of these kernels is "
        "recorded yet."
    )
    ms = sorted({int(match[1]) for one in facts if (match := _PROFILED.match(one))})
    stems = {weights: [f"ncu.{HOST}.{weights}.b4.g64.bf16.M{m}" for m in ms] for weights in WEIGHTS}
    rows = {weights: [_megabytes(facts, stem) for stem in those] for weights, those in stems.items()}
    return _markdown(title, ms, {weights: cells for weights, cells in rows.items() if any(cells)})


def _markdown(title: str, ms: Sequence[int], rows: dict[str, list[str]]) -> str:
    """Empty where no cell has anything."""
    if not any(any(cells) for cells in rows.values()):
        return ""
    lines = [title, "", _row("K x N", [f"M = {m}" for m in ms]), _row("---", ["---:"] * len(ms))]
    lines += [
        _row(weights.replace("x", " x "), [cell or "not run" for cell in cells]) for weights, cells in rows.items()
    ]
    return "\n".join(lines)


def fill(text: str, facts: Iterable[Fact]) -> str:
    """README's text with the managed block filled. Raises UserError when the markers are not there once, in order."""
    before, begin, rest = text.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end or BEGIN in old + after or END in before + after:
        raise UserError(f"README.md needs one {BEGIN} and, after it, one {END}")
    return f"{before}{BEGIN}\n{table(facts)}\n{END}{after}"


def update(path: Path, facts: Iterable[Fact]) -> bool:
    """Fill the block in the file; True when that changed it."""
    return write_changed(path, fill(path.read_text(encoding="utf-8"), facts))


def _row(head: str, cells: Iterable[str]) -> str:
    return f"| {' | '.join([head, *cells])} |"


def _times(facts: dict[str, Fact], stem: str, other: str = "stock_us") -> str:
    theirs, ours, speedup = _numbers(facts, [f"{stem}.{what}" for what in (other, "ours_us", "speedup")])
    return f"{theirs:,.1f} -> {ours:,.1f} ({speedup:.1f}x)" if theirs and ours and speedup else ""


def _megabytes(facts: dict[str, Fact], stem: str) -> str:
    stock, ours = _numbers(facts, [f"{stem}.{arm}.dram_bytes_read" for arm in ("stock", "ours")])
    return f"{stock / 1e6:,.0f} -> {ours / 1e6:,.0f}" if stock and ours else ""


def _numbers(facts: dict[str, Fact], ids: list[str]) -> list[float | None]:
    return [float(current(facts[one]).value) if one in facts else None for one in ids]
