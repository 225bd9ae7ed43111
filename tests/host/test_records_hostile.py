"""Evidence that was made or changed by hand: every reader refuses it in one line, and no fact comes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.errors import UserError
from upstream_patch.machine import Gpu
from upstream_patch.problem import Problem
from upstream_patch.records import canonical, facts
from upstream_patch.records.schema import CorrectnessBody, HostCost, Metric
from upstream_patch.records.store import load_all, verify

Tree = dict[str, Any]


def seal(path: Path, change: Callable[[Tree], object], host: str | None = None) -> Path:
    """Change a record and give it the id and the name that fit, as a forger would."""
    tree: Tree = json.loads(path.read_text())
    path.unlink()
    change(tree)
    tree["host"] = host or tree["host"]
    tree["id"] = f"{tree['host']}-{tree['id'].split('-', 1)[1][:-8]}{canonical.digest(tree)[:8]}"
    forged = path.parent.parent / str(tree["host"]) / f"{tree['id']}.json"
    forged.parent.mkdir(exist_ok=True)
    forged.write_text(canonical.dumps(tree))
    return forged


def refused(root: Any, match: str) -> None:
    """By the reader and by verify, with the same finding, in one line."""
    with pytest.raises(UserError, match=match) as caught:
        load_all(root)
    assert "\n" not in str(caught.value)
    assert str(verify(root)[0]) in str(caught.value)


def test_a_synthetic_record_renamed_to_a_real_host(synthetic: Any) -> None:
    seal(synthetic.write(synthetic.bench([synthetic.bench_row(7)])), lambda tree: None, host="h200")
    refused(synthetic.root.path, r"evidence/records/h200/.*\.json: host: says h200, but its machine is syntheticgpu")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda tree: tree["body"]["rows"][0]["check"].update(passed=False), r"check\.passed: .* gave a wrong result"),
        (
            lambda tree: tree["body"]["rows"].append(tree["body"]["rows"][0]),
            r"body\.rows\.1: says again .* body\.rows\.0",
        ),
        (lambda tree: tree["machine"]["gpu"].update(compute_capability="9.0a"), r"compute_capability: '9\.0a' is not"),
        (lambda tree: tree["machine"]["gpu"].update(compute_capability="9"), r"compute_capability: '9' is not"),
        (lambda tree: tree["body"]["rows"][0]["problem"].update(group_size=0), r"problem\.group_size: must be from 1"),
        (lambda tree: tree["body"]["rows"][0]["problem"].update(n=10**400), r"problem\.n: must be from 1"),
        (lambda tree: tree["body"]["rows"][0]["stock_us"].__setitem__(0, 1e300), r"stock_us\.0: Input should be less"),
        (
            lambda tree: tree["body"]["rows"][0]["ours_us"].__setitem__(0, 1e-300),
            r"ours_us\.0: Input should be greater",
        ),
        (lambda tree: tree["body"]["rows"][0]["check"].update(norm_error=-1.0), r"norm_error: Input should be greater"),
        (lambda tree: tree.update(kernel=None), r"kernel: missing, although"),
    ],
)
def test_a_resealed_benchmark(synthetic: Any, change: Any, match: str) -> None:
    seal(synthetic.write(synthetic.bench([synthetic.bench_row(7)])), change)
    refused(synthetic.root, match)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('"norm_error": 0.0012345', '"norm_error": 1e999', r"norm_error: Input should be a finite number"),
        ('"probe_bytes": 1000000000', '"probe_bytes": 1e999', r"probe_bytes: Input should be a finite number"),
        ('"suite": "synthetic"', '"suite": "\\ud800"', r"body\.suite: '\\ud800' is not Unicode text"),
        ('"mlx": "0', '"\\udfff": "0', r"versions: the name '\\udfff' is not Unicode text"),
        ('"suite": "synthetic"', '"suite": ' + "[" * 200_000 + "]" * 200_000, "nested too deep to be a record"),
        ('"suite": "synthetic"', '"suite": ' + "9" * 6000, "cannot be read: Exceeds the limit"),
    ],
)
def test_text_that_breaks_a_reader(synthetic: Any, old: str, new: str, match: str) -> None:
    path = synthetic.write(synthetic.bench([synthetic.bench_row(7)]))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    refused(synthetic.root, rf"^evidence/records/test/{path.name}: .*{match}")


def test_the_writer_refuses_half_a_character(synthetic: Any) -> None:
    with pytest.raises(UserError, match=r"not stored: command: '\\udce4' is not Unicode text"):
        synthetic.write(synthetic.bench([]), command="\udce4")
    assert not synthetic.root.path.exists()


def test_host_cost_twice(synthetic: Any) -> None:
    cost = HostCost(call="run", problem=Problem(m=1, n=512, k=512), stock_us=[3.0] * 3, ours_us=[4.0] * 3)
    with pytest.raises(UserError, match=r"body\.host_cost\.1: says again what is in body\.host_cost\.0"):
        synthetic.write(synthetic.bench([]).model_copy(update={"host_cost": [cost, cost]}))


def test_launches_twice(synthetic: Any) -> None:
    body = synthetic.ncu((1,))
    first, second = body.launches
    with pytest.raises(UserError, match=r"body\.launches\.2: says again what is in body\.launches\.0"):
        synthetic.write(body.model_copy(update={"launches": [first, second, first]}))
    other = first.model_copy(update={"kernel": "reduce"})
    with pytest.raises(UserError, match=r"body\.launches\.2: a second call of body\.launches\.0"):
        synthetic.write(body.model_copy(update={"launches": [first, second, other]}))
    synthetic.write(body.model_copy(update={"launches": [first, other, second]}))


@pytest.mark.parametrize("value", [-5.0, float("inf"), 1e300])
def test_metrics_that_nothing_counts(value: float) -> None:
    with pytest.raises(ValueError, match="Input should be"):
        Metric(value=value, unit="byte")


def test_a_profile_without_time_has_no_share_of_it(synthetic: Any) -> None:
    body = synthetic.ncu((7,))
    still = {"gpu__time_duration.sum": Metric(value=0.0, unit="ns")}
    launches = [one.model_copy(update={"metrics": one.metrics | still}) for one in body.launches]
    synthetic.write(body.model_copy(update={"launches": launches}))
    found = {fact.id for fact in facts.derive(synthetic.load(), lambda kernel: "")}
    assert "ncu.test.4096x4096.b4.g64.bf16.M7.ours.dram_bytes_read" in found
    assert not [name for name in found if name.endswith("dram_pct")]


@pytest.mark.parametrize("capability", ["7.5", "12.3", "9.0", "12.1"])
def test_any_capability_gives_facts(synthetic: Any, capability: str) -> None:
    gpu = synthetic.machine.gpu.model_copy(update={"compute_capability": capability, "multiprocessors": 10})
    row = synthetic.bench_row(7, ours_kernels=["small_m_bf16_r8_w16_s4_b4_x"])
    synthetic.write(synthetic.bench([row]), machine=synthetic.machine.model_copy(update={"gpu": gpu}))
    found = facts.derive(synthetic.load(), lambda kernel: "ab" * 32)
    assert "small_m.test.4096x4096.b4.g64.bf16.M7.speedup" in {fact.id for fact in found}


def test_a_forged_fast_probe_blocks_no_run(synthetic: Any) -> None:
    path = synthetic.write(synthetic.bench([], probe=1000.0))
    tree = json.loads(path.read_text())
    tree["body"]["probe_gbps"] = [9000.0] * 3
    path.write_text(canonical.dumps(tree))
    synthetic.write(synthetic.bench([], probe=985.0), 1)


def labelled(synthetic: Any, *names: str) -> CorrectnessBody:
    cases = synthetic.correctness(*[synthetic.good] * len(names)).cases
    renamed = [case.model_copy(update={"case": name}) for case, name in zip(cases, names, strict=True)]
    return CorrectnessBody(cases=renamed)


def test_a_part_of_the_matrix_takes_no_place(synthetic: Any) -> None:
    whole = [*["rows"] * 18, "corner", "data.one_hot"]
    synthetic.write(labelled(synthetic, *whole))
    with pytest.raises(UserError, match=r"body\.cases: 1 cases, none of corner, data\.one_hot: a part of the matrix"):
        synthetic.write(labelled(synthetic, "rows"), 1)
    with pytest.raises(UserError, match=r"body\.cases: 19 cases, none of corner: a part"):
        synthetic.write(labelled(synthetic, *["rows"] * 18, "data.one_hot"), 1)
    with pytest.raises(UserError, match=r"body\.cases: 17 cases: a part"):
        synthetic.write(labelled(synthetic, *["rows"] * 15, "corner", "data.one_hot"), 1)
    synthetic.write(labelled(synthetic, *whole[1:]), 1)  # another tuning has a few other cases
    synthetic.write(labelled(synthetic, *whole, *["paths"] * 9), 2)  # a matrix may grow, and what is older stays right
    assert verify(synthetic.root) == []


def test_the_whole_cross_and_the_cover_are_no_parts_of_one_another(synthetic: Any) -> None:
    crossed = labelled(synthetic, *["formats"] * 40).model_copy(update={"full": True, "planned": 40})
    synthetic.write(crossed)
    synthetic.write(labelled(synthetic, "rows", "corner"), 1)
    part = crossed.model_copy(update={"cases": crossed.cases[:20]})
    with pytest.raises(UserError, match=r"body\.cases: 20 cases: a part of the matrix"):
        synthetic.write(part, 2)
    assert verify(synthetic.root) == []


def test_a_part_that_was_copied_in_gives_no_facts(synthetic: Any, tmp_path: Path) -> None:
    synthetic.write(labelled(synthetic, "rows", "corner"))
    aside = synthetic.write(labelled(synthetic, "rows"), 1, root=type(synthetic.root)(tmp_path / "aside"))
    (synthetic.root.path / "records" / "test" / aside.name).write_bytes(aside.read_bytes())
    assert [finding.field for finding in verify(synthetic.root)] == ["body.cases"]
    found = {fact.id: fact.value for fact in facts.derive(synthetic.load(), lambda kernel: "ab" * 32)}
    assert found["correctness.test.bf16.cases"] == 2


def test_a_known_host_needs_a_matrix(synthetic: Any, tmp_path: Path) -> None:
    machine = synthetic.machine.model_copy(update={"gpu": Gpu(name="NVIDIA H200", vendor="nvidia")})
    given = {"host": "h200", "machine": machine, "root": tmp_path / "real"}
    with pytest.raises(UserError, match=r"body\.cases: 2 cases are a part of the matrix"):
        synthetic.write(synthetic.correctness(), **given)
    body = synthetic.correctness()
    twice = body.model_copy(update={"cases": [*body.cases, body.cases[0]]})
    with pytest.raises(UserError, match=r"body\.cases\.2: says again what is in body\.cases\.0"):
        synthetic.write(twice)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError])
def test_a_stopped_write_leaves_nothing(synthetic: Any, monkeypatch: pytest.MonkeyPatch, stop: Any) -> None:
    def stopped(path: Path, text: str, **_: bool) -> None:
        raise stop

    monkeypatch.setattr("upstream_patch.records.placing.write_text", stopped)
    with pytest.raises(stop):
        synthetic.write(synthetic.bench([]), attachments={"raw.csv": b"x"})
    assert [path for path in synthetic.root.path.rglob("*") if path.is_file()] == []
    assert verify(synthetic.root) == []


def test_anothers_raw_files_are_left_alone(synthetic: Any) -> None:
    path = synthetic.write(synthetic.ncu((1,)), attachments={"raw.csv": b"x"})
    raw = synthetic.root.path / "raw" / path.stem / "raw.csv"
    text = path.read_text()
    path.unlink()  # as two writers see it that start at once
    with pytest.raises(UserError, match="raw files are never overwritten"):
        synthetic.write(synthetic.ncu((1,)), attachments={"raw.csv": b"x"})
    assert raw.read_bytes() == b"x"
    path.write_text(text)
    assert verify(synthetic.root) == []
