"""The one text form of a record: sorted keys, two spaces, a list of plain values on one line, newline at the end."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

SIGNIFICANT = 7
"""Digits kept of a measured float: far below the noise of any clock here, and short enough to read in a diff."""


def tidy(value: Any, where: str = "") -> Any:
    """Round floats to what was measured. Raises ValueError naming the field of a NaN, an infinity, or no Unicode."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where}: {value} is not a finite number")
        if value.is_integer():
            return value
        return float(f"{value:.{SIGNIFICANT}g}") if abs(value) < 10**SIGNIFICANT else float(round(value))
    if isinstance(value, str) and not _is_text(value):
        raise ValueError(f"{where}: {value!a} is not Unicode text")
    if isinstance(value, dict):
        if odd := [key for key in value if not _is_text(str(key))]:
            raise ValueError(f"{where}: the name {odd[0]!a} is not Unicode text")
        return {key: tidy(item, f"{where}.{key}" if where else str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [tidy(item, f"{where}.{index}") for index, item in enumerate(value)]
    return value


def dumps(value: Any) -> str:
    return _emit(value, "") + "\n"


def digest(record: dict[str, Any]) -> str:
    """sha256 of a record without its id: what the id's last part is taken from."""
    return hashlib.sha256(dumps({key: item for key, item in record.items() if key != "id"}).encode()).hexdigest()


def loads(text: str) -> Any:
    """Strict JSON: NaN and Infinity, which Python's reader lets through, are refused with ValueError."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def _is_text(value: str) -> bool:
    """Half a surrogate pair passes JSON's escapes and a shell's arguments, but no file can hold it."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _emit(value: Any, indent: str) -> str:
    inner = indent + "  "
    if isinstance(value, dict) and value:
        items = (f"{inner}{_scalar(str(key))}: {_emit(value[key], inner)}" for key in sorted(value))
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(inner + _emit(item, inner) for item in value) + f"\n{indent}]"
    if isinstance(value, list):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
