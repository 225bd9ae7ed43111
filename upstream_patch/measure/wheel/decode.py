"""Decode with a program that knows nothing of us, in processes of its own, with and without the library preloaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.measure import graphs
from upstream_patch.records.provenance import environment
from upstream_patch.records.schema import WheelDecode
from upstream_patch.series.wheel import Counts, MlxLibrary

PROGRAM = Path(__file__).parent / "plain_decode.py"
_PACKAGE = Path(__file__).parents[3]
BATCHES = (1, 4, 8, 16)
PROMPT, STEPS, SAMPLES = 64, 24, 3
PRELOAD_VARIABLE = "UPSTREAM_PATCH_PRELOAD"
"""Names the file that the preloaded library writes its counts to; see ``series/wheel/native/hook.cpp``."""
MODEL: dict[str, int | float | str | bool] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
"""The shape of Llama-3.1-8B, without its scaling of positions."""


@dataclass(frozen=True)
class Decoded:
    """What the processes did."""

    rows: list[WheelDecode]
    calls: Counts
    """Of the process with the library preloaded."""
    environment: dict[str, str]
    """MLX's and CUDA's variables in all of them."""


def decode(
    built: Path,
    mlx: MlxLibrary,
    model: Mapping[str, int | float | str | bool] = MODEL,
    batches: Sequence[int] = BATCHES,
) -> Decoded:
    """Stock, preloaded, and with ``upstream_patch.install()``, one process after the other.

    Raises UserError where a process fails, or where the preloaded library took no call.
    """
    asked: dict[str, Any] = {"model": dict(model), "batches": list(batches), "prompt": PROMPT}
    asked |= {"steps": STEPS, "samples": SAMPLES}
    with tempfile.TemporaryDirectory() as name:
        report = Path(name) / "counts"
        stock = _run(asked, {})
        wheel = _run(asked, preload(built, mlx, report))
        calls = read_counts(report)
    runtime = _run({**asked, "install": True}, {})
    if stock["imported"] or wheel["imported"]:
        raise UserError("the program imported upstream_patch: what it shows is no proof of the library alone")
    if not calls.small_m:
        raise UserError(f"the preloaded library took no call of the program ({calls})")
    rows = [
        WheelDecode(
            batch=plain["batch"],
            steps=STEPS,
            stock_s=plain["seconds"],
            wheel_s=hooked["seconds"],
            runtime_s=patched["seconds"],
            same_as_runtime=hooked["tokens"] == patched["tokens"],
        )
        for plain, hooked, patched in zip(stock["decoded"], wheel["decoded"], runtime["decoded"], strict=True)
    ]
    return Decoded(rows, calls, environment(graphs.as_given()))


def preload(built: Path, mlx: MlxLibrary, report: Path) -> dict[str, str]:
    """The environment in which the dynamic linker puts the library into a program that loads this MLX."""
    paths = [str(mlx.path.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {"LD_PRELOAD": str(built), "LD_LIBRARY_PATH": os.pathsep.join(paths), PRELOAD_VARIABLE: str(report)}


def read_counts(report: Path) -> Counts:
    """Raises UserError where the library wrote none: it was not loaded, or the program ended otherwise."""
    try:
        return Counts(*map(int, report.read_text(encoding="utf-8").split()))
    except (OSError, TypeError, ValueError) as error:
        raise UserError(f"the preloaded library left no counts ({error})") from error


def _run(asked: Mapping[str, Any], more: Mapping[str, str]) -> dict[str, Any]:
    """The program's answer. The package is on its path, so that the same program can ask for ``install()``; MLX's graph
    limits are its own, as in a program that knows nothing of us."""
    path = os.pathsep.join([str(_PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(PROGRAM), json.dumps(asked)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**graphs.as_given(), "PYTHONPATH": path, **more},
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        if "mlx_lm" in last:
            raise MissingTool(f"mlx-lm cannot be imported ({last})", "pip install mlx-lm")
        raise UserError(f"the decoding program failed: {last}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
