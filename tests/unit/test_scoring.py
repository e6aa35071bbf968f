"""Scores of closed windows, and the ledger that sums them."""

import math

import numpy as np
import pytest
from made_scores import START_US, cell_of, forecast_of, members_of, score_of

from twin.baselines import Baseline, BaselineHistory
from twin.metrics import Latencies
from twin.scoring import Members, SkillLedger, score, winkler_s


def test_members_arrive_after_as_of_and_up_to_the_horizon() -> None:
    scored = score(forecast_of(1.0, 0.5, 2.0), 30.0, members_of([0.0, 0.1, 30.0, 30.1], [9.0, 1.0, 3.0, 9.0]), {})
    assert scored.members == 2
    assert scored.cells[0].observed_s == 2.0
    assert scored.arrivals_observed_per_s == pytest.approx(2 / 30)


def test_an_unfinished_member_is_infinite_in_the_quantile_and_its_age_in_the_loss() -> None:
    scored = score(forecast_of(1.0, 0.5, 2.0), 30.0, members_of([10.0], [math.inf]), {})
    cell = scored.cells[0]
    assert scored.unfinished == 1
    assert cell.observed_s is None
    assert not cell.covered
    assert cell.loss_s == pytest.approx(0.5 * (80.0 - 1.0))
    assert cell.hindsight_loss_s == 0.0


def test_an_infinite_quantile_is_covered_only_by_an_interval_that_reaches_the_closing() -> None:
    inside = members_of([10.0], [math.inf])
    assert score(forecast_of(50.0, 20.0, 90.0), 30.0, inside, {}).cells[0].covered
    assert not score(forecast_of(50.0, 20.0, 89.0), 30.0, inside, {}).cells[0].covered


def test_refused_members_have_no_part_in_latencies() -> None:
    scored = score(forecast_of(1.0, 0.5, 2.0), 30.0, members_of([1.0, 2.0], [math.nan, 1.0]), {})
    assert scored.members == 2
    assert scored.unfinished == 0
    assert scored.cells[0].observed_s == 1.0


def test_a_window_without_members_has_no_cell() -> None:
    assert score(forecast_of(1.0, 0.5, 2.0), 30.0, members_of([], []), {}).cells == ()


def test_a_window_is_not_scored_before_it_closes() -> None:
    early = Members(np.zeros(0, np.int64), Latencies(*(np.zeros(0) for _ in range(3))), START_US + 30_000_000)
    with pytest.raises(ValueError, match="score later"):
        score(forecast_of(1.0, 0.5, 2.0), 30.0, early, {})


def test_an_unknown_horizon_is_refused() -> None:
    with pytest.raises(ValueError, match="no horizon of 31"):
        score(forecast_of(1.0, 0.5, 2.0), 31.0, members_of([1.0], [1.0], 31.0), {})


def test_baselines_are_scored_on_the_same_members() -> None:
    naive = {("e2e_s", 0.5): Baseline(persistence_s=1.0, history_s=3.0)}
    cell = score(forecast_of(2.0, 1.0, 3.0), 30.0, members_of([1.0, 2.0], [1.0, 3.0]), naive).cells[0]
    assert cell.persistence_loss_s == pytest.approx(0.5)
    assert cell.history_loss_s == pytest.approx(0.5)
    assert cell.trend_loss_s is None


def test_skill_and_share_of_the_ceiling_are_ratios_of_summed_losses() -> None:
    ledger = SkillLedger()
    ledger.add(score_of(cell_of()))
    ledger.add(score_of(cell_of(loss_s=2.0, hindsight_s=1.5, observed_s=9.0), at_s=10.0))
    (row,) = ledger.rows()
    assert (row["metric"], row["quantile"], row["horizon_s"], row["n"]) == ("e2e_s", 0.5, 30.0, 2)
    assert row["skill_persistence"] == pytest.approx(0.25)
    assert row["share_of_ceiling"] == pytest.approx(0.5)
    assert row["coverage90"] == 0.5
    assert row["width_ratio"] == pytest.approx(3.0, rel=0.01)


def test_a_window_with_a_change_counts_for_nothing() -> None:
    ledger = SkillLedger()
    ledger.add(score_of(cell_of(), intervened=True))
    assert ledger.rows() == []
    assert ledger.skill() is None
    assert ledger.intervened == 1


