"""The identity of a kernel: sha256 of its token stream and compile options, so that reformatting voids no evidence."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from upstream_patch import kernels
from upstream_patch.kernels import metal
from upstream_patch.records.cpp_tokens import LexError, tokens
from upstream_patch.records.schema import KernelIdentity

METAL = "qmm_t_nax_staged"
"""The staged Metal kernels, all of them: they are built from the same files."""
KNOWN = (*kernels.KERNELS, METAL)
_QUOTED_INCLUDE = re.compile(r'#\s*include\s*"([^"]+)"')
_OUTSIDE = ("mlx/", "cutlass/", "cute/")
"""Quoted includes that are not ours: their versions are in the record, their text is not ours to hash."""


def digest(closure: Mapping[str, str], options: Sequence[str]) -> str:
    """sha256 over the tokens of every file of an include closure (name -> text) and the compile options, in order.

    White space and comments do not count; any other change does, the order of options and the files' names included.
    Raises LexError (a UserError) for a file that is not C++ text, or that includes a file of ours that is not given.
    """
    sha = hashlib.sha256()
    for part in _parts(closure, options):
        data = part.encode()
        sha.update(b"%d:" % len(data) + data)  # the length keeps "a", "bc" apart from "ab", "c"
    return sha.hexdigest()


@cache
def identity(kernel: str) -> KernelIdentity:
    """The identity of one of our kernels as it is in this checkout."""
    closure, options = (metal.sources(), []) if kernel == METAL else (kernels.closure(kernel), list(kernels.OPTIONS))
    return KernelIdentity(name=kernel, hash=digest(closure, options), options=options)


def _parts(closure: Mapping[str, str], options: Sequence[str]) -> Iterator[str]:
    yield "options"
    yield from options
    for name in sorted(closure):
        yield f"file {name}"
        try:
            for token in tokens(closure[name]):
                _check_include(name, token, closure)
                yield token
        except LexError as error:
            raise LexError(f"{name}: {error}") from None


def _check_include(name: str, token: str, closure: Mapping[str, str]) -> None:
    match = _QUOTED_INCLUDE.fullmatch(token)
    if match is None or match[1].startswith(_OUTSIDE):
        return
    beside = posixpath.normpath(posixpath.join(posixpath.dirname(name), match[1]))
    if beside not in closure and match[1] not in closure:
        raise LexError(f'includes "{match[1]}", which is not in the closure ({", ".join(sorted(closure))})')
