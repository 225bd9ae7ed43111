"""A rehearsal of the whole way: records of two machines, drafts, a person's words, what the other rooms hand over."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.contract.fake_github import Clock, FakeGitHub, Repo, Stored
from tests.contract.server import serve
from tests.host.draft import metal_records
from tests.host.test_decode_records import arm, body, row
from upstream_patch import github
from upstream_patch.draft import gates, inputs, managed, proving, rules
from upstream_patch.draft.commands import folders
from upstream_patch.draft.contributions import CUDA
from upstream_patch.draft.documents import DOCUMENTS
from upstream_patch.draft.gates import FOR
from upstream_patch.draft.inputs import (
    Cell,
    Duplicates,
    Filed,
    Hit,
    Link,
    Search,
    SeriesProof,
    SuiteRun,
    Upstream,
)
from upstream_patch.machine import Gpu
from upstream_patch.records import facts, kernel_hash, store
from upstream_patch.records.decode_schema import DecodeBody
from upstream_patch.records.rules import LEAST_CASES
from upstream_patch.series import content_hash, load

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
BASE, HEAD, TREE = "1" * 40, "2" * 40, "3" * 40
SERIES = content_hash([load("folding"), load("cuda")])
TIMED = "evidence/records/h200/a.json"


def proof(**changes: Any) -> SeriesProof:
    test = "test_qmm_few_rows"
    whole = SeriesProof(
        record=TIMED,
        base_commit=BASE,
        contributions=("folding", "cuda"),
        series_sha256=SERIES,
        tree=TREE,
        kernel_hashes={"small_m": kernel_hash.identity("small_m").hash},
        new_tests=(test,),
        base=SuiteRun(command="python test_quantized.py", ran=90, failed=(test, "test_known")),
        patched=SuiteRun(command="python test_quantized.py", ran=90, failed=("test_known",)),
        affected=(
            Cell(problem="4096x4096.b4.g64.bf16.M7", base_us=70.0, patched_us=10.0, verdict="FASTER", record=TIMED),
        ),
        unaffected=(
            Cell(problem="4096x4096.b4.g64.bf16.M64", base_us=20.0, patched_us=20.0, verdict="SAME", record=TIMED),
        ),
    )
    return whole.model_copy(update=changes)


def searched(title: str, **changes: Any) -> Duplicates:
    hit = Hit(number=3764, kind="pr", state="closed", title="qmv_wide", url="https://example.org/3764")
    whole = Duplicates(
        repository="ml-explore/mlx",
        title=title,
        searched=NOW,
        searches=(
            Search(query="qmv rows", state="open", hits=()),
            Search(query="qmv rows", state="closed", hits=(hit,)),
        ),
    )
    return whole.model_copy(update=changes)


def upstream(**changes: Any) -> Upstream:
    whole = Upstream(
        base_commit=BASE,
        head_commit=HEAD,
        head_committed=NOW,
        checked=NOW,
        series_sha256=SERIES,
        tree=TREE,
        applies=True,
        touched=(),
        unformatted=None,
        branch="b" * 40,
        branch_fault="",
    )
    return whole.model_copy(update=changes)


def decoded() -> DecodeBody:
    """40.5 tokens a second of stock whatever the batch, and of ours 30.5 and 10 more a sequence."""
    rows = [
        row(b, stock=arm(1e3 * b / 40.5), folded=arm(1e3 * b / 40.5), ours=arm(1e3 * b / (30.5 + 10 * b)))
        for b in (1, 2, 4, 8)
    ]
    return body(
        *[one.model_copy(update={"aa_ms": one.stock.step_ms}) for one in rows], mlx_lm="0.32.2", probe_gbps=[4400.0]
    )


@dataclass
class Rehearsal:
    work: Path
    evidence: Path
    words: dict[str, dict[str, str]]
    record: Callable[[Any, int], object]
    """Writes a record of an H200: its body, and its age in hours."""

    @property
    def where(self) -> str:
        """The folders in a command that it is told."""
        return folders(self.work.parent, self.evidence)

    def draft(self, name: str) -> Path:
        records = store.load_all(self.evidence)
        derived = facts.derive(records)
        proving.refresh(self.work, records, CUDA.of(derived))
        return DOCUMENTS[name].write(self.work, derived)

    def change(self, name: str, old: str, new: str) -> None:
        path = self.work / DOCUMENTS[name].file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def fill(self, name: str) -> None:
        for hole, words in self.words[name].items():
            self.change(name, f"TODO(person): {hole}", words)

    def title(self, name: str) -> str:
        return DOCUMENTS[name].title(managed.read(self.work / DOCUMENTS[name].file))

    def others(self) -> None:
        """What the series room and a reader of upstream's rules would have made."""
        inputs.write(self.work, "series", proof())
        inputs.write(self.work, "upstream", upstream())
        files = dict.fromkeys(path for rule in rules.rules().rules for path in (rule.stands[0].file,))
        reading = rules.Reading(
            commit=HEAD, committed=NOW, read=NOW, rules_sha256=rules.sha256(), files=dict.fromkeys(files, "4" * 64)
        )
        inputs.write(self.work, rules.NAME, rules.Readings(seen=reading, accepted=reading, texts={}))

    def all(self) -> None:
        """Every draft, finished, with what the other rooms would have made."""
        self.others()
        inputs.write(
            self.work,
            "filed",
            Filed(
                issue=Link(number=4700, url="https://github.com/ml-explore/mlx/issues/4700"),
                pr=Link(number=4701, url="https://github.com/ml-explore/mlx/pull/4701"),
            ),
        )
        for name in FOR:
            self.draft(name)
            self.fill(name)
        for name in ("issue", "pr"):
            inputs.write(self.work, f"duplicates_{name}", searched(self.title(name)))

    @staticmethod
    def proof(**changes: Any) -> SeriesProof:
        return proof(**changes)

    @staticmethod
    def upstream(**changes: Any) -> Upstream:
        return upstream(**changes)

    def status(self, *names: str) -> tuple[gates.Gate, ...]:
        return gates.status(self.work, self.evidence, names or tuple(FOR), NOW)

    def ready(self, name: str) -> gates.Ready:
        return gates.ready(name, self.work, self.evidence, NOW)


