"""A model object with quantized weights: random ones in a stated shape, or a folder's, by mlx-lm's own code."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.measure.decode import lm
from upstream_patch.measure.decode.shapes import BITS, GROUP_SIZE, Shape, shape

SEED = 20261130


@dataclass(frozen=True)
class Built:
    """A model that mlx-lm made, its weights evaluated."""

    name: str
    weights: str
    """``random`` or ``loaded``."""
    config: dict[str, Any]
    module: Any
    vocabulary: int


def build(shape: Shape) -> Built:
    """mlx-lm's Llama class, initialised as mlx.nn does (uniform, so that activations keep their size), in bf16, then
    every Linear and Embedding quantized by mlx.nn. Raises MissingTool without mlx-lm."""
    mx: Any = import_module("mlx.core")
    nn: Any = import_module("mlx.nn")
    llama = lm.lm("models.llama")
    mx.random.seed(SEED)
    module = llama.Model(llama.ModelArgs.from_dict(shape.config))
    module.set_dtype(mx.bfloat16)
    nn.quantize(module, group_size=GROUP_SIZE, bits=BITS)
    _evaluate(module)
    return Built(shape.name, "random", dict(shape.config), module, int(shape.config["vocab_size"]))


def load(folder: Path) -> Built:
    """Real weights by mlx-lm's loader. Raises UserError where they are not quantized, or the folder cannot be read."""
    if lacking := lm.missing():
        raise MissingTool(f"{', '.join(lacking)}: mlx-lm's loader needs them", f"pip install {' '.join(lacking)}")
    try:
        module, config = lm.lm("utils").load_model(folder)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"mlx-lm cannot load {folder}: {error}") from error
    nn: Any = import_module("mlx.nn")
    if not any(isinstance(layer, nn.QuantizedLinear) for _, layer in module.named_modules()):
        raise UserError(f"the weights in {folder} are not quantized: python -m mlx_lm.convert -q quantizes them")
    text = config.get("text_config", config)
    plain = {key: value for key, value in text.items() if isinstance(value, int | float | str)}
    return Built(name_of(str(folder)), "loaded", plain, module, int(text["vocab_size"]))


def named(model: str) -> Built:
    """A known shape with random weights, or, where the name is that of a folder here, the folder's model."""
    return load(Path(model)) if Path(model).is_dir() else build(shape(model))


def name_of(model: str) -> str:
    """Of ``named(model)``: a shape's own, or a folder's last part, as an id may hold it."""
    if not Path(model).is_dir():
        return model
    return "".join(letter if letter.isalnum() else "-" for letter in Path(model).resolve().name.lower()).strip("-")


def _evaluate(module: Any) -> None:
    """One array after the other, so that no more than one lies there unquantized."""
    mx: Any = import_module("mlx.core")
    utils: Any = import_module("mlx.utils")
    for _, array in utils.tree_flatten(module.parameters()):
        mx.eval(array)
    mx.clear_cache()
