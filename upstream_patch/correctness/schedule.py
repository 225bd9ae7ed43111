"""How a simulated launch is varied, whatever its kernel."""

from __future__ import annotations

from dataclasses import dataclass

from upstream_patch.reference import Distribution
from upstream_patch.simulate import Order, Placement, Sums

FILLS = (0xFF, 0x00, 0xA5)
"""What shared memory starts as, in every byte."""


@dataclass(frozen=True)
class Schedule:
    """Data, placement, order and sums of a launch; ``other_order`` is that of a second one."""

    distribution: Distribution
    placement: Placement
    order: Order
    other_order: Order
    sums: Sums
    fill: int
    seed: int

    @property
    def text(self) -> str:
        """For the id of a case."""
        where = "end" if self.placement.at_end else "+".join(map(str, self.placement.offsets))
        return (
            f"{self.distribution} at={where} {self.order}/{self.other_order} {self.sums} fill={self.fill:#x} "
            f"seed={self.seed}"
        )
