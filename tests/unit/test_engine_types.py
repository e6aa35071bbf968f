"""What simulations take: wrong input is refused by name, before anything runs."""

import numpy as np
import pytest

from twin.engine.levels import followed_level
from twin.engine.types import (
    LATEST_PS,
    MAX_NOISE,
    NOISE_ONE,
    CarriedRequest,
    EngineState,
    Grid,
    Noise,
    Workload,
)

GOOD = {"arrival_ps": [0, 5, 5], "isl_tokens": [1, 2, 3], "osl_tokens": [1, 1, 1]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrival_ps": [0.0, float("nan"), 5.0]}, r"workload\.arrival_ps\[1\] .* got nan"),
        ({"arrival_ps": [0.0, float("inf"), 5.0]}, r"workload\.arrival_ps\[1\] .* got inf"),
        ({"arrival_ps": [-1, 5, 5]}, r"workload\.arrival_ps\[0\]"),
        ({"arrival_ps": [0, 6, 5]}, r"workload\.arrival_ps\[2\] = 5 is before its predecessor"),
        ({"arrival_ps": [[0, 5, 5]]}, r"workload\.arrival_ps must be a one-dimensional array"),
        ({"arrival_ps": ["a", "b", "c"]}, r"workload\.arrival_ps must be a one-dimensional array of numbers"),
        ({"isl_tokens": [1, 0, 3]}, r"workload\.isl_tokens\[1\] must be a whole number in 1"),
        ({"isl_tokens": [1, 2.5, 3]}, r"workload\.isl_tokens\[1\] .* got 2\.5"),
        ({"isl_tokens": [1, 2]}, r"workload\.isl_tokens must have one entry per request: 3, got 2"),
        ({"osl_tokens": [1, 1, -4]}, r"workload\.osl_tokens\[2\] .* got -4"),
        ({"timeout_ps": [0, 0, -1]}, r"workload\.timeout_ps\[2\]"),
        ({"priority": [0, 2**40, 0]}, r"workload\.priority\[1\]"),
        ({"block_hashes": [[1], [2]]}, r"workload\.block_hashes must have one entry per request"),
        ({"block_hashes": [[1], [2], [3]]}, r"workload\.hash_block_tokens must be > 0"),
    ],
)
def test_a_bad_workload_is_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        Workload.build(**(GOOD | changes))


def test_seconds_become_whole_picoseconds():
    load = Workload.from_seconds(arrival_s=[0.0, 1e-12, 1.5], isl_tokens=[1, 1, 1], osl_tokens=[1, 1, 1])
    np.testing.assert_array_equal(load.arrival_ps, [0, 1, 1_500_000_000_000])


def test_hashes_of_any_64_bits_are_kept_apart():
    hashes = [[2**64 - 1, 5], [], [-1]]
    load = Workload.build(**GOOD, block_hashes=hashes, hash_block_tokens=4)
    np.testing.assert_array_equal(load.hash_offsets, [0, 2, 2, 3])
    # The same 64 bits, signed or not, are the same hash.
    np.testing.assert_array_equal(load.hash_values, [-1, 5, -1])


def carried(**changes):
    return CarriedRequest(**({"isl_tokens": 10, "osl_tokens": 5, "arrival_ps": -3, "computed_tokens": 4} | changes))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"running": (carried(arrival_ps=1),)}, r"state\.running\[0\]\.arrival_ps must be <= 0"),
        ({"running": (carried(), carried(isl_tokens=0))}, r"state\.running\[1\] must have isl_tokens"),
        ({"running": (carried(generated_tokens=5),)}, r"generated_tokens must be below osl_tokens"),
        ({"running": (carried(computed_tokens=10),)}, r"computed_tokens must be in 0 \.\. 9, got 10"),
        ({"running": (carried(computed_tokens=11),), "step_left_ps": 7}, r"computed_tokens must be in 0 \.\. 10"),
        ({"waiting": (carried(),)}, r"state\.waiting\[0\]\.computed_tokens must be 0 while waiting"),
        ({"waiting": (carried(computed_tokens=0, timeout_ps=-1),)}, r"timeout_ps must be >= 0"),
        ({"step_left_ps": -1}, r"state\.step_left_ps must be >= 0"),
        ({"step_left_ps": 5}, r"needs running requests"),
    ],
)
def test_a_state_that_cannot_be_is_refused_by_name(state, message):
    with pytest.raises(ValueError, match=message):
        EngineState(**state)


@pytest.mark.parametrize(("step_ps", "points"), [(0, 5), (5, 0), (-1, 5), (LATEST_PS, 2)])
def test_a_grid_that_cannot_be_is_refused(step_ps, points):
    with pytest.raises(ValueError, match="grid needs"):
        Grid(step_ps=step_ps, points=points)


def test_noise_is_the_same_for_the_same_seed_and_has_the_mean_and_spread_asked_for():
    noise, again = (Noise.lognormal(seed=7, epochs=4000, cv=0.2) for _ in range(2))
    np.testing.assert_array_equal(noise.multipliers, again.multipliers)
    factors = noise.multipliers / NOISE_ONE
    assert factors.mean() == pytest.approx(1.0, abs=0.01)
    assert factors.std() == pytest.approx(0.2, abs=0.01)
    assert (Noise.lognormal(seed=8, epochs=4000, cv=0.2).multipliers != noise.multipliers).any()
    assert (Noise.lognormal(seed=8, epochs=5, cv=0.0).multipliers == NOISE_ONE).all()


def test_noise_outside_its_range_is_clipped_or_refused():
    np.testing.assert_array_equal(
        Noise.from_ratios([[0.0], [1.0], [99.0]]).multipliers[:, 0], [1, NOISE_ONE, MAX_NOISE]
    )
    with pytest.raises(ValueError, match="finite"):
        Noise.from_ratios([[1.0], [float("nan")], [1.0]])
    with pytest.raises(ValueError, match=r"shape \(3, epochs"):
        Noise(np.ones((2, 4), np.int64))
    with pytest.raises(ValueError, match="must lie in"):
        Noise(np.zeros((3, 4), np.int64))
    with pytest.raises(ValueError, match=r"noise\.cv"):
        Noise.lognormal(seed=1, epochs=4, cv=float("nan"))


def test_a_followed_level_is_one_where_steps_take_what_was_expected():
    expected = np.abs(np.random.default_rng(0).normal(0.02, 0.01, 1000)) + 1e-3
    np.testing.assert_array_equal(followed_level(expected, expected).multipliers, NOISE_ONE)


def test_a_followed_level_follows():
    expected = np.full(64 * 200, 0.01)
    taken = np.concatenate((expected[: 64 * 100], 2 * expected[64 * 100 :]))
    level = followed_level(taken, expected, window_s=2.0).multipliers[0] / NOISE_ONE
    assert level[:95] == pytest.approx(np.ones(95))
    assert level[105:] == pytest.approx(np.full(95, 2.0))


@pytest.mark.parametrize(
    ("taken", "expected", "message"),
    [([1.0], [1.0, 2.0], "equally many"), ([], [], "equally many"), ([1.0, 0.0], [1.0, 1.0], "taken_s must be finite")],
)
def test_a_level_of_bad_steps_is_refused(taken, expected, message):
    with pytest.raises(ValueError, match=message):
        followed_level(np.array(taken), np.array(expected))
