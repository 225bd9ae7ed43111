"""Names and counters that cannot be are refused, by the writer and of a record that a forger signed again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.errors import UserError
from upstream_patch.machine import Gpu
from upstream_patch.problem import Problem
from upstream_patch.records import dispatch_hash, plausible
from upstream_patch.records.decode_schema import DecodeBody, DecodeModel, DecodeTrace, KernelTime
from upstream_patch.records.schema import Check, Metric, WheelBody, WheelDecode, WheelRow

OURS = "small_m_bf16_b4_g64_r8_w16_s2_t2_0123456789ab"
Write = Callable[..., Path]


@pytest.fixture
def on_h200(synthetic: Any, tmp_path: Path) -> Write:
    gpu = Gpu(name="NVIDIA H200", vendor="nvidia", l2_bytes=60_000_000)
    given = {"host": "h200", "machine": synthetic.machine.model_copy(update={"gpu": gpu}), "root": tmp_path / "real"}

    def write(body: Any, age_hours: int = 0, **changes: Any) -> Path:
        path: Path = synthetic.write(body, age_hours, **given, **changes)
        return path

    return write


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"route": "banana"}, r"rows\.0\.route: 'banana' is no route; known: small_m, stock, stock_folded"),
        ({"ours_kernels": ["banana"]}, r"rows\.0\.ours_kernels: 'banana' is no instance of our kernel"),
        ({"ours_kernels": []}, r"rows\.0\.ours_kernels: \[\] on the route small_m"),
        ({"route": "stock"}, rf"rows\.0\.ours_kernels: \['{OURS}'\] on the route stock"),
    ],
)
def test_a_benchmark_names_a_route_and_a_kernel_that_exist(
    synthetic: Any, on_h200: Write, changes: dict[str, Any], said: str
) -> None:
    row = synthetic.bench_row(7, ours_kernels=[OURS])
    row = row.model_copy(update={"protocol": row.protocol.model_copy(update={"cache": "hot"})})
    on_h200(synthetic.bench([row], probe=4500.0))
    with pytest.raises(UserError, match=said):
        on_h200(synthetic.bench([row.model_copy(update=changes)], probe=4500.0), 1)


def profiled(synthetic: Any, index: int, **changes: Any) -> Any:
    body = synthetic.ncu((7,))
    names = ("qmv_kernel", f"custom_kernel_{OURS}")
    launches = [one.model_copy(update={"kernel": name}) for one, name in zip(body.launches, names, strict=True)]
    launches[index] = launches[index].model_copy(update=changes)
    return body.model_copy(update={"launches": launches})


@pytest.mark.parametrize(
    ("index", "kernel", "said"),
    [
        (0, "anything", r"launches\.0\.kernel: 'anything' is none of MLX's quantized matmuls"),
        (0, OURS, rf"launches\.0\.kernel: '{OURS}' is none of MLX's"),
        (1, "anything", r"launches\.1\.kernel: 'anything' is no instance of our kernel"),
        (1, "qmv_kernel", r"launches\.1\.kernel: 'qmv_kernel' is no instance"),
    ],
)
def test_a_profile_names_kernels_that_exist(synthetic: Any, on_h200: Write, index: int, kernel: str, said: str) -> None:
    on_h200(profiled(synthetic, 0))
    with pytest.raises(UserError, match=said):
        on_h200(profiled(synthetic, index, kernel=kernel), 1)


@pytest.mark.parametrize("read", [1.0, 9_000_000.0, 3e8])
def test_a_call_reads_its_weights_and_not_a_lot_more(synthetic: Any, read: float) -> None:
    """9.4 MB, at most once a row and some."""
    bytes_read = {"dram__bytes_read.sum": Metric(value=read, unit="byte")}
    body = profiled(synthetic, 1, metrics=synthetic.ncu((7,)).launches[1].metrics | bytes_read)
    with pytest.raises(UserError, match=r"launches\.1\.metrics: ours on 4096x4096\S+ read [\de+]+ bytes of memory"):
        synthetic.write(body)


def decoded(arm: str, *kernels: str) -> DecodeBody:
    problem = Problem(m=1, n=64, k=64, layout="b1k")
    model = DecodeModel(name="tiny", weights="random", config={}, step_bytes=problem.packed_bytes, problems=[problem])
    times = [KernelTime(kernel=one, launches=1, us=1) for one in kernels]
    trace = DecodeTrace.model_validate({"model": "tiny", "batch": 1, "arm": arm, "span_us": 9, "kernels": times})
    return DecodeBody(
        loop="none",
        probe_gbps=[4500.0],
        mlx_lm="0",
        dispatch_hash=dispatch_hash.today(),
        models=[model],
        rows=[],
        traces=[trace],
    )


def test_a_trace_has_kernels_and_those_of_its_arm(synthetic: Any, on_h200: Write) -> None:
    with pytest.raises(UserError, match=r"traces\.0\.kernels: a step of tiny without a kernel is no step"):
        synthetic.write(decoded("stock"))
    with pytest.raises(UserError, match=r"traces\.0\.kernels: our kernel ran in a step of stock"):
        on_h200(decoded("stock", "qmv_kernel", f"custom_kernel_{OURS}"))
    on_h200(decoded("stock", "qmv_kernel"))


def wheel(synthetic: Any, count: int, planned: int, every: int | None, **changes: Any) -> WheelBody:
    (case,) = synthetic.correctness(synthetic.good).cases
    module = "qmm_small_m_bfloat16_affine_b4_g64_r8_w16_s2_t4"
    cases = [case.model_copy(update={"seed": seed, "kernels": [module]}) for seed in range(count)]
    check = Check(passed=True, norm_error=0, max_ulp=0, bound="none", columns=1)
    times: dict[str, Any] = {name: [10.0] * 24 for name in ("stock_us", "runtime_us", "wheel_us", "aa_us")}
    row = WheelRow(
        problem=Problem(m=8, n=14336, k=4096), copies=6, ops_per_sample=1, check=check, module=module, **times
    )
    row = row.model_copy(update=changes)
    sha = "ab" * 32
    return WheelBody(library_sha256=sha, host_hash=sha, cases=cases, planned=planned, every=every, rows=[row])


@pytest.mark.parametrize(
    ("count", "planned", "every", "changes", "said"),
    [
        (1, 1, 1, {}, r"body\.cases: 1 cases of 1: 300 of 1000 at least are asked on h200"),
        (28, 1374, 50, {}, r"body\.cases: 28 cases of 1374: 300 of 1000 at least"),
        (344, 1374, 1, {}, r"body\.cases: 344 cases, where every 1-th of 1374 were to be run"),
        (344, 300, None, {}, r"body\.cases: 344 cases, where every n-th of 300 were"),
        (344, 1374, 4, {"module": "banana"}, r"rows\.0\.module: 'banana' is no module of the series' host code"),
        (344, 1374, 4, {"copies": 5}, r"rows\.0\.copies: 5 copies are \d+ bytes: cold needs more than 3 x"),
        (344, 1374, 4, {"wheel_us": [6.0] * 24}, r"rows\.0\.wheel_us: .* reads 1\.28 of h200's least probe"),
    ],
)
def test_a_part_of_the_wheel_builds_matrix_is_no_record(
    synthetic: Any, on_h200: Write, count: int, planned: int, every: int | None, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        on_h200(wheel(synthetic, count, planned, every, **changes))


def test_a_part_stands_in_place_of_no_whole_of_the_same_code(synthetic: Any, on_h200: Write) -> None:
    on_h200(wheel(synthetic, 1374, 1374, 1))
    with pytest.raises(UserError, match=r"body\.cases: 344 cases are a part of the matrix: 1237 of this code"):
        on_h200(wheel(synthetic, 344, 1374, 4), 1)
    changed = wheel(synthetic, 344, 1374, 4).model_copy(update={"host_hash": "cd" * 32})
    on_h200(changed, 1)  # of other code a part says more than nothing


def test_two_decodings_of_one_batch_size(synthetic: Any) -> None:
    one = WheelDecode(batch=1, steps=1, stock_s=[1] * 3, wheel_s=[1] * 3, runtime_s=[1] * 3, same_as_runtime=True)
    body = wheel(synthetic, 1, 1, 1).model_copy(update={"decode": [one, one]})
    with pytest.raises(UserError, match=r"body\.decode\.1: says again what is in body\.decode\.0"):
        synthetic.write(body)


def test_modules_are_named_as_the_host_code_names_them() -> None:
    assert plausible.MODULE.fullmatch("qmm_small_m_float16_nvfp4_b4_g16_r16_w8_s2_t4")
    assert not plausible.MODULE.fullmatch("qmm_small_m_float32_affine_b4_g64_r8_w16_s2_t4")
