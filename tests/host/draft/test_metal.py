"""The drafts of the Metal contribution: with no record of an Apple GPU, with synthetic ones, and beside CUDA's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.host.draft import metal_records
from tests.host.draft.conftest import BASE, HEAD, NOW, upstream
from tests.host.draft.metal_records import derived, draft
from tests.host.draft.test_proving import in_wheel
from upstream_patch.draft import claims, gates, holes, inputs, managed
from upstream_patch.draft.blocks import BLOCKS, MISSING, script
from upstream_patch.draft.contributions import METAL
from upstream_patch.draft.documents import DOCUMENTS, METAL_ISSUE, METAL_PR, Document, all_of
from upstream_patch.draft.inputs import SeriesProof
from upstream_patch.errors import StaleFact
from upstream_patch.machine import Gpu
from upstream_patch.records import facts, kernel_hash, store
from upstream_patch.records.schema import KernelIdentity

NOT_YET = f"{MISSING}: no Apple GPU has run it yet: `python -m upstream_patch m5`"
NONE_SUCH = "is said of M5 Max, of which this draft has no such fact"
HEADINGS = re.compile(r"^(?:\*\*.*\*\*|#.*|- AI usage disclosure:)$", re.MULTILINE)
OPERATORS = """\
| K x N | M | stock, us | ours, us | stock / ours | 95% interval | verdict | route of ours |
| --- | --- | --- | --- | --- | --- | --- | --- |
| 256 x 4096 | 16 | 20.0 | 10.0 | 2.00 | 2.00 to 2.00 | FASTER | qmm_t_nax, staged |
| 256 x 4096 | 40 | 20.0 | 10.0 | 2.00 | 2.00 to 2.00 | FASTER | qmm_t_nax, staged |
| 768 x 4096 | 16 | 20.0 | 10.0 | 2.00 | 2.00 to 2.00 | FASTER | qmm_t_nax_splitk in 3 parts, staged |
| 2048 x 2048 | 22 | 20.0 | 10.0 | 2.00 | 2.00 to 2.00 | FASTER | qmm_t_nax_splitk in 4 parts, staged |
| 4096 x 4096 | 16 | 20.0 | 10.0 | 2.00 | 2.00 to 2.00 | FASTER | qmm_t_nax_splitk in 4 parts, staged |
| 4096 x 4096 | 512 | 20.0 | 10.0 | 2.00 | 2.00 to 2.00 | FASTER | qmm_t_nax, staged |
| 10752 x 2048 | 85 | 20.0 | 10.0 | 2.00 | 2.00 to 2.00 | FASTER | qmm_t_nax_splitk in 4 parts, staged |
| 4096 x 14336 | 8 | 20.0 | 20.0 | 1.00 | 1.00 to 1.00 | SAME | qmv_wide |
| 14336 x 4096 | 33 | 20.0 | 10.0 | 2.00 | 2.00 to 2.00 | FASTER | qmm_t_nax_splitk in 4 parts, staged |
| 5120 x 17408 | 28 | 20.0 | 10.0 | 2.00 | 2.00 to 2.00 | FASTER | qmm_t_nax, staged |
| 17408 x 5120 | 56 | 20.0 | 10.0 | 2.00 | 2.00 to 2.00 | FASTER | qmm_t_nax_splitk in 2 parts, staged |
"""
MODELS = """\
| model | tokens | output head on | stock, ms | ours, ms | stock / ours | 95% interval | verdict | logits, norm error |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| Llama-3.2-1B-Instruct-4bit | 128 | every token | 16.0 | 8.0 | 2.00 | 2.00 to 2.00 | FASTER | 0.01 |
| Llama-3.2-1B-Instruct-4bit | 512 | every token | 16.0 | 8.0 | 2.00 | 2.00 to 2.00 | FASTER | 0.01 |
"""


def status(here: Any, *names: str) -> dict[str, gates.Gate]:
    return {gate.name: gate for gate in gates.status(here.work, here.evidence, names, NOW, METAL)}


def block(text: str, name: str) -> str:
    return next(text[first:last] for found, first, last in managed.spans(text) if found == name)


@pytest.mark.parametrize("document", all_of(METAL).values(), ids=all_of(METAL))
def test_without_a_record_a_block_says_so_and_no_gate_lets_it_through(document: Document, rehearsal: Any) -> None:
    text = draft(rehearsal, document).read_text("utf-8")  # the records there are, are of NVIDIA's
    assert block(text, "operators").splitlines()[1] == NOT_YET
    assert block(text, "correctness").splitlines()[1] == NOT_YET
    assert "\n- m5: not run (" in block(text, "not_run")
    assert not re.search(r"h200|gb10|NVIDIA|CUDA", text)
    found = {name for name, _, _ in managed.spans(text)}
    assert {name for name in found if not name.startswith("for_")} == set(document.blocks) <= set(BLOCKS)
    assert tuple(hole.id for hole in holes.open_holes(text, document.required)) == document.required
    left = HEADINGS.sub("", re.sub(r"<!--.*?-->", "", managed.strip(text), flags=re.DOTALL))
    assert set(left.split()) <= {"TODO(person):", "[BUG]", *document.required}  # no sentence of the tool's
    (rehearsal.work / document.file).unlink()
    draft(rehearsal, document, fill=True)
    gate = status(rehearsal, document.name)["holes"]
    assert gate.outcome == "red" and gate.why.startswith("open: ")
    waiting = holes.marked((rehearsal.work / document.file).read_text("utf-8"), MISSING)
    assert f"{len(waiting)} values wait for a record or a filing" in gate.why
    assert [hole.hint for hole in waiting if "issue" not in hole.hint and "built" not in hole.hint] == [NOT_YET] * 2
    again = f"upstream-patch draft {document.name} --contribution metal{rehearsal.where}"
    assert gate.fix == f"make or file what is missing, then {again}"


def test_an_m5s_records_are_placed(mac: Any) -> None:
    for document, missing in ((METAL_ISSUE, 0), (METAL_PR, 2)):  # of the latter: the issue, the build
        path = draft(mac, document)
        text = path.read_text("utf-8")
        assert (
            block(text, "operators")
            .partition("#### m5max\n\nbf16, 4-bit, group size 64; ")[2]
            .partition("\n\n")[2]
            .startswith(OPERATORS)
        )
        assert re.search(r"\| m5max-\d{8}T\d{6}Z-bench-\w{8} \| 500 \| 2\.00 \|", block(text, "operators"))
        assert f"#### m5max\n\n{MODELS}" in block(text, "models")
        assert "| bf16 | normal | 1 | 1 | 1 | 1 | 0.00123 | 0.002 | 1 | 2 |" in block(text, "correctness")
        assert block(text, "machines").splitlines()[1:-1] == [
            " - m5max: OS Version: macOS 26.2 arm64; Version: mlx 0.32.4; GPU Apple M5 Max"
        ]
        assert f"- m5max: `python -m upstream_patch m5 --model {metal_records.MODEL}`" in block(text, "commands")
        assert block(text, "not_run").splitlines()[1:-1] == [
            "- m5: not run (`python -m upstream_patch m5`, `python -m upstream_patch m5 --model FOLDER_OR_ID`, "
            "`python -m upstream_patch build --mlx PATH`)",
            "- m5max: no record of build (`python -m upstream_patch build --mlx PATH`)",
        ]
        assert len(re.findall(r"evidence/records/m5max/m5max-[\w-]+\.json", block(text, "records"))) == 2
        assert len(holes.marked(text, MISSING)) == missing
        assert not re.search(r"h200|gb10|NVIDIA", text)
    for name in DOCUMENTS:  # and no number of an Apple GPU in a draft about CUDA
        text = mac.draft(name).read_text("utf-8")
        assert "m5" not in text and "Apple" not in text


def test_what_an_m5_has_not_run_yet_is_named(mac: Any) -> None:
    some = [fact for fact in derived(mac) if not fact.id.startswith(("nax.", "forward."))]
    text = METAL_ISSUE.write(mac.work, some).read_text("utf-8")
    assert [hole.hint for hole in holes.marked(text, MISSING)] == [
        f"{MISSING}: no record of nax: `python -m upstream_patch m5`"
    ]
    assert block(text, "models").splitlines()[1] == "no record"  # a person may go without
    assert "\n- m5max: no record of nax, forward, build (" in block(text, "not_run")


def test_a_stale_record_is_not_placed(mac: Any) -> None:
    old = facts.derive(store.load_all(mac.evidence))
    stale = [one if one.id.startswith("record.") else type(one)(**{**vars(one), "stale": True}) for one in old]
    with pytest.raises(
        StaleFact, match=r"nax\.m5max\..* is stale.*renew it on m5max with `python -m upstream_patch m5"
    ):
        METAL_ISSUE.write(mac.work, stale)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("On an M5 Max, 4096 x 4096 at M = 16 takes 10.0 us, and 20.0 us with stock.", []),
        ("The Apple M5 Max takes 8.0 ms for 128 tokens of Llama 3.2 1B, 2.0x less.", []),
        ("An M5 Max takes 8.0 ms for 128 tokens of LFM2.5-1.2B-Instruct-4bit.", [f"'8.0 ms' {NONE_SUCH}"]),
        (
            "On an M5, 4096 x 4096 at M = 16 takes 10.0 us.",
            ["'10.0 us' is said of M5, of which this draft has no fact"],
        ),
        ("An H200 takes 10.0 us at M = 16.", ["'10.0 us' is said of H200, of which this draft has no fact"]),
        ("On an M5 Max, 4096 x 14336 at M = 8 takes 10.0 us.", ["'10.0 us' is no fact"]),
        ("On an M5 Max a pass of d1-3B takes 8.0 ms.", [f"'8.0 ms' {NONE_SUCH}"]),
        ("On an M5 Max 32 tokens take 8.0 ms.", [f"'8.0 ms' {NONE_SUCH}"]),
        ("On an M5 Max it makes 128 tokens/s.", [f"'128 tokens/s' {NONE_SUCH}"]),
    ],
)
def test_the_claim_check_takes_metal_facts_by_device(mac: Any, words: str, told: list[str]) -> None:
    found = [str(one).partition(": ")[2].partition(";")[0] for one in claims.check(words, METAL.of(derived(mac)))]
    assert found == told


def test_a_build_for_metal_proves_its_tests_and_the_controls(
    mac: Any, synthetic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = metal_records.built(mac.evidence, BASE)
    h200 = synthetic.machine.model_copy(update={"gpu": Gpu(name="NVIDIA H200", vendor="nvidia")})
    kernel = kernel_hash.identity("small_m")
    synthetic.write(in_wheel(synthetic), 99, host="h200", machine=h200, kernel=kernel, root=mac.evidence)
    draft(mac, METAL_PR)
    now = status(mac, "pr")
    assert {name: now[name].why for name in ("tests", "unaffected")} == {
        "tests": "2 new tests fail on the base and pass with the series",
        "unaffected": "1 problems of other routes take the same time",
    }
    assert not now["benchmarks"].open
    assert now["benchmarks"].why == "no record times today's host code of the series in MLX"
    proof = inputs.read(mac.work, "series_metal", SeriesProof)
    assert proof is not None and [cell.problem for cell in proof.unaffected] == [
        "m5max.4096x14336.b4.g64.bf16.M8.hot.chain"
    ]
    text = draft(mac, METAL_PR).read_text("utf-8")
    assert "| `test_qmm_mid_m` | failed | passed |" in block(text, "tests")
    assert f"| `evidence/records/m5max/{record.name}` |" in block(text, "records")
    assert "- m5max: `python -m upstream_patch build --mlx PATH`" in block(text, "commands")
    monkeypatch.setattr(kernel_hash, "identity", lambda name: KernelIdentity(name=name, hash="0" * 64))
    why = "the build is not of today's series: the kernel qmm_t_nax_staged changed since"
    assert status(mac, "pr")["tests"].why == why


def test_the_two_contributions_have_nothing_in_common_in_the_folder(mac: Any) -> None:
    mac.draft("issue")
    mac.draft("pr")
    draft(mac, METAL_ISSUE)
    draft(mac, METAL_PR)
    inputs.write(mac.work, "upstream_metal", upstream(series_sha256=metal_records.SERIES))
    metal_records.built(mac.evidence, BASE)
    draft(mac, METAL_PR)
    gates.excuse("pr", "benchmarks", "timed by hand", mac.work, mac.evidence, NOW, METAL)
    assert status(mac, "pr")["benchmarks"].outcome == "excused"
    cuda = {gate.name: gate for gate in mac.status("pr")}
    assert (cuda["benchmarks"].outcome, cuda["tests"].outcome, cuda["base"].outcome) == ("red", "red", "red")
    assert status(mac, "pr")["base"].why == f"no file of the series changed up to {HEAD[:12]} of 2026-12-01"
    assert sorted(path.name for path in (mac.work / "inputs").iterdir()) == [
        *("excuses.json", "series_metal.json", "upstream_metal.json"),
    ]


def test_every_way_out_says_which_contribution(rehearsal: Any) -> None:
    for name, document in all_of(METAL).items():
        for written in (False, True):
            if written:
                draft(rehearsal, document)
            ways = re.findall(r"upstream-patch [^;]+", "; ".join(gate.fix for gate in status(rehearsal, name).values()))
            mine = [way for way in ways if "rules refresh" not in way]
            assert mine and [way for way in mine if "--contribution metal" not in way] == []


def test_the_script_runs_on_the_cpu_and_needs_mlx_only(tmp_path: Path) -> None:
    pytest.importorskip("mlx.core")
    assert set(re.findall(r"^(?:import|from) ([\w]+)", script(METAL), re.MULTILINE)) == {"sys", "time", "mlx"}
    path = tmp_path / "reproduce.py"
    path.write_text(script(METAL))
    code = f"import mlx.core as mx, runpy; mx.set_default_device(mx.cpu); runpy.run_path({str(path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code, "64", "64", "2"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert re.fullmatch(r"mlx [\d.]+, Device\(cpu, 0\), 4-bit, group size 64, bf16, 8 sets of weights", first)
    assert re.fullmatch(r"64 x 64, M = 2: -?[\d.]+ us, error 0\.00\d\d of the norm", second)
