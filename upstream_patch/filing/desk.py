"""The way of a finished draft: its gates, a preview, a person's word, the request, and what the next draft needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from upstream_patch.draft import gates, inputs
from upstream_patch.draft.commands import folders
from upstream_patch.draft.contributions import CUDA, Contribution
from upstream_patch.draft.gates import Ready
from upstream_patch.draft.inputs import Filed, Link, Upstream
from upstream_patch.errors import UserError
from upstream_patch.filing.person import Person, confirm
from upstream_patch.filing.post import Post, rehearsal
from upstream_patch.filing.receipts import Receipts
from upstream_patch.filing.send import AlreadyThere, OtherText, Sent, send
from upstream_patch.github import Clock, GitHub, Repository
from upstream_patch.series.checkout import UPSTREAM

DOWNSTREAM, THREAD = "lablup/mlxcel", 725
"""Where the downstream project waits for the change."""


class BranchMissing(UserError):
    """The pull request's branch is not on GitHub: the message has the commands, for a person to run."""

    exit_code = 47


class OtherCommit(UserError):
    """The pull request's branch is not at the commit that was compared with what was built."""

    exit_code = 49


class Changed(UserError):
    """The draft, its records or its gates are not what the preview showed."""

    exit_code = 48


@dataclass(frozen=True)
class Desk:
    work: Path
    """The folder of the drafts."""
    evidence: Path
    github: GitHub
    person: Person
    clock: Clock
    edition: int = 1
    """Another number is another text: for when the first one was closed and a new one is due."""
    rehearse: str = ""
    """The person's own fork, instead of the real place."""
    contribution: Contribution = CUDA

    @property
    def receipts(self) -> Receipts:
        return Receipts(self.work.parent / "receipts", self.github.api)

    def issue(self) -> Sent:
        """File the issue. Raises GateClosed, Stopped, Changed, AlreadyThere where a later edition stands, and what
        ``send`` raises; nothing was sent then."""
        return self._send(
            "issue",
            lambda ready, login, place: Post("issue", UPSTREAM, self._change_id("issue"), ready.title, ready.body),
        )

    def pull(self, branch: str, fork: str = "") -> Sent:
        """File the pull request, as a draft, from a branch that the person pushed to their fork.

        Raises BranchMissing when it is not there, OtherCommit when it is not at the commit that the gates saw, else as
        ``issue``.
        """

        def post(ready: Ready, login: str, place: Repository) -> Post:
            source = self.rehearse or fork or f"{login}/{UPSTREAM.partition('/')[2]}"
            commit = self.github.branch(source, branch)
            if commit is None:
                raise BranchMissing(
                    f"{source} has no branch {branch}: push it yourself, from your MLX checkout: "
                    f"git push https://github.com/{source}.git {branch} (a tool or an agent must not)"
                )
            upstream = inputs.read(self.work, self.contribution.key("upstream"), Upstream)
            seen = (upstream and upstream.branch) or "none"
            if commit != seen:
                raise OtherCommit(
                    f"{source}'s {branch} is at {commit[:12]}, and the gates saw {seen[:12]}: push that commit "
                    f"yourself, or let them see this one: "
                    f"{self.contribution.drift}{folders(self.work.parent, self.evidence)} --branch {branch}"
                )
            return Post(
                "pull request",
                UPSTREAM,
                self._change_id("pr"),
                ready.title,
                ready.body,
                head=f"{source.partition('/')[0]}:{branch}",
                base=place.default_branch,
                commit=commit,
            )

        return self._send("pr", post)

    def link(self) -> Sent:
        """Comment downstream on what was filed; a rehearsal comments on the issue of the rehearsal."""

        def post(ready: Ready, login: str, place: Repository) -> Post:
            number = self._rehearsed_issue() if self.rehearse else THREAD
            return Post("comment", DOWNSTREAM, self._change_id("link-back"), "", ready.body, number=number)

        return self._send("link-back", post)

    def _send(self, draft: str, post_of: Callable[[Ready, str, Repository], Post]) -> Sent:
        ready = self._ready(draft)
        login = self.github.login()
        place = self._place(draft, login)

        def made() -> Post:
            post = post_of(ready, login, place)
            return (rehearsal(post, self.rehearse) if self.rehearse else post).checked()

        post = made()
        if later := self.receipts.later(post):
            edition, url = later
            told = f"{url} is edition {edition} of this draft, filed since"
            raise AlreadyThere(f"{told}: nothing was sent: name it with --edition {edition}")
        self.person.show(preview(post, login, rehearsed=bool(self.rehearse)))
        confirm(self.person, post.repository)
        if self._ready(draft).content_hash != ready.content_hash or made() != post:
            raise Changed(f"{draft} changed since the preview: nothing was sent: run it again and read it")
        try:
            sent = send(post, self.github, self.receipts, self.clock, login=login, gates=ready.content_hash)
        except OtherText as error:
            self._filed(draft, error.sent)
            raise
        self._filed(draft, sent)
        return sent

    def _ready(self, draft: str) -> Ready:
        return gates.ready(
            draft, self.work, self.evidence, datetime.fromtimestamp(self.clock.now(), UTC), self.contribution
        )

    def _change_id(self, draft: str) -> str:
        return f"{self.contribution.topic}-{draft}-{self.edition}"

    def _place(self, draft: str, login: str) -> Repository:
        """Where it goes. Raises UserError where that cannot take it, or is no fork of the person's own."""
        place = self.github.repository(self.rehearse or (DOWNSTREAM if draft == "link-back" else UPSTREAM))
        if self.rehearse and (place.owner != login or place.parent != UPSTREAM):
            raise UserError(f"{place.name} is no fork of {UPSTREAM} that {login} owns: rehearse in your own")
        if place.archived:
            raise UserError(f"{place.name} is archived and takes nothing new")
        if draft == "issue" and not place.has_issues:
            raise UserError(f"{place.name} takes no issue: a fork's owner switches issues on in its settings")
        return place

    def _rehearsed_issue(self) -> int:
        for attempt in self.receipts.attempts(self.rehearse, self._change_id("issue")):
            if attempt.outcome and attempt.outcome.number:
                return attempt.outcome.number
        raise UserError(f"{self.rehearse} has no rehearsed issue to comment on: rehearse `file issue` first")

    def _filed(self, draft: str, sent: Sent) -> None:
        if not self.rehearse and draft in Filed.model_fields:
            name = self.contribution.key("filed")
            before = inputs.read(self.work, name, Filed, self.github.api) or Filed()
            link = Link(number=sent.number, url=sent.url)
            inputs.write(self.work, name, before.model_copy(update={draft: link}), self.github.api)


def preview(post: Post, login: str, *, rehearsed: bool) -> str:
    """What will be sent, all of it, and where."""
    where = f"{post.repository} #{post.number}" if post.kind == "comment" else post.repository
    kind = {"issue": "an issue", "pull request": "a draft pull request", "comment": "a comment"}[post.kind]
    lines = [f"{'REHEARSAL of' if rehearsed else 'This is'} {kind} in {where}, as {login}"]
    if post.kind == "pull request":
        lines.append(f"from {post.head} at {post.commit[:12]} into {post.base}; maintainers may push to it")
    if post.title:
        lines.append(f"title: {post.title}")
    lines += [f"body, {len(post.body):,} characters:", "", post.body.rstrip(), ""]
    return "\n".join(lines)
