"""Our kernel against PyTorch's prepacked int4 matmul: the same inputs, process, stream and timer.

Both run as CUDA graphs on PyTorch's stream: theirs through PyTorch, ours through the CUDA driver in the same context.
PyTorch's operation takes weights that were repacked beforehand, ours those of MLX as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upstream_patch import kernels
from upstream_patch import machine as prober
from upstream_patch.compile import cubins
from upstream_patch.correctness import check
from upstream_patch.driver import Gpu, Grid, Kernel, Operands, small_m_arguments, small_m_cut
from upstream_patch.errors import MissingTool
from upstream_patch.kernels.tuning import DEVICE_CLASSES
from upstream_patch.machine import Machine
from upstream_patch.measure import inputs
from upstream_patch.measure.checked import STOCK_BOUND, WrongResult, sample_columns
from upstream_patch.measure.conditions import conditions, watching
from upstream_patch.measure.steps import Progress, counter
from upstream_patch.measure.suites import LLAMA_8B
from upstream_patch.measure.timer import Timer, TimerError, paired, plan_ops
from upstream_patch.measure.torch_device import TorchDevice, graph_work, torch_here
from upstream_patch.problem import Problem
from upstream_patch.records.keeping import Keeper
from upstream_patch.records.schema import Check, PeerBody, PeerRow
from upstream_patch.reference import Inputs

PEER = "torch.ops.aten._weight_int4pack_mm"
SHAPES = (*LLAMA_8B, (8192, 8192))
ROWS = (1, 8)
ROUNDS = 12
"""A multiple of 6: every order of the three arms comes equally often."""
INNER_K_TILES = 8
_ZERO_POINT = 8


def problems() -> tuple[Problem, ...]:
    """4-bit weights of group size 64 in bf16, what both take."""
    return tuple(Problem(m=m, n=n, k=k) for k, n in SHAPES for m in ROWS)


@dataclass(frozen=True)
class Copy:
    """One copy of the weights in both forms, on the GPU."""

    w: Any
    """int32 [N, K / 8], as MLX stores it."""
    scales: Any
    """[N, K / 64]"""
    biases: Any
    """[N, K / 64]; a weight is ``q * scale + bias``."""
    packed: Any
    """PyTorch's own order of the same integers."""
    scales_and_zeros: Any
    """[K / 64, N, 2]; a weight is ``(q - 8) * scale + zero``, so the zero is ``bias + 8 * scale``, rounded."""


def make_copy(torch: Any, problem: Problem, seed: int) -> Copy:
    """Random bits for integers, scales of both signs, biases that give outputs near 1."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    groups = (problem.n, problem.k // problem.group_size)

    def uniform(low: float, high: float) -> Any:
        return torch.rand(groups, device="cuda", generator=generator) * (high - low) + low

    octets = torch.randint(0, 256, (problem.n, problem.k // 2), dtype=torch.uint8, device="cuda", generator=generator)
    sign = (uniform(0, 1) < 0.5).float() * 2 - 1
    scales = (sign * uniform(0.5, 1.5) / (7.5 * math.sqrt(problem.k))).to(torch.bfloat16)
    biases = (-7.5 * scales.float() * uniform(0.8, 1.2)).to(torch.bfloat16)
    zeros = (biases.float() + _ZERO_POINT * scales.float()).to(torch.bfloat16)
    # MLX's first integer of a byte is in the low half, PyTorch's in the high half
    swapped = (octets << 4) | (octets >> 4)
    packed = torch.ops.aten._convert_weight_to_int4pack(swapped, INNER_K_TILES)
    scales_and_zeros = torch.stack([scales, zeros], dim=-1).transpose(0, 1).contiguous()
    return Copy(octets.view(torch.int32), scales, biases, packed, scales_and_zeros)


class Arms:
    """The two operations on one problem's x and copies of the weights; each returns its output [M, N]."""

    def __init__(self, torch: Any, gpu: Gpu, kernel: Kernel, problem: Problem, grid: Grid, copies: list[Copy]) -> None:
        self._torch, self._gpu, self._kernel = torch, gpu, kernel
        self._problem, self._grid, self._copies = problem, grid, copies
        generator = torch.Generator(device="cuda").manual_seed(problem.m)
        self.x = torch.randn((problem.m, problem.k), device="cuda", generator=generator).to(torch.bfloat16)
        self._out = torch.empty((problem.m, problem.n), dtype=torch.bfloat16, device="cuda")

    def peer(self, copy: int) -> Any:
        each = self._copies[copy]
        return self._torch.ops.aten._weight_int4pack_mm(
            self.x, each.packed, self._problem.group_size, each.scales_and_zeros
        )

    def ours(self, copy: int) -> Any:
        """The output is the same memory every time."""
        each = self._copies[copy]
        tensors = (self.x, each.w, each.scales, each.biases, self._out)
        arguments = small_m_arguments(self._problem, Operands(*(tensor.data_ptr() for tensor in tensors)))
        self._gpu.launch(self._kernel, self._grid, arguments, self._torch.cuda.current_stream().cuda_stream)
        return self._out

    def forget(self) -> None:
        """Overwrite our output with NaN, so that an old result cannot pass for a new one."""
        self._out.fill_(math.nan)


