"""Scores (`twincast.scores.v1`): a forecast against what then happened, once its window has closed; why it missed."""

from typing import Literal

from schemas.base import Count, EventTime, Name, NonNegative, Quantile, Ratio, Record, Seconds, Wire
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


Cause = Literal["none", "costs", "traffic", "saturated", "contended", "unexplained"]


class ReplayCell(Wire, frozen=True, kw_only=True):
    """One quantile of one metric over a window's members; None is +infinity (too many unfinished).

    `replayed_s`: the twin with the requests that really came and the costs the forecast had. `levelled_s`: with the
    costs that the window's steps really had, too.
    """

    metric: Metric
    quantile: Quantile
    observed_s: Seconds | None
    replayed_s: Seconds | None
    levelled_s: Seconds | None


class RoleBias(Wire, frozen=True, kw_only=True):
    """Steps of one role in a window: seconds they took, and seconds that the forecast's costs say they take.

    `factor` is what costs of this role are multiplied with from now on; 1 while nothing is proven.
    """

    role: Literal["prefill", "decode", "mixed"]
    steps: Count
    observed_s: Seconds
    predicted_s: Seconds
    factor: NonNegative = 1.0


class BiasTrendCell(Wire, frozen=True, kw_only=True):
    """Bias of one quantile over the windows replayed so far, as log(observed / replayed), the mean over metrics.

    `bias_log`: its mean over the newest quarter of them. `change_log`: how far its size moved along a fitted line, and
    `z` that over its standard error.
    """

    quantile: Quantile
    rounds: Count
    bias_log: float
    change_log: float
    z: float
    grows: bool


class Replay(Record, frozen=True, kw_only=True, tag_field="record", tag="replay"):
    """A closed window, run through the twin again with the requests that really came; once for each disjoint window.

    `cause` tells why the fine forecast made at `as_of_us` missed (None: there was none); the parts are mean log ratios
    of latency and add up to `error_log`, log(observed / forecast). The trend is left out before eight windows.
    """

    deployment: Name
    as_of_us: EventTime
    window_s: Seconds
    closed_us: EventTime
    members: Count
    cells: tuple[ReplayCell, ...]
    roles: tuple[RoleBias, ...]
    saturated_ratio: Ratio = 0.0
    cause: Cause | None = None
    error_log: float = 0.0
    traffic_log: float = 0.0
    costs_log: float = 0.0
    rest_log: float = 0.0
    evidence: str = ""
    trend: tuple[BiasTrendCell, ...] = ()


ScoreRecord = Score | Replay
