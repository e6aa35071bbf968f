"""Output lengths that are not known yet: Kaplan-Meier against truths that can be computed."""

import numpy as np
import pytest

from twin.traffic.lengths import DEFAULT_MEAN_TOKENS, OutputLengths

UNIFORM = (np.arange(2_000) + 0.5) / 2_000


def fit(lengths: list[int], finished: list[bool] | None = None) -> OutputLengths:
    known = np.ones(len(lengths), np.bool_) if finished is None else np.array(finished)
    return OutputLengths.fit(np.array(lengths, np.int64), known)


def test_without_censoring_draws_are_the_empirical_distribution() -> None:
    drawn = fit([5, 5, 7, 100]).draw(np.zeros(UNIFORM.size, np.int64), UNIFORM)
    assert {int(v): int(n) for v, n in zip(*np.unique(drawn, return_counts=True), strict=True)} == {
        5: 1_000,
        7: 500,
        100: 500,
    }


def test_a_draw_given_progress_is_the_distribution_of_longer_requests() -> None:
    lengths = [3, 8, 8, 20, 50]
    drawn = fit(lengths).draw(np.full(UNIFORM.size, 8, np.int64), UNIFORM)
    assert {int(v): int(n) for v, n in zip(*np.unique(drawn, return_counts=True), strict=True)} == {
        20: 1_000,
        50: 1_000,
    }


def test_every_draw_is_longer_than_what_was_generated() -> None:
    rng = np.random.default_rng(1)
    for seed in range(20):
        lengths = np.random.default_rng(seed).geometric(0.02, 50)
        model = OutputLengths.fit(lengths, rng.random(50) < 0.7)
        generated = rng.integers(0, 400, 300)
        for uniform in (rng.random(300), np.zeros(300), np.full(300, np.nextafter(1.0, 0.0))):
            assert (model.draw(generated, uniform) > generated).all()


def test_requests_in_flight_correct_the_bias_towards_short_ones() -> None:
    rng = np.random.default_rng(5)
    true = rng.geometric(1 / 200, 4_000)
    seen = rng.integers(1, 300, 4_000)
    done = true <= seen
    drawn = OutputLengths.fit(np.minimum(true, seen), done).draw(np.zeros(20_000, np.int64), rng.random(20_000))
    only_finished = float(true[done].mean())
    assert only_finished < 120
    assert float(drawn.mean()) == pytest.approx(200, rel=0.1)


def test_nothing_known_gives_a_geometric_length() -> None:
    empty = OutputLengths.fit(np.array([], np.int64), np.array([], np.bool_))
    drawn = empty.draw(np.zeros(UNIFORM.size, np.int64), UNIFORM)
    assert float(drawn.mean()) == pytest.approx(DEFAULT_MEAN_TOKENS, rel=0.02)
    only_running = fit([40, 60], [False, False])
    assert (only_running.draw(np.array([40, 60]), np.array([0.3, 0.3])) > [40, 60]).all()


def test_beyond_the_longest_ever_seen_the_tail_goes_on() -> None:
    model = fit([10, 20, 30, 40, 50, 60, 70, 80, 90, 100])
    drawn = model.draw(np.full(UNIFORM.size, 500, np.int64), UNIFORM)
    assert drawn.min() == 501
    assert 505 < float(drawn.mean()) < 1_000


def test_the_last_request_in_flight_leaves_weight_beyond_it() -> None:
    drawn = fit([10, 20, 90], [True, True, False]).draw(np.zeros(UNIFORM.size, np.int64), UNIFORM)
    assert np.count_nonzero(drawn > 20) == pytest.approx(UNIFORM.size / 3, rel=0.01)
