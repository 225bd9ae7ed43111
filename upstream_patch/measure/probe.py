"""What this GPU can do at best in this run: how fast it reads memory, and what an empty kernel costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from upstream_patch.errors import UserError
from upstream_patch.measure.mlx_device import MlxDevice
from upstream_patch.measure.timer import Timer, Work, plan_ops

PROBE_BYTES = 1 << 32
"""About 1 ms on an H200, so that start and tail of the one kernel are below 0.5 %. One read a sample: MLX would let two
run side by side over the same data, and the cache would serve half of it."""
SAMPLES = 15
FLOOR_OPS = 2048
"""Empty kernels in a sample at most: so many that the start of their graph is a few percent of them."""

# Every thread keeps UNROLL independent 16-byte loads in flight. A block takes whole tiles of blockDim * UNROLL vectors,
# grid-stride. One word a warp is written, so no load can be dropped.
_READ = """
  const uint4* vectors = reinterpret_cast<const uint4*>(data);
  const int tiles = data_shape[0] / static_cast<int>(4 * blockDim.x * UNROLL);
  unsigned int sum = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const uint4* from = vectors + static_cast<size_t>(tile) * (blockDim.x * UNROLL) + threadIdx.x;
    uint4 got[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(got[i].x), "=r"(got[i].y), "=r"(got[i].z), "=r"(got[i].w) : "l"(from + i * blockDim.x));
    }
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) sum += got[i].x + got[i].y + got[i].z + got[i].w;
  }
  for (int lane = 16; lane > 0; lane >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  if (threadIdx.x % 32 == 0) sums[(blockIdx.x * blockDim.x + threadIdx.x) / 32] = sum;
"""


class ProbeWrong(UserError):
    """The probe did not read what it should have read: its time means nothing."""

    exit_code = 4


@dataclass(frozen=True)
class Shape:
    """One way to launch the read: loads in flight a thread, threads a block, blocks an SM (0: one block a tile)."""

    unroll: int
    threads: int
    per_sm: int

    def __str__(self) -> str:
        blocks = f"{self.per_sm} blocks/SM" if self.per_sm else "one block a tile"
        return f"{self.unroll} x 16 B a thread, {self.threads} threads, {blocks}"


SHAPES = (Shape(8, 256, 8), Shape(8, 512, 2), Shape(8, 512, 0), Shape(4, 1024, 2), Shape(4, 512, 0))


@dataclass(frozen=True)
class ReadProbe:
    gbps: list[float]
    """GB/s (1e9 bytes), one entry a sample, of the best shape."""
    bytes: int
    shape: Shape
    tried: dict[str, float]
    """Median GB/s of every shape tried."""


def read_probe(
    device: MlxDevice, timer: Timer, multiprocessors: int, *, size: int = PROBE_BYTES, samples: int = SAMPLES
) -> ReadProbe:
    """Read ``size`` bytes (a power of two, above the cache) in the best of several launch shapes.

    Raises ProbeWrong when the sum of what was read is not the sum of the data.
    """
    import mlx.core as mx

    # distinct words with about as many ones as zeros; an odd multiplier is a bijection mod 2^32
    data = mx.arange(size // 4, dtype=mx.uint32) * mx.array(2654435761, dtype=mx.uint32)
    mx.eval(data)
    count = size // 4
    expected = (2654435761 * (count * (count - 1) // 2)) % 2**32
    kernel = mx.fast.cuda_kernel("upstream_patch_read", ["data"], ["sums"], _READ)
    works: dict[Shape, Work] = {}
    tried: dict[Shape, float] = {}
    for shape in SHAPES:
        works[shape] = _reader(kernel, data, shape, multiprocessors)
        (sums,) = works[shape](1)
        got = sum(sums.tolist()) % 2**32
        if got != expected:
            raise ProbeWrong(f"the read probe ({shape}) summed to {got:#010x}, not {expected:#010x}: report this bug")
        tried[shape] = size / timer.median(works[shape], 1, 3) / 1e3
    best = max(tried, key=lambda shape: tried[shape])
    gbps = [size / timer.per_op(works[best], 1) / 1e3 for _ in range(samples)]
    return ReadProbe(gbps, size, best, {str(shape): value for shape, value in tried.items()})


def launch_floor(device: MlxDevice, timer: Timer, *, samples: int = SAMPLES) -> list[float]:
    """us per empty kernel, one entry a sample, under the same timer and in a queue."""
    ops = plan_ops(timer, [device.empty], 1, FLOOR_OPS)
    return [timer.per_op(device.empty, ops) for _ in range(samples)]


def _reader(kernel: Any, data: Any, shape: Shape, multiprocessors: int) -> Work:
    import mlx.core as mx

    tile = shape.threads * shape.unroll * 16
    tiles, rest = divmod(int(data.nbytes), tile)
    if rest:
        raise ValueError(f"{data.nbytes} bytes are no multiple of the probe's tile, {tile}")
    blocks = min(tiles, shape.per_sm * multiprocessors or tiles)

    def work(n: int) -> Sequence[Any]:
        return [
            kernel(
                inputs=[data],
                template=[("UNROLL", shape.unroll)],
                grid=(blocks * shape.threads, 1, 1),
                threadgroup=(shape.threads, 1, 1),
                output_shapes=[(blocks * shape.threads // 32,)],
                output_dtypes=[mx.uint32],
            )[0]
            for _ in range(n)
        ]

    return work
