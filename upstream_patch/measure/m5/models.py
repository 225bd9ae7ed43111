"""The request's model table: one forward pass over N random tokens with a fresh cache, stock against ours.

Models are folders, or Hub ids, that mlx-lm loads. The samples go into the operators' record.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.measure.m5.slope import ROUNDS
from upstream_patch.records.forward import Forward

VOCABULARY = 32_000
"""Tokens are drawn below this: every model of the table has more."""
WORST = 0.05
"""How far the logits of the last token may be from stock's, as a norm."""


@dataclass(frozen=True)
class Entry:
    """A row of the request's table. ``d1-3B`` is not here: its pass is on a prompt and takes the last row only."""

    name: str
    tokens: tuple[int, ...]


TABLE = (
    Entry("LFM2.5-1.2B-Instruct-4bit", (32,)),
    Entry("Llama-3.2-1B-Instruct-4bit", (128, 512)),
    Entry("Qwen3.5-4B-4bit", (32, 128)),
    Entry("Qwen3.6-27B-4bit", (32, 128)),
    Entry("Qwen3.6-35B-A3B-4bit", (128,)),
)


def entry(given: str) -> Entry:
    """The row of the table that a folder or id names by its last part. Raises UserError for none."""
    name = given.rstrip("/").rpartition("/")[2]
    found = next((each for each in TABLE if each.name.lower() == name.lower()), None)
    if found is None:
        raise UserError(f"{given} is no model of the request's table; known: {', '.join(e.name for e in TABLE)}")
    return found


def run_models(given: Sequence[str]) -> list[Forward]:
    """Raises MissingTool without mlx-lm, UserError for a model that is not in the table or whose logits differ."""
    wanted = [(each, entry(each)) for each in given]
    try:
        load = import_module("mlx_lm").load
        cache = import_module("mlx_lm.models.cache").make_prompt_cache
    except ImportError as error:
        raise MissingTool(f"mlx-lm cannot be imported ({error})", "pip install mlx-lm") from error
    found = []
    for path, row in wanted:
        model, _ = load(path)[:2]
        found += [_forward(row.name, tokens, model, cache) for tokens in row.tokens]
        del model
    return found


def _forward(name: str, tokens: int, model: Any, cache: Callable[[Any], Any]) -> Forward:
    import upstream_patch

    mx: Any = import_module("mlx.core")
    rng = random.Random(tokens)
    ids = mx.array([[rng.randrange(VOCABULARY) for _ in range(tokens)]])

    def stock() -> Any:
        logits = model(ids, cache=cache(model))
        mx.eval(logits)
        return logits

    def ours() -> Any:
        with upstream_patch.installed():
            return stock()

    arms: dict[str, Callable[[], Any]] = {"stock_ms": stock, "ours_ms": ours, "aa_ms": stock}
    last, other = (each()[0, -1].astype(mx.float32) for each in (stock, ours))
    error = float((mx.linalg.norm(other - last) / mx.linalg.norm(last)).item())
    if not error <= WORST:
        raise UserError(f"{name}, {tokens} tokens: our logits are {error:.3g} from stock's, nothing was timed")
    times: dict[str, list[float]] = {arm: [] for arm in arms}
    for number in range(ROUNDS):
        for arm in list(arms) if number % 2 else reversed(arms):
            start = time.perf_counter()
            arms[arm]()
            times[arm].append((time.perf_counter() - start) * 1e3)
    return Forward(model=name, tokens=tokens, logits_error=error, **times)
