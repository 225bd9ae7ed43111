"""The issue draft, from synthetic records: what a maintainer would read, and what it must never hold."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.host.conftest import OURS
from upstream_patch.draft import managed, tables
from upstream_patch.draft.blocks import MISSING
from upstream_patch.draft.contributions import CUDA
from upstream_patch.draft.documents import ISSUE as issue
from upstream_patch.errors import UserError
from upstream_patch.measure import graphs
from upstream_patch.problem import Problem
from upstream_patch.records.facts import Fact, derive
from upstream_patch.records.form import GRAPH_LIMITS
from upstream_patch.records.schema import HostCost

TEST_HOSTS = ("test", *CUDA.hosts)
FORM = [
    "**Describe the bug**",
    "**To Reproduce**",
    "**Expected behavior**",
    "**Desktop (please complete",
    "**Additional context**",
]


@pytest.fixture
def facts(synthetic: Any) -> list[Fact]:
    rows = [synthetic.bench_row(m, n, layout) for layout in ("mk", "b1k") for n in (1024, 4096) for m in (1, 2, 7, 16)]
    synthetic.write(synthetic.bench(rows))
    synthetic.write(synthetic.ncu((1, 7)), 1)
    synthetic.write(synthetic.correctness(), 2)
    return derive(synthetic.load(), lambda kernel: "ab" * 32)


def section(text: str, name: str) -> str:
    found = re.search(rf"<!-- BEGIN FACTS {name} .*?-->\n(.*?)<!-- END", text, re.DOTALL)
    assert found, name
    return found[1]


def test_follows_the_form(facts: list[Fact]) -> None:
    text = issue.render(facts, TEST_HOSTS)
    places = [text.index(heading) for heading in FORM]
    assert places == sorted(places)
    assert "\n[BUG] TODO(person): title\n" in text
    assert (
        "OS Version: Synthetic 1.0 x86_64; Version: mlx 0.32.4; GPU Synthetic GPU; driver 1.2.3; CUDA runtime 13.0.0"
        in text
    )


def test_tables_hold_the_facts(facts: list[Fact]) -> None:
    text = issue.render(facts, TEST_HOSTS)
    assert "| K x N | M = 1, us | M = 2, us | M = 7, us | M = 16, us |\n| --- |" in section(text, "stock_time")
    assert "| 4096 x 4096 | 10.0 | 20.0 | 70.0 | 160.0 |" in section(text, "stock_time")
    assert "x is [M, 1, K]" in section(text, "stock_time")
    ours = section(text, "ours")
    assert re.search(
        r"\| 7 \| 4096 \| 4096 \| 70\.0 \| 10\.0 \| 7\.00 \| 6\.99 to 7\.01 \| FASTER \| 13\.5% \| 94\.4% \|", ours
    ), ours
    heads = r"\| run \| read probe, GB/s \| empty kernel, us \|\n\| --- \| --- \| --- \|"
    assert re.search(heads + r"\n\| test-[-\w]+ \| 1000 \| 2.10 \|", ours)
    profiled = section(text, "profiled")
    assert "| 7 | 4096 | 4096 | bf16 | stock | 9.44 | 70.00 | 55.5 | 10.0 | 40 | qmv_kernel |" in profiled
    assert f"| 7 | 4096 | 4096 | bf16 | ours | 9.44 | 10.00 | 55.5 | 10.0 | 40 | {OURS} |" in profiled
    assert section(text, "correctness").count("\n| bf16 |") == 1
    assert "| bf16 | normal | 2 | 2 | 2 | 2 | 0.00123 | 0.002 | 1 | 2 |" in section(text, "correctness")
    for fact in facts:
        assert f"| `{fact.record_path}` | `{fact.sha256}` | `{'ab' * 32}` |" in section(text, "records")
    commands = section(text, "commands")  # with its heading, which would else stand as an answer to the hole above
    assert commands.startswith("Commands that made the records:\n\n- test: `python -m upstream_patch bench`\n")


def test_says_what_was_not_run(facts: list[Fact]) -> None:
    text = section(issue.render(facts, TEST_HOSTS), "not_run")
    assert "m5" not in text
    verbs = ("bench", "correctness", "profile", "sanitize", "peers")
    for host in ("h200", "gb10"):
        line = next(line for line in text.splitlines() if line.startswith(f"- {host}: not run ("))
        assert all(f"`python -m upstream_patch {verb}`" in line for verb in verbs)
    assert "- test: no record of sanitizer, peer, decode, wheel, build (`python -m upstream_patch sanitize`, `" in text
    without = [fact for fact in facts if not fact.id.startswith("ncu.")]
    assert (
        "- test: no record of ncu, sanitizer, peer, decode, wheel, build (`python -m upstream_patch profile`, `"
        in issue.render(without, TEST_HOSTS)
    )


def test_without_records_every_table_says_so_in_one_line() -> None:
    text = issue.render([])
    assert section(text, "records") == "no record\n"
    made_by = {"stock_time": "bench", "ours": "bench", "profiled": "profile"}
    for name, verb in (made_by | {name: name for name in ("decode", "correctness")}).items():
        waits = f"{MISSING}: no CUDA GPU has run it yet: `python -m upstream_patch {verb}`\n"
        assert section(text, name) == waits  # which no gate lets through
    assert "- gb10: not run" in text and "- h200: not run" in text
    assert "####" not in text


def test_a_cell_without_a_fact_says_so(facts: list[Fact]) -> None:
    some = [fact for fact in facts if not fact.id.endswith(("4096x4096.b4.g64.bf16.M2.stock_us", ".read_gbps"))]
    text = issue.render(some, TEST_HOSTS)
    assert "| 4096 x 4096 | 10.0 | no record | 70.0 | 160.0 |" in section(text, "stock_time")
    assert "| no record | 2.10 |" in section(text, "ours")
    hot = [fact for fact in facts if not fact.id.startswith("small_m.") or ".b1k." in fact.id]
    hot = [replace(fact, id=fact.id.replace(".b1k.", ".hot.")) for fact in hot]
    for name in ("stock_time", "ours"):  # only rows that are not for these tables
        waits = f"{MISSING}: no record of small_m: `python -m upstream_patch bench`\n"
        assert section(issue.render(hot, TEST_HOSTS), name) == waits


def test_every_number_outside_the_tables_is_from_the_form(facts: list[Fact]) -> None:
    """No sentence is generated: what lies between the tables is the same whatever the facts are."""
    assert managed.strip(issue.render(facts, TEST_HOSTS)) == managed.strip(issue.render([], TEST_HOSTS))


def elsewhere(facts: list[Fact], host: str, vendor: str) -> list[Fact]:
    """The same facts as of another machine's records, with 77.25 for every number."""
    return [
        replace(
            fact,
            id=fact.id.replace(".test.", f".{host}.").replace(".test-", f".{host}-"),
            host=host,
            record_path=fact.record_path.replace("/test", f"/{host}"),
            value=vendor if fact.id.endswith(".vendor") else fact.value if isinstance(fact.value, str) else 77.25,
        )
        for fact in facts
    ]


