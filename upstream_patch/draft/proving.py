"""Evidence for the gates about the series: ``series.json`` from the records, ``upstream.json`` from a checkout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from upstream_patch.draft import inputs
from upstream_patch.draft.contributions import CUDA
from upstream_patch.draft.contributions import Contribution as Subject
from upstream_patch.draft.inputs import Cell, SeriesProof, SuiteRun, Upstream
from upstream_patch.errors import UserError
from upstream_patch.records import kernel_hash
from upstream_patch.records.build_body import BuildBody
from upstream_patch.records.facts import Fact
from upstream_patch.records.schema import WheelBody
from upstream_patch.records.store import LoadedRecord
from upstream_patch.records.wheel_facts import host_hash, to_stock
from upstream_patch.series import Contribution, content_hash, load, style
from upstream_patch.series.applying import branch_of
from upstream_patch.series.checkout import Checkout
from upstream_patch.series.drift import base_commit


def refresh(work: Path, records: Sequence[LoadedRecord], facts: Sequence[Fact], about: Subject = CUDA) -> None:
    """Make ``series.json`` what the records say today; without a build among them there is none.

    ``facts`` are those of the same records, of machines with a GPU of the contribution's vendor.
    """
    proof, name = prove(records, facts, about), about.key("series")
    if proof is None:
        inputs.path(work, name).unlink(missing_ok=True)
    elif not inputs.path(work, name).exists() or inputs.read(work, name, SeriesProof) != proof:
        inputs.write(work, name, proof)


def prove(records: Sequence[LoadedRecord], facts: Sequence[Fact], about: Subject = CUDA) -> SeriesProof | None:
    """What the newest record of a build of the backend says, with the newest times of today's code beside it."""
    built = [
        (loaded, loaded.record.body)
        for loaded in records
        if isinstance(loaded.record.body, BuildBody) and loaded.record.body.backend == about.name
    ]
    if not built:
        return None
    loaded, body = max(built, key=lambda one: (one[0].record.created, one[0].record.id))
    kernel = loaded.record.kernel
    base, patched = _suites(loaded.record.command, body)
    return SeriesProof(
        record=loaded.path,
        base_commit=body.upstream,
        contributions=tuple(body.contributions),
        series_sha256=body.series_sha256,
        tree=body.tree,
        kernel_hashes={kernel.name: kernel.hash} if kernel else {},
        new_tests=tuple(body.new_tests),
        guards=tuple(body.guards),
        base=base,
        patched=patched,
        affected=tuple(_affected(records)) if about == CUDA else (),  # nothing times a build for Metal
        unaffected=tuple(_unaffected(facts, about)),
    )


def _suites(command: str, body: BuildBody) -> tuple[SuiteRun, SuiteRun]:
    """Of both sides. A new test has failed on the base only where it did in every environment (one that guards: in
    any), and an old one that fails with the series only counts as known where it fails on the base in the same one."""
    broken = set(body.broken)
    series = {test for failed in body.failed("series").values() for test in failed}
    new = set(body.new_tests)
    failing = {name for name in new for test in broken if _method(test) == name}
    failed = [{_method(test) for test in tests} for tests in body.failed("base").values()]
    base = {name for name in new if (any if name in body.guards else all)(name in tests for tests in failed)}
    lacking = [] if body.backend == "metal" else ["our matrix was not run"]  # a build for Metal has none
    wrong = body.matrix.wrong if body.matrix else lacking

    def ran(arm: str) -> int:
        return min(run.ran for run in body.runs if run.arm == arm)

    old = {test for test in series if _method(test) not in new}
    return (
        SuiteRun(command=command, ran=ran("base"), failed=(*sorted(base), *sorted(body.known - broken))),
        SuiteRun(command=command, ran=ran("series"), failed=(*sorted(failing), *sorted(old), *wrong)),
    )


def _method(test: str) -> str:
    """``test_new`` of ``module.Class.test_new (bits=2)``."""
    return test.split(" ", maxsplit=1)[0].rsplit(".", 1)[-1]


