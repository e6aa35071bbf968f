"""Since when the mix of traffic has been the same: changes of known time, and chance that is none."""

import numpy as np
import pytest
from made_traffic import arrived, finished, poisson, us

from schemas.requests import RequestAborted
from twin.traffic.history import TrafficHistory
from twin.traffic.mix import same_mix_since_s


def features(n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 1.0, (n, 2))


def test_one_mix_is_kept_whole_save_for_chance() -> None:
    kept = 0
    for seed in range(60):
        times = poisson(5.0, 600.0, seed) - 600.0
        kept += same_mix_since_s(times, features(times.size, seed), -600.0) == -600.0
    assert kept >= 57


@pytest.mark.parametrize("changed_s", [-70.0, -150.0, -300.0])
def test_a_change_of_mix_ends_the_stretch(changed_s: float) -> None:
    times = poisson(5.0, 600.0) - 600.0
    values = features(times.size)
    values[times > changed_s, 1] += 1.0
    since_s = same_mix_since_s(times, values, -600.0)
    assert changed_s <= since_s <= -60.0
    assert since_s < changed_s / 2.0 or changed_s == -70.0


def test_a_feature_of_no_spread_counts_when_it_changes() -> None:
    times = poisson(5.0, 600.0) - 600.0
    constant = np.zeros((times.size, 1))
    assert same_mix_since_s(times, constant, -600.0) == -600.0
    constant[times > -100.0] = 1.0
    assert same_mix_since_s(times, constant, -600.0) >= -100.0


def test_unknown_values_are_no_evidence() -> None:
    times = poisson(5.0, 600.0) - 600.0
    values = np.full((times.size, 1), np.nan)
    assert same_mix_since_s(times, values, -600.0) == -600.0
    values[-10:] = 5.0
    values[:10] = -5.0
    assert same_mix_since_s(times, values, -600.0) == -600.0


def test_too_few_requests_are_kept() -> None:
    times = np.linspace(-500.0, -1.0, 50)
    assert same_mix_since_s(times, features(50) + np.arange(50)[:, None], -600.0) == -600.0


def history(serve_s: float) -> tuple[TrafficHistory, np.ndarray, np.ndarray]:
    """Five minutes of one mix whose long outputs take long: among the latest, only short ones have ended."""
    times = poisson(6.0, 300.0, 2)
    osl = np.random.default_rng(2).geometric(1 / 60, times.size)
    made = TrafficHistory()
    ends = times + serve_s * osl
    order = sorted([(t, 0, i) for i, t in enumerate(times)] + [(t, 1, i) for i, t in enumerate(ends)])
    for at_s, kind, i in order:
        if at_s <= 300.0:
            if kind:
                made.finished(finished(i, float(times[i]), float(ends[i]), osl=int(osl[i])))
            else:
                made.arrived(arrived(i, float(times[i])))
    return made, times, osl


def test_long_outputs_still_running_are_no_change_of_mix() -> None:
    for serve_s in (0.02, 1.0):
        made, times, _ = history(serve_s)
        assert made.plan(us(300.0)).sources.requests == pytest.approx(times.size, abs=2)


def test_prompts_that_grew_leave_the_old_ones_out() -> None:
    made = TrafficHistory()
    times = poisson(6.0, 300.0, 2)
    lengths = np.random.default_rng(1).integers(50, 150, times.size)
    for i, time_s in enumerate(times.tolist()):
        made.arrived(arrived(i, time_s, isl=int(lengths[i]) * (4 if time_s > 180.0 else 1)))
    sources = made.plan(us(300.0)).sources
    assert sources.isl_tokens.min() >= 200
    assert sources.requests > 300


def test_a_prefix_that_spread_leaves_the_time_before_out() -> None:
    made = TrafficHistory()
    times = poisson(6.0, 300.0, 2)
    for i, time_s in enumerate(times.tolist()):
        first = 1 if time_s > 180.0 else 1_000_000 + i
        made.arrived(arrived(i, time_s, isl=64, hashes=[first, 2_000_000 + i], block=32))
    shared = made.plan(us(300.0)).sources
    assert (shared.hash_values[::2] == 1).all()


def test_an_early_abort_does_not_hide_that_outputs_grew() -> None:
    made = TrafficHistory()
    times = poisson(6.0, 300.0, 2)
    made.ended(RequestAborted(deployment="d", request_id="x", at_us=us(0.1), arrived_us=us(0.1), isl_tokens=100))
    for i, time_s in enumerate(times.tolist()):
        made.arrived(arrived(i, time_s))
        made.finished(finished(i, time_s, time_s + 0.1, osl=5 + i % 7 + (200 if time_s > 180.0 else 0)))
    assert made.plan(us(301.0)).sources.osl_tokens.min() > 200
