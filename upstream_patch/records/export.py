"""Facts and raw samples as rows of a table, for a spreadsheet or another program."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

from pydantic import BaseModel

from upstream_patch.records.facts import Fact
from upstream_patch.records.schema import Metric
from upstream_patch.records.store import LoadedRecord

FACTS = ("id", "value", "unit", "host", "stale", "record", "sha256", "created", "command")
SAMPLES = ("record", "host", "kind", "row", "quantity", "index", "value", "unit")
_UNITS = {"_us": "us", "_ms": "ms", "_gbps": "GB/s", "_tok_s": "1/s"}


def facts_csv(facts: Iterable[Fact]) -> str:
    """One line a fact."""
    return _csv(
        FACTS,
        (
            (f.id, f.value, f.unit, f.host, f.stale, f.record_path, f.sha256, f.created.isoformat(), f.command)
            for f in facts
        ),
    )


def samples_csv(records: Iterable[LoadedRecord]) -> str:
    """One line a raw sample: every measured number of every list, every error, every metric that a profiler counted.

    ``row`` is the problem (a benchmark's with its protocol) or the case that the sample is of, ``index`` its round.
    """
    lines = (
        (loaded.record.id, loaded.record.host, loaded.record.body.kind, *sample)
        for loaded in records
        for sample in _samples(loaded.record.body, "")
    )
    return _csv(SAMPLES, lines)


def _samples(model: BaseModel, row: str, within: str = "") -> Iterator[tuple[str, str, int, float, str]]:
    """(row, quantity, index, value, unit); a quantity inside a part of a row is named after the part, too."""
    if label := _label(model):
        row, within = label, ""
    for field in type(model).model_fields:
        value, name = getattr(model, field), f"{within}{field}"
        if isinstance(value, BaseModel):
            yield from _samples(value, row, f"{name}.")
        elif isinstance(value, float):
            yield row, name, 0, value, _unit(name)
        elif isinstance(value, dict):
            metrics = ((key, metric) for key, metric in value.items() if isinstance(metric, Metric))
            yield from ((row, key, 0, metric.value, metric.unit) for key, metric in metrics)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, BaseModel):
                    yield from _samples(item, row)
                elif isinstance(item, float):
                    yield row, name, index, item, _unit(name)


def _label(model: BaseModel) -> str:
    """What a part of a record is about; empty where it does not say."""
    if stem := getattr(model, "fact_stem", None):
        return str(stem)
    problem = getattr(model, "problem", None)
    words = [getattr(model, name, None) for name in ("case", "call", "arm", "kernel")]
    return " ".join(str(word) for word in (getattr(problem, "id", None), *words) if word)


def _unit(name: str) -> str:
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return file.getvalue()
