"""The claim check: what a person may say of the facts, and what is listed with its line and the nearest fact."""

from __future__ import annotations

import pytest

from tests.host.draft.said import FACTS, STEM, listed
from upstream_patch.draft import claims
from upstream_patch.draft.managed import block

PIN = f"<!-- fact {STEM}.M7.stock_us -->"


@pytest.mark.parametrize(
    "prose",
    [
        "On an H200 it takes 63.1 us at M = 7, and 4.6 µs with ours: 13.8x.",
        "4096 x 4096: 63 us; 63.14 microseconds; 0.063 ms; over 60 us. About 220 us with 4096 x 14336.",
        "4096 x 4096 at M = 7: 13.8 times faster. It was 4 rows or 8 rows of a 4-bit weight, M in 2..7, K = 4096.",
        "At M = 7 it reaches 48.2% of the read probe of 4,379 GB/s, that is 4.379 TB/s.",
        "At M = 7 it is 1284% faster, or takes 93% less time.",
        "M = 8 on 4096 x 14336 is slower, 1.25x.",
        "66.06 MB or 63.0 MiB are read at M = 7.",
        "No error in 1,225 launches, and a norm error of 0.00236.",
        "At B = 4, 4 clients, it is 74.2 tok/s on a GB10. From 1 to 8 clients: 74 tok/s.",
        "With four clients a DGX Spark gives 74.2 tok/s, 74 tokens per second.",
        "From 9.3 to 63.1 us on 4096 x 4096. A step of decode at B = 8 takes 3.8 ms, 3810 us.",
        "See #3764, lablup/mlxcel#725 of 2026-07-10, MLX 0.32.4, CUDA 13.0, Llama-3.1-8B, https://a.b/9x, [8, 1, 64].",
        "## 1. Reasons\n\n### 2.1 More\n\n1. first\n2. second\n\n> 3. third",
        "`x[99]` and ``M = 7: 5 x y``\n\n```\nM = 7: 77.7 us\n```\n\n    88.8 us\n",
        "<!-- 99 us -->" + block("ours", "| 99.9 us | fastest |"),
        "On the H200 M = 7 is the best case: 13.8x.",
        "It grows 6.8x from M = 1 to M = 7. <!-- fact " + f"{STEM}.M7.stock_us / {STEM}.M1.stock_us -->",
        "Never slower at M = 7. <!-- fact " + f"{STEM}.M7.speedup -->",
        f"With hot weights, unlike M = 1, M = 7 takes 61.5 us. <!-- fact {STEM}.M7.hot.stock_us -->",
        f"The fastest is 13.8x. <!-- fact {STEM}.M7.speedup -->",
    ],
)
def test_what_the_facts_bear_out(prose: str) -> None:
    assert listed(prose) == []


