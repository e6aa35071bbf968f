"""A forecast as it was received, and what may still be read from it. Asks no broker.

Law: once a forecast is past its expiry, or a horizon past its end, asking for what it says raises instead of answering.
"""

from dataclasses import dataclass, field

from pipelines.client.ages import US_PER_S, Clock, LiveClock
from pipelines.client.response_surface import ResponseSurface
from schemas.forecasts import Forecast, HorizonForecast, LatencyEstimate

BASELINE = "baseline"
MOST_AHEAD_US = 5 * US_PER_S
"""A forecast from further ahead than this is of a clock that does not agree with ours."""


class StaleForecastError(LookupError):
    """A forecast was asked for what is past. `age_s` is how old it is, event time."""

    def __init__(self, deployment: str, age_s: float, reason: str) -> None:
        super().__init__(deployment, age_s, reason)
        self.deployment, self.age_s, self.reason = deployment, age_s, reason

    def __str__(self) -> str:
        return f"forecast of {self.deployment!r} {self.reason}; decide without it until a newer one comes"


@dataclass(frozen=True, slots=True)
class Reading:
    """One forecast. `made_us` is when its writer wrote it, by the writer's clock; 0 if that is not known.

    `surface_of` is the newest forecast with a response surface: coarse ones have none.
    """

    forecast: Forecast
    made_us: int = 0
    clock: Clock = field(default_factory=LiveClock)
    surface_of: "Reading | None" = None

    @property
    def age_s(self) -> float:
        """Event time since `as_of`, seconds."""
        return self.clock.age_us(self.forecast.as_of_us, self.made_us) / US_PER_S

    @property
    def fresh(self) -> bool:
        """Whether it may be acted on, as far as time goes; `forecast.authority` is another question."""
        return not self.why_stale()

    def why_stale(self) -> str:
        """Why it may not be used, empty while it may."""
        age_us = self.clock.age_us(self.forecast.as_of_us, self.made_us)
        valid_us = self.forecast.expires_us - self.forecast.as_of_us
        if age_us >= valid_us:
            return f"is {age_us / US_PER_S:.1f} s old and was valid for {valid_us / US_PER_S:g} s"
        if age_us < -MOST_AHEAD_US:
            return f"is {-age_us / US_PER_S:.1f} s ahead of this machine's clock (synchronise the clocks)"
        return ""

    def require_fresh(self) -> "Reading":
        """Itself. Raises StaleForecastError."""
        reason = self.why_stale()
        if reason:
            raise StaleForecastError(self.forecast.deployment, self.age_s, reason)
        return self

    @property
    def horizons_s(self) -> tuple[float, ...]:
        """Horizons of the baseline, seconds."""
        return tuple(horizon.horizon_s for horizon in self._baseline())

    def horizon(self, horizon_s: float) -> HorizonForecast:
        """What is expected of requests that arrive within `horizon_s` of `as_of`.

        Raises StaleForecastError once that window or the forecast is past, LookupError for a horizon it has not.
        """
        self.require_fresh()
        found = next((each for each in self._baseline() if each.horizon_s == horizon_s), None)
        if found is None:
            raise LookupError(
                f"no horizon of {horizon_s:g} s in a forecast with {self.horizons_s}; ask for one of these"
            )
        age_s = self.age_s
        if age_s >= horizon_s:
            reason = f"is {age_s:.1f} s old, so its window of {horizon_s:g} s is past"
            raise StaleForecastError(self.forecast.deployment, age_s, reason)
        return found

    def latency(self, horizon_s: float, metric: str, quantile: float) -> LatencyEstimate | None:
        """One quantile of one latency, None where too little traffic is expected to tell. Raises as `horizon` does."""
        found = self.horizon(horizon_s).latencies
        return next((each for each in found if each.metric == metric and each.quantile == quantile), None)

    def breach_probability(self, within_s: float | None = None) -> float | None:
        """The highest probability, over targets and horizons up to `within_s`, that a target is missed.

        None if no target is known. Horizons that are past are left out. Raises StaleForecastError.
        """
        self.require_fresh()
        age_s = self.age_s
        limit_s = float("inf") if within_s is None else within_s
        ahead = [each for each in self._baseline() if age_s < each.horizon_s <= limit_s]
        return max((risk.breach_probability for each in ahead for risk in each.slo_risks), default=None)

    @property
    def surface(self) -> ResponseSurface | None:
        """What other numbers of engines would give; None where no fresh forecast tells."""
        source = self if self.forecast.responses else self.surface_of
        if source is None or not source.fresh:
            return None
        return ResponseSurface.of(source.forecast.responses)

    def _baseline(self) -> tuple[HorizonForecast, ...]:
        return next((each.horizons for each in self.forecast.scenarios if each.scenario == BASELINE), ())
