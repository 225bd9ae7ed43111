"""From the profiler's own metric names and units to ours, for one call (which may be several kernels)."""

from __future__ import annotations

from collections.abc import Sequence

from upstream_patch.records.schema import Metric, NcuLaunch

METRICS: dict[str, tuple[str, ...]] = {
    "dram_bytes_read": ("dram__bytes_read.sum",),
    "duration_us": ("gpu__time_duration.sum",),
    "registers": ("launch__registers_per_thread",),
    "dram_pct": (
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    ),
}
"""Our name -> the profiler's names for it, the first one present counts."""
UNITS = {"dram_bytes_read": "byte", "duration_us": "us", "registers": "count", "dram_pct": "percent"}

_SCALE: dict[str, dict[str, float]] = {
    "dram_bytes_read": {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9},
    "duration_us": {
        "ns": 1e-3,
        "nsecond": 1e-3,
        "us": 1,
        "usecond": 1,
        "ms": 1e3,
        "msecond": 1e3,
        "s": 1e6,
        "second": 1e6,
    },
    "registers": {"register/thread": 1, "": 1, "register": 1},
    "dram_pct": {"%": 1, "pct": 1, "percent": 1},
}


def launch_values(launches: Sequence[NcuLaunch]) -> dict[str, float]:
    """Bytes and time summed over the kernels of one call, registers the most of any, DRAM % weighted by time.

    A metric that one of the kernels lacks, or whose unit is not known, is left out: never counted as nothing.
    """
    found = {name: [_value(name, launch.metrics) for launch in launches] for name in METRICS}
    whole = {name: [one for one in values if one is not None] for name, values in found.items()}
    whole = {name: values for name, values in whole.items() if len(values) == len(launches)}
    result: dict[str, float] = {name: sum(whole[name]) for name in ("dram_bytes_read", "duration_us") if name in whole}
    if "registers" in whole:
        result["registers"] = max(whole["registers"])
    if "dram_pct" in whole and sum(times := whole.get("duration_us", [])) > 0:
        result["dram_pct"] = sum(p * t for p, t in zip(whole["dram_pct"], times, strict=True)) / sum(times)
    return result


def _value(name: str, metrics: dict[str, Metric]) -> float | None:
    for key in METRICS[name]:
        if key in metrics and metrics[key].unit in _SCALE[name]:
            return metrics[key].value * _SCALE[name][metrics[key].unit]
    return None
