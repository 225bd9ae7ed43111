"""Tables of the series in MLX: its host code in a released wheel, and MLX built from source with it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from upstream_patch.problem import parse_problem
from upstream_patch.report.cells import Book, Cell, Group, Row, Table

_BUILT = ("new_tests", "proven", "known", "broken", "matrix_wrong")


def series_tables(book: Book) -> Iterator[Table]:
    """Without a row where nothing of it was run."""
    yield _cases(book)
    yield _rows(book)
    yield _decoded(book)
    yield _built(book)


def _cases(book: Book) -> Table:
    stem = f"wheel.{book.host}"
    names = ("cases", "planned", "passed")
    row = Row("matrix", tuple(book.cell(f"{stem}.{name}", ",.0f") for name in names))
    return Table(
        anchor=f"{book.host}-wheel-cases",
        title="The series' host code in a released MLX: correctness",
        about="Cases of the matrix through MLX's own operation with the host code hooked in, each result bit for bit "
        "that of the runtime delivery. Planned: cases of the whole matrix; fewer run are every so many-th.",
        columns=("", "run", "planned", "right"),
        groups=(Group("", (row,)),) if f"{stem}.cases" in book.facts else (),
    )


def _rows(book: Book) -> Table:
    found = [
        (parse_problem(stem.removeprefix(f"wheel.{book.host}.")), stem) for stem in book.stems("wheel", ".wheel_us")
    ]
    found.sort(
        key=lambda item: (
            item[0].weight_bytes,
            item[0].k,
            item[0].id.rpartition(".M")[0],
            item[0].m,
            item[0].layout != "mk",
        )
    )
    groups = []
    for title, members in groupby(found, key=lambda item: item[0].id.partition(".M")[0]):
        rows = []
        for problem, stem in members:
            times = [book.cell(f"{stem}.{arm}_us", ",.2f") for arm in ("stock", "runtime", "wheel")]
            over = book.ratio(stem, name="wheel_to_runtime", digits=".3f")
            layout = "" if problem.layout == "mk" else ", x is [M, 1, K]"
            rows.append(Row(f"{problem.m}{layout}", (*times, book.ratio(stem), book.verdict(f"{stem}.verdict"), over)))
        groups.append(Group(title.replace("x", " x ", 1).replace(".", ", ", 1), tuple(rows)))
    return Table(
        anchor=f"{book.host}-wheel",
        title="The series' host code in a released MLX: times",
        about="Cold weights, independent calls; medians, us. Runtime: the kernel as this package delivers it. Under a "
        "ratio: its 95% interval. The noise of the verdict is the runtime delivery against itself.",
        columns=("M", "stock, us", "runtime, us", "wheel, us", "stock / wheel", "verdict", "wheel / runtime"),
        groups=tuple(groups),
    )


def _decoded(book: Book) -> Table:
    rows = []
    for stem in book.stems("wheel", ".same_as_runtime"):
        same = book.cell(f"{stem}.same_as_runtime", ".0f")
        told = same if same.tone else Cell("yes" if same.text == "1" else "NO", same.href, same.title)
        times = [book.cell(f"{stem}.{arm}_step_us", ",.2f", 1e-3) for arm in ("stock", "wheel", "runtime")]
        rows.append(Row(stem.rpartition(".b")[2], (*times, told)))
    return Table(
        anchor=f"{book.host}-wheel-decode",
        title="The series' host code in a released MLX: decode",
        about="Milliseconds a step of one program that knows nothing of this package, in processes of their own that "
        "were run one after the other: not paired, so no ratio stands here. The shape of Llama-3.1-8B.",
        columns=("B", "stock", "library preloaded", "install()", "same tokens"),
        groups=(Group("", tuple(rows)),) if rows else (),
    )


def _built(book: Book) -> Table:
    rows = tuple(
        Row(stem.rpartition(".")[2], tuple(book.cell(f"{stem}.{name}", ",.0f") for name in _BUILT))
        for stem in book.stems("build", ".proven")
    )
    return Table(
        anchor=f"{book.host}-build",
        title="MLX built from source, as it is and with the series",
        about="MLX's own tests. Proven: new tests that fail on the base and pass with the series; known: failures of "
        "the base; broken: failures of the series alone; matrix: complaints of our own cases about the built MLX.",
        columns=("backend", "new tests", "proven", "known", "broken", "matrix"),
        groups=(Group("", rows),) if rows else (),
    )
