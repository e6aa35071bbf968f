"""Detectors: still streams stay quiet, changes are found, the knob sets the rate, snapshots go on alike."""

import math

import numpy as np
import orjson
import pytest

from twin.detectors import WARM_BUCKETS, DetectorSettings, LevelDetector, PeakDetector, TailDetector
from twin.drift import COST

BUCKET_US = 250_000


def fed(values: np.ndarray, settings: DetectorSettings = COST) -> LevelDetector:
    detector = LevelDetector(settings)
    for i, value in enumerate(values):
        detector.update(i * BUCKET_US, float(value))
    return detector


def noise(n: int, seed: int, sigma: float = 0.05) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n) * sigma


def wandering(n: int, seed: int, sigma: float, buckets: float) -> np.ndarray:
    """A level that wanders: autocorrelation e^(-1 / buckets), standard deviation sigma."""
    rng = np.random.default_rng(seed)
    keep = math.exp(-1.0 / buckets)
    values, value = np.zeros(n), 0.0
    for i in range(n):
        value = keep * value + math.sqrt(1 - keep * keep) * sigma * rng.standard_normal()
        values[i] = value
    return values


@pytest.mark.parametrize("factor", [0.5, 1.3, 2.1, 10.0])
def test_a_jump_beyond_the_smallest_effect_is_confirmed_and_dated(factor: float) -> None:
    values = np.concatenate([noise(400, 1), math.log(factor) + noise(120, 2)])
    detector = fed(values)
    assert detector.confirmed
    assert detector.deviation == pytest.approx(math.log(factor), abs=0.05)
    assert detector.onset_us() == pytest.approx(400 * BUCKET_US, abs=3 * BUCKET_US)


@pytest.mark.parametrize("factor", [0.85, 1.0, 1.15])
def test_what_is_smaller_is_not_told(factor: float) -> None:
    detector = fed(np.concatenate([noise(400, 3), math.log(factor) + noise(400, 4)]))
    assert not detector.beyond


def test_a_level_that_creeps_up_is_told_too() -> None:
    creep = np.linspace(0.0, math.log(1.6), 6_000)
    assert fed(np.concatenate([noise(6_000, 5), creep + noise(6_000, 6)])).confirmed


def test_a_stream_that_wanders_by_itself_moves_its_own_threshold() -> None:
    calm, wild = fed(wandering(3_000, 7, 0.02, 40)), fed(wandering(3_000, 7, 0.15, 40))
    assert calm.threshold == pytest.approx(math.log(1.25))
    assert wild.threshold > math.log(1.4)


def test_nothing_is_told_before_there_is_a_reference() -> None:
    detector = fed(np.concatenate([noise(20, 8), 2.0 + noise(WARM_BUCKETS - 21, 9)]))
    assert not detector.warm
    assert not detector.beyond


