"""Authority is earned and lost; credibility has reasons."""

import math

import numpy as np
import pytest
from made_scores import START_US, cell_of, score_of

from schemas.scores import Score
from twin.credibility import Authority, AuthoritySettings, Standing, assess, margin_ratio


def ready() -> Authority:
    authority = Authority()
    authority.on_inputs(START_US, "S3", 10_000)
    authority.on_fingerprint(START_US, "one")
    return authority


def round_of(k: int, error: float = 0.2, period_s: float = 30.0, half_width: float = 0.5) -> Score:
    """Observed `error` half intervals above the forecast."""
    observed_s = math.exp(error * half_width)
    cell = cell_of(observed_s=observed_s, low_s=math.exp(-half_width), high_s=math.exp(half_width))
    return score_of(cell, at_s=k * period_s)


def feed(authority: Authority, errors: list[float], start: int = 0, half_width: float = 0.5) -> list[str]:
    rounds = [round_of(start + k, error, half_width=half_width) for k, error in enumerate(errors)]
    return [authority.on_score(each) for each in rounds]


def test_authority_rises_by_rounds_one_level_at_a_time() -> None:
    levels = feed(ready(), [0.1] * 14)
    assert levels[:3] == ["advisory"] * 3
    assert levels[3:11] == ["guarded"] * 8
    assert levels[11:] == ["full"] * 3


def test_overlapping_windows_are_one_round() -> None:
    authority = ready()
    for k in range(20):
        authority.on_score(round_of(k, period_s=5.0))
    assert authority.rounds == 4


def test_large_errors_keep_it_advisory_and_take_it_back() -> None:
    assert set(feed(ready(), [1.5] * 30)) == {"advisory"}
    authority = ready()
    feed(authority, [0.1] * 14)
    levels = feed(authority, [2.5] * 8, start=14)
    assert levels[-1] == "advisory"
    assert "guarded" in levels


def test_errors_between_the_bars_move_nothing() -> None:
    authority = ready()
    feed(authority, [0.1] * 14)
    trembling = [0.6 if k % 2 else 0.8 for k in range(100)]
    assert set(feed(authority, trembling, start=14)) == {"full"}


def test_an_interval_too_wide_to_act_on_earns_nothing() -> None:
    assert set(feed(ready(), [0.1] * 30, half_width=2.0)) == {"advisory"}
    assert set(feed(ready(), [0.1] * 30, half_width=1.0)) == {"advisory", "guarded"}


def test_intervals_that_grow_too_wide_take_authority_back() -> None:
    authority = ready()
    feed(authority, [0.1] * 14)
    assert feed(authority, [0.1] * 20, start=14, half_width=2.5)[-1] == "advisory"


def test_drift_takes_a_level_and_holds_until_it_ends() -> None:
    authority = ready()
    feed(authority, [0.1] * 14)
    assert authority.on_drift(START_US, "cost", True) == "guarded"
    assert authority.on_drift(START_US, "cost", True) == "guarded"
    assert set(feed(authority, [0.1] * 20, start=14)) == {"guarded"}
    authority.on_drift(START_US, "cost", False)
    assert feed(authority, [0.1] * 6, start=34)[-1] == "full"


@pytest.mark.parametrize("level", ["S0", "S1"])
def test_levels_without_steps_stay_advisory(level: str) -> None:
    authority = ready()
    authority.on_inputs(START_US, level, 10_000)
    assert set(feed(authority, [0.05] * 30)) == {"advisory"}
    earned = ready()
    feed(earned, [0.05] * 14)
    assert earned.on_inputs(START_US, level, 10_000) == "advisory"


def test_a_new_fingerprint_starts_again_and_the_same_one_does_not() -> None:
    authority = ready()
    feed(authority, [0.1] * 14)
    assert authority.on_fingerprint(START_US, "one") == "full"
    assert authority.on_fingerprint(START_US, "two") == "advisory"
    assert authority.rounds == 0


def test_few_steps_hold_it_back() -> None:
    authority = ready()
    authority.on_inputs(START_US, "S3", 10)
    assert set(feed(authority, [0.05] * 20)) == {"advisory"}


def test_an_hour_of_constant_load_with_noise_never_flaps() -> None:
    random = np.random.default_rng(11)
    for _ in range(20):
        authority = ready()
        for k in range(120):
            cells = [
                cell_of(metric=metric, quantile=q, observed_s=math.exp(random.normal(0.0, 0.3)), low_s=0.6, high_s=1.65)
                for metric in ("ttft_s", "e2e_s")
                for q in (0.5, 0.95)
            ]
            authority.on_score(score_of(*cells, at_s=30.0 * k))
        assert [level for _, level in authority.changes] == ["guarded", "full"]


def test_intervened_rounds_do_not_count() -> None:
    authority = ready()
    authority.on_score(score_of(cell_of(), intervened=True))
    assert authority.rounds == 0


def test_a_restored_authority_goes_on_as_the_first_would_have() -> None:
    authority = ready()
    feed(authority, [0.1] * 6)
    authority.on_drift(START_US, "cost", True)
    restored = Authority.restore(authority.snapshot())
    assert restored.level == authority.level
    for each in (authority, restored):
        each.on_drift(START_US, "cost", False)
        feed(each, [0.1] * 12, start=6)
    assert restored.snapshot() == authority.snapshot()
    with pytest.raises(ValueError, match="version"):
        Authority.restore({**authority.snapshot(), "version": 99})


def test_bars_without_hysteresis_are_refused() -> None:
    with pytest.raises(ValueError, match="rise_error"):
        AuthoritySettings(fall_error=(0.3, 0.3))
    with pytest.raises(ValueError, match="coverage"):
        AuthoritySettings(fall_coverage_ratio=(0.7, 0.7))


GOOD = Standing(input_level="S3", steps=9000, scored_rounds=20, skill=0.1)


def test_each_reason_is_said_and_lowers_credibility() -> None:
    assert assess(GOOD).level == "high"
    doubts = {
        "few steps": {"steps": 3},
        "input level S1": {"input_level": "S1"},
        "seen shapes": {"unseen_shape_ratio": 0.2},
        "far beyond seen shapes": {"unseen_shape_ratio": 0.5},
        "transfer-heavy": {"transfer_ratio": 0.4},
        "saturated": {"saturated_ratio": 0.9},
        "drifting: cost of e0": {"drifting": ("cost of e0",)},
        "stale": {"stale_s": 30.0},
        "no skill": {"skill": -0.1},
        "few rounds": {"scored_rounds": 1},
    }
    for words, change in doubts.items():
        fields = {name: getattr(GOOD, name) for name in GOOD.__slots__} | change
        found = assess(Standing(**fields))
        assert found.level != "high", words
        assert any(words in reason for reason in found.reasons), words


def test_doubts_widen_and_none_narrows() -> None:
    assert margin_ratio(GOOD) == 1.0
    assert margin_ratio(Standing(input_level="S3", steps=9000, transfer_ratio=0.6)) > 1.2
    assert margin_ratio(Standing(input_level="S0", steps=0, drifting=("x",))) > 2.0
