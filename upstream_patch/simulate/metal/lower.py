"""Metal headers made into what a CPU compiler takes: a few edits of their text, in memory, line numbers kept."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from upstream_patch.errors import UserError
from upstream_patch.simulate.library import NATIVE
from upstream_patch.simulate.source import KNOWN_MLX

STAND_INS = NATIVE / "metal"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)
_ARRAY = re.compile(
    r"^(?P<indent>[ \t]*)threadgroup\s+(?P<type>[\w:]+(?:<[^;\[\]]*>)?)\s+(?P<name>\w+)\s*\[(?P<count>[^;]*)\]\s*;",
    re.MULTILINE,
)
_ARRAY_PARAMETER = re.compile(r"(\b(?:constant|device|threadgroup)\s+[\w ]+?)\s(\w+)\[\d+\](\s*[,)])")
_FUNCTION_CONSTANT = re.compile(r"\bconstant\s+(\w+)\s+(\w+)\s*\[\[\s*function_constant\((\d+)\)\s*\]\]\s*;")
# Metal has no double: a literal without a suffix is a float.
_DOUBLE = re.compile(r"(?<![\w.])((?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)(?![\w.])")
_ARENA_ATTRIBUTE = re.compile(r"\s*\[\[\s*threadgroup\(\d+\)\s*\]\]")
_POINTER = r"\(\((?P<{0}>(?:const )?(?:device|threadgroup|thread) \w+)\s*\*\)\((?P<{0}_at>[^;]*?)\)\)"
_STRUCT_COPY = re.compile(r"\*" + _POINTER.format("to") + r"\s*=(?P<space>\s*)\*" + _POINTER.format("source") + ";")
_ATTRIBUTE = re.compile(r"\[\[\s*(\w+)\s*(?:\(\s*(\d+)\s*\))?\s*\]\]")
_PIECES = re.compile(
    r"//[^\n]*|/\*.*?\*/|/\*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'"
    r"|^[ \t]*#[ \t]*(?P<directive>if\w*|el\w+|endif)\b|[][(){}]",
    re.MULTILINE | re.DOTALL,
)
_CLOSES = {")": "(", "]": "[", "}": "{"}
BUILT_INS = (
    "threadgroup_position_in_grid",
    "thread_position_in_grid",
    "thread_position_in_threadgroup",
    "thread_index_in_threadgroup",
    "simdgroup_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "quadgroup_index_in_threadgroup",
    "thread_index_in_quadgroup",
)
Constant = bool | int | float


def lower(text: str, constants: Mapping[int, Constant] | None = None) -> str:
    """The text with what a C++ compiler has not, or takes for something else, rewritten; every line stays where it was.

    A function constant without a value is declared only: whoever uses it does not link.
    """
    given = constants or {}

    def constant(match: re.Match[str]) -> str:
        kind, name, number = match[1], match[2], int(match[3])
        if number not in given:
            return f"LANE_SIM_NO_VALUE({kind}, {name}, {number});"
        value = given[number]
        return f"static const {kind} {name} = {str(value).lower() if isinstance(value, bool) else value};"

    def array(match: re.Match[str]) -> str:
        kind = match["type"]
        return f"{match['indent']}threadgroup {kind}* {match['name']} = ::lane_sim::array_of<{kind}>({match['count']});"

    def copy(match: re.Match[str]) -> str:
        to, source = (f"*({match[each]}*)({match[f'{each}_at']})" for each in ("to", "source"))
        return f"::lane_sim::assign({to},{match['space']}{source});"

    text = _ARENA_ATTRIBUTE.sub("", _ARRAY.sub(array, text))
    text = _ARRAY_PARAMETER.sub(r"\1* \2\3", text)
    text = _FUNCTION_CONSTANT.sub(constant, text)
    text = _DOUBLE.sub(r"\1f", text)
    return _STRUCT_COPY.sub(copy, text)


def lowered_headers(
    root: Path,
    entries: Sequence[str],
    constants: Mapping[int, Constant] | None = None,
    own: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The headers that ``entries`` include, directly or not, by path under ``root``, and lowered.

    ``own`` are texts, by path, that stand in for files under ``root`` or beside them. Those that the simulator has a
    stand-in for are left out. Raises UserError for one that is not there or not whole.
    """
    found: dict[str, str] = {}
    waiting = list(entries)
    while waiting:
        name = waiting.pop()
        if name in found or (STAND_INS / name).is_file():
            continue
        text = own[name] if own and name in own else _read(root, name)
        found[name] = lower(text, constants)
        waiting += _INCLUDE.findall(text)
    return found


