"""Kernel traces for evidence: classes against labels given by hand, and traces that lack something."""

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.errors import ConfigError
from pipelines.evidence.evidence_sources import is_trace, profile_of_steps, read_profiles, read_rules, trace_notes
from pipelines.ingest.kernel_trace import read_profile
from schemas.steps import Step
from tests.kernel_labels import BY_DIGEST, BY_NAME, LATER, digest
from tests.kernel_labels_second import AFTER_VERSION_3, BEFORE_VERSION_3, WITH_PLAIN_WORDS
from tests.made_evidence import half_loaded, window
from tests.made_jobs import AS_OF_US
from twin.cost.span_rules import SpanRules
from twin.cost.taxonomy import SpanClass
from twin.evidence.profile import KernelProfile, kernel_classes, kernel_facts

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "kernel_traces"
TRACES = sorted(DATA.glob("*.json.gz"))
NO_DATA = "no kernel traces beside the project"


def kernel(name: str, ts: float, dur: float, stream: int = 7, cat: str = "kernel") -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "ts": ts,
        "dur": dur,
        "pid": 0,
        "tid": stream,
        "args": {"stream": stream},
    }


def trace(path: Path, events: list[dict[str, Any]], base_ns: int | None = 1_767_189_312_000_000_000) -> Path:
    head = {} if base_ns is None else {"baseTimeNanoseconds": base_ns}
    path.write_text(json.dumps({**head, "traceEvents": events}))
    return path


GEMM = kernel("ampere_sgemm_32x128_nt", 0.0, 60.0)
FLASH = kernel("void flash_fwd_kernel<64>", 60.0, 30.0)
OWN = kernel("my_own_kernel", 90.0, 10.0)


def test_rules_agree_with_labels_given_by_hand() -> None:
    rules = SpanRules()
    wrong = [name for name, label in BY_NAME.items() if rules.classify(name) != label]
    assert len(BY_NAME) + len(BY_DIGEST) == 200
    assert len(wrong) / len(BY_NAME) <= 0.05, wrong


def test_names_labelled_after_the_rules_agree_as_well() -> None:
    rules = SpanRules()
    wrong = [name for name, label in LATER.items() if rules.classify(name) != label]
    assert len(LATER) == 45
    assert len(wrong) / len(LATER) <= 0.05, wrong
    assert not set(LATER) & set(BY_NAME)


@pytest.mark.parametrize(
    "labels", [BEFORE_VERSION_3, AFTER_VERSION_3, WITH_PLAIN_WORDS], ids=["before", "after", "last"]
)
def test_names_of_other_stacks_agree(labels: dict[str, str]) -> None:
    rules = SpanRules()
    wrong = [name for name, label in labels.items() if rules.classify(name) != label]
    assert len(wrong) / len(labels) <= 0.05, wrong
    assert not set(labels) & (set(BY_NAME) | set(LATER))
    assert not {digest(name) for name in labels} & set(BY_DIGEST)


def test_types_of_a_library_among_the_arguments_say_nothing() -> None:
    rules = SpanRules()
    assert rules.classify("void rowKernel<cutlass::half_t, 4>") is None
    assert rules.classify("void cutlass::Kernel2<cutlass_80_simt>") is SpanClass.COMPUTE


def test_what_was_fused_in_does_not_outweigh_the_kind_of_a_generated_kernel() -> None:
    rules = SpanRules()
    for part in ("all_reduce", "mm", "unified_attention", "reshape_and_cache"):
        assert rules.classify(f"triton_poi_fused_add_{part}_0") is SpanClass.ELEMENTWISE, part


def test_labels_hold_every_class_that_a_kernel_can_have() -> None:
    assert set(BY_NAME.values()) == {"compute", "compute.elementwise", "attention", "communication", "copy"}
    assert set(BY_NAME.values()) <= set(SpanClass)


