"""What MLX quantizes weights to, and how to say it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import get_args

from upstream_patch.problem import BITS, GROUPS, Mode, Problem, parse_problem


def _formats() -> dict[str, Problem]:
    affine = {
        f"{bits} bits, group {group}": Problem(m=1, n=1, k=1, bits=bits, group_size=group)
        for bits, group in product(BITS, GROUPS)
    }
    return affine | {mode: parse_problem(f"1x1.{mode}.bf16.M1") for mode in get_args(Mode) if mode != "affine"}


FORMATS = _formats()
"""Name -> a problem of that format, its sizes to be filled in."""


def sized(form: str, m: int, n: int, k: int) -> Problem:
    """A bf16 problem with x of [M, K]."""
    return FORMATS[form].model_copy(update={"m": m, "n": n, "k": k})


def in_words(some: Sequence[str]) -> str:
    """Affine widths by the group sizes they share, then the other modes."""
    if len(some) == len(FORMATS):
        return "any"
    groups: dict[int, tuple[int, ...]] = {}
    for like in (FORMATS[one] for one in some if FORMATS[one].mode == "affine"):
        groups[like.bits] = (*groups.get(like.bits, ()), like.group_size)
    shared: dict[tuple[int, ...], list[int]] = {}
    for bits, sizes in groups.items():
        shared.setdefault(sizes, []).append(bits)
    said = [f"{_listed(bits)} bits, group {_listed(sizes)}" for sizes, bits in shared.items()]
    return "; ".join(said + [one for one in some if FORMATS[one].mode != "affine"])


def _listed(values: Iterable[int]) -> str:
    return ", ".join(str(value) for value in values)
