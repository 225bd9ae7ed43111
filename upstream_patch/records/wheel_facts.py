"""What a record of the wheel build says, and whether its host code is today's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from statistics import median

from upstream_patch.records import stats
from upstream_patch.records.cpp_tokens import tokens
from upstream_patch.records.schema import WheelBody, WheelRow
from upstream_patch.records.stats import Interval, Judgement
from upstream_patch.records.watched import judged

HOST_CODE = Path(__file__).parents[1] / "series" / "cuda"
_COMPILED = ("*.h", "*.cpp", "*.cuh", "eval_gpu_*.inc")

Named = tuple[str, float | str, str, bool]
"""(name, value, unit, whether it says something about our kernel)"""


@cache
def host_hash() -> str:
    """sha256 over the tokens of what the library is made of, file by file: reformatting it voids no record."""
    digest = sha256()
    for path in sorted(each for pattern in _COMPILED for each in HOST_CODE.glob(pattern)):
        parts = [path.name, *tokens(path.read_text(encoding="utf-8"))]
        for part in (str(len(parts)), *parts):
            data = part.encode()
            digest.update(b"%d:" % len(data) + data)
    return digest.hexdigest()


def to_runtime(body: WheelBody) -> list[Interval]:
    """Of each row, the wheel build's time over the runtime delivery's: geometric mean of the paired ratios."""
    return stats.geometric_mean_ratios([(row.wheel_us, row.runtime_us) for row in body.rows])


def to_stock(row: WheelRow) -> tuple[Interval, Judgement]:
    """Stock's time over the wheel build's, and what that says: the facts and the gates about the series share it.

    The noise is the runtime delivery against itself, and a throttled or shared GPU makes it UNCLEAR.
    """
    speedup, noise = stats.geometric_mean_ratios([(row.stock_us, row.wheel_us), (row.runtime_us, row.aa_us)])
    judgement = stats.verdict(speedup, noise, len(row.wheel_us), "the runtime delivery")
    return speedup, judged(judgement, row.watched)


def wheel_values(body: WheelBody) -> Iterator[Named]:
    """Counts of the cases, times of every row, and what decoding took, with the wheel build and beside it."""
    yield "cases", len(body.cases), "count", True
    yield "planned", body.planned, "count", True
    yield "passed", sum(case.passed for case in body.cases), "count", True
    if body.every is not None:
        yield "every", body.every, "count", True
    over = to_runtime(body)
    for row, ratio in zip(body.rows, over, strict=True):
        stem = row.problem.id
        yield f"{stem}.stock_us", median(row.stock_us), "us", False
        yield f"{stem}.runtime_us", median(row.runtime_us), "us", True
        yield f"{stem}.wheel_us", median(row.wheel_us), "us", True
        yield f"{stem}.wheel_to_runtime", ratio.value, "ratio", True
        yield f"{stem}.wheel_to_runtime_low", ratio.low, "ratio", True
        yield f"{stem}.wheel_to_runtime_high", ratio.high, "ratio", True
        speedup, judgement = to_stock(row)
        yield f"{stem}.speedup", speedup.value, "ratio", True
        yield f"{stem}.speedup_low", speedup.low, "ratio", True
        yield f"{stem}.speedup_high", speedup.high, "ratio", True
        yield f"{stem}.verdict", str(judgement.verdict), "text", True
        yield f"{stem}.verdict_reason", judgement.reason, "text", True
    if over:
        yield "most_wheel_to_runtime", max(ratio.value for ratio in over), "ratio", True
    for decoded in body.decode:
        stem = f"decode.b{decoded.batch}"
        for name, seconds in (
            ("stock", decoded.stock_s),
            ("wheel", decoded.wheel_s),
            ("runtime", decoded.runtime_s),
        ):
            yield f"{stem}.{name}_step_us", 1e6 * median(seconds) / decoded.steps, "us", name != "stock"
        yield f"{stem}.same_as_runtime", int(decoded.same_as_runtime), "count", True
