"""Since when past traffic has been of the same mix: prompt and output lengths, shared prefixes. Knows nothing of rates.

Law: what is kept always ends now; traffic of one mix is kept whole, save for chance.
"""

import numpy as np

from twin.metrics import FloatArray

FIRST_S = 60.0
LEAST_REQUESTS = 40
GATE = 3.5
"""Standard errors by which an older stretch must differ from what came after it."""


def same_mix_since_s(arrived_s: FloatArray, features: FloatArray, start_s: float) -> float:
    """Start of the longest stretch up to now (0) that is of one mix, in [`start_s`, 0).

    Parameters
    ----------
    arrived_s
        Sorted arrival times in (`start_s`, 0], float64[n].
    features
        What tells one mix from another, float64[n, k]; NaN where it is not known.

    Notes
    -----
    The last minute (or the last 40 requests, if they reach further) is doubled again and again, as long as the older
    half has the same mean of every feature, by Welch's z.
    """
    if arrived_s.size < 2 * LEAST_REQUESTS:
        return start_s
    kept_s = min(-FIRST_S, float(arrived_s[-LEAST_REQUESTS]))
    while kept_s > start_s:
        older_s = max(2.0 * kept_s, start_s)
        recent = features[arrived_s > kept_s]
        older = features[(arrived_s > older_s) & (arrived_s <= kept_s)]
        if _largest_z(recent, older) > GATE:
            return kept_s
        kept_s = older_s
    return start_s


def _largest_z(recent: FloatArray, older: FloatArray) -> float:
    """Over all features known for at least 20 requests on both sides; 0 if there is none."""
    largest = 0.0
    for column in range(recent.shape[1]):
        one, two = (side[~np.isnan(side[:, column]), column] for side in (recent, older))
        if min(one.size, two.size) < LEAST_REQUESTS // 2:
            continue
        spread = one.var(ddof=1) / one.size + two.var(ddof=1) / two.size
        apart = abs(float(one.mean() - two.mean()))
        if apart > 1e-9:
            largest = max(largest, apart / float(np.sqrt(spread + 1e-12)))
    return largest
