"""K x N of the quantized matmuls of a decode step, computed from the numbers in a model's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from upstream_patch.measure.decode.shapes import SHAPES

CONFIGS: dict[str, Mapping[str, Any]] = {
    **{name: shape.config for name, shape in SHAPES.items()},
    # https://huggingface.co/Qwen/Qwen3.5-4B, model overview: three of four layers are Gated DeltaNet
    "qwen3.5-4b": {
        "hidden_size": 2560,
        "intermediate_size": 9216,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "attn_output_gate": True,
        "linear_num_value_heads": 32,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "vocab_size": 248320,
    },
    # https://huggingface.co/Qwen/Qwen3.6-27B, model overview; the class is that of Qwen3.5
    "qwen3.6-27b": {
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "attn_output_gate": True,
        "linear_num_value_heads": 48,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "vocab_size": 248320,
    },
    # https://github.com/google/gemma_pytorch/blob/main/gemma/config.py, get_config_for_9b
    "gemma-2-9b": {
        "hidden_size": 3584,
        "intermediate_size": 14336,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "vocab_size": 256000,
    },
}
"""Names and meaning as in transformers."""

Shape = tuple[int, int]
"""K, N."""


def projections(config: Mapping[str, Any]) -> tuple[Shape, ...]:
    """Each shape once: attention, Gated DeltaNet where there is one, MLP, head (tied or not, it is multiplied)."""
    hidden, mlp, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    gated = 2 if config.get("attn_output_gate") else 1  # the gate comes out of the query's projection
    shapes = [(hidden, gated * queries), (hidden, keys), (queries, hidden)]
    if "linear_num_value_heads" in config:
        values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
        mixed = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"] + values
        decay = config["linear_num_value_heads"]  # and the update's strength, of the same shape
        shapes += [(hidden, mixed), (hidden, values), (hidden, decay), (values, hidden)]
    shapes += [(hidden, mlp), (mlp, hidden), (hidden, config["vocab_size"])]
    return tuple(dict.fromkeys(shapes))


def all_projections() -> tuple[Shape, ...]:
    """Of all models, each shape once."""
    return tuple(dict.fromkeys(shape for config in CONFIGS.values() for shape in projections(config)))
