"""What the writer refuses, and what it takes out of the text it stores."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.errors import UserError
from upstream_patch.machine import Gpu
from upstream_patch.records import rules
from upstream_patch.records.scrub import Scrubber, here
from upstream_patch.records.store import verify

H200 = Gpu(name="NVIDIA H200", vendor="nvidia", l2_bytes=60_000_000)
JANE = Scrubber(
    prefixes=(("/srv/tree", "<repo>"), ("/srv/tree/.venv", "<python>")), users=("jane", "root"), machines=("node-17",)
)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def on_h200(synthetic: Any) -> dict[str, Any]:
    return {"host": "h200", "machine": synthetic.machine.model_copy(update={"gpu": H200})}


def test_a_wrong_result_is_no_benchmark(synthetic: Any) -> None:
    wrong = synthetic.bench_row(7, check=synthetic.good.model_copy(update={"passed": False}))
    with pytest.raises(
        UserError, match=r"body\.rows\.1\.check\.passed: 4096x4096\.b4\.g64\.bf16\.M7 gave a wrong result"
    ):
        synthetic.write(synthetic.bench([synthetic.bench_row(1), wrong]), attachments={"a.csv": b"1"})
    assert not synthetic.root.path.exists()


def test_weights_that_fit_the_cache_are_not_cold(synthetic: Any) -> None:
    row = synthetic.bench_row(7)
    protocol = row.protocol.model_copy(update={"copies": 1})
    machine = synthetic.machine.model_copy(update={"gpu": Gpu(name="Synthetic", vendor="none", l2_bytes=4_000_000)})
    with pytest.raises(UserError, match=r"body\.rows\.0\.protocol\.copies: 1 copies are 9437184 bytes"):
        synthetic.write(synthetic.bench([row.model_copy(update={"protocol": protocol})]), machine=machine)
    hot = protocol.model_copy(update={"cache": "hot"})
    synthetic.write(synthetic.bench([row.model_copy(update={"protocol": hot})]), machine=machine)


@pytest.mark.parametrize("arm", ["stock_us", "ours_us", "aa_us"])
def test_a_speed_that_memory_does_not_have_is_refused(synthetic: Any, arm: str) -> None:
    """9,437,184 bytes at a probe of 1000 GB/s take 9.44 us."""
    synthetic.write(synthetic.bench([synthetic.bench_row(1), synthetic.bench_row(2, **{arm: [9.0] * 12})]))
    fast = synthetic.bench_row(2, **{arm: [8.98] * 12})
    said = rf"\.json: body\.rows\.1\.{arm}: {fast.fact_stem} would read cold weights at 1\.051 of this run's read probe"
    with pytest.raises(UserError, match=said):
        synthetic.write(synthetic.bench([synthetic.bench_row(1), fast]), 1)
    hot = fast.model_copy(update={"protocol": fast.protocol.model_copy(update={"cache": "hot"})})
    synthetic.write(synthetic.bench([hot]), 2)


def test_a_signed_record_of_an_impossible_speed_does_not_pass(synthetic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The id follows from the content, so who changes a number can sign it again."""
    monkeypatch.setattr(rules, "MOST_OF_PROBE", 1e9)
    path = synthetic.write(synthetic.bench([synthetic.bench_row(7, ours_us=[0.1] * 12)]))
    monkeypatch.undo()
    (finding,) = verify(synthetic.root)
    assert (finding.path, finding.field) == (f"evidence/records/test/{path.name}", "body.rows.0.ours_us")
    assert finding.message.startswith("4096x4096.b4.g64.bf16.M7 would read cold weights at 94.37 of this run's")


def test_h200_below_its_floor_is_refused(synthetic: Any, tmp_path: Path) -> None:
    given = {**on_h200(synthetic), "root": tmp_path / "real"}
    with pytest.raises(UserError, match=r"body\.probe_gbps: median 4299 GB/s is below 4300 on h200"):
        synthetic.write(synthetic.bench([], probe=4299.0), **given)
    assert not (tmp_path / "real").exists()
    synthetic.write(synthetic.bench([], probe=4300.0), **given)


def test_a_probe_below_98_percent_of_the_best_is_refused(synthetic: Any) -> None:
    synthetic.write(synthetic.bench([], probe=1000.0))
    synthetic.write(synthetic.bench([], probe=985.0), 1)
    with pytest.raises(UserError, match=r"below 98% of this host's best committed probe, 1000"):
        synthetic.write(synthetic.bench([], probe=979.0), 2)
    synthetic.write(synthetic.ncu(), 3)  # no probe, no rule
    assert rules.best_probe("test", [loaded.record for loaded in synthetic.load()]) == 1000.0
    assert rules.best_probe("other", [loaded.record for loaded in synthetic.load()]) == 0.0


