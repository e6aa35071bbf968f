"""Forecasts, scores, alerts and a worker's health as metrics for Prometheus. Serves no port and reads no log.

Names end in their base unit. Law: a forecast past its expiry is in no series but its age; the number of deployments,
and so of series, is bounded.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipelines.client.ages import Clock
from pipelines.client.reading import Reading
from pipelines.log import LogRecord
from pipelines.outputs import MADE_HEADER
from pipelines.posts import Report
from schemas.alerts import Alert
from schemas.codec import SchemaError, decode
from schemas.forecasts import Estimate, Forecast, HorizonForecast
from schemas.scores import Score
from schemas.topics import ALERTS, FORECASTS, SCORES
from twin.settings import TWINCAST_VERSION

MAX_DEPLOYMENTS = 1_000
MAX_OPEN_ALERTS = 10_000
BREACH_PROBABILITY_AT_MOST = 0.1
"""What `twincast_forecast_engines_needed` keeps."""
AUTHORITIES = ("advisory", "guarded", "full")
READ_TOPICS = (FORECASTS.name, SCORES.name, ALERTS.name)


@dataclass(slots=True)
class _Cells:
    cells: int = 0
    covered: int = 0


@dataclass(slots=True)
class _Deployment:
    """What is known of one deployment."""

    partition: int
    newest: Reading | None = None
    surface: Reading | None = None
    """The newest forecast with a response surface or a ceiling: fine ones."""
    forecasts: dict[str, int] = field(default_factory=dict)
    cells: dict[float, _Cells] = field(default_factory=dict)
    observed: dict[tuple[float, str, float], float] = field(default_factory=dict)


class Metrics(Collector):
    """A collector to register. `take` folds records; `report` gives the worker's own account.

    Shown are the deployments in the worker's partitions: of several workers, each tells of its own.
    """

    def __init__(self, clock: Clock, report: Callable[[], Report]) -> None:
        self._clock = clock
        self._report = report
        self._deployments: OrderedDict[str, _Deployment] = OrderedDict()
        self._firing: OrderedDict[str, tuple[int, Alert]] = OrderedDict()
        self.unreadable = 0

    def take(self, record: LogRecord) -> None:
        """Fold a record of `READ_TOPICS`; one that cannot be read is counted."""
        try:
            found = decode(record.topic, record.value or b"").record
            made_us = int(dict(record.headers).get(MADE_HEADER, b"0"))
        except (SchemaError, ValueError):
            self.unreadable += 1
            return
        if isinstance(found, Forecast):
            self._on_forecast(self._of(found.deployment, record.partition), found, made_us)
        elif isinstance(found, Score):
            self._on_score(self._of(found.deployment, record.partition), found)
        elif isinstance(found, Alert):
            self._on_alert(found, record.partition)

    def _of(self, deployment: str, partition: int) -> _Deployment:
        known = self._deployments.setdefault(deployment, _Deployment(partition))
        self._deployments.move_to_end(deployment)
        if len(self._deployments) > MAX_DEPLOYMENTS:
            self._deployments.popitem(last=False)
        return known

    def _on_forecast(self, known: _Deployment, forecast: Forecast, made_us: int) -> None:
        known.forecasts[forecast.phase] = known.forecasts.get(forecast.phase, 0) + 1
        reading = Reading(forecast, made_us, self._clock)
        known.newest = reading
        if forecast.responses or forecast.ceiling_requests_per_s is not None:
            known.surface = reading

    def _on_score(self, known: _Deployment, score: Score) -> None:
        if score.phase != "fine" or score.intervened:
            return
        cells = known.cells.setdefault(score.horizon_s, _Cells())
        cells.cells += len(score.cells)
        cells.covered += sum(cell.covered for cell in score.cells)
        for cell in score.cells:
            seconds = float("inf") if cell.observed_s is None else cell.observed_s
            known.observed[(score.horizon_s, cell.metric, cell.quantile)] = seconds

    def _on_alert(self, alert: Alert, partition: int) -> None:
        self._firing.pop(alert.alert_id, None)
        if alert.state == "firing":
            self._firing[alert.alert_id] = (partition, alert)
        while len(self._firing) > MAX_OPEN_ALERTS:
            self._firing.popitem(last=False)

    def collect(self) -> Iterator[Metric]:
        """Every series as it stands now."""
        info = GaugeMetricFamily("twincast_build_info", "The version that runs.", labels=["version"])
        info.add_metric([TWINCAST_VERSION], 1)
        yield info
        report = self._report()
        yield from health(report)
        partitions = frozenset(report.partitions)
        own = {name: known for name, known in self._deployments.items() if known.partition in partitions}
        yield from _ages(own)
        newest = ((name, known.newest) for name, known in own.items())
        yield from forecast_metrics((name, each.forecast) for name, each in newest if each is not None and each.fresh)
        surfaces = ((name, known.surface) for name, known in own.items())
        yield from surface_metrics((name, each) for name, each in surfaces if each is not None and each.fresh)
        yield from _scores(own)
        yield from self._alerts(partitions)

    def _alerts(self, partitions: frozenset[int]) -> Iterator[Metric]:
        firing = GaugeMetricFamily("twincast_alerts_firing", "Alerts that fire.", labels=["deployment", "kind"])
        counts: dict[tuple[str, str], int] = {}
        for partition, alert in self._firing.values():
            if partition in partitions:
                counts[(alert.deployment, alert.kind)] = counts.get((alert.deployment, alert.kind), 0) + 1
        for labels, count in sorted(counts.items()):
            firing.add_metric(list(labels), count)
        unreadable = CounterMetricFamily("twincast_outlet_unreadable", "Records of outputs that could not be read.")
        unreadable.add_metric([], self.unreadable)
        yield from (firing, unreadable)


def _ages(own: Mapping[str, _Deployment]) -> Iterator[Metric]:
    age = GaugeMetricFamily(
        "twincast_forecast_age_seconds", "Event time since the newest forecast's as_of.", labels=["deployment"]
    )
    made = CounterMetricFamily("twincast_forecasts", "Forecasts seen since the start.", labels=["deployment", "phase"])
    for name, known in own.items():
        if known.newest is not None:
            age.add_metric([name], known.newest.age_s)
        for phase, count in sorted(known.forecasts.items()):
            made.add_metric([name, phase], count)
    yield from (age, made)


def _scores(own: Mapping[str, _Deployment]) -> Iterator[Metric]:
    cells = CounterMetricFamily(
        "twincast_score_cells", "Quantiles of closed windows compared.", labels=["deployment", "horizon"]
    )
    covered = CounterMetricFamily(
        "twincast_score_cells_covered", "Those inside the stated interval.", labels=["deployment", "horizon"]
    )
    observed = GaugeMetricFamily(
        "twincast_observed_latency_seconds",
        "A quantile over the last closed window.",
        labels=["deployment", "horizon", "metric", "quantile"],
    )
    for name, known in own.items():
        for horizon_s, counts in sorted(known.cells.items()):
            cells.add_metric([name, f"{horizon_s:g}"], counts.cells)
            covered.add_metric([name, f"{horizon_s:g}"], counts.covered)
        for (horizon_s, metric, quantile), seconds in sorted(known.observed.items()):
            observed.add_metric([name, f"{horizon_s:g}", _metric(metric), f"{quantile:g}"], seconds)
    yield from (cells, covered, observed)


def health(report: Report) -> Iterator[Metric]:
    """A worker's account of itself."""
    units = CounterMetricFamily("twincast_units", "Units of input by what became of them.", labels=["outcome"])
    for outcome, count in sorted(report.balance.items()):
        if outcome not in ("in", "held"):
            units.add_metric([outcome], count)
    received = CounterMetricFamily("twincast_units_received", "Units of input read.")
    received.add_metric([], report.balance.get("in", 0))
    written = CounterMetricFamily("twincast_records_written", "Records written.", labels=["topic"])
    for topic, count in sorted(report.written.items()):
        written.add_metric([topic], count)
    yield from (units, received, written)
    gauges = {
        "twincast_units_held": ("Units read that have no outcome yet.", report.balance.get("held", 0)),
        "twincast_records_held": ("Records read and not handled.", report.held),
        "twincast_simulations_outstanding": ("Simulations not done.", report.outstanding),
        "twincast_simulators_ready": ("1 when simulators can run.", int(report.simulators_ready)),
        "twincast_partitions": ("Partitions of this worker.", len(report.partitions)),
    }
    for name, (about, value) in gauges.items():
        gauge = GaugeMetricFamily(name, about)
        gauge.add_metric([], value)
        yield gauge
    snapshots = CounterMetricFamily("twincast_snapshots", "Rounds of snapshots.")
    snapshots.add_metric([], report.snapshots)
    yield snapshots


