"""A program that knows only MLX and mlx-lm: greedy decoding with random weights. Prints one JSON object.

    python plain_decode.py '{"model": {...}, "batches": [1, 4], "prompt": 64, "steps": 24, "samples": 3}'

With ``"install": true`` it calls ``upstream_patch.install()`` first; else nothing of this package is imported.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def main() -> None:
    asked = json.loads(sys.argv[1])
    # mlx-lm's models, without what its __init__ imports for tokenizers and downloads
    package, spec = ModuleType("mlx_lm"), find_spec("mlx_lm")
    package.__path__ = list((spec and spec.submodule_search_locations) or [])
    sys.modules["mlx_lm"] = package
    mx: Any = import_module("mlx.core")
    if asked.get("install"):
        import_module("upstream_patch").install()
    model = build(mx, asked["model"])
    decoded = [decode(mx, model, asked, batch) for batch in asked["batches"]]
    print(json.dumps({"decoded": decoded, "imported": "upstream_patch" in sys.modules}))


def build(mx: Any, config: dict[str, Any]) -> Any:
    llama, nn = import_module("mlx_lm.models.llama"), import_module("mlx.nn")
    mx.random.seed(7)
    model = llama.Model(llama.ModelArgs.from_dict(config))
    model.set_dtype(mx.bfloat16)
    nn.quantize(model, group_size=64, bits=4)
    for _, array in import_module("mlx.utils").tree_flatten(model.parameters()):
        mx.eval(array)  # one after the other: no more than one lies there unquantized
    mx.clear_cache()
    return model


def decode(mx: Any, model: Any, asked: dict[str, Any], batch: int) -> dict[str, Any]:
    """Seconds of each sample's steps, and the tokens of the last [batch, steps]."""
    prompts = mx.random.randint(0, asked["model"]["vocab_size"], (batch, asked["prompt"]), key=mx.random.key(batch))
    cache = import_module("mlx_lm.models.cache").make_prompt_cache(model)
    first = mx.argmax(model(prompts, cache=cache)[:, -1], axis=-1)
    mx.eval(first)
    seconds: list[float] = []
    tokens: list[Any] = []
    for _ in range(asked["samples"] + 1):  # the first one compiles kernels
        for layer in cache:
            layer.trim(layer.offset - asked["prompt"])
        y, tokens = first, []
        begin = time.perf_counter()
        for _ in range(asked["steps"]):
            y = mx.argmax(model(y[:, None], cache=cache)[:, -1], axis=-1)
            mx.async_eval(y)
            tokens.append(y)
        mx.eval(y)
        seconds.append(time.perf_counter() - begin)
    return {"batch": batch, "seconds": seconds[1:], "tokens": mx.stack(tokens, axis=1).tolist()}


if __name__ == "__main__":
    main()
