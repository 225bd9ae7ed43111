"""The models whose decode is measured, as the numbers that mlx-lm's Llama class takes: no download, no weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from upstream_patch.errors import UserError

BATCHES = (1, 2, 4, 6, 7, 8, 12, 16, 32)
FIRST = (8, 1, 16, 7, 4, 32, 2, 12, 6)
"""The order in which they are measured: what the targets ask for comes first, should the time end."""
PROMPT = 128
"""Tokens of every prompt."""
BITS, GROUP_SIZE = 4, 64


@dataclass(frozen=True)
class Shape:
    """``config`` as in the model's config.json, with the names that ``mlx_lm.models.llama.ModelArgs`` has."""

    name: str
    config: dict[str, Any]


def _llama3(factor: float) -> dict[str, Any]:
    return {
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }


_COMMON = {
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
}

SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            "llama-3.1-8b",
            {
                **_COMMON,
                "hidden_size": 4096,
                "num_hidden_layers": 32,
                "intermediate_size": 14336,
                "head_dim": 128,
                "tie_word_embeddings": False,
                "rope_scaling": _llama3(8.0),
            },
        ),
        Shape(
            "llama-3.2-1b",
            {
                **_COMMON,
                "hidden_size": 2048,
                "num_hidden_layers": 16,
                "intermediate_size": 8192,
                "head_dim": 64,
                "tie_word_embeddings": True,
                "rope_scaling": _llama3(32.0),
            },
        ),
    )
}


def shape(name: str) -> Shape:
    """Raises UserError that lists the known names."""
    if name not in SHAPES:
        raise UserError(f"there is no model shape {name!r}; known: {', '.join(SHAPES)}")
    return SHAPES[name]
