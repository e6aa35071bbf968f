"""Alerts of coming SLO breaches, from the forecasts' breach probabilities. Does not forecast, and proposes nothing.

One alert per traffic class: overload moves every latency at once, and that is one cause. It goes suspected, firing,
resolved; it opens above one probability and closes below a lower one held for longer, so that a probability that
trembles around a limit gives one alert.
Laws: states follow suspected (firing) resolved, in this order, and each alert has one id; a constant probability
causes at most one alert.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from schemas.alerts import Alert, AlertState
from schemas.forecasts import Forecast, HorizonForecast, SloRisk
from schemas.lineage import Offset
from twin.scoring import BASELINE_SCENARIO

US_PER_S = 1_000_000
_VERSION = 1


@dataclass(frozen=True, slots=True)
class RiskSettings:
    """Breach probabilities and how long they must hold, in seconds of event time.

    Suspected at `suspect_ratio`; firing at `fire_ratio` held for `fire_after_s`, or at once at `certain_ratio`, at any
    horizon. Resolved below `resolve_ratio` at near horizons (up to twice the shortest) and below `suspect_ratio` at far
    ones, whose doubt is never small, for `resolve_after_s`, which is longer than it takes to fire.
    """

    suspect_ratio: float = 0.3
    fire_ratio: float = 0.5
    certain_ratio: float = 0.8
    resolve_ratio: float = 0.2
    fire_after_s: float = 5.0
    resolve_after_s: float = 30.0

    def __post_init__(self) -> None:
        order = (self.resolve_ratio, self.suspect_ratio, self.fire_ratio, self.certain_ratio)
        if not all(0.0 < ratio < 1.0 for ratio in order) or list(order) != sorted(order):
            raise ValueError(f"risk ratios need 0 < resolve <= suspect <= fire <= certain < 1, got {order}")
        for name in ("fire_after_s", "resolve_after_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"risk.{name} must be a finite number >= 0, got {getattr(self, name)}")


@dataclass(slots=True)
class _Open:
    """One alert that is not resolved. `since_us`: since when the present side of the threshold holds."""

    alert_id: str
    state: AlertState
    onset_us: int
    firing_us: int | None = None
    above_us: int | None = None
    below_us: int | None = None
    peak_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class _Worst:
    """The target most at risk in one forecast, and how soon: the shortest horizon that reaches `suspect_ratio`.

    `near_ratio` is the highest probability of any target at near horizons.
    """

    risk: SloRisk
    near_ratio: float
    horizon_s: float
    value_s: float
    others: tuple[str, ...]


class RiskAlerts:
    """The `slo_risk` alerts of one deployment.

    Parameters
    ----------
    deployment
        Name put into alerts and their ids.
    settings
        Thresholds.
    """

    def __init__(self, deployment: str, settings: RiskSettings | None = None) -> None:
        self._deployment = deployment
        self._settings = settings or RiskSettings()
        self._open: dict[str, _Open] = {}

    @property
    def firing(self) -> bool:
        """Whether any alert is firing."""
        return any(alert.state == "firing" for alert in self._open.values())

    def on_forecast(
        self, forecast: Forecast, *, exemplars: tuple[str, ...] = (), offsets: tuple[Offset, ...] = ()
    ) -> list[Alert]:
        """Transitions caused by the baseline scenario of one forecast; feed in order of `as_of_us`.

        `lead_s` of an alert is the shortest horizon whose forecast reaches `suspect_ratio`: how soon the breach is due.
        """
        risks = self._worst_by_class(forecast)
        alerts = []
        for traffic_class in sorted(set(risks) | set(self._open)):
            alerts += self._step(forecast, traffic_class, risks.get(traffic_class), exemplars, offsets)
        return alerts

    def _worst_by_class(self, forecast: Forecast) -> dict[str, _Worst]:
        horizons = [
            horizon
            for scenario in forecast.scenarios
            if scenario.scenario == BASELINE_SCENARIO
            for horizon in scenario.horizons
        ]
        found: dict[str, list[tuple[HorizonForecast, SloRisk]]] = {}
        for horizon in horizons:
            for risk in horizon.slo_risks:
                found.setdefault(risk.traffic_class, []).append((horizon, risk))
        return {traffic_class: self._worst(pairs) for traffic_class, pairs in found.items()}

    def _worst(self, pairs: list[tuple[HorizonForecast, SloRisk]]) -> _Worst:
        top_horizon, top = max(pairs, key=lambda pair: (pair[1].breach_probability, -pair[0].horizon_s))
        reached = [h.horizon_s for h, risk in pairs if risk.breach_probability >= self._settings.suspect_ratio]
        values = [e.value_s for e in top_horizon.latencies if (e.metric, e.quantile) == (top.metric, top.quantile)]
        others = {
            _target(risk)
            for _, risk in pairs
            if risk.breach_probability >= self._settings.suspect_ratio and _target(risk) != _target(top)
        }
        near_s = 2 * min(h.horizon_s for h, _ in pairs)
        return _Worst(
            risk=top,
            near_ratio=max(risk.breach_probability for h, risk in pairs if h.horizon_s <= near_s),
            horizon_s=min(reached, default=top_horizon.horizon_s),
            value_s=values[0] if values else top.limit_s,
            others=tuple(sorted(others)),
        )

    def _step(
        self,
        forecast: Forecast,
        traffic_class: str,
        worst: _Worst | None,
        exemplars: tuple[str, ...],
        offsets: tuple[Offset, ...],
    ) -> list[Alert]:
        now_us = forecast.as_of_us
        ratio = worst.risk.breach_probability if worst else 0.0
        opened = self._open.get(traffic_class)
        if opened is None:
            if ratio < self._settings.suspect_ratio:
                return []
            alert_id = f"slo_risk/{self._deployment}/{traffic_class or 'all'}/{now_us}"
            opened = self._open[traffic_class] = _Open(alert_id, "suspected", now_us)
            states: list[AlertState] = ["suspected"]
        else:
            states = []
        opened.peak_ratio = max(opened.peak_ratio, ratio)
        near_ratio = worst.near_ratio if worst else 0.0
        calm = near_ratio < self._settings.resolve_ratio and ratio < self._settings.suspect_ratio
        states += self._next_state(opened, ratio, calm, now_us)
        alerts = [
            _alert(forecast, opened, state, worst, ratio, exemplars=exemplars, offsets=offsets) for state in states
        ]
        if opened.state == "resolved":
            del self._open[traffic_class]
        return alerts

    def _next_state(self, opened: _Open, ratio: float, calm: bool, now_us: int) -> list[AlertState]:
        """Move the alert; return the states it newly entered."""
        settings = self._settings
        opened.above_us = _held_since(opened.above_us, ratio >= settings.fire_ratio, now_us)
        opened.below_us = _held_since(opened.below_us, calm, now_us)
        if opened.state == "suspected" and opened.above_us is not None:
            held_s = (now_us - opened.above_us) / US_PER_S
            if ratio >= settings.certain_ratio or held_s >= settings.fire_after_s:
                opened.state, opened.firing_us = "firing", now_us
                return ["firing"]
        if opened.below_us is not None and (now_us - opened.below_us) / US_PER_S >= settings.resolve_after_s:
            opened.state = "resolved"
            return ["resolved"]
        return []

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, strings, lists and dicts; settings are not in it."""
        opened = {name: asdict(alert) for name, alert in sorted(self._open.items())}
        return {"version": _VERSION, "deployment": self._deployment, "open": opened}

    @classmethod
    def restore(cls, state: Mapping[str, Any], settings: RiskSettings | None = None) -> Self:
        """The alerts of a snapshot. Raises ValueError if it is of another version."""
        if state.get("version") != _VERSION:
            raise ValueError(f"risk snapshot has version {state.get('version')}, this code reads {_VERSION}")
        alerts = cls(state["deployment"], settings)
        alerts._open = {name: _Open(**opened) for name, opened in state["open"].items()}
        return alerts


