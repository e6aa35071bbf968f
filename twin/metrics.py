"""Latencies of requests and what is counted from them: one definition for observed and for simulated requests.

Does not know where times come from, and never estimates. All times are float seconds on one axis, arrays share one
shape. Laws: a request that did not finish in time is +inf, a number that is undefined is NaN (None for one request),
and neither is ever 0; `e2e = ttft + tpot * (osl - 1)` wherever all three are finite.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.slos import Metric, SloTarget

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

METRICS: tuple[Metric, ...] = ("ttft_s", "tpot_s", "e2e_s")
QUANTILES: tuple[float, ...] = (0.5, 0.95, 0.99)
CLOSES_AFTER_S = 60.0
"""A horizon's window closes this long after its last possible arrival; what is unfinished then counts as +inf."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies of n requests, each array float64[n], seconds from arrival at the frontend (queueing included).

    +inf: not there when the window closed. NaN: undefined (refused; TPOT of fewer than two tokens).
    """

    ttft_s: FloatArray
    tpot_s: FloatArray
    e2e_s: FloatArray

    def of(self, metric: Metric) -> FloatArray:
        """The array of one metric."""
        if metric == "ttft_s":
            return self.ttft_s
        return self.tpot_s if metric == "tpot_s" else self.e2e_s

    def __getitem__(self, which: slice | BoolArray | IntArray) -> "Latencies":
        return Latencies(self.ttft_s[which], self.tpot_s[which], self.e2e_s[which])


def latencies(
    *,
    arrived_s: FloatArray,
    first_token_s: FloatArray,
    last_token_s: FloatArray,
    osl_tokens: IntArray,
    closes_s: float = math.inf,
    refused: BoolArray | None = None,
) -> Latencies:
    """Latencies from times; NaN or anything after `closes_s` in a token time means "not yet", so +inf.

    TPOT is NaN where `osl_tokens` < 2, and +inf where the request has not finished, whatever its length.

    >>> found = latencies(arrived_s=np.array([0.0, 1.0, 2.0]), first_token_s=np.array([0.5, 1.5, 2.5]),
    ...                   last_token_s=np.array([1.5, 1.5, np.nan]), osl_tokens=np.array([11, 1, 0]))
    >>> found.ttft_s.tolist(), found.tpot_s.tolist(), found.e2e_s.tolist()
    ([0.5, 0.5, 0.5], [0.1, nan, inf], [1.5, 0.5, inf])
    """
    first = np.where(first_token_s <= closes_s, first_token_s, np.inf)
    last = np.where(last_token_s <= closes_s, last_token_s, np.inf)
    ttft = first - arrived_s
    e2e = last - arrived_s
    gaps = osl_tokens - 1
    with np.errstate(invalid="ignore"):
        tpot = np.where(np.isinf(last), np.inf, (last - first) / np.maximum(gaps, 1))
    tpot[(gaps < 1) & np.isfinite(last)] = np.nan
    if refused is not None:
        for values in (ttft, tpot, e2e):
            values[refused] = np.nan
    return Latencies(ttft_s=ttft, tpot_s=tpot, e2e_s=e2e)


def tpot_s(*, first_token_s: float, last_token_s: float, osl_tokens: int) -> float | None:
    """Mean gap between the tokens of one request; None if it has fewer than two.

    >>> tpot_s(first_token_s=1.0, last_token_s=2.0, osl_tokens=11)
    0.1
    """
    if osl_tokens < 2:
        return None
    return (last_token_s - first_token_s) / (osl_tokens - 1)


def itl_s(token_s: FloatArray) -> FloatArray:
    """Gaps between the tokens of one request, float64[n - 1] from its n token times in order."""
    return np.diff(token_s)


def quantile(values: FloatArray, q: float) -> float:
    """The q-quantile, linear between order statistics; NaN values are left out, +inf stays; NaN if nothing is left.

    >>> quantile(np.array([1.0, 2.0, np.nan, 3.0]), 0.5), quantile(np.array([1.0, np.inf]), 0.5)
    (2.0, inf)
    """
    return float(quantiles(values, (q,))[0])


def quantiles(values: FloatArray, qs: Sequence[float] = QUANTILES) -> FloatArray:
    """`quantile` for several q at once, float64[len(qs)] in their order.

    One selection after the other, each in what the last one left above: far cheaper than a sort or a joint selection.
    """
    if values.size == 0 or math.isnan(float(values.sum())):
        values = values[~np.isnan(values)]
    count = values.size
    out = np.full(len(qs), np.nan)
    if count == 0:
        return out
    below = 0
    for at in sorted(range(len(qs)), key=qs.__getitem__):
        rank = (count - 1) * qs[at]
        low = int(rank)
        values = np.partition(values, low - below)[low - below :]
        below = low
        share = rank - low
        out[at] = values[0] if share == 0.0 else _between(float(values[0]), float(values[1:].min()), share)
    return out


def _between(low: float, high: float, share: float) -> float:
    """`low + share * (high - low)`, where +inf minus +inf is no difference."""
    return high if math.isinf(high) else low + share * (high - low)


def limits_s(targets: Iterable[SloTarget], traffic_class: str = "") -> dict[Metric, float]:
    """Tightest limit per metric that holds for one traffic class (targets of the empty class hold for all).

    A target speaks of a quantile; for goodput its limit is asked of each request.
    """
    found: dict[Metric, float] = {}
    for target in targets:
        if target.traffic_class in ("", traffic_class):
            found[target.metric] = min(target.limit_s, found.get(target.metric, math.inf))
    return found


def met(found: Latencies, limits: dict[Metric, float]) -> BoolArray:
    """Which requests met every limit, bool[n]: finished in time, not refused, none over; undefined TPOT is no miss."""
    good = np.isfinite(found.e2e_s)
    for metric, limit_s in limits.items():
        values = found.of(metric)
        good &= (values <= limit_s) | (np.isnan(values) if metric == "tpot_s" else False)
    return good


def goodput_requests_per_s(found: Latencies, limits: dict[Metric, float], span_s: float) -> float:
    """Requests that met every limit, per second of the `span_s` (> 0) in which they arrived."""
    return float(np.count_nonzero(met(found, limits))) / span_s


def success_ratio(found: Latencies) -> float:
    """Share of requests that finished in time (refused and unfinished ones did not); NaN of no requests."""
    return float(np.isfinite(found.e2e_s).mean()) if found.e2e_s.size else math.nan
