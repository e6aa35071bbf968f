"""Laws of the metrics on random times: the identity of the three latencies, order of quantiles, closing later."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from twin.metrics import Latencies, latencies, quantiles

SEEDS = st.integers(0, 2**32 - 1)


def some(seed: int, closes_s: float = np.inf) -> tuple[Latencies, np.ndarray]:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    osl = rng.integers(1, 6, n)
    arrived = rng.uniform(0, 10, n)
    first = arrived + rng.exponential(1.0, n)
    last = np.where(osl > 1, first + rng.exponential(1.0, n), first)
    last[rng.random(n) < 0.2] = np.nan
    found = latencies(arrived_s=arrived, first_token_s=first, last_token_s=last, osl_tokens=osl, closes_s=closes_s)
    return found, osl


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_e2e_is_ttft_plus_gaps_times_tpot(seed: int) -> None:
    found, osl = some(seed)
    finite = np.isfinite(found.e2e_s) & (osl > 1)
    total = found.ttft_s[finite] + (osl[finite] - 1) * found.tpot_s[finite]
    assert np.allclose(total, found.e2e_s[finite], rtol=1e-9)
    assert np.isnan(found.tpot_s[np.isfinite(found.e2e_s) & (osl == 1)]).all()
    assert not (found.tpot_s == 0.0).any()


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.floats(0.0, 12.0), st.floats(0.0, 12.0))
def test_closing_later_never_makes_a_latency_longer(seed: int, one_s: float, other_s: float) -> None:
    early, _ = some(seed, min(one_s, other_s))
    late, _ = some(seed, max(one_s, other_s))
    assert (late.ttft_s <= early.ttft_s).all()
    assert (late.e2e_s <= early.e2e_s).all()


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_quantiles_rise_with_their_level_and_lie_within_the_values(seed: int) -> None:
    values = some(seed)[0].e2e_s
    levels = np.linspace(0.0, 1.0, 21).tolist()
    found = quantiles(values, levels)
    assert (found[:-1] <= found[1:]).all()
    assert found[0] == values.min()
    assert found[-1] == values.max()


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_selection_and_order_of_requests_change_nothing(seed: int) -> None:
    found, _ = some(seed)
    shuffled = np.random.default_rng(seed + 1).permutation(found.ttft_s.size)
    assert np.array_equal(quantiles(found[shuffled].ttft_s), quantiles(found.ttft_s))
