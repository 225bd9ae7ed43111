"""Kinds of stretched sentence, each beside the honest one that it is near to."""

from __future__ import annotations

import pytest

from tests.host.draft.said import FACTS, STEM, fact
from upstream_patch.draft import claims

WIDE = "small_m.h200.4096x14336.b4.g64.bf16"
SMALL = "decode.h200.llama-3.2-1b.B8"
KNOWN = [
    *FACTS,
    fact(f"{STEM}.M1.speedup", 2.16, "ratio"),
    fact(f"{STEM}.M33.verdict", "SAME", "text"),
    fact(f"{STEM}.M1.ours_us", 4.29, "us"),
    fact(f"{WIDE}.M8.stock_us", 8.0, "us"),
    fact(f"{WIDE}.M8.ours_us", 10.0, "us"),
    fact("decode.h200.llama-3.1-8b.B8.speedup", 4.0, "ratio"),
    fact(f"{SMALL}.speedup", 1.4, "ratio"),
    fact(f"{SMALL}.stock_tok_s", 1377.0, "tokens/s"),
    fact("ncu.h200.4096x28672.b4.g64.bf16.M4.packed_bytes", 66_100_000.0, "byte"),
    fact("ncu.h200.4096x28672.b4.g64.bf16.M4.stock.dram_bytes_read", 264_200_000.0, "byte"),
    fact("decode.h200.llama-3.1-8b.B8.matmul_speedup", 7.3, "ratio"),
    fact("record.h200-1.mlx", "0.32.4", "text"),
    fact("correctness.h200.bf16.passed", 4833.0, "count"),
]
AT = "M = 7 on 4096 x 4096"
HONEST = f"""
On one H200 {AT} takes 63.1 us; I made two H200 runs.
{AT}: 63.1 us before, 4.6 us after.
{AT} takes 4.6 us (new) vs. 63.1 us (old).
At {AT} ours is 13.8x faster than stock, and at M = 1 2.0x faster than PyTorch.
Ours is 13.8x faster than stock at M = 7 and stock is 2.16x slower than ours at M = 1 on 4096 x 4096.
At M = 8 on 4096 x 14336 ours is slower than stock: 10.0 us instead of 8.0 us.
At {AT} ours is faster than stock, and stock is slower than ours.
At M = 33 on 4096 x 4096 ours takes the same time as stock.
M = 1 to 7 on 4096 x 4096 is between 2.16x and 13.8x faster.
With 4 and 8 bits M = 8 on 4096 x 14336 takes 8.0 and 850 us with stock.
Llama-3.1-8B decodes 4.0x faster than stock at B = 8.
At `M = 7` on `4096 x 4096` stock takes `63.1` us.
All 4,833 bf16 cases passed.
Of the probe's 4.38 TB/s, {AT} reaches 48.2%.
GB10 and M5 were never run.
Nothing here has been run on a GB10 or an M5.
We have run it on no GB10, and the results for M5 are missing.
An RTX 5090 needs the kernel's small tile.
As in Marlin, weights are shuffled; {AT} takes 4.6 us.
In MLX's own kernel {AT} takes 63.1 us, timed with CUDA events under Python 3.12.
M = 7 takes 6% more than M = 1 on 4096 x 4096. <!-- fact {STEM}.M7.ours_us / {STEM}.M1.ours_us -->
The table lists every M.
4096 x 128256 at M = 7 is the largest gain, 26.8x.
Each row is bit-identical to itself alone. <!-- fact correctness.h200.bf16.passed -->
In MLX 0.32 {AT} takes 63.1 us, since MLX 0.29 as was said.
For K = 4096 and N = 4096 M = 7 takes 4.6 us.
For M = 7, 4096 x 4096: 4.6 us versus 63.1 us.
I made 4833 of them. <!-- fact correctness.h200.bf16.passed -->
{AT} accumulates in float32, 16 bytes a thread, and takes 4.6 us.
Stock reads the weights for each row. It takes 63.1 us at {AT}.
DeepGEMM apart, {AT} takes 63.1 us. <!-- fact {STEM}.M7.stock_us -->
"""
WRONG = f"""
63.1 us -> On CPU {AT} takes 63.1 us with stock.
63.1 us -> TTFT falls from 63.1 us to 4.6 us at {AT}.
63.1 us -> With DeepGEMM's kernel {AT} goes from 63.1 us to 4.6 us.
63.1 us -> With MLX 0.28.0, {AT} goes from 63.1 us to 4.6 us.
4.6 us -> The p99 goes from 63.1 us to 4.6 us at {AT}.
1,377 tokens/s -> Each of the 8 clients gets 1,377 tokens/s with stock on Llama-3.2-1B at B = 8.
1,377 tokens/s -> Per sequence, stock makes 1,377 tokens/s at B = 8 on Llama-3.2-1B.
RTX 5090 -> The RTX 5090 in this issue runs the kernel well.
RTX 5090 -> On the RTX 5090 the kernel runs with no issue.
RTX 5090 -> The kernel ran on the RTX 5090; see issue 3.
RTX 5090 -> It has been run on the RTX 5090, where nothing was missing.
RTX 5090 -> We have the RTX 5090 with good cores and it flies.
4.6 us -> On two H200 {AT} takes 4.6 us.
4.6 us -> On a pair of H200 GPUs {AT} takes 4.6 us.
4.6 us -> On a dual-H200 host {AT} takes 4.6 us.
4.6 us -> On H200 nodes {AT} takes 4.6 us.
4.6 us -> On all cards {AT} takes 4.6 us.
4.6 us -> On recent GPUs {AT} takes 4.6 us.
13.8x -> The same on my laptop GPU: 13.8x at {AT}.
63.1 us -> {AT}: 4.6 us before, 63.1 us after.
4.6 us -> {AT}: 63.1 us (new) vs. 4.6 us (old).
4.6 us -> {AT}: 4.6 us became 63.1 us.
63.1 us -> {AT}: 63.1 us, down from 4.6 us.
faster -> At M = 8 on 4096 x 14336 ours is faster than stock: 10.0 us instead of 8.0 us.
8.0 us -> At M = 8 on 4096 x 14336 we win: 8.0 us instead of 10.0 us.
slower -> Marlin is slower than ours at {AT}.
63.1 us -> llama.cpp takes 63.1 us for {AT}.
63.1 us -> DeepGEMM needs 63.1 us at {AT}.
13.8x -> Compared to FlashInfer it is 13.8x faster at {AT}.
13.8x -> Ours beats the QuIP kernels by 13.8x at {AT}.
faster -> At {AT} we are faster than SqueezeLLM.
1.25x -> Ours is 13.8x faster than stock at {AT} and 1.25x faster than stock at M = 8 on 4096 x 14336.
slower -> At {AT} it takes 4.6 us, and stock is faster, ours slower.
2.16x -> M = 1 to 8 on 4096 x 14336 is between 2.16x and 13.8x faster.
3.0x -> With 4 bits M = 1 to 7 on 4096 x 4096 is 3.0x to 13.8x faster.
850 -> With 4 and 8 bits M = 8 on 4096 x 14336 takes 850 and 8.0 us with stock.
4.0x -> Llama-3.2-1B decodes 4.0x faster than stock at B = 8.
264 tok/s -> Llama-3.1-70B decodes 264 tok/s at B = 8 with stock.
264 tok/s -> At B = 8 an H200 decodes 264 tok/s with stock.
4.0x -> Both models decode 4.0x faster than stock at B = 8.
7.3x -> Llama-3.1-8B decodes 7.3x faster at B = 8.
1.7x -> Llama-3.1-8B decodes 1.7x faster at B = 8.
13.8x -> End to end it is 13.8x faster at {AT}.
66.1 MB -> At M = 4 on 4096 x 28672 stock's DRAM reads are 66.1 MB.
4.38 TB/s -> It reads 4.38 TB/s at {AT}.
63.1 us -> It saves 63.1 us at {AT}.
4.6 us -> Each row takes 4.6 us more at {AT}.
4.6 us -> The 95th percentile is 4.6 us at {AT}.
99.9 us -> It takes `99.9` us at {AT}.
63.1 us -> At `M = 6` on `4096 x 4096` stock takes `63.1 us`.
thirty -> The speedup at {AT} is thirty.
5,833 bf16 cases -> All 5,833 bf16 cases passed.
the same -> M = 7 costs the same as M = 1.
no more than -> M = 7 takes no more than M = 1.
the same time -> At {AT} ours takes the same time as stock.
bit-identical -> The results are bit-identical to stock.
is free -> Going from M = 1 to M = 7 is free on 4096 x 4096.
4.6 us -> At M = 7 on 4096 x 4096 in float32 it takes 4.6 us.
4.6 us -> With int8 activations {AT} takes 4.6 us.
63.1 us -> The naive kernel takes 63.1 us at {AT}.
63.1 us -> The CPU takes 63.1 us at {AT}.
63.1 us -> NVIDIA's own int4 GEMM takes 63.1 us at {AT}.
2.0x -> Ours is 2.0x faster than torch.compile at M = 1 on 4096 x 4096.
13.8x -> Compared with exllamav2, {AT} is 13.8x faster.
63.1 us -> Our kernel is quick at {AT}. It takes 63.1 us.
4.6 us -> It used to take 4.6 us and now takes 63.1 us at {AT}.
63.1 us -> It goes to 63.1 us from 4.6 us at {AT}.
competitive -> It is competitive with Marlin.
matches -> It matches hand-tuned kernels.
stays flat -> Latency stays flat up to M = 8 on 4096 x 14336.
63.1 us -> For M = 7, 4096 x 4096: 63.1 us versus 4.6 us.
63.1 us -> For 4 bits (g64) at M = 7, 4096 x 4096: 63.1 us versus 4.6 us.
4.6 us -> M = 7 with K = 14336 and N = 4096 takes 4.6 us.
63.1 us -> In MLX 0.30 {AT} took 63.1 us.
4.6 us -> gather_qmm takes 4.6 us at {AT}.
always -> It is always faster. <!-- fact correctness.h200.bf16.passed -->
13.8x -> {AT} is the largest gain, 13.8x.
4.6 us -> On every machine I tried {AT} takes 4.6 us.
4.6 us -> On a cluster {AT} takes 4.6 us.
4.0x -> Prefill of Llama-3.1-8B is 4.0x faster than stock at B = 8.
half the memory -> It uses half the memory.
as much as -> Four clients cost as much as one.
at the latency of one -> It now handles four clients at the latency of one.
tokens are identical -> Output tokens are identical to stock's.
second to none -> It is second to none.
memory speed -> It runs at memory speed.
No test fails -> No test fails.
7% -> M = 7 takes 7% less than M = 1 on 4096 x 4096. <!-- fact {STEM}.M7.ours_us / {STEM}.M1.ours_us -->
"""


