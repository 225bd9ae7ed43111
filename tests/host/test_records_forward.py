"""Whole models in a benchmark's record: paired samples, each pass once."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from upstream_patch.records import facts
from upstream_patch.records.forward import Forward, forward_values
from upstream_patch.records.store import RecordError

MS = {"stock_ms": [16.0, 16.1, 15.9] * 3, "ours_ms": [8.0, 8.1, 7.9] * 3, "aa_ms": [16.1, 15.9, 16.0] * 3}


def forward(**changes: Any) -> Forward:
    return Forward.model_validate({"model": "Qwen3.5-4B-4bit", "tokens": 32, "logits_error": 0.01, **MS, **changes})


def test_a_pass_is_facts_of_its_model_and_length(synthetic: Any) -> None:
    body = synthetic.bench([synthetic.bench_row(2)]).model_copy(update={"forwards": [forward(), forward(tokens=128)]})
    synthetic.write(body)
    found = {fact.id: (fact.value, fact.unit, fact.stale) for fact in facts.derive(synthetic.load(), lambda name: "")}
    stem = "forward.test.Qwen3.5-4B-4bit.T128"
    said = {name.removeprefix(f"{stem}."): value for name, value in found.items() if name.startswith(stem)}
    assert str(said.pop("verdict_reason")[0]).endswith("clear of the noise")
    assert {name: said.pop(name)[1:] for name in ("speedup_low", "speedup_high")} == {
        **dict.fromkeys(("speedup_low", "speedup_high"), ("ratio", True)),
    }
    value, *rest = said.pop("speedup")
    assert value == pytest.approx(2.0, rel=1e-3) and rest == ["ratio", True]
    assert said == {
        "stock_ms": (16.0, "ms", False),
        "ours_ms": (8.0, "ms", True),
        "verdict": ("FASTER", "text", True),
        "head": ("every token", "text", False),
        "logits_error": (0.01, "norm", True),
    }
    assert dict(forward_values(forward(last_only=True)))["head"][0] == "last token"


def test_samples_are_paired_and_a_pass_stands_there_once(synthetic: Any) -> None:
    with pytest.raises(ValidationError, match="they are paired by round"):
        forward(ours_ms=[8.0] * 4)
    body = synthetic.bench([synthetic.bench_row(2)]).model_copy(update={"forwards": [forward(), forward()]})
    with pytest.raises(RecordError, match=r"body\.forwards\.1: says again what is in body\.forwards\.0"):
        synthetic.write(body)
