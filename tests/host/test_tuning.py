"""The tuning tables: what they pick fits the device it is for, and keeps rows independent."""

from __future__ import annotations

from itertools import product

import pytest

from upstream_patch import kernels
from upstream_patch.kernels.tuning import (
    DEVICE_CLASSES,
    FORMATS,
    MAX_ROWS,
    RESERVED_SHARED_BYTES,
    DeviceClass,
    small_m_launch,
)

SHAPES = [(1, 64), (16, 64), (17, 320), (1000, 1024), (4096, 2048), (1024, 4096), (4096, 14336), (128256, 4096)]


@pytest.mark.parametrize("device", DEVICE_CLASSES.values(), ids=lambda device: device.name)
def test_every_pick_fits_its_device(device: DeviceClass) -> None:
    for variant in kernels.variants(device.name):
        assert variant.shared_bytes <= device.shared_per_block, variant.name
        assert variant.shared_bytes + RESERVED_SHARED_BYTES <= device.shared_per_multiprocessor, variant.name
        assert variant.tuning.stages >= 2, "the ring refills one slot while another is read"


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
