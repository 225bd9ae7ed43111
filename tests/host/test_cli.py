"""The verbs as a person meets them: in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

VERBS = (
    *(
        "doctor",
        "build",
        "correctness",
        "bench",
        "profile",
        "sanitize",
        "peers",
        "decode",
        "records",
        "facts",
        "draft",
        "status",
        "excuse",
        "rules",
        "readme",
        "plots",
        "routing",
        "targets",
        "forecast",
        "series",
        "file",
        "link",
        "duplicates",
    ),
    "contribution",
)

# Stands in for a machine without MLX: an import of it is an error, as where it is not installed.
NO_MLX = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "mlx":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
sys.argv = ["upstream-patch", *sys.argv[1:]]
from upstream_patch.cli import main
main()
"""


def call(
    *arguments: str, cwd: Path, prefix: tuple[str, ...] = ("-m", "upstream_patch"), env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join(path for path in (str(root), os.environ.get("PYTHONPATH", "")) if path)
    return subprocess.run(
        [sys.executable, *prefix, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "100", **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def no_mlx(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return call(*arguments, cwd=cwd, prefix=("-c", NO_MLX))


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_lists_every_verb_and_needs_no_mlx(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = no_mlx(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [verb for verb in VERBS if verb not in done.stdout] == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("frobnicate",), "No such command"),
        (("bench", "--sweet", "3"), "No such option"),
        (("facts", "extra"), "unexpected extra argument"),
        (("draft",), "Missing command"),
        (("facts", "--evidence", "nowhere"), "nowhere"),
        (("readme", "--check", "--path", "nowhere.md"), "nowhere.md"),
    ],
)
def test_a_mistake_is_one_line_and_not_zero(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    done = call(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert told in lines[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs_compile
@pytest.mark.parametrize(
    ("arch", "said"),
    [("sm_12", "no architecture sm_12; known: "), ("sm_75", "no kernel is launched on sm_75; known: ")],
)
def test_an_arch_that_is_not_ours_is_one_line_with_those_that_are(arch: str, said: str, tmp_path: Path) -> None:
    done = call("build", "--arch", arch, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr
    assert "sm_121" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("facts", "--evidence", "README.md"),
        ("records", "verify", "--evidence", "README.md"),
        ("contribution", "--evidence", "nowhere"),
        ("contribution", "--suite", "nope"),
        ("bench", "--suite", "nope"),
        ("facts", "--prefix", "zzz"),
        ("draft", "issue", "--out", "README.md"),
        ("status", "--evidence", "README.md"),
        ("rules", "refresh", "--mlx", "evidence"),
        ("readme", "--path", "evidence"),
        ("plots", "--check", "--evidence", "nowhere"),
        ("routing", "--evidence", "README.md"),
        ("targets", "--check", "--evidence", "nowhere"),
    ],
)
def test_a_wrong_place_or_name_is_one_line_and_a_code(words: tuple[str, ...], root: Path) -> None:
    done = call(*words, cwd=root)
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ")


def test_a_reader_that_stops_early_gets_no_message(root: Path) -> None:
    script = f"{sys.executable} -m upstream_patch facts | head -1"
    done = subprocess.run(["bash", "-c", script], cwd=root, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("verb", ["correctness", "bench", "profile"])
def test_without_mlx_a_measurement_says_what_to_install(verb: str, tmp_path: Path) -> None:
    done = no_mlx(verb, cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith("error: MLX is not installed: pip install -e '.[cuda]'")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_facts_and_the_draft_need_no_mlx(root: Path, tmp_path: Path) -> None:
    evidence = str(root / "evidence")
    listed = no_mlx("facts", "--json", "--evidence", evidence, cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    facts = json.loads(listed.stdout)
    assert all({"id", "value", "unit", "record", "sha256", "stale"} <= fact.keys() for fact in facts)
    plain = no_mlx("facts", "--evidence", evidence, cwd=tmp_path)
    assert len(plain.stdout.splitlines()) == len(facts)
    if not any(fact["stale"] for fact in facts):
        drafted = no_mlx("draft", "issue", "--evidence", evidence, "--out", "mine", cwd=tmp_path)
        assert drafted.returncode == 0, drafted.stderr
        assert (tmp_path / "mine" / "drafts" / "issue_cuda_small_m.md").is_file()


def test_verify_names_the_damaged_file(tmp_path: Path) -> None:
    name = "h200-20260101T000000Z-bench-00000000.json"
    folder = tmp_path / "evidence" / "records" / "h200"
    folder.mkdir(parents=True)
    (folder / name).write_text('{"schema_version": 1}')
    done = call("records", "verify", cwd=tmp_path)
    assert done.returncode == 2
    assert name in done.stdout
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_doctor_speaks_json_too(tmp_path: Path) -> None:
    done = call("doctor", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["machine"]["cpu_count"] >= 1
    assert {"GPU", "MLX", "git", "disk"} <= {finding["name"] for finding in said["findings"]}
    assert all(finding["ok"] or finding["fix"] or finding["name"] == "ncu permission" for finding in said["findings"])


def test_a_reader_that_goes_away_is_no_fault(tmp_path: Path, root: Path) -> None:
    script = f"'{sys.executable}' -m upstream_patch facts --json --evidence '{root / 'evidence'}' | true"
    done = subprocess.run(
        ["bash", "-c", f"{script}; exit ${{PIPESTATUS[0]}}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1)
    assert done.stderr == ""


SHOWS_LIMITS = """
import os, sys
import upstream_patch.contribution, upstream_patch.recording
def show(*_, **__):
    print("mlx.core" in sys.modules, *(os.environ["MLX_MAX_" + name] for name in ("OPS_PER_BUFFER", "MB_PER_BUFFER")))
    raise SystemExit
upstream_patch.recording.record_bench = upstream_patch.contribution.contribution = show
sys.argv = ["upstream-patch", *sys.argv[1:]]
from upstream_patch.cli import main
main()
"""


@pytest.mark.parametrize("verb", ["bench", "contribution"])
def test_what_benchmarks_lets_graphs_grow_before_mlx_is_loaded(verb: str, tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    arguments = (verb, "--evidence", str(tmp_path / "evidence"))
    done = call(*arguments, cwd=tmp_path, prefix=("-c", SHOWS_LIMITS))
    assert done.stdout == "False 4096 100000\n", done.stderr
    done = call(*arguments, cwd=tmp_path, prefix=("-c", SHOWS_LIMITS), env={"MLX_MAX_OPS_PER_BUFFER": "7"})
    assert done.stdout == "False 7 100000\n", done.stderr
