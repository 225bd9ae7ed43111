"""The staged Metal kernels as text: their instances, and the source that mx.fast compiles, against MLX's own words."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.errors import UserError
from upstream_patch.kernels import metal, metal_source
from upstream_patch.kernels.metal import Staged, instances
from upstream_patch.machine import find_mlx_headers

NAME = re.compile(
    r"affine_qmm_t_nax_(?P<kind>staged|splitk)_(?P<type>bfloat16_t|float16_t)_gs_(?P<group>\d+)_b_(?P<bits>\d)"
    r"_bm(?P<bm>\d+)_bn64_bk64_wm(?P<wm>\d)_wn(?P<wn>\d)_alN_true(?:_batch_(?P<batch>[01]))?"
)


def named(host_name: str) -> Staged:
    """The instance that a host name says."""
    found = NAME.fullmatch(host_name)
    assert found is not None, host_name
    assert int(found["wm"]) * 16 == int(found["bm"])
    assert int(found["wm"]) * int(found["wn"]) == 4
    dtype = {text: dtype for dtype, text in metal.TYPES.items()}[found["type"]]
    kind = {"batched": found["batch"] == "1", "split": found["kind"] == "splitk"}
    return Staged(int(found["bits"]), int(found["group"]), dtype, int(found["bm"]), **kind)


def test_every_instance_has_its_name() -> None:
    every = instances()
    assert len(every) == 7 * 3 * 2 * 2 * 3
    assert [named(each.host_name) for each in every] == list(every)
    asked = {(i.bits, i.group_size, i.dtype, i.bm, i.batched, i.split) for i in every}
    kinds = {(False, False), (True, False), (False, True)}
    whole = product((1, 2, 3, 4, 5, 6, 8), (32, 64, 128), ("bf16", "f16"), (32, 64), kinds)
    assert asked == {(*others, *kind) for *others, kind in whole}
    usual = Staged(4, 64, "bf16")
    assert usual.host_name == "affine_qmm_t_nax_staged_bfloat16_t_gs_64_b_4_bm64_bn64_bk64_wm4_wn1_alN_true_batch_0"
    assert usual.template_arguments == "bfloat16_t, 64, 4, 64, false"
    parts = Staged(3, 32, "f16", 32, split=True)
    assert parts.host_name == "affine_qmm_t_nax_splitk_float16_t_gs_32_b_3_bm32_bn64_bk64_wm2_wn2_alN_true"
    assert parts.template_arguments == "float16_t, 32, 3, 32"
    assert {each.shared_bytes for each in every} == {18_432}
    assert usual.grid(65, 192, 3) == (3, 2, 3)
    assert parts.grid(65, 192) == (3, 3, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"bits": 7},
        {"group_size": 16},
        {"dtype": "f32"},
        {"bm": 16},
        {"batched": True, "split": True},
    ],
)
def test_what_there_is_no_instance_of_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no staged Metal kernel for"):
        Staged(**{"bits": 4, "group_size": 64, "dtype": "bf16", **wrong})


def bare(text: str) -> str:
    """Without comments and strings."""
    return re.sub(r'//[^\n]*|"[^"\n]*"', "", text)


LINTS = {
    "newer than C++17": r"\b(?:requires|concept|consteval|constinit|co_\w+|char8_t)\b|<=>"
    r"|\]\s*<\s*(?:typename|class|int|bool)\b|\{\s*\.\w+\s*=",
    "not in Metal": r"\b(?:double|new|delete|throw|try|virtual|dynamic_cast|goto|size_t)\b|\bstd::"
    r"|\bstatic\s+\w+\s+\w+\s*=",
}


@pytest.mark.parametrize("path", metal.sources())
def test_the_sources_hold_what_apples_compiler_takes(path: str) -> None:
    text = metal.sources()[path]
    assert {what: re.findall(lint, bare(text)) for what, lint in LINTS.items()} == {what: [] for what in LINTS}
    assert max(map(len, text.splitlines())) <= 120
    assert bare(text).count("[[kernel]]") == (path != metal.path_of(metal.IMPLEMENTATION))
    assert "—" not in text


def test_a_lint_sees() -> None:
    for text in ("requires (n > 1)", "auto f = []<typename T>(T t) {}", "T t = {.a = 1};", "a <=> b"):
        assert re.search(LINTS["newer than C++17"], text)
    for text in ("double x;", "static int n = 0", "std::min"):
        assert re.search(LINTS["not in Metal"], f"{text} ")


@pytest.fixture(scope="module")
def root() -> Path:
    found = find_mlx_headers()
    if found is None:
        pytest.skip("no MLX wheel with Metal headers")
    return Path(found)


@pytest.mark.needs_metal_front
def test_the_header_holds_each_of_mlxs_headers_once_and_none_of_its_preamble(root: Path) -> None:
    text = metal_source.header(root)
    assert not re.search(r'#\s*include\s*"|#\s*pragma\s+once', text)
    places = []
    for name in ("steel/defines.h", "steel/utils/type_traits.h", "steel/gemm/nax.h", "steel/utils.h"):
        own = (root / metal.PLACE / name).read_text("utf-8").splitlines()
        line = max((each for each in own if "include" not in each), key=len)
        assert text.count(f"{line}\n") == own.count(line)
        places.append(text.index(line))
    assert places == sorted(places)
    assert text.index("qmm_t_nax_staged_impl") > places[-1]
    assert "elem_to_loc(\n    IdxT elem" not in text  # of utils.h, which mx.fast puts before it
    assert "[[kernel]]" not in text


def test_without_mlxs_headers_there_is_an_error_and_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"MLX's header .*\.h cannot be read .*: install MLX again"):
        metal_source.header(tmp_path)


SOME = (
    Staged(4, 64, "bf16"),
    Staged(3, 32, "f16", 32, batched=True),
    Staged(8, 128, "bf16", 32, split=True),
)


@pytest.mark.parametrize("instance", SOME, ids=lambda each: each.host_name)
def test_mlx_writes_the_signature_that_the_simulator_runs(
    instance: Staged, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """MLX prints what it would compile, with no Metal device, while a function is being exported."""
    mx = pytest.importorskip("mlx.core")
    dtype = mx.bfloat16 if instance.dtype == "bf16" else mx.float16
    batch, m, n, k = ((3,) if instance.batched else ()), 8, 128, 256
    kernel = mx.fast.metal_kernel(
        name=instance.host_name,
        input_names=list(metal_source.input_names(instance)),
        output_names=[metal_source.OUTPUT],
        source=metal_source.body(instance),
        header="// all that stands before it\n",
        ensure_row_contiguous=False,
    )
    arrays = [
        mx.zeros((*batch, n, k * instance.bits // 32), mx.uint32),
        *(mx.zeros((*batch, n, k // instance.group_size), dtype) for _ in range(2)),
        mx.zeros((*batch, m, k), dtype),
    ]
    scalars = {"K": k, "N": n, "M": m, "partition": k // 2, "stride": m * n}

    def call(*given: Any) -> Any:
        return kernel(
            inputs=[*given, *(mx.array(scalars[name], mx.int32) for name in metal_source.input_names(instance)[4:])],
            output_shapes=[(2 if instance.split else 1, m, n)],
            output_dtypes=[mx.float32 if instance.split else dtype],
            grid=(128, 1, 1),
            threadgroup=(128, 1, 1),
            verbose=True,
        )[0]

    mx.export_function(str(tmp_path / "kernel.mlxfn"), call, *arrays)
    written = capfd.readouterr().out.split("```\n")[1]
    ours = "// all that stands before it\n" + metal_source.function(instance)
    mlxs = re.sub(rf"custom_kernel_({instance.host_name})\w*\(", r"\1(", written)
    assert mlxs.replace("\n\n", "\n").strip() == ours.replace("\n\n", "\n").strip()
