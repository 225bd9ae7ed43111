"""The tests that the series adds to MLX, on the released MLX as it is and with the series' host code hooked into it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.series import load
from upstream_patch.series.building import unittest_json
from upstream_patch.series.wheel import build, find_mlx_library

pytestmark = [pytest.mark.needs_cuda, pytest.mark.needs_cuda_wheel]
BEGIN = "import unittest\nfrom itertools import product\nimport mlx.core as mx\n"
HOOK = "from pathlib import Path\nfrom upstream_patch.series.wheel import load\nload(Path({built!r})).enable()\n"
CLASS = "class TestQuantized(unittest.TestCase):\n"


def run(file: Path, text: str, name: str) -> dict[str, Any]:
    """What ``nox -s build`` would read of one new test; one that ends its process has failed."""
    file.write_text(text)
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, unittest_json.__file__, str(file), "only", name],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr, done.returncode)
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        return {"ran": 1, "skipped": 0, "failed": [name]}


@pytest.mark.parametrize("change", ["folding", "cuda"])
def test_it_fails_on_the_released_mlx_and_passes_with_the_series(change: str, tmp_path: Path) -> None:
    mlx = find_mlx_library()
    assert mlx is not None
    hook = HOOK.format(built=str(build(mlx)))
    contribution = load(change)
    lines = "".join(edit.lines for edit in contribution.edits if edit.file.endswith("test_quantized.py"))
    for name in contribution.new_tests:
        base = run(tmp_path / "base.py", BEGIN + CLASS + lines, name)
        series = run(tmp_path / "series.py", BEGIN + hook + CLASS + lines, name)
        assert (bool(base["failed"]), series) == (
            name not in contribution.guards,
            {"ran": 1, "skipped": 0, "failed": []},
        )
