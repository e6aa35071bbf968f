"""What the page is told, as plain data for JSON: the fleet in short, and the parts of one deployment that changed.

Decides no look. Law: a part is told again only after it changed; a reader that applies what it is told in turn knows
what the server knows.
"""

from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Any

from pipelines.board import horizons_of, latency_of
from pipelines.web.fleet import Fleet
from pipelines.web.view import DeploymentView
from schemas.forecasts import Forecast, HorizonForecast
from schemas.scores import Replay
from schemas.slos import SloTarget
from twin.metrics import METRICS, QUANTILES

SHOWN_ALERTS = 50
SHOWN_SCORES = 30
TREND_FORECASTS = 30
MOST_WITH_TREND = 64

Cursor = dict[str, int]
"""How far a reader has been told, by part."""


def fleet(known: Fleet) -> dict[str, Any]:
    """Every deployment in short, by name."""
    return {
        "deployments": [
            summary(known.views[name], trend=len(known.views) <= MOST_WITH_TREND) for name in sorted(known.views)
        ],
        "dead_letters": known.dead_letters,
        "left_out": known.left_out,
    }


def summary(view: DeploymentView, *, trend: bool = True) -> dict[str, Any]:
    """One deployment in short. Risk and latency are of the worst and of the shortest horizon."""
    board = view.board
    forecast, fine = board.forecast, board.last.get("fine")
    horizons = horizons_of(forecast) if forecast else ()
    metric, level = board.slo_key
    return {
        "deployment": view.deployment,
        **times(view),
        "authority": forecast.authority if forecast else None,
        "credibility": forecast.credibility.level if forecast else None,
        "input_level": forecast.input_level if forecast else None,
        "breach_probability": worst_risk(horizons),
        "slo": board.slo,
        "metric": metric,
        "quantile": level,
        "horizon_s": horizons[0].horizon_s if horizons else None,
        "latency": latency_of(horizons[0], metric, level) if horizons else None,
        "arrivals_per_s": horizons[0].arrivals_per_s if horizons else None,
        "ceiling_requests_per_s": fine.ceiling_requests_per_s if fine else None,
        "headroom_ratio": fine.burst_headroom_ratio if fine else None,
        "alerts": [{"kind": alert.kind, "cause": alert.cause, "at_us": alert.at_us} for alert in view.firing],
        "actions": len(view.open_actions),
        "trend": _trend(view) if trend else [],
    }


def _trend(view: DeploymentView) -> list[tuple[float, float, float]]:
    """Low, value and high of the newest forecasts of the target's latency over the shortest horizon, in order."""
    return [
        (low_s, value_s, high_s) for value_s, low_s, high_s, _ in list(view.board.bands.values())[-TREND_FORECASTS:]
    ]


def times(view: DeploymentView) -> dict[str, Any]:
    """All that is needed to tell how old what is shown is. `made_us` is processing time, the others are event time."""
    forecast = view.board.forecast
    return {
        "newest_us": max(view.board.newest_us, forecast.as_of_us if forecast else 0),
        "as_of_us": forecast.as_of_us if forecast else None,
        "expires_us": forecast.expires_us if forecast else None,
        "made_us": view.made_us.get(forecast.phase) if forecast else None,
    }


def worst_risk(horizons: tuple[HorizonForecast, ...]) -> float | None:
    """The highest breach probability of any target and horizon; None without targets."""
    return max((risk.breach_probability for horizon in horizons for risk in horizon.slo_risks), default=None)


def changed_parts(view: DeploymentView, cursor: Cursor) -> dict[str, Any]:
    """The parts that changed since `cursor`, which is moved on."""
    view.refresh()
    found: dict[str, Any] = {}
    for name, revision in _revisions(view).items():
        before = cursor.get(name, -1)
        if revision != before:
            found[name] = _PARTS[name](view, before)
            cursor[name] = revision
    return found


def _revisions(view: DeploymentView) -> dict[str, int]:
    counted = view.revisions
    return {
        "now": view.board.newest_us + view.board.forecasts_made,
        "forecast": counted["forecast"],
        "bands": view.bands.revision,
        "observed": view.observed.rows.revision,
        "engine_rows": view.engines.rows.revision,
        "scores": counted["scores"],
        "alerts": counted["alerts"],
        "changes": counted["changes"],
        "actions": counted["actions"],
        "setup": counted["setup"],
        "ledger": counted["forecast"] + counted["alerts"] + counted["actions"] + counted["changes"],
    }


def _now(view: DeploymentView, _: int) -> dict[str, Any]:
    board = view.board
    return {
        **times(view),
        "first_us": board.first_us,
        "waiting": board.waiting,
        "running": board.running,
        "kv_ratio": board.kv_ratio,
        "forecasts_made": board.forecasts_made,
    }


def _forecast(view: DeploymentView, _: int) -> dict[str, Any] | None:
    """The newest forecast; what only fine ones hold is of the newest of those."""
    forecast, fine = view.board.forecast, view.board.last.get("fine")
    if forecast is None:
        return None
    baseline = next((each for each in forecast.scenarios if each.scenario == "baseline"), None)
    return {
        **times(view),
        "phase": forecast.phase,
        "input_level": forecast.input_level,
        "interval_level": forecast.interval_level,
        "authority": forecast.authority,
        "credibility": {"level": forecast.credibility.level, "reasons": forecast.credibility.reasons},
        "skill": forecast.skill,
        "scored_rounds": forecast.scored_rounds,
        "horizons": [_horizon(horizon) for horizon in horizons_of(forecast)],
        "curves": baseline.curves if baseline else (),
        "scenarios": [
            {"scenario": each.scenario, "breach_probability": worst_risk(each.horizons)} for each in forecast.scenarios
        ],
        "balance": _balance(forecast),
        "lineage": _lineage(forecast),
        "engines": forecast.engines,
        "engines_starting": forecast.engines_starting,
        "fine": _insight(fine) if fine else None,
    }


