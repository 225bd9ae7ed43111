"""What each gate looks at, and what it says. ``gates`` puts hashes and excuses to it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping

from upstream_patch.draft import build_checks, claims, holes, inputs, managed, rendered, rules
from upstream_patch.draft.blocks import MISSING
from upstream_patch.draft.inputs import Duplicates
from upstream_patch.draft.look import FRESH_HOURS, OK, Finding, Look
from upstream_patch.errors import UserError
from upstream_patch.github.client import MAX_BODY

MARKER_ROOM = 256
"""Characters of a body, kept free for the hidden line by which a filed text is found again."""
TITLE_LIMIT = 256
_AI = re.compile(
    r"\b(?:AI|LLMs?|agents?|assistants?|Aider|Claude|Codex|Copilot|Cursor|ChatGPT|Devin|Gemini|language models?)\b",
    re.IGNORECASE,
)


def _drafted(look: Look) -> Finding:
    """Its blocks are those that would be written today."""
    fresh = ""
    try:
        fresh = look.document.render(look.facts, work=look.work)
        merged = managed.merge(look.text, fresh, str(look.file))
    except UserError as error:
        return Finding("edited", str(error), look.again, (fresh,))
    if merged != look.text:
        why = "records, or what was filed or built, changed since it was drafted"
        return Finding("outdated", why, look.again, (fresh,))
    return Finding(OK, "its tables are today's facts", seen=(fresh,))


def _holes(look: Look) -> Finding:
    found = [hole for hole in look.document.open_holes(look.file) if hole.id != "disclosure"]
    if not found:
        return Finding(OK, "every hole holds a person's words")
    words = [hole for hole in found if hole.id in look.document.required]
    records = [hole for hole in found if hole.id not in look.document.required]
    why, fix = [], []
    if words:
        why.append(", ".join(f"{hole.id} (line {hole.line})" for hole in words))
        fix.append(f"fill the holes in {look.file}")
    if records:
        first = records[0].hint.removeprefix(f"{MISSING}: ")
        what = "value waits" if len(records) == 1 else "values wait"
        why.append(f"{len(records)} {what} for a record or a filing, line {records[0].line} first: {first}")
        fix.append(f"make or file what is missing, then {look.again}")
    return Finding("open", f"open: {'; '.join(why)}", "; ".join(fix))


def _disclosure(look: Look) -> Finding:
    words = holes.answer(look.text, "disclosure")
    open_ = any(hole.id == "disclosure" for hole in holes.open_holes(look.text, look.document.required))
    if open_ or not _AI.search(words):
        return Finding("unsaid", "it does not say how AI was used", f"fill the hole disclosure in {look.file}")
    return Finding(OK, "says how AI was used")


def _claims(look: Look) -> Finding:
    found = claims.check(look.text, look.facts, look.document.about(look.work))
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        ways = "correct the words, put <!-- fact ID --> behind what is right, or excuse them"
        fix = f"{look.command('draft claims')} lists them; {ways}"
        code = "stale" if any(remark.stale for remark in found) else "unmatched"
        return Finding(code, f"{found[0]}{more}", fix, (look.seen_facts, *map(str, found)))
    return Finding(OK, "every number is a fact within its rounding", seen=(look.seen_facts,))


def _benchmarks(look: Look) -> Finding:
    """Facts of both arms; for the pull request also both builds of the series."""
    about = look.document.contribution
    stems = [
        {
            fact.id.removesuffix(f".{arm}_us")
            for fact in look.facts
            if fact.id.startswith(f"{about.family}.") and fact.id.endswith(f".{arm}_us") and not fact.stale
        }
        for arm in ("stock", "ours")
    ]
    both = stems[0] & stems[1]
    if not both:
        return Finding("unmeasured", "no record times stock and ours", about.bench, (look.seen_facts,))
    if look.document.name != "pr":
        return Finding(OK, f"{len(both)} problems timed in both arms", seen=(look.seen_facts,))
    return build_checks.benchmarks(look)


def _duplicates(look: Look) -> Finding:
    """Searched among open and closed for this title, and each hit named by number in the person's words."""
    found = inputs.read(look.work, look.key(f"duplicates_{look.document.name}"), Duplicates)
    fix = look.command("duplicates", reads_records=False)
    if found is None:
        return Finding("missing", "nobody has searched for duplicates", fix)
    seen = (found.model_dump_json(),)
    if found.title != look.title:
        return Finding("outdated", "the title changed since duplicates were searched", fix, seen)
    missing = [state for state in ("open", "closed") if all(search.state != state for search in found.searches)]
    if missing:
        return Finding("missing", f"not searched among the {' and the '.join(missing)} ones", fix, seen)
    if (age := inputs.age_hours(found.searched, look.now)) > FRESH_HOURS:
        return Finding("outdated", f"searched {age:.0f} hours ago", fix, seen)
    hits = {hit.number: hit for search in found.searches for hit in search.hits}
    words = managed.strip(look.text)
    unread = [
        hit for number, hit in sorted(hits.items()) if not re.search(rf"(?:#|/(?:issues|pull)/){number}\b", words)
    ]
    if unread:
        first = f"#{unread[0].number} ({unread[0].state}: {unread[0].title})"
        return Finding(
            "unread",
            f"{len(unread)} hits are not named, first {first}",
            "read them, and say in your words how this one differs, or excuse them",
            seen,
        )
    return Finding(OK, f"searched, {len(hits)} hits named", seen=seen)


def _rules(look: Look) -> Finding:
    ok, why = rules.judge(look.work, look.now)
    file = inputs.path(look.work, rules.NAME)
    return Finding(
        OK if ok else "unread",
        why,
        "" if ok else rules.again(look.work),
        (rules.sha256(), file.read_text("utf-8") if file.exists() else ""),
    )


def _size(look: Look) -> Finding:
    size = len(look.body) + MARKER_ROOM
    if size > MAX_BODY:
        why = f"{size:,} characters with the hidden marker, GitHub takes {MAX_BODY:,}"
        return Finding("long", why, "shorten your words, or move tables into the linked records")
    if len(look.title) > TITLE_LIMIT:
        return Finding("long", f"the title has {len(look.title)} characters, GitHub takes {TITLE_LIMIT}", "shorten it")
    return Finding(OK, f"{size:,} of {MAX_BODY:,} characters")


def _mentions(look: Look) -> Finding:
    found = rendered.mentions(f"{look.title}\n\n{look.body}")
    if found:
        return Finding("mentions", f"it would notify {', '.join(found)}", f"take the @ out in {look.file}")
    return Finding(OK, "notifies nobody by name")


CHECKS: Mapping[str, Callable[[Look], Finding]] = {
    "drafted": _drafted,
    "holes": _holes,
    "disclosure": _disclosure,
    "claims": _claims,
    "benchmarks": _benchmarks,
    "tests": build_checks.tests,
    "unaffected": build_checks.unaffected,
    "formatting": build_checks.formatting,
    "duplicates": _duplicates,
    "rules": _rules,
    "size": _size,
    "mentions": _mentions,
    "base": build_checks.base,
    "branch": build_checks.branch,
}


def content_hash(look: Look, finding: Finding) -> str:
    """Of the draft's text, of what the gate looked at besides, and of what it found."""
    parts = [look.document.name, look.text, finding.code, finding.why, *finding.seen]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
