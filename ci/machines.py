"""The machines that jobs run on, as data: labels, sessions and limits. Read by the plan, the gate and the policy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """A machine of an owner, with one runner. ``session`` is the one command that its owner types, too."""

    name: str
    title: str
    labels: tuple[str, ...]
    session: str
    suite_minutes: int
    """Of the session; the job gets ``SPARE_MINUTES`` more, so that what a hung session left is still uploaded."""


SPARE_MINUTES = 30
DEVICES = {
    device.name: device
    for device in (
        Device("gb10", "NVIDIA GB10", ("self-hosted", "Linux", "ARM64", "gb10"), "gb10", suite_minutes=240),
        Device("m5", "Apple M5", ("self-hosted", "macOS", "ARM64", "m5"), "m5", suite_minutes=180),
    )
}


@dataclass(frozen=True)
class Leg:
    """A hosted runner, and the sessions that run there, one a job."""

    name: str
    runner: str
    python: str
    sessions: tuple[str, ...]


MINUTES = {"lint": 10, "types": 20, "tests": 60, "contribution": 60, "simulate": 60, "build": 30}
"""Limit of each session that a hosted job runs; the job gets ``SETUP_MINUTES`` more."""
SETUP_MINUTES = 20
"""Checkout, Python, the cache and setup: what stands beside the session in ci.yml and nightly.yml."""
PYTHON = "3.12"
_EVERYWHERE = ("tests", "simulate")
LEGS = {
    "ci": (
        Leg("Linux x86-64", "ubuntu-24.04", PYTHON, ("lint", "types", *_EVERYWHERE, "contribution", "build")),
        Leg("Linux arm64", "ubuntu-24.04-arm", PYTHON, (*_EVERYWHERE, "build")),
        Leg("macOS", "macos-15", PYTHON, _EVERYWHERE),
    ),
    "nightly": tuple(
        Leg(f"{name}, Python {python}", runner, python, _EVERYWHERE)
        for name, runner in (
            ("Linux x86-64", "ubuntu-24.04"),
            ("Linux arm64", "ubuntu-24.04-arm"),
            ("macOS", "macos-15"),
        )
        for python in ("3.11", "3.12", "3.13")
    ),
}
