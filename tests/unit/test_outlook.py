"""Laws of the outlook: ordered intervals, watermarks reached in order, and nothing promised without a ceiling."""

import numpy as np
import pytest
from made_jobs import AS_OF_US, COST, config

from schemas.forecasts import Estimate
from twin.job import EngineSetup
from twin.outlook import SPAN_S, STEP_S, outlook
from twin.traffic.forecast import RateForecast

ENGINES = (
    EngineSetup("a", config(hardware="A100"), COST),
    EngineSetup("b", config(hardware="A100"), COST),
    EngineSetup("c", config(hardware="H100"), COST),
)


def ceiling(value: float) -> Estimate:
    return Estimate(value=value, low=0.9 * value, high=1.1 * value)


def rising(sigma: float = 0.2) -> RateForecast:
    """From 1 per second to about 13 in two hours."""
    anchors = np.arange(0.0, 7201.0, 300.0)
    return RateForecast(anchors, 1.0 * anchors + anchors**2 / 1200.0, np.full(anchors.size, sigma), 2.0)


@pytest.mark.parametrize("sigma", [0.0, 0.1, 0.6])
def test_intervals_are_ordered_and_wider_with_more_doubt(sigma: float) -> None:
    found = outlook(rising(sigma), AS_OF_US)
    assert len(found.value_per_s) == round(SPAN_S / STEP_S)
    for low, value, high in zip(found.low_per_s, found.value_per_s, found.high_per_s, strict=True):
        assert 0.0 <= low <= value <= high
    more = outlook(rising(sigma + 0.2), AS_OF_US)
    assert all(b > a for a, b in zip(found.high_per_s, more.high_per_s, strict=True))


def test_arrivals_of_all_steps_are_those_expected() -> None:
    rate = rising()
    assert sum(outlook(rate, AS_OF_US).value_per_s) * STEP_S == pytest.approx(rate.expected_by(SPAN_S))


def test_watermarks_are_reached_in_order_and_the_upper_side_reaches_them_first() -> None:
    found = outlook(rising(), AS_OF_US, ceiling(10.0), ENGINES)
    assert {(reach.device, reach.engines) for reach in found.reaches} == {("A100", 2), ("H100", 1)}
    for device in ("A100", "H100"):
        mine = [reach for reach in found.reaches if reach.device == device]
        times = [reach.reaches_at_us for reach in mine]
        assert all(time is not None for time in times)
        assert times == sorted(times)  # type: ignore[type-var]
        assert all(r.earliest_us is not None and r.earliest_us <= (r.reaches_at_us or 0) for r in mine)


def test_a_reach_is_where_the_rate_really_crosses() -> None:
    rate = rising(0.0)
    (first, *_) = outlook(rate, AS_OF_US, ceiling(10.0), ENGINES[:1]).reaches
    at_s = ((first.reaches_at_us or 0) - AS_OF_US) / 1e6
    assert (rate.expected_by(at_s + 60) - rate.expected_by(at_s - 60)) / 120 == pytest.approx(7.0, rel=0.15)


def test_what_is_never_reached_or_not_known_is_not_told() -> None:
    calm = outlook(RateForecast.steady(1.0), AS_OF_US, ceiling(50.0), ENGINES)
    assert all(reach.reaches_at_us is None and reach.earliest_us is None for reach in calm.reaches)
    assert outlook(RateForecast.steady(1.0), AS_OF_US, None, ENGINES).reaches == ()
    over = outlook(RateForecast.steady(60.0), AS_OF_US, ceiling(50.0), ENGINES)
    assert {reach.reaches_at_us for reach in over.reaches} == {AS_OF_US}


def test_no_traffic_is_no_rate_with_an_upper_side() -> None:
    found = outlook(RateForecast.steady(0.0), AS_OF_US)
    assert set(found.value_per_s) == {0.0}
    assert min(found.high_per_s) > 0.0