def test_verify_sees_a_slow_probe_beside_older_records(synthetic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a record that another branch brought, or that somebody signed."""
    synthetic.write(synthetic.bench([], probe=900.0))
    synthetic.write(synthetic.bench([], probe=1000.0), 1)  # a faster one voids no older one
    assert verify(synthetic.root) == []
    monkeypatch.setattr(rules, "PROBE_SHARE_OF_BEST", 0.0)
    slow = synthetic.write(synthetic.bench([], probe=979.0), 2)
    monkeypatch.undo()
    (finding,) = verify(synthetic.root)
    assert (finding.path, finding.field) == (f"evidence/records/test/{slow.name}", "body.probe_gbps")
    assert finding.message.startswith("median 979 GB/s is below 98% of this host's best committed probe, 1000")


def test_the_host_must_be_this_machine(synthetic: Any, tmp_path: Path) -> None:
    given = on_h200(synthetic) | {"host": "gb10", "root": tmp_path / "real"}
    with pytest.raises(UserError, match="host: says gb10, but its machine is h200"):
        synthetic.write(synthetic.correctness(), **given)


@pytest.mark.parametrize("versions", [{"commit": "unknown"}, {"mlx": "0.32.4"}])
def test_a_known_host_must_name_its_code(synthetic: Any, tmp_path: Path, versions: dict[str, str]) -> None:
    given = on_h200(synthetic) | {"root": tmp_path / "real", "versions": versions}
    with pytest.raises(UserError, match=r"versions\.commit: unknown, .* of h200 .* git clone, or set UPSTREAM_PATCH_"):
        synthetic.write(synthetic.correctness(), **given)
    assert not (tmp_path / "real").exists()
    synthetic.write(synthetic.correctness(), versions=versions)  # the rule is for the hosts that drafts are about


@pytest.mark.parametrize("kind", ["bench", "correctness", "ncu"])
def test_our_kernel_needs_its_identity(synthetic: Any, kind: str) -> None:
    body = {
        "bench": synthetic.bench([synthetic.bench_row(1)]),
        "correctness": synthetic.correctness(),
        "ncu": synthetic.ncu(),
    }[kind]
    with pytest.raises(UserError, match="kernel: missing, although our kernel ran"):
        synthetic.write(body, kernel=None)
    synthetic.write(synthetic.bench([]), kernel=None)


def test_values_that_are_no_numbers(synthetic: Any) -> None:
    bad = synthetic.good.model_copy(update={"norm_error": float("nan")})
    with pytest.raises(UserError, match=r"not stored: body\.cases\.1\.check\.norm_error: nan is not a finite number"):
        synthetic.write(synthetic.correctness(synthetic.good, bad))
    assert not synthetic.root.path.exists()


def test_records_are_never_overwritten(synthetic: Any) -> None:
    path = synthetic.write(synthetic.bench([]))
    before = path.read_bytes()
    with pytest.raises(UserError, match="exists already"):
        synthetic.write(synthetic.bench([]))
    assert path.read_bytes() == before


def test_an_attachment_cannot_leave_its_folder(synthetic: Any) -> None:
    with pytest.raises(UserError, match=r"attachments\.0\.path: String should match"):
        synthetic.write(synthetic.bench([]), attachments={"../../x": b"1"})
    assert not synthetic.root.path.exists()


def test_a_failed_write_leaves_nothing(synthetic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str, **_: bool) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("upstream_patch.records.placing.write_text", full)
    with pytest.raises(UserError, match="No space left on device"):
        synthetic.write(synthetic.bench([]), attachments={"a.csv": b"1"})
    assert files(synthetic.root.path) == []


def test_paths_users_and_machines_leave_every_string(synthetic: Any) -> None:
    raw = b"cwd,/srv/tree/x\nuser,jane\nhost,node-17\n"
    path = synthetic.write(
        synthetic.bench([], probe=1000.0).model_copy(update={"notes": ["jane ran make in /srv/tree", "janet stays"]}),
        command="/srv/tree/.venv/bin/python -m upstream_patch bench --on node-17",
        versions={"mlx": "0.32.4 from /srv/tree"},
        attachments={"raw.csv": raw},
        scrubber=JANE,
    )
    text = path.read_text()
    assert '"command": "<python>/bin/python -m upstream_patch bench --on <host>"' in text
    assert '["<user> ran make in <repo>", "janet stays"]' in text
    assert '"mlx": "0.32.4 from <repo>"' in text
    (loaded,) = synthetic.load()  # the hashes are those of the scrubbed text
    stored = (synthetic.root.path / "raw" / loaded.record.id / "raw.csv").read_text()
    assert stored == "cwd,<repo>/x\nuser,<user>\nhost,<host>\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/srv/tree2/x and /srv/tree", "/srv/tree2/x and <repo>"),
        ("/home/bob/a:/Users/al/b /root/c /rooted", "<home>/a:<home>/b <home>/c /rooted"),
        ("root cause; JANE; jane's; jane-doe", "root cause; <user>; <user>'s; jane-doe"),
        ("node-17.example.org node-171", "<host>.example.org node-171"),
        ("GPU-12345678-1234-1234-1234-123456789abc", "<gpu>"),
        ("C:\\Users\\jane\\x", "<home>\\x"),
        ("from /tmp/site/a.h, /var/tmp/b, /private/tmp/c", "from <tmp>/site/a.h, <tmp>/b, <tmp>/c"),
        ("<repo>/tmp/x <repo>/home/x /tmpfs /srv/tmp", "<repo>/tmp/x <repo>/home/x /tmpfs /srv/tmp"),
        ("/scratch/jane-data/x", "/scratch/<user>-data/x"),
        ("--out=/mnt/jane_nfs/a janet/b /x/janet", "--out=/mnt/<user>_nfs/a janet/b /x/janet"),
        ("//nas/node-17-data, D:\\jane_x", "//nas/<host>-data, D:\\<user>_x"),
        ("jane@node-17:/x x.jane", "<user>@<host>:/x x.<user>"),
    ],
)
def test_scrubber(text: str, expected: str) -> None:
    assert JANE.text(text) == expected


@pytest.mark.parametrize("user", ["nvidia", "python", "linux", "apple", "grace", "bench", "small_m", "our_kernel"])
def test_a_name_that_a_product_has_too(synthetic: Any, user: str) -> None:
    """Such a user must be able to store a record, and nothing in it may lose its meaning."""
    gpu = Gpu(name="NVIDIA Grace our_kernel", vendor="nvidia", l2_bytes=1_000_000)
    machine = synthetic.machine.model_copy(update={"gpu": gpu, "cpu": "NVIDIA Grace", "os": "Linux 6"})
    row = synthetic.bench_row(7, ours_kernels=["our_kernel", "small_m"])
    synthetic.write(synthetic.bench([row]), machine=machine, scrubber=Scrubber(prefixes=(), users=(user,)))
    (loaded,) = synthetic.load()
    record = loaded.record
    assert record.machine == machine
    assert record.body.rows[0].ours_kernels == ["our_kernel", "small_m"]
    assert record.command == "python -m upstream_patch bench"
    assert record.kernel == synthetic.kernel


def test_paths_leave_every_field(synthetic: Any) -> None:
    row = synthetic.bench_row(7, ours_kernels=["/srv/tree/k.cu"])
    text = synthetic.write(synthetic.bench([row]), scrubber=JANE).read_text()
    assert '["<repo>/k.cu"]' in text


def test_site_folders_are_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", ["", "/data/packages", "/usr/lib/python3.12", *sys.path])
    said = here().text("in /data/packages/nvidia/mma.h(55) and /usr/lib/python3.12/ast.py")
    assert said == "in <site>/nvidia/mma.h(55) and /usr/lib/python3.12/ast.py"


@pytest.mark.parametrize("text", ["in\n/tmp/site/mma.h", "/home/bob/x", "GPU-12345678-1234-1234-1234-123456789abc"])
def test_verify_sees_what_should_have_been_taken_out(
    synthetic: Any, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(Scrubber, "text", lambda self, text: text)
    body = synthetic.bench([]).model_copy(update={"notes": [text]})
    record = synthetic.write(body)
    synthetic.write(synthetic.bench([]), 1, attachments={"raw.csv": text.encode()})
    monkeypatch.undo()
    found = [str(finding) for finding in verify(synthetic.root)]
    assert len(found) == 2
    assert found[0].startswith(f"evidence/records/test/{record.name}: holds a path")
    assert re.match(r"evidence/raw/test-[^/]+/raw\.csv: holds a path", found[1])


def test_a_binary_attachment_that_names_the_machine_is_refused(synthetic: Any) -> None:
    assert JANE.data("ok.bin", b"\0\1\2") == b"\0\1\2"
    with pytest.raises(UserError, match=r"attachment report\.bin is binary"):
        synthetic.write(synthetic.bench([]), attachments={"report.bin": b"\0\0/srv/tree/x\0"}, scrubber=JANE)