REFRESH = proving.refresh
LOADED: dict[tuple[str, ...], list[store.LoadedRecord]] = {}
DERIVED: dict[tuple[str, ...], list[facts.Fact]] = {}


@pytest.fixture
def rehearsal(synthetic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rehearsal:
    evidence = tmp_path / "evidence"
    given: dict[str, dict[str, Any]] = {}
    for age, (host, product) in enumerate((("h200", "NVIDIA H200"), ("gb10", "NVIDIA GB10"))):
        machine = synthetic.machine.model_copy(
            update={"gpu": Gpu(name=product, vendor="nvidia", l2_bytes=1_000_000, driver="1.2.3")}
        )
        kernel = kernel_hash.identity("small_m")
        given[host] = {"host": host, "machine": machine, "kernel": kernel, "root": evidence}
        rows = [synthetic.bench_row(m, n) for m in (1, 2, 4, 7, 8, 16) for n in (4096, 14336)]
        synthetic.write(synthetic.bench(rows, probe=4400.0), 2 * age, **given[host])
        synthetic.write(synthetic.ncu(), 2 * age + 1, **given[host])
    synthetic.write(decoded(), 4, **given["gb10"])
    synthetic.write(synthetic.correctness(*[synthetic.good] * LEAST_CASES), 5, **given["h200"])
    load, derive = store.load_all, facts.derive

    def load_once(root: Path) -> list[store.LoadedRecord]:
        """Once for all tests of the same records: a record's name holds the hash of its content."""
        names = tuple(sorted(path.name for path in (root / "records").rglob("*.json")))
        if names not in LOADED:
            LOADED[names] = load(root)
        return LOADED[names]

    def derive_once(records: Sequence[store.LoadedRecord]) -> list[facts.Fact]:
        key = tuple(loaded.sha256 for loaded in records)
        if key not in DERIVED:
            DERIVED[key] = derive(records)
        return DERIVED[key]

    # What most tests look at is what the gates make of it; test_proving and the whole way have it from records.
    monkeypatch.setattr(proving, "refresh", lambda *_: None)
    monkeypatch.setenv("GIT_COMMITTER_DATE", NOW.isoformat())
    monkeypatch.setattr(store, "load_all", load_once)
    monkeypatch.setattr(facts, "derive", derive_once)
    words = json.loads((Path(__file__).parent / "data" / "person_words.json").read_text())
    work = tmp_path / "out" / "drafts"
    return Rehearsal(work, evidence, words, lambda body, age: synthetic.write(body, age, **given["h200"]))


@pytest.fixture
def mac(rehearsal: Rehearsal, synthetic: Any, monkeypatch: pytest.MonkeyPatch) -> Rehearsal:
    """The rehearsal, whose evidence has records of an M5 Max, too; proofs are from records."""
    monkeypatch.setattr(proving, "refresh", REFRESH)
    metal_records.measured(rehearsal.evidence, synthetic.good, monkeypatch)
    return rehearsal


@pytest.fixture
def fake() -> Iterator[FakeGitHub]:
    """With a pull request that a search for duplicates finds, the person's fork, and the thread downstream."""
    clock = Clock()
    clock.seconds = NOW.timestamp()
    made = FakeGitHub(clock)
    made.repos = {
        "ml-explore/mlx": Repo("ml-explore"),
        "me/mlx": Repo("me", parent="ml-explore/mlx"),
        "lablup/mlxcel": Repo("lablup"),
    }
    made.repos["me/mlx"].branches["small-m"] = "b" * 40
    old = Stored("pull", 3764, "they", "Metal: multirow qmv", "qmv rows", 0.0, state="closed")
    made.repos["ml-explore/mlx"].entries.append(old)
    made.repos["lablup/mlxcel"].entries.append(Stored("issue", 725, "they", "Small-M", "The rows.", 0.0))
    yield made
    assert made.broken == []


@pytest.fixture
def address(fake: FakeGitHub) -> Iterator[str]:
    with serve(fake) as address:
        yield address


@pytest.fixture
def client(fake: FakeGitHub, address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[github.GitHub]:
    monkeypatch.setenv("GITHUB_API_URL", address)
    with github.GitHub("token", address, clock=github.Clock(fake.clock.now, fake.clock.sleep)) as made:
        yield made
