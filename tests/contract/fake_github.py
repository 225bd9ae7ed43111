"""A GitHub that keeps state, judges every request by GitHub's own description, and fails as it is told to."""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.contract.contract import answer_fault, request_fault

Fault = Literal[
    "502 before",  # of a write: lost
    "502 after",  # stored all the same
    "drop before",  # the connection ends with no answer
    "drop after",
    "late",  # 504, and stored LATE_S later
    "garbled",  # stored, and an answer that is no JSON
    "slow",  # stored, and no answer for longer than a client waits
    "busy",  # secondary rate limit, with retry-after
    "busy long",
    "busy bare",  # the same without the header
    "limited",  # interaction limits
    "invalid",  # 422
    "another",  # stored, and an answer with another text
    "lost",  # not stored, and the same answer
    "changed",  # stored with another text
    "moved",
]
STORED: tuple[Fault, ...] = (
    *("502 after", "drop after", "late", "garbled", "slow"),
    *("another", "lost", "changed"),
)
LATE_S = 120.0
MAX_BODY = 65_536
RATE = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
LIMITS = "Interactions on this repository have been limited to collaborators"


class Clock:
    """Moves only when somebody waits."""

    def __init__(self) -> None:
        self.seconds = 1_764_500_000.0
        self.waits: list[float] = []

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.seconds += seconds


@dataclass
class Stored:
    """An issue, a pull request or a comment."""

    kind: Literal["issue", "pull", "comment"]
    number: int
    author: str
    title: str
    body: str
    at: float
    state: str = "open"
    head: str = ""
    base: str = ""
    draft: bool = False


@dataclass
class Repo:
    owner: str
    branches: dict[str, str] = field(default_factory=lambda: {"main": "a" * 40})
    parent: str = ""
    has_issues: bool = True
    archived: bool = False
    entries: list[Stored] = field(default_factory=list)


@dataclass(frozen=True)
class Answer:
    status: int
    json: Any
    headers: tuple[tuple[str, str], ...] = ()
    raw: bytes | None = None
    drop: bool = False
    slow: bool = False

    @property
    def data(self) -> bytes:
        return json.dumps(self.json).encode() if self.raw is None else self.raw


