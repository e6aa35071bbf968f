"""A case in words and tables, for the page and for Markdown alike. Draws nothing and decides nothing.

Law: a number that is not known is a dash, never 0; times are UTC, with the seconds from the window's start beside them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipelines.archive.moments import utc
from pipelines.incident.case import Case
from pipelines.incident.findings import LIKELY_RATIO, SPAN_S, Series, arrival_series, lead_s, risk_of
from pipelines.incident.observing import US_PER_S
from pipelines.incident.remedies import Remedy
from pipelines.incident.timeline import NAMES, authority_spans, horizon_near, latency_at, seconds
from schemas.alerts import Alert
from schemas.forecasts import Forecast
from schemas.slos import SloTarget
from twin.metrics import quantile

SHOWN_FORECASTS = 8
SHOWN_BOTTLENECKS = 6
SHOWN_BREACHES = 8
DASH = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a title; `intro` stands before, `note` after it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    intro: str = ""
    note: str = ""
    strong: tuple[int, ...] = ()
    """Numbers of rows that are the base of a comparison."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One of the few numbers at the top."""

    label: str
    value: str
    detail: str
    css: str = ""


def title(case: Case) -> str:
    """What happened, in one line."""
    breach = case.breach
    if breach is None:
        return f"{case.deployment}: no target was missed" if case.targets else f"{case.deployment}: no target is known"
    target = breach.target
    name = f"{NAMES[target.metric]} P{target.quantile * 100:g}"
    return f"{case.deployment}: {name} went over {target.limit_s:g} s at {clock(breach.broke_us)}"


def subtitle(case: Case) -> str:
    """Where and when."""
    span_s = (case.to_us - case.from_us) / US_PER_S
    return f"{case.source}, {utc(case.from_us)} to {utc(case.to_us)} ({span_s:g} s)"


def target_name(target: SloTarget) -> str:
    """A target in words."""
    some = f" of {target.traffic_class}" if target.traffic_class else ""
    return f"{NAMES[target.metric]} P{target.quantile * 100:g} at most {target.limit_s:g} s{some}"


def clock(at_us: int) -> str:
    """Time of day, UTC."""
    return utc(at_us)[11:19]


def when(case: Case, at_us: int | None) -> str:
    """Time of day and seconds from the window's start."""
    return DASH if at_us is None else f"{clock(at_us)} (+{seconds(case, at_us):.0f} s)"


def duration(value_s: float | None) -> str:
    """Seconds, with a sign that says before or after."""
    return DASH if value_s is None else f"{abs(value_s):.0f} s {'before' if value_s >= 0 else 'after'}"


def latency(value_s: float) -> str:
    """A latency as short as it can be read."""
    if math.isnan(value_s):
        return DASH
    if math.isinf(value_s):
        return "never"
    return f"{value_s * 1000:.0f} ms" if value_s < 1.0 else f"{value_s:.2f} s"


def facts(case: Case) -> list[Fact]:
    """The few numbers at the top of the page."""
    breach, foresight = case.breach, case.foresight
    inside = case.requests.arrived_us >= case.from_us
    found = [Fact("requests arrived", f"{int(inside.sum()):,}", f"{len(case.forecasts)} fine forecasts made")]
    if breach is None or foresight is None:
        return found
    lasted = lead_s(breach.broke_us, breach.recovered_us)
    how_long = "not met again in the window" if lasted is None else f"met again after {lasted:.0f} s"
    found.append(Fact("target missed", clock(breach.broke_us), how_long, "broke"))
    found.append(
        Fact("worst", latency(breach.worst_s), f"P{breach.target.quantile * 100:g} at {clock(breach.worst_us)}")
    )
    ahead = lead_s(foresight.fired_us, breach.broke_us)
    told = (
        "the risk alert never fired" if foresight.fired_us is None else f"risk alert fired {clock(foresight.fired_us)}"
    )
    found.append(Fact("could have been known", duration(ahead), told, "known"))
    over = lead_s(foresight.fired_us, foresight.trailing_us)
    alarm = f"it sees the miss at {clock(foresight.trailing_us)}" if foresight.trailing_us else "it never saw it"
    found.append(Fact(f"vs. a trailing {SPAN_S:g} s alarm", duration(over), alarm, "trailing"))
    return found


