"""Whether breaches of the target were foreseen: what happened against the alerts about it, in what the page holds.

Law: every breach is exactly one of foreseen, late and missed; an alert that no breach follows is a needless one, once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from pipelines.board import US_PER_S
from schemas.alerts import Alert

LEAST_BREACH_US = 20 * US_PER_S
"""Shorter ones are not counted, nor is their foresight."""
APART_US = 30 * US_PER_S
"""Breaches closer than this are one."""
FOLLOWS_US = 180 * US_PER_S
"""An alert that is over was needless if no breach began by then: the longest horizon and its window's closing."""


@dataclass(frozen=True, slots=True)
class Foresight:
    """Counts, and the median lead over foreseen and late breaches, seconds (below 0: after it began)."""

    foreseen: int = 0
    late: int = 0
    missed: int = 0
    needless: int = 0
    lead_s: float | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Event times, microseconds."""

    start_us: int
    end_us: int


def breaches(seen: Sequence[tuple[int, float | None]], limit_s: float) -> list[Span]:
    """Stretches over the limit, from the observed quantile at window ends in order; None tells nothing."""
    found: list[Span] = []
    for at_us, value_s in seen:
        if value_s is None or value_s <= limit_s:
            continue
        if found and at_us - found[-1].end_us <= APART_US:
            found[-1] = Span(found[-1].start_us, at_us)
        else:
            found.append(Span(at_us, at_us))
    return [span for span in found if span.end_us - span.start_us >= LEAST_BREACH_US]


def warnings(alerts: Iterable[Alert], now_us: int) -> list[Span]:
    """From firing to resolved, of risk alerts; one that is not resolved goes on."""
    begun: dict[str, int] = {}
    found: list[Span] = []
    for alert in alerts:
        if alert.kind != "slo_risk":
            continue
        if alert.state == "firing":
            begun.setdefault(alert.alert_id, alert.at_us)
        elif alert.state == "resolved" and alert.alert_id in begun:
            found.append(Span(begun.pop(alert.alert_id), alert.at_us))
    return sorted([*found, *(Span(at_us, now_us) for at_us in begun.values())], key=lambda span: span.start_us)


def foresight(happened: Sequence[Span], warned: Sequence[Span], now_us: int) -> Foresight:
    """The account of breaches and warnings."""
    leads: list[float] = []
    missed = 0
    used: set[int] = set()
    for breach in happened:
        about = [
            number
            for number, span in enumerate(warned)
            if span.start_us <= breach.end_us and span.end_us >= breach.start_us - APART_US
        ]
        used.update(about)
        if about:
            leads.append((breach.start_us - warned[about[0]].start_us) / US_PER_S)
        else:
            missed += 1
    needless = sum(
        number not in used
        and now_us > span.end_us + FOLLOWS_US
        and not any(span.start_us <= breach.start_us <= span.end_us + FOLLOWS_US for breach in happened)
        for number, span in enumerate(warned)
    )
    late = sum(lead_s < 0 for lead_s in leads)
    return Foresight(len(leads) - late, late, missed, needless, median(leads) if leads else None)
