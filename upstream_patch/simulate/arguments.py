"""A launch's arguments, checked against the kernel's parameters."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from upstream_patch.errors import UserError

_BITS = {"?": "1 bit", "b": "8 bits", "h": "16 bits", "i": "32 bits", "q": "64 bits"}


def check_arguments(kernel: str, parameters: str, arguments: Sequence[object]) -> None:
    """Raises UserError unless each argument fits its parameter.

    ``parameters`` has a character for each, as the struct module names them: P takes a buffer or None, an integer type
    an int in its range, and x, any other type, nothing.
    """
    if len(arguments) != len(parameters):
        raise UserError(f"{kernel} has {len(parameters)} parameters, and is given {len(arguments)} arguments")
    for number, (kind, argument) in enumerate(zip(parameters, arguments, strict=True)):
        where = f"{kernel}: parameter {number}"
        if kind == "x":
            raise UserError(f"{where} is neither a pointer nor an integer; the simulator passes no other type")
        if kind == "P":
            if isinstance(argument, int):
                raise UserError(f"{where} is a pointer; it takes a Buffer or None, not {argument!r}")
            continue
        if not isinstance(argument, int):
            raise UserError(f"{where} is an integer; it takes an int, not a {type(argument).__name__}")
        if (argument not in (0, 1)) if kind == "?" else not _fits(kind, argument):
            sign = "unsigned " if kind.isupper() else ""
            raise UserError(f"{where} is an {sign}integer of {_BITS[kind.lower()]}; {argument} does not fit")


def _fits(kind: str, value: int) -> bool:
    try:
        struct.pack(f"<{kind}", value)
    except struct.error:
        return False
    return True
