"""Facts of two machines, and what the claim check says of a text beside them."""

from __future__ import annotations

from datetime import UTC, datetime

from upstream_patch.draft import claims
from upstream_patch.records.facts import Fact

STEM = "small_m.h200.4096x4096.b4.g64.bf16"
WHEEL = "wheel.h200.14336x4096.b4.g64.bf16"


def fact(fact_id: str, value: float | str, unit: str, stale: bool = False) -> Fact:
    host = "h200" if "h200" in fact_id else "gb10"
    made = datetime(2026, 11, 1, tzinfo=UTC)
    return Fact(fact_id, value, unit, host, f"evidence/{host}.json", "0" * 64, stale, made, "nox -s bench")


FACTS = [
    fact(f"{STEM}.M1.stock_us", 9.31, "us"),
    fact(f"{STEM}.M7.stock_us", 63.14, "us"),
    fact(f"{STEM}.M7.ours_us", 4.56, "us"),
    fact(f"{STEM}.M7.speedup", 13.84, "ratio"),
    fact(f"{STEM}.M7.read_fraction", 0.482, "ratio"),
    fact("small_m.h200.4096x14336.b4.g64.bf16.M7.stock_us", 220.2, "us"),
    fact("small_m.h200.4096x14336.b4.g64.bf16.M8.speedup", 0.8, "ratio"),
    fact("ncu.h200.4096x4096.b4.g64.bf16.M7.stock.dram_bytes_read", 66_060_288.0, "byte"),
    fact("probe.h200.read_gbps", 4379.0, "GB/s"),
    fact("sanitizer.h200.memcheck.launches", 1225, "count"),
    fact("correctness.h200.bf16.max_norm_error", 0.00235535, "norm"),
    fact("decode.gb10.llama-3.1-8b.B4.ours_tok_s", 74.21, "tokens/s"),
    fact("decode.h200.llama-3.1-8b.B8.ours_ms_step", 3.81, "ms"),
    fact(f"{STEM.replace('h200', 'gb10')}.M2.ours_us", 111.0, "us", stale=True),
    fact("record.h200-1.gpu", "NVIDIA H200", "text"),
    fact(f"{STEM}.M7.verdict", "FASTER", "text"),
    fact("small_m.h200.4096x14336.b4.g64.bf16.M8.verdict", "SLOWER", "text"),
    fact(f"{STEM}.M7.hot.stock_us", 61.5, "us"),
    fact("small_m.h200.4096x128256.b4.g64.bf16.M7.speedup", 26.8, "ratio"),
    fact("small_m.h200.4096x14336.b8.g64.bf16.M8.stock_us", 850.1, "us"),
    fact("peer.h200.4096x4096.b4.g64.bf16.M1.peer_us", 14.9, "us"),
    fact("peer.h200.4096x4096.b4.g64.bf16.M1.speedup", 2.01, "ratio"),
    fact("host.h200.build.ours_us", 2.92, "us"),
    fact("sanitizer.h200.memcheck.plants_found", 5, "count"),
    fact("sanitizer.h200.racecheck.plants_found", 7, "count"),
    fact("decode.h200.llama-3.1-8b.B8.stock_tok_s", 264.3, "tokens/s"),
    fact("decode.gb10.llama-3.1-8b.B8.stock_tok_s", 99.1, "tokens/s"),
    fact("decode.h200.llama-3.1-8b.B8.speedup_over_folded", 1.7, "ratio"),
    fact(f"{WHEEL}.M5.stock_us", 157.3, "us"),
    fact(f"{WHEEL}.M5.wheel_us", 10.41, "us"),
    fact(f"{WHEEL}.M5.runtime_us", 10.55, "us"),
    fact(f"{WHEEL}.M5.wheel_to_runtime", 0.987, "ratio"),
    fact("wheel.h200.decode.b4.wheel_step_us", 5053.6, "us"),
    fact("wheel.h200.decode.b4.stock_step_us", 18013.0, "us"),
    fact("wheel.h200.cases", 344, "count"),
    fact("wheel.h200.most_wheel_to_runtime", 1.009, "ratio"),
]


def listed(prose: str, device: str = "") -> list[str]:
    """Remarks on it, in order."""
    return [str(remark) for remark in claims.check(prose, FACTS, device)]
