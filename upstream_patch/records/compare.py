"""Two records of one kind beside each other: what differs between the runs, and each value they share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from upstream_patch.errors import UserError
from upstream_patch.records import facts, stats
from upstream_patch.records.decode_schema import DecodeBody
from upstream_patch.records.provenance import LIBRARY
from upstream_patch.records.schema import BenchBody, Body, PeerBody, Record, WheelBody
from upstream_patch.records.stats import Interval, Judgement
from upstream_patch.records.store import LoadedRecord
from upstream_patch.records.watched import Watched, judged

NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class Pair:
    """One value in both records. ``ratio`` is first / second: of times, above 1 the second is faster."""

    name: str
    first: float
    second: float
    unit: str
    ratio: float
    interval: Interval | None = None
    """None where a record holds one value, not samples."""
    judgement: Judgement | None = None


@dataclass(frozen=True)
class Comparison:
    kind: str
    differs: tuple[tuple[str, str, str], ...]
    """(what, in the first, in the second)"""
    same: tuple[str, ...]
    pairs: tuple[Pair, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    control: str
    """What stands between the two runs besides what was meant to change, in words."""


def compare(first: LoadedRecord, second: LoadedRecord) -> Comparison:
    """Raises UserError where the two are of different kinds, or of two vendors' cards."""
    one, other = first.record, second.record
    if one.body.kind != other.body.kind:
        raise UserError(
            f"{one.id} is a record of kind {one.body.kind}, {other.id} of {other.body.kind}: two of one kind compare"
        )
    vendors = {record.machine.gpu.vendor.lower() for record in (one, other) if record.machine.gpu}
    if len(vendors) > 1:
        raise UserError(
            f"{one.id} and {other.id} are of cards of {' and '.join(sorted(vendors))}, whose numbers never share a "
            "table: compare records of one vendor's cards"
        )
    names = [{pair[0] for pair in _named(loaded)} for loaded in (first, second)]
    shared = names[0] & names[1]
    about = [(what, a, b) for (what, a), (_, b) in zip(_about(one, shared), _about(other, shared), strict=True)]
    pairs, control = _timed(one, other) if all(_arms(one.body)) else (_values(first, second), "")
    return Comparison(
        kind=one.body.kind,
        differs=tuple(row for row in about if row[1] != row[2]),
        same=tuple(f"{what} {a}" for what, a, b in about if a == b),
        pairs=tuple(pairs),
        only_first=tuple(sorted(names[0] - names[1])),
        only_second=tuple(sorted(names[1] - names[0])),
        control=control,
    )


def _about(record: Record, shared: Collection[str]) -> Iterator[tuple[str, str]]:
    """Of a record that has the ``shared`` rows: always the same names, in the same order."""
    gpu = record.machine.gpu
    yield "host", record.host
    yield "GPU", gpu.name if gpu else "none"
    yield "driver", (gpu and gpu.driver) or "unknown"
    yield "system", record.machine.os
    for name in ("mlx", "nvidia-cuda-runtime", "commit"):
        yield name, record.versions.get(name, "unknown")
    yield "kernel", record.kernel.hash[:12] if record.kernel else "none"
    yield "command", record.command
    yield "MLX's library", record.versions.get(LIBRARY, NOT_RECORDED)[:12]
    variables = record.environment
    shown = "; ".join(f"{name}={value}" for name, value in (variables or {}).items())
    yield "MLX's and CUDA's variables", NOT_RECORDED if variables is None else shown or "none"
    body = record.body
    if isinstance(body, BenchBody):
        yield "MLX's graph limits", body.graph_limits or "unknown"
    if isinstance(body, DecodeBody):
        yield from _decoded(body, shared)
    if isinstance(body, BenchBody | DecodeBody):
        yield "read probe", f"{median(body.probe_gbps):,.0f} GB/s"


def _decoded(body: DecodeBody, shared: Collection[str]) -> Iterator[tuple[str, str]]:
    """What a step of the ``shared`` rows depends on besides MLX and our kernel."""
    rows = [row for row in sorted(body.rows, key=lambda row: row.fact_stem) if row.fact_stem in shared]
    weights = {model.name: model.weights for model in body.models}
    yield "mlx-lm", body.mlx_lm
    yield "prompt", _each({row.fact_stem: f"{row.prompt} tokens" for row in rows})
    yield "weights", _each({row.fact_stem: weights[row.model] for row in rows})
    yield "MLX's graph limits", body.graph_limits or "unknown"


def _each(values: Mapping[str, str]) -> str:
    """What all have in common, or what each has."""
    found = set(values.values())
    return found.pop() if len(found) == 1 else "; ".join(f"{name} {value}" for name, value in values.items()) or "none"


