"""Costs learned from finished requests alone, against the known costs of the engine that served them."""

import msgspec
import numpy as np
import pytest
from made_ends import COST, START_US, config, ends_of, served

from schemas.requests import RequestFinished
from twin.cost.frozen import PS_PER_S, FrozenStepCost
from twin.cost.model import StepCostModel
from twin.cost.shape import StepShape
from twin.ends.assumed_engine import AssumedLimits
from twin.ends.effective_costs import EffectiveCosts, Taught
from twin.ends.finished_log import CAPACITY, KEPT, FinishedLog
from twin.engine.types import EngineResult, Workload

STEADY = served(300, 5.0)
CROWDED = served(400, 12.0, kv_blocks=200)
FULL = served(150, 30.0)
SHAPES = (
    StepShape(decode_requests=2, decode_context_tokens=500),
    StepShape(decode_requests=5, decode_context_tokens=1_250),
    StepShape(1, 200, 20_100, 3, 750),
    StepShape(1, 100, 5_050, 0, 0),
)


def learned(
    events: list[RequestFinished], every_s: float = 20.0, budget_tokens: int | None = 256
) -> tuple[EffectiveCosts, StepCostModel, list[Taught]]:
    """Everything learned tick by tick, and one tick long after the last end."""
    costs, model, taught = EffectiveCosts(), StepCostModel(), []
    ends = iter(events)
    event = next(ends, None)
    last_us = events[-1].at_us
    ticks = np.arange(START_US + every_s * 1e6, last_us + 2 * every_s * 1e6, every_s * 1e6).astype(np.int64).tolist()
    for tick_us in [*ticks, last_us + 200_000_000]:
        while event is not None and event.at_us <= tick_us:
            costs.on_finished(event)
            event = next(ends, None)
        model, more = costs.learn(tick_us, model, budget_tokens)
        taught += more
    return costs, model, taught


def all_at_once(events: list[RequestFinished]) -> tuple[StepCostModel, list[Taught]]:
    """Everything learned in one go."""
    costs = EffectiveCosts(young=False)
    for event in events:
        costs.on_finished(event)
    return costs.learn(START_US + 10**9, StepCostModel(), 256)


def errors(model: StepCostModel, cost: FrozenStepCost) -> list[float]:
    """Learned / true - 1 per shape."""
    frozen = model.freeze(16)
    return [frozen.step_ps(shape) / cost.step_ps(shape) - 1.0 for shape in SHAPES]


def test_costs_come_out_near_the_true_ones() -> None:
    _, model, _ = learned(ends_of(*STEADY, delay_s=0.004, jitter_s=0.002))
    assert np.abs(errors(model, COST)).max() < 0.12
    assert np.abs(errors(model, COST)[:3]).mean() < 0.06


def test_engine_stamps_make_them_no_worse() -> None:
    _, model, _ = learned(ends_of(*STEADY, stamped=True))
    assert np.abs(errors(model, COST)).max() < 0.1


@pytest.mark.slow
def test_behind_a_queue_and_preemptions_costs_are_rough_and_stamps_sharpen_them() -> None:
    assert CROWDED[1].preemptions > 0
    crowd = [StepShape(decode_requests=8, decode_context_tokens=2_000), StepShape(1, 200, 20_100, 8, 2_000)]
    for stamped, bound in ((False, 0.25), (True, 0.1)):
        _, model, _ = learned(ends_of(*CROWDED, stamped=stamped))
        frozen = model.freeze(16)
        assert all(abs(frozen.step_ps(shape) / COST.step_ps(shape) - 1.0) < bound for shape in crowd)


@pytest.mark.slow
def test_a_slower_engine_costs_more_in_proportion() -> None:
    slow_cost = COST.scaled(3.0)
    _, quick, _ = learned(ends_of(*STEADY))
    _, slow, _ = learned(ends_of(*served(300, 5.0 / 3.0, cost=slow_cost)), every_s=60.0)
    for shape in SHAPES[:3]:
        assert slow.freeze(16).step_ps(shape) / quick.freeze(16).step_ps(shape) == pytest.approx(3.0, rel=0.15)


def test_every_prompt_is_learned_once_whatever_the_ticks() -> None:
    events = ends_of(*STEADY)
    prompts = sum(event.isl_tokens for event in events)
    for every_s in (10.0, 30.0):
        costs, model, taught = learned(events, every_s)
        young = model.steps - sum(len(each.block) for each in taught)
        later = sum(float(each.block.shapes[:, 1].sum()) for each in taught)
        assert 0 < young < model.steps
        assert 0.5 * prompts < later < prompts
        assert costs.done_us is not None
        ends_us = [int(at) for each in taught for at in each.block.at_us]
        assert ends_us == sorted(set(ends_us))


