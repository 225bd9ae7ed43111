"""A decode run at a glance, in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.table import Table

from upstream_patch.records.decode_schema import DecodeBody, DecodeTrace

_SHOWN = 12
"""Kernels of a trace that are shown."""


def table(body: DecodeBody) -> Table:
    """One line an arm: ms a step and tokens a second of all sequences; ms of the matmuls alone, of the host's part with
    its waits for room in MLX's queue, and of a step of mlx-lm's generator."""
    shown = _plain(f"decode: read probe {median(body.probe_gbps):.0f} GB/s, mlx-lm {body.mlx_lm}")
    shown.add_column("model, B", no_wrap=True)
    for column in ("arm", "ms", "tok/s", "x stock", "matmuls", "host+wait", "generator"):
        shown.add_column(column, justify="right", no_wrap=True)
    for row in body.rows:
        stock = median(row.stock.step_ms)
        for name, arm in row.arms.items():
            ms = median(arm.step_ms)
            shown.add_row(
                row.fact_stem if name == "stock" else "",
                name,
                f"{ms:.2f}",
                f"{row.batch / ms * 1e3:.0f}",
                f"{stock / ms:.2f}",
                f"{median(arm.matmul_ms):.2f}",
                f"{median(arm.host_ms):.2f}",
                f"{median(arm.generator_ms):.2f}" if arm.generator_ms else "-",
            )
    return shown


def kernels(traces: Sequence[DecodeTrace]) -> Table:
    """The kernels that take longest in a traced step."""
    shown = _plain("kernels of a step, traced (us together, launches)")
    shown.add_column("model, B, arm", no_wrap=True)
    for column in ("us", "launches"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("kernel", overflow="ellipsis", no_wrap=True)
    for trace in traces:
        name = f"{trace.model}.B{trace.batch} {trace.arm}"
        shown.add_row(name, f"{trace.span_us:.0f}", "", "first kernel's start to the last one's end")
        for one in trace.kernels[:_SHOWN]:
            shown.add_row("", f"{one.us:.0f}", f"{one.launches:g}", one.kernel)
    return shown


def _plain(title: str) -> Table:
    return Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