def forecast_metrics(fresh: Iterable[tuple[str, Forecast]]) -> Iterator[Metric]:
    """Series of forecasts that may be used."""
    latency = GaugeMetricFamily(
        "twincast_forecast_latency_seconds",
        "A latency quantile expected of requests within the horizon, with its interval.",
        labels=["deployment", "horizon", "metric", "quantile", "bound"],
    )
    breach = GaugeMetricFamily(
        "twincast_forecast_breach_probability_ratio",
        "Probability that a target is missed within the horizon.",
        labels=["deployment", "horizon", "metric", "quantile", "traffic_class"],
    )
    quantities = {name: _gauge(name, about) for name, about in QUANTITIES.items()}
    authority = GaugeMetricFamily(
        "twincast_forecast_authority", "1 for what may be executed.", labels=["deployment", "level"]
    )
    skill = GaugeMetricFamily("twincast_forecast_skill_ratio", "1 - loss / loss of persistence.", labels=["deployment"])
    for name, forecast in fresh:
        for level in AUTHORITIES:
            authority.add_metric([name, level], float(level == forecast.authority))
        if forecast.skill is not None:
            skill.add_metric([name], forecast.skill)
        for horizon in _horizons(forecast):
            at = f"{horizon.horizon_s:g}"
            for cell in horizon.latencies:
                for bound, seconds in (("low", cell.low_s), ("value", cell.value_s), ("high", cell.high_s)):
                    latency.add_metric([name, at, _metric(cell.metric), f"{cell.quantile:g}", bound], seconds)
            for risk in horizon.slo_risks:
                labels = [name, at, _metric(risk.metric), f"{risk.quantile:g}", risk.traffic_class]
                breach.add_metric(labels, risk.breach_probability)
            for key, estimate in _quantities(horizon).items():
                _add(quantities[key], [name, at], estimate)
    yield from (latency, breach, *quantities.values(), authority, skill)