@pytest.mark.parametrize("case", [STEADY, CROWDED])
def test_all_tokens_are_in_what_is_taught_once(case: tuple[Workload, EngineResult]) -> None:
    """Also where a stretch ends within a prompt."""
    costs = EffectiveCosts(young=False)
    events = ends_of(*case)
    model, taught = StepCostModel(), []
    for number, event in enumerate(events):
        costs.on_finished(event)
        if number % 40 == 39:
            model, more = costs.learn(event.at_us, model, 256)
            taught += more
    model, more = costs.learn(events[-1].at_us + 300_000_000, model, 256)
    taught += more
    assert sum(float(each.block.shapes[:, 1].sum()) for each in taught) == sum(e.isl_tokens for e in events)
    tokens = sum(float(each.block.shapes[:, 3].sum()) for each in taught)
    assert tokens == pytest.approx(sum(e.osl_tokens - 1 for e in events), rel=0.06)


def test_a_stretch_too_long_for_one_go_is_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twin.ends.likely_steps.MAX_STEPS", 300)
    costs, model = EffectiveCosts(young=False), StepCostModel()
    events = ends_of(*FULL)
    for event in events:
        costs.on_finished(event)
    taught: list[Taught] = []
    for _ in range(20):
        model, more = costs.learn(START_US + 10**9, model, 256)
        taught += more
    assert max(len(each.block) for each in taught) <= 300
    assert all(float(each.block.shapes[:, 1].sum()) > 0.0 for each in taught)
    assert sum(float(each.block.shapes[:, 1].sum()) for each in taught) == sum(e.isl_tokens for e in events)
    seconds = sum(float(each.block.duration_s.sum()) for each in taught)
    assert seconds == pytest.approx(FULL[1].busy_ps / PS_PER_S, rel=0.03)


def test_a_young_history_is_gone_over_again_only_once_it_has_grown() -> None:
    costs, model = EffectiveCosts(), StepCostModel()
    events = ends_of(*STEADY)[:40]
    for event in events[:39]:
        costs.on_finished(event)
    first, _ = costs.learn(events[-1].at_us + 10**9, model, 256)
    costs.on_finished(events[39])
    same, _ = costs.learn(events[-1].at_us + 2 * 10**9, first, 256)
    assert first is not model
    assert same is first


def test_the_time_of_a_busy_engine_is_all_taught() -> None:
    _, taught = all_at_once(ends_of(*FULL))
    seconds = sum(float(each.block.duration_s.sum()) for each in taught)
    assert seconds == pytest.approx(FULL[1].busy_ps / PS_PER_S, rel=0.02)


def test_waiting_is_seen_where_there_is_a_queue_and_only_there() -> None:
    for case, low, high in ((STEADY, 0.0, 0.25), (FULL, 0.7, 1.0)):
        _, taught = all_at_once(ends_of(*case))
        waiting = np.concatenate([each.waiting for each in taught])
        seconds = np.concatenate([each.block.duration_s for each in taught])
        assert low <= float(seconds[waiting > 0].sum() / seconds.sum()) <= high


@pytest.mark.slow
def test_the_delay_on_the_way_is_found() -> None:
    for delay_s in (0.005, 0.02):
        costs, _, _ = learned(ends_of(*STEADY, delay_s=delay_s, jitter_s=0.001))
        assert costs.front.delay_s == pytest.approx(delay_s, rel=0.35)


def test_a_silent_stretch_teaches_nothing() -> None:
    costs, model = EffectiveCosts(), StepCostModel()
    assert costs.learn(START_US, model, 256) == (model, [])
    events = ends_of(*served(3, 5.0))
    for event in events:
        costs.on_finished(event)
    same, taught = costs.learn(events[-1].at_us + 10**9, model, 256)
    assert same is model
    assert taught == []


def test_costs_learned_elsewhere_are_gone_on_with() -> None:
    _, before, _ = learned(ends_of(*STEADY))
    costs = EffectiveCosts(young=False)
    for event in ends_of(*served(60, 5.0, seed=9)):
        costs.on_finished(event)
    after, taught = costs.learn(START_US + 10**9, before, 256)
    assert after is before
    assert len(taught) == 1


