"""The outlook: the rate of arrivals two hours ahead, with its interval, against what the engines can carry.

From the rate forecast alone: no event is simulated, and nothing is proposed. Laws: low <= value <= high; a higher
watermark is never reached earlier; the upper side reaches a watermark no later than the expected rate does.
"""

import math
from collections import Counter
from collections.abc import Sequence

from schemas.forecasts import Estimate, Outlook, Reach
from twin.job import EngineSetup
from twin.outlook_widths import LEVEL, FrozenWidths
from twin.traffic.forecast import RateForecast

SPAN_S = 7200.0
STEP_S = 300.0
STEPS = round(SPAN_S / STEP_S)
WATERMARKS = (0.7, 0.85, 1.0)
US_PER_S = 1_000_000
MAX_PER_S = 1e9
LEAST_REQUESTS = 0.5
"""A low end of fewer requests than that in a step is none: a rate of 0 is no surprise then."""


def outlook(
    rate: RateForecast,
    as_of_us: int,
    ceiling: Estimate | None = None,
    engines: Sequence[EngineSetup] = (),
    widths: FrozenWidths = FrozenWidths(),  # noqa: B008 - frozen
) -> Outlook:
    """Mean rate of each `STEP_S` up to `SPAN_S`, and when it reaches `WATERMARKS` of the ceiling.

    Intervals hold the mean rate of each step at `LEVEL`; `widths` make that so. Engines of one kind of hardware carry
    their part of the ceiling, and of the traffic, in proportion to their number: each kind is told apart, with how many
    of it there are. No `reaches` without a ceiling.

    >>> found = outlook(RateForecast.steady(2.0), 1_800_000_000_000_000)
    >>> len(found.value_per_s), found.value_per_s[0]
    (24, 2.0)
    """
    steps = [_step(rate, number, widths) for number in range(STEPS)]
    kinds = Counter(setup.config.hardware for setup in engines if setup.available_until_s > 0.0)
    limit = None if ceiling is None or ceiling.value <= 0.0 else ceiling.value
    return Outlook(
        step_s=STEP_S,
        value_per_s=tuple(value for _, value, _ in steps),
        low_per_s=tuple(low for low, _, _ in steps),
        high_per_s=tuple(high for _, _, high in steps),
        ceiling_requests_per_s=limit,
        reaches=()
        if limit is None
        else tuple(
            Reach(
                watermark_ratio=ratio,
                device=device,
                engines=count,
                reaches_at_us=_reached(as_of_us, [value for _, value, _ in steps], ratio * limit),
                earliest_us=_reached(as_of_us, [high for _, _, high in steps], ratio * limit),
            )
            for device, count in sorted(kinds.items())
            for ratio in WATERMARKS
        ),
    )


def _step(rate: RateForecast, number: int, widths: FrozenWidths) -> tuple[float, float, float]:
    """Low, expected and high mean rate of one step: doubt of the level and counting noise, widened as errors told."""
    begin_s, end_s = number * STEP_S, (number + 1) * STEP_S
    mean = max(rate.expected_by(end_s) - rate.expected_by(begin_s), 0.0) / STEP_S
    if mean <= 0.0:
        return 0.0, 0.0, -math.log1p(-LEVEL) / STEP_S
    counting = rate.dispersion / (mean * STEP_S)
    sigma = math.hypot(rate.sigma_at(end_s), math.sqrt(math.log1p(counting)))
    low, high = widths.interval(number, mean, sigma)
    low = low if low * STEP_S >= LEAST_REQUESTS else 0.0
    return low, min(mean, MAX_PER_S), min(high, MAX_PER_S)


def _reached(as_of_us: int, rates_per_s: Sequence[float], limit_per_s: float) -> int | None:
    """The middle of the first step whose rate is at the limit; `as_of` if it is the first step of all."""
    for number, value in enumerate(rates_per_s):
        if value >= limit_per_s:
            return as_of_us + (round((number + 0.5) * STEP_S * US_PER_S) if number else 0)
    return None
