"""Offsets of ticks spread a fleet over the period, and are the same on every machine."""

import numpy as np

from twin.settings import CoreSettings

NAMES = [f"deployment-{number}" for number in range(200)]


def test_offsets_spread_over_the_period() -> None:
    settings = CoreSettings(staggered=True)
    offsets_s = np.array([settings.tick_offset_us(name) for name in NAMES]) / 1e6
    assert offsets_s.min() >= 0.0
    assert offsets_s.max() < settings.period_s
    assert np.histogram(offsets_s, bins=5, range=(0.0, settings.period_s))[0].min() > 20


def test_without_staggering_ticks_are_multiples_of_the_period() -> None:
    assert {CoreSettings().tick_offset_us(name) for name in NAMES} == {0}


def test_an_offset_is_the_same_everywhere() -> None:
    assert CoreSettings(staggered=True).tick_offset_us("llama-70b") == 3_489_000