@pytest.mark.slow
def test_restored_costs_go_on_as_the_first_would_have() -> None:
    events = ends_of(*STEADY)
    one = EffectiveCosts()
    one_model = StepCostModel()
    two, two_model = EffectiveCosts(), StepCostModel()
    for number, event in enumerate(events):
        one.on_finished(event)
        two.on_finished(event)
        if number % (9 if one.young else 100) == 8:
            one_model, _ = one.learn(event.at_us, one_model, None)
            two_model, _ = two.learn(event.at_us, two_model, None)
            two = EffectiveCosts.restore(msgspec.json.decode(msgspec.json.encode(two.snapshot())))
            two_model = StepCostModel.restore(msgspec.json.decode(msgspec.json.encode(two_model.snapshot())))
    assert not one.young
    assert one_model.snapshot() == two_model.snapshot()
    assert one.snapshot() == two.snapshot()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"timed": False}, "no_token_times"),
        ({"first_token_us": None}, "no_token_times"),
        ({"first_token_us": START_US - 5}, "times_out_of_order"),
        ({"osl_tokens": 0}, "no_output"),
        ({"isl_tokens": 20_000_000}, "absurd_tokens"),
        ({"first_token_us": START_US + 900, "at_us": START_US + 900, "osl_tokens": 40}, "all_tokens_at_once"),
    ],
)
def test_records_without_latencies_are_refused_by_reason(change: dict[str, object], reason: str) -> None:
    event = RequestFinished(
        deployment="d",
        request_id="r",
        at_us=START_US + 10_000,
        arrived_us=START_US,
        first_token_us=START_US + 1_000,
        isl_tokens=5,
        osl_tokens=3,
    )
    log = FinishedLog()
    assert log.on_finished(event)
    assert not log.on_finished(msgspec.structs.replace(event, **change))
    assert (len(log), dict(log.refused)) == (1, {reason: 1})


def test_the_log_is_bounded_and_keeps_the_newest() -> None:
    log = FinishedLog()
    event = ends_of(*served(1, 5.0))[0]
    for _ in range(CAPACITY + 5):
        log.on_finished(event)
    assert (len(log), log.forgotten) == (CAPACITY, 5)
    log.count(np.zeros(CAPACITY, np.int64), np.zeros(CAPACITY, np.int64), event.at_us)
    assert len(log) == KEPT


def test_prefix_hits_are_taken_off_the_prompt_as_told_or_as_seen() -> None:
    base = ends_of(*served(1, 5.0))[0]
    event = msgspec.structs.replace(base, isl_tokens=64, block_hashes=(1, 2, 3, 4), hash_block_tokens=16)
    log = FinishedLog()
    log.on_finished(event, cache_tokens=160)
    log.on_finished(msgspec.structs.replace(event, block_hashes=(1, 2, 9, 4)), cache_tokens=160)
    log.on_finished(msgspec.structs.replace(event, cached_tokens=48), cache_tokens=160)
    log.on_finished(event, cache_tokens=160)
    log.on_finished(event)
    assert log.table()[:, 6].tolist() == [64, 32, 16, 1, 64]


@pytest.mark.slow
def test_limits_are_believed_once_requests_wait_for_a_place() -> None:
    free, _, _ = learned(ends_of(*STEADY), budget_tokens=None)
    assert not free.limits.reached
    assert free.limits.config("d", "", START_US).max_num_seqs >= 256
    crowded, _, _ = learned(ends_of(*CROWDED), budget_tokens=None)
    assert crowded.limits.reached
    found = crowded.limits.config("d", "", START_US)
    most = (config().kv_blocks, 200 * 16)
    assert found.max_num_seqs == crowded.limits.most_seqs
    assert 0.7 * most[1] < (found.kv_blocks - 1) * found.block_size_tokens < 2.0 * most[1]


@pytest.mark.slow
def test_the_token_budget_is_told_apart() -> None:
    for budget_tokens in (256, 2_048):
        case = served(300, 8.0, max_num_batched_tokens=budget_tokens)
        costs, _, _ = learned(ends_of(*case), every_s=35.0, budget_tokens=None)
        found = costs.limits.config("d", "", START_US).max_num_batched_tokens
        assert (found <= 512) == (budget_tokens == 256)


def test_the_default_budget_stays_unless_another_is_clearly_better() -> None:
    limits = AssumedLimits()
    for spread, budget_tokens in (
        ({256: 0.05, 2_048: 0.055}, 2_048),
        ({256: 0.05, 512: 0.055, 2_048: 0.09}, 512),
        ({256: 0.09, 2_048: 0.09, 8_192: 0.05}, 8_192),
    ):
        limits.on_budgets(spread)
        assert limits.config("d", "", START_US).max_num_batched_tokens == budget_tokens
