"""PyTorch's arm, ours and their timing, on a torch made of numpy and a stream whose clock is simulated."""

from __future__ import annotations

import ctypes
import sys
import types
from typing import Any

import numpy as np
import pytest

from upstream_patch import kernels
from upstream_patch.driver import Kernel
from upstream_patch.errors import MissingTool
from upstream_patch.machine import Gpu as GpuModel
from upstream_patch.machine import Machine
from upstream_patch.measure import peers, torch_device
from upstream_patch.measure.checked import WrongResult
from upstream_patch.problem import Problem
from upstream_patch.records import facts
from upstream_patch.records.schema import PeerBody
from upstream_patch.records.store import RecordError
from upstream_patch.reference import matmul_fp64, round_to, unpack

PEER_US, OURS_US = 12.0, 4.0
PROBLEMS = (Problem(m=1, n=64, k=256), Problem(m=8, n=64, k=256))


class Tensor:
    """A numpy array with the few methods of a tensor that are used; bfloat16 is float32 of rounded values."""

    made: dict[int, Tensor]

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)
        self.made[id(self)] = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.array, name)

    def to(self, kind: str) -> Tensor:
        assert kind == "bfloat16"
        return Tensor(round_to(self.array.astype(np.float64), "bf16").astype(np.float32))

    def float(self) -> Tensor:
        return Tensor(self.array.astype(np.float32))

    def view(self, kind: Any) -> Tensor:
        return Tensor(np.ascontiguousarray(self.array).view(kind))

    def transpose(self, one: int, other: int) -> Tensor:
        return Tensor(self.array.swapaxes(one, other))

    def mean(self, dim: int, keepdim: bool) -> Tensor:
        return Tensor(self.array.mean(axis=dim, keepdims=keepdim))

    def cpu(self) -> Any:
        return types.SimpleNamespace(numpy=lambda: self.array)

    def fill_(self, value: Any) -> None:
        self.array[...] = value

    def data_ptr(self) -> int:
        return id(self)

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor(self.array[index])


def _function(apply: Any) -> Any:
    return lambda self: Tensor(apply(self.array))


def _operator(name: str) -> Any:
    def apply(self: Tensor, other: Any) -> Tensor:
        return Tensor(getattr(self.array, name)(other.array if isinstance(other, Tensor) else other))

    return apply


for _name in ("add", "sub", "mul", "truediv", "lshift", "rshift", "or", "lt", "rmul"):
    setattr(Tensor, f"__{_name}__", _operator(f"__{_name}__"))
for _name, _apply in (("square", np.square), ("sqrt", np.sqrt), ("abs", np.abs), ("contiguous", np.ascontiguousarray)):
    setattr(Tensor, _name, _function(_apply))


