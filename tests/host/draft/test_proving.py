"""Every gate of the pull request opened in turn by what its own way out names, with no input written by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contract.fake_github import FakeGitHub
from tests.contract.people import Scripted
from tests.host.draft.conftest import NOW
from tests.host.series.conftest import Repository, standin
from tests.host.series.test_style import HOOKS
from upstream_patch import github
from upstream_patch.draft import inputs, proving, rules
from upstream_patch.draft.inputs import Cell, SeriesProof
from upstream_patch.draft.proving import refresh
from upstream_patch.filing import duplicates
from upstream_patch.filing.desk import Desk
from upstream_patch.github import GitHub
from upstream_patch.problem import Problem
from upstream_patch.records import wheel_facts
from upstream_patch.records.build_body import BuildBody, Matrix, SuiteRun
from upstream_patch.records.rules import LEAST_WHEEL_MATRIX
from upstream_patch.records.schema import CaseResult, WheelBody, WheelRow
from upstream_patch.records.watched import Watched
from upstream_patch.series import applying, content_hash, load, style
from upstream_patch.series.checkout import open_checkout

CHANGES = [load("folding"), load("cuda")]
CLASS = "test_quantized.TestQuantized"
NEW, OLD, KNOWN = f"{CLASS}.test_new (m=7)", f"{CLASS}.test_old", f"{CLASS}.test_known"
EDITED = "mlx/backend/cuda/quantized/quantized.cpp"


@pytest.fixture
def here(rehearsal: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The rehearsal, with its proof from records."""
    monkeypatch.setattr(proving, "refresh", refresh)
    return rehearsal


@pytest.fixture
def mlx(tmp_path: Path) -> Repository:
    """A stand-in for a clone of MLX: the anchors, a pin of clang-format, and files with rules."""
    path = tmp_path / "mlx"
    path.mkdir()
    repository = Repository(path)
    repository.git("init", "--quiet", "--initial-branch=main")
    stands = [place for rule in rules.rules().rules for place in rule.stands if place.commit]
    watched = {place.file: "Write it yourself.\n" for place in stands}
    style = {".clang-format": "BasedOnStyle: x\n", ".pre-commit-config.yaml": HOOKS}
    repository.commit({**watched, **standin(CHANGES), **style}, "base")
    repository.git("tag", "v0.32.4")
    repository.git("remote", "add", "origin", "https://github.com/ml-explore/mlx.git")
    repository.git("symbolic-ref", "refs/remotes/origin/main", "refs/heads/main")  # always fetched
    return repository


def built(upstream: str, tree: str = "ef" * 20, **failed: dict[bool, list[str]]) -> BuildBody:
    """What fails by arm and TF32."""
    said = {"base": {False: [NEW, KNOWN], True: [NEW, KNOWN]}, "series": {False: [KNOWN], True: [KNOWN]}} | failed
    return BuildBody(
        backend="cuda",
        upstream=upstream,
        contributions=["folding", "cuda"],
        series_sha256=content_hash(CHANGES),
        tree=tree,
        options=[],
        tests="python/tests/test_quantized.py",
        new_tests=["test_new"],
        runs=[
            SuiteRun.model_validate(
                {"arm": arm, "tf32": tf32, "ran": 9, "skipped": 0, "failed": names, "log": f"{arm}-{tf32}.log"}
            )
            for arm, runs in said.items()
            for tf32, names in runs.items()
        ],
        matrix=Matrix(cases=2, wrong=[], results="matrix.json"),
    )


def sent(mlx: Repository) -> str:
    """git's tree of a build of today's series."""
    from upstream_patch.series.checkout import open_checkout

    checkout = open_checkout(mlx.path)
    return checkout.tree("HEAD", style.laid_out(CHANGES, checkout.reader()).changed)


