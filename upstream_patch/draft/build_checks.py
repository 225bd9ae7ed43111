"""Gates about the series: what ``inputs/series.json`` and ``inputs/upstream.json``, both of ``proving``, say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from upstream_patch import series
from upstream_patch.draft import inputs
from upstream_patch.draft.contributions import Contribution
from upstream_patch.draft.inputs import SeriesProof, Upstream
from upstream_patch.draft.look import FRESH_HOURS, Finding, Look
from upstream_patch.records import kernel_hash


def _of_build(judge: Callable[[SeriesProof, Contribution], Finding]) -> Callable[[Look], Finding]:
    """A gate that is red without a build, and with one of other kernels than today's."""

    def check(look: Look) -> Finding:
        proof, about = look.series, look.document.contribution
        if proof is None:
            return Finding(False, "MLX was not built with the series", about.build)
        seen = (proof.model_dump_json(),)
        if fault := _outdated(proof):
            return Finding(False, f"the build is not of today's series: {fault}", about.build, seen)
        return replace(judge(proof, about), seen=seen)

    return check


def _outdated(proof: SeriesProof) -> str:
    if not proof.kernel_hashes:
        return "it names no kernel"
    today = {name: kernel_hash.identity(name).hash for name in kernel_hash.KNOWN}
    changed = [name for name, digest in proof.kernel_hashes.items() if today.get(name) != digest]
    if changed:
        return f"the kernel {changed[0]} changed since"
    now = series.content_hash([series.load(name) for name in proof.contributions])
    return "" if now == proof.series_sha256 else "the text of the series changed since"


@_of_build
def benchmarks(proof: SeriesProof, about: Contribution) -> Finding:
    if not proof.affected:
        return Finding(False, "no record times today's host code of the series in MLX", about.in_mlx)
    return Finding(True, f"{len(proof.affected)} problems timed with the series' host code and without")


@_of_build
def tests(proof: SeriesProof, about: Contribution) -> Finding:
    """New tests fail on the base and pass with the series, and nothing else fails that passed."""
    if not proof.base.ran or not proof.patched.ran:
        return Finding(False, "a build was not tested", about.build)
    if not proof.new_tests:
        return Finding(False, "the series has no new test", f"add one that fails on the base, then {about.build}")
    base, patched = proof.base.failed, proof.patched.failed
    for names, what in (
        ([name for name in proof.new_tests if name not in base], "does not fail on the base"),
        ([name for name in proof.new_tests if name in patched], "does not pass with the series"),
        ([name for name in patched if name not in base], "fails with the series and not on the base"),
    ):
        if names:
            return Finding(False, f"{names[0]} {what}", f"correct the series or its tests, then {about.build}")
    return Finding(True, f"{len(proof.new_tests)} new tests fail on the base and pass with the series")


@_of_build
def unaffected(proof: SeriesProof, about: Contribution) -> Finding:
    changed = [cell for cell in proof.unaffected if cell.verdict != "SAME"]
    if changed or not proof.unaffected:
        what = (
            f"{changed[0].problem} is {changed[0].verdict} ({changed[0].record})"
            if changed
            else "no problem that stays with stock was timed"
        )
        return Finding(False, what, about.boundary)
    return Finding(True, f"{len(proof.unaffected)} problems of other routes take the same time")


def formatting(look: Look) -> Finding:
    found = inputs.read(look.work, look.key("upstream"), Upstream)
    drift = look.document.contribution.drift
    if found is None:
        return Finding(False, "nobody has laid the change out by upstream's clang-format", drift)
    seen = (found.model_dump_json(),)
    if look.series and look.series.series_sha256 != found.series_sha256:
        return Finding(False, "another series was laid out than the one that was built", drift, seen)
    if found.unformatted is not None:
        return Finding(False, found.unformatted, f"see to it, then {drift}", seen)
    return Finding(True, f"in the layout of the clang-format that {found.head_commit[:12]} pins", seen=seen)


def base(look: Look) -> Finding:
    found = inputs.read(look.work, look.key("upstream"), Upstream)
    drift = look.document.contribution.drift
    if found is None:
        return Finding(False, "nobody has compared the base with upstream's head", drift)
    proof, build = look.series, look.document.contribution.build
    seen = (found.model_dump_json(), proof.model_dump_json() if proof else "")
    if proof and (proof.base_commit, proof.series_sha256) != (found.base_commit, found.series_sha256):
        return Finding(False, "another base or series was compared than the one that was built", drift, seen)
    if (age := inputs.age_hours(found.checked, look.now)) > FRESH_HOURS:
        return Finding(False, f"compared {age:.0f} hours ago", drift, seen)
    if not found.applies:
        fix = f"correct what upstream-patch series check --mlx PATH names, then {build} and {drift}"
        return Finding(False, f"the series does not apply to {found.head_commit[:12]}", fix, seen)
    if found.touched:
        what = f"upstream changed {', '.join(found.touched)} since {found.base_commit[:12]}"
        return Finding(False, what, f"{build} at {found.head_commit[:12]}, then {drift}", seen)
    return Finding(True, f"no file of the series changed up to {found.head_commit[:12]}", seen=seen)
