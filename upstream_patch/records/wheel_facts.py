"""What a record of the wheel build says, and whether its host code is today's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from statistics import median

from upstream_patch.records.cpp_tokens import tokens
from upstream_patch.records.schema import WheelBody

HOST_CODE = Path(__file__).parents[1] / "series" / "cuda"
_COMPILED = ("*.h", "*.cpp", "*.cuh", "eval_gpu_*.inc")

Named = tuple[str, float, str, bool]
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


def wheel_values(body: WheelBody) -> Iterator[Named]:
    """Counts of the cases, times of every row, and what decoding took, with the wheel build and beside it."""
    yield "cases", len(body.cases), "count", True
    yield "planned", body.planned, "count", True
    yield "passed", sum(case.passed for case in body.cases), "count", True
    ratios = []
    for row in body.rows:
        stock, runtime, wheel = (median(times) for times in (row.stock_us, row.runtime_us, row.wheel_us))
        ratios.append(median(w / r for w, r in zip(row.wheel_us, row.runtime_us, strict=True)))
        yield f"{row.problem.id}.stock_us", stock, "us", False
        yield f"{row.problem.id}.runtime_us", runtime, "us", True
        yield f"{row.problem.id}.wheel_us", wheel, "us", True
        yield f"{row.problem.id}.wheel_to_runtime", ratios[-1], "ratio", True
    if ratios:
        yield "most_wheel_to_runtime", max(ratios), "ratio", True
    for decoded in body.decode:
        stem = f"decode.b{decoded.batch}"
        for name, seconds in (
            ("stock", decoded.stock_s),
            ("wheel", decoded.wheel_s),
            ("runtime", decoded.runtime_s),
        ):
            yield f"{stem}.{name}_step_us", 1e6 * median(seconds) / decoded.steps, "us", name != "stock"
        yield f"{stem}.same_as_runtime", int(decoded.same_as_runtime), "count", True
