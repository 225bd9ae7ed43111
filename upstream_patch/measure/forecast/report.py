"""The forecast as Markdown: what is predicted for a GB10, and how far the same model is off on an H200."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from upstream_patch.errors import UserError
from upstream_patch.measure.forecast import llama
from upstream_patch.measure.forecast.hardware import GB10, Hardware, h200
from upstream_patch.measure.forecast.model import CHUNK, Forecast, Instance, forecast
from upstream_patch.measure.forecast.sass import CLASSES
from upstream_patch.measure.suites import LLAMA_8B
from upstream_patch.problem import Problem, parse_problem
from upstream_patch.records.facts import Fact
from upstream_patch.records.store import LoadedRecord

NAME = "forecast_gb10.md"
SHAPES = (*LLAMA_8B, (8192, 8192), (4096, 6144))
ROWS = 16  # one block of rows: the model knows no more
_PARTS = (8, ROWS)


@dataclass(frozen=True)
class Compared:
    """A measured row of the H200 beside the model."""

    forecast: Forecast
    measured: float
    stale: bool
    record: str

    @property
    def ratio(self) -> float:
        return self.forecast.us / self.measured


def render(facts: Sequence[Fact], records: Sequence[LoadedRecord]) -> str:
    """The whole file. Raises UserError where a compiler, the disassembler or the H200's benchmark is missing."""
    peer = h200(facts, records)
    rows = compared(facts, peer)
    times = [[forecast(Problem(m=m, k=k, n=n), GB10) for m in range(1, ROWS + 1)] for k, n in SHAPES]
    used = list(dict.fromkeys(each.instance for shape in times for each in shape))
    used_there = list(dict.fromkeys(row.forecast.instance for row in rows))
    parts = [
        _HEAD.format(compiler=used[0].compiler),
        "## Time of a call\nMicroseconds, cold weights, affine 4-bit, group size 64, bf16.",
        _table(["K x N", *(f"M={m}" for m in range(1, ROWS + 1))], map(_times, times)),
        "What it is made of, microseconds. Time = floor and prologue + the larger of memory and the slowest block, "
        "which is its largest column and, after it, x and sums.",
        _parts(each for shape in times for each in shape if each.problem.m in _PARTS),
        "## Llama-3.1-8B, aggregate tokens a second",
        _decode(rows),
        "## The machine code\nWarp-instructions of one chunk (16 columns x 256 of K) on the way that aligned arrays "
        "take, a rare block counted as if it always ran; `t` in an instance's name: scales come with one chunk in so "
        "many. A weight, by lanes: 32 lane-instructions a warp-instruction.",
        _code([*((GB10, each) for each in used), *((peer, each) for each in used_there)]),
        "## The same model on an H200",
        _check(rows),
        "## Constants",
        _constants(peer),
    ]
    return "\n\n".join(parts) + "\n"


_HEAD = """\
# PREDICTION: the small-M kernel on a GB10 (sm_121)

**Nobody has run this kernel on a GB10. No number for a GB10 in this file was measured by us.** It is written by
`python -m upstream_patch forecast` from the machine code that NVRTC ({compiler}) makes for sm_121, the bytes of a call
and the constants below, of which several are assumed; none was fitted to a measured time. It is no evidence, and no
draft may use it; a run on a GB10 replaces it.

The model is a roofline with latencies.
- Memory: all bytes at the rate of the read probe.
- Slowest block: the chunks of the busiest multiprocessor, at the pace of what is slowest for it (issue slots, tensor
  cores, shared memory without bank conflicts, or the latency of memory over the stages that a ring has in flight), then
  what runs between chunks: x loaded anew where K takes several passes, and the sums over the warps.
- Before both: a launch floor, the first latency and the first x.

What it leaves out makes real times longer: dependent instructions that wait for each other, memory slower than the
probe when reads stop and start, other programs (a GB10's memory is the CPU's too), clocks below the one assumed. One
thing makes them shorter: of calls in a queue, the next may start before the last has ended."""


def _times(shape: Sequence[Forecast]) -> list[str]:
    p = shape[0].problem
    return [f"{p.k} x {p.n}", *(f"{each.us:.1f}" for each in shape)]


def _parts(rows: Iterable[Forecast]) -> str:
    body, names = [], ["issue slots", "tensor cores", "shared memory", "ring latency"]
    for each in rows:
        p = each.problem
        start = f"{each.floor:.1f} + {each.prologue:.1f}"
        block = [f"{each.block[name]:.1f}" for name in names]
        ratio = f"{each.slowest_block / each.bus:.2f}"
        share = f"{p.read_fraction(each.us, GB10.read_gbps.value):.0%}"
        body.append(
            [
                f"{p.k} x {p.n}",
                str(p.m),
                start,
                f"{each.bus:.1f}",
                *block,
                f"{each.phases:.1f}",
                each.binds,
                ratio,
                share,
            ]
        )
    head = [
        "K x N",
        "M",
        "floor + prologue",
        "memory",
        *names,
        "x and sums",
        "binds",
        "block / memory",
        "of the read probe",
    ]
    return _table(head, body)