@pytest.mark.parametrize(
    ("prose", "said"),
    [
        ("At M = 7 it takes 64 us.", f"line 1: '64 us' is no fact; nearest: {STEM}.M7.stock_us = 63.14 us"),
        ("\n\nIt is\n13.9x.", f"line 4: '13.9 x' is no fact; nearest: {STEM}.M7.speedup = 13.84 ratio"),
        (
            "At M = 1 it takes 63.1 us.",  # right of another problem
            f"line 1: '63.1 us' is no fact; nearest: {STEM}.M1.stock_us = 9.31 us",
        ),
        (
            "On 4096 x 14336 it takes 63.1 us.",
            "line 1: '63.1 us' is no fact; nearest: small_m.h200.4096x14336.b4.g64.bf16.M7.stock_us = 220.2 us",
        ),
        (
            "A GB10 takes 63.1 us.",
            f"line 1: '63.1 us' is a fact of another device than GB10; nearest: {STEM}.M7.stock_us = 63.14 us",
        ),
        ("An M5 takes 12.3 us.", "line 1: '12.3 us' is said of M5, of which this draft has no fact"),
        (
            "An M5 Max gives 74.2 tok/s.",
            "line 1: '74.2 tok/s' is said of M5 Max, of which this draft has no fact; nearest: "
            "decode.gb10.llama-3.1-8b.B4.ours_tok_s = 74.21 tokens/s",
        ),
        (
            "An H200 was used.\nIt gives 74.2 tok/s.",  # of the sentence before
            "line 2: '74.2 tok/s' is a fact of another device than H200; nearest: "
            "decode.gb10.llama-3.1-8b.B4.ours_tok_s = 74.21 tokens/s",
        ),
        (
            "A GB10 takes 111 us at M = 2.",
            "line 1: '111 us' is a stale fact: renew it on gb10 with `nox -s bench`; nearest: "
            f"{STEM.replace('h200', 'gb10')}.M2.ours_us = 111 us",
        ),
        (
            "It is the fastest there is.",
            "line 1: 'fastest' stands beside no number that a fact has: give the number, or name M and pin the fact",
        ),
        ("One read serves 17 of them.", "line 1: '17' has no unit, and is no fact"),
        (
            "An error of 0.004.",
            "line 1: '0.004' has no unit, and is no fact; nearest: correctness.h200.bf16.max_norm_error",
        ),
        ("One of 2.5 here.", "line 1: '2.5' has no unit, and is no fact"),
        ("250 TFLOP/s are reached.", "line 1: '250 TFLOP/s' is no fact"),
        (
            "On a GB10 8 clients get 74.2 tok/s.",
            "line 1: '74.2 tok/s' is no fact; nearest: decode.gb10.llama-3.1-8b.B8.stock_tok_s = 99.1 tokens/s",
        ),
        ("13.8x. <!-- fact small_m.nothing -->", "line 1: 'small_m.nothing' is pinned and is no fact"),
        (
            f"63.1 us. <!-- fact {STEM}.M1.stock_us -->",
            f"line 1: '63.1 us' is no fact; nearest: {STEM}.M1.stock_us = 9.31 us",
        ),
        (
            f"M = 4 on 4096 x 14336 takes 63.1 us. {PIN}",
            f"line 1: '63.1 us' is pinned to a fact of another problem or arm than it is said of; nearest: {STEM}.M7",
        ),
        (f"At M = 1 it is slow.\n\nAt M = 1 it differs. It takes 63.1 us. {PIN}", "line 3: '63.1 us' is pinned to"),
        (f"At M = 7 ours takes 63.1 us. {PIN}", "line 1: '63.1 us' is pinned to"),
        (f"With mxfp4 M = 7 takes 63.1 us. {PIN}", "line 1: '63.1 us' is pinned to"),
        (f"At M = 7 an H200 and a GB10 take 63.1 us. {PIN}", "line 1: '63.1 us' is a fact of another device than GB10"),
        (f"It is the fastest. {PIN}", "line 1: 'fastest' stands beside no number"),
        (f"It is never so. {PIN}", "line 1: 'never' is said of all"),
        (f"Never slower at M = 4. {PIN}", "line 1: 'Never' is said of all"),
        (f"On a GB10 at M = 7 never slower. {PIN}", "line 1: 'never' is said of all"),
        ("| M = 7 | 99.5% of the probe |\n| M = 7 | 48.2% of the probe |", "line 1: '99.5 %' is no fact; nearest: "),
    ],
)
def test_what_is_listed(prose: str, said: str) -> None:
    found = listed(prose)
    assert len(found) == 1, found
    assert found[0].startswith(said)


def test_which_facts_a_number_is() -> None:
    said = [
        str(one)
        for one in claims.judge("63.1 us at M = 7, K = 4096, N = 4096.\n\nAt M = 7 and 8, 13.8x or 0.8x or 1x.", FACTS)
    ]
    assert said == [
        f"line 1: '63.1 us' is {STEM}.M7.stock_us = 63.14 us",
        f"line 3: '13.8 x' is {STEM}.M7.speedup = 13.84 ratio",
        "line 3: '0.8 x' is small_m.h200.4096x14336.b4.g64.bf16.M8.speedup = 0.8 ratio",
        "line 3: '1 x' is small_m.h200.4096x14336.b4.g64.bf16.M8.speedup = 0.8 ratio",
    ]


def test_line_ends_move_no_line() -> None:
    assert listed("a\r\n\r\nb 99.9 us\r\n")[0].startswith("line 3: '99.9 us'")


def test_a_sentence_does_not_borrow_the_device_of_another_paragraph() -> None:
    assert listed("A GB10 was not run.\n\nAt M = 7 it takes 63.1 us.") == []
    assert len(listed("A GB10 was not run. At M = 7 it takes 63.1 us.")) == 1
