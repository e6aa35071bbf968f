"""The rate forecast on traffic of known rate: levels, ramps, jumps, silence, days; its doubt; its memory."""

import numpy as np
import orjson
import pytest
from made_traffic import poisson, ramp

from twin.traffic.forecast import RateForecast
from twin.traffic.models import GatedTrend, LevelBank
from twin.traffic.rate import RateForecaster


def fed(times_s: np.ndarray, until_s: float, slot_s: float = 5.0, **settings: tuple[float, ...]) -> RateForecaster:
    forecaster = RateForecaster(slot_s, **settings)
    counts = np.histogram(times_s, np.arange(0.0, until_s + slot_s, slot_s))[0]
    for slot, count in enumerate(counts[: int(until_s / slot_s)].tolist()):
        forecaster.update(count, slot)
    return forecaster


def test_a_steady_rate_is_found_and_its_interval_holds_it() -> None:
    inside, error = 0, []
    for seed in range(12):
        forecast = fed(poisson(6.0, 400.0, seed), 300.0).forecast()
        low, high = forecast.interval_per_s(60.0)
        later = poisson(6.0, 60.0, seed + 1_000).size / 60.0
        inside += low <= later <= high
        error.append(abs(forecast.mean_per_s(60.0) - 6.0))
        assert 0.0 < low < high < 12.0
    assert inside >= 9
    assert float(np.mean(error)) < 0.5


def test_a_ramp_is_followed_and_persistence_is_beaten() -> None:
    ours, persistence = [], []
    for seed in range(6):
        times = ramp(2.0, 14.0, 240.0, seed)
        truth = float(np.count_nonzero((times > 150) & (times <= 180))) / 30.0
        ours.append(abs(fed(times, 150.0).forecast().mean_per_s(30.0) - truth))
        persistence.append(abs(float(np.count_nonzero((times > 120) & (times <= 150))) / 30.0 - truth))
    assert float(np.mean(ours)) < 0.75 * float(np.mean(persistence))


def test_the_trend_gate_stays_shut_on_steady_traffic() -> None:
    opened = 0
    for seed in range(40):
        level = LevelBank()
        trend = GatedTrend(level)
        for slot, count in enumerate(np.random.default_rng(seed).poisson(30.0, 60).tolist()):
            level.update(count, slot)
            trend.update(count, slot)
        opened += trend.line is not None
    assert opened <= 3


def test_a_forecast_is_never_negative_and_silence_brings_it_down() -> None:
    times = ramp(10.0, 0.0, 120.0, 3)
    falling = fed(times, 115.0).forecast()
    assert (falling.arrivals >= 0.0).all()
    assert falling.interval_per_s(30.0)[0] >= 0.0
    silent = fed(times, 400.0).forecast()
    assert silent.mean_per_s(30.0) < 0.15


def test_nothing_seen_expects_nothing() -> None:
    empty = RateForecaster().forecast()
    assert empty.mean_per_s(30.0) == 0.0
    assert empty.interval_per_s(30.0) == (0.0, pytest.approx(2.3 / 30.0, rel=0.01))


def test_a_jump_of_the_rate_is_taken_up_within_half_a_minute() -> None:
    times = np.concatenate((poisson(4.0, 200.0, 1), 200.0 + poisson(12.0, 100.0, 2)))
    assert fed(times, 230.0).forecast().mean_per_s(30.0) > 9.0


def test_the_model_that_does_better_gains_weight() -> None:
    rising = fed(ramp(2.0, 60.0, 600.0, 2), 500.0)
    steady = fed(poisson(30.0, 600.0, 2), 500.0)
    assert rising.weights(30.0)["trend"] > 2 * rising.weights(30.0)["level"]
    assert rising.weights(30.0)["persistence"] < steady.weights(30.0)["persistence"]


