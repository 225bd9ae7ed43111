"""The draft of the upstream issue: MLX's bug report form, tables filled from facts, prose left as holes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from upstream_patch.draft import holes, managed, tables
from upstream_patch.draft.tables import NO_RECORD, Sheet
from upstream_patch.errors import UserError
from upstream_patch.files import write_text
from upstream_patch.records.facts import MAKES, Fact
from upstream_patch.records.provenance import HOSTS, TEST_HOST

FILE_NAME = "issue_cuda_small_m.md"
REQUIRED = ("title", "rule", "describe", "reproduce", "expected", "context", "disclosure", "links")
"""Holes that must be filled before the text can go anywhere."""
METAL_HOST = "m5"
_FAMILIES = ("small_m", "ncu", "correctness")


def write(out: Path, facts: Sequence[Fact], hosts: Sequence[str] = HOSTS) -> Path:
    """Write ``out/issue_cuda_small_m.md``, or bring the tables of the one there up to date, and return its path.

    What a person wrote between the tables is kept. Raises UserError for a stale fact (with the command that renews
    it), a table that was edited by hand, and facts of the synthetic host unless ``hosts`` names it (only tests do).
    """
    path = out / FILE_NAME
    fresh = render(facts, hosts)
    if path.exists():
        fresh = managed.merge(path.read_text(encoding="utf-8"), fresh, str(path))
    write_text(path, fresh)
    return path


def render(facts: Sequence[Fact], hosts: Sequence[str] = HOSTS) -> str:
    """The draft as it is before a person touched it."""
    present = dict.fromkeys(fact.host for fact in facts)
    if TEST_HOST in present and TEST_HOST not in hosts:
        raise UserError("facts of host 'test' come from synthetic records, no draft may hold them")
    hosts = [*hosts, *(host for host in present if host not in hosts)]
    measured = [host for host in hosts if any(fact.id.startswith(f"small_m.{host}.") for fact in facts)]
    shown = measured or [host for host in hosts if host != METAL_HOST][:1]
    sheet = Sheet(facts)

    def per_host(table: Callable[[Sheet, str], str]) -> str:
        return "\n\n".join(f"#### {host}\n\n{table(sheet, host)}" for host in shown)

    blocks = {
        "stock_time": per_host(tables.stock_time),
        "profiled": per_host(tables.profiled),
        "ours": per_host(tables.ours_against_stock),
        "correctness": per_host(tables.correctness),
        "not_run": _not_run(facts, hosts),
    }
    # After the tables: these name the records that the tables used.
    blocks["machines"] = _machines(sheet)
    blocks["commands"] = _commands(sheet)
    blocks["records"] = _records(sheet)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("issue.md.j2").render(
        blocks={name: managed.block(name, content) for name, content in blocks.items()}, hole=holes.mark
    )


def _not_run(facts: Iterable[Fact], hosts: Sequence[str]) -> str:
    """Hosts, and kinds of evidence, of which there is no record, with the command that would make it."""
    have = {tuple(fact.id.split(".", 2)[:2]) for fact in facts}
    lines = []
    for host in hosts:
        missing = [family for family in _FAMILIES if (family, host) not in have]
        if missing:
            what = "not run" if len(missing) == len(_FAMILIES) else f"no record of {', '.join(missing)}"
            # The verbs below measure the CUDA kernel; on any other machine they would be of no use.
            commands = "" if host == METAL_HOST else f" ({', '.join(f'`{MAKES[family]}`' for family in missing)})"
            lines.append(f"- {host}: {what}{commands}")
    return "\n".join(lines) or "- every host has records"


def _machines(sheet: Sheet) -> str:
    """One line a set of versions that the used records were made with, host by host."""
    lines: dict[str, None] = {}
    for fact in _record_facts(sheet):
        stem = _stem(fact)
        system = f"{sheet.cell(f'{stem}.os')} {sheet.cell(f'{stem}.arch')}"
        parts = [
            f"OS Version: {system}",
            f"Version: mlx {sheet.cell(f'{stem}.mlx')}",
            f"GPU {sheet.cell(f'{stem}.gpu')}",
        ]
        for name, label in (("driver", "driver"), ("cuda", "CUDA runtime")):
            if sheet.get(f"{stem}.{name}"):  # Metal has neither
                parts.append(f"{label} {sheet.cell(f'{stem}.{name}')}")
        lines[f" - {fact.host}: {'; '.join(parts)}"] = None
    return "\n".join(lines) or f" - OS Version: {NO_RECORD}\n - Version: {NO_RECORD}"


def _commands(sheet: Sheet) -> str:
    lines = dict.fromkeys(f"- {fact.host}: `{fact.command}`" for fact in _record_facts(sheet))
    return "\n".join(lines) or "\n".join(f"- {NO_RECORD}: `{command}`" for command in dict.fromkeys(MAKES.values()))


def _records(sheet: Sheet) -> str:
    """One table a host: the record, its sha256, and the hash of our kernel in it."""
    by_host: dict[str, list[list[str]]] = {}
    for fact in _record_facts(sheet):
        name = sheet.cell(f"{_stem(fact)}.kernel_hash")
        by_host.setdefault(fact.host, []).append([f"`{fact.record_path}`", f"`{fact.sha256}`", f"`{name}`"])
    parts = [
        f"#### {host}\n\n{tables.markdown(['record', 'sha256', 'kernel hash'], rows)}" for host, rows in by_host.items()
    ]
    return "\n\n".join(parts) or NO_RECORD


def _record_facts(sheet: Sheet) -> list[Fact]:
    """One fact of every record that the tables used, oldest record first."""
    one = {fact.record_path: fact for fact in sheet.used.values()}
    return sorted(one.values(), key=lambda fact: (fact.host, fact.created, fact.record_path))


def _stem(fact: Fact) -> str:
    return f"record.{Path(fact.record_path).stem}"
