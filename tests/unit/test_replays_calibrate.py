"""Closed windows of a whole recording, and what `calibrate` makes of them."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
from synthetic import START_US, service

import pipelines.commands.calibrate_command as command
from pipelines.backtest import backtest
from pipelines.errors import ConfigError
from pipelines.ingest.recording import Recording, event_of, in_order, write_recording
from pipelines.replays import calibrate, causes, fidelity, replay_windows
from pipelines.settings import read_settings
from twin.bias import RoleSteps
from twin.closed_window import ClosedWindow
from twin.cost.shape import Role
from twin.metrics import Latencies
from twin.settings import CoreSettings
from twin.simulate import run
from twin.traffic.scenarios import BASELINE

SETTINGS = CoreSettings(
    period_s=20.0, horizons_s=(30.0, 60.0), scenarios=(BASELINE,), coarse_replications=1, fine_replications=3
)


@pytest.fixture(scope="module")
def recording() -> Recording:
    events = in_order(event_of(record) for record in service(200.0))
    return Recording(name="made", level="S3", t0_us=START_US, events=events)


def test_windows_are_disjoint_closed_and_faithful_on_an_engine_without_noise(recording: Recording) -> None:
    result = backtest(recording, SETTINGS, simulate=run)
    replayed = replay_windows(recording, result.window_jobs, result.forecasts)
    starts_s = [(each.as_of_us - START_US) / 1e6 for each in replayed]
    assert len(starts_s) == 2
    assert starts_s[1] - starts_s[0] == pytest.approx(60.0)
    rows = [row for row in fidelity(replayed, START_US) if (row["metric"], row["quantile"]) == ("e2e_s", "mean")]
    assert {row["level_given"] for row in rows} == {False, True}
    for row in rows:
        assert row["twin"] / row["observed"] == pytest.approx(1.0, abs=0.02)
    assert [row["window_start_s"] for row in causes(replayed, START_US)] == starts_s
    bias, trends = calibrate(replayed)
    assert bias.factor(Role.DECODE) == pytest.approx(1.0, abs=0.05)
    assert set(trends.values()) == {None}


def window_of(k: int, error: float) -> ClosedWindow:
    """A window whose members took `error` longer than the twin said, in the log."""
    twin = np.linspace(1.0, 2.0, 50)
    real = twin * np.exp(error)
    return ClosedWindow(
        as_of_us=START_US + k * 60_000_000,
        window_s=60.0,
        observed=Latencies(real, real, real),
        replayed=(Latencies(twin, twin, twin),),
        levelled=Latencies(real, real, real),
        role_steps=(RoleSteps(Role.DECODE, 1000, 10.0 * np.exp(error), 10.0),),
        saturated_ratio=0.0,
        steps=None,
        mean_isl_tokens=100.0,
        mean_osl_tokens=20.0,
        prefill_ratio=0.5,
    )


def run_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recording: Recording, found: list[ClosedWindow], since: str = "24h"
) -> tuple[int, dict[str, object]]:
    folder = tmp_path / "made"
    write_recording(folder, recording.events, name="made", source="test")
    monkeypatch.setattr(command, "_windows", lambda *_: found)
    target = tmp_path / "account.json"
    args = argparse.Namespace(recordings=[folder], since=since, json=target)
    code = command.run(args, read_settings())
    return code, json.loads(target.read_bytes())


def test_a_growing_bias_is_told_by_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recording: Recording
) -> None:
    growing = [window_of(k, 0.02 * k) for k in range(12)]
    code, account = run_command(tmp_path, monkeypatch, recording, growing)
    assert code == 1
    assert account["grows"]
    assert account["windows"] == 12


def test_a_steady_bias_is_corrected_and_no_reason_to_worry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    code, account = run_command(tmp_path, monkeypatch, recording, [window_of(k, 0.2) for k in range(12)])
    assert code == 0
    factors = account["cost_factors"]
    assert isinstance(factors, dict)
    assert factors["decode"] == pytest.approx(np.exp(0.2), rel=0.01)
    assert "does not grow" in capsys.readouterr().out


def test_only_what_is_recent_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recording: Recording) -> None:
    code, account = run_command(
        tmp_path, monkeypatch, recording, [window_of(k, 0.02 * k) for k in range(-12, 3)], since="3m"
    )
    assert code == 0
    assert account["windows"] == 2


def test_nothing_closed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recording: Recording) -> None:
    with pytest.raises(ConfigError, match="no window has closed"):
        run_command(tmp_path, monkeypatch, recording, [])


@pytest.mark.parametrize("text", ["", "24", "h", "-3h", "0h", "1w", "1e3s"])
def test_a_span_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 24h"):
        command.span_s(text)
