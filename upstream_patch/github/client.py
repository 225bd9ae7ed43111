"""The calls that are made, and no others: reads, and three that create. Nothing is edited, closed or deleted."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.github.entries import Entry, Found, Kind, Repository
from upstream_patch.github.manners import (
    BETWEEN_WRITES_S,
    Clock,
    Refused,
    Unclear,
    Unreachable,
    ask,
    tell_wait,
)

if TYPE_CHECKING:
    import githubkit

_Form = TypeVar("_Form")
API = "https://api.github.com"
TIMEOUT_S = 30.0
PAGE = 100
PAGES = 5
"""How far back a list is read: 500 entries."""
MAX_BODY = 65_536
"""Characters of a body that GitHub takes."""


def address(environ: Mapping[str, str] = os.environ) -> str:
    """Of the API that the environment names: GITHUB_API_URL, or github.com's."""
    return environ.get("GITHUB_API_URL") or API


def place(api: str) -> str:
    """An API's host, with port and path where it has them, as part of a file's name: what was asked or sent at one
    counts for nothing at another."""
    parts = urlsplit(api)
    host = parts.netloc.rpartition("@")[2].lower().removesuffix(":443")
    return re.sub(r"[^a-z0-9.-]+", "_", f"{host}{parts.path.rstrip('/')}")


def connect(environ: Mapping[str, str] = os.environ) -> GitHub:
    """With the token of the environment, GH_TOKEN or GITHUB_TOKEN, at its ``address``."""
    token = environ.get("GH_TOKEN") or environ.get("GITHUB_TOKEN")
    if not token:
        raise MissingTool("no GitHub token", "export GH_TOKEN=$(gh auth token), or one that you made on github.com")
    return GitHub(token, address(environ))


