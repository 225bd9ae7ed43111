"""MLX built from a checkout, as it is and with the series, side by side; and what its own tests say of both."""

from __future__ import annotations

from upstream_patch.series.building.pipeline import Backend, Plan, Shell, build

__all__ = ["Backend", "Plan", "Shell", "build"]
