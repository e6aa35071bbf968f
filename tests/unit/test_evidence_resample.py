"""Whether a figure changed: intervals of ratios from blocks of time."""

import math

import numpy as np
import pytest

from twin.evidence.phases import stretches
from twin.evidence.resample import LEAST_BLOCKS, Blocks, Change, Sample, change, run_length_s, student_975
from twin.metrics import FloatArray, quantile

SPAN_S = 180.0


def mean(values: FloatArray) -> float:
    return float(values.mean())


def sample(seed: int, scale: float = 1.0, count: int = 600, swing: float = 0.0) -> Sample:
    """Lognormal values; `swing` makes blocks of time stray together."""
    rng = np.random.default_rng(seed)
    at_s = np.sort(rng.uniform(0.0, SPAN_S, count))
    level = np.exp(rng.normal(0.0, swing, 6))[(at_s / SPAN_S * 6).astype(int)]
    return Sample(at_s, scale * level * rng.lognormal(0.0, 0.4, count), SPAN_S)


def cuts(block_s: float = 30.0) -> tuple[Blocks, Blocks]:
    own = Blocks.of(SPAN_S, block_s)
    return own, own


def test_a_window_against_itself_did_not_change() -> None:
    own = sample(1)
    found = change(own, own, mean, cuts=cuts(), paired=True)
    assert (found.ratio, found.low, found.high) == (0.0, 0.0, 0.0)
    assert found.beyond(0.15) is False


def test_the_same_seed_gives_the_same_interval_and_scale_does_not_matter() -> None:
    one = change(sample(1), sample(2), mean, cuts=cuts(), paired=False, seed=7)
    assert one == change(sample(1), sample(2), mean, cuts=cuts(), paired=False, seed=7)
    scaled = change(sample(1, 1000.0), sample(2, 1000.0), mean, cuts=cuts(), paired=False, seed=7)
    assert scaled.ratio == pytest.approx(one.ratio)
    assert scaled.low == pytest.approx(one.low)


def test_swapping_the_sides_turns_the_ratio_round() -> None:
    there = change(sample(1), sample(2, 1.5), mean, cuts=cuts(), paired=False)
    back = change(sample(2, 1.5), sample(1), mean, cuts=cuts(), paired=False)
    assert there.ratio is not None
    assert back.ratio == pytest.approx(1.0 / (1.0 + there.ratio) - 1.0)


def test_a_real_change_is_found_and_lies_in_its_interval() -> None:
    found = change(sample(1), sample(2, 0.6), lambda values: quantile(values, 0.5), cuts=cuts(), paired=False)
    assert found.low is not None
    assert found.high is not None
    assert found.low < -0.4 < found.high < 0.0
    assert found.beyond(0.15) is True


def test_values_that_stray_together_make_wider_intervals_than_values_that_do_not() -> None:
    def width(swing: float) -> float:
        found = change(sample(1, swing=swing), sample(2, swing=swing), mean, cuts=cuts(), paired=False)
        assert found.low is not None
        assert found.high is not None
        return math.log1p(found.high) - math.log1p(found.low)

    assert width(0.3) > 2.0 * width(0.0)


def test_equal_services_rarely_look_changed() -> None:
    """Of 40 pairs of windows that stray by a fifth from block to block, 95 % intervals may miss a few."""
    missed = 0
    for seed in range(40):
        sides = sample(2 * seed, swing=0.2, count=60), sample(2 * seed + 1, swing=0.2, count=60)
        missed += bool(change(*sides, mean, cuts=cuts(), paired=False).beyond(0.0))
    assert missed <= 4


def test_too_few_blocks_give_a_ratio_and_no_interval() -> None:
    two = Blocks.of(SPAN_S, SPAN_S / 2)
    assert len(two) < LEAST_BLOCKS
    found = change(sample(1), sample(2), mean, cuts=(two, two), paired=False)
    assert found.ratio is not None
    assert (found.low, found.beyond(0.15)) == (None, None)


def test_what_cannot_be_compared_has_no_ratio() -> None:
    endless = Sample(np.array([1.0]), np.array([np.inf]), SPAN_S)
    assert change(sample(1), endless, mean, cuts=cuts(), paired=False) == Change(None)


def test_stretches_that_differ_by_design_do_not_widen_the_interval() -> None:
    """Half of the window is ten times as slow on both sides: that is no chance."""
    base, other = sample(3), sample(4)
    for side in (base, other):
        side.values[side.at_s > SPAN_S / 2] *= 10.0
    plain = change(base, other, mean, cuts=cuts(), paired=True)
    apart = Blocks.of(SPAN_S, 30.0, (SPAN_S / 2,))
    within = change(base, other, mean, cuts=(apart, apart), paired=True)
    assert within.sigma is not None
    assert plain.sigma is not None
    assert within.sigma < plain.sigma
    assert within.ratio == plain.ratio


def test_blocks_cover_the_window_and_are_drawn_within_their_stretch() -> None:
    cut = Blocks.of(100.0, 30.0, (40.0,))
    assert (cut.edges_s[0], cut.edges_s[-1]) == (0.0, 100.0)
    assert list(cut.edges_s) == sorted(cut.edges_s)
    picked = cut.pick(np.random.default_rng(0))
    own = np.array(cut.stretch)
    assert (own[picked] == own).all()


def test_more_spread_or_a_narrower_interval_needs_a_longer_run() -> None:
    assert run_length_s(0.2, 30.0, 0.1) > run_length_s(0.1, 30.0, 0.1) > run_length_s(0.1, 30.0, 0.3)
    quantiles = [student_975(freedom) for freedom in range(2, 60)]
    assert quantiles == sorted(quantiles, reverse=True)
    assert student_975(1) == math.inf


def test_stretches_follow_the_hit_ratio_and_cover_the_window() -> None:
    rng = np.random.default_rng(1)
    at_s = np.sort(rng.uniform(0.0, 300.0, 900))
    level = np.select([at_s < 100.0, at_s < 220.0], [0.0, 0.45], 0.8)
    found = stretches(at_s, np.clip(level + rng.normal(0.0, 0.15, 900), 0.0, 1.0), 300.0)
    assert [round(each.from_s) for each in found] == [0, 100, 220]
    assert [one.to_s for one in found] == [*(two.from_s for two in found[1:]), 300.0]
    assert found[2].hit_ratio == pytest.approx(0.8, abs=0.05)


def test_a_constant_hit_ratio_is_one_stretch() -> None:
    rng = np.random.default_rng(2)
    at_s = np.sort(rng.uniform(0.0, 300.0, 900))
    for ratio in (np.zeros(900), np.clip(rng.normal(0.5, 0.2, 900), 0.0, 1.0)):
        assert len(stretches(at_s, ratio, 300.0)) == 1
    few = at_s[::3], np.clip(rng.normal(0.5, 0.4, 300), 0.0, 1.0)
    assert len(stretches(*few, 300.0)) == 1
    alike = np.where(at_s < 150.0, 0.40, 0.46)
    assert len(stretches(at_s, alike, 300.0)) == 1
    with pytest.raises(ValueError, match="no request"):
        stretches(np.zeros(0), np.zeros(0), 1.0)
