"""From the verb's call to the record, with a real model on the CPU; only what needs a GPU is replaced."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from upstream_patch import correctness, ops, recording, resuming
from upstream_patch.errors import UserError
from upstream_patch.measure import bench, mlx_device, timer
from upstream_patch.measure.decode import arms, loop, report, run, run_decode, shapes, trace
from upstream_patch.measure.probe import SHAPES, ReadProbe
from upstream_patch.records.decode_schema import DecodeBody
from upstream_patch.records.schema import Record
from upstream_patch.records.store import verify

pytestmark = pytest.mark.needs_decode

CONFIG = {
    **shapes.SHAPES["llama-3.2-1b"].config,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 64,
}


@dataclass
class Gpu:
    """Stands in for the device and its timer."""

    device: Any = None

    def calibrate(self) -> float:
        return 0.0


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    traced: list[list[int]] = []

    def trace_of(model: str, batches: list[int], timeout_s: float) -> Any:
        traced.append(batches)
        return [], "no tracer here"

    for where, name, value in (
        (shapes, "SHAPES", {"small": shapes.Shape("small", CONFIG)}),
        (correctness, "compile_ahead", lambda cases: None),
        (mlx_device, "MlxDevice", Gpu),
        (timer, "Timer", Gpu),
        (bench, "normal_probe", lambda *_: ReadProbe([900.0] * 3, 1, SHAPES[0], {})),
        (trace, "traced", trace_of),
        (recording, "require_cuda", lambda: None),
        (resuming, "host_id", lambda machine: "test"),
        *((loop, each, 2) for each in ("LEAST_STEPS", "MOST_STEPS")),
        *((module, "PROMPT", 4) for module in (loop, run)),
    ):
        monkeypatch.setattr(where, name, value)
    return traced


def body_of(synthetic: Any) -> DecodeBody:
    (loaded,) = synthetic.load()
    body = Record.model_validate(loaded.record.model_dump()).body
    assert isinstance(body, DecodeBody)
    return body


def test_a_run_becomes_a_record_that_stands(synthetic: Any, no_gpu: list[list[int]], tmp_path: Path) -> None:
    stored = recording.record_decode("x", ["small"], [1, 2, 8], synthetic.root, out=tmp_path)
    assert stored.detail == "decode of small, 3 rows"
    assert verify(synthetic.root) == []
    body = body_of(synthetic)
    assert [row.batch for row in body.rows] == [1, 2, 8]
    assert (body.probe_gbps, body.tracer, body.traces) == ([900.0] * 3, "no tracer here", [])
    assert no_gpu == [[1, 8]]  # of the batch sizes that are traced, those that were measured
    # tied weights: the embedding is the head, and it is read
    assert (body.models[0].problems[-1].n, len(body.models[0].problems)) == (64, 8)
    console = Console(width=100, record=True, file=StringIO())
    console.print(report.table(body))
    assert "small.B8" in console.export_text()


def test_what_is_wrong_is_raised_once_the_rest_is_stored(
    synthetic: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def twice(x: Any, *rest: Any, **named: Any) -> Any:
        y = ops.stock_quantized_matmul(x, *rest, **named)
        return 2 * y if x.shape[0] == 2 else y

    def wrong() -> AbstractContextManager[None]:
        return arms.matmul_is(twice)

    monkeypatch.setitem(arms.ARMS, "ours", wrong)
    with pytest.raises(
        UserError, match=r"^WRONG: decode, ours at 2 sequences .*\(1 such rows; the others are in .*json"
    ):
        recording.record_decode("x", ["small"], [1, 2], synthetic.root, out=tmp_path)
    assert [row.batch for row in body_of(synthetic).rows] == [1]
    monkeypatch.setitem(arms.ARMS, "folded", wrong)
    with pytest.raises(UserError, match="no row was measured: WRONG: decode, folded at 2 sequences"):
        recording.record_decode("x", ["small"], [2], synthetic.root, out=tmp_path)
    assert len(synthetic.load()) == 1


def test_a_stopped_run_goes_on_and_traces_what_both_measured(
    synthetic: Any, no_gpu: list[list[int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured = run._row

    def stops(built: Any, batch: int, *rest: Any) -> Any:
        if batch == 1:
            raise KeyboardInterrupt
        return measured(built, batch, *rest)

    monkeypatch.setattr(run, "_row", stops)
    with pytest.raises(KeyboardInterrupt):
        recording.record_decode("x", ["small"], [1, 8], synthetic.root, out=tmp_path)
    body = body_of(synthetic)
    assert [row.batch for row in body.rows] == [8]
    missing = [f"not run, stopped by Ctrl-C: {name}" for name in ("small.B1", "traces")]
    assert [note for note in body.notes if note.startswith("not run")] == missing
    assert no_gpu == []
    monkeypatch.setattr(run, "_row", measured)
    stored = recording.record_decode("x", ["small"], [1, 8], synthetic.root, out=tmp_path)
    assert stored.detail == "decode of small, 1 rows"
    assert no_gpu == [[1, 8]]
    assert verify(synthetic.root) == []
    assert sorted(row.batch for loaded in synthetic.load() for row in loaded.record.body.rows) == [1, 8]


def test_mlx_failing_at_one_size_costs_that_size(
    synthetic: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prefill = loop.prefill

    def full(built: Any, batch: int) -> loop.State:
        if batch == 8:
            raise RuntimeError("[malloc] Unable to allocate\n1 bytes")
        return prefill(built, batch)

    monkeypatch.setattr(loop, "prefill", full)
    stored = recording.record_decode("x", ["small"], [1, 8], synthetic.root, out=tmp_path)
    assert stored.detail == "decode of small, 1 rows, 1 left out (see its notes)"
    assert "failed: small.B8: [malloc] Unable to allocate 1 bytes" in body_of(synthetic).notes


def test_a_generator_that_fails_leaves_the_row(synthetic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(run, "_generated", failing)
    body = run_decode(["small"], [1], machine=synthetic.machine, console=Console(quiet=True))
    assert [arm.generator_ms for arm in body.rows[0].arms.values()] == [[], [], []]
    assert "no BatchGenerator: small.B1: no such kernel" in body.notes
