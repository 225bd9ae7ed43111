"""Gates about the series: what ``inputs/series.json`` and ``inputs/upstream.json``, both of ``proving``, say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from upstream_patch import series
from upstream_patch.draft import inputs
from upstream_patch.draft.contributions import Contribution
from upstream_patch.draft.inputs import SeriesProof, Upstream
from upstream_patch.draft.look import FRESH_HOURS, OK, Finding, Look
from upstream_patch.records import kernel_hash


def _of_build(judge: Callable[[SeriesProof, Contribution], Finding]) -> Callable[[Look], Finding]:
    """A gate that is red without a build, and with one of other kernels than today's."""

    def check(look: Look) -> Finding:
        proof, about = look.series, look.document.contribution
        if proof is None:
            return Finding("missing", "MLX was not built with the series", about.build)
        seen = (proof.model_dump_json(),)
        if fault := _outdated(proof):
            return Finding("outdated", f"the build is not of today's series: {fault}", about.build, seen)
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
        return Finding("unmeasured", "no record times today's host code of the series in MLX", about.in_mlx)
    return Finding(OK, f"{len(proof.affected)} problems timed with the series' host code and without")


@_of_build
def tests(proof: SeriesProof, about: Contribution) -> Finding:
    """New tests fail on the base and pass with the series, and nothing else fails that passed."""
    if not proof.base.ran or not proof.patched.ran:
        return Finding("missing", "a build was not tested", about.build)
    if not {*proof.new_tests} - {*proof.guards}:
        return Finding("none", "the series has no new test", f"add one that fails on the base, then {about.build}")
    base, patched = proof.base.failed, proof.patched.failed
    showing = [name for name in proof.new_tests if name not in proof.guards]
    for code, names, what in (
        ("proves-nothing", [name for name in showing if name not in base], "does not fail on the base"),
        (
            "guards-nothing",
            [name for name in proof.guards if name in base],
            "guards the base, and fails there",
        ),
        ("fails", [name for name in proof.new_tests if name in patched], "does not pass with the series"),
        ("breaks", [name for name in patched if name not in base], "fails with the series and not on the base"),
    ):
        if names:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            return Finding(code, f"{names[0]} {what}{more}", f"correct the series or its tests, then {about.build}")
    return Finding(OK, f"{len(showing)} new tests fail on the base and pass with the series")


@_of_build
def unaffected(proof: SeriesProof, about: Contribution) -> Finding:
    changed = [cell for cell in proof.unaffected if cell.verdict != "SAME"]
    if changed or not proof.unaffected:
        what = (
            f"{changed[0].problem} is {changed[0].verdict} ({changed[0].record})"
            if changed
            else "no problem that stays with stock was timed"
        )
        return Finding("changed" if changed else "unmeasured", what, about.boundary)
    return Finding(OK, f"{len(proof.unaffected)} problems of other routes take the same time")


def formatting(look: Look) -> Finding:
    found = inputs.read(look.work, look.key("upstream"), Upstream)
    drift = look.drift
    if found is None:
        return Finding("missing", "nobody has laid the change out by upstream's clang-format", drift)
    seen = (found.model_dump_json(), look.series.model_dump_json() if look.series else "")
    if look.series and look.series.series_sha256 != found.series_sha256:
        return Finding("outdated", "another series was laid out than the one that was built", drift, seen)
    if found.unformatted is not None:
        return Finding("unformatted", found.unformatted, f"see to it, then {drift}", seen)
    if look.series and look.series.tree != found.tree:
        fix = f"install the clang-format that upstream pins, then {look.document.contribution.build} and {drift}"
        return Finding("other-bytes", "the bytes that were built are not those that are sent", fix, seen)
    return Finding(OK, f"in the layout of the clang-format that {found.head_commit[:12]} pins", seen=seen)


def base(look: Look) -> Finding:
    found = inputs.read(look.work, look.key("upstream"), Upstream)
    drift = look.drift
    if found is None:
        return Finding("missing", "nobody has compared the base with upstream's head", drift)
    proof, build = look.series, look.document.contribution.build
    seen = (found.model_dump_json(), proof.model_dump_json() if proof else "")
    if proof and (proof.base_commit, proof.series_sha256) != (found.base_commit, found.series_sha256):
        return Finding("outdated", "another base or series was compared than the one that was built", drift, seen)
    if found.unknown:
        return Finding("unknown", found.unknown, f"{found.unknown_fix}, then {drift}", seen)
    if (age := inputs.age_hours(found.checked, look.now)) > FRESH_HOURS:
        return Finding("outdated", f"compared {age:.0f} hours ago", drift, seen)
    if behind := inputs.behind(found.head_committed, look.now):
        return Finding("outdated", behind, drift, seen)
    if not found.applies:
        fix = f"correct what upstream-patch series check --mlx PATH names, then {build} and {drift}"
        return Finding("does-not-apply", f"the series does not apply to {found.head_commit[:12]}", fix, seen)
    if found.touched:
        what = f"upstream changed {', '.join(found.touched)} since {found.base_commit[:12]}"
        return Finding("touched", what, f"{build} at {found.head_commit[:12]}, then {drift}", seen)
    head = f"{found.head_commit[:12]} of {found.head_committed:%Y-%m-%d}"
    return Finding(OK, f"no file of the series changed up to {head}", seen=seen)


def branch(look: Look) -> Finding:
    """The commit that will be sent holds what was built, and nothing else."""
    found = inputs.read(look.work, look.key("upstream"), Upstream)
    drift = look.drift
    if found is None:
        return Finding("missing", "nobody has compared your branch with the series that was built", drift)
    proof = look.series
    seen = (found.model_dump_json(), proof.model_dump_json() if proof else "")
    if proof and (proof.base_commit, proof.series_sha256) != (found.base_commit, found.series_sha256):
        return Finding("outdated", "your branch was compared with another base or series than was built", drift, seen)
    if found.branch is None:
        fix = f"commit what series apply made, in your own words, then {drift} --branch NAME"
        return Finding("differs", found.branch_fault, fix, seen)
    return Finding(OK, f"{found.branch[:12]} holds the series that was built, and nothing else", seen=seen)