def test_false_alarms_stay_at_or_below_the_stated_rate() -> None:
    """Two days of a level that wanders by 5 %: the stated 2 false alarms a day would be 4."""
    buckets = 2 * 86_400 * 4
    told, detector, before = 0, LevelDetector(DetectorSettings(false_alarms_per_day=2.0, bucket_s=2.0)), False
    for i, value in enumerate(wandering(buckets // 8, 10, 0.05, 40)):
        detector.update(i * 8 * BUCKET_US, float(value))
        told += detector.confirmed and not before
        before = detector.confirmed
    assert told <= 4


def test_an_adopted_level_is_the_reference_from_then_on() -> None:
    detector = fed(np.concatenate([noise(400, 11), 0.7 + noise(200, 12)]))
    detector.adopt()
    assert not detector.beyond
    assert detector.reference == pytest.approx(0.7, abs=0.03)


def test_while_a_change_is_told_the_reference_stands_still() -> None:
    detector = fed(noise(400, 13))
    reference, wander = detector.reference, detector.wander
    for i in range(2_000):
        detector.update((400 + i) * BUCKET_US, 0.7, told=True)
    assert (detector.reference, detector.wander) == (reference, wander)
    assert detector.confirmed


def test_a_restored_level_detector_answers_as_the_original() -> None:
    values = np.concatenate([noise(900, 14), 0.4 + noise(300, 15)])
    original = fed(values[:950])
    restored = LevelDetector.restore(orjson.loads(orjson.dumps(original.snapshot())), COST)
    for i, value in enumerate(values[950:], start=950):
        original.update(i * BUCKET_US, float(value))
        restored.update(i * BUCKET_US, float(value))
        assert (restored.confirmed, restored.deviation) == (original.confirmed, original.deviation)
    assert orjson.dumps(restored.snapshot()) == orjson.dumps(original.snapshot())


def tail_after(shares: list[float], values: int = 25) -> TailDetector:
    """Buckets in which this share of the values exceed their P99, in whole values by accumulation."""
    detector, owed = TailDetector(COST), 0.0
    for i, share in enumerate(shares):
        owed += share * values
        detector.update(i * BUCKET_US, int(owed), values)
        owed -= int(owed)
    return detector


def test_a_tail_five_times_too_heavy_is_found_within_two_minutes() -> None:
    detector = tail_after([0.01] * 2_000 + [0.06] * 480)
    assert detector.height >= 1.0
    assert detector.share > 0.03
    assert detector.onset_us == pytest.approx(2_000 * BUCKET_US, abs=41 * BUCKET_US)


def test_a_tail_as_predicted_stays_quiet() -> None:
    assert tail_after([0.01] * 20_000).height < 0.5


def test_one_clump_of_slow_steps_is_no_changed_tail() -> None:
    assert tail_after([0.01] * 2_000 + [0.9] * 40 + [0.01] * 400).height < 0.5


def test_a_tail_reset_forgets_what_something_else_explains() -> None:
    detector = tail_after([0.01] * 500 + [0.2] * 400)
    detector.reset()
    assert detector.height == 0.0
    assert detector.share == 0.0


def test_a_value_far_above_all_before_is_a_peak_until_it_is_usual() -> None:
    detector = PeakDetector(DetectorSettings(false_alarms_per_day=0.001, bucket_s=300.0, bucket_rows=1))
    assert not any(detector.update(float(value)) for value in noise(600, 16, 0.1))
    assert detector.update(2.0)
    for _ in range(40):
        detector.update(2.0)
        for value in noise(10, 17, 0.1):
            detector.update(float(value))
    assert not detector.update(2.0)


def test_peaks_of_a_still_stream_come_at_the_stated_rate() -> None:
    peaks, days = 0, 0.0
    for seed in range(10):
        detector = PeakDetector(DetectorSettings(false_alarms_per_day=1.0, bucket_s=300.0, bucket_rows=1))
        peaks += sum(detector.update(float(value)) for value in noise(2_000, seed, 0.1))
        days += (2_000 - 288) / 288
    assert 0.5 < peaks / days < 1.6


def test_a_restored_peak_detector_answers_as_the_original() -> None:
    original = PeakDetector(COST)
    for value in noise(500, 18):
        original.update(float(value))
    restored = PeakDetector.restore(orjson.loads(orjson.dumps(original.snapshot())), COST)
    assert restored.bound == original.bound
    assert restored.snapshot() == original.snapshot()


@pytest.mark.parametrize("name", DetectorSettings.__slots__)
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_setting_that_is_not_a_finite_number_above_zero_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        DetectorSettings(**{name: value})


def test_fewer_false_alarms_ask_for_more_evidence() -> None:
    rare, often = DetectorSettings(false_alarms_per_day=0.01), DetectorSettings(false_alarms_per_day=10.0)
    assert rare.adwin_delta < often.adwin_delta
    assert rare.wander_sigmas > often.wander_sigmas
    assert rare.tail_height > often.tail_height
