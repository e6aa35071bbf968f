"""Default widths of 90 % intervals: how far a window's quantile fell from the forecast, in units of its scale.

Shipped, so that the first forecast of a deployment has an interval; learning online starts here. Derived from all
recordings of a real vLLM at hand (steady, bursty, ramp, long tail, prefix phases, a slowed core, a queue limit, two
engines), pooled with equal weight, not chosen per recording: scaled residuals at the tail `TAIL` on either side,
never shrinking with the horizon. A recording left out of the derivation is covered 89 % (30 s), 89 % (60 s), 87 %
(120 s) on average before anything is learned online and without the floor that the replications' own interval gives.
Derived, and left-out coverage printed, by `python -m tests.bench.bench_calibration derive`.
Law: sides are > 0 and never shrink as the horizon grows.
"""

import math

from schemas.slos import Metric

TAIL = 0.05
"""Share of residuals beyond either side in the derivation."""
BASE_SIGMA: dict[Metric, float] = {"ttft_s": 0.35, "tpot_s": 0.25, "e2e_s": 0.2}
"""Standard deviation on the log scale of what replications do not know; grows with what queueing does to a metric."""
KNOTS_S = (30.0, 60.0, 120.0)
_SIDES: dict[Metric, tuple[tuple[float, float], ...]] = {
    "ttft_s": ((1.33, 2.05), (1.33, 2.34), (1.33, 5.97)),
    "tpot_s": ((0.90, 1.79), (0.90, 1.99), (0.90, 3.39)),
    "e2e_s": ((1.22, 1.87), (1.30, 2.57), (1.30, 5.62)),
}
"""(below, above) at each of `KNOTS_S`."""


def side_multiples(metric: Metric, horizon_s: float) -> tuple[float, float]:
    """Width below and above the forecast, in scales; between knots linear in log time, beyond them as at the last.

    >>> side_multiples("e2e_s", 60.0)
    (1.3, 2.57)
    """
    place = math.log(min(max(horizon_s, KNOTS_S[0]), KNOTS_S[-1]) / KNOTS_S[0]) / math.log(KNOTS_S[1] / KNOTS_S[0])
    knot = min(int(place), len(KNOTS_S) - 2)
    share = place - knot
    (below, above), (below_next, above_next) = _SIDES[metric][knot : knot + 2]
    return below + share * (below_next - below), above + share * (above_next - above)
