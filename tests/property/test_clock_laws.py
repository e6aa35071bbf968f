"""Laws of event time: order of arrival does not matter within the lateness bound; a future clock moves nothing."""

from hypothesis import given, settings
from hypothesis import strategies as st

from twin.clock import MAX_JUMP_US, EventClock, Position, ReorderBuffer, Unit

START_US = 1_796_052_000_000_000
LATENESS_US = 1_000_000


def unit(at_us: int, offset: int, topic: str = "requests") -> Unit:
    return Unit(at_us=at_us, position=Position(topic, 0, offset), record=None)


def run(units: list[Unit], topics: tuple[str, ...] = ("requests",)) -> tuple[list[Unit], int]:
    clock = EventClock(dict.fromkeys(topics, LATENESS_US))
    buffer = ReorderBuffer()
    released: list[Unit] = []
    late = 0
    for each in units:
        accepted, _ = clock.admit(each)
        for one in accepted:
            if clock.is_late(one):
                late += 1
            else:
                buffer.push(one)
        released.extend(buffer.pop_until(clock.advance()))
    return released, late


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 30_000_000), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_order_of_arrival_does_not_matter_within_the_lateness(offsets_us: list[int], random: object) -> None:
    in_order = [unit(START_US + at, i) for i, at in enumerate(sorted(offsets_us))]
    shuffled = sorted(in_order, key=lambda u: u.at_us + random.randint(0, LATENESS_US - 1))  # type: ignore[attr-defined]
    expected, _ = run(in_order)
    released, late = run(shuffled)
    assert late == 0
    assert released == expected[: len(released)] or expected == released[: len(expected)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5_000_000), min_size=1, max_size=60))
def test_the_watermark_never_falls_and_what_is_released_is_in_order(offsets_us: list[int]) -> None:
    clock = EventClock({"requests": LATENESS_US})
    last = 0
    for i, at in enumerate(offsets_us):
        clock.admit(unit(START_US + at, i))
        assert clock.advance() >= last
        last = clock.watermark_us
    released, _ = run([unit(START_US + at, i) for i, at in enumerate(offsets_us)])
    assert [u.order() for u in released] == sorted(u.order() for u in released)


def test_one_clock_in_the_future_moves_nothing() -> None:
    clock = EventClock({"requests": LATENESS_US})
    clock.admit(unit(START_US, 0))
    before = clock.advance()
    day_ahead = unit(START_US + 86_400_000_000, 1)
    assert clock.admit(day_ahead) == ([], [])
    assert clock.advance() == before
    honest = [unit(START_US + i, 2 + i) for i in range(10)]
    for each in honest:
        accepted, refused = clock.admit(each)
        assert accepted == [each]
        assert not clock.is_late(each)
        assert refused == ([day_ahead] if each is honest[0] else [])


def test_three_units_that_agree_confirm_a_jump() -> None:
    clock = EventClock({"requests": LATENESS_US})
    clock.admit(unit(START_US, 0))
    later = [unit(START_US + 2 * MAX_JUMP_US + i, 1 + i) for i in range(3)]
    assert [clock.admit(each)[0] for each in later] == [[], [], later]
    assert clock.advance() == later[0].at_us - LATENESS_US


def test_a_slow_source_holds_the_watermark_and_a_tick_lets_go() -> None:
    clock = EventClock({"requests": LATENESS_US, "steps": LATENESS_US})
    clock.admit(unit(START_US, 0))
    assert clock.advance() == 0
    clock.tick(START_US)
    assert clock.advance() == START_US
