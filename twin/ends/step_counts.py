"""How many engine steps lie between the token times of finished requests. Knows no costs and no scheduler.

Between its first and its last token a request of n output tokens took part in n - 1 steps, and all requests of an
engine share its steps. So each request pins the number of steps in its stretch of time, and many that overlap pin it
in every gap between neighbouring token times. A first guess per gap is scaled until all requests agree (raking): the
answer is the one nearest to the guess.
Law: where whole step times are known to every request alike, the counts found are the true ones.

References
----------
Deming and Stephan, On a least squares adjustment of a sampled frequency table, 1940 (raking). Here all constraints
move a gap at once, by the geometric mean of what they ask for.
"""

from dataclasses import dataclass

import numpy as np

from twin.metrics import BoolArray, FloatArray, IntArray

SWEEPS = 200
SETTLED_LOG = 2e-3
MAX_FACTOR = 4.0
ROUNDS = 3
SURPLUS_RATIO, SURPLUS_STEPS = 0.03, 1.0
"""So many steps more than a request took part in went by while it was preempted."""
FEWER_LOG = 0.25
"""What likely steps and their costs get wrong by themselves stays below this."""


@dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """G gaps between `bounds_s` (float64[G + 1], rising).

    Requests decode from bound `enter` to bound `leave` (int64[n]); `decoding` (float64[G]) counts those who decode
    all through a gap.
    """

    bounds_s: FloatArray
    enter: IntArray
    leave: IntArray
    decoding: FloatArray

    @property
    def count(self) -> int:
        """G."""
        return len(self.bounds_s) - 1

    @property
    def length_s(self) -> FloatArray:
        """Length of each gap (G,)."""
        return np.diff(self.bounds_s)

    def spread(self, low: IntArray, high: IntArray, values: FloatArray) -> FloatArray:
        """Sum over requests of `values` (n,) in every gap from bound `low` to bound `high` (n,)."""
        edges = np.zeros(self.count + 1)
        np.add.at(edges, low, values)
        np.add.at(edges, high, -values)
        return np.cumsum(edges)[:-1]


def gaps_between(
    ready_s: FloatArray, first_s: FloatArray, last_s: FloatArray, entered: BoolArray, least_s: float
) -> Gaps:
    """Gaps between token times after 0 s, and between the end of idle time and the next token.

    `ready_s` is when a request could first be scheduled. Who has `entered` decodes from the start. Times closer than
    `least_s` are taken as the same: tokens of one step reach their clients one after the other.
    """
    order = np.argsort(ready_s, kind="stable")
    busy_until = np.maximum.accumulate(np.concatenate(([0.0], last_s[order])))[:-1]
    woken = ready_s[order][ready_s[order] > busy_until]
    bounds = [0.0]
    for time_s in np.sort(np.concatenate((first_s[~entered], last_s, woken))).tolist():
        if time_s - bounds[-1] >= least_s:
            bounds.append(time_s)
    bounds_s = np.array(bounds)
    middle = (bounds_s[1:] + bounds_s[:-1]) / 2.0
    enter = np.where(entered, 0, np.searchsorted(middle, first_s))
    leave = np.searchsorted(middle, last_s)
    nobody = Gaps(bounds_s, enter, leave, np.zeros(len(bounds) - 1))
    return Gaps(bounds_s, enter, leave, np.rint(nobody.spread(enter, leave, np.ones(len(enter)))))


def settled_counts(gaps: Gaps, guess: FloatArray, needed: IntArray, exact: BoolArray) -> FloatArray:
    """Steps per gap (G,), not whole, nearest to `guess` so that each request has the steps it needs.

    `needed` (n,): steps between entering and leaving. `exact` (n,): False where a request is known to have been
    preempted, so that steps went by without it; one that asks for far fewer than those around it, or that cannot be
    brought to agree, is taken to have been.

    >>> gaps = gaps_between(np.zeros(2), np.array([1.0, 3.0]), np.array([5.0, 7.0]), np.zeros(2, bool), 0.1)
    >>> settled_counts(gaps, np.array([0.0, 1.0, 1.0, 1.0]), np.array([8, 8]), np.ones(2, bool)).round(1).tolist()
    [0.0, 4.0, 4.0, 4.0]
    """
    asks = exact & (gaps.leave > gaps.enter) & (needed > 0)
    asks[asks] = _like_others(gaps, guess, gaps.enter[asks], gaps.leave[asks], needed[asks])
    for _ in range(ROUNDS):
        enter, leave, wanted = gaps.enter[asks], gaps.leave[asks], needed[asks].astype(np.float64)
        counts = _raked(gaps, guess, enter, leave, wanted)
        total = np.concatenate(([0.0], np.cumsum(counts)))
        surplus = total[leave] - total[enter] - wanted
        agrees = surplus <= np.maximum(SURPLUS_RATIO * wanted, SURPLUS_STEPS)
        if agrees.all():
            break
        asks[np.flatnonzero(asks)[~agrees]] = False
    return counts


def _like_others(gaps: Gaps, guess: FloatArray, enter: IntArray, leave: IntArray, wanted: IntArray) -> BoolArray:
    """Which requests do not ask for far fewer steps, against the guess, than the others in the same gaps do."""
    total = np.concatenate(([0.0], np.cumsum(guess)))
    asked = np.log(wanted / np.maximum(total[leave] - total[enter], 1e-9))
    covered = np.maximum(gaps.spread(enter, leave, np.ones(len(enter))), 1.0)
    around = np.concatenate(([0.0], np.cumsum(gaps.spread(enter, leave, asked) / covered)))
    return np.asarray(asked > (around[leave] - around[enter]) / (leave - enter) - FEWER_LOG)


def _raked(gaps: Gaps, guess: FloatArray, enter: IntArray, leave: IntArray, wanted: FloatArray) -> FloatArray:
    counts = guess.copy()
    covered = np.maximum(gaps.spread(enter, leave, np.ones(len(enter))), 1.0)
    for _ in range(SWEEPS):
        total = np.concatenate(([0.0], np.cumsum(counts)))
        missing = np.log(np.clip(wanted / np.maximum(total[leave] - total[enter], 1e-9), 1 / MAX_FACTOR, MAX_FACTOR))
        if np.abs(missing).max(initial=0.0) < SETTLED_LOG:
            break
        counts *= np.exp(gaps.spread(enter, leave, missing) / covered)
    return counts
