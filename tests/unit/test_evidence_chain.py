"""Chains of windows that a twin of known cost left behind: what is found, what is not, and the same again."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from schemas.codec import decode, encode
from schemas.slos import SloTarget
from schemas.topics import EVIDENCE
from tests.made_evidence import costs, half_loaded, window
from tests.made_jobs import COST
from twin.evidence.chain import Comparison, chain
from twin.evidence.measure import Judging, measure
from twin.evidence.profile import ClassTime, KernelProfile
from twin.evidence.window import Window, cut, same_workload
from twin.known.requests import End
from twin.known.variants import with_traffic

REQUESTS = half_loaded()
SHARING = with_traffic(REQUESTS, {"prefix_hit_ratio": 0.8}, 16)
OFF = window(SHARING)
ON = window(SHARING, enable_prefix_caching=True)
SLOW = window(REQUESTS, COST.scaled(1.4), name="slow")
PLAIN = window(REQUESTS, name="plain")


def compared(base: Window, candidate: Window, **fields: object) -> Comparison:
    given = {"costs": costs(COST), "step_costs": {}, "judging": Judging(block_s=7.0), **fields}
    return Comparison(base=base, candidate=candidate, **given)  # type: ignore[arg-type]


def test_the_prefix_cache_is_found_and_its_simulated_effect_is_the_measured_one() -> None:
    found = chain(compared(OFF, ON))
    lead = found.hypotheses[0]
    assert (lead.code, lead.verdict) == ("prefix_reuse", "agrees")
    assert found.span_classes == ("compute", "attention")
    ttft = next(effect for effect in lead.effects if (effect.metric, effect.group) == ("TTFT P50", ""))
    assert ttft.change_ratio == pytest.approx(ttft.observed_ratio, abs=0.005)
    assert ttft.change_ratio is not None
    assert ttft.change_ratio < -0.2


def test_one_level_alone_is_a_hypothesis_of_grade_c() -> None:
    found = chain(compared(OFF, ON))
    assert found.grade == "C"
    assert found.advice.title == "Hypothesis"
    assert any(text.startswith("engine level") for text in found.missing)


def test_a_window_against_itself_gives_no_recommendation_and_nothing_to_run() -> None:
    found = chain(compared(PLAIN, PLAIN))
    assert found.advice.title == "No recommendation"
    assert (found.hypotheses, found.experiments, found.span_classes) == ((), (), ())
    assert not any(fact.changed for fact in found.facts)


def test_what_moves_by_less_than_two_runs_stray_by_is_noise() -> None:
    """Steps six per cent slower, seen without any scatter: an interval alone would call it a change."""
    little = window(REQUESTS, COST.scaled(1.06), name="little")
    found = {floor: measure(PLAIN, little, Judging(7.0, floor)).fact("TPOT P50") for floor in (0.15, 0.03)}
    assert [fact is not None and fact.changed for fact in found.values()] == [False, True]


def test_other_traffic_is_told_and_never_acted_on() -> None:
    busier = window(with_traffic(half_loaded(seed=9, count=500), {"rate_factor": 2.0}, 16), name="busier")
    found = chain(compared(PLAIN, busier))
    assert found.hypotheses[0].code == "load"
    assert found.hypotheses[0].verdict == "agrees"
    assert found.advice.title == "No recommendation"
    assert "same traffic" in found.advice.text


def test_a_slower_machine_without_steps_is_a_change_without_a_cause() -> None:
    found = chain(compared(PLAIN, SLOW))
    assert any(fact.changed for fact in found.facts)
    assert found.hypotheses == ()
    assert found.advice.title == "No recommendation"


def profile(compute_ms: float, attention_ms: float = 200.0) -> KernelProfile:
    classes = {"compute": ClassTime(compute_ms, 100), "attention": ClassTime(attention_ms, 10)}
    total_ms = compute_ms + attention_ms
    return KernelProfile("made", classes, total_ms, total_ms, steps=10, rules_version="made")


def test_a_class_that_a_profile_shows_is_simulated_and_agrees_on_two_levels() -> None:
    """Matrix products, 80 % of the time, take half as long again: steps take 1.4 times as long."""
    found = chain(compared(PLAIN, SLOW, base_profile=profile(800.0), candidate_profile=profile(1200.0)))
    assert [(each.code, each.verdict) for each in found.hypotheses] == [("class:compute", "agrees")]
    assert {
        "kernel level: measured, agrees with the simulation",
        "request level: measured, agrees with the simulation",
    } <= (set(found.grade_reasons))
    assert found.grade == "B"


def test_a_profile_that_moved_less_than_the_requests_does_not_agree() -> None:
    found = chain(compared(PLAIN, SLOW, base_profile=profile(800.0), candidate_profile=profile(1000.0, 200.0)))
    assert found.hypotheses[0].verdict == "disagrees"
    assert found.grade == "C"


def test_a_setting_is_simulated_and_judged() -> None:
    busy = with_traffic(REQUESTS, {"rate_factor": 3.0}, 16)
    narrow, wide = (window(busy, max_num_seqs=size, name=str(size)) for size in (4, 16))
    limit = SloTarget(metric="ttft_s", quantile=0.95, limit_s=1.0)
    found = chain(compared(wide, narrow, limits=(limit,)))
    lead = found.hypotheses[0]
    assert (lead.code, lead.verdict) == ("setting:max_num_seqs", "agrees")
    tried = [effect.setting for effect in lead.effects if effect.observed_ratio is None]
    assert "max_num_seqs=2" in tried
    fallen = {text for effect in lead.effects for text in effect.falls_out}
    assert "TTFT P95 <= 1000 ms" in fallen
    met = [effect for effect in lead.effects if effect.setting == "max_num_seqs=8"]
    assert met
    assert not any(effect.falls_out for effect in met)


def without_hashes(old: Window) -> Window:
    arrivals = old.requests.arrivals
    bare = replace(
        arrivals,
        hash_offsets=np.zeros_like(arrivals.hash_offsets),
        hash_values=arrivals.hash_values[:0],
        hash_block_tokens=0,
    )
    return replace(old, requests=replace(old.requests, arrivals=bare))


def test_without_block_hashes_hits_are_simulated_as_they_were_recorded() -> None:
    lead = chain(compared(without_hashes(OFF), without_hashes(ON))).hypotheses[0]
    ttft = next(effect for effect in lead.effects if (effect.metric, effect.group) == ("TTFT P50", ""))
    assert lead.verdict == "agrees"
    assert ttft.change_ratio == pytest.approx(ttft.observed_ratio, abs=0.02)


def test_hits_that_nobody_tells_are_not_simulated() -> None:
    sides = []
    for side in (without_hashes(OFF), without_hashes(ON)):
        unknown = np.full(len(side.requests), -1)
        sides.append(replace(side, requests=replace(side.requests, cached_tokens=unknown)))
    found = chain(compared(*sides))
    assert found.hypotheses[0].verdict == "not simulated"
    assert any("hits cannot be simulated" in text for text in found.limits)


def test_latencies_of_fewer_requests_are_no_reason_to_act() -> None:
    busy = with_traffic(REQUESTS, {"rate_factor": 3.0}, 16)
    refusing = window(busy, name="refusing")
    end = np.where(np.arange(len(refusing.requests)) % 3 == 0, End.REJECTED, End.FINISHED)
    fewer = replace(refusing, requests=replace(refusing.requests, end=end))
    setting = (msgspec.structs.replace(fewer.configs[0], max_queued_requests=4),)
    found = chain(compared(PLAIN, replace(fewer, configs=setting)))
    assert next(fact for fact in found.facts if fact.name == "served").changed
    assert found.advice.title == "No recommendation"


def test_several_differences_are_judged_together() -> None:
    both = window(SHARING, enable_prefix_caching=True, max_num_seqs=8, name="both")
    found = chain(compared(OFF, both))
    assert [each.code for each in found.hypotheses][-1] == "together"
    assert {each.code for each in found.hypotheses[:-1]} == {"prefix_reuse", "setting:max_num_seqs"}
    weights = [each.weight_ratio or 0.0 for each in found.hypotheses[:-1]]
    assert weights == sorted(weights, reverse=True)
    assert found.hypotheses[-1].verdict == "agrees"


def test_wrong_costs_confirm_nothing() -> None:
    found = chain(compared(OFF, ON, costs=costs(COST.scaled(2.0))))
    assert found.grade == "C"
    assert "not simulated" in found.grade_reasons
    assert "request level: measured, not confirmed by the simulation" in found.grade_reasons
    assert any("does not reproduce the base" in text for text in found.limits)


def test_without_costs_everything_else_is_still_made() -> None:
    found = chain(compared(OFF, ON, costs=None, why_not="no engine is told"))
    assert found.hypotheses[0].verdict == "not simulated"
    assert found.facts
    assert "no engine is told" in found.missing


def test_the_same_comparison_gives_the_same_bytes_and_they_read_back() -> None:
    first, second = (chain(compared(OFF, ON)) for _ in range(2))
    assert encode(first) == encode(second)
    assert decode(EVIDENCE.name, encode(first)).record == first
    assert b"NaN" not in encode(first)


def test_repeats_measure_the_noise_floor_and_count() -> None:
    again = replace(PLAIN, repeats=(PLAIN,))
    assert measure(again, again, Judging()).floor_ratio == pytest.approx(0.03)
    found = chain(compared(replace(OFF, repeats=(OFF,)), replace(ON, repeats=(ON,))))
    assert any("2 runs of each side" in text for text in found.grade_reasons)
    assert "repeats" not in found.missing
    assert measure(replace(PLAIN, repeats=(SLOW,)), PLAIN, Judging()).floor_ratio > 0.3


def test_cut_windows_share_no_member_and_keep_who_came_before() -> None:
    half = PLAIN.to_s / 2
    early, late = cut(PLAIN, 0.0, half), cut(PLAIN, half, PLAIN.to_s)
    assert early.member_count + late.member_count == len(PLAIN.requests)
    assert len(late.requests) == len(PLAIN.requests)
    assert late.arrived_s.min() >= 0.0
    assert not same_workload(early, late)
    assert np.array_equal(early.requests.isl_tokens, PLAIN.requests.isl_tokens[: early.member_count])


def test_a_window_with_no_request_is_refused_and_says_where_they_are() -> None:
    with pytest.raises(ValueError, match=r"no request of plain arrived between .* its requests arrived from"):
        cut(PLAIN, PLAIN.to_s + 10.0, PLAIN.to_s + 20.0)
    with pytest.raises(ValueError, match="0 <= from < to"):
        cut(PLAIN, 5.0, 5.0)


def test_boundaries_count_what_finished_within_the_window() -> None:
    (whole,) = PLAIN.boundaries("base")
    assert (whole.requests_finished, whole.open_requests) == (len(PLAIN.requests), 0)
    in_flight = float(PLAIN.requests.arrived_s[100]) + 1e-3
    (part,) = cut(PLAIN, 0.0, in_flight).boundaries("base")
    assert part.open_requests >= 1
    assert part.events == (part.requests_finished or 0) + part.open_requests
    assert part.window_s == pytest.approx(in_flight)


@pytest.mark.parametrize("fields", [{"block_s": 0.5}, {"floor_ratio": -0.1}, {"floor_ratio": float("nan")}])
def test_judging_is_checked(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"block must|noise floor must"):
        Judging(**fields)


def test_the_record_holds_no_infinite_number() -> None:
    endless = replace(ON, requests=replace(ON.requests, last_s=np.full(len(ON.requests), np.nan)))
    found = chain(compared(OFF, endless))
    assert b"null" in encode(found) or msgspec.json.decode(encode(found))
