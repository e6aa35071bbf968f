"""How bursty and how long-tailed past traffic was, and the stress scenarios that follow from it. Forecasts nothing.

All of it is read on operational time, so a slow rise of the rate is no burst. Law: at twice the rate the gap shape and
the tail indices are the same and silences half as long.
"""

import math
from dataclasses import dataclass

import numpy as np

from twin.metrics import FloatArray, IntArray
from twin.traffic.plan import UNKNOWN_TOKENS, TrafficPlan
from twin.traffic.scenarios import MAX_FACTOR, Scenario

LEAST_ARRIVALS = 50
BURST_S = 30.0
LEAST_BURST_FACTOR = 1.5
LONG_RATIO = 0.03
TAIL_RATIO = 0.05
LEAST_TAIL = 10


@dataclass(frozen=True, slots=True)
class BurstShape:
    """Shape of past traffic; NaN where it had too few arrivals.

    `peak_to_mean_*`: the busiest window of that length over the mean. `gap_shape`: shape of a Gamma law of gaps with
    the same coefficient of variation: 1 is Poisson, less is burstier. `longest_silence_s`: the longest gap. The tail
    indices are Hill's over the longest 5 %: below 2 the variance is infinite, above 4 there is hardly a tail.
    """

    rate_per_s: float
    peak_to_mean_1s: float
    peak_to_mean_30s: float
    peak_to_mean_60s: float
    gap_shape: float
    longest_silence_s: float
    isl_tail_index: float
    osl_tail_index: float
    long_isl_factor: float


def burst_shape(plan: TrafficPlan, rate_per_s: float | None = None) -> BurstShape:
    """Shape of a plan's sources, in seconds at `rate_per_s` (None: the rate forecast of the next minute)."""
    sources = plan.sources
    rate = plan.rate.mean_per_s(60.0) if rate_per_s is None else rate_per_s
    if sources.requests < LEAST_ARRIVALS or rate <= 0.0:
        return BurstShape(rate, *(math.nan,) * 8)
    times_s = sources.at / rate
    gaps = np.diff(times_s)
    span_s = sources.extent / rate
    known = sources.osl_tokens[sources.osl_tokens != UNKNOWN_TOKENS]
    cut = np.quantile(sources.isl_tokens, 1.0 - LONG_RATIO)
    long = sources.isl_tokens[sources.isl_tokens >= cut]
    return BurstShape(
        rate_per_s=rate,
        peak_to_mean_1s=_peak(times_s, 1.0, span_s),
        peak_to_mean_30s=_peak(times_s, BURST_S, span_s),
        peak_to_mean_60s=_peak(times_s, 60.0, span_s),
        gap_shape=float(gaps.mean() ** 2 / max(gaps.var(), 1e-18)),
        longest_silence_s=float(gaps.max()),
        isl_tail_index=hill_index(sources.isl_tokens),
        osl_tail_index=hill_index(known),
        long_isl_factor=float(long.mean() / max(np.median(sources.isl_tokens), 1.0)),
    )


def _peak(times_s: FloatArray, window_s: float, span_s: float) -> float:
    """Most arrivals in any window of that length, over its mean; NaN if the traffic is shorter than two windows."""
    if span_s < 2.0 * window_s:
        return math.nan
    most = (np.searchsorted(times_s, times_s + window_s, side="right") - np.arange(times_s.size)).max()
    return float(most) / (times_s.size * window_s / span_s)


def hill_index(values: IntArray) -> float:
    """Hill's tail index of the largest 5 %; NaN with too few values, inf if they are all equal.

    References: Hill, A Simple General Approach to Inference About the Tail of a Distribution, Ann. Stat. 1975.
    """
    count = int(values.size * TAIL_RATIO)
    if count < LEAST_TAIL:
        return math.nan
    ordered = np.sort(values)[-count - 1 :].astype(np.float64)
    excess = float(np.log(ordered[1:] / max(ordered[0], 1.0)).mean())
    return 1.0 / excess if excess > 0.0 else math.inf


def fitted_scenarios(shape: BurstShape) -> tuple[Scenario, ...]:
    """`fitted_burst` repeats the busiest half minute of history right away; `fitted_long_tail` makes 3 % of prompts as
    long as its longest 3 %, on top of those that come anyway. Empty where history is too short to tell."""
    found = []
    if math.isfinite(shape.peak_to_mean_30s):
        factor = min(max(shape.peak_to_mean_30s, LEAST_BURST_FACTOR), MAX_FACTOR)
        found.append(Scenario("fitted_burst", burst_factor=factor, burst_s=BURST_S))
    if math.isfinite(shape.long_isl_factor):
        factor = min(max(shape.long_isl_factor, 1.0), MAX_FACTOR)
        found.append(Scenario("fitted_long_tail", long_prompt_ratio=LONG_RATIO, long_prompt_factor=factor))
    return tuple(found)
