"""Costs fitted to published figures: they give the figures back, and what figures lack is named."""

from collections.abc import Mapping
from typing import Any

import pytest

from schemas.evidence import ClassChange, Fact
from tests.made_evidence import shipped_case
from twin.evidence.figure_fit import FigureFit, effects_of, fit_of, ttft_ms

OFF_ON = {"enable_prefix_caching": (False, True)}
TTFT = Fact(level="request", name="TTFT", unit="ms", base=476.0, candidate=343.0)
TOTAL = Fact(level="kernel", name="kernel total", unit="s", base=6.842, candidate=2.764)
GEMM = ClassChange(span_class="compute", level="kernel", unit="ms", base=1795.302, candidate=558.524)
ATTENTION = ClassChange(span_class="attention", level="kernel", unit="ms", base=571.032, candidate=186.275)
SINGLE = "single-request prefill"


def fitted(
    facts: tuple[Fact, ...] = (TTFT, TOTAL),
    classes: tuple[ClassChange, ...] = (GEMM, ATTENTION),
    settings: Mapping[str, tuple[Any, Any]] = OFF_ON,
    tried: str = SINGLE,
) -> FigureFit:
    found = fit_of(facts, classes, settings, tried)
    assert isinstance(found, FigureFit), found
    return found


def test_the_twin_gives_the_published_figures_back_at_the_hit_ratio_of_each_reading() -> None:
    readings = fitted().readings
    assert [round(each.hit_ratio, 2) for each in readings] == [0.60, 0.69, 0.82]
    for each in readings:
        assert ttft_ms(each, 0.0) == pytest.approx(476.0, rel=0.001)
        assert ttft_ms(each, each.hit_ratio) == pytest.approx(343.0, rel=0.005)
        assert each.fixed_ms + each.prefill_ms == pytest.approx(476.0)


def test_more_hits_never_cost_time_and_the_readings_are_the_interval() -> None:
    changes = [(each.low_ratio, each.change_ratio, each.high_ratio) for each in effects_of(fitted())]
    assert changes[0] == pytest.approx((0.0, 0.0, 0.0))
    for low, middle, high in changes[1:]:
        assert low is not None
        assert middle is not None
        assert high is not None
        assert -1.0 < low < middle < high < 0.0
    assert changes[2] < changes[1]


def test_the_cache_switched_off_reads_the_same_costs() -> None:
    def turned(fact: Fact) -> Fact:
        return Fact(level=fact.level, name=fact.name, unit=fact.unit, base=fact.candidate, candidate=fact.base)

    back = fitted((turned(TTFT), turned(TOTAL)), (), {"enable_prefix_caching": (True, False)})
    assert back.readings == fitted(classes=()).readings


def test_a_reading_that_would_leave_less_than_nothing_is_none() -> None:
    """Fewer hits than TTFT fell by cannot be all that happened."""
    little = Fact(level="kernel", name="kernel total", unit="s", base=1.0, candidate=0.9)
    assert [each.told_by for each in fitted((TTFT, little), (GEMM,)).readings] == ["GEMM/FFN/MoE compute"]
    assert "no kernel figure tells" in str(fit_of((TTFT, little), (), OFF_ON, SINGLE))


@pytest.mark.parametrize(
    ("facts", "settings", "tried", "lacks"),
    [
        ((TTFT, TOTAL), {}, SINGLE, "no side has the prefix cache on"),
        ((TTFT, TOTAL), OFF_ON, "32 concurrent", "queueing"),
        ((TTFT, TOTAL), OFF_ON, "", "queueing"),
        ((TOTAL,), OFF_ON, SINGLE, "no TTFT"),
        ((TTFT,), OFF_ON, SINGLE, "how much of the prompts hit"),
        ((Fact(level="request", name="TTFT", unit="ms", base=1.0, candidate=2.0),), OFF_ON, SINGLE, "not lower"),
    ],
)
def test_what_figures_lack_is_named(
    facts: tuple[Fact, ...], settings: Mapping[str, tuple[Any, Any]], tried: str, lacks: str
) -> None:
    assert lacks in str(fit_of(facts, (), settings, tried))


def test_the_published_case_is_simulated_and_no_better_graded_for_it() -> None:
    found = shipped_case("published_prefix")
    effects = {each.setting: each for each in found.hypotheses[0].effects}
    assert set(effects) == {"prefix_hit_ratio=0", "prefix_hit_ratio=0.5", "prefix_hit_ratio=0.9"}
    assert effects["prefix_hit_ratio=0.9"].change_ratio == pytest.approx(-0.36, abs=0.02)
    assert found.grade == "C"
    assert any("ISL, chunk size, hit tokens" in text for text in found.missing)
    assert any("assumed" in text for text in found.assumptions)
    assert any("TPOT and throughput were not simulated" in text for text in found.limits)