@dataclass(frozen=True)
class _Timed:
    """A row as two runs' rows are compared: what ours ran beside, that again, and ours; entry i is of round i."""

    name: str
    other: Sequence[float]
    again: Sequence[float]
    ours: Sequence[float]
    watched: Watched | None


def _arms(body: Body) -> tuple[str, str, str]:
    """(what ours is timed beside, what is compared, the unit); empty where a body has no paired rows."""
    if isinstance(body, BenchBody):
        return "stock", "ours", "us"
    if isinstance(body, PeerBody):
        return "peer", "ours", "us"
    if isinstance(body, DecodeBody):
        return "stock", "ours", "ms"
    return ("runtime", "wheel", "us") if isinstance(body, WheelBody) else ("", "", "")


def _rows(body: Body) -> dict[str, _Timed]:
    rows: list[_Timed] = []
    if isinstance(body, BenchBody):
        rows = [_Timed(row.fact_stem, row.stock_us, row.aa_us, row.ours_us, row.watched) for row in body.rows]
    elif isinstance(body, PeerBody):
        rows = [_Timed(row.problem.id, row.peer_us, row.aa_us, row.ours_us, row.watched) for row in body.rows]
    elif isinstance(body, DecodeBody):
        rows = [_Timed(row.fact_stem, row.stock.step_ms, row.aa_ms, row.ours.step_ms, row.watched) for row in body.rows]
    elif isinstance(body, WheelBody):
        rows = [_Timed(row.problem.id, row.runtime_us, row.aa_us, row.wheel_us, row.watched) for row in body.rows]
    return {row.name: row for row in rows}


def _timed(one: Record, other: Record) -> tuple[list[Pair], str]:
    """Ours, and what it was timed beside, of each row that both have.

    Rounds of two runs are not paired, so each side has its own spread. What differs between the runs shows in the
    other arm, whose code is the same while its version is: its ratio counts as noise of ours.
    """
    ours, theirs = _rows(one.body), _rows(other.body)
    arm, compared, unit = _arms(one.body)
    # the wheel build's other arm is our own runtime delivery
    shared = ours.keys() & theirs.keys()
    wheel = isinstance(one.body, WheelBody)
    same = one.kernel == other.kernel if wheel else _code(one, shared) == _code(other, shared)
    control = same and one.host == other.host
    pairs = []
    for name, a in ours.items():
        b = theirs.get(name)
        if b is None:
            continue
        moved, changed = stats.unpaired_ratios([(a.other, b.other), (a.ours, b.ours)])
        within = stats.geometric_mean_ratios([(row.other, row.again) for row in (a, b)])
        samples = min(len(a.ours), len(b.ours))
        for label, x, y, ratio, against in (
            (arm, a.other, b.other, moved, _widest(within)),
            (compared, a.ours, b.ours, changed, _widest([*within, moved] if control else within)),
        ):
            judgement = judged(judged(stats.verdict(ratio, against, samples, arm), a.watched), b.watched)
            pairs.append(Pair(f"{name} {label}", median(x), median(y), unit, ratio.value, ratio, judgement))
    said = (
        f"{arm} is the same code on the same host in both runs: what moves it is no merit of {compared}, and counts as "
        "noise"
        if control
        else f"{arm} is not the same in both runs, so nothing tells a change of {compared} from one of the machine"
    )
    return pairs, said


def _code(record: Record, shared: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Of what ours is timed beside in the ``shared`` rows: (what, which)."""
    if isinstance(record.body, PeerBody):
        return ((record.body.peer, record.body.peer_version),)
    decoded = _decoded(record.body, shared) if isinstance(record.body, DecodeBody) else ()
    return (("mlx", record.versions.get("mlx", "unknown")), *decoded)


def _widest(intervals: Sequence[Interval]) -> Interval:
    return Interval(1.0, min(one.low for one in intervals), max(one.high for one in intervals))


def _named(loaded: LoadedRecord) -> Iterator[tuple[str, float, str]]:
    """Every value of a record, by an id without the host, so that two hosts' meet; (name, value, unit)."""
    if all(_arms(loaded.record.body)):
        yield from ((name, 0.0, "") for name in _rows(loaded.record.body))
        return
    for fact in facts.derive([loaded]):
        if not isinstance(fact.value, str) and not fact.id.startswith("record."):
            yield fact.id.replace(f".{loaded.record.host}.", ".", 1), fact.value, fact.unit


def _values(first: LoadedRecord, second: LoadedRecord) -> list[Pair]:
    """Values that are one number each, so that no interval can be given."""
    theirs = {name: value for name, value, _ in _named(second)}
    return [
        Pair(name, value, theirs[name], unit, value / theirs[name] if theirs[name] else float("nan"))
        for name, value, unit in _named(first)
        if name in theirs
    ]
