"""The seam to GitHub: a handful of calls, and manners that a library's defaults lack. githubkit is behind it."""

from upstream_patch.github.client import GitHub, address, connect, place
from upstream_patch.github.entries import Entry, Found, Kind, Repository
from upstream_patch.github.manners import Busy, Clock, Refused, Unclear, Unreachable

__all__ = [
    "Busy",
    "Clock",
    "Entry",
    "Found",
    "GitHub",
    "Kind",
    "Refused",
    "Repository",
    "Unclear",
    "Unreachable",
    "address",
    "connect",
    "place",
]