class Stream:
    """The one CUDA stream: an operation takes its time at once, or is kept for a graph."""

    def __init__(self) -> None:
        self.now = 0.0
        self.captured: list[float] | None = None

    def spend(self, us: float) -> None:
        if self.captured is None:
            self.now += us
        else:
            self.captured.append(us)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    stream = Stream()
    monkeypatch.setattr(Tensor, "made", {}, raising=False)
    rng = np.random.default_rng(5)

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = stream.now

        def elapsed_time(self, later: Event) -> float:
            return (later.at - self.at) / 1e3

    class Graph:
        nodes: list[float]

        def replay(self) -> None:
            stream.now += 1.0 + sum(self.nodes)

    class Capture:
        def __init__(self, graph: Graph) -> None:
            self.graph = graph

        def __enter__(self) -> None:
            stream.captured = self.graph.nodes = []

        def __exit__(self, *_: Any) -> None:
            stream.captured = None

    def pack(octets: Tensor, inner: int) -> Tensor:
        """Only the order of the halves matters: back to MLX's."""
        assert inner == 8 and octets.array.dtype == np.uint8
        return Tensor((octets.array << 4) | (octets.array >> 4))

    def multiply(x: Tensor, packed: Tensor, group: int, scales_and_zeros: Tensor) -> Tensor:
        stream.spend(PEER_US)
        q = unpack(np.ascontiguousarray(packed.array).view(np.uint32), 4)
        scales, zeros = (scales_and_zeros.array[..., i].T.astype(np.float64) for i in (0, 1))
        y = matmul_fp64(x.array.astype(np.float64), q, scales, zeros - 8 * scales, group)
        return Tensor(y).to("bfloat16")

    cuda = types.SimpleNamespace(
        is_available=lambda: True,
        init=lambda: None,
        current_device=lambda: 0,
        empty_cache=lambda: None,
        synchronize=lambda: None,
        current_stream=lambda: types.SimpleNamespace(cuda_stream=7),
        Event=Event,
        CUDAGraph=Graph,
        graph=Capture,
        _sleep=lambda cycles: stream.spend(cycles / 2000),
    )
    torch = types.ModuleType("torch")
    vars(torch).update(
        __version__="2.99.0",
        cuda=cuda,
        bfloat16="bfloat16",
        uint8=np.uint8,
        int32=np.int32,
        Generator=lambda device: types.SimpleNamespace(manual_seed=lambda seed: seed),
        rand=lambda shape, **_: Tensor(rng.random(shape, np.float32)),
        randn=lambda shape, **_: Tensor(rng.standard_normal(shape, np.float32)),
        randint=lambda low, high, shape, dtype, **_: Tensor(rng.integers(low, high, shape, dtype)),
        empty=lambda shape, **_: Tensor(np.zeros(shape, np.float32)),
        stack=lambda parts, dim: Tensor(np.stack([part.array for part in parts], dim)),
        ops=types.SimpleNamespace(
            aten=types.SimpleNamespace(_convert_weight_to_int4pack=pack, _weight_int4pack_mm=multiply)
        ),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    return stream


class FakeGpu:
    """Launches by what the arguments point at."""

    capability, multiprocessors = (9, 0), 132

    def __init__(self, stream: Stream, wrong: float = 0.0) -> None:
        self.stream, self.wrong = stream, wrong

    def load(self, variant: kernels.Variant, cubin: bytes) -> Kernel:
        assert cubin == b"cubin"
        return Kernel(variant.name, variant.threads, variant.shared_bytes, None)

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], arguments: list[Any], stream: int) -> None:
        assert stream == 7 and kernel.name.startswith("small_m_bf16_b4_g64")
        x, w, scales, biases, out = (Tensor.made[each.value].array for each in arguments[:5])
        m, n, k = len(x), len(w), x.shape[1]
        assert [each.value for each in arguments[5:]] == [m, n, k, k, m * k, n, m * n]
        assert [type(each) for each in arguments[5:]] == [ctypes.c_int] * 3 + [ctypes.c_longlong] * 4
        self.stream.spend(OURS_US)
        q = unpack(w.view(np.uint32), 4)
        wide = [each.astype(np.float64) for each in (x, scales, biases)]
        y = Tensor(matmul_fp64(wide[0], q, wide[1], wide[2], 64)).to("bfloat16").array
        y[0, -1] += self.wrong
        out[...] = y


def run(stream: Stream, **about: Any) -> PeerBody:
    gpu: Any = FakeGpu(stream, **about)
    model = GpuModel(name="NVIDIA H200", vendor="nvidia", multiprocessors=132, l2_bytes=7_000)
    machine = Machine(os="Linux", arch="x86_64", cpu="cpu", cpu_count=2, memory_bytes=1, python="3.12", gpu=model)
    return peers.run_peers(
        PROBLEMS, machine=machine, gpu=gpu, build=lambda variants, arch: dict.fromkeys(variants, b"cubin")
    )


def _write(synthetic: Any, body: PeerBody) -> None:
    """On a machine with the cache of ``run``."""
    gpu = synthetic.machine.gpu.model_copy(update={"l2_bytes": 7_000})
    synthetic.write(body, machine=synthetic.machine.model_copy(update={"gpu": gpu}))


