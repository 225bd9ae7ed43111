"""What each gate looks at, and what it says. ``gates`` puts hashes and excuses to it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping

from upstream_patch.draft import body, build_checks, claims, holes, inputs, managed, rules
from upstream_patch.draft.inputs import Duplicates
from upstream_patch.draft.look import FRESH_HOURS, Finding, Look
from upstream_patch.errors import UserError

BODY_LIMIT = 65_536
"""Characters that GitHub takes in a body."""
MARKER_ROOM = 256
"""Of them, kept free for the hidden line by which a filed text is found again."""
TITLE_LIMIT = 256
_AI = re.compile(
    r"\b(?:AI|LLMs?|agents?|assistants?|Claude|Codex|Copilot|ChatGPT|Gemini|language models?)\b", re.IGNORECASE
)


def _drafted(look: Look) -> Finding:
    """Its blocks are those that would be written today."""
    fresh = ""
    try:
        fresh = look.document.render(look.facts, work=look.work)
        merged = managed.merge(look.text, fresh, str(look.file))
    except UserError as error:
        return Finding(False, str(error), look.again, (fresh,))
    if merged != look.text:
        why = "records, or what was filed or built, changed since it was drafted"
        return Finding(False, why, look.again, (fresh,))
    return Finding(True, "its tables are today's facts", seen=(fresh,))


def _holes(look: Look) -> Finding:
    found = [hole for hole in look.document.open_holes(look.file) if hole.id != "disclosure"]
    if not found:
        return Finding(True, "every hole holds a person's words")
    words = [hole for hole in found if hole.id in look.document.required]
    records = [hole for hole in found if hole.id not in look.document.required]
    why, fix = [], []
    if words:
        why.append(", ".join(f"{hole.id} (line {hole.line})" for hole in words))
        fix.append(f"write them in {look.file}")
    if records:
        why.append(
            f"{len(records)} in tables wait for a record or a filing, first line {records[0].line}: {records[0].hint}"
        )
        fix.append(f"make it, then {look.again}")
    return Finding(False, f"open: {'; '.join(why)}", "; ".join(fix))


def _disclosure(look: Look) -> Finding:
    words = holes.answer(look.text, "disclosure")
    open_ = any(hole.id == "disclosure" for hole in holes.open_holes(look.text, look.document.required))
    if open_ or not _AI.search(words):
        return Finding(False, "it does not say how AI was used", f"fill the hole disclosure in {look.file}")
    return Finding(True, "says how AI was used")


def _claims(look: Look) -> Finding:
    found = claims.check(look.text, look.facts)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        fix = f"{look.command('draft claims')} lists them; correct the words, or excuse them"
        return Finding(False, f"{found[0]}{more}", fix, (look.seen_facts,))
    return Finding(True, "every number is a fact within its rounding", seen=(look.seen_facts,))


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
        return Finding(False, "no record times stock and ours", about.bench, (look.seen_facts,))
    if look.document.name != "pr":
        return Finding(True, f"{len(both)} problems timed in both arms", seen=(look.seen_facts,))
    return build_checks.benchmarks(look)


def _duplicates(look: Look) -> Finding:
    """Searched among open and closed for this title, and each hit named by number in the person's words."""
    found = inputs.read(look.work, look.key(f"duplicates_{look.document.name}"), Duplicates)
    fix = look.command("duplicates")
    if found is None:
        return Finding(False, "nobody has searched for duplicates", fix)
    seen = (found.model_dump_json(),)
    if found.title != look.title:
        return Finding(False, "the title changed since duplicates were searched", fix, seen)
    missing = [state for state in ("open", "closed") if all(search.state != state for search in found.searches)]
    if missing:
        return Finding(False, f"not searched among the {' and the '.join(missing)} ones", fix, seen)
    if (age := inputs.age_hours(found.searched, look.now)) > FRESH_HOURS:
        return Finding(False, f"searched {age:.0f} hours ago", fix, seen)
    hits = {hit.number: hit for search in found.searches for hit in search.hits}
    words = managed.strip(look.text)
    unread = [
        hit for number, hit in sorted(hits.items()) if not re.search(rf"(?:#|/(?:issues|pull)/){number}\b", words)
    ]
    if unread:
        first = f"#{unread[0].number} ({unread[0].state}: {unread[0].title})"
        return Finding(
            False,
            f"{len(unread)} hits are not named, first {first}",
            "read them, and say in your words how this one differs, or excuse them",
            seen,
        )
    return Finding(True, f"searched, {len(hits)} hits named", seen=seen)


def _rules(look: Look) -> Finding:
    ok, why = rules.judge(look.work, look.now)
    file = inputs.path(look.work, rules.NAME)
    return Finding(
        ok, why, "" if ok else rules.REFRESH, (rules.sha256(), file.read_text("utf-8") if file.exists() else "")
    )


def _size(look: Look) -> Finding:
    size = len(look.body) + MARKER_ROOM
    if size > BODY_LIMIT:
        why = f"{size:,} characters with the hidden marker, GitHub takes {BODY_LIMIT:,}"
        return Finding(False, why, "shorten your words, or move tables into the linked records")
    if len(look.title) > TITLE_LIMIT:
        return Finding(False, f"the title has {len(look.title)} characters, GitHub takes {TITLE_LIMIT}", "shorten it")
    return Finding(True, f"{size:,} of {BODY_LIMIT:,} characters")


def _mentions(look: Look) -> Finding:
    found = body.mentions(f"{look.title}\n\n{look.body}")
    if found:
        return Finding(False, f"it would notify {', '.join(found)}", f"take the @ out in {look.file}")
    return Finding(True, "notifies nobody by name")


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
}


def content_hash(look: Look, finding: Finding) -> str:
    """Of the draft's text and of what the gate looked at besides."""
    return hashlib.sha256(json.dumps([look.document.name, look.text, *finding.seen]).encode()).hexdigest()