class FakeGitHub:
    def __init__(self, clock: Clock, search_lag_s: float = 0.0) -> None:
        self.clock = clock
        self.search_lag_s = search_lag_s
        self.login = "me"
        self.repos: dict[str, Repo] = {}
        self.on_write: deque[Fault | Answer | None] = deque()
        """What happens to the next writes; None: nothing; an answer: that, and nothing is stored."""
        self.on_read: deque[Fault | Answer | None] = deque()
        self.broken: list[str] = []
        """Requests and answers that GitHub's description does not allow."""
        self.log: list[str] = []
        self.last_write = 0.0
        self._late: list[tuple[float, str, Stored]] = []

    def settle(self) -> None:
        """Store what is due."""
        for due, name, stored in [late for late in self._late if late[0] <= self.clock.now()]:
            self._late.remove((due, name, stored))
            self._store(name, stored)

    def handle(self, method: str, target: str, body: bytes) -> Answer:
        self.settle()
        if method == "POST":
            self.last_write = self.clock.now()
        if fault := request_fault(method, target, body):
            self.broken.append(f"{method} {target}: {fault}")
            return Answer(400, {"message": fault})
        answer = self._answer(method, target, body)
        told = "lost" if answer.drop else "no answer" if answer.slow else answer.status
        self.log.append(f"{method} {unquote(urlsplit(target).path)} {told}")
        meant = 200 <= answer.status < 300 and answer.raw is None
        if meant and (fault := answer_fault(method, target, answer.status, answer.data)):
            self.broken.append(f"answer to {method} {target}: {fault}")
        return answer

    def _answer(self, method: str, target: str, body: bytes) -> Answer:
        queue = self.on_write if method == "POST" else self.on_read
        fault = queue.popleft() if queue else None
        if isinstance(fault, Answer):
            return fault
        if fault in (None, *STORED):
            before = {name: len(repo.entries) for name, repo in self.repos.items()}
            answer = self._done(method, target, body)
            if fault in ("late", "lost", "changed", "another") and answer.status == 201:
                ((name, repo),) = [(n, r) for n, r in self.repos.items() if len(r.entries) > before[n]]
                if fault == "late":
                    self._late.append((self.clock.now() + LATE_S, name, repo.entries.pop()))
                if fault == "lost":
                    repo.entries.pop()
                if fault == "changed":
                    repo.entries[-1].body = f"Rewritten. {repo.entries[-1].body}"
                if fault != "late":
                    answer.json["body"] = f"Rewritten. {answer.json['body']}"
        if fault in (None, "another", "lost", "changed"):
            return answer
        return {
            "502 before": Answer(502, {"message": "Server Error"}),
            "502 after": Answer(502, {"message": "Server Error"}),
            "late": Answer(504, {"message": "Gateway Timeout"}),
            "drop before": Answer(0, None, drop=True),
            "drop after": Answer(0, None, drop=True),
            "slow": Answer(0, None, slow=True),
            "garbled": Answer(201, None, raw=b"<html>"),
            "busy": Answer(403, {"message": RATE}, (("Retry-After", "7"),)),
            "busy long": Answer(429, {"message": RATE}, (("Retry-After", "3600"),)),
            "busy bare": Answer(403, {"message": RATE}),
            "limited": Answer(403, {"message": LIMITS}),
            "invalid": Answer(422, {"message": "Validation Failed", "errors": [{"message": "body is invalid"}]}),
            "moved": Answer(307, {"message": "Moved"}, (("Location", "/repositories/1/issues"),)),
        }[fault]

    def _done(self, method: str, target: str, body: bytes) -> Answer:
        parts = urlsplit(target)
        path, query = unquote(parts.path), dict(parse_qsl(parts.query))
        given = json.loads(body) if body else {}
        if path == "/user":
            return Answer(200, self._user(self.login))
        if path == "/search/issues":
            return self._search(query["q"])
        found = re.fullmatch(r"/repos/([^/]+/[^/]+)(?:/(.*))?", path)
        repo = self.repos.get(found[1]) if found else None
        if found is None or repo is None:
            return Answer(404, {"message": "Not Found"})
        name, rest = found[1], found[2] or ""
        if not rest:
            return Answer(200, self._repo(name, repo))
        if rest.startswith("branches/"):
            sha = repo.branches.get(rest.removeprefix("branches/"))
            if sha is None:
                return Answer(404, {"message": "Branch not found"})
            commit = {"sha": sha, "html_url": f"https://github.com/{name}/commit/{sha}", "commit": {}}
            return Answer(200, {"commit": commit})
        if rest == "issues" and not repo.has_issues:
            return Answer(410, {"message": "Issues are disabled for this repo"})
        if method == "GET":
            return self._list(name, repo, rest, query)
        return self._create(name, repo, rest, given)

    def _list(self, name: str, repo: Repo, rest: str, query: dict[str, str]) -> Answer:
        if rest == "issues":
            chosen = [entry for entry in reversed(repo.entries) if entry.kind != "comment"]
            chosen = [entry for entry in chosen if query.get("creator") in (None, entry.author)]
        elif rest == "pulls":
            chosen = [entry for entry in reversed(repo.entries) if entry.kind == "pull"]
            chosen = [entry for entry in chosen if query.get("head") in (None, entry.head)]
        else:
            number = int(rest.split("/")[1])
            chosen = [entry for entry in repo.entries if entry.kind == "comment" and entry.number == number]
        if "comments" not in rest:
            chosen = [entry for entry in chosen if query.get("state", "open") in ("all", entry.state)]
        size, page = int(query.get("per_page", 30)), int(query.get("page", 1))
        shown = chosen[size * (page - 1) : size * page]
        return Answer(200, [self._entry(name, entry, simple=rest == "pulls") for entry in shown])

    def _create(self, name: str, repo: Repo, rest: str, given: dict[str, Any]) -> Answer:
        if len(given.get("body") or "") > MAX_BODY:
            errors = [{"message": f"body is too long (maximum is {MAX_BODY} characters)"}]
            return Answer(422, {"message": "Validation Failed", "errors": errors})
        number = 1 + max((entry.number for entry in repo.entries if entry.kind != "comment"), default=0)
        stored = Stored("issue", number, self.login, given.get("title", ""), given["body"], self.clock.now())
        if rest == "pulls":
            if any(entry.head == given["head"] and entry.state == "open" for entry in repo.entries):
                errors = [{"message": f"A pull request already exists for {given['head']}."}]
                return Answer(422, {"message": "Validation Failed", "errors": errors})
            stored.kind, stored.head, stored.base = "pull", given["head"], given["base"]
            stored.draft = given["draft"]
        elif rest != "issues":
            stored.kind, stored.number = "comment", int(rest.split("/")[1])
            if not any(entry.number == stored.number for entry in repo.entries):
                return Answer(404, {"message": "Not Found"})
        self._store(name, stored)
        return Answer(201, self._entry(name, stored, simple=rest == "pulls"))

    def _store(self, name: str, stored: Stored) -> None:
        self.repos[name].entries.append(stored)

    def _search(self, query: str) -> Answer:
        """Words in quotes stand in title or body as they are; others all stand in one of the two."""
        name = (re.search(r"\brepo:(\S+)", query) or ["", ""])[1]
        kind = "pull" if "is:pull-request" in query else "issue"
        state = (re.search(r"\b(?:is|state):(open|closed)\b", query) or ["", ""])[1]
        bare = re.sub(r"\b(?:repo|is|in|state):\S+", " ", query)
        words = [quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|(\S+)', bare)]
        hits = [
            entry
            for entry in self.repos[name].entries
            if entry.kind == kind
            and state in ("", entry.state)
            and entry.at + self.search_lag_s <= self.clock.now()
            and all(word.lower() in f"{entry.title}\n{entry.body}".lower() for word in words)
        ]
        items = [self._entry(name, entry) for entry in hits]
        return Answer(200, {"total_count": len(hits), "incomplete_results": False, "items": items})

    def _user(self, login: str) -> dict[str, Any]:
        return {"login": login, "html_url": f"https://github.com/{login}", "created_at": "2020-01-01T00:00:00Z"}

    def _owner(self, login: str) -> dict[str, Any]:
        return {"login": login, "html_url": f"https://github.com/{login}"}

    def _repo(self, name: str, repo: Repo) -> dict[str, Any]:
        answer = {
            **{"full_name": name, "owner": self._owner(repo.owner), "html_url": f"https://github.com/{name}"},
            **{"fork": bool(repo.parent), "default_branch": "main", "has_issues": repo.has_issues},
            **{"archived": repo.archived, "created_at": "2023-01-01T00:00:00Z"},
        }
        if repo.parent:
            answer["parent"] = self._repo(repo.parent, self.repos[repo.parent])
        return answer

    def _entry(self, name: str, entry: Stored, *, simple: bool = False) -> dict[str, Any]:
        page = "pull" if entry.kind == "pull" else "issues"
        url = f"https://github.com/{name}/{page}/{entry.number}"
        created = datetime.fromtimestamp(entry.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        answer: dict[str, Any] = {"html_url": url, "user": self._owner(entry.author), "created_at": created}
        answer["body"] = entry.body
        if entry.kind == "comment":
            place = self.repos[name].entries.index(entry) if entry in self.repos[name].entries else 0
            return {**answer, "html_url": f"{url}#issuecomment-{place}"}
        answer |= {"number": entry.number, "state": entry.state, "title": entry.title}
        if entry.kind == "pull" and not simple:
            answer["pull_request"] = {"html_url": url}
        return answer

    def story(self) -> str:
        """Everything that stands on this GitHub, as text."""
        lines = []
        for name, repo in self.repos.items():
            lines.append(f"{name}{f', a fork of {repo.parent}' if repo.parent else ''}")
            for entry in repo.entries:
                draft = "draft " if entry.draft else ""
                way = f" {entry.head} -> {entry.base}" if entry.kind == "pull" else ""
                title = f": {entry.title}" if entry.title else ""
                lines.append(f"  {entry.state} {draft}{entry.kind} #{entry.number} of {entry.author}{way}{title}")
                lines += [f"  | {line}".rstrip() for line in entry.body.rstrip("\n").split("\n")]
        return "\n".join(lines) + "\n"
