"""Whether a GPU and the simulator give the same bits: the hashes that a sanitizer record holds, recomputed on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from upstream_patch.kernels import Variant, variants
from upstream_patch.kernels.tuning import DEVICE_CLASSES
from upstream_patch.records.schema import Sanitized
from upstream_patch.reference import make_inputs
from upstream_patch.simulate import SUMS, Sums
from upstream_patch.simulate.small_m import run_small_m

Verdict = Literal["identical", "order of sums", "different"]


@dataclass(frozen=True)
class Compared:
    """``order of sums``: the simulator's own orders of a matrix unit's sums give different bits here, so the GPU's,
    which is none of them, may give others again. ``different``: they agree, and the GPU does not: one of both is wrong.
    """

    launch: Sanitized
    verdict: Verdict
    sums: Sums | None
    """The first order that gave the GPU's bits; that of an H200 is tried first."""


def compare(launches: Sequence[Sanitized], capability: tuple[int, int]) -> list[Compared]:
    """Simulates launches of a record until an order of sums gives their bits.

    Those without a hash, or of a kernel that is no more launched, are left out.
    """
    device = DEVICE_CLASSES[capability]
    known = {variant.name: variant for variant in variants(device.name)}
    return [
        _compared(launch, known[launch.kernel], device.shared_per_block)
        for launch in launches
        if launch.output_sha256 is not None and launch.kernel in known
    ]


def _compared(launch: Sanitized, variant: Variant, shared_limit: int) -> Compared:
    inputs = make_inputs(launch.problem, launch.seed)
    seen = set[str]()
    for sums in sorted(SUMS, key="truncating".__ne__):
        run = run_small_m(
            variant,
            launch.grid[0],
            inputs,
            shared_limit=shared_limit,
            x_padding=launch.x_padding,
            sums=sums,
            checks=(),
        )
        digest = sha256(run.outputs[0].tobytes()).hexdigest()
        if digest == launch.output_sha256:
            return Compared(launch, "identical", sums)
        seen.add(digest)
    return Compared(launch, "order of sums" if len(seen) > 1 else "different", None)
