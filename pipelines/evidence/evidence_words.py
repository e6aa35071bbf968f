"""Values of a chain as people read them. Decides nothing.

Law: what is not known reads as a dash, never as a number.
"""

from collections.abc import Iterable

from schemas.evidence import ClassChange, Evidence, EvidenceLevel, Fact, SimulatedEffect
from twin.evidence.class_guide import UNKNOWN, title_of

DASH = "–"
LEVELS: tuple[EvidenceLevel, ...] = ("request", "engine", "kernel")


def number(value: float | None, unit: str = "") -> str:
    """A value with three or four digits.

    >>> number(68.059, "ms"), number(14956.0), number(None, "ms")
    ('68.1 ms', '14,956', '–')
    """
    if value is None:
        return DASH
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{digits} {unit}".rstrip()


def percent(ratio: float | None) -> str:
    """A change.

    >>> percent(-0.42), percent(0.004), percent(13.6), percent(None)
    ('-42 %', '+0.4 %', '15 times', '–')
    """
    if ratio is None:
        return DASH
    if ratio >= 3.0:
        return f"{ratio + 1.0:.0f} times"
    return f"{ratio * 100:+.0f} %" if abs(ratio) >= 0.1 else f"{ratio * 100:+.1f} %"


def interval(low: float | None, high: float | None) -> str:
    """An interval of a change; a dash without one.

    >>> interval(-0.477, -0.358)
    '-48 % .. -36 %'
    """
    return DASH if low is None or high is None else f"{percent(low)} .. {percent(high)}"


def share(ratio: float | None) -> str:
    """A share of a whole."""
    return DASH if ratio is None else f"{ratio * 100:.0f} %"


def changed(fact: Fact) -> str:
    """Whether a figure changed."""
    if fact.changed is None:
        return "not decidable"
    return "yes" if fact.changed else "within noise"


def fact_name(fact: Fact) -> str:
    """A figure with its group."""
    statistic = f" ({fact.statistic})" if fact.statistic and fact.statistic not in fact.name else ""
    return f"{fact.name}{statistic}" + (f", {fact.group}" if fact.group else "")


def class_name(row: ClassChange) -> str:
    """A class for people; a fitted launch class is all that a step costs whatever is in it."""
    if row.origin == "fitted" and row.span_class == "launch":
        return "fixed per step (launch, runtime)"
    if row.origin == "fitted" and row.span_class == UNKNOWN:
        return "beside the fit"
    return title_of(row.span_class)


def compared(found: Evidence) -> list[SimulatedEffect]:
    """Simulated effects with something measured beside them, of the hypothesis that was judged."""
    judged = [each for each in found.hypotheses if any(e.verdict != "not measured" for e in each.effects)]
    return [effect for effect in (judged[-1].effects if judged else ()) if effect.observed_ratio is not None]


def varied(found: Evidence) -> list[SimulatedEffect]:
    """Simulated effects of settings that were not measured."""
    return [effect for each in found.hypotheses for effect in each.effects if effect.observed_ratio is None]


def effect_name(effect: SimulatedEffect) -> str:
    """What an effect is of."""
    return effect.metric + (f", {effect.group}" if effect.group else "")


def noise_text(found: Evidence) -> str:
    """What counts as a change."""
    floor = found.noise_floor_ratio
    if floor is None:
        return ""
    return (
        f"A change counts if its 95 % interval leaves out zero and it is over {share(floor)}, what two runs of one"
        " service stray by."
    )


def joined(words: Iterable[str]) -> str:
    """A list in one line, a dash for none."""
    return ", ".join(words) or DASH
