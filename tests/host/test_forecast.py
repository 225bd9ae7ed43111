"""The forecast: machine code is read right, the model adds up, and what is predicted stays a prediction."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from upstream_patch import readme
from upstream_patch.draft.documents import ISSUE as issue
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.machine import System, find_nvdisasm
from upstream_patch.measure.forecast import hardware, llama, model, report, sass
from upstream_patch.measure.forecast.hardware import GB10, Value
from upstream_patch.measure.forecast.sass import Instruction
from upstream_patch.problem import Problem
from upstream_patch.records import store
from upstream_patch.records.facts import Fact, derive

COPY = "LDGSTS.E.BYPASS.LTC128B.128"


def program(text: str) -> tuple[Instruction, ...]:
    """One instruction a line: [label:] [@predicate] opcode [operands]; a branch names a label."""
    lines = [line.split() for line in text.strip().splitlines()]
    labels = {words[0][:-1]: i for i, words in enumerate(lines) if words[0].endswith(":")}
    code = []
    for line in lines:
        words = line[line[0].endswith(":") :]
        predicate = words.pop(0) if words[0].startswith("@") else ""
        opcode, operands = words[0], "".join(words[1:])
        for label, index in labels.items():
            operands = re.sub(rf"\b{label}\b", hex(16 * index), operands)
        code.append(Instruction(opcode, predicate, operands))
    return tuple(code)


# Nobody's kernel: the smallest flow that has what the reader must tell apart. Copies of weights are aligned (two of 16
# bytes) or not (a loop of 4 bytes); scales are copied, read one by one, or neither; the product may be skipped; x is
# loaded or kept.
KERNEL = f"""
phase: IADD3 R1
@P0 BRA kept
LDG.E.128 R2
HMMA.16816.F32.BF16 R4
HMMA.16816.F32.BF16 R4
kept: BAR.SYNC 0x0
chunk: WARPSYNC.ALL
@P1 BRA weights
@P6 BRA narrow
{COPY} [R8]
BRA weights
narrow: LDG.E.U16 R8
LDG.E.U16 R8
LDG.E.U16 R8
weights: BRA.U UP0,unaligned
{COPY} [R9]
{COPY} [R9]
BRA multiply
unaligned: LDGSTS.E [R9]
LDGSTS.E [R9]
@P2 BRA unaligned
multiply: @P3 BRA next
@!PT LDS RZ
LDS.64 R10
LOP3.LUT R11
HMMA.16816.F32.BF16 R12
HMMA.1688.F32.TF32 R12
FFMA R12
next: IADD3 R13
@P4 BRA chunk
STG.E R14
@P5 BRA phase
EXIT
"""


def test_the_way_that_aligned_arrays_take_is_counted() -> None:
    found = sass.loops(program(KERNEL), 2)
    chunk = {"control": 6, "LDGSTS": 2, "LDS": 2, "HMMA": 2, "FP32": 1, sass.INTEGER: 2}
    assert found.chunk.counts == chunk
    assert found.chunk_with_scales.counts == chunk | {"LDGSTS": 3, "control": 8}
    assert found.chunk.wavefronts == 2 * 4 + 2  # two copies of 16 bytes a lane, one load of 8; @!PT moves nothing
    assert found.phase.counts == {sass.INTEGER: 1, "control": 3, "global": 1}
    assert found.x.counts == {"global": 1, "HMMA": 2}


def test_one_loop_of_both_is_told_apart_too() -> None:
    found = sass.loops(program(KERNEL.replace("@P4 BRA chunk\n", "")), 2)
    assert found.chunk.hmma == 2
    assert found.phase.instructions == 0
    assert found.x.counts == {"global": 1, "HMMA": 2}


@pytest.mark.parametrize(
    ("text", "copies"),
    [
        (KERNEL.replace("@P4 BRA chunk\n", "").replace("@P5 BRA phase\n", ""), 2),  # no loop
        (KERNEL, 4),
        (KERNEL.replace("TF32", "BF16"), 2),
        (KERNEL.replace(f"{COPY} [R8]", "NOP"), 2),  # no scales
    ],
)
def test_code_of_another_shape_is_refused(text: str, copies: int) -> None:
    with pytest.raises(UserError, match=r"not the kernel that is known|no way through"):
        sass.loops(program(text), copies)


def test_nvdisasm_output_is_read_and_another_form_refused() -> None:
    about = {".note.nv.tkinfo": {"tki_toolVersion": "Cuda compilation tools, release 13.0, V13.0.88"}}
    code = [{"opcode": "LDC", "operands": "R1,c[0x0][0x37c]"}, {"opcode": "EXIT", "predicate": "@P0"}]
    text = json.dumps([about, [{"function-name": "k", "sass-instructions": code}]])
    read = sass.parse(text)
    assert read.compiler == "V13.0.88"
    assert read.instructions == (Instruction("LDC", "", "R1,c[0x0][0x37c]"), Instruction("EXIT", "@P0", ""))
    for broken in ("", "[]", "[{}, []]", text.replace("opcode", "op"), text.replace("tkinfo", "x")):
        with pytest.raises(UserError, match="another form"):
            sass.parse(broken)


@dataclass(frozen=True)
class Bare(System):
    paths: tuple[str, ...] = ()

    def site_folders(self) -> list[str]:
        return ["/site"]

    def glob(self, pattern: str) -> list[str]:
        return [path for path in self.paths if fnmatchcase(path, pattern)]

    def environ(self, name: str) -> str | None:
        return None

    def which(self, program: str) -> str | None:
        return None


def test_without_nvdisasm_it_ends_in_one_line_with_the_way_out() -> None:
    with pytest.raises(MissingTool, match=r"no nvdisasm.*pip install -e '\.\[compile\]'"):
        sass.disassemble(b"", Bare())
    wheel = "/site/nvidia/cu13/bin/nvdisasm"
    assert find_nvdisasm(Bare(paths=(wheel,))) == wheel


def part(bus: float, block: dict[str, float], phases: float = 0.0, floor: float = 1.0) -> model.Forecast:
    empty = sass.mix(())
    code = model.Instance(None, "sm_0", 0, "", sass.Loops(empty, empty, empty, empty))  # type: ignore[arg-type]
    return model.Forecast(Problem(m=1, n=16, k=64), code, 1, floor, 1.0, bus, block, phases)


def test_the_slower_of_bus_and_block_makes_the_time_and_is_named() -> None:
    assert (part(10, {"issue slots": 4, "tensor cores": 6}, 3).us, part(10, {"a": 6}, 3).binds) == (12, "memory")
    assert (part(8, {"a": 4, "b": 6}, 3).us, part(8, {"a": 4, "b": 6}, 3).binds) == (11, "b")
    assert part(8, {"a": 4}, 5).binds == "x and sums"
    assert part(1, {"a": 1}, floor=3).binds == "launch and latency"


def test_stock_at_one_sequence_is_what_was_reported() -> None:
    once = llama.packed_bytes() / 1e6 / (llama.stock_efficiency(GB10) * GB10.read_gbps.value)
    assert 1e3 / (once + llama.others(1, GB10)) == pytest.approx(llama.REPORTED_STOCK)
    # 32 layers of 218,103,808 weights and a head of 525,336,576, at 4.5 bits a weight with its scale and bias
    assert llama.packed_bytes() == (32 * 218_103_808 + 525_336_576) * 9 // 16


def committed(root: Path) -> tuple[list[Fact], list[store.LoadedRecord]]:
    records = store.load_all(root / "evidence")
    return derive(records), records


def test_the_h200_is_the_record_s(root: Path) -> None:
    facts, records = committed(root)
    (probe,) = (fact.value for fact in facts if fact.id == "probe.h200.read_gbps")
    assert hardware.h200(facts, records).read_gbps.value == probe
    with pytest.raises(UserError, match="no record of one"):
        hardware.h200([], records)


def test_without_a_row_to_hold_it_against_there_is_no_decode_forecast() -> None:
    part_of = part(10, {"issue slots": 4})
    many = replace(part_of, problem=Problem(m=16, n=16, k=64))
    for rows in ([], [report.Compared(many, 10.0, False, "x")]):
        with pytest.raises(UserError, match="no benchmark of the H200 has 4-bit rows of M <= 8"):
            report._decode(rows)
    assert "matmuls / 0.60" in report._decode([report.Compared(part_of, 20.0, False, "x")])


@pytest.mark.needs_disassembler
def test_the_committed_forecast_is_today_s(root: Path) -> None:
    path = root / "evidence" / report.NAME
    assert path.read_text(encoding="utf-8") == report.render(*committed(root)), "python -m upstream_patch forecast"


@pytest.mark.needs_disassembler
def test_the_counts_are_those_of_the_source(root: Path) -> None:
    """16 columns x 256 of K: 16 MMAs of 16 x 8 x 16 for each 8 rows, and 2 for scales and biases; 2,048 B."""
    for gpu in (GB10, hardware.h200(*committed(root))):
        for m in (1, 8, 9, report.ROWS):
            code = model.forecast(Problem(m=m, n=4096, k=4096), gpu).instance
            eights = code.variant.tuning.rows // 8
            assert code.per_chunk("hmma") == 18 * eights
            assert code.loops.x.hmma == 16 * eights
            assert code.loops.chunk.counts["LDGSTS"] == 2048 // (16 * 32)
            assert 18 * eights < code.per_chunk("instructions") < 1000
            assert code.resident(gpu) >= 1


@pytest.mark.needs_disassembler
def test_a_better_gpu_is_never_predicted_slower() -> None:
    problem = Problem(m=8, n=4096, k=14336)
    before = model.forecast(problem, GB10)
    for name in ("clock_ghz", "read_gbps", "l2_bytes_a_cycle"):
        value: Value = getattr(GB10, name)
        better: dict[str, Any] = {name: replace(value, value=2 * value.value)}
        faster = model.forecast(problem, replace(GB10, **better))
        assert faster.us < before.us, name
    assert before.us > problem.packed_bytes / GB10.read_gbps.value / 1e3


def test_a_prediction_is_no_fact_and_stands_in_no_draft(root: Path, tmp_path: Path) -> None:
    facts, _ = committed(root)
    assert [fact.id for fact in facts if "gb10" in fact.id or "forecast" in fact.id] == []
    assert {fact.record_path.split("/")[1] for fact in facts} == {"records"}
    text = (root / "evidence" / report.NAME).read_text(encoding="utf-8")
    assert text.startswith("# PREDICTION")
    assert "Nobody has run this kernel on a GB10." in text
    fresh = [replace(fact, stale=False) for fact in facts]
    written = [readme.table(fresh), issue.write(tmp_path, fresh).read_text(encoding="utf-8")]
    written.append((root / "README.md").read_text(encoding="utf-8"))
    number = re.compile(r"\d\s?(?:us|ms|GB/s|tok/s|tokens)\b")
    lines = [line for page in written for line in page.splitlines() if "GB10" in line and "reported" not in line]
    assert [line for line in lines if number.search(line)] == []
    assert number.search("a GB10 takes 12.6 us") and lines
    assert [page for page in written if "PREDICTION" in page] == []
