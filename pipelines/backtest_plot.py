"""What a backtest forecast and what then happened, as an SVG. Runs nothing and judges nothing.

Law: equal runs give equal bytes; a window without an observed value has a band and no dot.
"""

from pipelines.backtest import Backtest
from pipelines.picture_svg import Band, Drawing, Mark, svg
from schemas.slos import SloTarget
from twin.traffic.scenarios import BASELINE

US_PER_S = 1_000_000
DEFAULT = ("ttft_s", 0.95)


def plot_of(run: Backtest, slos: tuple[SloTarget, ...] = ()) -> str:
    """The first target's metric and quantile (TTFT P95 without one) at the shortest horizon, fine forecasts only.

    A band stands at the end of its window; marks are the first alerts that fired.
    """
    target = slos[0] if slos else None
    wanted = DEFAULT if target is None else (target.metric, target.quantile)
    ahead_s = run.core.settings.horizons_s[0]

    def at_s(at_us: float) -> float:
        return (at_us - run.recording.t0_us) / US_PER_S

    bands = bands_of(run, wanted, ahead_s)
    dots = tuple(
        (at_s(score.as_of_us) + ahead_s, cell.observed_s)
        for score in run.scores
        if score.phase == "fine" and score.horizon_s == ahead_s
        for cell in score.cells
        if (cell.metric, cell.quantile) == wanted and cell.observed_s is not None
    )
    name = f"{wanted[0].removesuffix('_s').upper()} P{wanted[1] * 100:g}"
    covered = f"{len(bands)} forecasts, {len(dots)} windows with what came of them"
    return svg(
        Drawing(
            title=f"{run.recording.name}, {name}: forecast {ahead_s:g} s ahead, and what happened",
            caption=f"{name} of {run.recording.name}: {covered}",
            bands=bands,
            dots=dots,
            limit_s=None if target is None else target.limit_s,
            marks=_marks(run),
            span_s=max(at_s(run.recording.events[-1].at_us), ahead_s, *(band.at_s for band in bands)),
            ahead_s=ahead_s,
        )
    )


def bands_of(run: Backtest, wanted: tuple[str, float], ahead_s: float) -> tuple[Band, ...]:
    """Fine forecasts of a metric's quantile at one horizon, seconds, at the ends of their windows."""
    return tuple(
        Band((forecast.as_of_us - run.recording.t0_us) / US_PER_S + ahead_s, cell.value_s, cell.low_s, cell.high_s)
        for forecast in run.forecasts
        if forecast.phase == "fine"
        for scenario in forecast.scenarios
        if scenario.scenario == BASELINE.name
        for horizon in scenario.horizons
        if horizon.horizon_s == ahead_s
        for cell in horizon.latencies
        if (cell.metric, cell.quantile) == wanted
    )


def _marks(run: Backtest) -> tuple[Mark, ...]:
    """The first alerts that fired, each once: of risk in the colour of what was foreseen, of drift in another."""
    found: dict[str, Mark] = {}
    for alert in run.alerts:
        if alert.state == "firing" and alert.alert_id not in found:
            fired_s = (alert.at_us - run.recording.t0_us) / US_PER_S
            kind = "foreseen" if alert.kind == "slo_risk" else "reactive"
            found[alert.alert_id] = Mark(fired_s, f"{alert.kind} +{fired_s:.0f} s", kind)
    return tuple(found.values())