def tables(case: Case) -> list[Table]:
    """All tables that have something to tell, in the order of the page."""
    found = [
        _knowing(case),
        _targets(case),
        _forecasts(case),
        _drift(case),
        *_bottlenecks(case),
        _remedies(case),
        _proposals(case),
        _quality(case),
    ]
    return [table for table in found if table is not None]


def _knowing(case: Case) -> Table | None:
    breach, foresight = case.breach, case.foresight
    if breach is None or foresight is None:
        return None
    rows = (
        ("forecasts find the miss likely, and go on to", foresight.likely_us),
        ("risk alert fires", foresight.fired_us),
        (f"target missed: requests of the last {SPAN_S:g} s", breach.broke_us),
        (f"trailing {SPAN_S:g} s alarm: values known in the last {SPAN_S:g} s", foresight.trailing_us),
        ("target met again", breach.recovered_us),
    )
    return Table(
        title="When it could have been known",
        columns=("event", "time (UTC)", "before the miss", "before the trailing alarm"),
        rows=tuple(
            (
                name,
                when(case, at_us),
                _ahead(at_us, breach.broke_us),
                _ahead(at_us, foresight.trailing_us),
            )
            for name, at_us in rows
        ),
        note=f"Likely means a forecast probability of at least {LIKELY_RATIO:.0%}, at any horizon, without a break up "
        "to the miss. An alert that had resolved before the miss does not count. All of it is event time: a live "
        "worker adds the time that a forecast takes.",
        strong=(2,),
    )


def _ahead(at_us: int | None, later_us: int | None) -> str:
    lead = lead_s(at_us, later_us)
    return DASH if lead is None else f"{lead:+.0f} s"


def _targets(case: Case) -> Table | None:
    if not case.targets:
        return None
    rows, strong = [], []
    for target in case.targets:
        missed = [breach for breach in case.breaches if breach.target == target]
        if not missed:
            rows.append((target_name(target), "met", DASH, DASH, DASH))
        for breach in missed[:SHOWN_BREACHES]:
            if breach == case.breach:
                strong.append(len(rows))
            rows.append(
                (target_name(target), "missed", *_span(case, breach.broke_us, breach.recovered_us, breach.worst_s))
            )
    several = len(case.breaches) > 1
    note = f"{len(case.breaches)} times missed; this page is about the longest." if several else ""
    return Table(
        "Targets", ("target", "", "missed from", "met again", "worst"), tuple(rows), note=note, strong=tuple(strong)
    )


def _span(case: Case, begin_us: int, end_us: int | None, worst_s: float) -> tuple[str, str, str]:
    return when(case, begin_us), "not in the window" if end_us is None else when(case, end_us), latency(worst_s)


def _forecasts(case: Case) -> Table | None:
    """Forecasts around the breach, each beside what then came."""
    breach = case.breach
    if breach is None or not case.forecasts:
        return None
    target = breach.target
    series = arrival_series(case.requests, target.metric, target.quantile, case.from_us, case.to_us)
    ahead = [f for f in case.forecasts if f.as_of_us <= breach.broke_us][-SHOWN_FORECASTS:]
    rows = (_forecast_row(case, forecast, target, series) for forecast in ahead)
    name = NAMES[target.metric]
    return Table(
        title="The last forecasts before the miss",
        columns=(
            "made at",
            "risk",
            f"{name} over",
            "forecast",
            "90 % interval",
            "what came",
            "arrivals",
            "credibility",
        ),
        rows=tuple(row for row in rows if row),
        note=f"Forecasts of {name} P{target.quantile * 100:g}; risk is the highest probability over all horizons.",
    )


