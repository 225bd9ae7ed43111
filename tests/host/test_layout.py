"""The layout holds: imports point one way, modules stay small, the two commands and their checks are one."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"problem", "machine", "kernels", "errors", "files"}),
    frozenset({"floating", "reference", "routing", "routing_metal"}),
    frozenset({"ops", "ops_metal", "installing", "compile", "driver", "simulate"}),
    frozenset({"correctness", "records"}),
    frozenset({"measure", "series"}),
    frozenset({"draft", "github", "plots", "readme", "report", "routing_table", "targets"}),
    frozenset({"cli", "contribution", "filing", "recording", "resuming", "terminal", "verifying", "__main__"}),
)
LAYER = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
# ops is nothing without MLX and is imported only when an operation is asked for; the others import MLX where they run.
MLX_ROOMS = frozenset({"ops", "ops_metal", "installing", "correctness", "measure"})
MLX_AT_TOP = frozenset({"ops", "ops_metal", "installing"})
# The public names of the package lead to ops, on demand; every room may ask for the package itself.
PACKAGE = "upstream_patch"


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import in a file: in functions, under TYPE_CHECKING, relative ones too."""
    parts = module.split(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level + is_package] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{start}.{alias.name}") for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith(("import_module", "__import__"))
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.lineno, str(node.args[0].value)


def faults(text: str, module: str, is_package: bool = False) -> list[str]:
    """Imports of a higher layer, and of mlx where it must not be, in one file of the package."""
    room = module.split(".")[1] if "." in module else ""
    found = []
    tree = ast.parse(text)
    top_level = {node.lineno for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)}
    for line, name in imports(tree, module, is_package):
        parts = name.split(".")
        if parts[0] in ("mlx", "mlx_lm") and (room not in MLX_ROOMS or (line in top_level and room not in MLX_AT_TOP)):
            found.append(f"{module}:{line} imports mlx {'at its top' if room in MLX_ROOMS else 'outside its rooms'}")
        if parts[0] != PACKAGE or len(parts) < 2 or parts[1] not in LAYER or not room:
            continue
        if LAYER[parts[1]] > LAYER[room]:
            found.append(f"{module}:{line} (layer {LAYER[room]}) imports {name} (layer {LAYER[parts[1]]})")
    return found


def modules(root: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted((root / PACKAGE).rglob("*.py")):
        yield path, ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def test_every_room_has_a_layer(root: Path) -> None:
    rooms = {module.split(".")[1] for _, module in modules(root) if "." in module}
    assert rooms - LAYER.keys() == set()


def test_imports_point_one_way(root: Path) -> None:
    found = [
        line
        for path, module in modules(root)
        for line in faults(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("import upstream_patch.cli", "upstream_patch.problem"),
        ("from upstream_patch import cli", "upstream_patch.records.store"),
        ("def f():\n    from upstream_patch.measure import bench", "upstream_patch.records.store"),
        ("from ..measure import bench", "upstream_patch.records.store"),
        ("from .. import measure", "upstream_patch.records.store"),
        ("if TYPE_CHECKING:\n    import upstream_patch.draft.issue", "upstream_patch.ops"),
        ("import importlib\nimportlib.import_module('upstream_patch.ops')", "upstream_patch.machine.probe"),
        ("def f():\n    import mlx.core as mx", "upstream_patch.records.store"),
        ("import mlx.core as mx", "upstream_patch.measure.timer"),
    ],
)
def test_a_wrong_import_is_seen(text: str, module: str) -> None:
    assert len(faults(text, module)) == 1


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("from upstream_patch.machine import probe", "upstream_patch.records.store"),
        ("from . import canonical\nfrom .schema import Record", "upstream_patch.records.store"),
        ("def f():\n    import mlx.core as mx", "upstream_patch.measure.timer"),
        ("import mlx.core as mx", "upstream_patch.ops"),
        ("import upstream_patch", "upstream_patch.records.provenance"),
    ],
)
def test_a_right_import_is_not(text: str, module: str) -> None:
    assert faults(text, module) == []


def reached(found: dict[str, set[str]], start: str) -> set[str]:
    """Modules that the ones whose name begins so import, directly or not."""
    todo = [name for name in found if name == start or name.startswith(f"{start}.")]
    assert todo, start
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += found[name]
    return seen


def import_graph(root: Path) -> dict[str, set[str]]:
    """Module -> our modules it imports, those inside functions too."""
    named = {module: path for path, module in modules(root)}
    graph: dict[str, set[str]] = {}
    for module, path in named.items():
        asked = (name for _, name in imports(ast.parse(path.read_text("utf-8")), module, path.name == "__init__.py"))
        graph[module] = {target for name in asked for target in (name, name.rpartition(".")[0]) if target in named}
    return graph


PREDICTED = f"{PACKAGE}.measure.forecast"