def test_recent_skill_forgets_and_the_table_does_not() -> None:
    ledger = SkillLedger(half_life_s=60.0)
    for k in range(50):
        ledger.add(score_of(cell_of(loss_s=2.0, persistence_s=1.0), at_s=10.0 * k))
    for k in range(50, 200):
        ledger.add(score_of(cell_of(loss_s=0.5, persistence_s=1.0), at_s=10.0 * k))
    skill = ledger.skill()
    assert skill is not None
    assert skill == pytest.approx(0.5, abs=0.01)
    assert ledger.rows()[0]["skill_persistence"] < 0.2


def test_a_restored_ledger_goes_on_as_the_first_would_have() -> None:
    ledger = SkillLedger()
    ledger.add(score_of(cell_of()))
    restored = SkillLedger.restore(ledger.snapshot())
    for each in (ledger, restored):
        each.add(score_of(cell_of(loss_s=2.0, hindsight_s=1.5), at_s=10.0))
    assert restored.snapshot() == ledger.snapshot()
    assert restored.rows() == ledger.rows()
    with pytest.raises(ValueError, match="version"):
        SkillLedger.restore({**ledger.snapshot(), "version": 99})


def finished(history: BaselineHistory, at_s: float, e2e_s: float) -> None:
    assert history.observe(START_US + round(at_s * 1e6), e2e_s / 2, None, e2e_s)


def test_persistence_takes_requests_that_finished_in_the_last_horizon() -> None:
    history = BaselineHistory()
    for at_s, e2e_s in ((10.0, 9.0), (71.0, 1.0), (90.0, 3.0), (100.0, 2.0)):
        finished(history, at_s, e2e_s)
    found = history.at(START_US + 100_000_000, 30.0, [("e2e_s", 0.5), ("tpot_s", 0.5)])
    assert found[("e2e_s", 0.5)].persistence_s == 2.0
    assert found[("tpot_s", 0.5)] == Baseline()


def test_baselines_never_look_ahead() -> None:
    history, as_of_us = BaselineHistory(), START_US + 60_000_000
    for at_s in (10.0, 40.0, 50.0):
        finished(history, at_s, 1.0)
    before = history.at(as_of_us, 30.0, [("e2e_s", 0.5)])
    finished(history, 61.0, 50.0)
    after = history.at(as_of_us, 30.0, [("e2e_s", 0.5)])
    assert after[("e2e_s", 0.5)].persistence_s == before[("e2e_s", 0.5)].persistence_s
    assert after[("e2e_s", 0.5)].trend_s == before[("e2e_s", 0.5)].trend_s


def test_the_trend_baseline_follows_a_line() -> None:
    history = BaselineHistory()
    for at_s in range(1, 121):
        finished(history, float(at_s), float((at_s - 1) // 30 + 1))
    found = history.at(START_US + 120_000_000, 30.0, [("e2e_s", 0.5)])
    assert found[("e2e_s", 0.5)].trend_s == pytest.approx(5.0)


def test_a_full_history_stays_bounded_and_fair() -> None:
    history = BaselineHistory(span_s=1000.0, capacity=64)
    for k in range(2000):
        finished(history, k * 0.1, float(k % 10))
    assert len(history.snapshot()["rows"]) <= 64
    found = history.at(START_US + 200_000_000, 100.0, [("e2e_s", 0.5)])
    assert found[("e2e_s", 0.5)].persistence_s == pytest.approx(4.5, abs=1.5)
    restored = BaselineHistory.restore(history.snapshot())
    assert restored.snapshot() == history.snapshot()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_a_bad_latency_is_refused_and_changes_nothing(bad: float) -> None:
    history = BaselineHistory()
    finished(history, 1.0, 1.0)
    before = history.snapshot()
    assert not history.observe(START_US + 2_000_000, bad, None, 1.0)
    assert not history.observe(START_US + 2_000_000, 1.0, bad, 1.0)
    assert not history.observe(START_US, 1.0, None, 1.0)
    assert history.snapshot() == before


def test_history_keeps_an_even_sample_of_a_window_that_does_not_fit() -> None:
    history = BaselineHistory(span_s=1000.0, capacity=64)
    for k in range(3000):
        finished(history, k * 0.1, float(k))
    found = history.at(START_US + 300_000_000, 100.0, [("e2e_s", 0.5)])
    assert found[("e2e_s", 0.5)].persistence_s == pytest.approx(2500.0, abs=60.0)


def test_an_interval_score_charges_twenty_times_the_miss_at_ninety_percent() -> None:
    assert winkler_s(1.0, 2.0, 1.5, 0.9) == pytest.approx(1.0)
    assert winkler_s(1.0, 2.0, 2.1, 0.9) == pytest.approx(3.0)
    assert winkler_s(1.0, 2.0, 0.9, 0.9) == pytest.approx(3.0)