QUANTITIES = {
    "twincast_forecast_arrivals_requests_per_second": "Requests expected to arrive.",
    "twincast_forecast_goodput_requests_per_second": "Requests expected to meet every target.",
    "twincast_forecast_throughput_requests_per_second": "Requests expected to finish.",
    "twincast_forecast_waiting_peak_requests": "Longest queue expected.",
    "twincast_forecast_kv_peak_ratio": "Largest share of KV blocks in use expected.",
}


def _quantities(horizon: HorizonForecast) -> dict[str, Estimate]:
    values = (
        horizon.arrivals_per_s,
        horizon.goodput_requests_per_s,
        horizon.throughput_requests_per_s,
        horizon.waiting_peak_requests,
        horizon.kv_peak_ratio,
    )
    return dict(zip(QUANTITIES, values, strict=True))


def surface_metrics(fresh: Iterable[tuple[str, Reading]]) -> Iterator[Metric]:
    """Ceiling and response surface, which only fine forecasts have."""
    ceiling = GaugeMetricFamily(
        "twincast_forecast_ceiling_requests_per_second", "Knee of the load sweep.", labels=["deployment", "bound"]
    )
    breach = GaugeMetricFamily(
        "twincast_forecast_engines_breach_probability_ratio",
        "Probability that a target is missed with so many engines.",
        labels=["deployment", "engines"],
    )
    needed = GaugeMetricFamily(
        "twincast_forecast_engines_needed",
        f"Engines with a breach probability of at most {BREACH_PROBABILITY_AT_MOST:g}; the most simulated if none has.",
        labels=["deployment"],
    )
    for name, reading in fresh:
        if reading.forecast.ceiling_requests_per_s is not None:
            _add(ceiling, [name], reading.forecast.ceiling_requests_per_s)
        surface = reading.surface
        if surface is None or not surface.points:
            continue
        for point in surface.points:
            breach.add_metric([name, str(point.engines)], point.breach_probability)
        least = surface.engines_for(breach_probability_at_most=BREACH_PROBABILITY_AT_MOST)
        needed.add_metric([name], surface.points[-1].engines if least is None else least)
    yield from (ceiling, breach, needed)


def _horizons(forecast: Forecast) -> tuple[HorizonForecast, ...]:
    return next((each.horizons for each in forecast.scenarios if each.scenario == "baseline"), ())


def _gauge(name: str, about: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, labels=["deployment", "horizon", "bound"])


def _add(family: GaugeMetricFamily, labels: list[str], estimate: Estimate) -> None:
    for bound, value in (("low", estimate.low), ("value", estimate.value), ("high", estimate.high)):
        family.add_metric([*labels, bound], value)


def _metric(name: str) -> str:
    return name.removesuffix("_s")
