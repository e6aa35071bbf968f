"""Forecasts and scores made by hand, for tests of what is built on them."""

import numpy as np

from schemas.forecasts import (
    Credibility,
    Estimate,
    Forecast,
    HorizonForecast,
    LatencyEstimate,
    ScenarioForecast,
    SloRisk,
)
from schemas.lineage import Lineage
from schemas.scores import Score, ScoreCell
from schemas.slos import Metric
from twin.metrics import Latencies
from twin.scoring import Members, closes_us

START_US = 1_800_000_000_000_000
NONE = Estimate(value=0.0, low=0.0, high=0.0)


def forecast_of(
    value_s: float,
    low_s: float,
    high_s: float,
    *,
    quantile: float = 0.5,
    horizon_s: float = 30.0,
    at_s: float = 0.0,
    risks: tuple[SloRisk, ...] = (),
) -> Forecast:
    """A forecast of one quantile of E2E at one horizon, made `at_s` seconds after the start."""
    estimate = LatencyEstimate(metric="e2e_s", quantile=quantile, value_s=value_s, low_s=low_s, high_s=high_s)
    horizon = HorizonForecast(
        horizon_s=horizon_s,
        arrivals_per_s=NONE,
        latencies=(estimate,),
        throughput_requests_per_s=NONE,
        output_tokens_per_s=NONE,
        success_ratio=NONE,
        goodput_requests_per_s=NONE,
        waiting_peak_requests=NONE,
        kv_peak_ratio=NONE,
        preemptions=NONE,
        slo_risks=risks,
    )
    as_of_us = START_US + round(at_s * 1e6)
    return Forecast(
        deployment="d",
        as_of_us=as_of_us,
        expires_us=as_of_us + 20_000_000,
        tick=1,
        phase="fine",
        input_level="S3",
        interval_level=0.9,
        scenarios=(ScenarioForecast(scenario="baseline", horizons=(horizon,)),),
        authority="advisory",
        credibility=Credibility(level="low"),
        lineage=Lineage(
            twincast_version="0", settings_hash="s", costs_hash="c", seed=1, replications=1, engine="kernel"
        ),
    )


def members_of(arrived_s: list[float], e2e_s: list[float], horizon_s: float = 30.0) -> Members:
    """Requests that arrived so many seconds after the start, all metrics but TPOT alike."""
    values = np.array(e2e_s, dtype=np.float64)
    return Members(
        arrived_us=START_US + (np.array(arrived_s) * 1e6).astype(np.int64),
        latencies=Latencies(ttft_s=values, tpot_s=np.full(values.size, np.nan), e2e_s=values),
        closed_us=closes_us(START_US, horizon_s),
    )


def cell_of(
    *,
    forecast_s: float = 1.0,
    low_s: float = 0.5,
    high_s: float = 1.5,
    observed_s: float | None = 1.0,
    loss_s: float = 1.0,
    persistence_s: float | None = 2.0,
    hindsight_s: float = 0.5,
    metric: Metric = "e2e_s",
    quantile: float = 0.5,
) -> ScoreCell:
    """A scored quantile; covered where the observed value lies in the interval."""
    return ScoreCell(
        metric=metric,
        quantile=quantile,
        forecast_s=forecast_s,
        low_s=low_s,
        high_s=high_s,
        observed_s=observed_s,
        covered=observed_s is not None and low_s <= observed_s <= high_s,
        loss_s=loss_s,
        winkler_s=1.0,
        hindsight_loss_s=hindsight_s,
        persistence_loss_s=persistence_s,
    )


def score_of(*cells: ScoreCell, at_s: float = 0.0, horizon_s: float = 30.0, intervened: bool = False) -> Score:
    """The score of a fine forecast made `at_s` seconds after the start."""
    as_of_us = START_US + round(at_s * 1e6)
    return Score(
        deployment="d",
        as_of_us=as_of_us,
        horizon_s=horizon_s,
        closed_us=closes_us(as_of_us, horizon_s),
        phase="fine",
        members=5,
        unfinished=0,
        cells=cells,
        intervened=intervened,
    )
