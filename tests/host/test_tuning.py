"""The tuning tables: what they pick fits the device it is for, and keeps rows independent."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from upstream_patch import kernels
from upstream_patch.kernels.tuning import (
    DEVICE_CLASSES,
    FORMATS,
    MAX_ROWS,
    RESERVED_SHARED_BYTES,
    TILE,
    DeviceClass,
    Pick,
    SmallM,
    small_m_launch,
)

SHAPES = [(1, 64), (16, 64), (17, 320), (1000, 1024), (4096, 2048), (1024, 4096), (4096, 14336), (128256, 4096)]


@pytest.mark.parametrize("device", DEVICE_CLASSES.values(), ids=lambda device: device.name)
def test_every_pick_fits_its_device(device: DeviceClass) -> None:
    for variant in kernels.variants(device.name):
        assert variant.shared_bytes <= device.shared_per_block, variant.name
        assert variant.shared_bytes + RESERVED_SHARED_BYTES <= device.shared_per_multiprocessor, variant.name
        assert variant.tuning.stages >= 2, "the ring refills one slot while another is read"


def launched(device: DeviceClass) -> set[SmallM]:
    """By any M, format and number of tiles a block, where K is enough for blocks of 16 warps."""
    tiles = [132 * count for count in range(1, max(device.levels) + 1)]
    return {
        small_m_launch(m, TILE * count, 4096, device, 132, form).tuning
        for m, form, count in product((8, 16), FORMATS, tiles)
    }


def unused(device: DeviceClass) -> list[str]:
    """Lines of the class's tables that fit no format in a block of 16 warps, or that no launch comes to."""
    found, seen = [], launched(device)
    for rows, narrow in product((8, 16), (False, True)):
        forms = [form for form in FORMATS if form.bits <= 3 or not narrow]
        for pick in (device.narrow if narrow else device.picks).get(rows, ()):
            wanted = {SmallM(rows, 16, pick.stages, pick.tiles, form) for form in forms}
            if not any(map(device.fits, wanted)):
                found.append(f"{rows} rows, {pick}: fits no format")
            elif not wanted & seen:
                found.append(f"{rows} rows, {pick}: no launch takes it")
    return found


@pytest.mark.parametrize("device", DEVICE_CLASSES.values(), ids=lambda device: device.name)
def test_every_pick_of_the_tables_fits_and_is_launched(device: DeviceClass) -> None:
    """``choices`` passes over what does not fit, so that a wrong pick shows here and nowhere else."""
    assert unused(device) == []
    too_large = replace(device, picks={**device.picks, 8: (Pick(9, 9), *device.picks[8])})
    assert unused(too_large) == [f"8 rows, {Pick(9, 9)}: fits no format"]
    behind = replace(device, picks={**device.picks, 8: (*device.picks[8], Pick(3, 1))})
    assert f"8 rows, {Pick(3, 1)}: no launch takes it" in unused(behind)


@pytest.mark.parametrize("device", DEVICE_CLASSES.values(), ids=lambda device: device.name)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_launch_covers_every_tile_once_and_is_an_instance_that_is_compiled(
    device: DeviceClass, n: int, k: int
) -> None:
    compiled = {variant.tuning for variant in kernels.variants(device.name)}
    for m, form, batch in product(range(1, MAX_ROWS + 1), FORMATS, (1, 3)):
        launch = small_m_launch(m, n, k, device, 48, form, batch)
        assert launch.tuning in compiled
        assert launch.tuning.format == form
        _, row_blocks, entries = launch.grid
        assert row_blocks * launch.tuning.rows >= m > (row_blocks - 1) * launch.tuning.rows
        assert entries == batch
        tiles = -(-n // 16)
        assert 1 <= launch.blocks <= tiles
        # block b works on tiles b, b + blocks, ...: no block is left with nothing
        per_block = -(-tiles // launch.blocks)
        assert (per_block - 1) * launch.blocks < tiles


def test_the_order_of_a_sum_does_not_depend_on_m() -> None:
    for device in DEVICE_CLASSES.values():
        for (n, k), form in product(SHAPES, FORMATS):
            warps = {small_m_launch(m, n, k, device, 132, form).tuning.warps for m in range(1, MAX_ROWS + 1)}
            assert len(warps) == 1


def test_a_longer_ring_is_for_more_tiles() -> None:
    for device in DEVICE_CLASSES.values():
        few, many = (small_m_launch(8, n, 4096, device, 132).tuning for n in (1024, 10**6))
        assert many.stages >= few.stages
        assert many.rows == few.rows
    # where the table asks for a number of tiles, they are what makes the difference
    few, many = (small_m_launch(8, n, 4096, DEVICE_CLASSES[9, 0], 132).tuning for n in (1024, 10**6))
    assert many.stages > few.stages and many.tiles > few.tiles


def test_device_names_are_the_archs() -> None:
    assert set(kernels.ARCHS) <= {device.name for device in DEVICE_CLASSES.values()}
    for (major, minor), device in DEVICE_CLASSES.items():
        assert device.name == f"sm_{major}{minor}"


def test_a_translation_unit_stands_alone() -> None:
    unit = kernels.variants("sm_90")[0].translation_unit()
    assert '#include "' not in unit
    assert unit.count("#include <") == 2
    assert "#pragma once" not in unit


def test_the_closure_lists_what_the_entry_includes() -> None:
    files = list(kernels.closure("small_m"))
    assert files[-1] == kernels.entry("small_m").name
    assert set(files) == {path.name for path in kernels.FOLDER.iterdir()}
