"""SASS, a GPU's machine code, as a flow graph: what a warp issues for one chunk of weights, and between chunks."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.machine import NVDISASM_FIX, System, find_nvdisasm

_BYTES = 16  # of one instruction
_CLASSES: Mapping[str, tuple[str, ...]] = {
    "HMMA": ("HMMA",),
    "LDS": ("LDS",),
    "STS": ("STS",),
    "LDGSTS": ("LDGSTS",),
    "FP32": ("FFMA", "FADD", "FMUL"),
    "control": ("BRA", "BSSY", "BSYNC", "WARPSYNC", "BAR", "DEPBAR", "LDGDEPBAR", "EXIT", "NOP"),
    "global": ("LDG", "STG", "LDC", "LDCU", "ULDC"),
}
INTEGER = "integer, moves"
CLASSES = (*_CLASSES, INTEGER)
"""Classes of instructions; the last one is all that is in none of the others: LOP3, SHF, IMAD, PRMT, ISETP, MOV..."""


@dataclass(frozen=True, slots=True)
class Instruction:
    opcode: str
    """With its suffixes, e.g. ``LDGSTS.E.BYPASS.LTC128B.128``."""
    predicate: str = ""
    operands: str = ""

    @property
    def base(self) -> str:
        return self.opcode.split(".")[0]

    @property
    def kind(self) -> str:
        return next((name for name, bases in _CLASSES.items() if self.base in bases), INTEGER)

    @property
    def never(self) -> bool:
        """It is issued and does nothing: what ptxas puts before an asynchronous copy."""
        return self.predicate == "@!PT"

    @property
    def wavefronts(self) -> int:
        """Passes of 128 bytes through the shared memory, for a whole warp that meets no bank twice."""
        if self.never or self.base not in ("LDS", "STS", "LDGSTS"):
            return 0
        return next((count for suffix, count in ((".128", 4), (".64", 2)) if self.opcode.endswith(suffix)), 1)

    @property
    def target(self) -> int | None:
        """Index of the instruction that a branch goes to. BRA.DIV, the way of a diverged warp, is never taken here."""
        if self.base != "BRA" or ".DIV" in self.opcode:
            return None
        return int(self.operands.rpartition(",")[2], 16) // _BYTES

    @property
    def falls_through(self) -> bool:
        if self.base == "EXIT":
            return bool(self.predicate)
        return self.base != "BRA" or self.target is None or bool(self.predicate) or "," in self.operands


@dataclass(frozen=True)
class Mix:
    """What a warp issues on one way through a piece of code."""

    counts: Mapping[str, int]
    wavefronts: int

    @property
    def instructions(self) -> int:
        return sum(self.counts.values())

    @property
    def hmma(self) -> int:
        return self.counts.get("HMMA", 0)


@dataclass(frozen=True)
class Program:
    """One kernel's code and the compiler that made it."""

    instructions: tuple[Instruction, ...]
    compiler: str
    """e.g. ``V13.0.88``."""


def disassemble(cubin: bytes, system: System | None = None) -> Program:
    """The only function of a cubin. Raises MissingTool without nvdisasm, UserError where it cannot read the file."""
    system = system or System()
    tool = find_nvdisasm(system)
    if tool is None:
        raise MissingTool("no nvdisasm on this machine", NVDISASM_FIX)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        answer = system.run([tool, "-json", str(path)])
    if not answer.ok:
        raise UserError(f"nvdisasm failed: {answer.err.strip() or answer.out.strip()}")
    return parse(answer.out)


def parse(text: str) -> Program:
    """What ``nvdisasm -json`` prints for a cubin of one function. Raises UserError for anything else."""
    try:
        about, functions = json.loads(text)
        (function,) = functions
        found = tuple(_instruction(each) for each in function["sass-instructions"])
        version = about[".note.nv.tkinfo"]["tki_toolVersion"].rpartition(" ")[2]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"nvdisasm's output has another form than expected: {type(error).__name__}: {error}") from error
    return Program(found, version)


def _instruction(tree: Mapping[str, Any]) -> Instruction:
    return Instruction(tree["opcode"], tree.get("predicate", ""), tree.get("operands", ""))


class Flow:
    """Blocks of a program and its loops. A block is known by the index of its first instruction."""

    def __init__(self, code: Sequence[Instruction]) -> None:
        self.code = code
        starts = {0} | {each.target for each in code if each.target is not None}
        starts |= {i + 1 for i, each in enumerate(code[:-1]) if each.base in ("BRA", "EXIT")}
        order = sorted(starts)
        self._ends = dict(zip(order, [*order[1:], len(code)], strict=True))
        self.after = {start: self._successors(start) for start in order}
        self.back: set[tuple[int, int]] = set()
        self._find_back_edges()

    def _successors(self, start: int) -> tuple[int, ...]:
        end = self._ends[start]
        last = self.code[end - 1]
        following = (end,) if last.falls_through and end in self._ends else ()
        return following if last.target is None else (last.target, *following)

    def _find_back_edges(self) -> None:
        """Edges to a block that the walk from the entry is still in. Compilers emit loops with one entry."""
        inside, done = set(), set()
        stack: list[tuple[int, int]] = [(0, 0)]
        while stack:
            block, edge = stack.pop()
            inside.add(block)
            if edge == len(self.after[block]):
                inside.discard(block)
                done.add(block)
                continue
            stack.append((block, edge + 1))
            following = self.after[block][edge]
            if following in inside:
                self.back.add((block, following))
            elif following not in done:
                stack.append((following, 0))

    def block(self, start: int) -> Sequence[Instruction]:
        return self.code[start : self._ends[start]]

    def loops(self) -> dict[int, frozenset[int]]:
        """Header -> blocks of the loop, its own header among them."""
        before: dict[int, set[int]] = {start: set() for start in self.after}
        for start, following in self.after.items():
            for each in following:
                before[each].add(start)
        found: dict[int, set[int]] = {}
        for latch, header in self.back:
            body, todo = {header}, [latch]
            while todo:
                block = todo.pop()
                if block not in body:
                    body.add(block)
                    todo += before[block]
            found.setdefault(header, set()).update(body)
        return {header: frozenset(body) for header, body in found.items()}

    def holds(self, blocks: Iterable[int], *bases: str) -> bool:
        """All of these opcodes are in the blocks."""
        return {each.base for start in blocks for each in self.block(start)} >= set(bases)