def test_both_are_checked_and_timed_alike(stream: Stream, synthetic: Any) -> None:
    body = run(stream)
    assert [row.problem for row in body.rows] == list(PROBLEMS)
    for row in body.rows:
        assert row.peer_us == pytest.approx([PEER_US] * peers.ROUNDS, rel=0.01)
        assert row.ours_us == pytest.approx([OURS_US] * peers.ROUNDS, rel=0.01)
        assert row.check.passed and row.peer_check.passed
        assert row.copies == 3 * 7_000 // row.problem.packed_bytes + 1
    _write(synthetic, body)
    found = {fact.id: fact for fact in facts.derive(synthetic.load())}
    assert found["peer.test.256x64.b4.g64.bf16.M1.speedup"].value == pytest.approx(PEER_US / OURS_US, rel=0.01)
    assert found["peer.test.256x64.b4.g64.bf16.M8.peer"].value == f"{peers.PEER} 2.99.0"


def test_a_wrong_result_of_ours_gives_no_row(stream: Stream) -> None:
    with pytest.raises(WrongResult, match=r"M1: our result is wrong"):
        run(stream, wrong=1.0)


def test_a_wrong_result_of_the_peer_gives_no_row(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the halves of a byte were taken in the wrong order."""
    monkeypatch.setattr(sys.modules["torch"].ops.aten, "_convert_weight_to_int4pack", lambda octets, _: octets)
    with pytest.raises(WrongResult, match=r"the result of torch\.ops\.aten\._weight_int4pack_mm is wrong"):
        run(stream)


def test_a_wrong_copy_gives_no_row(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    made = peers.make_copy

    def make(torch: Any, problem: Problem, seed: int) -> peers.Copy:
        copy = made(torch, problem, seed)
        return peers.Copy(copy.w, copy.scales, copy.scales, copy.packed, copy.scales_and_zeros) if seed else copy

    monkeypatch.setattr(peers, "make_copy", make)
    with pytest.raises(WrongResult, match="with weight copy 1 our result"):
        run(stream)


def test_a_batch_walks_over_the_copies_and_graphs_are_kept(stream: Stream) -> None:
    launched: list[int] = []
    device = torch_device.TorchDevice(sys.modules["torch"])
    work = torch_device.graph_work(device, launched.append, 5)
    first = work(3)
    assert launched == [0, 1, 2]
    work(3)
    assert launched[3:] == [3, 4, 0]
    for _ in range(3):
        work(3)
    assert work(3) == first and len(launched) == 15


def test_without_torch_or_its_device_there_is_a_way_out(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["torch"].cuda, "is_available", lambda: False)
    with pytest.raises(MissingTool, match="sees no CUDA device"):
        peers.run_peers()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingTool, match="PyTorch is not installed: pip install torch"):
        peers.run_peers()


@pytest.mark.parametrize("name", ["check", "peer_check"])
def test_a_record_takes_no_wrong_row(stream: Stream, synthetic: Any, name: str) -> None:
    body = run(stream)
    wrong = getattr(body.rows[0], name).model_copy(update={"passed": False})
    rows = [body.rows[0].model_copy(update={name: wrong}), *body.rows[1:]]
    with pytest.raises(RecordError, match="a wrong result has no speed"):
        _write(synthetic, body.model_copy(update={"rows": rows}))


def test_a_record_takes_no_hot_row(stream: Stream, synthetic: Any) -> None:
    body = run(stream)
    rows = [row.model_copy(update={"copies": 2}) for row in body.rows]
    with pytest.raises(RecordError, match="cold needs more than 3 x 7000"):
        _write(synthetic, body.model_copy(update={"rows": rows}))


def test_the_shapes_are_those_of_the_issue() -> None:
    wanted = {(4096, 1024), (4096, 4096), (4096, 14336), (14336, 4096), (4096, 128256), (8192, 8192)}
    assert wanted <= {(problem.k, problem.n) for problem in peers.problems()}
    assert {problem.m for problem in peers.problems()} == {1, 8}
