"""Kernel traces by span class and step, and metrics pages: on traces and pages made here."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import ConfigError
from pipelines.ingest.importing import import_files
from pipelines.ingest.kernel_trace import is_step, read_profile, shape_of
from pipelines.ingest.prometheus import parse_scrape
from twin.cost.shape import StepShape
from twin.cost.span_rules import RULES, SpanRule, SpanRules
from twin.cost.taxonomy import SpanClass

BASE_NS = 1_767_189_312_000_000_000
MIXED = "execute_12_context_1(sq10sk30sqsq100sqsk300)_generation_2(sq2sk90sqsq2sqsk4050)"
DECODE = "execute_2_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq2sk92sqsq2sqsk4232)"


def event(cat: str, name: str, ts: float, dur: float, correlation: int | None = None) -> dict[str, Any]:
    found = {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": 0}
    return found | ({"args": {"correlation": correlation}} if correlation is not None else {})


TWO_STEPS = [
    event("user_annotation", MIXED, 100.0, 50.0),
    event("cuda_runtime", "cudaLaunchKernel", 110.0, 3.0, 1),
    event("cuda_runtime", "cudaLaunchKernel", 120.0, 4.0, 2),
    event("cuda_runtime", "cudaStreamSynchronize", 140.0, 5.0),
    event("user_annotation", DECODE, 200.0, 50.0),
    event("cuda_runtime", "cudaGraphLaunch", 210.0, 2.0, 3),
    # The device is still busy with the first step when the host is in the second.
    event("kernel", "sm90_xmma_gemm_bf16bf16", 150.0, 40.0, 1),
    event("kernel", "void flash_fwd_kernel<64>", 190.0, 30.0, 2),
    event("kernel", "reshape_and_cache_flash_kernel", 230.0, 10.0, 3),
    event("kernel", "my_own_kernel", 240.0, 5.0, 3),
    event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 250.0, 1.0, 3),
    {"ph": "i", "cat": "kernel", "name": "instant", "ts": 1.0},
    event("kernel", "negative", 10.0, -1.0),
    event("kernel", "nccl_all_reduce", 1.0, 7.0),
]


def trace(path: Path, events: list[dict[str, Any]], packed: bool = False) -> Path:
    data = json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_device_work_belongs_to_the_step_that_launched_it(tmp_path: Path, packed: bool) -> None:
    profile = read_profile(trace(tmp_path / "t.json", TWO_STEPS, packed))
    mixed, decode = profile.steps
    assert mixed.class_us == {"attention": 30.0, "compute": 40.0}
    assert decode.class_us == {"copy": 11.0, "unknown": 5.0}
    assert (mixed.start_us, mixed.duration_us) == (BASE_NS // 1000 + 150, 70)
    assert mixed.host_us == {"launch": 7.0, "sync": 5.0}
    assert (profile.outside_events, profile.outside_class_us) == (1, {"communication": 7.0})
    assert profile.unknown_names == {"my_own_kernel": 5}


def test_every_device_event_is_in_a_step_or_outside(tmp_path: Path) -> None:
    profile = read_profile(trace(tmp_path / "t.json", TWO_STEPS))
    assert sum(step.events for step in profile.steps) + profile.outside_events == profile.device_events
    told_us = sum(sum(step.class_us.values()) for step in profile.steps) + sum(profile.outside_class_us.values())
    assert told_us == sum(e["dur"] for e in TWO_STEPS if e["cat"] in ("kernel", "gpu_memcpy") and e.get("dur", -1) > 0)


def test_without_correlation_work_belongs_to_the_step_it_lies_in(tmp_path: Path) -> None:
    events = [
        event("gpu_user_annotation", "step[DECODE bs=2]", 100.0, 50.0),
        event("kernel", "fused_moe_kernel", 120.0, 9.0),
        event("kernel", "fused_moe_kernel", 170.0, 9.0),
    ]
    profile = read_profile(trace(tmp_path / "t.json", events))
    assert [(step.shape, step.class_us) for step in profile.steps] == [(None, {"compute": 9.0})]
    assert profile.outside_events == 1


def test_an_annotation_of_vllm_tells_the_shape_exactly() -> None:
    shape, context_tokens = shape_of(MIXED)
    assert context_tokens == 20
    # one chunk of 10 tokens after 20: each sees 20 and those before it
    assert shape == StepShape(1, 10, 10 * 20 + 10 * 11 // 2, 2, 90)
    assert shape_of("step[EXTEND bs=2 toks=512]") == (None, 0)


@pytest.mark.parametrize(
    ("name", "told"),
    [(MIXED, True), ("step[DECODE bs=8]", True), ("step[EXTEND bs=17 toks=8192]", True), ("ProfilerStep#4", True),
     ("step[MIXED bs=2]", True), ("scheduler.run_batch", False), ("DistributedDataParallel.forward", False)],
)  # fmt: skip
def test_steps_are_told_in_both_dialects(name: str, told: bool) -> None:
    assert is_step(name) is told


def test_only_steps_with_a_shape_become_records(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.json", [*TWO_STEPS, event("user_annotation", "step[DECODE bs=2]", 300.0, 9.0),
                                       event("kernel", "gemm", 305.0, 2.0)])  # fmt: skip
    (report,) = import_files(None, [path], check=True).files
    assert report.format == "kernel_trace"
    assert (report.rows_in, report.rows_out) == (7, 5)
    assert report.refused == {"no_shape": 1, "outside_steps": 1}


@pytest.mark.parametrize("text", ["[]", "{}", "{", '{"traceEvents": 5}', "\xff"])
def test_what_is_no_trace_is_one_clear_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="no Chrome trace"):
        read_profile(path)


@pytest.mark.parametrize(
    ("name", "span_class"),
    [
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT32x32x256", SpanClass.COMPUTE),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", SpanClass.COMPUTE),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>", SpanClass.COMPUTE),
        ("kernel_unified_attention_2d", SpanClass.ATTENTION),
        ("reduce_segments", SpanClass.ATTENTION),
        ("void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16>", SpanClass.COPY),
        ("Memcpy HtoD (Host -> Device)", SpanClass.COPY),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", SpanClass.COMMUNICATION),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>", SpanClass.COMMUNICATION),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePass", SpanClass.ELEMENTWISE),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>", SpanClass.ELEMENTWISE),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>", SpanClass.ELEMENTWISE),
        ("_topk_forward", SpanClass.ELEMENTWISE),
        ("cudaLaunchKernel", SpanClass.LAUNCH),
        ("hipGraphLaunch", SpanClass.LAUNCH),
        ("cudaStreamSynchronize", SpanClass.SYNC),
        ("my_own_kernel", None),
    ],
)  # fmt: skip
def test_names_fall_in_their_class(name: str, span_class: SpanClass | None) -> None:
    assert SpanRules().classify(name) is span_class


def test_own_rules_come_first_and_carry_their_version() -> None:
    rules = SpanRules().with_rules([SpanRule("my_own", SpanClass.COMPUTE)], "site-3")
    assert (rules.classify("my_own_kernel"), rules.version) == (SpanClass.COMPUTE, "site-3")
    assert SpanRules().classify("my_own_kernel") is None
    with pytest.raises(ValueError, match=r"\("):
        SpanRules().with_rules([SpanRule("(", SpanClass.COPY)], "x")


def test_every_class_has_a_rule() -> None:
    assert {rule.span_class for rule in RULES} == set(SpanClass)


def test_labels_with_escapes_and_exemplars_are_read_and_the_rest_counted() -> None:
    page = [
        'up{path="C:\\\\x",quote="\\"a\\"",line="a\\nb",} 1',
        "rate 2.5 1796052001000",
        'latency_bucket{le="+Inf"} 5 # {trace_id="x"} 0.5',
        "nan_value NaN",
        "# EOF",
        'broken{a="b" 1',
        "9name 1",
        "noval",
    ]
    scrape = parse_scrape(page)
    assert [sample.name for sample in scrape.samples] == ["up", "rate", "latency_bucket"]
    assert scrape.samples[0].labels == {"path": "C:\\x", "quote": '"a"', "line": "a\nb"}
    assert scrape.malformed == 3
