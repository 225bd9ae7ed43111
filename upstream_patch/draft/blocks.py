"""The managed blocks of a draft: tables and lists from facts and from what other rooms hand over, never a sentence."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path

from upstream_patch.draft import inputs, metal_tables, tables
from upstream_patch.draft.contributions import CUDA, Contribution
from upstream_patch.draft.inputs import Filed, SeriesProof
from upstream_patch.draft.tables import NO_CONDITIONS, NO_RECORD, Sheet
from upstream_patch.problem import Problem
from upstream_patch.records.decode_facts import conditions
from upstream_patch.records.facts import Fact

MISSING = "TODO(record)"
"""Stands where a number or a link is missing that no person can write: no gate lets it through."""
_BEARING = 40
"""Facts that a hole lists; a person sees the others in the tables."""
_DEVICE_MODEL = "llama-3.1-8b"
_DEVICE_ROWS = (1, 2, 4, 7, 8, 16)
_DEVICE_BATCHES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Given:
    """What a draft is made from."""

    facts: Sequence[Fact]
    """Of machines of the contribution's vendor."""
    hosts: Sequence[str]
    """In the order of the tables; those without facts are listed as not run."""
    series: SeriesProof | None = None
    filed: Filed = field(default_factory=Filed)
    device: str = inputs.Named().host
    """The host that a text about one machine names."""
    contribution: Contribution = CUDA

    @cached_property
    def sheet(self) -> Sheet:
        """One for the whole draft: it remembers which facts the draft holds."""
        return Sheet(self.facts)

    @cached_property
    def have(self) -> frozenset[tuple[str, ...]]:
        """(family, host) of every fact."""
        return frozenset(tuple(fact.id.split(".", 2)[:2]) for fact in self.facts)


def _per_host(family: str, table: Callable[[Sheet, str], str]) -> Callable[[Given], str]:
    def block(given: Given) -> str:
        shown = {host: table(given.sheet, host) for host in given.hosts if (family, host) in given.have}
        if all(text == NO_RECORD for text in shown.values()):
            return _none(given, family)
        return "\n\n".join(f"#### {host}\n\n{text}" for host, text in shown.items())

    return block


def _none(given: Given, family: str) -> str:
    """In place of a table; with ``TODO(record)`` where a draft must not go out without it."""
    about = given.contribution
    if family not in about.needed:
        return NO_RECORD
    ran = any(name in about.needed for name, _ in given.have)
    return f"{MISSING}: {f'no record of {family}' if ran else about.unseen}: `{about.makes[family]}`"


def _not_run(given: Given) -> str:
    """Hosts, and families of facts, of which there is no record, with the command that would make it."""
    lines, makes = [], given.contribution.makes
    for host in given.hosts:
        missing = [family for family in makes if (family, host) not in given.have]
        if missing:
            what = "not run" if len(missing) == len(makes) else f"no record of {', '.join(missing)}"
            commands = dict.fromkeys(f"`{makes[family]}`" for family in missing)
            lines.append(f"- {host}: {what} ({', '.join(commands)})")
    return "\n".join(lines) or "- every host has records"


def _machines(given: Given) -> str:
    """One line a set of versions that the used records were made with, host by host."""
    sheet, lines = given.sheet, dict[str, None]()
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


def _commands(given: Given) -> str:
    """With their heading: outside the block, it would look like a person's answer to the hole above it."""
    lines = dict.fromkeys(f"- {fact.host}: `{fact.command}`" for fact in _record_facts(given.sheet))
    none = (f"- {NO_RECORD}: `{command}`" for command in dict.fromkeys(given.contribution.makes.values()))
    return "Commands that made the records:\n\n" + "\n".join(lines or none)


def _records(given: Given) -> str:
    """One table a host: the record, its sha256, and the hash of our kernel in it."""
    by_host: dict[str, list[list[str]]] = {}
    for fact in _record_facts(given.sheet):
        name = given.sheet.cell(f"{_stem(fact)}.kernel_hash")
        by_host.setdefault(fact.host, []).append([f"`{fact.record_path}`", f"`{fact.sha256}`", f"`{name}`"])
    parts = [
        f"#### {host}\n\n{tables.markdown(['record', 'sha256', 'kernel hash'], rows)}" for host, rows in by_host.items()
    ]
    return "\n\n".join(parts) or NO_RECORD


def _script(given: Given) -> str:
    return f"```python\n{script(given.contribution).rstrip()}\n```"


def script(about: Contribution = CUDA) -> str:
    """The reproduction: one file that needs MLX only."""
    name = f"templates/{about.key('reproduce')}.py.txt"
    return resources.files("upstream_patch.draft").joinpath(name).read_text(encoding="utf-8")


