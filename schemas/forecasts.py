"""Forecasts (`twincast.forecasts.v1`): what the twin expects, with intervals, risk, cause, authority and lineage.

`as_of_us` is the event time up to which records were used. Members of a horizon arrive in (as_of, as_of + horizon].
"""

from typing import Literal

from schemas.base import Count, EventTime, Name, NonNegative, Quantile, Ratio, Record, Seconds, Wire
from schemas.changes import Phase
from schemas.lineage import Lineage
from schemas.slos import Metric

InputLevel = Literal["S0", "S1", "S2", "S3"]
Authority = Literal["advisory", "guarded", "full"]
CredibilityLevel = Literal["low", "medium", "high"]


class Estimate(Wire, frozen=True, kw_only=True):
    """A value with its interval at the forecast's `interval_level`; the unit is in the name of the field holding it."""

    value: NonNegative
    low: NonNegative
    high: NonNegative


class LatencyEstimate(Wire, frozen=True, kw_only=True):
    """One quantile of one latency over the members of a horizon."""

    metric: Metric
    quantile: Quantile
    value_s: Seconds
    low_s: Seconds
    high_s: Seconds


class SloRisk(Wire, frozen=True, kw_only=True):
    """Probability that the target is missed over the members of a horizon."""

    metric: Metric
    quantile: Quantile
    limit_s: Seconds
    breach_probability: Ratio
    traffic_class: str = ""


class HorizonForecast(Wire, frozen=True, kw_only=True):
    """Everything expected of the requests that arrive within `horizon_s`, and of the engines meanwhile."""

    horizon_s: Seconds
    arrivals_per_s: Estimate
    latencies: tuple[LatencyEstimate, ...]
    throughput_requests_per_s: Estimate
    output_tokens_per_s: Estimate
    success_ratio: Estimate
    goodput_requests_per_s: Estimate
    waiting_peak_requests: Estimate
    kv_peak_ratio: Estimate
    preemptions: Estimate
    compute_watermark_ratio: Estimate | None = None
    slo_risks: tuple[SloRisk, ...] = ()


class Curve(Wire, frozen=True, kw_only=True):
    """A quantity over the simulated span: mean and P95 over replications, every `interval_s` from `as_of`."""

    name: Name
    interval_s: Seconds
    mean: tuple[float, ...]
    high: tuple[float, ...]


class ScenarioForecast(Wire, frozen=True, kw_only=True):
    """One future: `baseline`, or a stress such as `burst` or `long_tail`."""

    scenario: Name
    horizons: tuple[HorizonForecast, ...]
    curves: tuple[Curve, ...] = ()


class Bottleneck(Wire, frozen=True, kw_only=True):
    """Effect of making one class, operator or resource 10 % cheaper, on the same seeds; negative is an improvement."""

    name: Name
    kind: Literal["class", "operator", "resource"]
    ttft_p95_change_ratio: float
    tpot_p95_change_ratio: float
    low_ratio: float
    high_ratio: float


class EngineShare(Wire, frozen=True, kw_only=True):
    """Balance: one engine's share of requests, and its busy share of the simulated span."""

    engine: Name
    requests_ratio: Ratio
    busy_ratio: Ratio


class EnginesResponse(Wire, frozen=True, kw_only=True):
    """One point of the response surface: what `engines` engines would give.

    To the requests that arrive in a window once an engine started now is ready, or, where no actions are tried, over
    the longest horizon: those that arrive in (`from_s`, `to_s`] after `as_of`; both are 0 in records that did not tell.
    """

    engines: Count
    goodput_requests_per_s: Estimate
    breach_probability: Ratio
    from_s: NonNegative = 0.0
    to_s: NonNegative = 0.0


class Reach(Wire, frozen=True, kw_only=True):
    """When the offered rate reaches a watermark: a share of what the engines can carry.

    `reaches_at_us` is when the expected rate does, `earliest_us` when the upper side of its interval does; None where
    it does not within the outlook. `device` is the hardware of the engines, empty where they do not tell it.
    """

    watermark_ratio: NonNegative
    device: str = ""
    engines: Count = 0
    reaches_at_us: EventTime | None = None
    earliest_us: EventTime | None = None


class Outlook(Wire, frozen=True, kw_only=True):
    """The rate of arrivals far ahead, per step of `step_s` from `as_of`, against the ceiling. Nothing is simulated."""

    step_s: Seconds
    value_per_s: tuple[NonNegative, ...]
    low_per_s: tuple[NonNegative, ...]
    high_per_s: tuple[NonNegative, ...]
    ceiling_requests_per_s: NonNegative | None = None
    reaches: tuple[Reach, ...] = ()


class Credibility(Wire, frozen=True, kw_only=True):
    """What the forecast may be trusted for, and why not more: each reason is one short clause."""

    level: CredibilityLevel
    reasons: tuple[str, ...] = ()


class Forecast(Record, frozen=True, kw_only=True, tag_field="record", tag="forecast"):
    """One forecast of one deployment at one tick. `expires_us` is the time after which nobody may act on it.

    `skill` is 1 - loss / loss of persistence over the rounds scored so far (None: too few); at or below 0 the forecast
    does not beat "the next window will look like the last", and `credibility` says so. `engines` take traffic at
    `as_of`; `engines_starting` were announced by changes and are simulated from when they will be ready.
    """

    deployment: Name
    as_of_us: EventTime
    expires_us: EventTime
    tick: Count
    phase: Phase
    input_level: InputLevel
    interval_level: Ratio
    scenarios: tuple[ScenarioForecast, ...]
    authority: Authority
    credibility: Credibility
    lineage: Lineage
    skill: float | None = None
    scored_rounds: Count = 0
    ceiling_requests_per_s: Estimate | None = None
    burst_headroom_ratio: float | None = None
    bottlenecks: tuple[Bottleneck, ...] = ()
    balance: tuple[EngineShare, ...] = ()
    responses: tuple[EnginesResponse, ...] = ()
    engines: Count = 0
    engines_starting: Count = 0
    outlook: Outlook | None = None