@pytest.mark.parametrize("room", ["draft", "readme", "records", "contribution", "recording", "correctness"])
def test_a_prediction_reaches_no_draft_and_no_fact(root: Path, room: str) -> None:
    graph = import_graph(root)
    assert [name for name in reached(graph, f"{PACKAGE}.{room}") if name.startswith(PREDICTED)] == []
    # and it would be seen, however far away it is imported
    graph[f"{PACKAGE}.errors"].add(f"{PREDICTED}.report")
    assert f"{PREDICTED}.report" in reached(graph, f"{PACKAGE}.{room}")


def test_modules_stay_small(root: Path) -> None:
    limits = [(root / PACKAGE, 400), (root / "tests", 300), (root / "ci", 300)]
    sizes = {
        str(path.relative_to(root)): (len(path.read_text(encoding="utf-8").splitlines()), limit)
        for folder, limit in limits
        for path in folder.rglob("*.py")
    } | {"noxfile.py": (len((root / "noxfile.py").read_text(encoding="utf-8").splitlines()), 200)}
    assert {name: size for name, size in sizes.items() if size[0] >= size[1]} == {}
    assert len((root / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 90


def committable(root: Path) -> list[Path]:
    """Tracked files, and those that would be."""
    asked = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    said = subprocess.run(asked, cwd=root, capture_output=True, text=True, check=False)
    if said.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for name in said.stdout.split("\0") if name and (path := root / name).is_file()]


# What belongs to the machines that this was written on, and must not reach a reader. Spelled so as not to match itself.
FORBIDDEN = re.compile(
    r"/wor[k]/|(?<!\w)\.librar[y]\b|(?<!\w)share[d]/(?:notes|design|hooks|prototypes|gpu_host)"
    r"|/opt/(?:wheel|pyp)[is]|--(?:extra-)?index-ur[l][ =]|https?://[^\s)\"'>]*(?:pyp[i]|pythonhoste[d]|artifactor)"
)


def words(text: str) -> list[str]:
    return [match.group() for match in FORBIDDEN.finditer(text)]


def test_nothing_names_the_machines_it_was_made_on(root: Path) -> None:
    found = {}
    for path in committable(root):
        try:
            named = words(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue
        if named:
            found[str(path.relative_to(root))] = named
    assert found == {}


@pytest.mark.parametrize("text", ["see /wor" + "k/main", "--index-ur" + "l x", "https://files.pythonhoste" + "d.org/x"])
def test_a_forbidden_word_is_seen(text: str) -> None:
    assert len(words(text)) == 1
    assert words("the work of a shared/common folder") == []


def readme_command(root: Path, name: str) -> str:
    text = (root / "README.md").read_text(encoding="utf-8")
    found = re.findall(rf"<!-- command:{name} -->\n```sh\n(.+)\n```", text)
    assert len(found) == 1, f"README.md needs one command:{name} block of one line"
    return str(found[0])


def test_readme_has_two_commands_and_ci_runs_both(root: Path) -> None:
    script = (root / ".ci" / "run").read_text(encoding="utf-8")
    (taking,) = re.findall(r"^command_of\(\) .*$", script, re.MULTILINE)
    for name in ("tests", "contribution"):
        command = readme_command(root, name)
        assert command.endswith(f"nox -s {name}")
        # the very line of .ci/run that takes a command out of README, run here
        taken = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"{taking}\ncommand_of {name}"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
        assert taken.stdout.strip() == command
    assert "for name in tests contribution; do" in script
    assert 'bash -euo pipefail -c "$command"' in script
    assert "export UPSTREAM_PATCH_STRICT=1" in script


def test_ci_says_so_when_readme_has_no_command(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / ".ci"
    folder.mkdir()
    (folder / "run").write_text((root / ".ci" / "run").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "README.md").write_text("nothing here\n", encoding="utf-8")
    ran = subprocess.run(["bash", str(folder / "run")], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "README.md has no command for tests" in ran.stderr


def test_evidence_names_no_folder_of_a_machine(root: Path) -> None:
    # NVIDIA's own place of the toolkit tells of no machine
    folder = re.compile(r"(?<![\w.<>/-])/(?:tmp|home|root|opt|usr(?!/local/cuda\b)|var|mnt|Users)/")
    texts = {path: path.read_text(encoding="utf-8") for path in (root / "evidence").rglob("*") if path.is_file()}
    assert {
        str(path.relative_to(root)): folder.findall(text) for path, text in texts.items() if folder.search(text)
    } == {}


def test_pins_are_exact_and_name_no_address(root: Path) -> None:
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.lstrip().startswith("#")]
    assert len(pins) > 20
    assert [line for line in pins if not re.fullmatch(r"[a-z0-9.-]+==[^\s;/@]+( ; .+)?", line)] == []