def _forecast_row(case: Case, forecast: Forecast, target: SloTarget, series: Series) -> tuple[str, ...]:
    """One forecast; nothing where it says nothing of the target."""
    horizon = horizon_near(forecast)
    estimate = None if horizon is None else latency_at(horizon, target.metric, target.quantile)
    if horizon is None or estimate is None:
        return ()
    at = (forecast.as_of_us + round(horizon.horizon_s * US_PER_S) - case.from_us) // US_PER_S
    came = float(series.value[at]) if 0 <= at < series.value.size else math.nan
    return (
        when(case, forecast.as_of_us),
        f"{risk_of(forecast, target)[0]:.0%}",
        f"the next {horizon.horizon_s:g} s",
        latency(estimate.value_s),
        f"{latency(estimate.low_s)} to {latency(estimate.high_s)}",
        latency(came),
        f"{horizon.arrivals_per_s.value:.1f} /s",
        forecast.credibility.level,
    )


def _drift(case: Case) -> Table:
    kinds = ("cost_drift", "traffic_drift", "forecast_drift")
    by_id: dict[str, list[Alert]] = {}
    for alert in case.alerts:
        if alert.kind in kinds:
            by_id.setdefault(alert.alert_id, []).append(alert)
    rows = []
    for alerts in by_id.values():
        last = alerts[-1]
        states = {alert.state: alert.at_us for alert in alerts}
        effect = DASH if last.effect_ratio is None else f"x{last.effect_ratio:.2f}"
        moments = (when(case, states.get("firing")), when(case, states.get("resolved")))
        rows.append((last.kind.replace("_", " "), last.cause, when(case, last.onset_us), *moments, effect))
    return Table(
        title="Drift",
        columns=("kind", "cause", "onset", "fired", "resolved", "size"),
        rows=tuple(rows),
        intro=""
        if rows
        else "No drift alert in this window: costs, traffic and forecast errors kept their distribution.",
    )


def _bottlenecks(case: Case) -> Iterator[Table]:
    for number, phase in enumerate(case.phases):
        rows = tuple(
            (
                each.name.replace("_", " "),
                each.kind,
                f"{each.ttft_p95_change_ratio:+.1%}",
                f"{each.low_ratio:+.1%} to {each.high_ratio:+.1%}",
                f"{each.tpot_p95_change_ratio:+.1%}",
            )
            for each in phase.bottlenecks[:SHOWN_BOTTLENECKS]
        )
        yield Table(
            title=f"Bottlenecks {phase.name}: {when(case, phase.at_us)}",
            columns=("10 % cheaper, or 10 % more of it", "kind", "TTFT P95", "90 % interval", "TPOT P95"),
            rows=rows,
            intro="" if rows else "The forecast of this moment ranks none: nothing was expected to finish.",
            note="Ranked by effect on the forecast, on the same random numbers." if not number else "",
        )


def _remedies(case: Case) -> Table | None:
    if not case.remedies or case.breach is None or case.remedies_us is None:
        return None
    name = f"{NAMES[case.breach.target.metric]} P{case.breach.target.quantile * 100:g}"
    rows = tuple(_remedy_row(each) for each in case.remedies)
    return Table(
        title="What each action would have done",
        columns=("action", "risk", name, "90 % interval", "goodput", f"{name} in hindsight", "over the limit"),
        rows=rows,
        intro=f"Risk, {name} and goodput are as forecast at {when(case, case.remedies_us)}, over the longest horizon, "
        "each begun at once, in the recorded state. In hindsight: the requests that really came, through such engines "
        "from the start of the window, with the costs known at that moment; of those that arrived while the target was "
        "missed.",
        note=f"{_fidelity(case)} Risk here is the plain share of simulated futures; that of a forecast is calibrated. "
        "No hindsight where the effect depends on when it is done.",
        strong=tuple(i for i, each in enumerate(case.remedies) if each.is_nothing),
    )


