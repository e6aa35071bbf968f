"""Scores (`twincast.scores.v1`): a forecast against what then happened, once its window has closed."""

from schemas.base import Count, EventTime, Name, Quantile, Ratio, Record, Seconds, Wire
from schemas.changes import Phase
from schemas.slos import Metric


class ScoreCell(Wire, frozen=True, kw_only=True):
    """One quantile of one metric. Losses are mean pinball losses over the window's members, in seconds.

    `observed_s` is the members' own quantile; None is +infinity (too many unfinished). `covered` says whether it fell
    into the interval. The three baselines are: the last window again, all history, a linear trend of the last windows.
    """

    metric: Metric
    quantile: Quantile
    forecast_s: Seconds
    low_s: Seconds
    high_s: Seconds
    observed_s: Seconds | None
    covered: bool
    loss_s: Seconds
    winkler_s: Seconds
    hindsight_loss_s: Seconds
    persistence_loss_s: Seconds | None = None
    history_loss_s: Seconds | None = None
    trend_loss_s: Seconds | None = None


class Score(Record, frozen=True, kw_only=True, tag_field="record", tag="score"):
    """One horizon of one forecast. `intervened`: a change fell into the window, so it counts for nothing else."""

    deployment: Name
    as_of_us: EventTime
    horizon_s: Seconds
    closed_us: EventTime
    phase: Phase
    members: Count
    unfinished: Count
    cells: tuple[ScoreCell, ...]
    intervened: bool = False
    arrivals_forecast_per_s: float = 0.0
    arrivals_observed_per_s: float = 0.0
    saturated_ratio: Ratio = 0.0
