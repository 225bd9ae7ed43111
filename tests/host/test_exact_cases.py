"""What the sanitizers' launches hold: formats, batches, strides of x, and every instance of a device."""

from __future__ import annotations

from itertools import product

import pytest

from upstream_patch import kernels
from upstream_patch.correctness.case import DTYPES, LAYOUTS
from upstream_patch.correctness.exact_cases import ROWS, cases, instances, of_formats
from upstream_patch.correctness.paths import H200, Device
from upstream_patch.kernels.tuning import DEVICE_CLASSES, FORMATS, SLICE, TILE, SmallM, format_of

_FORMATS = list(of_formats())


def test_the_matrix_holds_what_it_says() -> None:
    kinds = {(*format_of(c.problem), c.problem.dtype, c.problem.m) for c in _FORMATS}
    assert kinds == {(*form, dtype, m) for form in FORMATS for dtype in DTYPES for m in ROWS}
    off = [case for case in _FORMATS if case.problem.n % TILE]
    assert all(case.problem.k % SLICE and case.problem.k % case.problem.group_size == 0 for case in off)
    assert {case.unaligned for case in off} == {True, False}
    for m in ROWS:  # neither N nor K follows from M
        assert len({case.problem.n for case in off if case.problem.m == m}) == 5
        assert len({case.problem.k % 1024 for case in off if case.problem.m == m}) > 3
    warps = {case.cut(H200)[0].tuning.warps for case in _FORMATS}
    assert warps == {4, 8, 16}


@pytest.mark.parametrize("device", [H200, ((8, 0), 108), ((12, 1), 48)], ids=str)
def test_every_instance_of_a_device_is_launched_with_a_full_batch_of_tiles_and_a_part(device: Device) -> None:
    found = list(instances(device))
    arch = DEVICE_CLASSES[device[0]].name
    assert [case.cut(device)[0] for case in found] == list(kernels.variants(arch))
    off_slice: dict[SmallM, list[bool]] = {}
    for case in found:
        variant, grid = case.cut(device)
        p, t = case.problem, variant.tuning
        assert (variant.dtype, t.format) == (p.dtype, format_of(p)) and 8 * -(-min(p.m, 16) // 8) == t.rows
        assert grid == (1, -(-p.m // 16), 1)
        tiles = -(-p.n // TILE)
        assert tiles > t.tiles and (tiles % t.tiles == 1 or t.tiles == 1)
        phases = -(-tiles // t.tiles) * -(-p.k // (t.warps * SLICE))
        assert phases > -(-t.stages // t.tiles) + 1  # every buffer of scales is used again
        assert (t.warps - 1) * SLICE < p.k <= (t.warps + 1) * SLICE  # every warp has some; the second pass is short
        off_slice.setdefault(t, []).append(p.k % SLICE != 0)
    assert {(*each,) for each in off_slice.values()} == {(True, False), (False, True)}
    for tiles in {case.cut(device)[0].tuning.tiles for case in found}:
        some = [case for case in found if case.cut(device)[0].tuning.tiles == tiles]
        passes = {(case.problem.k > case.cut(device)[0].tuning.warps * SLICE, case.unaligned) for case in some}
        assert passes == {(False, False), (True, False), (True, True)}


def test_every_format_has_batches_in_every_layout_and_strides_of_x() -> None:
    every = list(cases(H200))
    batched = [case.problem for case in every if case.problem.batch > 1 and not case.x_padding]
    assert {(format_of(p), p.layout) for p in batched} == {(form, layout) for form in FORMATS for layout in LAYOUTS}
    assert {(p.layout, p.dtype, bool(p.k % SLICE)) for p in batched} == set(product(LAYOUTS, DTYPES, (False, True)))
    assert {p.m > 16 for p in batched if p.layout == "b1k"} == {True, False}
    padded = [case for case in every if case.x_padding]
    assert {(format_of(c.problem), c.x_padding) for c in padded} == {(form, pad) for form in FORMATS for pad in (1, 8)}
    assert all(case.problem.m > 1 for case in padded)
    kinds = {(c.x_padding, c.problem.dtype, c.problem.layout, bool(c.problem.k % SLICE)) for c in padded}
    assert kinds == set(product((1, 8), DTYPES, ("mk", "b1k"), (False, True)))
