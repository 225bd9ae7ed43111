"""The draft of the upstream issue: MLX's bug report form, tables filled from facts, prose left as holes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from upstream_patch.draft import holes, managed, tables
from upstream_patch.draft.holes import Hole
from upstream_patch.draft.tables import NO_RECORD, Sheet
from upstream_patch.errors import UserError
from upstream_patch.files import write_text
from upstream_patch.records.facts import MAKES, Fact
from upstream_patch.records.provenance import HOSTS, TEST_HOST

FILE_NAME = "issue_cuda_small_m.md"
REQUIRED = ("title", "rule", "describe", "reproduce", "expected", "context", "disclosure", "links")
"""Holes that must be filled before the text can go anywhere."""
CUDA_HOSTS = tuple(host for host, product in HOSTS.items() if product.startswith("NVIDIA"))


def write(out: Path, facts: Sequence[Fact], hosts: Sequence[str] = CUDA_HOSTS) -> Path:
    """Write ``out/issue_cuda_small_m.md``, or bring the tables of the one there up to date, and return its path.

    The issue is about CUDA: of the facts, those of machines with an NVIDIA GPU are used. What a person wrote between
    the tables is kept, byte for byte. Raises UserError for a stale fact (with the command that renews it), a table that
    was edited by hand or is gone, and facts of the synthetic host unless ``hosts`` names it (only tests do).
    """
    path = out / FILE_NAME
    fresh = render(facts, hosts)
    if path.exists():
        fresh = managed.merge(managed.read(path), fresh, str(path))
    write_text(path, fresh)
    return path


def open_holes(path: Path) -> list[Hole]:
    """The places of a written draft where a person's words are still missing. Raises UserError if it is not UTF-8."""
    return holes.open_holes(managed.read(path), REQUIRED)


def render(facts: Sequence[Fact], hosts: Sequence[str] = CUDA_HOSTS) -> str:
    """The draft as it is before a person touched it."""
    if TEST_HOST not in hosts and any(fact.host == TEST_HOST for fact in facts):
        raise UserError("facts of host 'test' come from synthetic records, no draft may hold them")
    nvidia = dict.fromkeys(fact.host for fact in facts if _names_nvidia(fact))
    facts = [fact for fact in facts if fact.host in nvidia]
    hosts = [*hosts, *(host for host in nvidia if host not in hosts)]
    have = {tuple(fact.id.split(".", 2)[:2]) for fact in facts}
    sheet = Sheet(facts)

    def per_host(family: str, table: Callable[[Sheet, str], str]) -> str:
        shown = [host for host in hosts if (family, host) in have]
        return "\n\n".join(f"#### {host}\n\n{table(sheet, host)}" for host in shown) or NO_RECORD

    blocks = {
        "stock_time": per_host("small_m", tables.stock_time),
        "profiled": per_host("ncu", tables.profiled),
        "ours": per_host("small_m", tables.ours_against_stock),
        "correctness": per_host("correctness", tables.correctness),
        "not_run": _not_run(have, hosts),
    }
    # After the tables: these name the records that the tables used.
    blocks["machines"] = _machines(sheet)
    # Its heading is in the block: outside, it would look like a person's answer to the hole above it.
    blocks["commands"] = f"Commands that made the records:\n\n{_commands(sheet)}"
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


def _names_nvidia(fact: Fact) -> bool:
    return fact.id.startswith("record.") and fact.id.endswith(".vendor") and str(fact.value).lower() == "nvidia"


def _not_run(have: Collection[tuple[str, ...]], hosts: Sequence[str]) -> str:
    """Hosts, and families of facts, of which there is no record, with the command that would make it."""
    lines = []
    for host in hosts:
        missing = [family for family in MAKES if (family, host) not in have]
        if missing:
            what = "not run" if len(missing) == len(MAKES) else f"no record of {', '.join(missing)}"
            lines.append(f"- {host}: {what} ({', '.join(f'`{MAKES[family]}`' for family in missing)})")
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
