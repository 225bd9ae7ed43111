"""Records of decode: what the writer refuses, the facts of a row, and what a tracer's process said."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from upstream_patch import readme
from upstream_patch.errors import UserError
from upstream_patch.measure.decode import cupti, trace
from upstream_patch.problem import Problem
from upstream_patch.records import dispatch_hash, facts
from upstream_patch.records.decode_facts import conditions, kernel_function
from upstream_patch.records.decode_schema import DecodeArm, DecodeBody, DecodeCheck, DecodeModel, DecodeRow, DecodeTrace
from upstream_patch.targets import judged, wanted

PROBLEMS = [Problem(m=1, n=n, k=4096, layout="b1k") for n in (4096, 14336)]
MODEL = DecodeModel(
    name="llama-3.1-8b",
    weights="random",
    config={"hidden_size": 4096},
    step_bytes=sum(problem.packed_bytes for problem in PROBLEMS),
    problems=PROBLEMS,
)
CHECK = DecodeCheck(passed=True, logits_error=0.01, matmul_error=0.004, matmuls=2, bound="within 1")


def arm(ms: float, **changes: Any) -> DecodeArm:
    given = DecodeArm(step_ms=[ms] * 8, host_ms=[1.0] * 8, matmul_ms=[ms / 2] * 3, check=CHECK)
    return given.model_copy(update=changes)


def row(batch: int, **changes: Any) -> DecodeRow:
    """Stock takes 4 ms a sequence, folded 8 ms and ours 2 ms whatever their number."""
    given = DecodeRow(
        model=MODEL.name,
        batch=batch,
        prompt=128,
        steps=6,
        stock=arm(4.0 * batch),
        folded=arm(8.0),
        ours=arm(2.0),
        aa_ms=[4.0 * batch] * 8,
        ours_kernels={},
    )
    return given.model_copy(update=changes)


def body(*rows: DecodeRow, **changes: Any) -> DecodeBody:
    given = DecodeBody(
        loop="synthetic",
        probe_gbps=[1000.0],
        mlx_lm="0.0",
        dispatch_hash=dispatch_hash.today(),
        models=[MODEL],
        rows=list(rows),
    )
    return given.model_copy(update=changes)


def derived(synthetic: Any, *bodies: DecodeBody, **given: Any) -> dict[str, facts.Fact]:
    for hours, one in enumerate(bodies):
        synthetic.write(one, age_hours=hours)
    found = facts.derive(synthetic.load(), today=lambda _: synthetic.kernel.hash, **given)
    return {fact.id: fact for fact in found}


def test_a_row_gives_times_rates_and_paired_ratios(synthetic: Any) -> None:
    found = derived(synthetic, body(row(1), row(8)))
    stem = "decode.test.llama-3.1-8b.B8"
    expected = {
        "stock_ms_step": 32.0,
        "stock_tok_s": 250.0,
        "folded_tok_s": 1000.0,
        "ours_tok_s": 4000.0,
        "ours_matmul_share": 0.5,
        "ours_host_ms": 1.0,
        "ours_matmul_read_fraction": MODEL.step_bytes / 1e9 / 1e-3 / 1000.0,
        "ours_logits_error": 0.01,
        "speedup": 16.0,
        "speedup_low": 16.0,
        "speedup_over_folded": 4.0,
        "speedup_verdict": "FASTER",
    }
    assert {name: found[f"{stem}.{name}"].value for name in expected} == pytest.approx(expected)
    assert found["decode.test.llama-3.1-8b.B1.stock_tok_s"].value == 250.0
    assert not any(fact.stale for fact in found.values())
    assert not any("generator" in name for name in found)


def test_every_row_says_what_was_decoded_and_it_is_never_stale(synthetic: Any) -> None:
    found = derived(synthetic, body(row(1), row(8)), dispatch="0" * 64)
    for batch in (1, 8):
        said = [found[f"decode.test.llama-3.1-8b.B{batch}.{name}"] for name in ("weights", "prompt", "mlx_lm")]
        assert [(fact.value, fact.unit, fact.stale) for fact in said] == [
            ("random", "text", False),
            (128, "token", False),
            ("0.0", "text", False),
        ]


def test_conditions_are_said_once_and_where_they_differ_by_batch(synthetic: Any) -> None:
    found = derived(synthetic, body(row(1), row(8)), body(row(8, prompt=64), mlx_lm="0.1"))
    stems = {batch: f"decode.test.llama-3.1-8b.B{batch}" for batch in (1, 8)}
    values = {name: fact.value for name, fact in found.items()}
    old, new = "random weights, 128-token prompts, mlx-lm 0.0", "random weights, 64-token prompts, mlx-lm 0.1"
    assert conditions(stems, values.get) == f"B = 1: {old}; B = 8: {new}"
    assert conditions({1: stems[1]}, values.get) == old
    assert conditions({**stems, 4: "decode.test.llama-3.1-8b.B4"}, values.get) is None


def test_another_kernel_or_dispatch_makes_ours_stale_and_stock_not(synthetic: Any) -> None:
    found = derived(synthetic, body(row(8)), dispatch="0" * 64)
    mine = {fact.id.rpartition(".")[2] for fact in found.values() if fact.stale}
    assert {"ours_tok_s", "speedup", "speedup_over_folded_high"} <= mine
    assert not any(name.startswith(("stock", "folded")) for name in mine)


def test_generator_and_trace_have_facts_of_their_own(synthetic: Any) -> None:
    kernels = [{"kernel": "a", "launches": 2, "us": 30}, {"kernel": "b", "launches": 1.5, "us": 12}]
    one = DecodeTrace.model_validate(
        {"model": MODEL.name, "batch": 8, "arm": "stock", "span_us": 50, "kernels": kernels}
    )
    found = derived(synthetic, body(row(8, ours=arm(2.0, generator_ms=[4.0] * 3)), traces=[one]))
    stem = "decode.test.llama-3.1-8b.B8"
    values = {
        name: found[f"{stem}.{name}"].value
        for name in ("ours_generator_tok_s", "stock_trace.kernels_us", "stock_trace.launches", "stock_trace.span_us")
    }
    assert list(values.values()) == [2000.0, 42.0, 3.5, 50.0]
    assert [found[f"{stem}.stock_trace.b.{name}"].value for name in ("us", "launches")] == [12.0, 1.5]


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("void mlx::core::cu::qmv_kernel<8, 16, cutlass::subbyte<4, false>, cu", "qmv_kernel"),
        ("mlx::core::cu::custom_kernel_small_m_bf16_b4_g64_r8_w16_s2_t2_6b13(int)", "small_m_bf16_b4_g64_r8_w16_s2_t2"),
        ("void (anonymous namespace)::reduce_1d<float>(float const*)", "reduce_1d"),
        ("plain", "plain"),
        ("operator()", "operator"),
        ("<>", "unnamed"),
    ],
)
def test_a_kernel_s_function_names_a_fact(name: str, function: str) -> None:
    assert kernel_function(name) == function


def test_matmuls_alone_have_an_interval(synthetic: Any) -> None:
    slow = arm(32.0, matmul_ms=[15.0, 16.0, 17.0, 16.0])
    found = derived(synthetic, body(row(8, stock=slow, ours=arm(2.0, matmul_ms=[1.0, 1.0, 1.1, 1.0]))))
    low, value, high = (
        float(found[f"decode.test.llama-3.1-8b.B8.matmul_speedup{end}"].value) for end in ("_low", "", "_high")
    )
    assert value == pytest.approx((15 * 16 * 17 / 1.1 * 16) ** 0.25)
    assert 13.0 < low < value < high < 19.0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (body(row(1), row(1)), r"body\.rows\.1: says again what is in body\.rows\.0"),
        (
            body(row(1, ours=arm(2.0, check=CHECK.model_copy(update={"passed": False})))),
            r"rows\.0\.ours\.check\.passed: llama-3\.1-8b\.B1 gave a wrong result",
        ),
        (
            body(row(1, folded=arm(2.0, check=CHECK.model_copy(update={"matmuls": 1})))),
            r"rows\.0\.folded\.check\.matmuls: 1 were checked, a step has 2",
        ),
        # 42 MB at 1000 GB/s are 0.042 ms
        (body(row(1, ours=arm(0.039))), r"rows\.0\.ours\.step_ms: .* no such speed is possible"),
        (body(row(1, ours=arm(0.06, matmul_ms=[0.039] * 3))), r"rows\.0\.ours\.matmul_ms: .* no such speed"),
        (body(row(1, model="other")), r"rows\.0\.model: other is not among the record's models"),
        (
            body(row(1), models=[MODEL.model_copy(update={"step_bytes": 1})]),
            r"models\.0\.step_bytes: says 1, its problems have \d+",
        ),
    ],
)
def test_the_writer_refuses(synthetic: Any, wrong: DecodeBody, said: str) -> None:
    with pytest.raises(UserError, match=said):
        synthetic.write(wrong)
    assert not synthetic.root.path.exists()


@pytest.mark.parametrize("times", [{"step_ms": [1.0] * 7}, {"step_ms": [1.0] * 2}, {"matmul_ms": [0.0] * 3}])
def test_samples_are_paired_and_positive(times: dict[str, list[float]]) -> None:
    tree = json.loads(row(1).model_dump_json())
    tree["ours"] |= times
    with pytest.raises(ValueError, match=r"paired by round|at least 3|greater than"):
        DecodeRow.model_validate(tree)


def on_h200(found: dict[str, facts.Fact]) -> dict[str, facts.Fact]:
    """The facts as if the host were the targets'."""
    moved = [replace(fact, id=fact.id.replace(".test.", ".h200.", 1), host="h200") for fact in found.values()]
    return {fact.id: fact for fact in moved}


