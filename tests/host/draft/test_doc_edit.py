"""The edit of the downstream doc: what it finds, what it refuses, and that it touches nothing else."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from upstream_patch.draft import doc_edit, managed
from upstream_patch.errors import UserError

DEVICE = "NVIDIA GB10"
QUOTE = doc_edit.note("Keep it at 4.\n\n| B | tok/s |\n| --- | --- |\n| 4 | 70.5 |\n", DEVICE)
# In the shape of the doc, in words of our own: an old note and a new one, and the sentence that waits.
OLD = (
    "> Backend note (CUDA / Blackwell, e.g. GB10): one read of the weights serves a batch on Metal only.\nAnd so on.\n"
)
NEW = "> Backend note (CUDA / Blackwell, e.g. GB10): it used to be a wash.\n>\n> Since then 2 to 7 rows share a read.\n"
PENDING = "GB10 amortization headroom is\npending a CUDA measurement session."


def doc(caveat: str = OLD, pending: str = f"The table is for an M1. {PENDING} More.\n") -> str:
    return (
        "# Continuous batching\n\n## Serving-throughput defaults\n\nEscape hatches: some.\n\n"
        f"{caveat}\nMemory sizing: much.\n\n{pending}\n### Bounding it\n\ntext\n\n## Other\n\n> a quote\n"
    )


def edit(text: str, quote: str, device: str = DEVICE) -> str:
    return doc_edit.edit(text, quote, device)


def quoted(text: str) -> str:
    found = re.search(
        r"<!-- BEGIN FACTS cuda_note sha256=\w{16} -->\r?\n(.*?)<!-- END FACTS cuda_note -->", text, re.DOTALL
    )
    assert found
    return found[1]


@pytest.mark.parametrize("caveat", [OLD, NEW], ids=["old", "new"])
def test_the_caveat_and_the_pending_sentence_give_way(caveat: str) -> None:
    after = edit(doc(caveat), QUOTE)
    assert quoted(after) == QUOTE + "\n"
    begins = after.index("<!-- BEGIN")
    assert after[:begins] == doc(caveat).partition(caveat)[0]
    assert after.partition("END FACTS cuda_note -->\n")[2] == (
        doc(caveat).partition(caveat)[2].replace(f" {PENDING}", "")
    )
    assert edit(after, QUOTE) == after
    other = edit(after, QUOTE.replace("70.5", "71.5"))
    assert other != after and other.count("Backend note") == 1


def test_the_note_is_one_block_quote_of_its_own(tmp_path: Path) -> None:
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").enable("table").parse(edit(doc(), QUOTE))
    top = [token.type for token in tokens if token.level == 0 and token.nesting >= 0]
    assert top[2:7] == ["paragraph_open", "html_block", "blockquote_open", "html_block", "paragraph_open"]
    assert [token.type for token in tokens].count("table_open") == 1


@pytest.mark.parametrize(
    ("pending", "left"),
    [
        (f"{PENDING}\n\nafter\n", "after\n"),
        (f"First, e.g. GB10. {PENDING}\n", "First, e.g. GB10.\n"),
        (f"{PENDING} Then 1.5x more.\n", "Then 1.5x more.\n"),
        ("Nothing waits here, pending or not.\n", "Nothing waits here, pending or not.\n"),
    ],
)
def test_only_that_sentence_goes(pending: str, left: str) -> None:
    after = edit(doc(pending=pending), QUOTE)
    assert (
        after.partition("Memory sizing: much.\n\n")[2] == f"{left}\n### Bounding it\n\ntext\n\n## Other\n\n> a quote\n"
    )


ONE = PENDING.replace("\n", " ")


@pytest.mark.parametrize(
    ("pending", "left"),
    [
        (f"- First.\n- {ONE}\n- Last.\n", "- First.\n- Last.\n"),
        (f"- First. {ONE} More.\n- Last.\n", "- First. More.\n- Last.\n"),
        ("- First. GB10 headroom is\n  pending a CUDA measurement. More.\n", "- First. More.\n"),
        ("1. GB10 headroom is\n   pending a CUDA measurement. More\n   of it.\n", "1. More\n   of it.\n"),
        ("> First.\n> GB10 headroom is\n> pending a CUDA measurement.\n> More.\n", "> First.\n> More.\n"),
        (f"> - {ONE}\n\nafter\n", "after\n"),
        (f"> {ONE}\n\nafter\n", "after\n"),
        (f"* a\n\n  - b\n  - {ONE}\n\n* c\n", "* a\n\n  - b\n\n* c\n"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_that_sentence_goes_from_lists_and_quotes(pending: str, left: str, end: str) -> None:
    after = edit(doc(pending=pending).replace("\n", end), QUOTE).replace(end, "\n")
    assert (
        after.partition("Memory sizing: much.\n\n")[2] == f"{left}\n### Bounding it\n\ntext\n\n## Other\n\n> a quote\n"
    )


@pytest.mark.parametrize(
    "pending",
    [f"> First.\n>\n> {ONE}\n", f"- {ONE}\n\n  more\n", f"| a | b |\n| --- | --- |\n| {ONE} | c |\n", f"#### {ONE}\n"],
)
def test_what_cannot_be_cut_with_the_rest_whole_is_told(pending: str) -> None:
    line = doc(pending=pending)[: doc(pending=pending).index(ONE)].count("\n") + 1
    with pytest.raises(
        UserError, match=f"^line {line}: this calls a CUDA measurement pending: take that out by hand first"
    ):
        edit(doc(pending=pending), QUOTE)


@pytest.mark.parametrize(
    "second",
    [
        ">\n> Backend note (CUDA): again.\n",
        ">\n> **Backend note (Metal)**: other.\n",
        "> Backend note (ROCm): other.\n",
        ">\n> - Backend note (Metal): other.\n",
    ],
)
def test_a_second_note_in_the_quote_is_not_replaced_with_it(second: str) -> None:
    with pytest.raises(UserError, match=r"^line 7: the quote holds 2 backend notes: give each a quote of its own"):
        edit(doc(caveat=OLD.rstrip("\n").replace("\nAnd", "\n> And") + f"\n{second}"), QUOTE)


def test_the_section_goes_on_below_deeper_headings() -> None:
    text = doc().replace("\n\n> Backend", "\n\n### Deeper\n\n> Backend")
    assert edit(text, QUOTE).partition("<!-- BEGIN")[0] == text.partition("> Backend")[0]


def test_another_machine_leaves_it_pending() -> None:
    assert PENDING in edit(doc(), QUOTE, "NVIDIA H200")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("# Continuous batching\n\n> Backend note (CUDA): x\n", "the doc has no heading about serving defaults"),
        (doc() + "\n# Serving defaults\n", "the doc has 2 headings about serving defaults"),
        (doc(caveat="> Another note\n"), "the section has no block quote that begins 'Backend note"),
        (doc(caveat=f"```\n{OLD}```\n"), "the section has no block quote that begins"),
        (doc(caveat=f"{OLD}\ntext\n\n{NEW}"), "the section has 2 notes that begin 'Backend note"),
        (doc(pending=f"{PENDING} {PENDING}\n"), r"line \d+: a second sentence calls a CUDA measurement pending"),
        (edit(doc(), QUOTE).replace("70.5", "99.9"), r"line 7: the note was edited by hand since"),
        (
            edit(doc(), QUOTE).replace("<!-- END FACTS cuda_note -->\n", ""),
            "line 7: the markers of the note are",
        ),
        (edit(doc(), QUOTE).replace("<!-- END", "> more\n\n<!-- END"), "line 7: the note was edited by hand"),
        (
            edit(doc(), QUOTE).replace("Memory sizing", "> Backend note (CUDA): x\n\nMemory sizing"),
            "the section has 2 notes that begin",
        ),
        (doc().replace("\n\n> Backend", "\n\n## Next\n\n> Backend"), "the section has no block quote that begins"),
    ],
)
def test_what_it_refuses(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        edit(text, QUOTE)


WORDS = st.text("ab .!`*_|>#-~1(\u00e9\u2028\x0c", max_size=12).map(lambda text: text.replace("Backend", ""))
BLOCK = st.one_of(
    WORDS,
    st.builds("> {}\n> {}".format, WORDS, WORDS),
    st.builds(
        "```\n{}\n```".format, st.sampled_from(["## Serving defaults", "> Backend note (CUDA): in a fence", "x"])
    ),
    st.builds("{}\n---".format, st.sampled_from(["A setext heading", "Another"])),
    st.builds("### {}".format, WORDS),
    st.builds("- a{}\n\n  > Backend note (CUDA): in a list".format, WORDS),
    st.builds("    {}".format, st.just("> Backend note (CUDA): in code")),
    st.builds("<!-- {} -->".format, st.sampled_from(["a comment", "BEGIN FACTS other sha256=0123456789abcdef"])),
)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_every_other_byte_stays(data: Any) -> None:
    """Any Markdown around it, under either heading style, with either line end."""
    end = data.draw(st.sampled_from(["\n", "\r\n"]), label="end")
    heading = data.draw(st.sampled_from(["# Serving-throughput defaults", "Serving-throughput defaults\n==="]))
    around = [data.draw(st.lists(BLOCK, max_size=4), label=where) for where in ("before", "between", "after")]
    caveat = data.draw(st.sampled_from([OLD, NEW]), label="caveat")
    parts = ["\n\n".join(part) for part in around]
    final = data.draw(st.sampled_from(["", "\n", "\n\n"]), label="final")
    before = f"{parts[0]}\n\n{heading}\n\n{parts[1]}\n\n".replace("\n", end)
    after = f"\n\n{parts[2]}{final}".replace("\n", end)
    whole = before + caveat.rstrip("\n").replace("\n", end) + after
    try:
        edited = edit(whole, QUOTE)
    except UserError as error:
        # What was drawn ended the section, or left a fence or a comment open over the caveat.
        assume("no block quote" not in str(error) and "heading" not in str(error))
        raise
    assert edited.startswith(before) and edited.endswith(after)
    note = edited[len(before) : len(edited) - len(after)]
    assert note == managed.block(doc_edit.NAME, QUOTE).replace("\n", end)
    assert edit(edited, QUOTE) == edited


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("final", ["", "\n"])
def test_git_takes_the_diff(tmp_path: Path, end: str, final: str) -> None:
    text = (doc().rstrip("\n") + "\x0c x" + final).replace("\n", end)
    path = tmp_path / "docs" / "CONTINUOUS_BATCHING.md"
    path.parent.mkdir()
    path.write_bytes(text.encode())
    after = edit(doc_edit.read(path), QUOTE)
    (tmp_path / "x.diff").write_bytes(doc_edit.diff("docs/CONTINUOUS_BATCHING.md", text, after).encode())
    subprocess.run(["git", "apply", "--whitespace=nowarn", "x.diff"], cwd=tmp_path, check=True)
    assert path.read_bytes() == after.encode()
    assert doc_edit.diff("x", after, after) == ""


def test_a_doc_that_is_not_there_or_not_utf8(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file .*: name docs/CONTINUOUS_BATCHING.md of a checkout of lablup/mlxcel"):
        doc_edit.read(tmp_path / "none.md")
    (tmp_path / "a.md").write_bytes(b"\xff")
    with pytest.raises(UserError, match="not UTF-8 at byte 0"):
        doc_edit.read(tmp_path / "a.md")
