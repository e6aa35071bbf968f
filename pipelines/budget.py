"""How much to simulate per tick on a machine of measured speed. Measures nothing and changes no running forecast.

The work is chosen once, at start, and is part of every forecast's lineage; no clock cuts a simulation short.
Law: a faster machine or a longer period never gets less work; there is always some.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from twin.settings import CoreSettings
from twin.traffic.scenarios import BASELINE, Scenario

SHARE = 0.4
"""Of the wall time between two ticks; the rest is for learning, reading and the other processes."""
BEYOND_S = 60.0
"""Simulated arrivals go on for so long after the longest horizon."""
STEPS = ((4, 30), (4, 16), (3, 12), (2, 8), (2, 6), (1, 4), (1, 2))
"""Coarse and fine replications, from what is wanted to the least."""
RICH = 3
"""As many of `STEPS`, from the first, may come with insight and with every scenario."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What this machine does: simulated requests per second, and seconds for the insight of a tick at 10 requests/s."""

    simulated_per_s: float
    insight_s: float


def affordable(settings: CoreSettings, pace: Pace, *, requests_per_s: float, wall_s: float) -> CoreSettings:
    """The settings with as much work as fits into `wall_s`, the wall time between two ticks, at this traffic.

    Insight goes first, then scenarios beside the baseline, then replications.

    >>> fast = Pace(simulated_per_s=1e7, insight_s=0.01)
    >>> affordable(CoreSettings(), fast, requests_per_s=10, wall_s=10).fine_replications
    30
    >>> affordable(CoreSettings(), Pace(1e4, 20.0), requests_per_s=10, wall_s=1).fine_replications
    2
    """
    rate = max(requests_per_s, 0.1)
    per_run_s = rate * (settings.horizons_s[-1] + BEYOND_S) / pace.simulated_per_s
    for coarse, fine, scenarios, insight in _choices(settings):
        needed_s = per_run_s * (coarse + fine) * len(scenarios) + (pace.insight_s * rate / 10.0 if insight else 0.0)
        if needed_s <= SHARE * wall_s:
            break
    return replace(settings, coarse_replications=coarse, fine_replications=fine, scenarios=scenarios, insight=insight)


def _choices(settings: CoreSettings) -> Iterator[tuple[int, int, tuple[Scenario, ...], bool]]:
    """From the most work to the least, never more than the settings ask for."""
    within = [
        (min(coarse, settings.coarse_replications), min(fine, settings.fine_replications)) for coarse, fine in STEPS
    ]
    rich = within[:RICH]
    if settings.insight:
        yield from ((coarse, fine, settings.scenarios, True) for coarse, fine in rich)
    yield from ((coarse, fine, settings.scenarios, False) for coarse, fine in rich)
    yield from ((coarse, fine, (BASELINE,), False) for coarse, fine in within[RICH - 1 :])
