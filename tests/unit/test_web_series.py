"""Rows that readers follow: bounded, and the same at both ends."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.web.engine_series import BUCKET_US, EngineSeries
from pipelines.web.latencies import CELL_US, MAX_CELLS, MAX_KEPT, ObservedLatencies
from pipelines.web.series import Rows
from schemas.engines import EngineConfig
from schemas.requests import RequestArrived, RequestFinished, RequestRejected
from schemas.steps import EngineStats, Step
from twin.metrics import METRICS, QUANTILES

T0_US = 1_800_000_000 * 1_000_000
S = 1_000_000


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3), st.booleans())))
def test_a_reader_that_applies_every_answer_holds_the_same_rows(puts: list[tuple[int, int, bool]]) -> None:
    rows, held, told = Rows(100), {}, 0
    for at_us, value, asks in puts:
        rows.put(at_us, (value,))
        if asks:
            held |= {row[0]: row for row in rows.since(told)}
            told = rows.revision
    held |= {row[0]: row for row in rows.since(told)}
    assert [held[at] for at in sorted(held)] == rows.since(-1)


def test_the_same_row_again_is_no_change_and_the_oldest_rows_go() -> None:
    rows = Rows(3)
    rows.put(1, (1.0,))
    assert rows.revision == 1
    rows.put(1, (1.0,))
    assert rows.revision == 1
    for at_us in range(2, 9):
        rows.put(at_us, (0.0,))
    assert [row[0] for row in rows.since(-1)] == [6, 7, 8]
    with pytest.raises(ValueError, match="limit"):
        Rows(0)


def finished(number: int, arrived_us: int, ttft_s: float, osl_tokens: int = 11, gap_s: float = 0.1) -> RequestFinished:
    first_us = arrived_us + round(ttft_s * S)
    return RequestFinished(
        deployment="d",
        request_id=f"r{number}",
        at_us=first_us + round(gap_s * (osl_tokens - 1) * S),
        arrived_us=arrived_us,
        first_token_us=first_us,
        isl_tokens=10,
        osl_tokens=osl_tokens,
    )


def arrived(number: int, at_us: int) -> RequestArrived:
    return RequestArrived(deployment="d", request_id=f"r{number}", at_us=at_us, isl_tokens=10)


def row_at(observed: ObservedLatencies, end_us: int) -> list[float | None]:
    return next(row[1:] for row in observed.rows.since(-1) if row[0] == end_us)


@given(st.lists(st.floats(0.01, 60.0), min_size=10, max_size=60), st.integers(1, 4))
def test_a_quantile_is_that_of_the_requests_that_arrived_in_the_window(ttfts_s: list[float], cells: int) -> None:
    observed = ObservedLatencies()
    for number, ttft_s in enumerate(ttfts_s):
        observed.take(finished(number, T0_US + 1 + number * cells * CELL_US // len(ttfts_s), ttft_s))
    horizon_s = cells * CELL_US / S
    observed.refresh(T0_US + 100 * CELL_US, (horizon_s,))
    row = row_at(observed, T0_US + cells * CELL_US)
    assert row[: len(QUANTILES)] == pytest.approx(np.quantile(ttfts_s, QUANTILES).tolist(), rel=1e-4)
    assert row[len(QUANTILES)] == pytest.approx(0.1, rel=1e-4)


def test_a_request_counts_in_every_window_that_holds_its_arrival_and_in_no_other() -> None:
    observed = ObservedLatencies()
    for cell, ttft_s in ((10, 1.0), (13, 2.0)):
        for number in range(20):
            observed.take(finished(number, T0_US + cell * CELL_US, ttft_s))
    observed.refresh(T0_US + 100 * CELL_US, (3 * CELL_US / S,))
    told = [((row[0] - T0_US) // CELL_US, row[1]) for row in observed.rows.since(-1) if row[1] is not None]
    assert told == [(10, 1.0), (11, 1.0), (12, 1.0), (13, 2.0), (14, 2.0), (15, 2.0)]


def test_a_quantile_is_not_told_while_unfinished_requests_may_still_move_it() -> None:
    observed = ObservedLatencies()
    for number in range(40):
        observed.take(arrived(number, T0_US))
    for number in range(30):
        observed.take(finished(number, T0_US, 1.0))
    observed.refresh(T0_US + CELL_US, (5.0,))
    assert row_at(observed, T0_US)[: len(QUANTILES)] == [1.0, None, None]
    for number in range(30, 40):
        observed.take(finished(number, T0_US, 9.0))
    observed.refresh(T0_US + CELL_US, (5.0,))
    assert row_at(observed, T0_US)[: len(QUANTILES)] == [1.0, 9.0, 9.0]


def test_refused_requests_hold_nothing_up_and_few_requests_tell_nothing() -> None:
    observed = ObservedLatencies()
    for number in range(30):
        observed.take(arrived(number, T0_US))
    for number in range(9):
        observed.take(finished(number, T0_US, 1.0))
    for number in range(9, 30):
        observed.take(RequestRejected(deployment="d", request_id=f"r{number}", at_us=T0_US + 1, arrived_us=T0_US))
    observed.refresh(T0_US + CELL_US, (5.0,))
    assert row_at(observed, T0_US) == [None] * (len(METRICS) * len(QUANTILES))
    observed.take(finished(99, T0_US, 1.0))
    observed.refresh(T0_US + CELL_US, (5.0,))
    assert row_at(observed, T0_US)[:3] == [1.0, 1.0, 1.0]


def test_one_token_has_no_gap_and_a_window_ahead_is_not_told() -> None:
    observed = ObservedLatencies()
    for number in range(20):
        observed.take(finished(number, T0_US, 1.0, osl_tokens=1))
    observed.refresh(T0_US - 1, (5.0,))
    assert observed.rows.since(-1) == []
    observed.refresh(T0_US, (5.0,))
    tpot_p50 = row_at(observed, T0_US)[len(QUANTILES)]
    assert tpot_p50 is None


def test_memory_of_latencies_is_bounded() -> None:
    observed = ObservedLatencies()
    for number in range(3 * MAX_KEPT):
        observed.take(finished(number, T0_US, 1.0 + number % 2))
    for cell in range(2 * MAX_CELLS):
        observed.take(finished(cell, T0_US + cell * CELL_US, 1.0))
    assert len(observed._cells) == MAX_CELLS
    assert max(len(kept) for cell in observed._cells.values() for kept in cell.kept) <= MAX_KEPT
    observed.take(finished(1, T0_US, 1.0))  # older than all that is held
    assert len(observed._cells) == MAX_CELLS


def test_a_sample_of_many_requests_is_fair() -> None:
    observed = ObservedLatencies()
    for number in range(10 * MAX_KEPT):
        observed.take(finished(number, T0_US, 1.0 if number < 5 * MAX_KEPT else 2.0))
    kept = observed._cells[T0_US // CELL_US].kept[0]
    assert len(kept) == MAX_KEPT
    assert abs(sum(value > 1.5 for value in kept) / MAX_KEPT - 0.5) < 4 * math.sqrt(0.25 / MAX_KEPT)


def engine(name: str, kv_blocks: int = 101) -> EngineConfig:
    return EngineConfig(
        deployment="d",
        engine=name,
        at_us=T0_US,
        block_size_tokens=16,
        kv_blocks=kv_blocks,
        max_num_seqs=8,
        max_num_batched_tokens=512,
    )


def step(number: int, at_us: int, duration_us: int, waiting: int, used: int | None = None) -> Step:
    return Step(
        step=number,
        start_us=at_us - duration_us,
        duration_us=duration_us,
        waiting=waiting,
        running=4,
        kv_used_blocks=used,
    )


def test_queues_are_summed_over_engines_and_kv_is_of_the_fullest() -> None:
    series = EngineSeries()
    for name, waiting, used in (("a", 3, 50), ("b", 5, 75)):
        series.on_config(engine(name))
        series.on_steps(name, [step(0, T0_US + 1000, 500, waiting, used)])
    assert series.rows.since(-1)[-1] == [T0_US, 8.0, 8.0, 0.75, None, None]
    assert series.engines == 2


def test_busy_time_is_told_once_a_bucket_is_full_and_late_engines_count() -> None:
    series = EngineSeries()
    half_us = BUCKET_US // 2
    series.on_steps("a", [step(0, T0_US + half_us, half_us, 0), step(1, T0_US + BUCKET_US + 1, 1, 0)])
    assert series.rows.since(-1)[0][4:] == [0.5, 0.0]
    series.on_steps("b", [step(0, T0_US + half_us + 10, half_us, 7)])  # a batch that came after the other's
    assert series.rows.since(-1)[0][4:] == [0.5, 0.5]
    assert series.rows.since(-1)[1][4:] == [None, None]


def test_counts_between_steps_tell_queues_but_no_busy_time() -> None:
    series = EngineSeries()
    series.on_stats(EngineStats(deployment="d", engine="a", at_us=T0_US, waiting=2, running=3, kv_used_ratio=0.25))
    series.on_stats(EngineStats(deployment="d", engine="a", at_us=T0_US + 5 * BUCKET_US, waiting=4))
    assert series.rows.since(-1) == [
        [T0_US, 2.0, 3.0, 0.25, None, None],
        [T0_US + 5 * BUCKET_US, 4.0, 3.0, 0.25, None, None],
    ]


def test_an_engine_that_is_removed_counts_no_longer() -> None:
    series = EngineSeries()
    for name in ("a", "b"):
        series.on_config(engine(name))
        series.on_steps(name, [step(0, T0_US, 10, 3)])
    gone = engine("b")
    series.on_config(
        EngineConfig(
            **{name: getattr(gone, name) for name in gone.__struct_fields__ if name != "removed"}, removed=True
        )
    )
    series.on_steps("a", [step(1, T0_US + 5 * BUCKET_US, 10, 3)])
    assert series.rows.since(-1)[-1][1] == 3.0