def check_arms(problem: Problem, arms: Arms, copies: list[Copy]) -> tuple[Check, Check]:
    """(the peer's check, ours): both against the fp64 reference on sampled columns, each against its own form of the
    weights; and on every copy, all columns of one against the other. Raises WrongResult where either is wrong."""
    columns = sample_columns(problem.n, seed=problem.n)
    first = copies[0]
    sampled = Inputs(
        problem=problem.model_copy(update={"n": len(columns)}),
        seed=0,
        distribution="normal",
        x=_float32(arms.x),
        packed=_host(first.w[columns.tolist()]).view(np.uint32),
        scales=_float32(first.scales[columns.tolist()]),
        biases=_float32(first.biases[columns.tolist()]),
    )
    zeros = _float32(first.scales_and_zeros[:, columns.tolist(), 1]).T
    as_packed = replace(sampled, biases=(zeros - _ZERO_POINT * sampled.scales).astype(np.float32))

    def judge(name: str, y: Any, given: Inputs, our_kernel: bool) -> Check:
        result = check(
            problem,
            _float32(y[:, columns.tolist()]).astype(np.float64),
            given.reference(),
            None,
            magnitude=given.magnitude(),
            removed=given.removed(),
            our_kernel=our_kernel,
            columns=columns.tolist(),
        )
        if not result.passed:
            raise WrongResult(f"{problem.id}: {name} is wrong, nothing was recorded: {result.bound}")
        return result

    arms.forget()
    checks = (
        judge(f"the result of {PEER}", arms.peer(0), as_packed, False),
        judge("our result", arms.ours(0), sampled, True),
    )
    for number in range(len(copies)):
        arms.forget()
        peer, ours = arms.peer(number).float(), arms.ours(number).float()
        rms = peer.square().mean(dim=1, keepdim=True).sqrt()
        difference = float(((ours - peer).abs() / rms).max().item())
        if not difference <= STOCK_BOUND:
            raise WrongResult(
                f"{problem.id}: with weight copy {number} our result and {PEER}'s differ by {difference:.3g} of the "
                f"RMS (bound {STOCK_BOUND}), nothing was recorded"
            )
    return checks


