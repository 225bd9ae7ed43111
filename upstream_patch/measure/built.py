"""The matrix through an MLX that was built with the series: a script for the Python that the build is in."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from upstream_patch.correctness import Case, complaints, matrix_here, run_cases
from upstream_patch.correctness.forms import Bits, outputs_bits
from upstream_patch.files import write_text
from upstream_patch.measure.wheel.arms import WheelArms, cases_of


class BuiltArms(WheelArms):
    """Ours is MLX's own operation; every result must be the runtime delivery's, bit for bit.

    Nothing counts the routes here. But no kernel of the base gives those bits.
    """

    def __init__(self) -> None:
        """There is no library to load."""

    def _evaluated(self, build: Callable[[], list[Any]], case: Case, launched: bool = True) -> list[Bits]:
        return outputs_bits(case, build())


def main(into: Path, cases: Sequence[Case] | None = None) -> None:
    """Write ``{"results": [...], "wrong": [...]}``. Raises UserError where no case ran."""
    body = run_cases(cases_of(matrix_here()) if cases is None else cases, BuiltArms)
    results = [case.model_dump(mode="json") for case in body.cases]
    wrong = [line for case in body.cases for line in complaints(case)]
    write_text(into, json.dumps({"results": results, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