def _tests(given: Given) -> str:
    """The new tests on the base and with the series."""
    if given.series is None:
        return f"{MISSING}: no MLX was built from source with the series"
    given.sheet.get(f"record.{Path(given.series.record).stem}.command")  # so that the lists of records have it
    base, patched = given.series.base, given.series.patched
    body = [
        [f"`{name}`", *("failed" if name in run.failed else "passed" for run in (base, patched))]
        for name in given.series.new_tests
    ]
    runs = f"base {given.series.base_commit}: `{base.command}`\n\nseries on it: `{patched.command}`"
    return f"{tables.markdown(['new test', 'base', 'series'], body)}\n\n{runs}"


def _issue(given: Given) -> str:
    return f"Refs #{given.filed.issue.number}" if given.filed.issue else f"{MISSING}: no issue is filed"


def _filed(given: Given) -> str:
    return "\n".join(
        f"- {what}: {link.url if link else MISSING + ': not filed'}"
        for what, link in (("issue", given.filed.issue), ("pull request", given.filed.pr))
    )


def _device(given: Given) -> str:
    """What the named machine was measured at; ``TODO(record)`` with the fact's id where it was not."""
    host, sheet, runs = given.device, given.sheet, dict[str, None]()

    def cell(fact_id: str) -> str:
        if not sheet.get(fact_id):
            return f"{MISSING} {fact_id}"
        runs[sheet.run_of(fact_id)] = None
        return sheet.cell(fact_id)

    rows = {batch: f"decode.{host}.{_DEVICE_MODEL}.B{batch}" for batch in _DEVICE_BATCHES}
    decode = [[str(b), *(cell(f"{stem}.{arm}_tok_s") for arm in ("stock", "ours"))] for b, stem in rows.items()]
    decoded = conditions(rows, sheet.value) or f"{MISSING}: {NO_CONDITIONS}"
    stems = {m: f"small_m.{host}.{Problem(m=m, n=14336, k=4096).id}" for m in _DEVICE_ROWS}
    matmul = [[str(m), *(cell(f"{stem}.{arm}_us") for arm in ("stock", "ours"))] for m, stem in stems.items()]
    about = [f"{sheet.cell(f'record.{run}.gpu')}, MLX {sheet.cell(f'record.{run}.mlx')}, record {run}" for run in runs]
    return "\n\n".join(
        [
            "; ".join(about) or f"{MISSING} of {host}",
            f"Decode of {_DEVICE_MODEL}: {decoded}",
            tables.markdown(["clients B", "stock, tok/s", "ours, tok/s"], decode),
            tables.markdown(["rows M (4096 x 14336, 4-bit)", "stock, us", "ours, us"], matmul),
        ]
    )


def bearing(given: Given, patterns: Sequence[str]) -> str:
    """A comment with the facts that bear on a hole: ``fnmatch`` patterns of ids, ``=VALUE`` behind one to choose."""
    found = []
    for pattern in patterns:
        wanted, _, value = pattern.partition("=")
        found += [
            fact for fact in given.facts if fnmatch.fnmatchcase(fact.id, wanted) and value in ("", str(fact.value))
        ]
    lines = [f"{fact.id} = {_valued(fact)}{', STALE' if fact.stale else ''}" for fact in found[:_BEARING]]
    if len(found) > _BEARING:
        lines.append(f"and {len(found) - _BEARING} more: upstream-patch facts")
    return "\n".join(["<!-- facts that bear on it:", *(lines or [NO_RECORD]), "-->"])


def _valued(fact: Fact) -> str:
    return fact.value if isinstance(fact.value, str) else f"{fact.value:.6g} {fact.unit}"


BLOCKS: Mapping[str, Callable[[Given], str]] = {
    "stock_time": _per_host("small_m", tables.stock_time),
    "profiled": _per_host("ncu", tables.profiled),
    "ours": _per_host("small_m", tables.ours_against_stock),
    "decode": _per_host("decode", tables.decode),
    "operators": _per_host("nax", metal_tables.operators),
    "models": _per_host("forward", metal_tables.models),
    "correctness": _per_host("correctness", tables.correctness),
    "not_run": _not_run,
    "script": _script,
    "tests": _tests,
    "issue": _issue,
    "filed": _filed,
    "device": _device,
    # After the tables: these name the records that the tables used.
    "machines": _machines,
    "commands": _commands,
    "records": _records,
}
"""Block -> its content, in the order in which they are filled."""


def _record_facts(sheet: Sheet) -> list[Fact]:
    """One fact of every record that the tables used, oldest record first."""
    one = {fact.record_path: fact for fact in sheet.used.values()}
    return sorted(one.values(), key=lambda fact: (fact.host, fact.created, fact.record_path))


def _stem(fact: Fact) -> str:
    return f"record.{Path(fact.record_path).stem}"
