"""Forecasts written out by hand, for tests of those who read them."""

import itertools
from typing import Any

from schemas.forecasts import (
    Credibility,
    EngineShare,
    EnginesResponse,
    Estimate,
    Forecast,
    HorizonForecast,
    LatencyEstimate,
    ScenarioForecast,
    SloRisk,
)
from schemas.lineage import Lineage

START_US = 1_796_052_000_000_000
US_PER_S = 1_000_000


def between(value: float, spread: float = 0.2) -> Estimate:
    return Estimate(value=value, low=value * (1 - spread), high=value * (1 + spread))


def horizon(horizon_s: float, ttft_s: float, breach: float | None) -> HorizonForecast:
    risk = () if breach is None else (SloRisk(metric="ttft_s", quantile=0.95, limit_s=0.5, breach_probability=breach),)
    latency = LatencyEstimate(metric="ttft_s", quantile=0.95, value_s=ttft_s, low_s=ttft_s / 2, high_s=ttft_s * 2)
    return HorizonForecast(
        horizon_s=horizon_s, arrivals_per_s=between(5.0), latencies=(latency,),
        throughput_requests_per_s=between(5.0), output_tokens_per_s=between(240.0),
        success_ratio=Estimate(value=1.0, low=1.0, high=1.0), goodput_requests_per_s=between(4.5),
        waiting_peak_requests=between(3.0), kv_peak_ratio=between(0.5), preemptions=between(0.0), slo_risks=risk,
    )  # fmt: skip


def forecast(
    tick: int = 0, *, deployment: str = "d", as_of_us: int | None = None, valid_s: float = 10.0, phase: str = "fine",
    breaches: tuple[float | None, ...] = (0.1, 0.2, 0.3), **more: Any,
) -> Forecast:  # fmt: skip
    """Horizons 30, 60, 120 s; tick k is 5 k seconds after the start."""
    at_us = START_US + tick * 5 * US_PER_S if as_of_us is None else as_of_us
    horizons = tuple(horizon(h, 0.2 * h / 30, b) for h, b in zip((30.0, 60.0, 120.0), breaches, strict=False))
    fields: dict[str, Any] = {
        "lineage": Lineage(
            twincast_version="0", settings_hash="s", costs_hash="c", seed=1, replications=8, engine="kernel"
        ),
        "authority": "guarded",
        "credibility": Credibility(level="medium", reasons=("few rounds scored (3)",)),
        "balance": (EngineShare(engine="0", requests_ratio=1.0, busy_ratio=0.7),),
    }
    return Forecast(
        deployment=deployment, as_of_us=at_us, expires_us=at_us + round(valid_s * US_PER_S), tick=tick, phase=phase,
        input_level="S3", interval_level=0.9, scenarios=(ScenarioForecast(scenario="baseline", horizons=horizons),),
        **(fields | more),
    )  # fmt: skip


def responses(*breaches: float, first: int = 1, goodput_per_s: float = 5.0) -> tuple[EnginesResponse, ...]:
    """Points of `first`, `first` + 1, ... engines."""
    return tuple(
        EnginesResponse(engines=engines, goodput_requests_per_s=between(goodput_per_s * engines), breach_probability=b)
        for engines, b in zip(itertools.count(first), breaches, strict=False)
    )
