"""MLX built from a checkout, as it is and with the series, side by side; and what its own tests say of both."""

from __future__ import annotations

from upstream_patch.series.building.pipeline import Plan, Shell, build
from upstream_patch.series.building.preflight import Backend, backend_of

__all__ = ["Backend", "Plan", "Shell", "backend_of", "build"]
