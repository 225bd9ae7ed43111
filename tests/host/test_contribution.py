"""The chain: what stops what, what each outcome says, and the whole of it on a machine without a GPU."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from upstream_patch import kernels, recording
from upstream_patch.contribution import STAGES, Context, Outcome, Result, Stage, contribution, run_chain, show_summary
from upstream_patch.correctness import cover as covering
from upstream_patch.correctness import metal_cover as metal_covering
from upstream_patch.correctness import metal_plants, simulated, staged_plants
from upstream_patch.correctness import staged_cover as staged_covering
from upstream_patch.correctness.outcome import Outcome as Simulated
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.machine import Gpu
from upstream_patch.problem import Problem
from upstream_patch.records import dispatch_hash, kernel_hash
from upstream_patch.records.schema import HostCost

CHAIN = (
    "doctor",
    "build",
    "correctness",
    "simulate",
    "sanitize",
    "bench",
    "run host code",
    "profile",
    "peers",
    "decode",
    "records verify",
    "report",
    "draft issue",
    "draft pr",
    "draft docs",
)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    return Context(evidence=tmp_path / "evidence", out=tmp_path / "out", console=console)


def said(context: Context) -> str:
    assert isinstance(context.console.file, io.StringIO)
    return context.console.file.getvalue()


def ok(name: str, *needs: str) -> Stage:
    return Stage(name, lambda _: Result(Outcome.RAN, f"{name} done"), needs)


def raising(name: str, error: Exception, *needs: str) -> Stage:
    def run(_: Context) -> Result:
        raise error

    return Stage(name, run, needs)


def test_a_failed_stage_stops_only_what_needs_it(context: Context) -> None:
    stages = (ok("a"), raising("b", UserError("b is wrong"), "a"), ok("c", "b"), ok("d", "c"), ok("e", "a"))
    results = run_chain(stages, context)
    assert {name: result.outcome for name, result in results.items()} == {
        "a": Outcome.RAN,
        "b": Outcome.FAILED,
        "c": Outcome.SKIPPED,
        "d": Outcome.SKIPPED,
        "e": Outcome.RAN,
    }
    assert results["b"].detail == "b is wrong"
    assert results["d"].detail == "needs b, which failed"


def test_a_missing_tool_skips_with_the_way_out_and_stops_nothing(context: Context) -> None:
    results = run_chain((raising("a", MissingTool("no ncu", "install it")), ok("b", "a")), context)
    assert results["a"] == Result(Outcome.SKIPPED, "no ncu", "install it")
    assert results["b"].outcome is Outcome.RAN


def test_a_fault_of_ours_is_kept_for_the_report_and_the_chain_goes_on(context: Context) -> None:
    results = run_chain((raising("draft x", ValueError("first\nsecond")), ok("b")), context)
    assert results["draft x"].outcome is Outcome.FAILED
    assert results["draft x"].detail == "ValueError: first"
    log = context.out / "draft-x.traceback.txt"
    assert "second" in log.read_text()
    assert str(log) in str(results["draft x"].way_out)
    assert results["b"].outcome is Outcome.RAN


def test_the_exit_code_tells_of_a_failure_and_of_nothing_else(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped = raising("a", MissingTool("no ncu", "install it"))
    for stages, code in (((skipped, ok("b")), 0), ((skipped, raising("b", UserError("wrong")), ok("c")), 1)):
        monkeypatch.setattr("upstream_patch.contribution.STAGES", stages)
        assert contribution(context) == code
    kept = json.loads((context.out / "stages.json").read_text())
    assert [(line["stage"], line["outcome"]) for line in kept] == [("a", "skipped"), ("b", "FAILED"), ("c", "ran here")]
    assert kept[1]["detail"] == "wrong"


def test_an_interrupt_ends_the_chain(context: Context) -> None:
    def stop(_: Context) -> Result:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_chain((Stage("a", stop), ok("b")), context)


def test_every_stage_has_its_slot_and_needs_earlier_ones() -> None:
    assert tuple(stage.name for stage in STAGES) == CHAIN
    for number, stage in enumerate(STAGES):
        assert set(stage.needs) <= set(CHAIN[:number])


def test_markup_in_a_message_is_shown_as_it_is(context: Context) -> None:
    stages = (raising("a", MissingTool("no NVRTC", "pip install 'mlx-upstream-patch[compile]'")),)
    show_summary(stages, run_chain(stages, context), context)
    assert "mlx-upstream-patch[compile]" in said(context)


@pytest.fixture
def few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel of each dtype for one arch: test_compile takes them all."""
    few = list({variant.dtype: variant for variant in kernels.variants()}.values())
    monkeypatch.setattr(kernels, "variants", lambda arch=None, formats=(): few)
    monkeypatch.setattr(kernels, "ARCHS", ("sm_90",))
    # and a few launches in the simulator: test_simulate_small_m takes more, nox -s simulate all
    launches = covering.cover(12)[:3]
    metal = [case for case in metal_covering.metal_cover() if case.route == "splitk"][:2]
    monkeypatch.setattr(covering, "cover", lambda count, seed: launches)
    monkeypatch.setattr(covering, "fixed_launches", list)
    monkeypatch.setattr(covering, "turning_launches", list)
    monkeypatch.setattr(metal_covering, "metal_cover", lambda full, seed: metal)
    ours = staged_covering.staged_cover()[:2]
    monkeypatch.setattr(staged_covering, "staged_cover", lambda full, seed: ours)
    # planted faults have tests of their own
    for module, find, needed in (
        (simulated, "find_plants", "_mutants"),
        (metal_plants, "find_metal_plants", "kernels"),
        (staged_plants, "find_staged_plants", "kernels"),
    ):
        monkeypatch.setattr(module, find, no_plants)
        monkeypatch.setattr(module, needed, lambda: iter(()))