def in_wheel(synthetic: Any, **changes: Any) -> WheelBody:
    wobble = [1 + 0.001 * (i % 5) for i in range(12)]
    row = WheelRow(
        problem=Problem(m=7, n=4096, k=4096),
        copies=64,
        ops_per_sample=8,
        stock_us=[70.0 * w for w in wobble],
        runtime_us=[10.0 * w for w in wobble],
        wheel_us=[10.0 * w for w in wobble],
        aa_us=[10.0 * w for w in wobble],
        check=synthetic.good,
        module="qmm_small_m_bfloat16_affine_b4_g64_r8_w8_s4_t4",
    )
    cases = [
        CaseResult(
            case="rows",
            problem=row.problem,
            seed=seed,
            check=synthetic.good,
            repeats_equal=20,
            rows_equal_alone=True,
            written=True,
            kernels=[row.module],
        )
        for seed in range(LEAST_WHEEL_MATRIX // 3)
    ]
    whole = WheelBody(
        library_sha256="ab" * 32,
        host_hash=wheel_facts.host_hash(),
        cases=cases,
        planned=LEAST_WHEEL_MATRIX,
        rows=[row],
    )
    return whole.model_copy(update=changes)


def with_stock(synthetic: Any, slower: float = 1.0) -> Any:
    row = synthetic.bench_row(64)
    ours = [slower * t for t in row.stock_us]
    left = row.model_copy(update={"ours_us": ours, "route": "stock", "ours_kernels": []})
    return synthetic.bench([left], probe=4400.0)


def clang_format(folder: Path, monkeypatch: pytest.MonkeyPatch, says: str = "") -> None:
    """On PATH, of the version that the stand-in pins; it puts ``says`` at the end of what it is given."""
    program = folder / "bin" / "clang-format"
    program.parent.mkdir(exist_ok=True)
    program.write_text(
        f"#!{sys.executable}\nimport sys\n"
        "print('clang-format version 17.0.6' if '--version' in sys.argv else sys.stdin.read(), end='')\n"
        f"print({says!r} if '--version' not in sys.argv else '', end='')\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr("upstream_patch.machine.System.which", lambda self, name: str(program))
    monkeypatch.setattr("upstream_patch.machine.System.site_folders", lambda self: [])


def proof(here: Any) -> SeriesProof:
    found = inputs.read(here.work, "series", SeriesProof)
    assert found is not None
    return found


def compare(here: Any, mlx: Repository, now: Any) -> None:
    proving.compare(here.work, open_checkout(mlx.path), inputs.read(here.work, "series", SeriesProof), now)


def committed(mlx: Repository) -> str:
    """The series on a branch, applied and committed as a person does; its commit."""
    applied, _ = applying.apply(open_checkout(mlx.path), CHANGES)
    return Repository(applied.worktree).commit({}, "in my words")


@pytest.mark.needs_contract
def test_every_gate_opens_by_its_own_way_out(
    here: Any, mlx: Repository, fake: FakeGitHub, client: GitHub, tmp_path: Path,
    synthetic: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    clock = github.Clock(fake.clock.now, fake.clock.sleep)
    now = NOW

    def red() -> dict[str, str]:
        here.draft("pr")
        return {gate.name: gate.fix for gate in here.status("pr") if not gate.open}

    here.status("pr")
    fixes = red()
    build, drift = "nox -s build -- --mlx PATH", f"nox -s drift -- --mlx PATH{here.where}"
    evidence = ("benchmarks", "tests", "unaffected", "formatting", "base")
    assert {name: fixes[name] for name in evidence} == dict(
        zip(evidence, (build, build, build, drift, drift), strict=True)
    )
    head = mlx.git("rev-parse", "HEAD")

    here.record(built(head, sent(mlx)), 100)
    here.status("pr")
    fixes = red()
    assert "tests" not in fixes
    assert fixes["benchmarks"] == "nox -s wheel -- run, on a CUDA GPU"
    here.record(in_wheel(synthetic), 101)
    here.status("pr")
    fixes = red()
    assert "benchmarks" not in fixes
    assert fixes["unaffected"] == "nox -s bench -- --suite boundary, on a CUDA GPU"
    here.record(with_stock(synthetic), 102)
    clang_format(tmp_path, monkeypatch)
    here.status("pr")
    compare(here, mlx, now)
    assert not {*evidence} & {*red()}
    assert red()["branch"] == f"commit what series apply made, in your own words, then {drift} --branch NAME"
    fake.repos["me/mlx"].branches["small-m"] = committed(mlx)
    compare(here, mlx, now)
    assert "branch" not in red()

    *_, last = rules.refresh(here.work, mlx.path, now=now)
    list(rules.refresh(here.work, mlx.path, last.rpartition(" --read ")[2], now))
    for draft in ("issue", "pr"):
        here.draft(draft)
        here.fill(draft)
        duplicates.search(draft, here.work, client, clock)
        desk = Desk(here.work, here.evidence, client, Scripted("ml-explore/mlx", lambda: None), clock, rehearse="")
        assert [gate for gate in here.status(draft) if not gate.open] == []
        assert (desk.issue() if draft == "issue" else desk.pull("small-m")).created


def test_a_proof_is_what_the_records_say(here: Any, synthetic: Any) -> None:
    inputs.write(here.work, "series", here.proof())
    here.draft("pr")
    here.status("pr")
    assert not inputs.path(here.work, "series").exists()  # of no record
    here.record(built("1" * 40), 100)
    here.record(in_wheel(synthetic), 101)
    here.record(in_wheel(synthetic, host_hash="0" * 64, rows=[]), 102)  # of another host code
    here.record(with_stock(synthetic, slower=1.1), 103)
    here.status("pr")
    found = proof(here)
    assert (found.base.failed, found.patched.failed) == (("test_new", KNOWN), (KNOWN,))
    wheel, bench = (next((here.evidence / "records").rglob(f"*T{hour}*-{kind}-*")) for hour, kind in WHEN)
    assert found.affected == (
        Cell(problem="4096x4096.b4.g64.bf16.M7", base_us=found.affected[0].base_us,
             patched_us=found.affected[0].patched_us, verdict="FASTER", record=f"evidence/records/h200/{wheel.name}"),
    )  # fmt: skip
    assert [(cell.problem, cell.verdict, Path(cell.record).name) for cell in found.unaffected] == [
        ("h200.4096x4096.b4.g64.bf16.M64", "SLOWER", bench.name)
    ]


def test_a_throttled_row_says_the_same_in_the_facts_and_in_the_gates(here: Any, synthetic: Any) -> None:
    hot = Watched(readings=13, seconds=2.0, throttled_ms={"thermal": 500.0})
    body = in_wheel(synthetic)
    body = body.model_copy(update={"rows": [body.rows[0].model_copy(update={"watched": hot})]})
    here.record(built("1" * 40), 100)
    here.record(body, 101)
    here.draft("pr")
    here.status("pr")
    said = {name: value for name, value, _, _ in wheel_facts.wheel_values(body)}
    (cell,) = proof(here).affected
    assert (cell.verdict, said[f"{cell.problem}.verdict"]) == ("UNCLEAR", "UNCLEAR")
    assert said[f"{cell.problem}.verdict_reason"] == "throttled by thermal for 500 of 2000 ms"


WHEN = (("17", "wheel"), ("19", "bench"))


@pytest.mark.parametrize(
    ("failed", "says"),
    [
        ({"base": {False: [NEW], True: []}}, "test_new does not fail on the base"),
        ({"series": {False: [], True: [NEW]}}, "test_new does not pass with the series"),
        ({"series": {False: [OLD], True: []}}, f"{OLD} fails with the series and not on the base"),
        (
            {"base": {False: [NEW], True: [NEW, OLD]}, "series": {False: [OLD], True: [OLD]}},
            f"{OLD} fails with the series and not on the base",
        ),
    ],
)
def test_the_environments_of_the_build_are_not_mixed(here: Any, failed: Any, says: str) -> None:
    here.record(built("1" * 40, **failed), 100)
    here.draft("pr")
    assert {gate.name: gate.why for gate in here.status("pr")}["tests"] == says
