"""An MLX checkout, through git: what it is, what a commit of it holds, and trees made without touching its files."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.records.provenance import REDIRECTING
from upstream_patch.series.planning import Reader

UPSTREAM = "ml-explore/mlx"
_UPSTREAM = re.compile(rf"[/:]{UPSTREAM}(?:\.git)?/?$")
_MARKS = ("mlx/version.h", "mlx/primitives.h")
"""Files by which MLX's own repository is known."""
_SETTINGS = {
    "color.grep": "false",
    "core.fsmonitor": "false",
    "core.quotePath": "true",
    "core.safecrlf": "false",  # what we put into a worktree goes back into git as it is, whatever a checkout would make
    "diff.context": "3",
    "diff.orderFile": os.devnull,
    "diff.suppressBlankEmpty": "false",
    "i18n.logOutputEncoding": "UTF-8",
    "log.showSignature": "false",
}
"""Settings of git that change what we read from it: its defaults, whatever a person's or a repository's files say."""
_PINNED = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]


class GitError(UserError):
    """A git command that failed; all that it said, in one line."""


def git(*arguments: str | Path, cwd: Path | None = None, given: str | None = None, index: Path | None = None) -> str:
    """What a git command printed. Raises GitError, or MissingTool where there is no git.

    Never asks for a password and never takes an optional lock; ``index`` is another index file than the checkout's.
    Bytes that are not UTF-8 come and go as surrogates.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in REDIRECTING}
    environment = {**inherited, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}
    if index is not None:
        environment["GIT_INDEX_FILE"] = str(index)
    try:
        done = subprocess.run(
            ["git", *_PINNED, *map(str, arguments)],
            cwd=cwd,
            env=environment,
            input=None if given is None else given.encode(errors="surrogateescape"),
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        if cwd is not None and not cwd.is_dir():
            raise UserError(f"there is no folder {cwd}") from None
        raise MissingTool("there is no git on PATH", "install git") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).decode(errors="replace").splitlines()
        said = " ".join(line.strip() for line in lines if line.strip() and not line.startswith("hint:"))
        raise GitError(f"git {' '.join(map(str, arguments[:2]))}: {said or f'exit {done.returncode}'}")
    return done.stdout.decode(errors="surrogateescape")


@dataclass(frozen=True)
class Checkout:
    """The top folder of a clone of MLX."""

    path: Path

    def git(self, *arguments: str | Path, given: str | None = None, index: Path | None = None) -> str:
        return git(*arguments, cwd=self.path, given=given, index=index)

    def command(self, *words: str) -> str:
        """A git command on this checkout, as a person's shell takes it."""
        return shlex.join(["git", "-C", str(self.path), *words])

    def commit(self, name: str = "HEAD") -> str:
        """Full id of a commit. Raises UserError where the checkout has none of that name."""
        try:
            return self.git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").strip()
        except GitError:
            raise UserError(f"{self.path} has no commit {name}") from None

    def committed(self, name: str = "HEAD") -> datetime:
        """When a commit was made, by its committer's clock."""
        said = self.git("show", "--no-patch", "--format=%ct", self.commit(name))
        return datetime.fromtimestamp(int(said), UTC)

    def has(self, name: str) -> bool:
        try:
            self.commit(name)
        except UserError:
            return False
        return True

    @property
    def branch(self) -> str | None:
        """The branch that HEAD is on; None where it is on none."""
        try:
            return self.git("symbolic-ref", "--quiet", "--short", "HEAD").strip()
        except GitError:
            return None

    @property
    def shallow(self) -> bool:
        return self.git("rev-parse", "--is-shallow-repository").strip() == "true"

    @property
    def common(self) -> Path:
        """The folder of the repository itself, which its worktrees share."""
        return Path(self.git("rev-parse", "--path-format=absolute", "--git-common-dir").strip())

    @contextmanager
    def locked(self) -> Iterator[Path]:
        """The folder of our notes in the repository, for one process at a time, whichever worktree it names."""
        room = self.common / "upstream-patch"
        room.mkdir(exist_ok=True)
        with (room / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"another apply, unapply or export is at work on {self.path}: wait for it") from None
            yield room

    def worktrees(self) -> list[tuple[Path, str | None]]:
        """Where git believes every worktree to be, and the branch it is on. The first is the repository's own."""
        found: list[tuple[Path, str | None]] = []
        for line in self.git("worktree", "list", "--porcelain").splitlines():
            word, _, value = line.partition(" ")
            if word == "worktree":
                found.append((Path(value), None))
            elif word == "branch":
                found[-1] = (found[-1][0], value.removeprefix("refs/heads/"))
        return found

    def reader(self, commit: str = "HEAD") -> Reader:
        """Reads files as a commit holds them, whatever the working tree is like."""
        name = self.commit(commit)

        def read(path: str) -> str | None:
            try:
                return self.git("cat-file", "blob", f"{name}:{path}")
            except GitError:
                return None

        return read

    def require_clean(self) -> None:
        said = self.git("status", "--porcelain", "--untracked-files=no").splitlines()
        if said:
            more = f" and {len(said) - 1} more" if len(said) > 1 else ""
            raise UserError(f"{self.path} has changes that are not committed ({said[0][3:]}{more}): commit them first")

    def require_branch(self) -> str:
        branch = self.branch
        if branch is None:
            at = self.commit()[:12]
            raise UserError(f"HEAD of {self.path} is detached at {at}: {self.command('switch', '-c', 'NAME')} first")
        return branch

    def not_upstream(self) -> tuple[str, str]:
        """Why nothing says that HEAD is the head of upstream's main, and the way out; two empty ones where it is."""
        try:
            lines = self.git("config", "--get-regexp", r"^remote\..*\.url$").splitlines()
        except GitError:
            lines = []
        named = [name for name, _, url in (line.partition(" ") for line in lines) if _UPSTREAM.search(url)]
        if not named:
            add = self.command("remote", "add", "upstream", f"https://github.com/{UPSTREAM}")
            what = f"no remote of the clone is {UPSTREAM}, so nobody can know whether its HEAD is upstream's"
            return what, f"{add} && {self.command('fetch', 'upstream')}"
        main = f"{named[0].removeprefix('remote.').removesuffix('.url')}/main"
        fetch = self.command("fetch", main.removesuffix("/main"))
        if not self.has(f"refs/remotes/{main}"):
            return f"the clone has not fetched {main}", fetch
        if self.commit() != self.commit(f"refs/remotes/{main}"):
            return f"HEAD of the clone is not {main}", f"{fetch} && {self.command('switch', '--detach', main)}"
        return "", ""

    def require_history(self) -> None:
        if self.shallow:
            fix = self.command("fetch", "--unshallow", "--tags")
            raise UserError(f"{self.path} is a shallow clone: {fix} first")

    def tree(self, commit: str, changed: Mapping[str, str]) -> str:
        """Id of the commit's tree with these texts in it. Writes objects only: no file, no index, no reference."""
        with _scratch_index() as index:
            self.git("read-tree", commit, index=index)
            for path, text in changed.items():
                blob = self.git("hash-object", "-w", "--no-filters", "--stdin", given=text).strip()
                entry = self.git("ls-files", "--stage", "--", path, index=index)
                mode = entry.split()[0] if entry else "100644"
                self.git("update-index", "--add", "--cacheinfo", f"{mode},{blob},{path}", index=index)
            return self.git("write-tree", index=index).strip()

    def working_tree(self) -> str:
        """Id of the tree that the files would make if all were added. The index is left alone."""
        with _scratch_index() as index:
            self.git("read-tree", "HEAD", index=index)
            self.git("add", "--all", index=index)
            return self.git("write-tree", index=index).strip()

    def commits(self, since: str, paths: Sequence[str], until: str = "HEAD") -> list[str]:
        """``<id> <subject>`` of the commits since one that touched any of these files, the newest first."""
        return self.git("log", "--format=%h %s", f"{since}..{until}", "--", *paths).splitlines()


