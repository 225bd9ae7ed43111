"""The stages of an M5's owner, in order: is the hardware what the simulator takes it for, are the kernels right on it,
how fast are they."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from upstream_patch.contribution.chain import Context, Outcome, Result, Stage
from upstream_patch.contribution.stages import STAGES as ALL
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.measure.m5.plan import SETTINGS, STEPS
from upstream_patch.records.forward import Forward
from upstream_patch.routing_metal import AppleGpu

NEEDS = "an Apple GPU of generation 17 or later (M5), macOS 26.2 or later, and MLX's wheel for it: pip install -e ."


def need_gpu() -> AppleGpu:
    """Raises MissingTool where MLX has no GPU with matrix units."""
    try:
        from upstream_patch import ops_metal
    except ModuleNotFoundError as error:
        raise MissingTool("MLX is not installed", NEEDS) from error
    gpu = ops_metal.gpu()
    if gpu is None:
        raise MissingTool("no Apple GPU whose matrix units MLX may use", NEEDS)
    return gpu


def need_record() -> AppleGpu:
    """``need_gpu``; raises UserError, too, where a record could not say what it measured."""
    from upstream_patch.machine import probe
    from upstream_patch.records import host_id, versions
    from upstream_patch.records.provenance import require_commit

    gpu = need_gpu()
    require_commit(host_id(probe()), versions())
    return gpu


def stages(models: Sequence[str] = ()) -> tuple[Stage, ...]:
    """``models``: folders or Hub ids of rows of the request's table."""
    forwards: list[Forward] = []

    def run_models(_: Context) -> Result:
        from upstream_patch.measure.m5.models import run_models

        if not models:
            raise MissingTool("no model was given", "nox -s m5 -- --model FOLDER_OR_ID, once for each")
        forwards.extend(run_models(models))
        return Result(Outcome.RAN, "; ".join(each.text for each in forwards))

    def operators(context: Context) -> Result:
        from upstream_patch.recording import record_request

        stored = record_request(context.command, context.evidence, forwards)
        then = "upstream-patch draft issue --contribution metal"
        return Result(Outcome.RAN, f"{stored.detail}: {stored.path}", then)

    steps: dict[str, Callable[[Context], Result]] = {
        "layout": _layout,
        "bits": _bits,
        "tests": lambda context: _tests(SETTINGS[0]),
        "tests without TF32": lambda context: _tests(SETTINGS[1]),
        "correctness": _correctness,
        "operators": operators,
        "models": run_models,
    }
    needs = {name: ("machine",) for name in STEPS} | {name: ("correctness",) for name in ("operators", "models")}
    # the models' samples go into the operators' record, so they come first
    order = [*(name for name in STEPS if name not in ("operators", "models")), "models", "operators"]
    verify = next(stage for stage in ALL if stage.name == "records verify")
    return (Stage("machine", _machine), *(Stage(name, steps[name], needs[name]) for name in order), verify)


def _machine(_: Context) -> Result:
    """Of one's own command a wrong machine is a failure, said once."""
    from upstream_patch.machine import probe

    try:
        gpu = need_record()
    except MissingTool as error:
        raise UserError(str(error)) from None
    machine = probe()
    name = machine.gpu.name if machine.gpu else "unknown"
    return Result(Outcome.RAN, f"{name}, generation {gpu.generation}{gpu.kind}, {machine.os}")


def _layout(context: Context) -> Result:
    from upstream_patch.files import write_text
    from upstream_patch.measure.m5 import bits, layout

    found = layout.probe()
    if layout.digest(found) == bits.expected()["layout"]["probe"]:
        return Result(Outcome.RAN, "lanes hold the elements that the simulator gives them")
    path = context.out / "m5" / "layout.json"
    write_text(path, json.dumps(found.tolist()))
    why = layout.is_a_layout(found) or "another layout than MLX's kernels assume"
    raise UserError(f"the matrix unit is not what the simulator takes it for: {why} (in {path})")


def _bits(_: Context) -> Result:
    from upstream_patch import ops, ops_metal
    from upstream_patch.measure.m5 import bits
    from upstream_patch.problem import Problem

    known = bits.expected()

    def found(problem: Problem, data: bits.Data, call: Callable[..., object] = ops_metal.staged_call) -> str:
        arrays = bits.arrays(problem, data)
        return bits.digest(bits.stored(call(*arrays, group_size=problem.group_size, bits=problem.bits)))

    wrong = [
        f"{p.id}: not the simulator's bits"
        for p in bits.PROBLEMS
        if found(p, "exact") != known[bits.key(p, "exact")]["any"]
    ]
    wrong += [
        f"{p.id}: not the bits of stock"
        for p in bits.AS_STOCK
        if found(p, "normal") != found(p, "normal", ops.stock_quantized_matmul)
    ]
    if wrong:
        raise UserError("; ".join(wrong))
    orders = {
        p.id: bits.agreeing(found(p, "normal"), known[name]) or ["none that the simulator has"]
        for p in bits.PROBLEMS
        if (name := bits.key(p, "normal")) in known
    }
    said = "; ".join(f"{name} {', '.join(each)}" for name, each in orders.items())
    return Result(Outcome.RAN, f"as simulated, and as stock; order of summation: {said}")


def _tests(setting: Mapping[str, str]) -> Result:
    """In a process of its own, since MLX reads the setting once."""
    command = [sys.executable, "-m", "upstream_patch.measure.m5.mlx_tests"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLX_ENABLE_TF32")}
    done = subprocess.run(command, env={**environment, **setting}, capture_output=True, text=True, check=False)
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines() or ["no word"]
    if done.returncode != 0:
        raise UserError(f"{len(lines)} lines, first: {lines[0]}")
    return Result(Outcome.RAN, lines[-1])


def _correctness(context: Context) -> Result:
    from upstream_patch.correctness import failures
    from upstream_patch.measure.m5.cases import run_matrix
    from upstream_patch.recording import record_metal
    from upstream_patch.terminal import bar

    gpu = need_gpu()
    with bar("correctness") as advance:
        body = run_matrix(gpu, progress=advance)
    path = record_metal(body, context.command, context.evidence)
    if wrong := failures(body):
        raise UserError(f"{len(wrong)} complaints about {len(body.cases)} cases, first: {wrong[0]} ({path})")
    return Result(Outcome.RAN, f"{len(body.cases)} cases right: {path}")
