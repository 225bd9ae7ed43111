"""Send a post once. What is not known to be undone is looked for before it is sent again, by anyone, on any day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from upstream_patch.errors import UserError
from upstream_patch.filing.post import Post, text_sha256
from upstream_patch.filing.receipts import Attempt, Outcome, Receipts
from upstream_patch.github import Busy, Clock, Entry, GitHub, Refused, Unclear, Unreachable

LOOK_AGAIN_S = (2.0, 5.0, 15.0)
"""Waits before each look after an unclear answer."""
SETTLE_S = 600.0
"""A request that GitHub took may take effect late: an unclear one is not sent again before this."""


class AlreadyThere(UserError):
    """Something stands there that this would double, and that this tool did not make."""

    exit_code = 44


@dataclass(frozen=True)
class Sent:
    number: int
    """Of the issue or pull request; for a comment, of the one it stands under."""
    url: str
    created: bool
    """False: it was there from before, and nothing was sent now."""


class OtherText(AlreadyThere):
    """It was filed before, with a text that is not today's: an edit is a person's act."""

    def __init__(self, sent: Sent, post: Post) -> None:
        super().__init__(
            f"{sent.url} was there already, and its text differs from this one: nothing was sent; edit it on its page, "
            f"or close it and file this text as a new one: --edition {post.edition + 1}"
        )
        self.sent = sent


def send(post: Post, github: GitHub, receipts: Receipts, clock: Clock, *, login: str, gates: str = "") -> Sent:
    """Create the post, or find the one that an earlier attempt made.

    ``gates`` is the hash of what was checked of the draft. Raises AlreadyThere (OtherText: by this tool, with another
    text), UserError for a post that must not be sent, and what a call raises: after Refused, Busy or Unreachable
    nothing was written; after Unclear the same command looks again, and sends no earlier than ``SETTLE_S`` after the
    attempt.
    """
    post.checked()
    with receipts.alone():
        attempts = receipts.attempts(post.repository, post.change_id)
        for attempt in attempts:
            if attempt.outcome and attempt.outcome.state != "refused":
                return _there(post, attempt.outcome, created=False)
        unclear = [attempt for attempt in attempts if attempt.outcome is None]
        if entry := find(post, github, login):
            for attempt in unclear or [receipts.intend(post, login, gates, clock.now())]:
                outcome = receipts.done(attempt, entry, clock.now(), created=False)
            return _there(post, outcome, created=False)
        if unclear:
            _settled(unclear[-1], clock)
        attempt = receipts.intend(post, login, gates, clock.now())
        try:
            entry, created = _create(post, github), True
        except (Refused, Busy, Unreachable) as error:
            receipts.refused(attempt, str(error), clock.now())
            raise
        except Unclear as error:
            late = _look_again(post, github, clock, login)
            if late is None:
                raise Unclear(
                    f"{error}, and it was not found yet: run the same command again, it looks first"
                ) from None
            entry, created = late, False
        return _there(post, receipts.done(attempt, entry, clock.now(), created=created), created=True)


def _there(post: Post, outcome: Outcome, *, created: bool) -> Sent:
    """What stands on GitHub. Raises OtherText where that is not this text."""
    sent = Sent(outcome.number, outcome.url, created)
    if outcome.sha256 != post.sha256:
        raise OtherText(sent, post)
    return sent


def find(post: Post, github: GitHub, login: str) -> Entry | None:
    """The post itself where it stands already: the author's own lists first, which are never late, then the search.

    Raises AlreadyThere for another's text with the same change id, the author's own open one of the same title, and an
    open pull request from the same branch.
    """
    if post.kind == "comment":
        same: list[Entry] = []
        seen = github.comments(post.repository, post.number)
    else:
        seen = [entry for entry in github.recent(post.repository, login) if entry.kind == post.kind]
        same = [entry for entry in seen if entry.title == post.title]
        if post.kind == "pull request":
            same += github.pulls_from(post.repository, post.head)
            seen += same
        if not any(_is(post, entry) for entry in seen):
            is_kind = "is:issue" if post.kind == "issue" else "is:pull-request"
            query = f'repo:{post.repository} {is_kind} in:body "change-id: {post.change_id}"'
            seen += github.search(query).entries
    marked = [entry for entry in seen if _is(post, entry)]
    for entry in marked:
        if entry.author == login:
            return entry
    if marked:
        raise AlreadyThere(f"{marked[0].url} by {marked[0].author} is this very {post.kind}: add to it there")
    if there := [entry for entry in same if entry.state == "open"]:
        raise AlreadyThere(f"{there[0].url} is open with this title or from this branch: close it, or work on it there")
    return None


def _is(post: Post, entry: Entry) -> bool:
    return post.marker in (entry.body or "")


def _settled(attempt: Attempt, clock: Clock) -> None:
    until = attempt.intent.at.timestamp() + SETTLE_S
    if clock.now() < until:
        when = datetime.fromtimestamp(until, UTC).strftime("%H:%M UTC")
        raise Unclear(f"the last attempt is unclear, and it was not found yet: run the same command again after {when}")


def _look_again(post: Post, github: GitHub, clock: Clock, login: str) -> Entry | None:
    for wait_s in LOOK_AGAIN_S:
        clock.sleep(wait_s)
        try:
            entry = find(post, github, login)
        except (Busy, Refused, Unreachable):
            return None
        if entry:
            return entry
    return None


def _create(post: Post, github: GitHub) -> Entry:
    """Raises Unclear, too, where the answer is about another text than was sent."""
    if post.kind == "issue":
        made = github.create_issue(post.repository, post.title, post.body)
    elif post.kind == "pull request":
        made = github.create_pull(post.repository, post.title, post.body, head=post.head, base=post.base)
    else:
        made = github.create_comment(post.repository, post.number, post.body)
    if text_sha256(made.title, made.body or "") != post.sha256:
        raise Unclear(f"{made.url}: GitHub's answer has another text than was sent")
    return made
