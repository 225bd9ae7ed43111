"""The hash of our dispatch: what it must not notice, what it must, and that every Python gives the same."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterator
from typing import Any

import pytest

from upstream_patch.records import dispatch_hash
from upstream_patch.records.dispatch_hash import digest

SOURCE = '''"""What it is."""
LIMIT = 3  # why

def f(x):
    """Says."""
    if x > LIMIT:
        return [x, f"{x} is 'big'"]
    return "small"
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  # why", ""),
        ("# why", "# because"),
        ("\n\n", "\n\n\n# more\n\n"),
        ("LIMIT = 3", "LIMIT  =  3"),
        ('"""Says."""', '"""Says\n    more."""'),
        ('"""What it is."""', ""),
        ("[x, f", "[\n    x,\n    f"),
        ("        return [", "      return ["),
    ],
)
def test_comments_docstrings_and_white_space_do_not_count(old: str, new: str) -> None:
    changed = SOURCE.replace(old, new, 1)
    assert changed != SOURCE
    assert digest(changed) == digest(SOURCE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("= 3", "= 4"),
        (">", ">="),
        ('return "small"', '    return "small"'),
        ("is 'big'", "is  'big'"),
        ("{x} is", "{LIMIT} is"),
        ('    return "small"\n', ""),
        ("LIMIT = 3", "LIMIT = -3"),
        ('return "small"', 'return; "small"'),
        ("f(x)", "f(x, y)"),
    ],
)
def test_any_other_change_does(old: str, new: str) -> None:
    changed = SOURCE.replace(old, new, 1)
    assert changed != SOURCE
    assert digest(changed) != digest(SOURCE)


def test_f_strings_taken_apart_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python 3.12 and later give them, which may nest; these tokens are made by hand."""
    source = 'y = f"a{b:{c}}" + z\nw = f"""1\n{2}3"""\n'
    start, middle, end = 1001, 1002, 1003

    def parts(readline: Any) -> Iterator[tokenize.TokenInfo]:
        for each in whole(io.StringIO(source).readline):
            if not each.string.startswith("f"):
                yield each
                continue
            (row, left), (last, right) = each.start, each.end
            yield tokenize.TokenInfo(start, 'f"', (row, left), (row, left + 2), each.line)
            yield tokenize.TokenInfo(middle, "a", (row, left + 2), (row, left + 3), each.line)
            yield tokenize.TokenInfo(start, "f'", (row, left + 3), (row, left + 4), each.line)
            yield tokenize.TokenInfo(end, "'", (row, left + 4), (row, left + 5), each.line)
            yield tokenize.TokenInfo(tokenize.NAME, "b", (row, left + 5), (row, left + 6), each.line)
            yield tokenize.TokenInfo(end, '"', (last, right - 1), (last, right), each.line)

    def whole(readline: Any) -> Iterator[tokenize.TokenInfo]:
        """As before 3.12, whatever Python this is."""
        name, operator, string = tokenize.NAME, tokenize.OP, tokenize.STRING
        first, second = source.splitlines(keepends=True)[:2]
        yield tokenize.TokenInfo(name, "y", (1, 0), (1, 1), first)
        yield tokenize.TokenInfo(operator, "=", (1, 2), (1, 3), first)
        yield tokenize.TokenInfo(string, 'f"a{b:{c}}"', (1, 4), (1, 15), first)
        yield tokenize.TokenInfo(operator, "+", (1, 16), (1, 17), first)
        yield tokenize.TokenInfo(name, "z", (1, 18), (1, 19), first)
        yield tokenize.TokenInfo(tokenize.NEWLINE, "\n", (1, 19), (1, 20), first)
        yield tokenize.TokenInfo(name, "w", (2, 0), (2, 1), second)
        yield tokenize.TokenInfo(operator, "=", (2, 2), (2, 3), second)
        yield tokenize.TokenInfo(string, 'f"""1\n{2}3"""', (2, 4), (3, 7), second)
        yield tokenize.TokenInfo(tokenize.NEWLINE, "\n", (3, 7), (3, 8), second)

    monkeypatch.setattr(tokenize, "generate_tokens", whole)
    expected = digest(source)
    monkeypatch.setattr(dispatch_hash, "_OPENS", start)
    monkeypatch.setattr(dispatch_hash, "_CLOSES", end)
    monkeypatch.setattr(tokenize, "generate_tokens", parts)
    assert digest(source) == expected


def test_today_is_the_hash_of_ops() -> None:
    text = dispatch_hash._FILE.read_text(encoding="utf-8")
    assert "def quantized_matmul" in text
    assert dispatch_hash.today() == digest(text + "# a comment\n")
    assert dispatch_hash.today() != digest(text.replace("plan.bits is bits", "True"))
