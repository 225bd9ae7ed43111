"""The drafts: which file, which blocks from facts, which holes for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from upstream_patch.draft import blocks, holes, inputs, managed
from upstream_patch.draft.blocks import MISSING, Given
from upstream_patch.draft.contributions import CUDA, METAL, Contribution
from upstream_patch.draft.holes import Hole
from upstream_patch.errors import UserError
from upstream_patch.files import write_text
from upstream_patch.records.facts import Fact
from upstream_patch.records.provenance import TEST_HOST


@dataclass(frozen=True)
class Document:
    """One draft. Its template under ``templates/`` has the name of the draft, as its contribution spells it."""

    name: str
    file: str
    blocks: tuple[str, ...]
    required: tuple[str, ...]
    """Holes that must be filled before the text can go anywhere."""
    prefix: str = ""
    """Of the title, as upstream's form has it."""
    contribution: Contribution = CUDA

    def write(self, work: Path, facts: Sequence[Fact], hosts: Sequence[str] = ()) -> Path:
        """Write ``work/<file>``, or bring the blocks of the one there up to date, and return its path.

        Of the facts, those of machines of the contribution's vendor are used. What a person wrote between the blocks is
        kept, byte for byte. Raises UserError for a stale fact (with the command that renews it), a block that was
        edited by hand or is gone, and facts of the synthetic host unless ``hosts`` names it (only tests do).
        """
        path = work / self.file
        fresh = self.render(facts, hosts, work)
        if path.exists():
            fresh = managed.merge(managed.read(path), fresh, str(path))
        write_text(path, fresh)
        return path

    def render(
        self,
        facts: Sequence[Fact],
        hosts: Sequence[str] = (),
        work: Path | None = None,
    ) -> str:
        """The draft as it is before a person touched it. ``work`` has the inputs of other rooms."""
        given = _given(self.contribution, facts, hosts or self.contribution.hosts, work)
        filled = {name: managed.block(name, make(given)) for name, make in blocks.BLOCKS.items() if name in self.blocks}
        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent / "templates"),
            undefined=StrictUndefined,
            autoescape=False,
            trim_blocks=True,
            keep_trailing_newline=True,
        )

        def hole(hole_id: str, hint: str, *patterns: str) -> str:
            bearing = [managed.block(f"for_{hole_id}", blocks.bearing(given, patterns))] if patterns else []
            return "\n".join([holes.mark(hole_id, hint), *bearing, holes.todo(hole_id)])

        template = environment.get_template(f"{self.contribution.key(self.name)}.md.j2")
        return template.render(blocks=filled, hole=hole, device=given.device)

    def about(self, work: Path) -> str:
        """The host that all of it is about; empty where it is about several."""
        return (inputs.read(work, "device", inputs.Named) or inputs.Named()).host if "device" in self.blocks else ""

    def title(self, text: str) -> str:
        """What a person wrote as the title, in one line, led by ``prefix`` once; empty where nothing is there."""
        words = " ".join(holes.answer(text, "title").split())
        return f"{self.prefix} {words}".strip() if words else ""

    def still_open(self, path: Path) -> str:
        """The same in a few words, whose turn it is among them; empty where nothing is open."""
        found = self.open_holes(path)
        words = sum(hole.id in self.required for hole in found)
        lacks = len(found) - words
        parts = [f"{words} {'hole is' if words == 1 else 'holes are'} open, for a person"] if words else []
        parts += [f"{lacks} {'value waits' if lacks == 1 else 'values wait'} for a record or a filing"] if lacks else []
        return ", ".join(parts)

    def open_holes(self, path: Path) -> list[Hole]:
        """Where a written draft still lacks a person's words, or a record. Raises UserError if it is not UTF-8."""
        text = managed.read(path)
        return [*holes.open_holes(text, self.required), *holes.marked(text, MISSING)]


ISSUE = Document(
    "issue",
    "issue_cuda_small_m.md",
    (
        *("stock_time", "profiled", "script", "commands", "ours", "decode", "correctness", "machines", "not_run"),
        "records",
    ),
    ("title", "rule", "describe", "reproduce", "expected", "context", "disclosure", "links"),
    prefix="[BUG]",
)
PR = Document(
    "pr",
    "pr_cuda_small_m.md",
    (
        *("issue", "tests", "ours", "decode", "profiled", "correctness", "script", "commands", "machines", "not_run"),
        "records",
    ),
    ("title", "rule", "disclosure", "change", "coverage", "benchmarks", "links"),
)
LINK_BACK = Document(
    "link-back", "comment_mlxcel_725.md", ("filed", "ours", "decode", "not_run", "machines", "records"), ("words",)
)
DOCS = Document("docs", "docs_continuous_batching.md", ("device",), ("note",))
DOCUMENTS: Mapping[str, Document] = {document.name: document for document in (ISSUE, PR, LINK_BACK, DOCS)}


METAL_ISSUE = Document(
    "issue",
    "issue_metal_qmm_t_nax.md",
    ("operators", "models", "script", "commands", "correctness", "machines", "not_run", "records"),
    ("title", "rule", "describe", "reproduce", "expected", "context", "disclosure", "links"),
    prefix="[BUG]",
    contribution=METAL,
)
METAL_PR = Document(
    "pr",
    "pr_metal_qmm_t_nax.md",
    ("issue", "tests", "operators", "models", "correctness", "script", "commands", "machines", "not_run", "records"),
    ("title", "rule", "disclosure", "change", "coverage", "benchmarks", "links"),
    contribution=METAL,
)
_METAL = {document.name: document for document in (METAL_ISSUE, METAL_PR)}


def all_of(about: Contribution) -> Mapping[str, Document]:
    """A contribution's drafts by name, in order."""
    return _METAL if about == METAL else DOCUMENTS


def find(name: str, about: Contribution = CUDA) -> Document:
    """Raises UserError where there is no such draft, with the reason where this contribution alone has none."""
    if why := about.refused.get(name):
        raise UserError(f"no {name} for {about.name}: {why}")
    if name not in all_of(about):
        raise UserError(f"no draft {name}: {', '.join(all_of(about))}")
    return all_of(about)[name]


def _given(about: Contribution, facts: Sequence[Fact], hosts: Sequence[str], work: Path | None) -> Given:
    if TEST_HOST not in hosts and any(fact.host == TEST_HOST for fact in facts):
        raise UserError("facts of host 'test' come from synthetic records, no draft may hold them")
    facts = about.of(facts)
    others = dict.fromkeys(fact.host for fact in facts if fact.host not in hosts)
    return Given(
        facts=facts,
        hosts=[*hosts, *others],
        series=inputs.read(work, about.key("series"), inputs.SeriesProof) if work else None,
        filed=(inputs.read(work, about.key("filed"), inputs.Filed) if work else None) or inputs.Filed(),
        device=((inputs.read(work, "device", inputs.Named) if work else None) or inputs.Named()).host,
        contribution=about,
    )
