"""The drafts' reproduction script tells the truth on a GPU: stock reads the weights once per row, ours once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from upstream_patch.draft.blocks import script
from upstream_patch.kernels.tuning import DEVICE_CLASSES
from upstream_patch.machine import cuda_device

pytestmark = pytest.mark.needs_cuda


def timed(folder: Path, before: str) -> dict[int, float]:
    """M -> microseconds a call; ``before`` runs first in the script's process."""
    path = folder / "reproduce.py"
    path.write_text(script())
    code = f"import runpy; {before}runpy.run_path({str(path)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"M = +(\d+): +([\d.]+) us, error ([\d.]+) of the norm", done.stdout)
    assert [int(m) for m, _, _ in rows] == [1, 2, 3, 4, 5, 6, 7, 8, 16], done.stdout
    assert all(float(error) < 0.02 for _, _, error in rows), done.stdout
    return {int(m): float(us) for m, us, _ in rows}


def test_what_the_script_shows(tmp_path: Path) -> None:
    found = cuda_device()
    assert found is not None
    stock = timed(tmp_path, "")
    # row by row up to 7, then the tile kernel
    assert 5 < stock[7] / stock[1] < 9
    assert stock[8] < stock[7] / 2
    if found[0] not in DEVICE_CLASSES:
        pytest.skip("no kernel of ours is launched on this device class")
    ours = timed(tmp_path, "import upstream_patch; upstream_patch.install(); ")
    assert ours[7] < 1.5 * ours[1]
    assert ours[7] < stock[7] / 3