def no_plants() -> Simulated:
    return Simulated(cases=1, launches=1)


def no_gpu() -> None:
    raise MissingTool("no CUDA GPU that MLX can use", "take one")


@pytest.mark.needs_compile
@pytest.mark.needs_metal_front
@pytest.mark.usefixtures("few_kernels")
def test_without_a_gpu_it_ends_with_the_draft_and_says_what_was_not_run(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "require_cuda", no_gpu)
    assert contribution(context) == 0
    text = said(context)
    assert (context.out / "drafts" / "issue_cuda_small_m.md").is_file()
    summary = text.partition("summary ─")[2]
    outcomes = {
        line[: len("records verify")].strip(): line[len("records verify") :].strip() for line in summary.splitlines()
    }
    assert outcomes["doctor"].startswith("ran here")
    assert outcomes["build"].startswith("ran here")
    assert outcomes["correctness"].split()[:4] == ["skipped", "no", "CUDA", "GPU"]
    assert outcomes["bench"].split()[:4] == ["skipped", "no", "CUDA", "GPU"]
    of_simulate = " ".join(outcomes["simulate"].split())
    assert of_simulate.startswith("ran here 3 cases (6 launches) of the CUDA kernel, 2 cases (6 launches)")
    assert outcomes["draft issue"].startswith("ran here")
    assert outcomes["draft pr"].startswith("ran here")
    not_run = summary.partition("Nobody has run this yet")[2]
    for host in ("h200", "gb10", "m5"):
        assert f"\n{host} " in not_run
    assert max(len(line) for line in text.splitlines()) <= 100


def test_without_a_gpu_it_rests_on_the_committed_records_and_says_whose(
    context: Context, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from upstream_patch.records import store

    evidence = root / "evidence"
    hosts = {loaded.record.host for loaded in store.load_all(evidence) if loaded.record.body.kind == "ncu"}
    assert "h200" in hosts
    monkeypatch.setattr(recording, "require_cuda", no_gpu)
    here = replace(context, evidence=evidence)
    results = run_chain([stage for stage in STAGES if stage.name == "profile"], here)
    assert results["profile"].outcome is Outcome.RECORDS
    assert all(host in results["profile"].detail for host in hosts)
    show_summary([stage for stage in STAGES if stage.name == "profile"], results, here)
    committed, _, not_run = said(context).partition("Nobody has run this yet")
    assert all(f"\n{host} " in committed for host in hosts)
    assert not any(line.split()[0] in hosts and " profile" in line for line in not_run.splitlines()[1:] if line.strip())


@pytest.mark.parametrize(
    ("dispatch", "kernel", "says"),
    [
        (True, True, "h200 of 2026-11-01"),
        (False, True, "h200 of 2026-11-01, host cost STALE: not of today's dispatch"),
        (False, False, "h200 of 2026-11-01, STALE: the kernel changed since"),
    ],
)
def test_what_is_stale_in_a_record_that_a_stage_rests_on_is_said(
    context: Context, monkeypatch: pytest.MonkeyPatch, synthetic: Any, dispatch: bool, kernel: bool, says: str
) -> None:
    cost = HostCost(
        call="run",
        problem=Problem(m=1, n=512, k=512),
        stock_us=[3.0] * 3,
        ours_us=[4.0] * 3,
        dispatch_hash=dispatch_hash.today() if dispatch else None,
    )
    today = kernel_hash.identity("small_m")
    row = synthetic.bench_row(7, ours_kernels=["small_m_bf16_b4_g64_r8_w16_s2_t4"])
    synthetic.write(
        synthetic.bench([row], probe=4400.0).model_copy(update={"host_cost": [cost]}),
        host="h200",
        machine=synthetic.machine.model_copy(
            update={"gpu": Gpu(name="NVIDIA H200", vendor="nvidia", l2_bytes=60_000_000)}
        ),
        kernel=today if kernel else today.model_copy(update={"hash": "ab" * 32}),
        root=context.evidence,
    )
    monkeypatch.setattr(recording, "require_cuda", no_gpu)
    results = run_chain([replace(stage, needs=()) for stage in STAGES if stage.name == "bench"], context)
    assert results["bench"].outcome is Outcome.RECORDS
    assert results["bench"].detail.partition(" (here:")[0] == says


def test_a_damaged_record_fails_the_check_and_the_draft_is_not_written(context: Context) -> None:
    damaged = Path(str(context.evidence)) / "records" / "h200" / "h200-20260101T000000Z-bench-00000000.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{")
    chosen = [stage for stage in STAGES if stage.name in ("records verify", "draft issue")]
    results = run_chain(chosen, context)
    assert results["records verify"].outcome is Outcome.FAILED
    assert damaged.name in results["records verify"].detail
    assert results["draft issue"].detail == "needs records verify, which failed"
    assert not context.out.exists()
    show_summary(chosen, results, context)
    assert "the committed records cannot be read" in said(context)
