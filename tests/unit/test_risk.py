"""Alerts of coming breaches."""

import msgspec
import pytest
from made_scores import forecast_of

from schemas.alerts import Alert
from schemas.forecasts import Forecast, SloRisk
from twin.risk import RiskAlerts, RiskSettings


def forecast(probability: float, at_s: float, traffic_class: str = "") -> Forecast:
    risk = SloRisk(
        metric="e2e_s", quantile=0.5, limit_s=2.0, breach_probability=probability, traffic_class=traffic_class
    )
    return forecast_of(1.0, 0.5, 2.0, at_s=at_s, risks=(risk,))


def run(alerts: RiskAlerts, probabilities: list[float], start_s: float = 0.0, period_s: float = 5.0) -> list[Alert]:
    found: list[Alert] = []
    for k, probability in enumerate(probabilities):
        found += alerts.on_forecast(forecast(probability, start_s + k * period_s))
    return found


def test_a_rise_is_suspected_then_firing_then_resolved_under_one_id() -> None:
    found = run(RiskAlerts("d"), [0.1, 0.4, 0.6, 0.6, 0.6] + [0.05] * 10)
    assert [alert.state for alert in found] == ["suspected", "firing", "resolved"]
    assert len({alert.alert_id for alert in found}) == 1
    assert found[1].onset_us == found[0].at_us
    assert found[1].lead_s == 30.0
    assert found[1].effect_ratio == pytest.approx(0.5)
    assert "e2e P50 over 2 s" in found[1].cause


def test_near_certainty_fires_at_once() -> None:
    assert [alert.state for alert in run(RiskAlerts("d"), [0.95])] == ["suspected", "firing"]


def test_a_short_peak_does_not_fire() -> None:
    assert [alert.state for alert in run(RiskAlerts("d"), [0.6] + [0.05] * 10)] == ["suspected", "resolved"]


def test_trembling_around_a_threshold_gives_one_alert() -> None:
    for threshold in (0.2, 0.3, 0.5, 0.8):
        probabilities = [threshold + (0.02 if k % 2 else -0.02) for k in range(200)]
        found = run(RiskAlerts("d"), probabilities)
        assert sum(alert.state == "firing" for alert in found) <= 1
        assert len({alert.alert_id for alert in found}) <= 1


def test_a_firing_alert_survives_a_dip_and_a_probability_between_the_bars() -> None:
    alerts = RiskAlerts("d")
    run(alerts, [0.9, 0.9])
    assert run(alerts, [0.05, 0.9, 0.05, 0.9], 10.0) == []
    assert run(alerts, [0.25] * 50, 30.0) == []
    assert alerts.firing


def test_far_doubt_alone_does_not_hold_an_alert_open() -> None:
    alerts = RiskAlerts("d")
    run(alerts, [0.9, 0.9])
    found = []
    for k in range(2, 12):
        near, far = forecast(0.05, 5.0 * k), forecast(0.25, 5.0 * k)
        far_horizon = msgspec.structs.replace(far.scenarios[0].horizons[0], horizon_s=120.0)
        scenario = msgspec.structs.replace(near.scenarios[0], horizons=(near.scenarios[0].horizons[0], far_horizon))
        found += alerts.on_forecast(msgspec.structs.replace(near, scenarios=(scenario,)))
    assert [alert.state for alert in found] == ["resolved"]


def test_several_targets_of_one_class_are_one_alert_and_classes_are_apart() -> None:
    risks = tuple(
        SloRisk(metric=metric, quantile=0.5, limit_s=2.0, breach_probability=0.9, traffic_class=traffic_class)
        for metric in ("ttft_s", "e2e_s")
        for traffic_class in ("", "batch")
    )
    found = RiskAlerts("d").on_forecast(forecast_of(1.0, 0.5, 2.0, risks=risks))
    assert [alert.state for alert in found] == ["suspected", "firing"] * 2
    assert len({alert.alert_id for alert in found}) == 2
    assert all("also at risk" in alert.evidence for alert in found)


def test_an_alert_whose_target_is_gone_resolves() -> None:
    alerts = RiskAlerts("d")
    run(alerts, [0.9])
    found = [a for k in range(1, 12) for a in alerts.on_forecast(forecast_of(1.0, 0.5, 2.0, at_s=5.0 * k))]
    assert [alert.state for alert in found] == ["resolved"]
    assert not alerts.firing


def test_restored_alerts_go_on_as_the_first_would_have() -> None:
    alerts = RiskAlerts("d")
    run(alerts, [0.4, 0.6])
    restored = RiskAlerts.restore(alerts.snapshot())
    rest = [0.6, 0.9] + [0.0] * 10
    assert run(restored, rest, 10.0) == run(alerts, rest, 10.0)
    with pytest.raises(ValueError, match="version"):
        RiskAlerts.restore({**alerts.snapshot(), "version": 99})


def test_thresholds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match="risk ratios"):
        RiskSettings(suspect_ratio=0.6)
    with pytest.raises(ValueError, match="fire_after_s"):
        RiskSettings(fire_after_s=float("nan"))
