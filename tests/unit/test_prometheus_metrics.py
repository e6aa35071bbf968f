"""Metrics for Prometheus: fresh forecasts only, base units in names, of the worker's own partitions."""

import asyncio
import re
import urllib.request
from collections.abc import Iterable

import pytest
from made_forecasts import START_US, US_PER_S, between, forecast, responses
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pipelines.client.ages import LiveClock
from pipelines.errors import ConfigError
from pipelines.log import LogRecord
from pipelines.outlets.metrics_port import metrics_port
from pipelines.outlets.prometheus_metrics import MAX_DEPLOYMENTS, Metrics
from pipelines.posts import Report
from schemas.alerts import Alert
from schemas.codec import encode
from schemas.scores import Score, ScoreCell
from schemas.topics import ALERTS, FORECASTS, SCORES
from twin.accounting import Outcome

UNITS = ("_seconds", "_ratio", "_total", "_per_second", "_requests", "_info")
BARE = {
    "twincast_units_held", "twincast_records_held", "twincast_simulations_outstanding", "twincast_simulators_ready",
    "twincast_partitions", "twincast_forecast_authority", "twincast_alerts_firing", "twincast_forecast_engines_needed",
}  # fmt: skip
"""Counts of things, which have no unit."""


def report(*partitions: int) -> Report:
    return Report(
        partitions=partitions, balance={"in": 12, "applied": 9, "late": 1, "held": 2}, handed={}, held=3, outstanding=1,
        simulators_ready=True, idle=False, snapshots=4, written={FORECASTS.name: 7},
    )  # fmt: skip


class Stand:
    def __init__(self, *partitions: int) -> None:
        self.now_us = START_US
        self.metrics = Metrics(LiveClock(now_us=lambda: self.now_us), lambda: report(*partitions))

    def take(self, topic: str, record: object, partition: int = 0) -> None:
        value = record if isinstance(record, bytes) else encode(record)  # type: ignore[arg-type]
        self.metrics.take(LogRecord(topic, partition, 0, 0, b"d", value, ()))

    def text(self) -> str:
        registry = CollectorRegistry()
        registry.register(self.metrics)
        return generate_latest(registry).decode()

    def samples(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        families = text_string_to_metric_families(self.text())
        return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}

    def names(self) -> set[str]:
        return {name for name, _ in self.samples()}

    def value(self, name: str, **labels: str) -> float:
        return self.samples()[(name, tuple(sorted(labels.items())))]


def score(covered: Iterable[bool], *, observed_s: float | None = 0.4, intervened: bool = False) -> Score:
    cells = tuple(
        ScoreCell(
            metric="ttft_s", quantile=quantile, forecast_s=0.3, low_s=0.2, high_s=0.5, observed_s=observed_s, covered=c,
            loss_s=0.1, winkler_s=0.3, hindsight_loss_s=0.0,
        )
        for quantile, c in zip((0.5, 0.95), covered, strict=False)
    )  # fmt: skip
    return Score(
        deployment="d", as_of_us=START_US, horizon_s=30.0, closed_us=START_US + 90 * US_PER_S, phase="fine", members=9,
        unfinished=0, cells=cells, intervened=intervened,
    )  # fmt: skip


def test_a_forecast_is_told_with_its_interval_and_its_risk() -> None:
    stand = Stand(0)
    stand.take(FORECASTS.name, forecast(0, skill=0.25))
    at = {"deployment": "d", "horizon": "30", "metric": "ttft", "quantile": "0.95"}
    assert stand.value("twincast_forecast_latency_seconds", **at, bound="value") == 0.2
    assert stand.value("twincast_forecast_latency_seconds", **at, bound="high") == 0.4
    assert stand.value("twincast_forecast_breach_probability_ratio", **at, traffic_class="") == 0.1
    assert stand.value("twincast_forecast_authority", deployment="d", level="guarded") == 1.0
    assert stand.value("twincast_forecast_authority", deployment="d", level="full") == 0.0
    assert stand.value("twincast_forecast_skill_ratio", deployment="d") == 0.25


def test_a_stale_forecast_is_in_no_series_but_its_age() -> None:
    stand = Stand(0)
    stand.take(FORECASTS.name, forecast(0, responses=responses(0.4, 0.02), ceiling_requests_per_s=between(9.0)))
    assert any(name.startswith("twincast_forecast_latency") for name in stand.names())
    assert "twincast_forecast_engines_needed" in stand.names()
    stand.now_us += 10 * US_PER_S
    left = {name for name in stand.names() if name.startswith("twincast_forecast_")}
    assert left == {"twincast_forecast_age_seconds"}
    assert stand.value("twincast_forecast_age_seconds", deployment="d") == 10.0
    assert stand.value("twincast_forecasts_total", deployment="d", phase="fine") == 1.0