def _affected(records: Sequence[LoadedRecord]) -> Iterator[Cell]:
    """Rows of the newest wheel record of today's kernel and host code."""
    today = [
        (loaded, loaded.record.body)
        for loaded in records
        if isinstance(loaded.record.body, WheelBody)
        and loaded.record.body.host_hash == host_hash()
        and loaded.record.kernel is not None
        and loaded.record.kernel.hash == kernel_hash.identity(loaded.record.kernel.name).hash
    ]
    if not today:
        return
    loaded, body = max(today, key=lambda one: (one[0].record.created, one[0].record.id))
    for row in body.rows:
        yield Cell(
            problem=row.problem.id,
            base_us=median(row.stock_us),
            patched_us=median(row.wheel_us),
            verdict=to_stock(row)[1].verdict.value,
            record=loaded.path,
        )


def _unaffected(facts: Sequence[Fact], about: Subject) -> Iterator[Cell]:
    """Benchmark rows of today's kernel whose route is stock's."""
    known = {fact.id: fact for fact in facts if fact.id.startswith(f"{about.family}.") and not fact.stale}
    for route in known.values():
        stem, _, name = route.id.rpartition(".")
        if name == "route" and about.leaves(str(route.value)):
            said = {part: known[f"{stem}.{part}"].value for part in ("stock_us", "ours_us", "verdict")}
            yield Cell.model_validate(
                {
                    "problem": stem.split(".", 1)[1],
                    "base_us": said["stock_us"],
                    "patched_us": said["ours_us"],
                    "verdict": said["verdict"],
                    "record": route.record_path,
                }
            )


def compare(
    work: Path,
    checkout: Checkout,
    proof: SeriesProof | None,
    now: datetime | None = None,
    branch: str = "",
    about: Subject = CUDA,
) -> Path:
    """Write ``upstream.json``: the checkout's HEAD against the commit that was built, or, before any build, the base
    of the series; and ``branch``, by default the one that ``series apply`` makes, against the series.

    Raises UserError for a shallow clone and for one without that commit.
    """
    checkout.require_history()
    contributions = [load(name) for name in (proof.contributions if proof else about.series)]
    if proof and not checkout.has(proof.base_commit):
        built, fetch = proof.base_commit[:12], checkout.command("fetch", "--all")
        raise UserError(f"{checkout.path} has not {built}, which was built: {fetch} first")
    base = proof.base_commit if proof else base_commit(checkout, contributions[0])
    head = checkout.commit()
    unknown, unknown_fix = checkout.not_upstream()
    read = checkout.reader(head)
    planned = style.laid_out(contributions, read)
    on_base = style.laid_out(contributions, checkout.reader(base)).changed
    files = dict.fromkeys(
        path for one in contributions for path in (*(e.file for e in one.edits), *(f.path for f in one.files))
    )
    commit, fault = _carrier(checkout, contributions, branch or branch_of(contributions), base, head, list(files))
    return inputs.write(
        work,
        about.key("upstream"),
        Upstream(
            base_commit=base,
            head_commit=head,
            head_committed=checkout.committed(head),
            checked=now or datetime.now(UTC),
            unknown=unknown,
            unknown_fix=unknown_fix,
            series_sha256=content_hash(contributions),
            tree=checkout.tree(base, on_base) if on_base else None,
            applies=bool(planned.changed) and not planned.conflicts,
            touched=tuple(path for path in files if checkout.commits(base, [path], head)),
            unformatted=planned.unformatted or style.clean(planned, read),
            branch=commit,
            branch_fault=fault,
        ),
    )


def _carrier(
    checkout: Checkout, contributions: Sequence[Contribution], branch: str, base: str, head: str, files: Sequence[str]
) -> tuple[str | None, str]:
    """The commit of a branch when it is upstream with the series and nothing else, or None and why it is not."""
    if not checkout.has(branch):
        return None, f"the checkout has no branch {branch}"
    commit = checkout.commit(branch)
    root = checkout.git("merge-base", commit, head).strip()
    if commit == root:
        return None, f"{branch} has no commit of yours yet"
    if checkout.commits(base, files, root) or checkout.commits(root, files, base):
        return None, f"{branch} starts at {root[:12]}, whose files of the series are not those of {base[:12]}"
    read = checkout.reader(root)
    whole = checkout.tree(root, style.laid_out(contributions, read).changed)
    if differs := checkout.git("diff-tree", "-r", "--name-only", whole, f"{commit}^{{tree}}").splitlines():
        return None, f"{branch} at {commit[:12]} differs from the series that was built: {', '.join(differs[:3])}"
    return commit, ""
