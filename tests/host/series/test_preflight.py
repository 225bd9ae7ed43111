"""What a build of MLX needs is asked before anything is built."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.errors import MissingTool
from upstream_patch.machine import Answer, System
from upstream_patch.series.building import preflight


class Mac(System):
    """A Mac of given versions; ``said`` are the answers of its commands."""

    def __init__(self, sdk: str = "26.2", target: str | None = None, metal: bool = True) -> None:
        super().__init__(name="Darwin", arch="arm64")
        object.__setattr__(self, "said", {"sw_vers": "26.2", "cmake": "cmake version 4.1.0", "sdk": sdk})
        object.__setattr__(self, "target", target)
        object.__setattr__(self, "metal", metal)

    said: dict[str, str]
    target: str | None
    metal: bool

    def run(self, command: Sequence[str], timeout: float = 20.0) -> Answer:
        if "metal" in command:
            return Answer(0 if self.metal else 72)
        return Answer(0, self.said["sdk" if command[0] == "xcrun" else command[0]])

    def which(self, program: str) -> str | None:
        return f"/usr/bin/{program}"

    def environ(self, name: str) -> str | None:
        return self.target


def plenty(path: Path) -> int:
    return 10**12


@pytest.mark.parametrize(
    ("mac", "missing"),
    [
        (Mac(), []),
        (Mac(target="26.2"), []),
        (Mac(target="11.0"), ["MACOSX_DEPLOYMENT_TARGET: 11.0, 26.2 needed"]),
        (Mac(sdk="15.5"), ["macOS SDK: 15.5, 26.2 needed"]),
        (Mac(metal=False), ["Metal toolchain: xcrun finds no metal"]),
    ],
)
def test_what_a_mac_lacks_is_said_before_anything_is_built(mac: System, missing: list[str], tmp_path: Path) -> None:
    found = preflight.findings("metal", tmp_path, mac, plenty)
    assert [f"{one.name}: {one.detail}" for one in found if not one.ok] == missing
    assert all(one.fix for one in found if not one.ok)


def test_a_full_disk_and_a_bare_machine_are_one_line_with_every_way_out(tmp_path: Path) -> None:
    class Bare(System):
        def run(self, command: Sequence[str], timeout: float = 20.0) -> Answer:
            return Answer(None)

        def which(self, program: str) -> str | None:
            return None

        def glob(self, pattern: str) -> list[str]:
            return []

        def library(self, *names: str) -> Any:
            return None

    found = preflight.findings("cuda", tmp_path / "not" / "there", Bare(name="Linux"), lambda path: 10**9)
    assert [one.name for one in found if not one.ok] == [
        *("disk", "git", "cmake", "nvcc", "g++", "cudnn.h", "lapacke.h", "GPU"),
    ]
    with pytest.raises(
        MissingTool, match=r"not ready to build MLX: disk: 1 GB free for .*30 GB needed; git: "
    ) as raised:
        preflight.require(found)
    assert "\n" not in str(raised.value)
