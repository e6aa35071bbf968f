"""Whether breaches were foreseen: every breach is exactly one of foreseen, late and missed."""

from hypothesis import given
from hypothesis import strategies as st

from pipelines.web.foresight import Foresight, Span, breaches, foresight, warnings
from schemas.alerts import Alert, AlertState

S = 1_000_000
T0_US = 1_800_000_000 * S


def span(start_s: float, end_s: float) -> Span:
    return Span(T0_US + round(start_s * S), T0_US + round(end_s * S))


def alert(at_s: float, state: AlertState, name: str = "a", kind: str = "slo_risk") -> Alert:
    at_us = T0_US + round(at_s * S)
    return Alert(deployment="d", at_us=at_us, alert_id=name, kind=kind, state=state, cause="", onset_us=at_us)  # type: ignore[arg-type]


def seen(*values: float | None) -> list[tuple[int, float | None]]:
    return [(T0_US + 5 * S * number, value) for number, value in enumerate(values)]


def test_stretches_over_the_limit_are_breaches_if_they_last() -> None:
    assert breaches(seen(1, 3, 3, 3, 3, 3, 1), 2.0) == [span(5, 25)]
    assert breaches(seen(1, 3, 3, 3, 1), 2.0) == []
    assert breaches(seen(3, 3, None, 1, 3, 3, 3), 2.0) == [span(0, 30)]  # apart by less than the least distance
    assert breaches(seen(2, 2, 2, 2, 2, 2), 2.0) == []


def test_a_warning_lasts_from_firing_to_resolved() -> None:
    told = [alert(1, "suspected"), alert(5, "firing"), alert(9, "resolved"), alert(20, "firing", "b")]
    told.append(alert(2, "firing", "c", kind="cost_drift"))
    assert warnings(told, T0_US + 50 * S) == [span(5, 9), span(20, 50)]


def test_foreseen_late_missed_and_needless() -> None:
    now_us = T0_US + 5_000 * S
    happened = [span(100, 200), span(1000, 1100), span(2000, 2100)]
    warned = [span(70, 210), span(1020, 1110), span(3000, 3100)]
    assert foresight(happened, warned, now_us) == Foresight(1, 1, 1, 1, 5.0)
    assert foresight([], [], now_us) == Foresight()
    assert foresight([], [span(0, 10)], T0_US + 20 * S).needless == 0  # a breach may still follow


spans = st.lists(st.tuples(st.integers(0, 3000), st.integers(20, 300)), max_size=6).map(
    lambda pairs: sorted((span(start, start + long) for start, long in pairs), key=lambda each: each.start_us)
)


@given(spans, spans)
def test_every_breach_is_exactly_one_of_the_three(happened: list[Span], warned: list[Span]) -> None:
    found = foresight(happened, warned, T0_US + 10_000 * S)
    assert found.foreseen + found.late + found.missed == len(happened)
    assert found.needless <= len(warned)
    assert (found.lead_s is None) == (found.foreseen + found.late == 0)
