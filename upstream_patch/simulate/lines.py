"""From a place in a compiled kernel to its line in the source, by the library's debug information."""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from pathlib import Path


@cache
def _table(library: Path) -> tuple[list[int], list[tuple[str, int]]]:
    """Addresses, ascending, and the file and line that begin at each. Empty where pyelftools or ELF is not at hand."""
    try:
        from elftools.elf.elffile import ELFFile
    except ImportError:
        return [], []
    rows: list[tuple[int, str, int]] = []
    with library.open("rb") as stream:
        if stream.read(4) != b"\x7fELF":
            return [], []
        debug = ELFFile(stream).get_dwarf_info()
        for unit in debug.iter_CUs():
            program = debug.line_program_for_CU(unit)
            if program is None:
                continue
            files, first = program["file_entry"], 0 if program["version"] >= 5 else 1
            for entry in program.get_entries():
                state = entry.state
                if state is not None and 0 <= state.file - first < len(files):
                    name = files[state.file - first].name.decode(errors="replace")
                    if state.end_sequence:
                        rows.append((state.address, Path(name).name, 0))
                    elif state.line:  # code of no line of its own, as joins of unoptimized code, is of the one before
                        rows.append((state.address, Path(name).name, state.line))
    rows.sort(key=lambda row: row[0])
    return [row[0] for row in rows], [(row[1], row[2]) for row in rows]


def line_of(library: Path, pc: int) -> tuple[str, int] | None:
    """File name and line of the call that returns to ``pc``, or None."""
    addresses, places = _table(library)
    at = bisect_right(addresses, pc - 1) - 1
    return places[at] if at >= 0 and places[at][1] else None
