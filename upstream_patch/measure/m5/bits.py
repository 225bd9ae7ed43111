"""Are the bits on the hardware those of the simulator, and the staged kernels' those of stock's?

Where every partial sum is exact, no order of summation matters, and the bits must be the simulator's. On other data the
simulator is asked in each of several orders: the hardware may agree with one, or with none, which is no fault. The
staged kernels and stock's must agree with each other on any data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from upstream_patch.problem import MLX_DTYPE, Problem
from upstream_patch.reference import Inputs, make_inputs
from upstream_patch.routing_metal import M5, instance, route
from upstream_patch.simulate import SUMS, Sums
from upstream_patch.simulate.metal import Operands
from upstream_patch.simulate.metal.staged import library, run_staged
from upstream_patch.simulate.metal.stock import FLAT
from upstream_patch.simulate.small_m import to_bits

FILE = Path(__file__).parent / "expected.json"
"""Written by ``python -m upstream_patch m5 --write-expected``, from the simulator; a test compares."""
Data = Literal["exact", "normal"]
SEED = 5
PROBLEMS: tuple[Problem, ...] = (
    Problem(m=16, n=1024, k=1024),
    Problem(m=33, n=128, k=768, bits=8, group_size=32, dtype="f16"),
    Problem(m=70, n=64, k=1024, bits=3, group_size=128),
    Problem(m=40, n=128, k=320, bits=6),
    Problem(m=8, n=2048, k=128, bits=2, group_size=32, dtype="f16"),
    Problem(m=40, n=128, k=448, bits=5, batch=2),
)
"""Two, three and four parts of K, and none; both sizes of tile; a batch."""
AS_STOCK: tuple[Problem, ...] = (
    Problem(m=40, n=8256, k=512),
    Problem(m=40, n=8256, k=512, bits=8, dtype="f16"),
    Problem(m=16, n=17408, k=576, bits=3, group_size=32),
    Problem(m=70, n=192, k=640, bits=6, batch=3),
    Problem(m=33, n=256, k=1024, bits=5, group_size=128, batch=2, dtype="f16"),
)
"""Both stock and ours run ``qmm_t_nax``, unsplit: their bits must be the same."""


def simulated(problem: Problem, data: Data, sums: Sums = "ascending") -> NDArray[Any]:
    """The stored bits [batch, M, N] of the route's kernels in the simulator, one order of summation."""
    taken = route(problem, M5)
    outputs = []
    for each in entries(problem, data):
        staged = instance(each.problem, taken)
        if staged is None:
            raise ValueError(f"{problem.id} does not take the staged kernels")
        kernel = library(f"bits_{staged.host_name}", [staged])
        operands = Operands(each.problem, FLAT, (each,), (each,))
        found = run_staged(staged, operands, taken.parts, how={"sums": sums, "checks": ("bounds",)}, kernel=kernel)
        if found.report.faults:
            raise ValueError(f"{problem.id}: {found.report.faults[0]}")
        total = found.outputs[0]
        if taken.parts > 1:
            total = np.zeros(found.outputs[0].shape[1:], np.float32)
            for part in found.outputs[0]:
                total = total + part
            total = to_bits(total.astype(np.float64), problem.dtype)[None]
        outputs.append(total)
    return np.concatenate(outputs)


def entries(problem: Problem, data: Data) -> list[Inputs]:
    """The inputs of each matrix of a problem's batch.

    ``exact``: x of whole numbers to 4, scales of powers of two and biases of whole multiples of them, so that sums of
    1,024 columns are exact in fp32.
    """
    one = problem.model_copy(update={"batch": 1})
    made = [make_inputs(one, SEED + index) for index in range(problem.batch)]
    if data == "normal":
        return made
    found = []
    for each in made:
        rng = np.random.default_rng(each.seed)
        scales = 2.0 ** rng.integers(-2, 1, each.scales.shape)
        biases = -scales * 2.0 ** (problem.bits - 1)
        x = rng.integers(-4, 5, each.x.shape)
        found.append(
            replace(each, x=x.astype(np.float32), scales=scales.astype(np.float32), biases=biases.astype(np.float32))
        )
    return found


def arrays(problem: Problem, data: Data) -> tuple[Any, Any, Any, Any]:
    """x, w, scales, biases as MLX's arrays, the same numbers as ``simulated`` has."""
    mx: Any = import_module("mlx.core")
    kind = getattr(mx, MLX_DTYPE[problem.dtype])
    parts = entries(problem, data)

    def stacked(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return mx.array(np.stack(values) if problem.batch > 1 else values[0])

    packed = stacked("packed")
    return stacked("x").astype(kind), packed, stacked("scales").astype(kind), stacked("biases").astype(kind)


def stored(y: Any) -> NDArray[Any]:
    """An MLX array's bits, of 16 each."""
    mx: Any = import_module("mlx.core")
    return np.array(y.view(mx.uint16))


def digest(bits: NDArray[Any]) -> str:
    """Of 16-bit outputs in the order of their memory."""
    return sha256(np.ascontiguousarray(bits, "<u2").tobytes()).hexdigest()


def key(problem: Problem, data: Data) -> str:
    return f"{problem.id} {data}"


def expected() -> dict[str, dict[str, str]]:
    """``key`` -> order of summation, or ``any`` -> digest; under ``layout`` that of the probe."""
    found: dict[str, dict[str, str]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def computed(layout: str) -> dict[str, dict[str, str]]:
    """What ``expected`` must hold, by the simulator. ``layout``: the digest of the layout probe there."""
    exact = {key(each, "exact"): {"any": digest(simulated(each, "exact"))} for each in PROBLEMS}
    normal: dict[str, dict[str, str]] = {
        key(each, "normal"): {str(sums): digest(simulated(each, "normal", sums)) for sums in SUMS}
        for each in PROBLEMS[:3]
    }
    return {"layout": {"probe": layout}, **exact, **normal}


def agreeing(found: str, orders: Mapping[str, str]) -> list[str]:
    """The orders of summation whose digest is the one found."""
    return [name for name, each in orders.items() if each == found]
