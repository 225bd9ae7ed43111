"""Would a contribution apply to a tree, and to what? Each edit and each new file by itself, then all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from upstream_patch.errors import UserError
from upstream_patch.series import text
from upstream_patch.series.contributions import new_text
from upstream_patch.series.model import Contribution, Edit

Reader = Callable[[str], str | None]
"""Path -> text of a tree, None where there is no such file. Line ends are those of the file."""


class State(Enum):
    """Of an edit or a new file; the value is the word that is shown."""

    APPLIES = "applies"
    MOVED = "moved"
    """Applies, at another line than the one where the anchor was read."""
    CONFLICT = "conflict"
    UPSTREAM = "already upstream"
    UNSEEN = "not proven on real text"
    """No text of that file was at hand."""


@dataclass(frozen=True)
class Item:
    """One edit or new file against one tree."""

    contribution: str
    name: str
    file: str
    state: State
    detail: str
    line: int | None = None
    """Of the anchor in this tree."""


@dataclass(frozen=True)
class Plan:
    """What some contributions, one after the other, make of a tree."""

    items: tuple[Item, ...]
    changed: dict[str, str]
    """Path -> new text, new files among them. Empty where anything is in conflict."""
    new: frozenset[str]
    unformatted: str | None = None
    """Why our lines are not in MLX's layout; None where they are, or nobody asked."""

    @property
    def conflicts(self) -> list[Item]:
        return [item for item in self.items if item.state is State.CONFLICT]

    def require(self) -> None:
        """Raises UserError with the first conflict, and how many there are."""
        if self.conflicts:
            more = f" ({len(self.conflicts)} conflicts in all)" if len(self.conflicts) > 1 else ""
            raise UserError(f"the series does not apply: {self.conflicts[0].detail}{more}")
        if not self.changed:
            raise UserError("there is nothing to apply: all of it is already upstream")


def plan(contributions: Sequence[Contribution], read: Reader, layout: Callable[[str, str], str] | None = None) -> Plan:
    """Plan the contributions in this order, each on what the one before it made.

    ``layout`` gives a new file, by its path and text, the layout in which it is sent and may have come back.
    """
    items: list[Item] = []
    changed: dict[str, str] = {}
    new: set[str] = set()

    def current(path: str) -> str | None:
        return changed[path] if path in changed else read(path)

    for contribution in contributions:
        for file in contribution.files:
            ours = new_text(file)
            sent = ours if layout is None else layout(file.path, ours)
            item = _new_file(contribution, file.path, {ours, sent}, current(file.path))
            items.append(item)
            if item.state is State.APPLIES:
                changed[file.path] = sent
                new.add(file.path)
        for path in dict.fromkeys(edit.file for edit in contribution.edits):
            edits = [edit for edit in contribution.edits if edit.file == path]
            before = current(path)
            judged = [_edit(contribution, edit, before) for edit in edits]
            items += judged
            todo = [
                edit for edit, item in zip(edits, judged, strict=True) if item.state in (State.APPLIES, State.MOVED)
            ]
            if before is not None and todo and all(item.state is not State.CONFLICT for item in judged):
                changed[path] = text.apply(before, todo)
    conflict = any(item.state is State.CONFLICT for item in items)
    return Plan(tuple(items), {} if conflict else changed, frozenset() if conflict else frozenset(new))


def _new_file(contribution: Contribution, path: str, ours: set[str], there: str | None) -> Item:
    """``ours`` are the layouts of our text."""
    if there is None:
        lines = min(len(text.split(one)) for one in ours)
        return Item(contribution.name, "new", path, State.APPLIES, f"new file, {lines} lines")
    if there.replace("\r\n", "\n") in ours:
        same = f"the same {len(text.split(there))} lines are there"
        return Item(contribution.name, "new", path, State.UPSTREAM, same)
    return Item(contribution.name, "new", path, State.CONFLICT, f"{path} is there, with another text")


def _edit(contribution: Contribution, edit: Edit, there: str | None) -> Item:
    def item(state: State, detail: str, line: int | None = None) -> Item:
        return Item(contribution.name, edit.name, edit.file, state, detail, line)

    if there is None:
        return item(State.CONFLICT, f"{edit.file} is not there (edit {edit.name})")
    if text.holds(there, edit):
        return item(State.UPSTREAM, "our lines stand there")
    try:
        line = text.find(text.split(there), edit) + 1
    except text.AnchorError as error:
        return item(State.CONFLICT, str(error))
    if edit.read.line not in (None, line):
        return item(State.MOVED, f"line {line}, read at {edit.read.line}", line)
    return item(State.APPLIES, f"line {line}", line)
