"""The series' tests of Metal, in MLX's own style, as a test case outside of MLX's checkout."""

from __future__ import annotations

import io
import itertools
import sys
import unittest
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import upstream_patch

FILE = Path(upstream_patch.__file__).parent / "series" / "metal" / "test_quantized.inc"
"""Methods of the class in MLX's ``python/tests/test_quantized.py``."""


def case(mx: Any, product: Callable[..., Any] = itertools.product) -> type[unittest.TestCase]:
    """A class with those methods, for ``mx`` in the place of mlx.core. ``product`` may leave out combinations."""
    names: dict[str, Any] = {"mx": mx, "product": product, "unittest": unittest}
    text = f"class TestQuantized(unittest.TestCase):\n{FILE.read_text(encoding='utf-8')}"
    exec(compile(text, FILE.name, "exec"), names)
    made: type[unittest.TestCase] = names["TestQuantized"]
    return made


def run(made: type[unittest.TestCase]) -> tuple[int, list[str]]:
    """How many tests ran, and a line for each subtest that failed, or test that was skipped."""
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(made)
    result = unittest.TextTestRunner(stream=io.StringIO()).run(suite)
    wrong = [f"{test}: {text.strip().splitlines()[-1]}" for test, text in (*result.failures, *result.errors)]
    return result.testsRun, wrong + [f"{test}: skipped, {why}" for test, why in result.skipped]


def main() -> int:
    """On this machine's MLX with our kernels installed: a line for each thing that is wrong, and 1 if there is one."""
    import upstream_patch

    with upstream_patch.installed():
        count, wrong = run(case(import_module("mlx.core")))
    print("\n".join([*wrong, f"{count} tests ran"]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