def listed(prose: str) -> list[str]:
    return [str(one) for one in claims.check(prose, KNOWN)]


@pytest.mark.parametrize("sentence", HONEST.strip().splitlines())
def test_an_honest_sentence_is_not_listed(sentence: str) -> None:
    assert listed(sentence) == []


@pytest.mark.parametrize("line", WRONG.strip().splitlines())
def test_a_stretched_one_is(line: str) -> None:
    words, _, sentence = line.partition(" -> ")
    found = listed(sentence)
    named = [one.partition(": ")[2][1:].partition("' ")[0].replace(" ", "").lower() for one in found]
    assert any(words.replace(" ", "").lower() in one for one in named), found


def test_what_stands_beside_another_name_is_cleared_by_its_fact() -> None:
    said = f"DeepGEMM needs 63.1 us at {AT}."
    assert listed(said) == [
        "line 1: '63.1 us' stands beside DeepGEMM, of which this draft has no fact: say whose it is, or pin the fact"
    ]
    assert listed(f"{said} <!-- fact {STEM}.M7.stock_us -->") == []


def test_a_sentence_without_an_end_is_listed_and_not_read() -> None:
    (found,) = listed("faster than stock " * 3000)
    assert found == "line 1: 'faster' begins a sentence of 9,000 words, too long to be read: break it up"