@dataclass(frozen=True)
class Loops:
    """What a warp issues in the two loops that matter, read off the kernel's machine code."""

    chunk: Mix
    """A chunk (16 columns x 256 of K) without the copy of scales."""
    chunk_with_scales: Mix
    phase: Mix
    """Between two runs of chunks: barriers, and the sum over the warps. Empty where the compiler made one loop of both,
    which it does when a run is one chunk; this then is part of the chunk."""
    x: Mix
    """Loading a slice of x."""


Way = tuple[Instruction, ...]
Key = tuple[int, int, int]
"""Of a way: its 16-byte asynchronous copies, its TF32 MMAs (only chunks have them), all its MMAs."""


def loops(code: Sequence[Instruction], chunk_copies: int) -> Loops:
    """The chunk loop is the smallest that has MMAs and asynchronous copies; the phase loop is the next around it.

    Of the ways through a loop, that which weights, scales and x of whole 16-byte units take, with a rare block counted
    as if it always ran. ``chunk_copies``: 16-byte copies that a lane makes for one chunk of weights. Raises UserError
    when the code has another shape.
    """
    flow = Flow(code)
    found = sorted((body for body in flow.loops().values() if flow.holds(body, "HMMA", "LDGSTS")), key=len)
    if not found:
        raise UserError("the machine code has no loop with MMAs and asynchronous copies: not the kernel that is known")
    ways = _ways(flow, found[0], frozenset())
    tf32 = max(key[1] for key in ways)
    mmas = [key[2] for key in ways if key[1] == tf32]
    scales = max(key[0] for key in ways)
    try:
        plain, full = ways[chunk_copies, tf32, min(mmas)], ways[scales, tf32, min(mmas)]
    except KeyError:
        raise UserError(f"no way through the chunk loop copies {chunk_copies} times 16 bytes a lane") from None
    if scales <= chunk_copies or not tf32:
        raise UserError("the chunk loop copies no scales, or adds no offsets: not the kernel that is known")
    if len(found) == 1:
        return Loops(mix(plain), mix(full), mix(()), _less(ways[scales, tf32, max(mmas)], full))
    between = _ways(flow, found[1], found[0])
    most, least = (max((w for key, w in between.items() if key[2] == n), key=_score) for n in _extremes(between))
    return Loops(mix(plain), mix(full), mix(least), _less(most, least))


def _extremes(ways: Mapping[Key, Way]) -> tuple[int, int]:
    return max(key[2] for key in ways), min(key[2] for key in ways)


def mix(code: Iterable[Instruction]) -> Mix:
    code = tuple(code)
    return Mix(Counter(each.kind for each in code), sum(each.wavefronts for each in code))


def _less(one: Way, other: Way) -> Mix:
    """What the longer way has more."""
    more, rest = mix(one), mix(other)
    return Mix(Counter(more.counts) - Counter(rest.counts), more.wavefronts - rest.wavefronts)


def _key(code: Sequence[Instruction]) -> Key:
    mmas = [each for each in code if each.base == "HMMA"]
    wide = sum(each.base == "LDGSTS" and each.opcode.endswith(".128") for each in code)
    return wide, sum("TF32" in each.opcode for each in mmas), len(mmas)


def _score(code: Sequence[Instruction]) -> tuple[int, int, int]:
    """It adds up along a way, so that the best way is made of best ways.

    Few narrow reads first, which only unaligned arrays take, then many wide ones, then many instructions.
    """
    reads = [each for each in code if each.base in ("LDG", "LDGSTS")]
    wide = sum(each.opcode.endswith(".128") for each in reads)
    return wide - len(reads), wide, len(code)


def _ways(flow: Flow, body: frozenset[int], skipped: frozenset[int]) -> dict[Key, Way]:
    """From a loop's header round to it, an inner loop at most once: for each key the way with the best score.

    ``skipped`` blocks count nothing.
    """
    (header,) = (each for each, blocks in flow.loops().items() if blocks == body)

    @cache
    def onward(block: int) -> dict[Key, Way]:
        own = () if block in skipped else tuple(flow.block(block))
        found: dict[Key, Way] = {}
        for following in flow.after[block]:
            if (block, following) in flow.back:
                rest: Mapping[Key, Way] = {(0, 0, 0): ()} if following == header else {}
            else:
                rest = onward(following) if following in body else {}
            for tail in rest.values():
                whole = own + tail
                key = _key(whole)
                if key not in found or _score(whole) > _score(found[key]):
                    found[key] = whole
        return found

    return onward(header)