@pytest.mark.skipif(not TRACES, reason=NO_DATA)
def test_a_sample_of_200_kernels_of_the_traces_agrees() -> None:
    """Names are weighed as often as they ran: 200 events drawn from all traces alike, and every distinct name once."""
    rules, rng = SpanRules(), np.random.default_rng(20261130)
    names: list[str] = []
    distinct: set[str] = set()
    for path in TRACES:
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        own = [event["name"] for event in events if event.get("ph") == "X" and event.get("cat") == "kernel"]
        names += [own[i] for i in rng.choice(len(own), 200 // len(TRACES), replace=False)]
        distinct |= set(own)
    assert len(names) == 200
    drawn = Counter(rules.classify(name) == BY_DIGEST[digest(name)] for name in names)
    each = Counter(rules.classify(name) == BY_DIGEST[digest(name)] for name in distinct)
    assert drawn[True] / 200 >= 0.95
    assert each[True] / len(distinct) >= 0.95


@pytest.mark.parametrize("path", TRACES or [pytest.param(None, marks=pytest.mark.skip(reason=NO_DATA))])
def test_every_given_trace_is_classified(path: Path) -> None:
    profile = read_profile(path)
    assert profile.device_events > 400
    assert profile.unknown_ratio < 0.05
    assert sum(profile.class_events.values()) == profile.device_events
    assert profile.busy_us <= profile.total_us * (1.0 + 1e-6)  # stamps of 1e15 us are rounded
    assert profile.busy_us <= profile.window_us * (1.0 + 1e-6)


def profile_of(tmp_path: Path, name: str, events: list[dict[str, Any]], **fields: Any) -> KernelProfile:
    found, _ = read_profiles([trace(tmp_path / name, events, **fields)], SpanRules())
    assert found is not None
    return found


def test_classes_of_both_sides_add_up_and_share_the_change(tmp_path: Path) -> None:
    base = profile_of(tmp_path, "a.json", [GEMM, FLASH, OWN])
    faster = profile_of(tmp_path, "b.json", [{**GEMM, "dur": 20.0}, FLASH, OWN])
    rows = {row.span_class: row for row in kernel_classes(base, faster)}
    assert set(rows) == {"compute", "attention", "unknown"}
    assert rows["compute"].share_of_change_ratio == pytest.approx(1.0)
    assert sum(row.share_of_change_ratio or 0.0 for row in rows.values()) == pytest.approx(1.0)
    assert kernel_facts(base, faster)[0].change_ratio == pytest.approx(-0.4)
    assert base.unclassified_ratio == pytest.approx(0.1)


def test_a_trace_without_kernels_adds_no_level_and_says_so(tmp_path: Path) -> None:
    host = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0.0, "dur": 5.0}
    found, notes = read_profiles([trace(tmp_path / "host.json", [host])], SpanRules())
    assert found is None
    assert "host.json holds no kernels" in notes[0]
    both, _ = read_profiles([trace(tmp_path / "x.json", [host]), trace(tmp_path / "y.json", [GEMM])], SpanRules())
    assert both is not None
    assert both.traces == 1


def test_a_trace_without_a_time_base_is_summed_and_says_so(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.json", [GEMM, FLASH], None)
    profile = read_profile(path)
    assert not profile.has_time_base
    assert profile.total_us == 90.0
    assert "no time base" in trace_notes(path, profile)[0]
    assert trace_notes(path, read_profile(trace(tmp_path / "u.json", [GEMM, FLASH]))) == ()


def test_kernels_that_overlap_on_one_stream_are_counted_and_told(tmp_path: Path) -> None:
    inside = kernel("nccl_all_reduce", 10.0, 30.0)
    path = trace(tmp_path / "t.json", [GEMM, inside, FLASH])
    profile = read_profile(path)
    assert (profile.overlapping_events, profile.overlap_us) == (1, 30.0)
    assert profile.busy_us == 90.0
    assert "25.0 % of kernel time is counted twice" in trace_notes(path, profile)[0]


def test_a_trace_that_counts_too_much_twice_adds_no_level_and_says_so(tmp_path: Path) -> None:
    long = kernel("nccl_all_reduce", 10.0, 80.0)
    found, notes = read_profiles([trace(tmp_path / "t.json", [GEMM, long, FLASH])], SpanRules())
    assert found is None
    assert "it adds no kernel level" in notes[0]


def test_kernels_without_stamps_have_no_time_base_and_no_overlap(tmp_path: Path) -> None:
    bare = [{key: value for key, value in event.items() if key != "ts"} for event in (GEMM, FLASH, OWN)]
    profile = read_profile(trace(tmp_path / "t.json", bare))
    assert (profile.has_time_base, profile.overlapping_events, profile.total_us) == (False, 0, 100.0)


def test_streams_may_overlap_and_rounded_stamps_are_no_overlap(tmp_path: Path) -> None:
    beside = kernel("nccl_all_reduce", 10.0, 30.0, stream=9)
    rounded = kernel("void flash_fwd_kernel<64>", 59.5, 30.0)
    profile = read_profile(trace(tmp_path / "t.json", [GEMM, beside, rounded]))
    assert profile.overlapping_events == 0


def test_own_rules_come_first_and_carry_their_version(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('version = "ours-3"\n[[rule]]\npattern = "my_own"\nclass = "copy"\n')
    rules = read_rules(file)
    found, _ = read_profiles([trace(tmp_path / "t.json", [GEMM, OWN])], rules)
    assert found is not None
    assert found.unclassified_ratio == 0.0
    assert found.classes["copy"].total_ms == pytest.approx(0.01)
    assert found.rules_version.startswith("ours-3")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('version = "1"\n[[rule]]\npattern = "("\nclass = "copy"\n', r"\("),
        ('version = "1"\n[[rule]]\npattern = "x"\nclass = "no such"\n', "no such"),
        ('version = "1"\n[[rule]]\npattern = "x"\nklass = "copy"\n', "klass|class"),
    ],
)
def test_a_wrong_rule_is_named(tmp_path: Path, text: str, where: str) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=where):
        read_rules(file)


def test_class_times_that_steps_carry_are_a_profile() -> None:
    plain = window(half_loaded(count=20))
    assert profile_of_steps(plain) is None
    classes = {"compute": 700, "attention": 200, "of_their_own": 100}
    timed = [
        Step(step=n, start_us=AS_OF_US + n, duration_us=1200, decode_requests=1, class_us=classes) for n in range(5)
    ]
    found = profile_of_steps(replace(plain, steps={"e0": tuple(timed)}))
    assert found is not None
    assert (found.steps, found.total_ms) == (5, pytest.approx(5.0))
    assert found.unclassified_ratio == pytest.approx(0.1)


def test_times_that_cannot_be_are_left_out_and_told(tmp_path: Path) -> None:
    events = [GEMM, kernel("flash_fwd", 100.0, 1e300), kernel("flash_fwd", 1e300, 1.0), kernel("flash_fwd", 0.0, -5.0)]
    profile = read_profile(trace(tmp_path / "t.json", events))
    assert (profile.device_events, profile.damaged_events) == (1, 3)
    assert profile.class_us == {"compute": 60.0}
    assert any("3 kernels have times that cannot be" in note for note in trace_notes(tmp_path / "t.json", profile))


def test_a_trace_that_is_a_list_of_events_is_read_as_one(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text(json.dumps([GEMM, FLASH]))
    assert is_trace(tmp_path / "list.json")
    assert read_profile(tmp_path / "list.json").class_us == {"attention": 30.0, "compute": 60.0}
    (tmp_path / "other.json").write_text("[1, 2]")
    assert not is_trace(tmp_path / "other.json")
