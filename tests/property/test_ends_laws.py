"""Laws of what finished requests alone tell: step counts, likely steps, and draws of who is in an engine."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_ends import START_US, config, ends_of, served

from schemas.requests import RequestFinished
from schemas.steps import EngineStats
from twin.ends.assumed_engine import AssumedLimits
from twin.ends.finished_log import FinishedLog, IntArray
from twin.ends.hindsight import state_then
from twin.ends.likely_steps import Window, likely_steps
from twin.ends.presence import Counts, Donors, Presence
from twin.ends.step_counts import gaps_between, settled_counts
from twin.ends.unseen import counts_then, presence_of
from twin.engine.types import EngineState
from twin.metrics import FloatArray

QUICK = settings(max_examples=25, deadline=None)
CASE = served(200, 6.0)
ENDS = ends_of(*CASE)


def table_of(events: list[RequestFinished]) -> IntArray:
    log = FinishedLog()
    for event in events:
        log.on_finished(event)
    return log.table()


@QUICK
@given(st.integers(0, 2**32), st.integers(3, 40), st.floats(0.3, 3.0))
def test_step_counts_are_found_from_requests_that_share_steps(seed: int, requests: int, slowness: float) -> None:
    """Steps of any length; every request has its tokens at ends of steps. The first guess is off by a factor.

    A request of two or three steps, alone in them, is not pinned by others: it may be off by a few.
    """
    rng = np.random.default_rng(seed)
    ends_s = np.cumsum(rng.uniform(0.005, 0.05, 400))
    first = np.sort(rng.integers(0, 300, requests))
    last = first + rng.integers(2, 99, requests)
    gaps = gaps_between(ends_s[first] - 1e-3, ends_s[first], ends_s[last], np.zeros(requests, np.bool_), 1e-4)
    guess = np.where(gaps.decoding > 0, gaps.length_s / (0.0275 * slowness), 0.0)
    counts = settled_counts(gaps, guess, last - first, np.ones(requests, np.bool_))
    total = np.concatenate(([0.0], np.cumsum(counts)))
    found = total[gaps.leave] - total[gaps.enter]
    true = (last - first).astype(float)
    error = np.abs(found - true)
    assert float(error.max()) <= 4.0
    assert float(np.quantile(error / true, 0.5)) <= 0.02
    assert float(error.sum()) <= 0.04 * float(true.sum())


def test_a_request_that_steps_passed_by_does_not_spoil_the_counts() -> None:
    """One of many was preempted for a while: it took part in 60 of 90 steps."""
    ends_s = np.arange(200) * 0.01
    first, last = np.arange(0, 100, 10), np.arange(0, 100, 10) + 90
    needed = last - first
    needed[4] = 60
    gaps = gaps_between(ends_s[first], ends_s[first], ends_s[last], np.zeros(10, np.bool_), 1e-4)
    counts = settled_counts(gaps, np.where(gaps.decoding > 0, gaps.length_s / 0.012, 0.0), needed, np.ones(10, bool))
    assert counts[gaps.decoding > 0] == pytest.approx(gaps.length_s[gaps.decoding > 0] / 0.01, rel=0.03)


def window_of(events: list[RequestFinished], stamped: bool) -> Window:
    rows = table_of(events)
    rows = rows[np.lexsort((rows[:, 0], rows[:, 2]))]
    seconds = (rows[:, :4] - START_US) / 1e6
    return Window(
        arrived_s=seconds[:, 0],
        ready_s=seconds[:, 1] if stamped else seconds[:, 0],
        started_s=seconds[:, 1] if stamped else np.full(len(rows), np.nan),
        first_s=seconds[:, 2],
        last_s=seconds[:, 3],
        isl_tokens=rows[:, 5],
        computed_tokens=rows[:, 6],
        osl_tokens=rows[:, 7],
        entered=np.zeros(len(rows), np.bool_),
        counted_steps=np.zeros(len(rows), np.int64),
        exact=np.ones(len(rows), np.bool_),
    )


@QUICK
@given(
    st.integers(0, 2**32), st.floats(1.0, 30.0), st.booleans(), st.floats(0.0, 0.01), st.sampled_from((64, 256, 4_096))
)
def test_likely_steps_hold_every_prompt_once_and_do_not_overlap(
    seed: int, rate_per_s: float, stamped: bool, jitter_s: float, budget_tokens: int
) -> None:
    events = ends_of(*served(60, rate_per_s, seed=seed), jitter_s=jitter_s, stamped=stamped)

    def predict(shapes: FloatArray) -> FloatArray:
        return np.asarray(0.004 + 1e-4 * shapes[:, 1] + 1e-3 * shapes[:, 3])

    window = window_of(events, stamped)
    steps = likely_steps(window, predict, budget_tokens)
    assert steps is not None
    assert steps.shapes[:, 1].sum() == window.computed_tokens.sum()
    assert (steps.prefilled_tokens(len(steps.end_s)) == window.computed_tokens).all()
    assert (steps.end_s >= steps.start_s).all()
    assert (steps.start_s[1:] >= steps.end_s[:-1] - 1e-9).all()
    assert steps.start_s[0] >= 0.0
    assert steps.end_s[-1] <= window.last_s.max() + 1e-9
    assert (steps.duration_s >= 0.0).all()
    assert (steps.first_step <= steps.first_token).all()
    assert (steps.waiting >= 0).all()
    busy_s = float((steps.end_s - steps.start_s).sum())
    assert float(steps.duration_s.sum()) == pytest.approx(busy_s)
    upto = len(steps.end_s) // 2
    assert steps.prefilled_tokens(upto).sum() == steps.shapes[:upto, 1].sum()


def donors_of(seed: int) -> Donors:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    return Donors(
        isl_tokens=rng.integers(1, 3_000, n),
        ttft_s=rng.exponential(0.5, n),
        gap_s=rng.uniform(0.001, 0.1, n),
        decode_s=rng.exponential(2.0, n) * rng.integers(0, 2, n),
    )


presences = st.builds(
    lambda seed, expected, told, counts: Presence(
        donors=donors_of(seed),
        age_s=np.linspace(0.0, 5.0, 6),
        expected=np.full(5, expected),
        shape=np.full(5, 0.7),
        told_age_s=np.arange(told) * 0.4,
        told_isl_tokens=np.arange(told) * 500 + 1,
        counts=counts,
    ),
    st.integers(0, 2**32),
    st.floats(0.0, 30.0),
    st.integers(0, 12),
    st.none()
    | st.builds(Counts, st.floats(0.0, 4.0), st.integers(0, 40), st.integers(0, 40), st.none() | st.floats(0.0, 1e4)),
)


def blocks_of(state: EngineState, size: int) -> int:
    return sum(-(-request.computed_tokens // size) for request in state.running)


@QUICK
@given(presences, st.integers(1, 20), st.integers(40, 400), st.integers(0, 2**32))
def test_every_state_drawn_fits_the_engine(presence: Presence, seqs: int, kv_blocks: int, seed: int) -> None:
    engine = config(max_num_seqs=seqs, kv_blocks=kv_blocks)
    limit = (kv_blocks - 1) * engine.block_size_tokens
    state = presence.draw(engine, limit, np.random.default_rng(seed))
    assert len(state.running) <= seqs
    assert blocks_of(state, engine.block_size_tokens) <= kv_blocks - engine.reserved_blocks
    for request in (*state.running, *state.waiting):
        assert request.isl_tokens + request.generated_tokens + 1 <= limit + 1
    again = presence.draw(engine, limit, np.random.default_rng(seed))
    assert again == state


@QUICK
@given(st.integers(0, 2**32), st.integers(0, 15), st.integers(0, 30))
def test_counts_of_this_very_moment_are_kept(seed: int, running: int, waiting: int) -> None:
    """But for who has its first token just as it is counted: a waiting request never has one."""
    presence = Presence(
        donors=Donors(np.array([50, 80]), np.array([0.3, 0.4]), np.array([0.01, 0.02]), np.array([1.0, 2.0])),
        age_s=np.linspace(0.0, 5.0, 6),
        expected=np.full(5, 9.0),
        shape=np.ones(5),
        told_age_s=np.zeros(0),
        told_isl_tokens=np.zeros(0, np.int64),
        counts=Counts(0.0, running, waiting, None),
    )
    state = presence.draw(config(), 9_000, np.random.default_rng(seed))
    assert (len(state.running), len(state.waiting)) == (running, waiting)


def test_contexts_follow_the_kv_cache_where_it_is_told() -> None:
    rng = np.random.default_rng(3)
    donors = Donors(rng.integers(10, 2_000, 60), np.full(60, 0.2), np.full(60, 0.02), np.full(60, 2.0))

    def drawn_tokens(kv_tokens: float | None) -> float:
        counts = Counts(0.0, 6, 0, kv_tokens)
        none = np.zeros(0)
        presence = Presence(donors, np.array([0.0, 5.0]), np.zeros(1), np.ones(1), none, none.astype(np.int64), counts)
        states = [presence.draw(config(), 9_000, np.random.default_rng(seed)) for seed in range(30)]
        return float(np.mean([sum(r.computed_tokens for r in state.running) for state in states]))

    assert drawn_tokens(2_000.0) < drawn_tokens(None) - 500.0 < drawn_tokens(12_000.0) - 1_000.0


def unseen(rate_per_s: float, events: list[RequestFinished], as_of_us: int, dispersion: float = 1.0) -> float:
    told = np.zeros((0, 2), np.int64)
    known = [event for event in events if event.at_us <= as_of_us]
    presence = presence_of(table_of(known), as_of_us, 2_000_000, rate_per_s, dispersion, told, None)
    assert presence is not None
    return float(presence.expected.sum())


def test_as_many_are_unseen_as_were_really_on_the_way() -> None:
    """Little's law at the recorder's desk, over many moments."""
    moments = [START_US + s * 1_000_000 for s in range(12, 32)]
    real = [sum(e.arrived_us <= at < e.at_us for e in ENDS) for at in moments]
    assert float(np.mean([unseen(6.0, ENDS, at) for at in moments])) == pytest.approx(float(np.mean(real)), rel=0.2)


def ended(arrived_s: float, e2e_s: float) -> RequestFinished:
    arrived_us = START_US + round(arrived_s * 1e6)
    return RequestFinished(
        deployment="d",
        request_id="r",
        at_us=arrived_us + round(e2e_s * 1e6),
        arrived_us=arrived_us,
        first_token_us=arrived_us + 100_000,
        isl_tokens=9,
        osl_tokens=9,
    )


def test_nobody_is_unseen_where_nothing_is_expected_and_more_where_more_ended() -> None:
    """What the newest requests last is the same throughout."""
    at = START_US + 20_000_000
    newest = [ended(8.0, 0.5 + 0.04 * k) for k in range(48)]
    counts = [unseen(6.0, [*[ended(18.6, 0.4)] * k, *newest], at, dispersion=3.0) for k in (0, 4, 40)]
    assert counts == sorted(counts)
    assert counts[0] < counts[1] < counts[2]
    assert unseen(0.0, [*[ended(18.6, 0.4)] * 40, *newest], at) == 0.0


def test_no_presence_before_anybody_has_finished() -> None:
    assert presence_of(table_of([]), START_US, 0, 5.0, 1.0, np.zeros((0, 2), np.int64), None) is None


def test_who_has_ended_since_is_taken_off_the_counts() -> None:
    at = START_US + 20_000_000
    on_the_way = [event for event in ENDS if event.arrived_us <= at < event.at_us]
    stats = EngineStats(deployment="d", engine="0", at_us=at, running=9, waiting=9)
    ran = sum(event.first_token_us is not None and event.first_token_us <= at for event in on_the_way)
    found = counts_then(table_of(ENDS), stats, at + 3_000_000, kv_tokens=1e6)
    assert found is not None
    assert (found.running, found.waiting) == (9 - ran, 9 - (len(on_the_way) - ran))
    assert found.age_s == 3.0
    assert 0.0 < (found.kv_tokens or 0.0) < 1e6
    nameless = EngineStats(deployment="d", engine="0", at_us=at, running=9)
    assert counts_then(table_of(ENDS), nameless, at, None) is None


@QUICK
@given(st.integers(1, 35), st.booleans())
def test_hindsight_holds_everybody_on_the_way_once(second: int, stamped: bool) -> None:
    events = ends_of(*CASE, stamped=stamped)
    at = START_US + second * 1_000_000
    last_us = {e.request_id: e.engine_last_token_us or e.at_us for e in events}
    expected = sorted((e.isl_tokens, e.osl_tokens) for e in events if e.arrived_us <= at < last_us[e.request_id])
    state = state_then(table_of(events), at, config())
    assert sorted((r.isl_tokens, r.osl_tokens) for r in (*state.running, *state.waiting)) == expected
    assert blocks_of(state, 16) <= config().kv_blocks - 1


@QUICK
@given(st.integers(0, 2**32), st.integers(0, 5), st.booleans())
def test_no_limit_assumed_is_below_what_was_seen(seed: int, waiting: int, decodes_only: bool) -> None:
    rng = np.random.default_rng(seed)
    shapes = rng.integers(1, (3, 900, 9_000, 60, 20_000), (50, 5)).astype(np.float64)
    shapes[:, :3] *= not decodes_only
    limits = AssumedLimits()
    limits.on_steps(shapes, np.full(50, waiting), np.full(50, 0.2))
    assert limits.reached == (decodes_only and waiting >= 2)
    found = limits.config("d", "", START_US)
    assert found.max_num_seqs >= (shapes[:, 0] + shapes[:, 3]).max()
    assert (found.kv_blocks - found.reserved_blocks) * found.block_size_tokens >= (shapes[:, 1] + shapes[:, 4]).max()
