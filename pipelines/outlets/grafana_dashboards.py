"""Makes the Grafana dashboards: `python -m pipelines.outlets.grafana_dashboards`. Makes no metric.

Law: what stands in deploy/grafana/dashboards equals what this makes, and every metric in it exists; a test says so.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "dashboards"
SOURCE = {"type": "prometheus", "uid": "twincast-prometheus"}
HERE = 'deployment="$deployment"'
PANEL_WIDTH, PANEL_HEIGHT = 12, 8


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A chart: pairs of an expression and a legend, a unit of Grafana's, and what it tells."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str
    about: str


def _band(metric: str, labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f'{metric}{{{HERE},{labels}bound="{bound}"}}', f"{bound}, {{{{horizon}}}} s ahead") for bound in BOUNDS
    )


BOUNDS = ("low", "value", "high")
DEPLOYMENT = (
    Panel(
        title="TTFT P95: forecast and last closed window",
        queries=(
            *_band("twincast_forecast_latency_seconds", 'metric="ttft",quantile="0.95",horizon="30",'),
            (f'twincast_observed_latency_seconds{{{HERE},metric="ttft",quantile="0.95",horizon="30"}}', "observed"),
        ),
        unit="s",
        about="The band is of requests that arrive within 30 s; what was observed comes when their window closes.",
    ),
    Panel(
        title="Probability that a target is missed",
        queries=(
            (
                f"twincast_forecast_breach_probability_ratio{{{HERE}}}",
                "{{metric}} P{{quantile}} within {{horizon}} s",
            ),
        ),
        unit="percentunit",
        about="Over all requests that arrive within the horizon.",
    ),
    Panel(
        title="Arrivals against the ceiling",
        queries=(
            *_band("twincast_forecast_arrivals_requests_per_second", 'horizon="60",'),
            (f'twincast_forecast_ceiling_requests_per_second{{{HERE},bound="low"}}', "ceiling, lower end"),
        ),
        unit="reqps",
        about="The ceiling is the knee of a load sweep in the twin.",
    ),
    Panel(
        title="Engines needed",
        queries=((f"twincast_forecast_engines_needed{{{HERE}}}", "engines needed"),),
        unit="short",
        about="The least number of engines with a breach probability of at most 0.1.",
    ),
    Panel(
        title="KV cache and queue at their peak",
        queries=(
            (f'twincast_forecast_kv_peak_ratio{{{HERE},bound="high"}}', "KV in use, {{horizon}} s"),
            (f'twincast_forecast_waiting_peak_requests{{{HERE},bound="high"}}', "waiting, {{horizon}} s"),
        ),
        unit="short",
        about="Upper ends of the intervals.",
    ),
    Panel(
        title="Inside the 90 % interval",
        queries=(
            (
                f"increase(twincast_score_cells_covered_total{{{HERE}}}[30m])"
                f" / increase(twincast_score_cells_total{{{HERE}}}[30m])",
                "{{horizon}} s",
            ),
        ),
        unit="percentunit",
        about="Every forecast is scored when its window closes.",
    ),
)
FLEET = (
    Panel(
        title="Highest breach probability",
        queries=(("max by (deployment) (twincast_forecast_breach_probability_ratio)", "{{deployment}}"),),
        unit="percentunit",
        about="Of any target within any horizon.",
    ),
    Panel(
        title="Alerts that fire",
        queries=(("sum by (deployment, kind) (twincast_alerts_firing)", "{{deployment}} {{kind}}"),),
        unit="short",
        about="Risk and drift.",
    ),
    Panel(
        title="Age of the newest forecast",
        queries=(("twincast_forecast_age_seconds", "{{deployment}}"),),
        unit="s",
        about="A forecast past its expiry is in no other series.",
    ),
    Panel(
        title="Skill against persistence",
        queries=(("twincast_forecast_skill_ratio", "{{deployment}}"),),
        unit="percentunit",
        about="At or below 0 the next window might as well look like the last.",
    ),
)
WORKER = (
    Panel(
        title="Units of input by outcome",
        queries=(("sum by (outcome) (rate(twincast_units_total[1m]))", "{{outcome}}"),),
        unit="ops",
        about="Every unit ends in exactly one outcome.",
    ),
    Panel(
        title="Waiting in the worker",
        queries=(
            ("twincast_records_held", "records {{instance}}"),
            ("twincast_units_held", "units {{instance}}"),
            ("twincast_simulations_outstanding", "simulations {{instance}}"),
        ),
        unit="short",
        about="Records read and not handled, units without an outcome, simulations not done.",
    ),
    Panel(
        title="Records written",
        queries=(("sum by (topic) (rate(twincast_records_written_total[1m]))", "{{topic}}"),),
        unit="ops",
        about="Forecasts, scores, alerts, snapshots, dead letters.",
    ),
    Panel(
        title="Partitions and simulators",
        queries=(
            ("twincast_partitions", "partitions {{instance}}"),
            ("twincast_simulators_ready", "simulators ready {{instance}}"),
        ),
        unit="short",
        about="All partitions together are as many as the topics have.",
    ),
)


def dashboard_files() -> dict[str, str]:
    """File name -> content."""
    pick = {
        "name": "deployment",
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": "label_values(twincast_forecast_age_seconds, deployment)", "refId": "deployment"},
        "refresh": 2,
        "sort": 1,
    }
    return {
        "fleet.json": _file("twincast-fleet", "Twincast: fleet", FLEET, []),
        "deployment.json": _file("twincast-deployment", "Twincast: a deployment", DEPLOYMENT, [pick]),
        "worker.json": _file("twincast-worker", "Twincast: workers", WORKER, []),
    }


def _file(uid: str, title: str, panels: Sequence[Panel], variables: list[dict[str, Any]]) -> str:
    board = {
        "uid": uid,
        "title": title,
        "tags": ["twincast"],
        "schemaVersion": 41,
        "editable": True,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": variables},
        "panels": [_panel(panel, number) for number, panel in enumerate(panels)],
    }
    return json.dumps(board, indent=1) + "\n"


def _panel(panel: Panel, number: int) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": {
            "x": PANEL_WIDTH * (number % 2),
            "y": PANEL_HEIGHT * (number // 2),
            "w": PANEL_WIDTH,
            "h": PANEL_HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": {"fillOpacity": 10}}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for at, (expression, legend) in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file_name, content in dashboard_files().items():
        (FOLDER / file_name).write_text(content, encoding="utf-8")
        print(FOLDER / file_name)