def test_hosts_never_share_a_table(facts: list[Fact]) -> None:
    text = issue.render([*facts, *elsewhere(facts, "rtx5090", "NVIDIA")], TEST_HOSTS)
    for name in ("stock_time", "ours", "profiled", "correctness"):
        parts = re.split(r"#### (\w+)\n", section(text, name))
        assert parts[1::2] == ["test", "rtx5090"]
        assert "77.2" not in parts[2]
        assert "77.2" in parts[4] and "70.0" not in parts[4]


@pytest.mark.parametrize(("host", "vendor"), [("m5", "Apple"), ("radeon", "AMD")])
def test_no_other_vendor_is_in_the_cuda_issue(facts: list[Fact], host: str, vendor: str) -> None:
    assert issue.render([*facts, *elsewhere(facts, host, vendor)], TEST_HOSTS) == issue.render(facts, TEST_HOSTS)


def test_each_table_has_the_hosts_with_such_facts(facts: list[Fact]) -> None:
    profiled = [fact for fact in elsewhere(facts, "gb10", "NVIDIA") if fact.id.startswith(("ncu.", "record."))]
    text = issue.render([*(fact for fact in facts if not fact.id.startswith("ncu.")), *profiled], TEST_HOSTS)
    hosts = {name: re.findall(r"#### (\w+)", section(text, name)) for name in ("stock_time", "profiled", "correctness")}
    assert hosts == {"stock_time": ["test"], "profiled": ["gb10"], "correctness": ["test"]}


