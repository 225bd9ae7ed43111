"""The model table of ``nox -s m5``, with a model that is one quantized matmul."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

mx = pytest.importorskip("mlx.core", reason="needs MLX: pip install 'mlx[cpu]'")
from upstream_patch import ops, ops_metal  # noqa: E402
from upstream_patch.errors import MissingTool, UserError  # noqa: E402
from upstream_patch.measure.m5 import models  # noqa: E402


class Model:
    """Logits of an embedding times quantized weights; notes which operation it called, on how many tokens."""

    def __init__(self) -> None:
        self.called: list[tuple[Any, int]] = []
        self.caches: list[object] = []
        self.weights = mx.quantize(mx.random.normal((64, 64), key=mx.random.key(1)))

    def __call__(self, ids: Any, cache: object) -> Any:
        self.called.append((mx.quantized_matmul, ids.shape[1]))
        self.caches.append(cache)
        x = mx.sin(ids[..., None] * mx.arange(1, 65) / 64)
        return mx.quantized_matmul(x, *self.weights)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    found = Model()
    package, cache = ModuleType("mlx_lm"), ModuleType("mlx_lm.models.cache")
    monkeypatch.setattr(package, "load", lambda path: (found, None), raising=False)
    monkeypatch.setattr(cache, "make_prompt_cache", lambda given: object(), raising=False)
    for name, module in (("mlx_lm", package), ("mlx_lm.models", ModuleType("mlx_lm.models"))):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "mlx_lm.models.cache", cache)
    return found


def ours(x: Any, *rest: Any, **more: Any) -> Any:
    return ops.stock_quantized_matmul(x, *rest, **more)


def test_both_arms_run_in_turn_each_with_a_fresh_cache(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops_metal, "chosen", lambda: ours)
    stock = mx.quantized_matmul
    short, long = models.run_models(["mlx-community/Llama-3.2-1B-Instruct-4bit"])
    assert (short.tokens, long.tokens) == (128, 512)
    assert short.logits_error == 0.0
    assert {len(times) for times in (short.stock_ms, short.ours_ms, short.aa_ms)} == {12}
    assert min(*short.stock_ms, *short.ours_ms) > 0
    called = [which for which, tokens in model.called if tokens == 128]
    # once each for the check, then twelve rounds of stock, ours, stock, every second one backwards
    assert called == [stock, ours] + [stock, ours, stock] * 12
    assert len(set(map(id, model.caches))) == len(model.caches)
    assert short.text.startswith("Llama-3.2-1B-Instruct-4bit, 128 tokens: ")


@pytest.mark.parametrize("tied", [True, False])
def test_of_a_prompts_pass_the_head_takes_the_last_token(
    tied: bool, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops_metal, "chosen", lambda: ours)
    rows: list[tuple[int, ...]] = []

    def head(hidden: Any) -> Any:
        rows.append(hidden.shape)
        return hidden

    class Layers:
        embed_tokens = SimpleNamespace(as_linear=head)

        def __call__(self, ids: Any, cache: object) -> Any:
            return model(ids, cache)

    whole = SimpleNamespace(model=Layers(), **({} if tied else {"lm_head": head}))
    monkeypatch.setattr(sys.modules["mlx_lm"], "load", lambda path: (SimpleNamespace(language_model=whole), None))
    found = models.run_models(["LiquidAI/d1-3B-4bit"])
    assert [(each.tokens, each.last_only) for each in found] == [(85, True), (643, True)]
    assert set(rows) == {(1, 1, 64)}
    assert len(rows) == 2 * (2 + 3 * 12)
    monkeypatch.setattr(sys.modules["mlx_lm"], "load", lambda path: (model, None))
    with pytest.raises(UserError, match="Model keeps no layers apart from its head"):
        models.run_models(["LiquidAI/d1-3B-4bit"])


def test_logits_that_differ_are_not_timed(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops_metal, "chosen", lambda: lambda *a, **k: ours(*a, **k) * 1.2)
    with pytest.raises(UserError, match=r"our logits are 0\.2 from stock's, nothing was timed"):
        models.run_models(["LFM2.5-1.2B-Instruct-4bit"])


def test_without_mlx_lm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx_lm", None)
    with pytest.raises(MissingTool, match="pip install mlx-lm"):
        models.run_models(["Qwen3.5-4B-4bit"])
