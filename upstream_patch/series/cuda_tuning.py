"""The tuning tables in C++: ``cuda/qmm_small_m_tuning.h``, written from ``kernels.tuning`` and ``routing``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from upstream_patch.files import write_changed
from upstream_patch.kernels import tuning
from upstream_patch.kernels.tuning import DeviceClass, Pick
from upstream_patch.routing import LARGEST

FILE = Path(__file__).parent / "cuda" / "qmm_small_m_tuning.h"

_HEAD = """// How qmm_small_m is cut for each device.

#pragma once

namespace mlx::core::small_m {

"""
_TYPES = """
struct Format {
  int bits;
  int group_size;
  bool affine;
};

inline constexpr Format kFormats[] = {
%(formats)s
};

// Stages of a warp's ring, tiles that wait for one reduction, and how many
// tiles a block must have for it.
struct Pick {
  int stages;
  int tiles;
  int least;
};

inline constexpr int kMaxPicks = %(most)d;

// Picks are sorted, the best first; no stages end them. The first list is for
// blocks of 8 rows, the second for 16. Those of |narrow| come first, for
// weights of 2 and 3 bits.
struct DeviceClass {
  int major;
  int minor;
  int shared_per_block;
  int shared_per_multiprocessor;
  Pick picks[2][kMaxPicks];
  Pick narrow[2][kMaxPicks];
};

inline constexpr DeviceClass kDevices[] = {
%(devices)s
};

} // namespace mlx::core::small_m
"""


def header() -> str:
    """The text of the header, laid out as clang-format leaves it."""
    constants = {
        "kTile": (tuning.TILE, "columns"),
        "kSlice": (tuning.SLICE, "of K, that a warp holds of x"),
        "kBlockRows": (tuning.BLOCK_ROWS, "of x, at most, to a block"),
        "kMaxRows": (tuning.MAX_ROWS, "of x"),
        "kMaxBatch": (tuning.MAX_BATCH, "of weights"),
        "kMaxColumns": (LARGEST, "of weights"),
        "kReservedShared": (tuning.RESERVED_SHARED_BYTES, "by CUDA, for each block"),
    }
    lines = [f"inline constexpr int {name} = {value}; // {what}" for name, (value, what) in constants.items()]
    formats = [
        f"    {{{form.bits}, {form.group}, {'true' if form.affine else 'false'}}}, // {form.mode}"
        for form in tuning.FORMATS
    ]
    most = max(len(picks) for each in tuning.DEVICE_CLASSES.values() for picks in _lists(each))
    devices = [_device(capability, each) for capability, each in tuning.DEVICE_CLASSES.items()]
    return (
        _HEAD
        + "\n".join(lines)
        + "\n"
        + _TYPES % {"formats": "\n".join(formats), "most": most, "devices": "\n".join(devices)}
    )


def update(path: Path = FILE) -> bool:
    """Write the header where it differs; True when it did."""
    return write_changed(path, header())


def _lists(device: DeviceClass) -> tuple[Sequence[Pick], ...]:
    return tuple(picks.get(rows, ()) for picks in (device.picks, device.narrow) for rows in (8, 16))


def _device(capability: tuple[int, int], device: DeviceClass) -> str:
    few, many, narrow_few, narrow_many = (
        "{" + ", ".join(f"{{{pick.stages}, {pick.tiles}, {pick.least}}}" for pick in picks) + "}"
        for picks in _lists(device)
    )
    rows = [*map(str, capability), str(device.shared_per_block), str(device.shared_per_multiprocessor)]
    fields = [*rows, f"{{{few}, {many}}}", f"{{{narrow_few}, {narrow_many}}}"]
    return "    {" + ",\n     ".join(fields) + "},"