@contextmanager
def _scratch_index() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="upstream-patch-") as folder:
        yield Path(folder) / "index"


def open_checkout(path: Path) -> Checkout:
    """The checkout at a path. Raises UserError where it is none, bare, a folder inside one, or not MLX's."""
    if not path.is_dir():
        raise UserError(f"there is no folder {path}: --mlx takes a clone of https://github.com/ml-explore/mlx")
    try:
        top = git("rev-parse", "--show-toplevel", cwd=path).strip()
    except GitError:
        raise UserError(f"{path} is not a git checkout: --mlx takes a clone of MLX, not an unpacked archive") from None
    if Path(top).resolve() != path.resolve():
        raise UserError(f"{path} is a folder inside the checkout {top}: name that one")
    checkout = Checkout(path.resolve())
    if not checkout.has("HEAD"):
        raise UserError(f"{path} has no commit yet: --mlx takes a clone of MLX")
    read = checkout.reader()
    missing = [mark for mark in _MARKS if read(mark) is None]
    if missing:
        raise UserError(f"{path} is a git checkout, but not MLX's: it has no {missing[0]}")
    return checkout


def is_url(mlx: str) -> bool:
    return "://" in mlx or (mlx.startswith("git@") and ":" in mlx)


def open_or_clone(mlx: str, cache: Path) -> Checkout:
    """A checkout named by its path, or by a URL, which is cloned below ``cache`` once and fetched after that.

    A clone of ours is on upstream's default branch, at upstream's commit. Raises UserError where somebody committed to
    that branch, or changed its files.
    """
    if not is_url(mlx):
        return open_checkout(Path(mlx))
    name = mlx.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git") or "mlx"
    path = cache / name
    if not path.is_dir():
        partial = path.with_name(f"{name}.partial-{os.getpid()}")
        cache.mkdir(parents=True, exist_ok=True)
        git("clone", "--quiet", "--filter=blob:none", "--origin", "origin", mlx, partial)
        partial.rename(path)
        return open_checkout(path)
    checkout = open_checkout(path)
    if checkout.git("remote", "get-url", "origin").strip() != mlx:
        raise UserError(f"{path} is a clone of another repository than {mlx}: remove it, or name its path")
    checkout.git("fetch", "--quiet", "--tags", "origin")
    checkout.git("remote", "set-head", "origin", "--auto")
    newest = checkout.git("symbolic-ref", "--short", "refs/remotes/origin/HEAD").strip()
    branch = newest.removeprefix("origin/")
    ours = f"refs/heads/{branch}"
    if checkout.has(ours) and checkout.git("rev-list", "-1", ours, "--not", "--remotes=origin"):
        fix = "name the folder itself with --mlx, or bring them to a clone of your own and remove it"
        raise UserError(f"branch {branch} of {path} has commits that {mlx} has not: {fix}")
    checkout.require_clean()
    checkout.git("checkout", "--quiet", "-B", branch, newest)
    return checkout