def _horizon(horizon: HorizonForecast) -> dict[str, Any]:
    names = [name for name in HorizonForecast.__struct_fields__ if name != "slo_risks"]
    return {name: getattr(horizon, name) for name in names} | {
        "slo_risks": [
            {name: getattr(risk, name) for name in type(risk).__struct_fields__} for risk in horizon.slo_risks
        ]
    }


def _balance(forecast: Forecast) -> list[dict[str, Any]]:
    return [
        {"engine": share.engine, "requests_ratio": share.requests_ratio, "busy_ratio": share.busy_ratio}
        for share in forecast.balance
    ]


def _lineage(forecast: Forecast) -> dict[str, Any]:
    lineage = forecast.lineage
    return {
        "twincast_version": lineage.twincast_version,
        "settings_hash": lineage.settings_hash,
        "costs_hash": lineage.costs_hash,
        "seed": lineage.seed,
        "replications": lineage.replications,
        "engine": lineage.engine,
        "steps_learned": lineage.steps_learned,
    }


def _insight(fine: Forecast) -> dict[str, Any]:
    return {
        "as_of_us": fine.as_of_us,
        "ceiling_requests_per_s": fine.ceiling_requests_per_s,
        "burst_headroom_ratio": fine.burst_headroom_ratio,
        "bottlenecks": fine.bottlenecks,
        "responses": fine.responses,
        "outlook": fine.outlook,
    }


def _bands(view: DeploymentView, since: int) -> dict[str, Any]:
    return _keyed(view) | {"horizons_s": view.horizons_s, "rows": view.bands.since(since)}


def _observed(view: DeploymentView, since: int) -> dict[str, Any]:
    return _keyed(view) | {"horizons_s": view.observed.horizons_s, "rows": view.observed.rows.since(since)}


def _keyed(view: DeploymentView) -> dict[str, Any]:
    """The order of columns within a row, after its time: horizons, of each metrics, of each quantiles."""
    return {"metrics": METRICS, "quantiles": QUANTILES}


def _scores(view: DeploymentView, _: int) -> dict[str, Any]:
    cover = view.board.coverage
    return {
        "windows": cover.windows,
        "cells": cover.cells,
        "covered": cover.covered,
        "intervened": view.ledger.intervened,
        "rows": view.ledger.rows(),
        "last": [
            {
                "as_of_us": scored.as_of_us,
                "horizon_s": scored.horizon_s,
                "members": scored.members,
                "unfinished": scored.unfinished,
                "intervened": scored.intervened,
                "cell": next((c for c in scored.cells if (c.metric, c.quantile) == view.board.slo_key), None),
            }
            for scored in list(view.board.scores)[-SHOWN_SCORES:]
        ],
        "replay": None if view.board.replay is None else _replay(view.board.replay),
    }


def _replay(found: Replay) -> dict[str, Any]:
    """Why the newest window that was replayed missed its forecast, and where the bias goes."""
    return {
        "as_of_us": found.as_of_us,
        "window_s": found.window_s,
        "cause": found.cause,
        "error_log": found.error_log,
        "traffic_log": found.traffic_log,
        "costs_log": found.costs_log,
        "rest_log": found.rest_log,
        "evidence": found.evidence,
        "grows": [row.quantile for row in found.trend if row.grows],
    }


def _ledger(view: DeploymentView, _: int) -> dict[str, Any] | None:
    """The account in short; None before a request has finished."""
    account = view.account()
    if account is None:
        return None
    leads_s = [breach.lead_s for breach in account.breaches if breach.lead_s is not None]
    fates = Counter(proposal.fate for proposal in account.proposals)
    return {
        "targets": len(view.board.targets),
        "breaches": len(account.breaches),
        "foreseen": account.foreseen,
        "covered": account.covered,
        "lead_s": median(leads_s) if leads_s else None,
        "pages": account.pages,
        "false_pages": account.false_pages,
        "proposals": len(account.proposals),
        "fates": dict(fates),
        "needless": account.needless,
        "engine_hours": account.engine_hours,
        "engine_hours_obeyed": account.engine_hours_obeyed,
        "reversals_done": account.reversals_done,
        "reversals_proposed": account.reversals_proposed,
    }


def _setup(view: DeploymentView, _: int) -> dict[str, Any]:
    return {
        "targets": [_target(target) for target in view.board.targets],
        "engines": [
            {
                "engine": config.engine,
                "max_num_seqs": config.max_num_seqs,
                "max_num_batched_tokens": config.max_num_batched_tokens,
                "kv_blocks": config.kv_blocks,
                "block_size_tokens": config.block_size_tokens,
                "hardware": config.hardware or config.fingerprint.device,
                "model": config.fingerprint.model,
            }
            for config in view.configs.values()
        ],
    }


def _target(target: SloTarget) -> dict[str, Any]:
    return {name: getattr(target, name) for name in SloTarget.__struct_fields__}


_PARTS: dict[str, Callable[[DeploymentView, int], Any]] = {
    "now": _now,
    "forecast": _forecast,
    "bands": _bands,
    "observed": _observed,
    "engine_rows": lambda view, since: {"rows": view.engines.rows.since(since)},
    "scores": _scores,
    "alerts": lambda view, _: list(view.board.alerts)[-SHOWN_ALERTS:],
    "changes": lambda view, _: list(view.changes),
    "actions": lambda view, _: [
        {"action": each.action, "ended": each.ended, "ended_us": each.ended_us} for each in view.actions.values()
    ],
    "setup": _setup,
    "ledger": _ledger,
}
