"""What verify finds beyond the records themselves: edited pages, links, folders where files should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from upstream_patch import routing_table, targets
from upstream_patch.cli import app
from upstream_patch.errors import UserError
from upstream_patch.files import write_text
from upstream_patch.machine import Gpu
from upstream_patch.plots import files as plots
from upstream_patch.records import facts, kernel_hash
from upstream_patch.records.schema import json_schema
from upstream_patch.records.store import LINKED, load_all, verify
from upstream_patch.report import page
from upstream_patch.verifying import SCHEMA, generated


def run(arguments: list[str]) -> Any:
    return CliRunner().invoke(app, arguments)


@pytest.mark.needs_plots
def test_an_edit_of_any_generated_file_is_found(synthetic: Any) -> None:
    synthetic.write(
        synthetic.bench([synthetic.bench_row(1), synthetic.bench_row(7)]), kernel=kernel_hash.identity("small_m")
    )
    base, records = synthetic.root.path, synthetic.load()
    derived = facts.derive(records)
    assert generated(base, records) == (len(derived), [])  # what is not there claims nothing
    (plot, *_) = plots.write(base, derived)
    write_text(base / page.FILE, page.render(derived, records, {}))  # the drawings' lines are not compared
    write_text(base / targets.FILE, targets.markdown(derived))
    write_text(base / routing_table.FILE, routing_table.markdown())
    write_text(base / SCHEMA, json_schema())
    assert generated(base, records)[1] == []
    edited = {
        base / targets.FILE: "upstream_patch targets",
        base / routing_table.FILE: "upstream_patch routing",
        base / SCHEMA: "upstream_patch.records.schema > ",
        base / page.FILE: "upstream_patch report",
        plot: "upstream_patch plots",
    }
    for path in edited:
        path.write_text(path.read_text(encoding="utf-8") + " ", encoding="utf-8")
    said = generated(base, records)[1]
    assert len(said) == len(edited)
    for line, (path, verb) in zip(said, edited.items(), strict=True):
        assert str(path) in line and verb in line


def test_a_folder_in_a_records_raw_files_hides_no_other_finding(synthetic: Any) -> None:
    first = synthetic.write(synthetic.bench([]), attachments={"a.csv": b"1"})
    second = synthetic.write(synthetic.bench([]), 1, attachments={"b.csv": b"1"})
    raw = synthetic.root.path / "raw"
    (raw / first.stem / "within").mkdir()
    (raw / first.stem / "within" / "c.csv").write_bytes(b"/home/bob/x")
    (raw / second.stem / "b.csv").write_bytes(b"2")
    found = [str(finding) for finding in verify(synthetic.root)]
    assert [one.partition(f"raw/{first.stem}/")[2] for one in found[:2]] == [
        "within is not named by the record",
        "within/c.csv is not named by the record",
    ]
    assert "c.csv: holds a path" in found[2] and found[3].endswith("b.csv was changed after writing")
    (raw / second.stem / "b.csv").unlink()
    (raw / second.stem / "b.csv").mkdir()
    assert str(verify(synthetic.root)[-1]).endswith("b.csv is missing")


@pytest.mark.parametrize("linked", ["record", "host", "records", "attachment", "attachments", "raw"])
def test_a_link_out_of_the_tree_is_no_evidence(synthetic: Any, tmp_path: Path, linked: str) -> None:
    path = synthetic.write(synthetic.bench([]), attachments={"a.csv": b"1"})
    base = synthetic.root.path
    folder = base / "raw" / path.stem
    place = {
        "record": path,
        "host": path.parent,
        "records": path.parent.parent,
        "attachment": folder / "a.csv",
        "attachments": folder,
        "raw": folder.parent,
    }[linked]
    place.rename(tmp_path / "aside")
    place.symlink_to(tmp_path / "aside")
    found = verify(synthetic.root)
    shown = f"{base.name}/{place.relative_to(base).as_posix()}"
    said = [finding for finding in found if finding.message == LINKED]
    assert any(finding.path == shown for finding in said) or linked in ("host", "records")
    assert said, found


def test_the_verb_derives_every_fact_and_looks_at_the_pages(synthetic: Any, tmp_path: Path) -> None:
    evidence = tmp_path / "real"
    machine = synthetic.machine.model_copy(update={"gpu": Gpu(name="NVIDIA H200", vendor="nvidia")})
    path = synthetic.write(synthetic.bench([], probe=4500.0), host="h200", machine=machine, root=evidence)
    done = run(["records", "verify", "--evidence", str(evidence)])
    count = len(facts.derive(load_all(evidence)))
    assert count > 2
    assert done.output == (
        f"1 records are as they were written; they give {count} facts, which the generated files show\n"
    )
    (evidence / targets.FILE).write_text("all met\n", encoding="utf-8")
    done = run(["records", "verify", "--evidence", str(evidence)])
    assert isinstance(done.exception, UserError)
    assert f"{evidence / targets.FILE} is not what the records and the code say" in done.output
    path.write_text(path.read_text(encoding="utf-8").replace("4499", "4498"), encoding="utf-8")
    done = run(["records", "verify", "--evidence", str(evidence)])
    assert isinstance(done.exception, UserError) and "was changed after writing" in done.output
