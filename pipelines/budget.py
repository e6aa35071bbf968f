"""How much to simulate per tick on a machine of measured speed. Measures nothing and changes no running forecast.

The work is chosen once, at start, and is part of every forecast's lineage; no clock cuts a simulation short.
Law: a faster machine or a longer period never gets less work; there is always some.
"""

from dataclasses import replace

from twin.settings import CoreSettings
from twin.traffic.scenarios import BASELINE

SHARE = 0.4
"""Of the wall time between two ticks; the rest is for learning, reading and the other processes."""
BEYOND_S = 60.0
"""Simulated arrivals go on for so long after the longest horizon."""
STEPS = ((4, 24), (4, 16), (3, 12), (2, 8), (2, 6), (1, 4), (1, 2))
"""Coarse and fine replications, from what is wanted to the least."""


def affordable(settings: CoreSettings, *, requests_per_s: float, simulated_per_s: float, wall_s: float) -> CoreSettings:
    """The settings with as much work as fits.

    `requests_per_s` is the traffic, `simulated_per_s` how many requests this machine simulates in a second, `wall_s`
    the wall time between two ticks. Scenarios beside the baseline go before replications fall to the least.

    >>> affordable(CoreSettings(), requests_per_s=10, simulated_per_s=1e7, wall_s=10).fine_replications
    24
    >>> affordable(CoreSettings(), requests_per_s=10, simulated_per_s=1e4, wall_s=1).fine_replications
    2
    """
    budget = SHARE * wall_s * simulated_per_s
    per_run = max(requests_per_s, 0.1) * (settings.horizons_s[-1] + BEYOND_S)
    choices = [(step, settings.scenarios) for step in STEPS[:4]] + [(step, (BASELINE,)) for step in STEPS[2:]]
    for (coarse, fine), scenarios in choices:
        if coarse <= settings.coarse_replications and fine <= settings.fine_replications:
            work = per_run * (coarse + fine) * len(scenarios)
            if work <= budget:
                return replace(settings, coarse_replications=coarse, fine_replications=fine, scenarios=scenarios)
    coarse, fine = STEPS[-1]
    return replace(settings, coarse_replications=coarse, fine_replications=fine, scenarios=(BASELINE,))
