"""mlx-lm, also where the packages that its tokenizers need are missing: what is measured here has no tokenizer."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module, metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from upstream_patch.errors import MissingTool

TOKENIZERS = ("transformers", "huggingface_hub")
"""Packages that mlx-lm imports for tokenizers and downloads."""


def lm(module: str) -> Any:
    """``mlx_lm.<module>``. Raises MissingTool without mlx-lm."""
    try:
        with _stand_ins(missing()):
            return import_module(f"mlx_lm.{module}")
    except ModuleNotFoundError as error:
        raise MissingTool(
            f"mlx-lm cannot be imported ({error})", "pip install -e '.[decode]' in the clone, or pip install mlx-lm"
        ) from error


def version() -> str:
    try:
        return metadata.version("mlx-lm")
    except metadata.PackageNotFoundError:
        return str(lm("_version").__version__)


def missing() -> list[str]:
    """Of TOKENIZERS, those for which a stand-in is imported: without them no model folder can be loaded."""
    return [name for name in TOKENIZERS if find_spec(name) is None]


class _StandIn(ModuleType):
    """Every name in it is a class that cannot be used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": _refuse, "register": staticmethod(lambda *_, **__: None)})


def _refuse(self: object, *_: object, **__: object) -> None:
    raise MissingTool(f"{type(self).__name__} is not installed", f"pip install {' '.join(TOKENIZERS)}")


class _Finder(MetaPathFinder, Loader):
    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in self.names else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def _stand_ins(names: Sequence[str]) -> Iterator[None]:
    """While the block runs, imports of these packages give stand-ins; afterwards they are missing as before."""
    finder = _Finder(names)
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] in names]:
            del sys.modules[name]
