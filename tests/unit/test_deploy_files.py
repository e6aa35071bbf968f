"""Files for docker compose, Prometheus, Grafana and KEDA: they name files that exist and metrics that are made."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_forecasts import START_US, US_PER_S, between, forecast, responses
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pipelines.client.ages import LiveClock
from pipelines.log import LogRecord
from pipelines.outlets.alertmanager import NAMES
from pipelines.outlets.grafana_dashboards import FOLDER, dashboard_files
from pipelines.outlets.prometheus_metrics import Metrics
from pipelines.posts import Report
from schemas.alerts import Alert
from schemas.codec import encode
from schemas.scores import Score, ScoreCell
from schemas.topics import ALERTS, FORECASTS, SCORES

ROOT = Path(__file__).resolve().parents[2]
METRIC = re.compile(r"\btwincast_[a-z_]+\b")
SERVICE_KEYS = {
    "image", "ports", "environment", "volumes", "healthcheck", "profiles", "extra_hosts", "depends_on", "command",
}  # fmt: skip


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def made_samples() -> dict[str, set[str]]:
    """Names of samples that a worker with every kind of record exposes, and their labels."""
    report = Report(
        partitions=(0,), balance={"in": 1, "applied": 1}, handed={}, held=0, outstanding=0, simulators_ready=True,
        idle=True, snapshots=0, written={FORECASTS.name: 1},
    )  # fmt: skip
    metrics = Metrics(LiveClock(now_us=lambda: START_US), lambda: report)
    cell = ScoreCell(
        metric="ttft_s", quantile=0.95, forecast_s=1.0, low_s=0.5, high_s=2.0, observed_s=1.0, covered=True, loss_s=0.0,
        winkler_s=1.0, hindsight_loss_s=0.0,
    )  # fmt: skip
    records: list[tuple[str, Any]] = [
        (FORECASTS.name, forecast(0, skill=0.1, responses=responses(0.1), ceiling_requests_per_s=between(9.0))),
        (
            SCORES.name,
            Score(
                deployment="d", as_of_us=START_US, horizon_s=30.0, closed_us=START_US + US_PER_S, phase="fine",
                members=1, unfinished=0, cells=(cell,),
            ),
        ),
        (
            ALERTS.name,
            Alert(
                deployment="d", at_us=START_US, alert_id="a", kind="slo_risk", state="firing", cause="c",
                onset_us=START_US,
            ),
        ),
    ]  # fmt: skip
    for topic, record in records:
        metrics.take(LogRecord(topic, 0, 0, 0, b"d", encode(record), ()))
    registry = CollectorRegistry()
    registry.register(metrics)
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions() -> dict[str, str]:
    """Every expression of the rules, the dashboards and the KEDA example, by where it stands."""
    found = {}
    for group in read("deploy/prometheus/rules.yml")["groups"]:
        found |= {f"rule {rule['alert']}": rule["expr"] for rule in group["rules"]}
    for name, text in dashboard_files().items():
        for panel in json.loads(text)["panels"]:
            for target in panel["targets"]:
                found[f"{name} {panel['title']} {target['refId']}"] = target["expr"]
    for trigger in read("examples/keda/scaledobject.yaml")["spec"]["triggers"]:
        found[f"keda {trigger['name']}"] = trigger["metadata"]["query"]
    return found


def test_every_metric_that_is_asked_for_is_made() -> None:
    made = made_samples()
    asked = {(where, name) for where, text in expressions().items() for name in METRIC.findall(text)}
    assert len(asked) > 20
    assert {(where, name) for where, name in asked if name not in made} == set()


def test_every_label_that_is_asked_for_is_made() -> None:
    made = made_samples()
    for where, text in expressions().items():
        for name, labels in re.findall(r"(twincast_[a-z_]+)\{([^}]*)\}", text):
            for label in re.findall(r"(\w+)\s*[!=]=?~?\s*\"", labels):
                assert label in made[name], f"{where}: {name} has no label {label}"


def test_dashboards_are_up_to_date() -> None:
    on_disk = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    assert on_disk == dashboard_files(), "run `python -m pipelines.outlets.grafana_dashboards` and commit the result"


def test_dashboards_name_the_data_source_that_is_provisioned() -> None:
    [source] = read("deploy/grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    for text in dashboard_files().values():
        assert {panel["datasource"]["uid"] for panel in json.loads(text)["panels"]} == {source["uid"]}
    [provider] = read("deploy/grafana/provisioning/dashboards/twincast.yml")["providers"]
    mounts = read("docker-compose.yml")["services"]["grafana"]["volumes"]
    assert f"./deploy/grafana/dashboards:{provider['options']['path']}:ro" in mounts


def test_the_compose_file_hangs_together() -> None:
    """What `docker compose config` would refuse, as far as it is used here: keys, references, ports, mounts."""
    compose = read("docker-compose.yml")
    assert set(compose) == {"services", "volumes"}
    for name, service in compose["services"].items():
        assert set(service) <= SERVICE_KEYS, name
        assert re.fullmatch(r"[a-z./-]+:v?\d+\.\d+\.\d+", service["image"]), f"{name}: pin the image"
        assert set(service.get("depends_on", [])) <= set(compose["services"])
        for port in service["ports"]:
            assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), f"{name}: loopback only"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in compose["volumes"], volume
        assert all(isinstance(value, str) for value in service.get("environment", {}).values())
    assert {name for name, service in compose["services"].items() if "profiles" not in service} == {"kafka"}


def test_docker_compose_accepts_the_file() -> None:
    if shutil.which("docker") is None or _docker("compose", "version").returncode:
        pytest.skip("docker or its compose plugin is not here")
    found = _docker("compose", "--profile", "observe", "-f", str(ROOT / "docker-compose.yml"), "config", "--quiet")
    assert found.returncode == 0, found.stderr


def _docker(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["docker", *words], capture_output=True, text=True, timeout=30, check=False)


def test_prometheus_reads_the_rules_and_knows_the_alertmanager() -> None:
    prometheus, compose = read("deploy/prometheus/prometheus.yml"), read("docker-compose.yml")
    assert prometheus["rule_files"] == ["/etc/prometheus/rules.yml"]
    [manager] = prometheus["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    assert manager.split(":")[0] in compose["services"]
    receivers = {receiver["name"] for receiver in read("deploy/alertmanager/alertmanager.yml")["receivers"]}
    assert read("deploy/alertmanager/alertmanager.yml")["route"]["receiver"] in receivers
    inhibit = read("deploy/alertmanager/alertmanager.yml")["inhibit_rules"][0]["source_matchers"][0]
    assert NAMES["slo_risk"] in inhibit


def test_keda_scales_on_nothing_that_is_stale() -> None:
    spec = read("examples/keda/scaledobject.yaml")["spec"]
    first = spec["triggers"][0]["metadata"]
    assert first["ignoreNullValues"] == "false"  # an absent series is a failure, not a zero
    assert spec["fallback"]["failureThreshold"] >= 1
    assert 'level!="advisory"' in first["query"]
    assert spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]