def _held_since(since_us: int | None, holds: bool, now_us: int) -> int | None:
    if not holds:
        return None
    return now_us if since_us is None else since_us


def _target(risk: SloRisk) -> str:
    return f"{risk.metric.removesuffix('_s')} P{risk.quantile * 100:g}"


def _alert(
    forecast: Forecast,
    opened: _Open,
    state: AlertState,
    worst: _Worst | None,
    ratio: float,
    *,
    exemplars: tuple[str, ...],
    offsets: tuple[Offset, ...],
) -> Alert:
    if worst is None:
        cause, evidence, effect, lead_s = "no target left", "the target is no longer forecast", None, None
    else:
        risk = worst.risk
        cause = f"{_target(risk)} over {risk.limit_s:g} s"
        evidence = (
            f"breach probability {ratio:.2f} (peak {opened.peak_ratio:.2f}), "
            f"forecast {worst.value_s:.3g} s against {risk.limit_s:g} s"
        )
        if worst.others:
            evidence += f"; also at risk: {', '.join(worst.others)}"
        effect = worst.value_s / risk.limit_s
        lead_s = None if state == "resolved" else worst.horizon_s
    return Alert(
        deployment=forecast.deployment,
        at_us=forecast.as_of_us,
        alert_id=opened.alert_id,
        kind="slo_risk",
        state=state,
        cause=cause,
        onset_us=opened.onset_us,
        effect_ratio=effect,
        evidence=evidence,
        lead_s=lead_s,
        exemplars=exemplars,
        offsets=offsets or forecast.lineage.offsets,
    )
