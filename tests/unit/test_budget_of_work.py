"""Work per tick: what fits, never more than asked for, more where there is more time, always some."""

from hypothesis import given
from hypothesis import strategies as st

from pipelines.budget import BEYOND_S, SHARE, Pace, affordable
from twin.settings import CoreSettings

SETTINGS = CoreSettings()
RATES = st.floats(0.01, 1e4)
PACES = st.builds(Pace, st.floats(1e2, 1e8), st.floats(0.0, 100.0))


def work(settings: CoreSettings, pace: Pace, rate: float) -> float:
    runs = (settings.coarse_replications + settings.fine_replications) * len(settings.scenarios)
    per_run = max(rate, 0.1) * (settings.horizons_s[-1] + BEYOND_S)
    return runs * per_run / pace.simulated_per_s + (pace.insight_s * max(rate, 0.1) / 10 if settings.insight else 0.0)


@given(PACES, RATES, st.floats(0.01, 100.0))
def test_what_is_chosen_fits_or_is_the_least(pace: Pace, rate: float, wall_s: float) -> None:
    chosen = affordable(SETTINGS, pace, requests_per_s=rate, wall_s=wall_s)
    least = chosen.coarse_replications == 1 and chosen.fine_replications == 2 and not chosen.insight
    assert least or work(chosen, pace, rate) <= SHARE * wall_s
    assert 1 <= chosen.coarse_replications <= SETTINGS.coarse_replications
    assert 1 <= chosen.fine_replications <= SETTINGS.fine_replications


@given(PACES, RATES, st.floats(0.01, 100.0), st.floats(1.0, 10.0))
def test_more_time_never_gives_less_work(pace: Pace, rate: float, wall_s: float, factor: float) -> None:
    short = affordable(SETTINGS, pace, requests_per_s=rate, wall_s=wall_s)
    longer = affordable(SETTINGS, pace, requests_per_s=rate, wall_s=wall_s * factor)
    assert work(longer, pace, rate) >= work(short, pace, rate)


def test_never_more_than_the_settings_ask_for() -> None:
    asked = CoreSettings(coarse_replications=1, fine_replications=3, insight=False)
    chosen = affordable(asked, Pace(1e9, 0.0), requests_per_s=1.0, wall_s=100.0)
    assert chosen == asked
