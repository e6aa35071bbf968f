"""Values of the metric definitions at their edges: one token, nothing finished, refused, infinite."""

import math

import numpy as np
import pytest

from schemas.slos import SloTarget
from twin.metrics import (
    Latencies,
    goodput_requests_per_s,
    itl_s,
    latencies,
    limits_s,
    met,
    quantile,
    quantiles,
    success_ratio,
    tpot_s,
)

NAN, INF = math.nan, math.inf


def found(**columns: list[float]) -> Latencies:
    return Latencies(**{name: np.array(values) for name, values in columns.items()})


def test_tpot_of_one_token_is_undefined_and_never_zero() -> None:
    assert tpot_s(first_token_s=1.0, last_token_s=1.0, osl_tokens=1) is None
    one = latencies(arrived_s=np.zeros(1), first_token_s=np.ones(1), last_token_s=np.ones(1), osl_tokens=np.array([1]))
    assert math.isnan(one.tpot_s[0])
    assert one.ttft_s[0] == one.e2e_s[0] == 1.0


def test_unfinished_is_infinite_even_after_its_first_token() -> None:
    half = latencies(
        arrived_s=np.zeros(1), first_token_s=np.ones(1), last_token_s=np.array([NAN]), osl_tokens=np.array([0])
    )
    assert (half.ttft_s[0], half.tpot_s[0], half.e2e_s[0]) == (1.0, INF, INF)


def test_a_window_that_closed_hides_later_tokens() -> None:
    times = {"arrived_s": np.array([0.0]), "first_token_s": np.array([5.0]), "last_token_s": np.array([9.0])}
    osl = np.array([3])
    assert latencies(**times, osl_tokens=osl, closes_s=9.0).e2e_s[0] == 9.0
    assert latencies(**times, osl_tokens=osl, closes_s=8.9).e2e_s[0] == INF
    assert latencies(**times, osl_tokens=osl, closes_s=8.9).ttft_s[0] == 5.0
    assert latencies(**times, osl_tokens=osl, closes_s=4.0).ttft_s[0] == INF


def test_refused_requests_have_no_latency() -> None:
    refused = latencies(
        arrived_s=np.zeros(2),
        first_token_s=np.array([1.0, NAN]),
        last_token_s=np.array([2.0, NAN]),
        osl_tokens=np.array([5, 0]),
        refused=np.array([False, True]),
    )
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        values = refused.of(metric)  # type: ignore[arg-type]
        assert np.isfinite(values[0])
        assert np.isnan(values[1])
    assert success_ratio(refused) == 0.5


def test_quantiles_leave_out_nan_and_keep_infinity() -> None:
    values = np.array([NAN, 1.0, 2.0, INF, INF])
    assert quantile(values, 0.0) == 1.0
    assert quantile(values, 0.2) == pytest.approx(1.6)
    assert quantile(values, 0.5) == INF
    assert quantile(values, 1.0) == INF
    assert math.isnan(quantile(np.array([NAN]), 0.5))
    assert math.isnan(quantile(np.array([]), 0.5))


def test_quantiles_agree_with_numpy_where_numpy_has_an_answer() -> None:
    values = np.random.default_rng(3).exponential(size=101)
    qs = (0.0, 0.1, 0.5, 0.95, 0.99, 1.0)
    assert quantiles(values, qs) == pytest.approx(np.quantile(values, qs))


def test_goodput_counts_requests_that_met_every_limit() -> None:
    each = found(ttft_s=[0.1, 0.1, 0.9, 0.1, INF], tpot_s=[0.01, 0.09, 0.01, NAN, INF], e2e_s=[1.0, 1.0, 1.0, 0.1, INF])
    limits = limits_s(
        [
            SloTarget(metric="ttft_s", quantile=0.95, limit_s=0.5),
            SloTarget(metric="tpot_s", quantile=0.5, limit_s=0.05),
            SloTarget(metric="tpot_s", quantile=0.99, limit_s=0.07),
            SloTarget(metric="ttft_s", quantile=0.5, limit_s=0.01, traffic_class="chat"),
        ]
    )
    assert limits == {"ttft_s": 0.5, "tpot_s": 0.05}
    assert met(each, limits).tolist() == [True, False, False, True, False]
    assert goodput_requests_per_s(each, limits, 2.0) == 1.0
    assert met(each, {}).tolist() == [True, True, True, True, False]


def test_a_refused_request_never_meets_a_limit() -> None:
    each = found(ttft_s=[NAN], tpot_s=[NAN], e2e_s=[NAN])
    assert met(each, {}).tolist() == [False]


def test_limits_of_a_class_include_those_for_all() -> None:
    targets = [
        SloTarget(metric="ttft_s", quantile=0.95, limit_s=0.5),
        SloTarget(metric="ttft_s", quantile=0.95, limit_s=0.2, traffic_class="chat"),
    ]
    assert limits_s(targets, "chat") == {"ttft_s": 0.2}
    assert limits_s(targets, "batch") == {"ttft_s": 0.5}


def test_gaps_between_tokens_sum_to_the_decode_time() -> None:
    assert itl_s(np.array([1.0, 1.5, 3.0])).tolist() == [0.5, 1.5]


def test_no_requests_have_no_success_ratio() -> None:
    assert math.isnan(success_ratio(found(ttft_s=[], tpot_s=[], e2e_s=[])))
