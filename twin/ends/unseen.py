"""How many requests of an engine are on the way unseen, from those that have ended. Draws nothing.

Of the arrivals in a second some have ended and are known. The rate of that second is Gamma distributed around the
forecast rate, as widely as counts of arrivals vary; given how many have ended, and the share of recent requests that
end so soon, the number that has not ended is negative binomial.
Law: with everything ended or nothing expected, nobody is unseen; the more have ended of a second's arrivals, the more
of them are expected to be on the way.
"""

import numpy as np

from schemas.steps import EngineStats
from twin.ends.finished_log import ARRIVED, FIRST, ISL, KNOWN, LAST, OSL, SCHEDULED, UNKNOWN, IntArray
from twin.ends.presence import Counts, Donors, Presence
from twin.metrics import FloatArray

US_PER_S = 1_000_000
DONORS = 48
"""The newest ended requests: they met the queue of just now."""
LEAST_BINS, MOST_BINS = 4, 64
LEAST_DISPERSION = 1.001
LEAST_SHAPE = 1e-3


def presence_of(
    table: IntArray,
    as_of_us: int,
    lag_us: int,
    rate_per_s: float,
    dispersion: float,
    told: IntArray,
    counts: Counts | None,
) -> Presence | None:
    """The presence as of a moment; None before any request has finished.

    `table` as of `FinishedLog`; what is `lag_us` old is known in full. `rate_per_s` requests arrive unseen, and counts
    of them have `dispersion` times the variance of a Poisson count. `told` (n, 2): arrival (us) and prompt tokens of
    requests that have arrived and not ended.
    """
    if not len(table):
        return None
    donors = _donors(table[-DONORS:])
    longest_s = max(float(donors.e2e_s.max()), lag_us / US_PER_S, 1e-3)
    bins = int(np.clip(np.ceil(longest_s), LEAST_BINS, MOST_BINS))
    age_s = np.linspace(0.0, longest_s, bins + 1)
    expected, shape = _unseen(table, donors, age_s, as_of_us, lag_us, rate_per_s, max(dispersion, LEAST_DISPERSION))
    return Presence(
        donors=donors,
        age_s=age_s,
        expected=expected,
        shape=shape,
        told_age_s=np.maximum(as_of_us - told[:, 0], 0) / US_PER_S,
        told_isl_tokens=np.maximum(told[:, 1], 1),
        counts=counts,
    )


def _donors(rows: IntArray) -> Donors:
    decode_s = (rows[:, LAST] - rows[:, FIRST]) / US_PER_S
    several = rows[:, OSL] > 1
    gap_s = np.divide(decode_s, rows[:, OSL] - 1, out=np.full(len(rows), 1.0), where=several)
    return Donors(
        isl_tokens=rows[:, ISL],
        ttft_s=(rows[:, FIRST] - rows[:, ARRIVED]) / US_PER_S,
        gap_s=np.maximum(gap_s, 1e-6),
        decode_s=decode_s,
    )


def _unseen(
    table: IntArray,
    donors: Donors,
    age_s: FloatArray,
    as_of_us: int,
    lag_us: int,
    rate_per_s: float,
    dispersion: float,
) -> tuple[FloatArray, FloatArray]:
    """Expected number on the way, and its shape parameter, per bin of age."""
    middle_s = (age_s[1:] + age_s[:-1]) / 2.0
    ended_ratio = (donors.e2e_s[None, :] <= middle_s[:, None]).mean(axis=1)
    ended = np.histogram((as_of_us - table[:, ARRIVED]) / US_PER_S, age_s)[0].astype(np.float64)
    recent = age_s[1:] <= lag_us / US_PER_S
    prior_mean = np.maximum(rate_per_s * np.diff(age_s), 1e-9)
    prior_shape = np.maximum(prior_mean / (dispersion - 1.0), LEAST_SHAPE)
    shape = prior_shape + np.where(recent, ended, 0.0)
    mean = shape / (prior_shape / prior_mean + np.where(recent, ended_ratio, 0.0))
    if rate_per_s <= 0.0:
        mean = np.zeros_like(mean)
    return mean * (1.0 - ended_ratio), shape


def counts_then(table: IntArray, stats: EngineStats, as_of_us: int, kv_tokens: float | None) -> Counts | None:
    """What the engine told last, without the requests that have ended since, which are known one by one.

    `kv_tokens`: tokens in its KV cache then, None if unknown. None where it does not count its requests.
    """
    if stats.running is None or stats.waiting is None:
        return None
    at_us = stats.at_us
    rows = table[(table[:, KNOWN] > at_us) & (table[:, ARRIVED] <= at_us) & (table[:, LAST] > at_us)]
    started_us = np.where(rows[:, SCHEDULED] == UNKNOWN, rows[:, FIRST], rows[:, SCHEDULED])
    ran = started_us <= at_us
    decoded = np.clip((at_us - rows[ran, FIRST]) / np.maximum(rows[ran, LAST] - rows[ran, FIRST], 1), 0.0, 1.0)
    known_tokens = float((rows[ran, ISL] + decoded * rows[ran, OSL]).sum())
    return Counts(
        age_s=max(as_of_us - at_us, 0) / US_PER_S,
        running=max(stats.running - int(np.count_nonzero(ran)), 0),
        waiting=max(stats.waiting - int(np.count_nonzero(~ran)), 0),
        kv_tokens=None if kv_tokens is None else max(kv_tokens - known_tokens, 0.0),
    )