def test_the_time_of_day_helps_from_the_second_day_on() -> None:
    slot_s, day = 600.0, 144
    rng = np.random.default_rng(4)
    rate = 50.0 * (1.5 + np.sin(2 * np.pi * np.arange(4 * day) / day))
    counts = rng.poisson(rate)
    forecaster = RateForecaster(slot_s, (600.0, 7_200.0))
    errors, level_errors = [], []
    for slot in range(3 * day + day // 2):
        if slot > 2 * day and slot % 7 == 0:
            truth = float(rate[slot : slot + 12].mean())
            errors.append(abs(forecaster.forecast().mean_per_s(7_200.0) * slot_s - truth))
            level_errors.append(abs(float(counts[slot - 12 : slot].mean()) - truth))
        forecaster.update(int(counts[slot]), slot)
    assert float(np.mean(errors)) < 0.6 * float(np.mean(level_errors))
    assert forecaster.weights(7_200.0)["seasonal"] > 100 * forecaster.weights(7_200.0)["level"]


def test_more_doubt_further_ahead_and_for_wilder_traffic() -> None:
    steady = fed(poisson(6.0, 400.0), 300.0).forecast()
    rng = np.random.default_rng(9)
    wild_counts = rng.poisson(30.0 * rng.lognormal(-0.5, 1.0, 60))
    wild = RateForecaster()
    for slot, count in enumerate(wild_counts.tolist()):
        wild.update(count, slot)
    assert wild.forecast().dispersion > 5 * steady.dispersion
    assert wild.forecast().sigma_at(30.0) > 2 * steady.sigma_at(30.0)
    assert steady.sigma_at(120.0) >= steady.sigma_at(30.0)


@pytest.mark.parametrize(("slot_s", "horizons_s", "slots"), [(5.0, (30.0, 60.0), 60), (600.0, (600.0, 7_200.0), 221)])
def test_a_snapshot_through_json_changes_no_number(slot_s: float, horizons_s: tuple[float, ...], slots: int) -> None:
    counts = np.random.default_rng(2).poisson(20.0 + 15.0 * np.sin(np.arange(2 * slots) / 23.0)).tolist()
    original = RateForecaster(slot_s, horizons_s)
    for slot, count in enumerate(counts[:slots]):
        original.update(count, slot)
    restored = RateForecaster.restore(orjson.loads(orjson.dumps(original.snapshot())))
    for slot, count in enumerate(counts[slots:], start=slots):
        original.update(count, slot)
        restored.update(count, slot)
    assert orjson.dumps(original.snapshot()) == orjson.dumps(restored.snapshot())
    assert np.array_equal(original.forecast().arrivals, restored.forecast().arrivals)
    assert np.array_equal(original.forecast().level_sigma, restored.forecast().level_sigma)


def test_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 99"):
        RateForecaster.restore({**RateForecaster().snapshot(), "version": 99})


@pytest.mark.parametrize(
    ("slot_s", "horizons_s", "complaint"),
    [(float("nan"), (30.0,), "slot_s"), (0.0, (30.0,), "slot_s"), (5.0, (), "horizons_s"), (5.0, (60.0, 30.0), "rise")],
)
def test_bad_settings_are_named(slot_s: float, horizons_s: tuple[float, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        RateForecaster(slot_s, horizons_s)


def test_a_forecast_path_never_falls_for_any_level() -> None:
    forecast = RateForecast(np.array([0.0, 30.0, 60.0]), np.array([0.0, 10.0, 10.0]), np.array([0.1, 0.1, 1.5]), 1.0)
    for level_z in (-3.0, 0.0, 3.0):
        times_s, expected = forecast.path(level_z, 90.0)
        assert times_s[-1] == 90.0
        assert (np.diff(expected) >= 0.0).all()


def test_a_forecast_refuses_what_falls() -> None:
    with pytest.raises(ValueError, match="never fall"):
        RateForecast(np.array([0.0, 30.0]), np.array([0.0, -1.0]), np.zeros(2), 1.0)
    with pytest.raises(ValueError, match="one length"):
        RateForecast(np.array([0.0, 30.0]), np.array([0.0]), np.zeros(2), 1.0)
