"""Gates that rest on a build of MLX with the series: what ``inputs/series.json`` and ``inputs/upstream.json`` say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from upstream_patch import kernels
from upstream_patch.draft import inputs
from upstream_patch.draft.inputs import SeriesProof, Upstream
from upstream_patch.draft.look import FRESH_HOURS, Finding, Look
from upstream_patch.records import kernel_hash

_BUILD = "nox -s build -- --mlx PATH"
_DRIFT = "nox -s drift -- --mlx PATH"


def _of_build(judge: Callable[[SeriesProof], Finding]) -> Callable[[Look], Finding]:
    """A gate that is red without a build, and with one of other kernels than today's."""

    def check(look: Look) -> Finding:
        proof = look.series
        if proof is None:
            return Finding(False, "MLX was not built with the series", _BUILD)
        seen = (proof.model_dump_json(),)
        if fault := _outdated(proof):
            return Finding(False, f"the build is not of today's series: {fault}", _BUILD, seen)
        return replace(judge(proof), seen=seen)

    return check


def _outdated(proof: SeriesProof) -> str:
    if not proof.kernel_hashes:
        return "it names no kernel"
    today = {name: kernel_hash.identity(name).hash for name in kernels.KERNELS}
    changed = [name for name, digest in proof.kernel_hashes.items() if today.get(name) != digest]
    return f"the kernel {changed[0]} changed since" if changed else ""


@_of_build
def benchmarks(proof: SeriesProof) -> Finding:
    if not proof.affected:
        return Finding(False, "no problem was timed on both builds", _BUILD)
    return Finding(True, f"{len(proof.affected)} problems timed on both builds")


@_of_build
def tests(proof: SeriesProof) -> Finding:
    """New tests fail on the base and pass with the series, and nothing else fails that passed."""
    if not proof.base.ran or not proof.patched.ran:
        return Finding(False, "a build was not tested", _BUILD)
    if not proof.new_tests:
        return Finding(False, "the series has no new test", f"add one that fails on the base, then {_BUILD}")
    base, patched = proof.base.failed, proof.patched.failed
    for names, what in (
        ([name for name in proof.new_tests if name not in base], "does not fail on the base"),
        ([name for name in proof.new_tests if name in patched], "does not pass with the series"),
        ([name for name in patched if name not in base], "fails with the series and not on the base"),
    ):
        if names:
            return Finding(False, f"{names[0]} {what}", f"correct the series or its tests, then {_BUILD}")
    return Finding(True, f"{len(proof.new_tests)} new tests fail on the base and pass with the series")


@_of_build
def unaffected(proof: SeriesProof) -> Finding:
    changed = [cell for cell in proof.unaffected if cell.verdict != "SAME"]
    if changed or not proof.unaffected:
        what = f"{changed[0].problem} is {changed[0].verdict}" if changed else "no problem of another route was timed"
        return Finding(False, what, _BUILD)
    return Finding(True, f"{len(proof.unaffected)} problems of other routes take the same time")


@_of_build
def formatting(proof: SeriesProof) -> Finding:
    if not proof.formatting.clean:
        return Finding(False, f"`{proof.formatting.command}` changes files", f"format the series, then {_BUILD}")
    return Finding(True, f"`{proof.formatting.command}` is clean")


def base(look: Look) -> Finding:
    found = inputs.read(look.work, "upstream", Upstream)
    if found is None:
        return Finding(False, "nobody has compared the base with upstream's head", _DRIFT)
    proof = look.series
    seen = (found.model_dump_json(), proof.model_dump_json() if proof else "")
    if proof and (proof.base_commit, proof.series_sha256) != (found.base_commit, found.series_sha256):
        return Finding(False, "another base or series was compared than the one that was built", _DRIFT, seen)
    if (age := inputs.age_hours(found.checked, look.now)) > FRESH_HOURS:
        return Finding(False, f"compared {age:.0f} hours ago", _DRIFT, seen)
    if not found.applies or found.touched:
        what = f"upstream changed {', '.join(found.touched)}" if found.touched else "the series no longer applies"
        return Finding(False, f"{what} since {found.base_commit[:12]}", "rebase the series and build it again", seen)
    return Finding(True, f"no file of the series changed up to {found.head_commit[:12]}", seen=seen)
