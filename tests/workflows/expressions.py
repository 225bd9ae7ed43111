"""GitHub's expressions, as far as our workflows use them: literals, contexts, operators and a few functions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

_TOKEN = re.compile(r"\s*(?:('(?:[^']|'')*')|(\d+)|([A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*)|(&&|\|\||==|!=|[!(),.]))")


def truth(value: object) -> bool:
    return value not in (None, False, 0, "")


class Expression:
    """One expression over ``contexts``. Raises ValueError where it is none, or names what there is not."""

    def __init__(self, text: str, contexts: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> None:
        self.tokens: list[str] = []
        position = 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(f"no expression from here on: {text[position:]!r}")
            self.tokens.append(match.group().strip())
            position = match.end()
        self.contexts = contexts
        self.functions: dict[str, Callable[..., Any]] = {"fromJSON": json.loads, "toJSON": json.dumps, **functions}

    def value(self) -> Any:
        found = self._either()
        if self.tokens:
            raise ValueError(f"left over: {self.tokens}")
        return found

    def _take(self, *wanted: str) -> str | None:
        return self.tokens.pop(0) if self.tokens and self.tokens[0] in wanted else None

    def _either(self) -> Any:
        left = self._both()
        while self._take("||"):
            right = self._both()
            left = left if truth(left) else right
        return left

    def _both(self) -> Any:
        left = self._compared()
        while self._take("&&"):
            right = self._compared()
            left = right if truth(left) else left
        return left

    def _compared(self) -> Any:
        left = self._unary()
        while operator := self._take("==", "!="):
            right = self._unary()
            left = (left == right) is (operator == "==")
        return left

    def _unary(self) -> Any:
        return not truth(self._unary()) if self._take("!") else self._path(self._primary())

    def _primary(self) -> Any:
        token = self.tokens.pop(0)
        if token == "(":
            inner = self._either()
            if not self._take(")"):
                raise ValueError("a bracket that does not close")
            return inner
        if token.startswith("'"):
            return token[1:-1].replace("''", "'")
        if token.isdigit():
            return int(token)
        if token in ("true", "false"):
            return token == "true"
        if self._take("("):
            arguments = []
            while not self._take(")"):
                arguments.append(self._either())
                self._take(",")
            if token not in self.functions:
                raise ValueError(f"no function {token}")
            return self.functions[token](*arguments)
        first, *rest = token.split(".")
        if first not in self.contexts:
            raise ValueError(f"no context {first}")
        return self._walk(self.contexts[first], rest)

    def _path(self, value: Any) -> Any:
        while self._take("."):
            value = self._walk(value, self.tokens.pop(0).split("."))
        return value

    @staticmethod
    def _walk(value: Any, names: list[str]) -> Any:
        """What is not there is null, as on GitHub."""
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value


def substitute(text: Any, contexts: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
    """Replace every ``${{ }}``; a text that is one expression keeps that one's type."""
    if isinstance(text, dict):
        return {name: substitute(value, contexts, functions) for name, value in text.items()}
    if isinstance(text, list):
        return [substitute(value, contexts, functions) for value in text]
    if not isinstance(text, str):
        return text
    if whole := re.fullmatch(r"\$\{\{((?:(?!\}\}).)*)\}\}", text):
        return Expression(whole.group(1), contexts, functions).value()

    def one(match: re.Match[str]) -> str:
        value = Expression(match.group(1), contexts, functions).value()
        return "" if value is None else str(value)

    return re.sub(r"\$\{\{(.*?)\}\}", one, text)