def _read(root: Path, name: str) -> str:
    path = root / name
    if not path.is_file():
        raise UserError(f"the installed MLX has no header {name}: the simulator knows those of {KNOWN_MLX}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"MLX's header {name} cannot be read ({error}): install again {KNOWN_MLX}") from None
    if (piece := _unclosed(text)) is not None:
        line, what = text.count("\n", 0, piece[0]) + 1, piece[1]
        raise UserError(f"MLX's header {name} is damaged, {what} of line {line} has no other end: install {KNOWN_MLX}")
    return text


@cache
def _unclosed(text: str) -> tuple[int, str] | None:
    """A bracket or comment without its other end, and where it is. Of #if and #else only the first is looked at.

    A compiler says it too, but of the text that comes after the header.
    """
    opened: list[tuple[int, str]] = []
    branches: list[bool] = []
    for match in _PIECES.finditer(text):
        piece, at = match.group(), match.start()
        if match["directive"] is not None:
            match match["directive"][:2]:
                case "if":
                    branches.append(True)
                case "el" if branches:
                    branches[-1] = False
                case "en" if branches:
                    branches.pop()
        elif piece == "/*":
            return at, "a comment"
        elif len(piece) == 1 and all(branches):
            if piece in _CLOSES.values():
                opened.append((at, piece))
            elif not opened or opened.pop()[1] != _CLOSES[piece]:
                return at, f"`{piece}`"
    return (opened[-1][0], f"`{opened[-1][1]}`") if opened else None


def parameters(text: str, function: str) -> tuple[str, ...]:
    """What each parameter of a kernel is: the number of its buffer, or the name of a built-in value.

    A pointer or reference without an attribute is the buffer after the one before. Raises UserError where the kernel
    is not there, or a parameter is something the simulator does not know.
    """
    match = re.search(rf"\[\[\s*kernel\b[^;{{}}]*?\]\]\s*void\s+{function}\s*\(", text)
    if match is None:
        raise UserError(f"no kernel {function} in these Metal sources: the simulator knows those of {KNOWN_MLX}")
    kinds = []
    buffers = 0
    for parameter in _split(text[match.end() :]):
        attribute = _ATTRIBUTE.search(parameter)
        if re.match(r"\s*threadgroup\b", parameter):
            said = " ".join(parameter.split())
            raise UserError(
                f"{function}: the simulator gives a parameter no threadgroup memory, `{said}`: declare an array instead"
            )
        if attribute is None and re.search(r"[*&]", parameter):
            kinds.append(str(buffers))
            buffers += 1
        elif attribute is not None and attribute[1] == "buffer":
            kinds.append(attribute[2])
            buffers = int(attribute[2]) + 1
        elif attribute is not None and attribute[1] in BUILT_INS:
            kinds.append(attribute[1])
        else:
            said = " ".join(parameter.split())
            raise UserError(
                f"{function}: the simulator does not know what `{said}` is; give it a meaning in native/metal/launch.h"
            )
    return tuple(kinds)


def _split(text: str) -> Iterator[str]:
    """The parameters before the parenthesis that closes the list."""
    depth, start = 0, 0
    for at, letter in enumerate(text):
        if depth == 0 and letter in ",)":
            if text[start:at].strip():
                yield text[start:at]
            if letter == ")":
                return
            start = at + 1
        depth += (letter in "([<") - (letter in ")]>")
