"""Synthetic records of an M5 Max, by the stages that write the real ones. Nobody measured these numbers."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from upstream_patch.contribution import Context, Outcome, m5, run_chain
from upstream_patch.draft import proving
from upstream_patch.draft.contributions import METAL
from upstream_patch.draft.documents import Document
from upstream_patch.machine import Gpu, Machine
from upstream_patch.measure.suites import REQUESTED
from upstream_patch.records import facts, kernel_hash, store
from upstream_patch.records.build_body import BuildBody, SuiteRun
from upstream_patch.records.forward import Forward
from upstream_patch.records.schema import BenchBody, BenchRow, CaseResult, CorrectnessBody, Protocol
from upstream_patch.routing_metal import M5, instance, route
from upstream_patch.series import content_hash, load

MAC = Machine(
    os="macOS 26.2",
    arch="arm64",
    cpu="Synthetic",
    cpu_count=1,
    memory_bytes=2**30,
    python="3.12.0",
    gpu=Gpu(name="Apple M5 Max", vendor="Apple", multiprocessors=40),
)
WORDS = json.loads((Path(__file__).parent / "data" / "person_words_metal.json").read_text())
WOBBLE = [1 + 0.001 * ((7 * i) % 5 - 2) for i in range(12)]
MODEL = "Llama-3.2-1B-Instruct-4bit"
SERIES = content_hash([load("metal")])


def operators(good: Any) -> BenchBody:
    """Stock takes 20 us; ours half of it where a kernel of ours runs."""
    rows = []
    for problem in REQUESTED:
        taken = route(problem, M5)
        staged = instance(problem, taken)
        rows.append(
            BenchRow(
                problem=problem,
                protocol=Protocol(cache="hot", order="chain", copies=8, ops_per_sample=64, timer="synthetic"),
                stock_us=[20.0 * w for w in WOBBLE],
                ours_us=[(10.0 if staged else 20.0) * w for w in WOBBLE],
                aa_us=[20.0 * w for w in WOBBLE[1:] + WOBBLE[:1]],
                check=good,
                stock_kernels=[],
                ours_kernels=[staged.host_name] if staged else [],
                route=taken.text,
            )
        )
    return BenchBody(
        suite="request-metal", probe_gbps=[500.0], probe_bytes=2**30, launch_floor_us=[2.0, 2.0, 2.0], rows=rows
    )


def cases(good: Any) -> CorrectnessBody:
    problem = REQUESTED[1]
    taken = instance(problem, route(problem, M5))
    assert taken is not None
    case = CaseResult(
        case="four_parts",
        problem=problem,
        seed=0,
        check=good,
        repeats_equal=20,
        rows_equal_alone=True,
        written=True,
        kernels=[taken.host_name],
    )
    return CorrectnessBody(cases=[case])


def forwards() -> list[Forward]:
    ms = {"stock_ms": [16.0 * w for w in WOBBLE], "ours_ms": [8.0 * w for w in WOBBLE]}
    return [
        Forward(model=MODEL, tokens=tokens, aa_ms=ms["stock_ms"][1:] + ms["stock_ms"][:1], logits_error=0.01, **ms)
        for tokens in (128, 512)
    ]


def measured(evidence: Path, good: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of the correctness, the operators and a model, as ``nox -s m5`` writes them on a Mac."""
    for name in ("need_gpu", "need_record"):
        monkeypatch.setattr(m5, name, lambda: M5)
    monkeypatch.setattr("upstream_patch.recording.probe", lambda: MAC)
    monkeypatch.setattr("upstream_patch.recording.versions", lambda: {"mlx": "0.32.4", "commit": "synthetic"})
    monkeypatch.setattr("upstream_patch.measure.m5.cases.run_matrix", lambda gpu, progress: cases(good))
    monkeypatch.setattr("upstream_patch.measure.m5.operators.run_table", lambda gpu, progress: operators(good))
    monkeypatch.setattr("upstream_patch.measure.m5.models.run_models", lambda given: forwards())
    command = f"python -m upstream_patch m5 --model {MODEL}"
    context = Context(evidence=evidence, out=evidence.parent, console=Console(file=io.StringIO()), command=command)
    evidence.mkdir(exist_ok=True)
    wanted = ("correctness", "models", "operators")
    results = run_chain([one for one in m5.stages([MODEL]) if one.name in wanted], context)
    assert {one.outcome for one in results.values()} == {Outcome.RAN}, results


def built(evidence: Path, upstream: str) -> Path:
    """A record of a build for Metal: the two new tests fail on the base and pass with the series."""
    new = ["test_qmm_mid_m", "test_qmm_t_batched_and_strided"]
    body = BuildBody(
        backend="metal",
        upstream=upstream,
        contributions=["metal"],
        series_sha256=SERIES,
        tree="3" * 40,
        options=[],
        tests="python/tests/test_quantized.py",
        new_tests=new,
        runs=[
            SuiteRun(arm=arm, metal_jit=jit, tf32=tf32, ran=57, skipped=1, failed=failed, log=f"{arm}{jit}{tf32}.log")
            for arm, failed in (("base", [f"test_quantized.T.{name}" for name in new]), ("series", []))
            for jit in (False, True)
            for tf32 in (False, True)
        ],
    )
    return store.write(
        body,
        host="m5max",
        command="python -m upstream_patch build --mlx PATH",
        machine=MAC,
        versions={"mlx": "0.32.4", "commit": "synthetic"},
        kernel=kernel_hash.identity(kernel_hash.METAL),
        root=evidence,
    )


def derived(here: Any) -> list[facts.Fact]:
    return facts.derive(store.load_all(here.evidence))


def draft(here: Any, document: Document, fill: bool = False) -> Path:
    records, found = store.load_all(here.evidence), derived(here)
    proving.refresh(here.work, records, METAL.of(found), METAL)
    path = document.write(here.work, found)
    text = path.read_text("utf-8")
    for hole, words in WORDS[document.name].items() if fill else ():
        assert f"TODO(person): {hole}" in text
        text = text.replace(f"TODO(person): {hole}", words)
    path.write_text(text, "utf-8")
    return path
