"""The writer refuses what is no evidence; the reader names the file and the field of a damaged record."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.errors import UserError
from upstream_patch.records import canonical, scrub
from upstream_patch.records.schema import SCHEMA_VERSION, json_schema
from upstream_patch.records.store import SyntheticRoot, load_all, verify


def damage(path: Path, change: Any, seal: bool = False) -> None:
    """Change the JSON of a record; ``seal`` gives it an id and a name that fit again, as a forger would."""
    tree = json.loads(path.read_text())
    change(tree)
    if seal:
        path.unlink()
        tree["id"] = tree["id"][:-8] + canonical.digest(tree)[:8]
        path = path.with_name(tree["id"] + ".json")
    path.write_text(canonical.dumps(tree))


def test_what_is_written_is_read_back(synthetic: Any) -> None:
    path = synthetic.write(synthetic.bench([synthetic.bench_row(7)]), attachments={"raw.csv": b"a,b\n1,2\n"})
    (loaded,) = synthetic.load()
    assert loaded.path == f"evidence/records/test/{path.name}"
    assert loaded.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    body = synthetic.bench([synthetic.bench_row(7)])
    assert loaded.record.body == type(body).model_validate(canonical.tidy(body.model_dump()))
    assert (synthetic.root.path / "raw" / loaded.record.id / "raw.csv").read_bytes() == b"a,b\n1,2\n"
    assert path.name.startswith("test-20261101T120000Z-bench-")
    assert verify(synthetic.root) == []


def test_text_form_is_readable_and_stable(synthetic: Any) -> None:
    row = synthetic.bench_row(7, stock_us=[70.123456789, 1 / 3, 5.0])
    row = row.model_copy(update={"ours_us": [1.0, 1.0, 1.0], "aa_us": [2.0, 2.0, 2.0]})
    text = synthetic.write(synthetic.bench([row], probe=10_000.0)).read_text()
    assert '"stock_us": [70.12346, 0.3333333, 5.0],\n' in text
    assert text.endswith("}\n")
    assert text == canonical.dumps(json.loads(text))
    assert canonical.tidy(123456789.0) == 123456789.0  # a count of bytes keeps every digit


def test_production_roots_refuse_the_synthetic_host(synthetic: Any, tmp_path: Path) -> None:
    synthetic.write(synthetic.bench([]))
    with pytest.raises(UserError, match=r"evidence/records/test/.*\.json: host: 'test' is for synthetic records"):
        load_all(synthetic.root.path)
    assert [finding.field for finding in verify(synthetic.root.path)] == ["host"]
    with pytest.raises(UserError, match="host: 'test' is for synthetic"):
        synthetic.write(synthetic.bench([]), root=tmp_path / "real")
    with pytest.raises(UserError, match="no place in a synthetic root"):
        synthetic.write(synthetic.bench([]), host="h200")
    assert not (tmp_path / "real").exists()


def test_no_production_module_builds_a_synthetic_root(root: Path) -> None:
    users = []
    for file in [*(root / "upstream_patch").rglob("*.py"), *root.glob("ci/**/*.py"), root / "noxfile.py"]:
        for node in ast.walk(ast.parse(file.read_text())) if file.exists() else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("SyntheticRoot"):
                users.append(f"{file}:{node.lineno}")
    assert users == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda tree: tree["body"]["rows"][0]["stock_us"].__setitem__(2, -1.0), r"body\.bench\.rows\.0\.stock_us\.2"),
        (lambda tree: tree["body"]["rows"][0].__setitem__("typo", 1), r"body\.bench\.rows\.0\.typo"),
        (lambda tree: tree["body"]["rows"][0]["aa_us"].pop(), r"body\.bench\.rows\.0: .*lengths differ"),
        (lambda tree: tree.__delitem__("machine"), r"machine: Field required"),
        (lambda tree: tree.__setitem__("schema_version", 2), r"schema_version: is 2, this upstream-patch reads 1"),
        (lambda tree: tree["body"]["rows"][0]["stock_us"].__setitem__(0, 1.0), r"id: the content's sha256 begins"),
        (lambda tree: tree["kernel"].__setitem__("hash", "cd" * 32), r"id: the content's sha256 begins"),
        (lambda tree: tree.__setitem__("command", "other"), r"id: the content's sha256 begins"),
    ],
)
def test_a_damaged_record_names_file_and_field(synthetic: Any, change: Any, field: str) -> None:
    path = synthetic.write(synthetic.bench([synthetic.bench_row(7)]))
    damage(path, change)
    with pytest.raises(UserError, match=rf"^evidence/records/test/{re.escape(path.name)}: {field}") as caught:
        synthetic.load()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema_version": 1, "x": NaN}', "\xff"])
def test_text_that_is_no_record(synthetic: Any, text: str) -> None:
    path = synthetic.write(synthetic.bench([]))
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=rf"{path.name}: cannot be read"):
        synthetic.load()


def test_reformatting_by_hand_is_seen(synthetic: Any) -> None:
    path = synthetic.write(synthetic.bench([]))
    path.write_text(json.dumps(json.loads(path.read_text())))
    with pytest.raises(UserError, match="edited by hand"):
        synthetic.load()


def test_verify_reports_everything(synthetic: Any) -> None:
    first = synthetic.write(synthetic.bench([]), attachments={"a.csv": b"1", "b.csv": b"2"})
    raw = synthetic.root.path / "raw" / first.stem
    (raw / "a.csv").unlink()
    (raw / "b.csv").write_bytes(b"3")
    (raw / "c.csv").write_bytes(b"4")
    second = synthetic.write(synthetic.bench([synthetic.bench_row(2)]), 1)
    damage(second, lambda tree: tree["body"]["rows"][0]["check"].__setitem__("passed", False), seal=True)
    (synthetic.root.path / "raw" / "nobody").mkdir()
    (synthetic.root.path / "records" / "notes.txt").write_text("x")
    expected = [
        "a.csv is missing",
        "b.csv was changed",
        "c.csv is not named",
        "a wrong result",
        "not a record",
        "no record names",
    ]
    found = [str(finding) for finding in verify(synthetic.root)]
    assert len(found) == len(expected), found
    for line, words in zip(found, expected, strict=True):
        assert line.startswith("evidence/") and words in line


def test_a_renamed_or_moved_record(synthetic: Any) -> None:
    path = synthetic.write(synthetic.bench([]))
    path.rename(path.with_name("test-20261101T120000Z-bench-00000000.json"))
    with pytest.raises(UserError, match="id: the file should lie at records/test/"):
        synthetic.load()


def test_schema_file_is_the_models(root: Path) -> None:
    assert (root / "evidence" / "schema.json").read_text() == json_schema(), (
        "python -m upstream_patch.records.schema > evidence/schema.json"
    )
    assert json.loads(json_schema())["properties"]["schema_version"]["const"] == SCHEMA_VERSION


def test_committed_records_are_sound(root: Path) -> None:
    assert verify(root / "evidence") == []


def test_the_kept_synthetic_records_still_load(root: Path) -> None:
    """They were written by the first version: a change of schema that cannot read them needs a new version number."""
    kept = SyntheticRoot(root / "tests" / "data" / "evidence")
    assert verify(kept) == []
    assert {loaded.record.body.kind for loaded in load_all(kept)} == {"bench", "correctness", "ncu"}


def test_a_real_scrubber_hides_this_machine(tmp_path: Path) -> None:
    text = scrub.here().text(f"{Path.cwd()}/build {Path.home()}/x /home/jane/y")
    assert text == "<repo>/build <home>/x <home>/y"


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="names of open files are Linux's")
def test_a_record_is_on_the_disk_when_the_writer_returns(synthetic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal that held its units is thrown away next."""
    synced: list[str] = []

    def sync(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))

    monkeypatch.setattr(os, "fsync", sync)
    path = synthetic.write(synthetic.bench([]), attachments={"raw.csv": b"1"})
    base = synthetic.root.path.resolve()
    stage = base / ".partial" / path.stem
    names = [one.removeprefix(f"{base}/").replace(path.stem, "ID") for one in synced]
    assert names[:2] == [".partial/ID/raw/raw.csv", ".partial/ID/raw"]
    assert names[2].startswith(".partial/ID/.record.json.") and names[3] == ".partial/ID"
    assert names[4:] == ["raw", str(base), "records/test", "records", str(base)]
    assert not stage.exists()
