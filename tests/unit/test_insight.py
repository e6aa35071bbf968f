"""Insight on a made job: forecasts stay as they are, an engine more helps an overloaded service, cheaper steps help."""

from dataclasses import replace

import numpy as np
import pytest

from pipelines.standard_job import standard_job
from schemas.slos import SloTarget
from twin.insight import insight, run_with_insight
from twin.job import Insight, SimulationJob
from twin.simulate import run
from twin.traffic.forecast import RateForecast


def job_of(rate_per_s: float) -> SimulationJob:
    job = standard_job(replications=4)
    return replace(
        job,
        phase="fine",
        with_insight=True,
        slos=(SloTarget(metric="ttft_s", quantile=0.95, limit_s=0.5),),
        traffic=replace(job.traffic, rate=RateForecast.steady(rate_per_s)),
    )


def test_insight_changes_no_forecast() -> None:
    plain, rich = run(job_of(10.0)), run_with_insight(job_of(10.0))
    assert plain.insight == Insight()
    assert rich.insight != Insight()
    for a, b in zip(plain.scenario().horizons, rich.scenario().horizons, strict=True):
        assert np.array_equal(a.latency_s, b.latency_s)


def test_a_coarse_job_or_one_that_does_not_ask_gets_none() -> None:
    assert run_with_insight(job_of(10.0).at_phase("coarse")).insight == Insight()
    assert run_with_insight(replace(job_of(10.0), with_insight=False)).insight == Insight()


def test_more_engines_help_an_overloaded_service_and_cheaper_steps_rank_first() -> None:
    found = insight(job_of(20.0))
    by_engines = {point.engines: point for point in found.responses}
    assert sorted(by_engines) == [1, 2, 3, 4]
    assert by_engines[1].breach_probability > 0.5 > by_engines[4].breach_probability
    assert by_engines[4].goodput_requests_per_s.value > by_engines[1].goodput_requests_per_s.value
    assert found.bottlenecks[0].ttft_p95_change_ratio < -0.02
    ranks = [bottleneck.ttft_p95_change_ratio for bottleneck in found.bottlenecks]
    assert ranks == sorted(ranks)


def test_the_ceiling_does_not_depend_on_the_rate_offered_today() -> None:
    low, high = (insight(job_of(rate)).ceiling_requests_per_s for rate in (4.0, 20.0))
    assert low is not None
    assert high is not None
    assert low.value == pytest.approx(high.value, rel=0.05)