TABLE = "| 4096 x 4096 | {} | {} |\n|---|---:|---|\n| M = 7 | 63.1 us | 4.6 us |"


@pytest.mark.parametrize(
    ("table", "named"),
    [
        (TABLE.format("stock", "ours"), []),
        (TABLE.format("before", "after"), []),
        (TABLE.format("ours", "stock"), ["line 3: '63.1 us'", "line 3: '4.6 us'"]),
        (TABLE.format("after", "before"), ["line 3: '63.1 us'", "line 3: '4.6 us'"]),
        ("On 4096 x 4096:\n\n| M | stock (us) |\n|---|---|\n| 7 | 63.1 |\n| 1 | 63.1 |", ["line 6: '63.1 us'"]),
        ("M | stock on 4096 x 4096, us\n--|--\n1 | 9.31\n7 | 9.31", ["line 4: '9.31 us'"]),
        ("On a GB10:\n\n- 4096 x 4096 at M = 7 takes 4.6 us", ["line 3: '4.6 us'"]),
        ("M = 7 on 4096 x 4096 is slow with stock:\n\n- 63.1 us a call\n- 9.3 us at M = 1", []),
    ],
)
def test_a_table_or_list_is_of_what_stands_over_it(table: str, named: list[str]) -> None:
    found = listed(table)
    assert [one.partition("' ")[0] + "'" for one in found] == named, found
