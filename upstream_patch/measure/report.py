"""A benchmark at a glance, in the terminal."""

from __future__ import annotations

from statistics import median

from rich.table import Table

from upstream_patch.records.schema import BenchBody
from upstream_patch.records.stats import Verdict, geometric_mean_ratios, verdict

_STYLE = {Verdict.FASTER: "green", Verdict.SLOWER: "red", Verdict.SAME: "", Verdict.UNCLEAR: "yellow"}


def table(body: BenchBody) -> Table:
    """One line a row: medians in us, the paired ratio with its interval, the share of the read probe, the verdict."""
    probe = median(body.probe_gbps)
    shown = Table(
        title=f"{body.suite}: read probe {probe:.0f} GB/s, launch floor {median(body.launch_floor_us):.2f} us",
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="dim",
    )
    shown.add_column("problem", no_wrap=True)
    for column in ("stock us", "ours us", "speedup", "of probe", "norm error"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("verdict", no_wrap=True)
    if not body.rows:
        return shown
    ratios = geometric_mean_ratios([(row.stock_us, row.ours_us) for row in body.rows])
    noises = geometric_mean_ratios([(row.stock_us, row.aa_us) for row in body.rows])
    for row, ratio, noise in zip(body.rows, ratios, noises, strict=True):
        said = verdict(ratio, noise, len(row.stock_us)).verdict
        ours = median(row.ours_us)
        share = row.problem.read_fraction(ours, probe)
        colour = _STYLE[said]
        shown.add_row(
            row.fact_stem,
            f"{median(row.stock_us):.2f}",
            f"{ours:.2f}",
            f"{ratio.value:.2f} \\[{ratio.low:.2f}, {ratio.high:.2f}]",
            f"{share:.0%}" if row.protocol.cache == "cold" else "-",  # hot weights do not come from memory
            f"{row.check.norm_error:.1e}",
            f"[{colour}]{said}[/]" if colour else str(said),
        )
    return shown
