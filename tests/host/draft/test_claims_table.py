"""Sentences that a person could write: the honest ones pass, and each wrong one is found by what is wrong in it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.host.draft.said import listed

HONEST = """
On an H200, 4096 x 4096 at M = 7 takes 63.1 us with stock and 4.6 us with ours, 13.8x faster.
At M = 7 and 4096 x 4096 our kernel takes 4.6 us instead of 63.1 us.
4096 x 4096 at M = 7 (63.1 us) against M = 1 (9.3 us): linear in M.
One row of 4096 x 4096 costs 9.3 us with stock and seven rows 63.1 us.
With stock M = 7 on 4096 x 4096 goes from 63.1 us to 4.6 us.
For 4096 x 4096: 9.31 and 63.14 us at M = 1 and 7.
At M = 7 stock and ours take 63.1 us and 4.6 us on 4096 x 4096.
Stock is 13.8x slower than ours at M = 7 on 4096 x 4096.
Compared with stock, M = 7 on 4096 x 4096 is 13.8 times as fast.
At M = 7 (4096 x 4096) the time drops by 93%, to 7% of stock's time.
At M = 7 on 4096 x 4096 it takes 1/14 of stock's time.
Up to 26.8x faster at M = 7.
Up to 26.8x faster.
From M = 1 to M = 7 the time on 4096 x 4096 goes from 9.3 to 63.1 us with stock.
At M = 1 and M = 7 stock takes 9.3 and 63.1 us on 4096 x 4096; peak memory is the same.
At M = 7 the speedup is at least 13.8x, more than an order of magnitude.
A speedup of 26.8 with 4096 x 128256 at M = 7, and a speedup of 13.8 with 4096 x 4096.
M = 8 on 4096 x 14336 is 1.25x slower than stock, or 25% slower.
Ours is faster at M = 7 on 4096 x 4096.
At M = 8 on 4096 x 14336 ours is slower.
PyTorch takes 14.9 us at M = 1 on 4096 x 4096, and ours is 2.0x faster.
Building a call costs the host 2.9 us.
With hot weights M = 7 takes 61.5 us on 4096 x 4096.
At B = 8 an H200 decodes 264 tokens/s with stock; with four clients a GB10 gives 74.2 tok/s.
With stock an H200 and a GB10 decode 264 and 99.1 tok/s at B = 8.
In decode at B = 8 ours is 1.7x faster than folding alone.
Each of 12 planted faults was found, with no error in 1,225 launches.
On an H200 (sm_90, Hopper) it takes 63.1 us at M = 7 with 4096 x 4096.
We have not run it on a GB10 or an M5 Max.
I could not test other GPUs such as an RTX 4090 or an MI300X.
I expect it to help on a B200, too, but own none.
The kernel compiles for sm_80 to sm_121 and needs compute capability 8.0.
Downstream, lablup/mlxcel#725 asks for this on a DGX Station.
The test covers M = 1 to 16, group sizes 32, 64 and 128, and 2, 3, 4, 5, 6 and 8 bits.
It reads the weights once for up to 8 rows, and twice for 9 to 16.
For M > 32 and for group sizes other than 32, 64 and 128 stock's route stays.
Each warp of 32 threads takes 16 columns; half of the threads load scales in half precision.
I ran the script three times in July 2026, with Ubuntu 24.04, driver 580.95.05 and Llama 3.1 8B.
The table below shows where it is slower; could it be made faster?
Built into MLX, M = 5 on 14336 x 4096 takes 10.4 us with our kernel and 157.3 us with stock.
At M = 5 on 14336 x 4096 the wheel takes 0.987x of the runtime delivery, at most 1.009x of it; 344 cases pass.
At B = 4 a step of decode goes from 18.0 ms to 5.05 ms.
Issue 3764 of 2026 and PR 3765 name step 2, table 4.1, Gemma 2 2B, Qwen 3 and kernel 6.8, since 2025.
With Linux 6.8, CUDA 13.0, PyTorch 2.9, MLX 0.32, Python 3.12 and Llama 3.2 1B it takes 9.31 us at M = 1 on 4096 x 4096.
At M = 7 on 4096 x 4096 the patch takes 4.6 us, and main takes 63.1 us.
At M = 7 on 4096 x 4096: before 63.1 us, after 4.6 us.
At M = 7 on 4096 x 4096: old 63.1 us, new: 4.6 us.
At M = 7 on 4096 x 4096 main 63.1 us, this branch 4.6 us.
Before this change M = 7 on 4096 x 4096 took 63.1 us, and after it 4.6 us.
At M = 7 on 4096 x 4096 main is 13.8x slower than this PR.
At M = 7 on 4096 x 4096 this PR is 13.8x faster than main.
The kernel of this PR is 13.8x faster at M = 7 on 4096 x 4096.
The existing kernel takes 63.1 us at M = 7 on 4096 x 4096, and the proposed one 4.6 us.
At M = 7 on 4096 x 4096 the time goes from 63.1 us to 4.6 us, or from 63.1 to 4.6 us.
This PR is for M = 7, where 4096 x 4096 takes 63.1 us.
This PR addresses that M = 7 on 4096 x 4096 takes 63.1 us.
The main reason is that 4096 x 4096 at M = 7 takes 63.1 us, as the new test shows.
As was said before, M = 7 on 4096 x 4096 takes 63.1 us.
It has thirty-two threads a warp, for twenty-five rows, and x is [8, 64]; S = 4096, T = 512 and L = 5.
I ran it dozens of times, it was seen by a third party, a third more general route.
At M = 7 on 4096 x 4096 it is about fourteen times faster.
The Metal code for Apple GPUs, Apple Silicon and a Mac stays as it is.
On this Mac I wrote it, and 4096 x 4096 at M = 7 takes 63.1 us.
It has the layout of Marlin, and is 13.8x faster than stock at M = 7 on 4096 x 4096.
Unlike vLLM's, it is 13.8x faster than stock at M = 7 on 4096 x 4096.
The M5 Max uses our kernel.
An M5 Max, which has unified memory, was not run, and so I do not know how it scales.
As the issue reports, on an M5 Max it is linear, and on an H200 it is too.
It keeps x of [8, 1, 4096] as it is, see [the records](https://a.b/c/9999us) and [1].
"""
WRONG = r"""
8.3 us -> On an H200 4096 x 4096 at M = 7 takes 8.3 us.
63.1 us -> A GB10 takes 63.1 us at M = 7 on 4096 x 4096.
63.1 us -> GB10-class machines take 63.1 us at M = 7.
GB10-class -> It behaves well on GB10-class machines.
63.1 us -> On an H200 it takes 9.3 us at M = 1, and on a GB10 63.1 us at M = 7.
63.1 us -> A GH200 takes 63.1 us at M = 7.
63.1 us -> On sm_121 it takes 63.1 us at M = 7.
63.1 us -> On Hopper it takes 63.1 us at M = 7.
13.8x -> An MI300X is 13.8x faster at M = 7 on 4096 x 4096.
63.1 us -> On an RTX PRO 6000 Blackwell 4096 x 4096 takes 63.1 us at M = 7.
63.1 us -> An A100 80GB takes 63.1 us at M = 7.
63.1 us -> An M4 Max takes 63.1 us at M = 7.
63.1 us -> 8x H200 take 63.1 us at M = 7.
63.1 us -> On H200 and GB10 it takes 63.1 us at M = 7.
13.8x -> An H200 is 13.8x faster than a GB10 at M = 7.
RTX 5090 -> Tested on an H200 and an RTX 5090.
M5 Max -> The same holds for an M5 Max.
L4 -> An L4 likes it as much.
99x -> ## 99x at M = 7
99.9 us -> See [99.9 us at M = 7][1].
1e3 us -> It takes 1e3 us at M = 7.
16k -> A batch of 16k is fine.
1/7 -> It takes 1/7 of the time at M = 7 on 4096 x 4096.
⅓ -> It takes ⅓ of the time at M = 7.
.5 us -> It is .5 us at M = 7.
x12345 -> It is x12345 faster at M = 7.
is twice -> It is twice as fast at M = 7 on 4096 x 4096.
three times -> At M = 7 on 4096 x 4096 it is three times faster.
half the time -> At M = 7 on 4096 x 4096 it takes half the time.
order-of-magnitude -> It is an order-of-magnitude gain at M = 8.
hundredfold -> A hundredfold speedup at M = 7.
doubles -> It doubles the throughput at M = 7.
factor of thirty -> It gains a factor of thirty at M = 7.
outperforms -> Ours outperforms stock.
without regressions -> It comes without regressions.
than any -> It is faster than any other kernel.
never -> It is never slower than 13.8x at M = 7.
64 -> We saw 64 of them.
4096 -> In 4096 runs it was right.
13.8x -> Stock is 13.8x faster than ours at M = 7 on 4096 x 4096.
13.8x -> Stock beats ours by 13.8x at M = 7 on 4096 x 4096.
13.8x -> It is 13.8x slower at M = 7 on 4096 x 4096.
13.8x -> It is 13.8x faster.
13.8x -> Up to 13.8x faster at M = 7.
63.1 us -> Ours takes 63.1 us at M = 7 on 4096 x 4096.
4.6 us -> At M = 7 on 4096 x 4096 ours takes 4.6 us, and stock 4.6 us.
63.1 us -> At M = 7 it takes 63.1 us and at M = 1 63.1 us with 4096 x 4096.
63.1 us -> M = 1 to 7 takes 63.1 us with stock on 4096 x 4096.
63.1 -> At M = 1 and M = 7 stock takes 63.1 and 9.3 us on 4096 x 4096.
by a half -> It cuts the time by a half at M = 7 on 4096 x 4096.
99 times -> It is 5 to 99 times faster at M = 7.
A100 -> On an H200 and an A100 we see the same.
faster -> Ours is faster at M = 8 on 4096 x 14336.
2.0x -> PyTorch is 2.0x faster than ours at M = 1 on 4096 x 4096.
99.1 -> With stock an H200 and a GB10 decode 99.1 and 264 tok/s at B = 8.
2.0x -> Unlike PyTorch's, it is 2.0x faster than stock at M = 1 on 4096 x 4096.
10.4 us -> It takes 10.4 us at M = 7 on 14336 x 4096.
10.4 us -> It takes 10.4 us at M = 5 on 4096 x 14336.
10.4 us -> With mxfp4 M = 5 on 14336 x 4096 takes 10.4 us.
10.4 us -> At M = 5 on 14336 x 4096 in fp16 it takes 10.4 us.
10.4 us -> At M = 5 on 14336 x 4096 with 8 bits it takes 10.4 us.
10.4 us -> At M = 5 on 14336 x 4096 stock takes 10.4 us.
10.6 us -> At M = 5 on 14336 x 4096 stock takes 10.6 us.
157.3 us -> At M = 5 on 14336 x 4096 ours takes 157.3 us.
0.987x -> At M = 5 on 14336 x 4096 it takes 0.987x of stock's time.
1.009x -> Ours is up to 1.009x faster.
5.05 ms -> At B = 8 a step of decode takes 5.05 ms.
18.0 ms -> At B = 4 a step of decode takes 18.0 ms with ours.
5.0 us -> At M = 7 on 4096 x 4096: our kernel 5.0 us.
6 us -> At M = 7 on 4096 x 4096: our kernel 6 us.
999.0 us -> M = 7 on 4096 x 4096, stock MLX 999.0 us.
500 us -> M = 1 on 4096 x 4096: PyTorch 500 us.
5000 tokens/s -> At B = 8 Llama 5000 tokens/s.
30.0 ms -> At B = 8 a step of Llama-3.2-1B 30.0 ms.
2050 us -> At M = 7 it ran in 2050 us.
2050 us -> At M = 7 it went from 2050 us to 63.1 us.
2050 -> At M = 7 it went from 2050 to 63.1 us.
2050 launches -> No error in 2050 launches.
5.1 us -> M = 7 on 4096 x 4096 takes the layer 5.1 us.
99 us -> This is issue 99 us.
63.1 us -> At M = 7 on 4096 x 4096 the patch takes 63.1 us.
63.1 us -> At M = 7 on 4096 x 4096: before 4.6 us, after 63.1 us.
4.6 us -> At M = 7 on 4096 x 4096: before: 4.6 us, after: 63.1 us.
63.1 us -> At M = 7 on 4096 x 4096: old 63.1 us, new 63.1 us.
4.6 us -> At M = 7 on 4096 x 4096: old 4.6 us, new 4.6 us.
4.6 us -> At M = 7 on 4096 x 4096 main 4.6 us, this branch 4.6 us.
63.1 us -> At M = 7 on 4096 x 4096 main takes 63.1 us, this branch 63.1 us.
63.1 us -> At M = 7 on 4096 x 4096 this change takes 63.1 us.
4.6 us -> At M = 7 on 4096 x 4096 upstream takes 4.6 us.
4.6 us -> At M = 7 on 4096 x 4096 the existing kernel takes 4.6 us.
264 tok/s -> At B = 8 on an H200 this PR decodes 264 tok/s.
13.8x -> At M = 7 on 4096 x 4096 main is 13.8x faster than this PR.
4.6 us -> At M = 7 on 4096 x 4096 the time goes from 4.6 us to 63.1 us.
63.1 us -> At M = 7 on 4096 x 4096 the time goes from 4.6 to 63.1 us.
thirty-five times -> At M = 7 on 4096 x 4096 it is thirty-five times faster.
ninety-nine-fold -> At M = 7 on 4096 x 4096 it is a ninety-nine-fold gain.
factor twenty -> At M = 7 on 4096 x 4096 it gains a factor twenty.
by two thirds -> At M = 7 on 4096 x 4096 it cuts the time by two thirds.
a third -> At M = 7 on 4096 x 4096 it takes a third less.
quintuples -> At M = 7 on 4096 x 4096 it quintuples the speed.
dozens of times -> At M = 7 on 4096 x 4096 it is dozens of times faster.
9000 tokens each second -> At B = 8 it decodes 9000 tokens each second.
9000 tokens every second -> At B = 8 it decodes 9000 tokens every second.
9000 tokens in a second -> At B = 8 it decodes 9000 tokens in a second.
90 -> At M = 7 on 4096 x 4096 S = 90.
5 -> At M = 7 on 4096 x 4096 T = 5.
40 -> At M = 7 on 4096 x 4096 the speedup has the interval [30, 40].
30.5 -> - 30.5 is the ratio at M = 7 on 4096 x 4096.
13.8x -> All NVIDIA GPUs get 13.8x at M = 7 on 4096 x 4096.
63.1 us -> On consumer cards M = 7 on 4096 x 4096 takes 63.1 us.
63.1 us -> On Apple Silicon M = 7 on 4096 x 4096 takes 63.1 us.
63.1 us -> On Apple GPUs M = 7 on 4096 x 4096 takes 63.1 us.
63.1 us -> On a Mac M = 7 on 4096 x 4096 takes 63.1 us.
63.1 us -> Strix Halo takes 63.1 us at M = 7 on 4096 x 4096.
63.1 us -> H200NVL takes 63.1 us at M = 7 on 4096 x 4096.
63.1 us -> On Spark: 63.1 us at M = 7 on 4096 x 4096.
13.8x -> At M = 7 on 4096 x 4096 ours is 13.8x faster than vLLM.
13.8x -> At M = 7 on 4096 x 4096 it is a 13.8x speedup over cuBLAS.
faster -> At M = 7 on 4096 x 4096 ours is faster than llama.cpp.
beats -> At M = 7 on 4096 x 4096 ours beats Marlin.
M5 Max -> The M5 Max uses our kernel and decode scales.
M5 Max -> The M5 Max, which has unified memory, decode now scales linearly.
M5 Max -> As the issue says, on an M5 Max it was linear and now it scales.
99.9 us -> [^1]: 99.9 us at M = 7.
99.9 us -> See [it](a.md "99.9 us at M = 7").
99.9 us -> <details><summary>99.9 us at M = 7</summary>
99.9 us -> It takes \`99.9 us\` at M = 7.
2.0x -> It is 2.0x faster than stock at M = 1 on 4096 x 4096.
61.5 us -> M = 7 takes 61.5 us on 4096 x 4096.
850.1 us -> At 4 bits M = 8 takes 850.1 us on 4096 x 14336.
1,225 errors -> 1,225 errors were found.
26,9x -> It takes 26,9x less at M = 7.
99.9 us -> It takes `99.9 us` at M = 7.
9 us -> It takes 9&#57;.9&nbsp;us at M = 7.
99.9 us -> It takes **99.9** us at M = 7.
99.9 us -> It takes <b>99.9</b> us at M = 7.
99.9 us -> ![99.9 us at M = 7](plot.svg)
"""


@pytest.mark.parametrize("sentence", HONEST.strip().splitlines())
def test_an_honest_sentence_is_not_listed(sentence: str) -> None:
    assert listed(sentence) == []


@pytest.mark.parametrize("line", WRONG.strip().splitlines())
def test_a_wrong_one_is(line: str) -> None:
    words, _, sentence = line.partition(" -> ")
    found = listed(sentence)
    named = [one.partition(": ")[2][1:].partition("' ")[0].replace(" ", "") for one in found]
    assert any(words.replace(" ", "") in one for one in named), found


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("## On a GB10\n\nAt M = 7 it takes 63.1 us.", 1),  # the section's
        ("## On a GB10\n\nNot run.\n\n## On an H200\n\nAt M = 7 it takes 63.1 us.", 0),
        ("## On a GB10\n\nNot run.\n\n### Stock\n\nAt M = 7 it takes 63.1 us.", 1),
        ("## On a GB10\n\nNot run.\n<!-- HOLE context: say -->\nAt M = 7 it takes 63.1 us.", 0),  # another text
        ("## M = 7 on 4096 x 4096\n\nIt takes 63.1 us.\n\nOurs takes 4.6 us.", 0),
        ("At M = 1 on 4096 x 4096 it takes 9.3 us. It takes 63.1 us.", 1),
        ("Results of the H200\n===\n\n4096 x 4096 takes 63.1 us.", 0),
    ],
)
def test_what_stands_above_says_what_a_number_is_of(text: str, count: int) -> None:
    assert len(listed(text)) == count, listed(text)


def test_a_text_about_one_machine_says_nothing_of_another() -> None:
    text = "At M = 7 on 4096 x 4096 it takes 63.1 us."
    assert listed(text) == listed(text, "h200") == []
    assert listed(text, "gb10")[0].startswith("line 1: '63.1 us' is a fact of another device than gb10")
    assert listed(f"On an H200 it differs. {text}", "gb10") == []


PIECES = st.sampled_from(
    [
        *HONEST.split(),
        "10^99",
        "5^-3",
        "0^-1",
        "1/0",
        "\u00bd",
        "9" * 400,
        "1e999",
        "M > 9999999",
        "B = 4 to 99999",
        "[",
        "(",
    ]
)


@settings(max_examples=100, deadline=2000)
@given(pieces=st.lists(PIECES, max_size=30), between=st.sampled_from([" ", "", "\n"]))
def test_whatever_a_person_wrote_is_read(pieces: list[str], between: str) -> None:
    listed(between.join(pieces))
