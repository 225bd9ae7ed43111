"""Reformatting a kernel keeps its hash; any change of a token, an option or an included file does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upstream_patch import kernels
from upstream_patch.errors import UserError
from upstream_patch.records.cpp_tokens import LexError, tokens
from upstream_patch.records.kernel_hash import digest, identity

SOURCE = r"""
#pragma once
#include "helper.cuh"
#include <cuda_bf16.h>
#define TWICE(x) ((x) + (x))
#define PAIR (1, 2)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
template <int M> __global__ void kernel(const float* x, float* y) {
  constexpr auto text = R"d(raw // not a comment \
)d";  // a comment
  y[threadIdx.x] <<= 1'000u + 'a' + "s\"//x"[0]; /* another */
  asm volatile("mma.sync %0;\n" : "+f"(y[0]));
}
#endif
"""
HELPER = "struct Helper { int a; };\n"

WORDS = [
    "x",
    "y1",
    "int",
    "0x1F",
    "1e+5f",
    "1'000",
    ".5",
    '"s // \\" t"',
    "'c'",
    'R"(a\\\n b)"',
    "L'\\''",
    "::",
    "<<=",
    "->*",
    "#",
]
SPACES = [" ", "\n", "\t", "  \n\n ", " /* c \" ' */ ", " // it's \"open\n", " \\\n ", " \\\r\n", "\n/* a\n b */\n"]


def closure(source: str = SOURCE) -> dict[str, str]:
    return {"kernel.cuh": source, "helper.cuh": HELPER}


def of(source: str) -> str:
    return digest(closure(source), ["-std=c++20"])


@given(st.lists(st.tuples(st.sampled_from(WORDS[:-1]), st.sampled_from(SPACES), st.sampled_from(SPACES)), max_size=12))
def test_white_space_and_comments_do_not_count(parts: list[tuple[str, str, str]]) -> None:
    one = "".join(word + space for word, space, _ in parts)
    other = "".join(word + space for word, _, space in parts)
    assert list(tokens(one)) == [word for word, _, _ in parts] == list(tokens(other))
    assert digest({"a": one}, []) == digest({"a": other}, [])


@given(st.data())
def test_any_other_token_is_another_kernel(data: st.DataObject) -> None:
    words = data.draw(st.lists(st.sampled_from(WORDS[:-1]), min_size=1, max_size=12))
    at = data.draw(st.integers(0, len(words) - 1))
    new = data.draw(st.sampled_from([word for word in WORDS[:-1] if word != words[at]]))
    changed = [*words[:at], new, *words[at + 1 :]]
    dropped = [*words[:at], *words[at + 1 :]]
    hashes = {digest({"a": " ".join(some)}, []) for some in (words, changed, dropped)}
    assert len(hashes) == 3


@given(st.lists(st.sampled_from(WORDS), max_size=10), st.lists(st.sampled_from(WORDS), max_size=10))
def test_streams_differ_when_hashes_should(one: list[str], other: list[str]) -> None:
    same = list(tokens(" ".join(one))) == list(tokens(" ".join(other)))
    assert same == (digest({"a": " ".join(one)}, []) == digest({"a": " ".join(other)}, []))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("// a comment", "// it's \"another"),
        (" /* another */", ""),
        ("\n  asm volatile", " asm /* here */ \\\n volatile"),
        ("const float* x", "const float *\n      x"),
        ("#pragma once", "  #  pragma   once  // why"),
        ("((x) + (x))", "((x)+(x))"),
        ("#if defined(__CUDA_ARCH__) &&", "#if defined( __CUDA_ARCH__ ) \\\n  &&"),
        ("PAIR (1, 2)", "PAIR /* no parameters */ (1,2)"),
        ("\n", "\r\n"),
    ],
)
def test_reformatting(old: str, new: str) -> None:
    assert old in SOURCE
    assert of(SOURCE.replace(old, new)) == of(SOURCE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<<= 1", "<< = 1"),
        ("1'000u", "1000u"),
        ("'a'", "'b'"),
        ("mma.sync %0", "mma.sync  %0"),
        (r"\"//x", r"\"// x"),
        ("raw // not", "raw //  not"),
        ("comment \\\n)d", "comment )d"),
        ("PAIR (1, 2)", "PAIR(1, 2)"),
        (">= 800\n", ">= \\\n800 template <int M> struct X;\n"),
        ("#pragma once\n", ""),
        ("<cuda_bf16.h>", "<cuda_fp16.h>"),
        ("(x) + (x))\n", "(x)\n+ (x))\n"),
        ("float* y", "float* yy"),
        ("#endif", "# else\n#endif"),
    ],
)
def test_a_changed_token(old: str, new: str) -> None:
    assert old in SOURCE
    assert of(SOURCE.replace(old, new)) != of(SOURCE)


def test_options_and_included_files_count() -> None:
    base = digest(closure(), ["-std=c++20", "-O3"])
    assert base != digest(closure(), ["-O3", "-std=c++20"])
    assert base != digest(closure(), ["-std=c++20"])
    assert base != digest(closure() | {"helper.cuh": HELPER.replace("int", "long")}, ["-std=c++20", "-O3"])
    assert base == digest(dict(reversed(closure().items())), ["-std=c++20", "-O3"])
    assert digest({"a": "b"}, []) != digest({"b": "a"}, [])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("int a;\n/* never closed", r"kernel\.cuh: line 2: a comment is not closed"),
        ('int a;\\\n\n"open\n', r'kernel\.cuh: line 3: a " literal is not closed'),
        ('R"x(abc)y"', r"kernel\.cuh: line 1: a raw string is not closed"),
        ('#include "lost.cuh"', r'kernel\.cuh: includes "lost\.cuh", which is not in the closure'),
    ],
)
def test_text_that_cannot_be_hashed(source: str, message: str) -> None:
    with pytest.raises(LexError, match=message):
        of(source)
    assert issubclass(LexError, UserError)


def test_includes_are_found_beside_the_including_file() -> None:
    digest({"cuda/a.cuh": '#include "b.cuh"\n#include "mlx/array.h"\n', "cuda/b.cuh": ""}, [])


def test_our_kernel_has_an_identity() -> None:
    for name in kernels.KERNELS:
        found = identity(name)
        assert found.name == name
        assert found.options == list(kernels.OPTIONS)
        noisy = {file: f"// a note\n{text}\n/* the end */\n" for file, text in kernels.closure(name).items()}
        assert found.hash == digest(noisy, kernels.OPTIONS)
