"""A decode step of Llama-3.1-8B: its matmuls by the model, everything else by stated assumptions."""

from __future__ import annotations

from dataclasses import dataclass

from upstream_patch.measure.forecast.hardware import Hardware
from upstream_patch.measure.forecast.model import forecast
from upstream_patch.problem import Problem

LAYERS = 32
LAYER = ((4096, 4096), (4096, 1024), (4096, 1024), (4096, 4096), (4096, 14336), (4096, 14336), (14336, 4096))
"""K x N: q, k, v, o, gate, up, down."""
HEAD = (4096, 128256)
CONTEXT = 256  # tokens in the cache of every sequence: assumed
CACHE_BYTES = LAYERS * 2 * 8 * 128 * 2  # a token: keys and values of 8 heads of 128, bf16
KERNELS = LAYERS * 10 + 6
"""Assumed, besides the matmuls. A layer: two norms, two RoPE, two writes to the cache, attention, SwiGLU, two residual
sums. Then embedding, last norm and sampling."""
KERNEL_US = 2.5  # assumed, of each of these on a GB10: it is waited for by the next one
REPORTED_STOCK = 45.0  # tok/s at B = 1, 2, 4 on a GB10, reported by the request


@dataclass(frozen=True)
class Step:
    """Milliseconds of one decode step of ``batch`` sequences."""

    batch: int
    matmuls: float
    others: float
    stock_matmuls: float

    @property
    def tokens(self) -> float:
        """Aggregate tokens a second, ours."""
        return self.batch / (self.matmuls + self.others) * 1e3

    @property
    def stock_tokens(self) -> float:
        return self.batch / (self.stock_matmuls + self.others) * 1e3


def others(batch: int, hardware: Hardware) -> float:
    """Milliseconds of all but the matmuls: the cache read once, and a floor for each small kernel."""
    return batch * CONTEXT * CACHE_BYTES / hardware.read_gbps.value / 1e6 + KERNELS * KERNEL_US / 1e3


def packed_bytes() -> int:
    """Weights of a step."""
    layer = sum(Problem(m=1, k=k, n=n).packed_bytes for k, n in LAYER)
    return LAYERS * layer + Problem(m=1, k=HEAD[0], n=HEAD[1]).packed_bytes


def stock_efficiency(hardware: Hardware) -> float:
    """Share of the read probe at which stock reads the weights, such that B = 1 gives the reported speed."""
    once = 1e3 / REPORTED_STOCK - others(1, hardware)
    return packed_bytes() / 1e6 / once / hardware.read_gbps.value


def step(batch: int, hardware: Hardware) -> Step:
    """Stock reads every weight once a sequence; the queue of a step is on the GPU before it starts (no host cost)."""

    def us(k: int, n: int) -> float:
        return forecast(Problem(m=batch, k=k, n=n, layout="b1k"), hardware).us

    matmuls = (LAYERS * sum(us(k, n) for k, n in LAYER) + us(*HEAD)) / 1e3
    stock = batch * packed_bytes() / 1e6 / (stock_efficiency(hardware) * hardware.read_gbps.value)
    return Step(batch, matmuls, others(batch, hardware), stock)