def test_targets_and_readme_read_the_facts(synthetic: Any) -> None:
    found = on_h200(derived(synthetic, body(row(1), row(8), row(16))))
    (group,) = [group for group in wanted.GROUPS if group.title.startswith("Decode")]
    results = [judged.judge(target, found) for target in group.targets]
    assert [(one.target.asked_of.id, one.outcome.value) for one in results] == [
        (f"llama-3.1-8b.B{batch}", "met") for batch in (1, 8, 8, 16, 8)
    ]
    assert [one.value for one in results] == pytest.approx([2, 16, 4, 32, 8])
    assert {judged.judge(target, {}).outcome.value for target in group.targets} == {"no record"}
    shown = readme._decoded(found)
    assert "| tokens/s | B = 1 | B = 8 | B = 16 |" in shown
    assert "| stock | 250 | 250 | 250 |" in shown and "| ours | 500 | 4,000 | 8,000 |" in shown
    assert shown.startswith(
        "Decode of the shape of llama-3.1-8b (random weights, 128-token prompts, mlx-lm 0.0), B sequences, "
    )
    assert readme._decoded({}) == ""
    stale = {name: replace(fact, stale=True) for name, fact in found.items()}
    assert readme._decoded(stale).startswith("Decode of a whole model has no record of today's kernel")


