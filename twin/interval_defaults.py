"""Default widths of intervals: how far a window's quantile fell from the forecast, in units of the forecast's scale.

Placeholder until derived.
"""

import math

from schemas.slos import Metric

BASE_SIGMA = 0.15
KNOTS_S = (30.0, 60.0, 120.0)
_MULTIPLES: dict[Metric, tuple[tuple[float, float], ...]] = {
    "ttft_s": ((1.9, 2.4), (2.1, 3.0), (2.3, 4.0)),
    "tpot_s": ((1.5, 2.1), (1.5, 2.5), (1.5, 4.0)),
    "e2e_s": ((1.5, 2.4), (1.6, 3.5), (1.8, 4.0)),
}


def side_multiples(metric: Metric, quantile: float, horizon_s: float) -> tuple[float, float]:
    """Low and high side of the default 90 % interval, in scales."""
    rows = _MULTIPLES[metric]
    at = min(max(math.log(horizon_s), math.log(KNOTS_S[0])), math.log(KNOTS_S[-1]))
    for k in range(len(KNOTS_S) - 1):
        a, b = math.log(KNOTS_S[k]), math.log(KNOTS_S[k + 1])
        if at <= b:
            w = (at - a) / (b - a)
            return (
                rows[k][0] + w * (rows[k + 1][0] - rows[k][0]),
                rows[k][1] + w * (rows[k + 1][1] - rows[k][1]),
            )
    return rows[-1]
