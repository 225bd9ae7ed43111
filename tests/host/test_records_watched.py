"""What the driver said while a row was timed is in the record, and a row that was throttled or shared says nothing."""

from __future__ import annotations

import os
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.measure import graphs
from upstream_patch.measure.conditions import watching
from upstream_patch.records import facts, provenance
from upstream_patch.records.stats import Judgement, Verdict
from upstream_patch.records.store import verify
from upstream_patch.records.watched import Watched, judged, trouble

QUIET = Watched(readings=13, seconds=2.0, throttled_ms={"power": 0.0}, sm_mhz=(1965, 1980), others=0)


@dataclass
class Nvml(types.ModuleType):
    """A GPU whose every reading is the next of a list, its last one for ever."""

    NVMLError = type("NVMLError", (Exception,), {})
    NVML_CLOCK_SM = 1

    clocks: list[int] = field(default_factory=lambda: [1980])
    masks: list[int] = field(default_factory=lambda: [0])
    power_ns: list[int] = field(default_factory=lambda: [0])
    pids: list[int] = field(default_factory=list)
    open: int = 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def __getattr__(self, name: str) -> Any:
        def answer(_: Any, which: int = -1) -> Any:
            if name == "nvmlDeviceGetClockInfo":
                return following(self.clocks)
            if name == "nvmlDeviceGetCurrentClocksThrottleReasons":
                return following(self.masks)
            if name == "nvmlDeviceGetComputeRunningProcesses":
                return [types.SimpleNamespace(pid=pid) for pid in (os.getpid(), *self.pids)]
            if name == "nvmlDeviceGetViolationStatus" and which == 0:
                return types.SimpleNamespace(violationTime=following(self.power_ns))
            if name == "nvmlDeviceGetHandleByIndex":
                return "gpu"
            raise self.NVMLError("Not Supported")

        return answer


def following(values: list[int]) -> int:
    return values.pop(0) if len(values) > 1 else values[0]


def watched(monkeypatch: pytest.MonkeyPatch, rounds: int = 3, **about: Any) -> Watched | None:
    nvml = Nvml(**about)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    ticks: list[int] = []
    with watching(lambda: ticks.append(1)) as watch:
        for _ in range(rounds):
            watch.tick()
    assert (len(ticks), nvml.open) == (rounds, 0)
    return watch.found()


def test_a_reading_before_the_first_round_and_after_each(monkeypatch: pytest.MonkeyPatch) -> None:
    found = watched(monkeypatch, clocks=[1980, 1965, 1200, 1980], masks=[1, 4, 5, 0x40])
    assert found is not None
    assert (found.readings, found.sm_mhz, found.others) == (4, (1200, 1980), 0)
    assert found.reasons == ["software power cap", "hardware thermal"]  # and idle is no news
    assert found.throttled_ms == {"power": 0.0}  # what else NVML counts, this GPU does not
    found = watched(monkeypatch, power_ns=[7_000_000, 7_000_000, 9_500_000], pids=[-1, -2])
    assert found is not None and (found.throttled_ms, found.others) == ({"power": 2.5}, 2)


def test_nothing_is_read_without_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    ticks: list[int] = []
    with watching(lambda: ticks.append(1)) as watch:
        watch.tick()
    assert (watch.found(), ticks) == (None, [1])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, ""),
        ({"throttled_ms": {"thermal": 20.0}, "reasons": ["application clocks"]}, ""),
        ({"throttled_ms": {"power": 0.0, "thermal": 21.0}}, "throttled by thermal for 21 of 2000 ms"),
        ({"throttled_ms": {"power": 2000.0, "reliability": 9.0}, "reasons": ["software power cap"]}, ""),
        ({"reasons": ["hardware thermal"]}, "clocks held down: hardware thermal"),
        ({"sm_mhz": (1800, 1980)}, "the SM clock moved between 1800 and 1980 MHz"),
        ({"others": 1}, "1 other program on the GPU"),
        ({"others": 2, "reasons": ["software thermal"]}, "clocks held down: software thermal; 2 other programs on"),
    ],
)
def test_what_spoils_a_row(changes: dict[str, Any], says: str) -> None:
    found = QUIET.model_copy(update=changes)
    assert trouble(found).startswith(says) and bool(trouble(found)) == bool(says)
    clear = Judgement(Verdict.FASTER, "clear")
    assert judged(clear, found) == (clear if not says else Judgement(Verdict.UNCLEAR, trouble(found)))
    assert judged(clear, None) == clear  # older records


def test_a_throttled_row_is_unclear_with_its_reason(synthetic: Any) -> None:
    hot = QUIET.model_copy(update={"throttled_ms": {"thermal": 500.0}})
    rows = [synthetic.bench_row(7, watched=QUIET), synthetic.bench_row(8, watched=hot), synthetic.bench_row(16)]
    synthetic.write(synthetic.bench(rows))
    found = {fact.id: fact.value for fact in facts.derive(synthetic.load(), lambda kernel: "ab" * 32)}
    stem = "small_m.test.4096x4096.b4.g64.bf16.M"
    assert [found[f"{stem}{m}.verdict"] for m in (7, 8, 16)] == ["FASTER", "UNCLEAR", "FASTER"]
    assert found[f"{stem}8.verdict_reason"] == "throttled by thermal for 500 of 2000 ms"


def test_every_record_has_the_variables_and_mlx_s_library(synthetic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_MAX_OPS_PER_BUFFER", "4096")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("UNRELATED", "1")
    synthetic.write(synthetic.bench([]))
    (loaded,) = synthetic.load()
    assert loaded.record.environment.items() >= {("MLX_MAX_OPS_PER_BUFFER", "4096"), ("CUDA_VISIBLE_DEVICES", "0")}
    assert all(name.startswith(("MLX_", "CUDA_")) for name in loaded.record.environment)
    assert verify(synthetic.root) == []


def test_the_library_is_named_by_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "lib" / "libmlx.so"
    library.parent.mkdir()
    spec = types.SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(provenance, "find_spec", lambda _: spec)
    assert provenance.LIBRARY not in provenance.versions()
    library.write_bytes(b"")
    assert provenance.versions()[provenance.LIBRARY].startswith("e3b0c442")
    library.write_bytes(b"1")
    os.utime(library, (1, 1))
    assert provenance.versions()[provenance.LIBRARY].startswith("6b86b273")


def test_a_child_does_not_get_the_limits_that_this_process_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    raised, given = graphs.LIMITS
    monkeypatch.setattr(graphs, "_raised", set())
    monkeypatch.delenv(raised, raising=False)
    monkeypatch.setenv(given, "7")
    graphs.one_graph_a_sample()
    assert (os.environ[raised], os.environ[given]) == (graphs.LIMITS[raised], "7")
    assert raised not in graphs.as_given() and graphs.as_given()[given] == "7"
