"""The request's model table: one forward pass over N random tokens with a fresh cache, stock against ours.

Models are folders, or Hub ids, that mlx-lm loads. The samples go into the operators' record.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.measure.suites import MODEL_PASSES, SLOPE, VOCABULARY, ModelPass
from upstream_patch.records.forward import Forward

WORST = 0.05
"""How far the logits of the last token may be from stock's, as a norm."""


def entry(given: str) -> ModelPass:
    """The row of the table that a folder or id names by its last part. Raises UserError for none."""
    name = given.rstrip("/").rpartition("/")[2]
    found = next((each for each in MODEL_PASSES if each.name.lower() == name.lower()), None)
    if found is None:
        raise UserError(f"{given} is no model of the request's table; known: {', '.join(e.name for e in MODEL_PASSES)}")
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
        found += [_forward(row, tokens, model, cache) for tokens in row.tokens]
        del model
    return found


def _last_logits(model: Any, ids: Any, cache: Any) -> Any:
    """[1, 1, vocabulary]: the head on the last token. Raises UserError for a model that is not built as mlx-lm's."""
    inner = getattr(model, "language_model", model)
    layers = getattr(inner, "model", None)
    if layers is None:
        raise UserError(f"{type(model).__name__} keeps no layers apart from its head, so its last row cannot be timed")
    hidden = layers(ids, cache=cache)[:, -1:]
    head = getattr(inner, "lm_head", None)
    return layers.embed_tokens.as_linear(hidden) if head is None else head(hidden)


def _forward(row: ModelPass, tokens: int, model: Any, cache: Callable[[Any], Any]) -> Forward:
    import upstream_patch

    mx: Any = import_module("mlx.core")
    rng = random.Random(tokens)
    ids = mx.array([[rng.randrange(VOCABULARY) for _ in range(tokens)]])

    def stock() -> Any:
        fresh = cache(model)
        logits = _last_logits(model, ids, fresh) if row.last_only else model(ids, cache=fresh)
        mx.eval(logits)
        return logits

    def ours() -> Any:
        with upstream_patch.installed():
            return stock()

    arms: dict[str, Callable[[], Any]] = {"stock_ms": stock, "ours_ms": ours, "aa_ms": stock}
    last, other = (each()[0, -1].astype(mx.float32) for each in (stock, ours))
    error = float((mx.linalg.norm(other - last) / mx.linalg.norm(last)).item())
    if not error <= WORST:
        raise UserError(f"{row.name}, {tokens} tokens: our logits are {error:.3g} from stock's, nothing was timed")
    times: dict[str, list[float]] = {arm: [] for arm in arms}
    for number in range(SLOPE.rounds):
        for arm in list(arms) if number % 2 else reversed(arms):
            start = time.perf_counter()
            arms[arm]()
            times[arm].append((time.perf_counter() - start) * 1e3)
    return Forward(model=row.name, tokens=tokens, last_only=row.last_only, logits_error=error, **times)
