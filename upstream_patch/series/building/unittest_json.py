"""Run one test file of MLX and print, as the last line, what failed: a script for the Python that the build is in.

``FILE without NAME...`` runs all tests but these methods, ``FILE only NAME`` that one. It imports nothing of this
package: the environment of a build has none of it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Result(unittest.TextTestResult):
    """Keeps the ids of what failed; a subtest's id holds its parameters."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.failed: list[str] = []

    def addFailure(self, test: Any, err: Any) -> None:
        super().addFailure(test, err)
        self.failed.append(test.id())

    def addError(self, test: Any, err: Any) -> None:
        super().addError(test, err)
        self.failed.append(test.id())

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.failed.append(subtest.id())


def tests_of(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test)
        else:
            yield test


def main(path: Path, choice: str, names: list[str]) -> None:
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    found = tests_of(unittest.defaultTestLoader.loadTestsFromModule(module))
    chosen = [test for test in found if (test.id().rsplit(".", 1)[-1] in names) is (choice == "only")]
    assert chosen, f"{path} has no test {choice} {names}"
    suite = unittest.TestSuite(chosen)
    result = unittest.TextTestRunner(stream=sys.stderr, resultclass=Result).run(suite)
    assert isinstance(result, Result)
    print(json.dumps({"ran": result.testsRun, "skipped": len(result.skipped), "failed": sorted(set(result.failed))}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