class GitHub:
    """A connection as the owner of a token; a context manager. Every call raises what ``manners.ask`` raises."""

    def __init__(
        self, token: str, base_url: str = API, *, timeout_s: float = TIMEOUT_S, clock: Clock | None = None
    ) -> None:
        """Raises MissingTool without githubkit, and UserError for an address that would show the token."""
        try:
            import githubkit
        except ImportError as error:
            raise MissingTool(f"githubkit ({error})", "pip install -e '.[github]'") from None
        loopback = _is_loopback(base_url)
        if urlsplit(base_url).scheme != "https" and not loopback:
            raise UserError(f"{base_url}: the token would travel in the clear: use https")
        self.api = base_url
        self._clock = clock or Clock()
        self._kit = githubkit.GitHub(
            token,
            base_url=base_url,
            timeout=timeout_s,  # githubkit has none of its own
            auto_retry=False,
            http_cache=False,
            follow_redirects=False,
            event_hooks={"response": [lambda response: tell_wait(response.headers, self._clock)]},
            trust_env=not loopback,  # a proxy cannot reach it
        )
        self._written: float | None = None

    def __enter__(self) -> Self:
        self._kit.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        self._kit.__exit__()

    def login(self) -> str:
        """Of the token's owner."""
        return self._read(lambda kit: kit.rest.users.get_authenticated(), "GET /user", lambda user: str(user["login"]))

    def repository(self, name: str) -> Repository:
        owner, repo = split(name)
        return self._read(
            lambda kit: kit.rest.repos.get(owner, repo),
            f"GET /repos/{name}",
            lambda answer: Repository.model_validate({"parent": None, **answer}),
        )

    def branch(self, name: str, branch: str) -> str | None:
        """The commit that a branch is at; None where it is not there."""
        owner, repo = split(name)
        what = f"GET /repos/{name}/branches/{branch}"
        try:
            return self._read(
                lambda kit: kit.rest.repos.get_branch(owner, repo, branch),
                what,
                lambda found: str(found["commit"]["sha"]),
            )
        except Refused as error:
            if error.status == 404:
                return None
            raise

    def recent(self, name: str, author: str) -> list[Entry]:
        """Issues and pull requests of an author, open and closed, newest first; the list knows them at once."""
        owner, repo = split(name)
        return self._pages(
            lambda kit, page: kit.rest.issues.list_for_repo(
                owner, repo, creator=author, state="all", sort="created", direction="desc", per_page=PAGE, page=page
            ),
            f"GET /repos/{name}/issues",
        )

    def pulls_from(self, name: str, head: str) -> list[Entry]:
        """Pull requests of a head ``owner:branch``, open and closed."""
        owner, repo = split(name)
        return self._pages(
            lambda kit, page: kit.rest.pulls.list(owner, repo, state="all", head=head, per_page=PAGE, page=page),
            f"GET /repos/{name}/pulls",
            "pull request",
        )

    def comments(self, name: str, number: int) -> list[Entry]:
        """All comments under an issue, oldest first."""
        owner, repo = split(name)
        return self._pages(
            lambda kit, page: kit.rest.issues.list_comments(owner, repo, number, per_page=PAGE, page=page),
            f"GET /repos/{name}/issues/{number}/comments",
            "comment",
            number,
            whole=True,  # the newest come last
        )

    def search(self, query: str) -> Found:
        """Up to 100 hits of a search over issues and pull requests. New ones come late to it."""
        return self._read(
            lambda kit: kit.rest.search.issues_and_pull_requests(q=query, per_page=PAGE),
            "GET /search/issues",
            lambda found: Found.model_validate({**found, "entries": [Entry.read(item) for item in found["items"]]}),
        )

    def create_issue(self, name: str, title: str, body: str) -> Entry:
        owner, repo = split(name)
        what = f"POST /repos/{name}/issues"
        return self._write(lambda kit: kit.rest.issues.create(owner, repo, title=title, body=body), what, "issue")

    def create_pull(self, name: str, title: str, body: str, *, head: str, base: str) -> Entry:
        """A draft, from ``owner:branch``; its maintainers may push to the branch."""
        owner, repo = split(name)
        return self._write(
            lambda kit: kit.rest.pulls.create(
                owner, repo, title=title, body=body, head=head, base=base, draft=True, maintainer_can_modify=True
            ),
            f"POST /repos/{name}/pulls",
            "pull request",
        )

    def create_comment(self, name: str, number: int, body: str) -> Entry:
        owner, repo = split(name)
        what = f"POST /repos/{name}/issues/{number}/comments"
        return self._write(
            lambda kit: kit.rest.issues.create_comment(owner, repo, number, body=body), what, "comment", number
        )

    def _read(self, call: Callable[[githubkit.GitHub[Any]], Any], what: str, form: Callable[[Any], _Form]) -> _Form:
        response = ask(lambda: call(self._kit), self._clock, writes=False, what=what)
        try:
            return form(response.json())
        except (ValueError, KeyError, TypeError):
            raise Unreachable(f"{what}: an answer that cannot be read: nothing was written") from None

    def _pages(
        self,
        call: Callable[[githubkit.GitHub[Any], int], Any],
        what: str,
        kind: Kind | None = None,
        number: int | None = None,
        *,
        whole: bool = False,
    ) -> list[Entry]:
        entries: list[Entry] = []
        for page in range(1, PAGES + 1):
            read = self._read(
                lambda kit, page=page: call(kit, page),  # type: ignore[misc]
                what,
                lambda answer: [Entry.read(item, kind, number) for item in answer],
            )
            entries += read
            if len(read) < PAGE:
                return entries
        if whole:
            raise UserError(f"{what}: more than {PAGE * PAGES} entries: they cannot all be looked through")
        return entries

    def _write(
        self, call: Callable[[githubkit.GitHub[Any]], Any], what: str, kind: Kind, number: int | None = None
    ) -> Entry:
        now = self._clock.now()
        if self._written is not None and (early_s := self._written + BETWEEN_WRITES_S - now) > 0:
            self._clock.sleep(early_s)
        try:
            response = ask(lambda: call(self._kit), self._clock, writes=True, what=what)
        finally:
            self._written = self._clock.now()
        try:
            return Entry.read(response.json(), kind, number)
        except ValueError:
            raise Unclear(f"{what}: an answer that cannot be read: it may have been done all the same") from None


def split(name: str) -> tuple[str, str]:
    """``owner/repo`` as two. Raises UserError for any other form."""
    owner, slash, repo = name.partition("/")
    if not (owner and slash and repo) or "/" in repo or name.split() != [name]:
        raise UserError(f"{name!r} is no repository: write OWNER/NAME")
    return owner, repo


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