def _remedy_row(remedy: Remedy) -> tuple[str, ...]:
    expected, hindsight = remedy.expected, remedy.hindsight
    ahead: tuple[str, ...] = (DASH,) * 4
    if expected is not None:
        ahead = (
            f"{expected.breach_probability:.0%}",
            latency(expected.value_s),
            f"{latency(expected.low_s)} to {latency(expected.high_s)}",
            f"{expected.goodput_requests_per_s:.1f} /s",
        )
    back = (DASH, DASH) if hindsight is None else (latency(hindsight.value_s), f"{hindsight.missed_ratio:.0%}")
    return (f"{remedy.name} ({remedy.note})" if remedy.note else remedy.name, *ahead, *back)


def _fidelity(case: Case) -> str:
    """How near the twin comes to what was recorded, doing nothing."""
    nothing = next((each for each in case.remedies if each.is_nothing), None)
    if case.breach is None or nothing is None or nothing.hindsight is None:
        return ""
    recorded = recorded_in_breach(case)
    if recorded is None:
        return ""
    return f"Recorded: {latency(recorded)}; the twin doing nothing: {latency(nothing.hindsight.value_s)}."


def recorded_in_breach(case: Case) -> float | None:
    """The target's quantile over all requests that arrived while it was missed."""
    breach = case.breach
    if breach is None:
        return None
    end_us = case.to_us if breach.recovered_us is None else breach.recovered_us
    inside = (case.requests.arrived_us >= breach.broke_us) & (case.requests.arrived_us < end_us)
    value = quantile(case.requests.latencies.of(breach.target.metric)[inside], breach.target.quantile)
    return None if math.isnan(value) else value


def _proposals(case: Case) -> Table | None:
    if not case.proposals:
        return None
    rows = tuple((when(case, at_us), text) for at_us, text in case.proposals[:20])
    more = len(case.proposals) - len(rows)
    return Table("What the twin proposed", ("at", "proposal"), rows, note=f"and {more} more" if more > 0 else "")


def _quality(case: Case) -> Table | None:
    cells = [cell for each in case.scores if not each.intervened for cell in each.cells]
    if not cells:
        return None
    rows = []
    for horizon_s in sorted({each.horizon_s for each in case.scores}):
        some = [c for each in case.scores if each.horizon_s == horizon_s and not each.intervened for c in each.cells]
        pairs = [(c.loss_s, c.persistence_loss_s) for c in some if c.persistence_loss_s is not None]
        against = sum(loss for _, loss in pairs)
        skill = f"{1 - sum(loss for loss, _ in pairs) / against:+.0%}" if against > 0 else DASH
        windows = sum(each.horizon_s == horizon_s and not each.intervened for each in case.scores)
        covered = sum(c.covered for c in some) / len(some) if some else math.nan
        rows.append((f"{horizon_s:g} s", str(windows), f"{covered:.0%}", skill))
    return Table(
        title="How good the forecasts of this window were",
        columns=("horizon", "windows scored", "inside the interval (stated: 90 %)", "skill against persistence"),
        rows=tuple(rows),
    )


def authority_words(case: Case) -> str:
    """Levels of authority over the window."""
    spans = authority_spans(case)
    return ", ".join(f"{level} from +{begin_s:.0f} s" for begin_s, _, level in spans)


def repeat_lines(case: Case) -> list[str]:
    """Offsets, digests and commands that give the same again."""
    lines = [f"{s.topic}[{s.partition}] offsets {s.first_offset} to {s.last_offset}" for s in case.spans]
    lines.append(f"content sha256 {case.digest}")
    if case.lineage is not None:
        lineage = case.lineage
        lines.append(
            f"twincast {lineage.twincast_version}, settings {lineage.settings_hash}, costs {lineage.costs_hash}, "
            f"seed {lineage.seed}"
        )
    return lines


def newest(forecasts: Sequence[Forecast], at_us: int) -> Forecast | None:
    """The last forecast made by then."""
    return next((each for each in reversed(forecasts) if each.as_of_us <= at_us), None)