def compared(facts: Iterable[Fact], peer: Hardware) -> list[Compared]:
    """The rows of the H200's benchmark that the forecast has a counterpart of: cold, queued, 4-bit, x is [M, K]."""
    by_id = {fact.id: fact for fact in facts}
    found = []
    for fact in by_id.values():
        family, _, rest = fact.id.partition(".h200.")
        stem, _, what = rest.rpartition(".")
        if family != "small_m" or what != "ours_us" or by_id[f"small_m.h200.{stem}.route"].value != "small_m":
            continue
        try:
            problem = parse_problem(stem)
        except ValueError:  # .hot, .chain
            continue
        if problem.id == Problem(m=problem.m, n=problem.n, k=problem.k).id and problem.m <= ROWS:
            found.append(Compared(forecast(problem, peer), float(fact.value), fact.stale, fact.record_path))
    return found


def _worst(rows: Iterable[Compared]) -> Compared:
    return max(rows, key=lambda row: max(row.ratio, 1 / row.ratio))


def _check(rows: Sequence[Compared]) -> str:
    stale = sum(row.stale for row in rows)
    records = ", ".join(dict.fromkeys(row.record for row in rows))
    state = (
        f"**{stale} of {len(rows)} measured rows are stale**: another kernel ran than the one whose code is counted."
        if stale
        else "All of them are of today's kernel."
    )
    groups = {
        "M <= 8": [row for row in rows if row.forecast.problem.m <= 8],
        "M > 8": [row for row in rows if row.forecast.problem.m > 8],
        "all": list(rows),
    }
    summary = [
        [
            name,
            str(len(group)),
            f"{median(row.ratio for row in group):.2f}",
            f"{worst.ratio:.2f}",
            worst.forecast.problem.id,
        ]
        for name, group in groups.items()
        if group and (worst := _worst(group))
    ]
    body = [
        [
            row.forecast.problem.id,
            f"{row.forecast.us:.2f}",
            f"{row.measured:.2f}{' (stale)' if row.stale else ''}",
            f"{row.ratio:.2f}",
            row.forecast.binds,
        ]
        for row in rows
    ]
    return "\n\n".join(
        [
            f"Measured times are facts of {records}: calls of a queue, which may overlap; the model's are of a call "
            f"alone, so it is too slow where a call is hardly more than its latencies. {state} A ratio below 1: the "
            "model is too fast.",
            _table(["rows", "count", "median of model / measured", "worst", "of"], summary),
            _table(["problem", "model, us", "measured, us", "model / measured", "binds, by the model"], body),
        ]
    )


def _decode(rows: Sequence[Compared]) -> str:
    ratios = [row.ratio for row in rows if row.forecast.problem.m <= 8]
    if not ratios:
        raise UserError(
            "no benchmark of the H200 has 4-bit rows of M <= 8 to hold the forecast against: "
            "`python -m upstream_patch bench` there makes them"
        )
    optimism = min(1.0, *ratios)
    body = []
    for batch in range(1, 9):
        step = llama.step(batch, GB10)
        careful = batch / (step.matmuls / optimism + step.others) * 1e3
        cells = [step.matmuls, step.others, step.tokens, careful, step.stock_matmuls, step.stock_tokens]
        body.append([str(batch), *(f"{cell:.1f}" for cell in cells)])
    head = ["B", "matmuls, ms", "everything else, ms", "tok/s", f"tok/s, matmuls / {optimism:.2f}"]
    share = f"{llama.stock_efficiency(GB10):.0%}"
    text = (
        f"4-bit weights with the embedding left out, {llama.CONTEXT} tokens of context in every sequence, no time of "
        "the host. The second tok/s column takes the matmuls to miss the model by as much as the most optimistic row "
        f"of M <= 8 does on the H200. Everything else is assumed: the cache read once, and {llama.KERNELS} small "
        f"kernels of {llama.KERNEL_US} us. Stock reads the weights once a sequence, at {share} of the read probe: that "
        f"share makes B = 1 the {llama.REPORTED_STOCK:.0f} tok/s that the request reports for B = 1, 2 and 4. Stock's "
        "tile kernel, which it takes at B = 8 and which reads them as often, is not modelled."
    )
    return f"{text}\n\n{_table([*head, 'stock matmuls, ms', 'stock tok/s'], body)}"


def _code(rows: Iterable[tuple[Hardware, Instance]]) -> str:
    body = []
    for gpu, code in rows:
        total = code.per_chunk("instructions")
        kinds = [f"{code.kind_per_chunk(kind):.0f}" for kind in CLASSES]
        size = [str(code.registers), f"{code.variant.shared_bytes:,}", str(code.resident(gpu))]
        weights = CHUNK.n * CHUNK.k
        ratios = [f"{total / weights:.4f}", f"{32 * total / weights:.2f}", f"{total / CHUNK.packed_bytes:.3f}"]
        phase = [str(code.loops.x.instructions), str(code.loops.phase.instructions or "in the chunk")]
        body.append([code.arch, code.variant.name, *size, f"{total:.0f}", *kinds, *ratios, *phase])
    head = ["arch", "instance", "registers", "shared, B", "blocks an SM", "instructions", *CLASSES]
    ratios = ["a weight", "a weight, by lanes", "a byte"]
    return _table([*head, *ratios, "load of x", "sums over warps"], body)


def _constants(peer: Hardware) -> str:
    return "\n\n".join(
        f"{gpu.name}\n\n"
        + _table(["", "value", "source"], [[name, f"{v.value:g}", v.source] for name, v in gpu.constants().items()])
        for gpu in (GB10, peer)
    )


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