@pytest.mark.parametrize(("breaches", "needed"), [((0.5, 0.05, 0.01), 2), ((0.9, 0.8, 0.7), 3), ((0.0,), 1)])
def test_engines_needed_is_the_least_that_keeps_the_targets_or_the_most_simulated(
    breaches: tuple[float, ...], needed: int
) -> None:
    stand = Stand(0)
    stand.take(FORECASTS.name, forecast(0, responses=responses(*breaches)))
    stand.take(FORECASTS.name, forecast(1, phase="coarse"))  # has no surface, and takes none away
    stand.now_us += 5 * US_PER_S
    assert stand.value("twincast_forecast_engines_needed", deployment="d") == needed


def test_each_worker_tells_of_its_own_partitions() -> None:
    stand = Stand(1)
    stand.take(FORECASTS.name, forecast(0))
    stand.take(FORECASTS.name, forecast(0, deployment="e"), partition=1)
    assert {dict(labels)["deployment"] for _, labels in stand.samples() if "deployment" in dict(labels)} == {"e"}


def test_scores_give_coverage_and_what_was_observed() -> None:
    stand = Stand(0)
    stand.take(SCORES.name, score((True, False)))
    stand.take(SCORES.name, score((True, True), observed_s=None))
    stand.take(SCORES.name, score((False, False), intervened=True))  # counts for nothing
    at = {"deployment": "d", "horizon": "30"}
    assert stand.value("twincast_score_cells_total", **at) == 4
    assert stand.value("twincast_score_cells_covered_total", **at) == 3
    assert stand.value("twincast_observed_latency_seconds", **at, metric="ttft", quantile="0.95") == float("inf")


def test_alerts_count_while_they_fire() -> None:
    stand = Stand(0)
    for number, state in enumerate(("suspected", "firing", "firing", "resolved")):
        found = Alert(
            deployment="d", at_us=START_US + number, alert_id="a", kind="slo_risk", state=state, cause="c",  # type: ignore[arg-type]
            onset_us=START_US,
        )  # fmt: skip
        stand.take(ALERTS.name, found)
        key = ("twincast_alerts_firing", (("deployment", "d"), ("kind", "slo_risk")))
        assert stand.samples().get(key) == (1.0 if state == "firing" else None)


def test_health_is_the_worker_s_own_account() -> None:
    stand = Stand(0, 1)
    assert stand.value("twincast_units_total", outcome="applied") == 9
    assert stand.value("twincast_units_received_total") == 12
    assert stand.value("twincast_units_held") == 2
    assert stand.value("twincast_partitions") == 2
    assert stand.value("twincast_records_written_total", topic=FORECASTS.name) == 7
    assert {outcome.value for outcome in Outcome} >= {"applied", "late"}


def test_what_cannot_be_read_is_counted() -> None:
    stand = Stand(0)
    stand.take(FORECASTS.name, b"{")
    assert stand.value("twincast_outlet_unreadable_total") == 1


def test_names_end_in_a_base_unit() -> None:
    stand = Stand(0)
    stand.take(FORECASTS.name, forecast(0, skill=0.1, responses=responses(0.1), ceiling_requests_per_s=between(9.0)))
    stand.take(SCORES.name, score((True, True)))
    names = re.findall(r"^# TYPE (\S+) ", stand.text(), flags=re.M)
    assert len(names) > 20
    assert [name for name in names if not name.endswith(UNITS) and name not in BARE] == []
    assert all(name.startswith("twincast_") for name in names)


def test_memory_is_bounded() -> None:
    stand = Stand(0)
    small = forecast(0, breaches=())
    for number in range(MAX_DEPLOYMENTS + 5):
        stand.take(FORECASTS.name, forecast(0, deployment=f"d{number}", breaches=()))
    assert len(stand.metrics._deployments) == MAX_DEPLOYMENTS
    assert small.scenarios[0].horizons == ()


def test_the_port_serves_metrics_and_nothing_else() -> None:
    def fetch(url: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=5.0) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as error:
            error.close()
            return error.code, ""

    async def main() -> None:
        stand = Stand(0)
        stand.take(FORECASTS.name, forecast(0))
        async with metrics_port(stand.metrics, "127.0.0.1", 0) as port:
            status, text = await asyncio.to_thread(fetch, f"http://127.0.0.1:{port}/metrics")
            assert status == 200
            assert 'twincast_forecast_authority{deployment="d",level="guarded"} 1.0' in text
            assert (await asyncio.to_thread(fetch, f"http://127.0.0.1:{port}/healthz")) == (200, "ok\n")
            assert (await asyncio.to_thread(fetch, f"http://127.0.0.1:{port}/"))[0] == 404
            with pytest.raises(
                ConfigError, match=r"metrics cannot be served at 127\.0\.0\.1:\d+ .*choose another port"
            ):
                async with metrics_port(stand.metrics, "127.0.0.1", port):
                    pass

    asyncio.run(main())