def run_peers(
    wanted: tuple[Problem, ...] | None = None,
    *,
    progress: Progress | None = None,
    machine: Machine | None = None,
    gpu: Gpu | None = None,
    build: Callable[[dict[str, kernels.Variant], str], dict[str, bytes]] | None = None,
    keeper: Keeper | None = None,
) -> PeerBody:
    """Time every problem; rows that cannot be timed, or were not reached, are left out, and the notes say so.

    Raises MissingTool without PyTorch, a CUDA device of a known class or NVRTC, WrongResult when a result is wrong,
    TimerError when no row can be timed.
    """
    torch = torch_here()
    wanted = problems() if wanted is None else wanted
    keeper = keeper or Keeper([problem.id for problem in wanted])
    machine = machine or prober.probe()
    l2_bytes = inputs.last_level_cache(machine)
    torch.cuda.init()
    gpu = gpu or Gpu(torch.cuda.current_device())
    device = gpu.capability, gpu.multiprocessors
    if device[0] not in DEVICE_CLASSES:
        raise MissingTool(f"no kernel is launched on compute capability {device[0]}", "see kernels/tuning.py")
    cuts = {problem: small_m_cut(problem, *device) for problem in wanted}
    variants = {variant.name: variant for variant, _ in cuts.values()}
    built = (build or _build)(variants, DEVICE_CLASSES[device[0]].name)
    loaded = {name: gpu.load(variant, built[name]) for name, variant in variants.items()}
    notes = conditions("before")
    stream = TorchDevice(torch)
    timer = Timer(stream)
    timer.calibrate()
    opening = PeerBody(
        peer=PEER,
        peer_version=str(torch.__version__),
        timer=(
            "CUDA events on one stream, from the end of a spin kernel that outlasts the host's enqueuing to the end of "
            f"one CUDA graph of the operations, less an empty bracket of {timer.bracket_us:.2f} us, per operation, "
            "after as many that are not timed; each operation in a graph waits for the one before, in both arms"
        ),
        rows=[],
        notes=notes,
    )
    keeper.open(opening)
    tick = counter(progress, len(wanted) * ROUNDS)
    failed: list[TimerError] = []
    copies: list[Copy] = []
    shared: str | None = None
    for problem in wanted:
        if keeper.skips(problem.id):
            continue
        variant, grid = cuts[problem]
        try:
            with keeper.unit(problem.id):
                if shared != problem.weights_id:
                    copies, shared = [], problem.weights_id  # the old ones go before the new ones come
                    torch.cuda.empty_cache()
                    count = inputs.cold_copies(problem, l2_bytes)
                    copies = [make_copy(torch, problem, seed) for seed in range(count)]
                arms = Arms(torch, gpu, loaded[variant.name], problem, grid, copies)
                keeper.keep(problem.id, rows=[_row(stream, timer, problem, arms, copies, variant.name, tick)])
        except TimerError as error:
            failed.append(type(error)(f"left out: {problem.id}: {error}"))
    if not keeper.units:
        raise failed[0]
    after = [*conditions("after"), *(str(error) for error in failed), *keeper.notes]
    return keeper.body(opening.model_copy(update={"notes": [*notes, *after]}))


def _row(
    device: TorchDevice,
    timer: Timer,
    problem: Problem,
    arms: Arms,
    copies: list[Copy],
    kernel: str,
    tick: Callable[[], None],
) -> PeerRow:
    peer_check, our_check = check_arms(problem, arms, copies)
    count = len(copies)
    work = {name: graph_work(device, launch, count) for name, launch in (("peer", arms.peer), ("ours", arms.ours))}
    work["aa"] = graph_work(device, arms.peer, count)
    device.wait()
    ops = plan_ops(timer, [work["peer"], work["ours"]], count)
    with watching(tick) as watch:
        times = paired(timer, work, ops, rounds=ROUNDS, seed=problem.m, tick=watch.tick)
    return PeerRow(
        problem=problem,
        copies=count,
        ops_per_sample=ops,
        peer_us=times["peer"],
        ours_us=times["ours"],
        aa_us=times["aa"],
        peer_check=peer_check,
        check=our_check,
        ours_kernel=kernel,
        watched=watch.found(),
    )


def _build(variants: dict[str, kernels.Variant], arch: str) -> dict[str, bytes]:
    return cubins({name: (name, v.translation_unit()) for name, v in variants.items()}, arch, kernels.OPTIONS)


def _host(tensor: Any) -> NDArray[Any]:
    return np.ascontiguousarray(tensor.cpu().numpy())


def _float32(tensor: Any) -> NDArray[np.float32]:
    return np.asarray(_host(tensor.float()), np.float32)