def test_tables_hold_no_sentences(facts: list[Fact]) -> None:
    """What the columns mean is in evidence/README.md: the issue's prose is a person's."""
    text = issue.render(facts, TEST_HOSTS)
    for name in ("stock_time", "ours", "profiled", "correctness"):
        lines = [line for line in section(text, name).splitlines() if line and not line.startswith(("|", "####"))]
        kinds = "|".join(re.escape(order) for order in tables._ORDER.values())
        form = rf"bf16, affine 4-bit, .*, cold weights, (?:{kinds})|{re.escape(tables._INTERVAL)}"
        assert [line for line in lines if not re.fullmatch(form, line)] == []


def test_calls_that_wait_for_one_another_have_a_table_of_their_own(synthetic: Any) -> None:
    rows = [synthetic.bench_row(m) for m in (1, 8)]
    chained = [
        row.model_copy(update={"protocol": row.protocol.model_copy(update={"order": "chain"}), "ours_us": [20.0] * 12})
        for row in rows[1:]
    ]
    synthetic.write(synthetic.bench([*rows, *chained]))
    ours = section(issue.render(derive(synthetic.load(), lambda kernel: "ab" * 32), TEST_HOSTS), "ours")
    queue, chain = ours.split("each call waits for the one before through a link kernel that both arms run and that")
    assert "calls that the GPU may overlap" in queue
    assert re.findall(r"\n\| (\d+) \| 4096 \| 4096 \| (.*?) \| (.*?) \|", queue) == [
        ("1", "10.0", "10.0"),
        ("8", "80.0", "10.0"),
    ]
    assert re.findall(r"\n\| (\d+) \| 4096 \| 4096 \| (.*?) \| (.*?) \|", chain) == [("8", "80.0", "20.0")]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (graphs.RAISED, f"may overlap, MLX's graph limits: {graphs.RAISED}, one CUDA graph a sample\n"),
        ("default", "may overlap, MLX's graph limits: default\n"),
        (None, "may overlap\n"),
    ],
)
def test_the_graph_limits_are_said(synthetic: Any, limits: str | None, said: str) -> None:
    notes = [f"{GRAPH_LIMITS}{limits}"] if limits else []
    synthetic.write(synthetic.bench([synthetic.bench_row(7)]).model_copy(update={"notes": notes}))
    text = issue.render(derive(synthetic.load(), lambda kernel: "ab" * 32), TEST_HOSTS)
    assert said in section(text, "ours")
    assert said in section(text, "stock_time")


def test_the_host_cost_of_a_call_and_a_stale_one_withholds_only_itself(synthetic: Any) -> None:
    costs = [
        HostCost.model_validate(
            {
                "call": call,
                "problem": Problem(m=1, n=512, k=512),
                "stock_us": [stock] * 3,
                "ours_us": [stock + 1] * 3,
                "dispatch_hash": "12" * 32,
            }
        )
        for call, stock in (("build", 1.25), ("run", 4.5))
    ]
    synthetic.write(synthetic.bench([synthetic.bench_row(7)]).model_copy(update={"host_cost": costs}))
    ours = {
        today: section(issue.render(derive(synthetic.load(), lambda kernel: "ab" * 32, today * 32), TEST_HOSTS), "ours")
        for today in ("12", "34")
    }
    assert "| build | 1.25 | 2.25 |\n| build and enqueue | 4.50 | 5.50 |\n" in ours["12"]
    assert "| 7 | 4096 | 4096 | 70.0 | 10.0 |" in ours["34"]
    assert "host cost of a call: stale, renew it on test with `python -m upstream_patch bench`\n" in ours["34"]
    assert "2.25" not in ours["34"]


def test_a_stale_fact_is_refused_with_what_renews_it(facts: list[Fact], tmp_path: Path) -> None:
    stale = [replace(fact, stale=fact.id.endswith(".M7.speedup")) for fact in facts]
    with pytest.raises(
        UserError, match=r"M7\.speedup is stale, .*: renew it on test with `python -m upstream_patch bench`"
    ):
        issue.write(tmp_path, stale, TEST_HOSTS)
    assert list(tmp_path.iterdir()) == [tmp_path / "evidence"]
    unused = [replace(fact, stale=fact.id.endswith(".route")) for fact in facts]
    issue.write(tmp_path, unused, TEST_HOSTS)


def test_synthetic_facts_are_refused(facts: list[Fact], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="facts of host 'test' come from synthetic records"):
        issue.write(tmp_path / "out", facts)
    assert not (tmp_path / "out").exists()
