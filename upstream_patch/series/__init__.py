"""The change to an MLX checkout, as data, and what is done with it: check, apply, export, build, follow upstream."""

from __future__ import annotations

from upstream_patch.series.contributions import NAMES, content_hash, load, load_each
from upstream_patch.series.model import Base, Contribution, Edit, NewFile
from upstream_patch.series.planning import Item, Plan, State, plan

__all__ = [
    "NAMES",
    "Base",
    "Contribution",
    "Edit",
    "Item",
    "NewFile",
    "Plan",
    "State",
    "content_hash",
    "load",
    "load_each",
    "plan",
]
