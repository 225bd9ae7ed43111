"""Take what identifies a person or a machine's insides out of text before it is stored."""

from __future__ import annotations

import getpass
import os
import platform
import re
import socket
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upstream_patch.errors import UserError

# Names that identify nobody, or that a record needs to say.
_COMMON = frozenset(
    {"root", "user", "users", "runner", "ubuntu", "admin", "nobody", "daemon", "docker", "localhost", "localdomain"}
    | {"host", "home", "test", "mlx", "cuda", "metal", "gpu", "h200", "gb10", "m5", "stock", "ours", "bench", "ncu"}
    | {"correctness", "affine", "cold", "hot", "queue", "chain", "profile", "facts", "doctor", "draft", "issue"}
    | {"records", "verify", "contribution", "build", "upstream", "patch", "upstream_patch", "small_m", "evidence"}
    | {"nvidia", "apple", "amd", "intel", "geforce", "python", "python3", "linux", "darwin", "macos", "kernel", "nox"}
    | {"unknown", "dirty", "given", "bin", "lib", "src", "usr", "raw", "data", "site", "repo", "tmp"}
)
_NAMED_BY_OTHERS = frozenset(
    {"vendor", "name", "cpu", "arch", "driver", "compute_capability", "hash", "kind", "arm", "kernel", "kernels"}
    | {"stock_kernels", "ours_kernels", "route", "case", "suite", "call", "problem", "protocol", "metrics"}
)
"""Fields that hold a vendor's, a product's or one of our own names: a user called ``grace`` is not meant there."""
_SHORTEST_NAME = 3
_HOME = re.compile(r"(?<![\w.>-])(?:/(?:home|Users)/[^/\s\"',:;)\]]+|/root(?![\w.-])|[A-Z]:\\Users\\[^\\\s\"']+)")
_TEMPORARY = re.compile(r"(?<![\w.>-])(?:/private)?/(?:tmp|var/tmp|var/folders/\w+/\w+/T)(?![\w.-])")
_PATH = re.compile(r"[^\s\"',;]*[/\\][^\s\"',;]*")
_GPU_UUID = re.compile(r"\b(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


@dataclass(frozen=True)
class Scrubber:
    """Replaces path prefixes by ``<repo>``, ``<home>``, ..., user names by ``<user>``, machine names by ``<host>``.

    ``prefixes`` are (path, label) pairs, ``users`` and ``machines`` bare names. Names are matched as whole words, in a
    path as parts of one too (``/scratch/alice-data``); common ones such as ``root`` identify nobody and stay.
    """

    prefixes: tuple[tuple[str, str], ...]
    users: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()

    def text(self, text: str) -> str:
        """Paths and names taken out."""
        return self.names(self.paths(text))

    def paths(self, text: str) -> str:
        for prefix, label in sorted(self.prefixes, key=lambda pair: -len(pair[0])):
            # Only a whole path prefix: /srv/a must not eat the start of /srv/abc.
            text = re.sub(rf"(?<![\w.-]){re.escape(prefix)}(?![\w.-])", label, text)
        return _TEMPORARY.sub("<tmp>", _GPU_UUID.sub("<gpu>", _HOME.sub("<home>", text)))

    def names(self, text: str) -> str:
        for names, label in ((self.machines, "<host>"), (self.users, "<user>")):
            for name in sorted(names, key=len, reverse=True):
                if len(name) >= _SHORTEST_NAME and name.lower() not in _COMMON:
                    part = re.compile(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", re.IGNORECASE)
                    text = _in_paths(part, label, text)
                    text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", label, text, flags=re.IGNORECASE)
        return text

    def tree(self, value: Any, names: bool = True) -> Any:
        """Every string of a JSON-like value, dictionary keys left alone (they are ours).

        In fields that hold names of vendors or of our own, only paths are taken out.
        """
        if isinstance(value, str):
            return self.text(value) if names else self.paths(value)
        if isinstance(value, dict):
            return {key: self.tree(item, names and key not in _NAMED_BY_OTHERS) for key, item in value.items()}
        return [self.tree(item, names) for item in value] if isinstance(value, list | tuple) else value

    def data(self, name: str, data: bytes) -> bytes:
        """A raw file. A binary one cannot be rewritten, so it is refused if it names this machine or its user."""
        try:
            if b"\0" not in data:
                return self.text(data.decode()).encode()
        except UnicodeDecodeError:
            pass
        latin = data.decode("latin-1")
        if self.text(latin) != latin:
            raise UserError(
                f"attachment {name} is binary and holds a local path, user or host name: attach its text form"
            )
        return data


def _in_paths(part: re.Pattern[str], label: str, text: str) -> str:
    return _PATH.sub(lambda path: part.sub(label, path.group()), text)


ANYWHERE = Scrubber(prefixes=())
"""What can be told on any machine: homes, temporary folders, GPU ids. A stored text that it would change leaks."""


def here() -> Scrubber:
    """The scrubber of this process: its working folder, homes, Python, site folders, user and machine names."""
    prefixes = {
        **{path: "<site>" for path in sys.path if os.path.isabs(path) and not path.startswith("/usr/")},
        str(Path.cwd()): "<repo>",
        sys.prefix: "<python>",
        sys.base_prefix: "<python>",
        str(Path.home()): "<home>",
        tempfile.gettempdir(): "<tmp>",
    }
    both = {**{os.path.realpath(path): label for path, label in prefixes.items()}, **prefixes}
    # A system-wide Python, or a container at "/", names nobody, and would turn half of every path into a label.
    plain = {"/", "/usr", "/usr/local", "/opt"}
    return Scrubber(
        prefixes=tuple((path, label) for path, label in both.items() if path and path not in plain),
        users=tuple(_distinct([_user(), os.environ.get("SUDO_USER", ""), Path.home().name])),
        machines=tuple(_distinct(_machine_names())),
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container user without an entry in the password database
        return ""


def _machine_names() -> Iterable[str]:
    for name in (socket.gethostname(), platform.node(), os.environ.get("HOSTNAME", "")):
        yield name
        yield name.split(".", maxsplit=1)[0]


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for name in names if name))