def test_launches_and_times_are_of_one_step() -> None:
    kernels = [("a", 0, 4000), ("b", 5000, 5500), ("a", 6000, 8000), ("b", 9000, 9500)]
    assert [(one.kernel, one.launches, one.us) for one in trace.summed(kernels, 2)] == [("a", 1, 3.0), ("b", 1, 0.5)]


def test_long_names_that_begin_alike_stay_apart() -> None:
    first, second = ("void a::kernel<" + "x" * 200 + f"{end}>()" for end in "yz")
    found = trace.summed([(first, 0, 1000), (second, 0, 3000), (first, 0, 1000)], 1)
    assert [(one.launches, one.us) for one in found] == [(1, 3.0), (2, 2.0)]
    assert len({one.kernel for one in found}) == 2
    assert all(one.kernel.startswith(first[:160]) and len(one.kernel) < 200 for one in found)


def test_names_are_shown_as_they_were_written() -> None:
    assert cupti.demangled(b"_Z3fooi") == "foo(int)"
    assert cupti.demangled(b"small_m_affine_4") == "small_m_affine_4"
    assert cupti.demangled(b"_Znonsense!") == "_Znonsense!"


def test_a_kernel_record_lies_as_cupti_lays_it() -> None:
    fields = cupti._Kernel
    assert (fields.start.offset, fields.end.offset, fields.name.offset) == (16, 24, 104)


@pytest.mark.parametrize(
    ("out", "err", "code", "count", "said"),
    [
        (0, "", 0, 1, trace.TRACER),
        (0, "noise\nerror: no CUPTI here\n", 3, 1, "ended with code 3: no CUPTI here"),
        (1, "", 0, 0, "its output cannot be read"),
        (2, "", -11, 0, "ended with code -11: it said nothing"),
    ],
)
def test_what_the_traced_process_gave_is_kept_and_why_it_ended_is_said(
    monkeypatch: pytest.MonkeyPatch, out: int, err: str, code: int, count: int, said: str
) -> None:
    one = {"model": "m", "batch": 1, "arm": "ours", "span_us": 5, "kernels": [{"kernel": "a", "launches": 1, "us": 3}]}
    texts = ["a warning\n" + json.dumps(one), '{"model": 1}', ""]
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], code, texts[out], err))
    traces, why = trace.traced("m", [1], 1.0)
    assert len(traces) == count
    assert said in why


def test_a_trace_that_takes_too_long_is_stopped_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: Any, **__: Any) -> Any:
        raise subprocess.TimeoutExpired([], 7.0, output=b"")

    monkeypatch.setattr(subprocess, "run", late)
    assert trace.traced("m", [1], 7.0) == ([], f"{trace.TRACER}; it ended with code 1: it was stopped after 7 s")
