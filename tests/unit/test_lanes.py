"""Order of records across topics: what is known to come is waited for, nothing is lost, repeated or overtaken."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from pipelines.lanes import CROWDED_RECORDS, INPUT_NAMES, Lane
from pipelines.log import LogRecord, TopicPartition
from schemas.topics import CHANGES, ENGINES, REQUESTS, SLOS, STEPS, TICKS

A, B, C, TICK, FIRST = REQUESTS.name, STEPS.name, SLOS.name, TICKS.name, ENGINES.name


def record(topic: str, offset: int, at_ms: int) -> LogRecord:
    return LogRecord(topic, 0, offset, at_ms, None, b"", ())


def drain(lane: Lane) -> list[LogRecord]:
    out = []
    while (taken := lane.pop()) is not None:
        out.append(taken)
    return out


def test_a_topic_known_to_hold_more_is_waited_for() -> None:
    lane = Lane(0, {})
    lane.receive(record(A, 0, 50))
    assert lane.must_ask
    lane.learn_ends({A: 1, B: 1, C: 0})
    assert lane.pop() is None
    assert lane.awaited == (B,)
    lane.receive(record(B, 0, 10))
    assert [taken.topic for taken in drain(lane)] == [B, A]


def test_a_record_of_the_next_round_waits_for_its_ends() -> None:
    lane = Lane(0, {})
    lane.receive(record(A, 0, 50))
    lane.learn_ends({A: 1})
    assert len(drain(lane)) == 1
    lane.receive(record(A, 1, 60))
    assert lane.pop() is None
    assert lane.must_ask


def test_a_tick_waits_for_all_that_was_stored_before_it_whatever_the_clocks_say() -> None:
    lane = Lane(0, {})
    lane.receive(record(TICK, 0, 1))
    lane.learn_ends({TICK: 1, A: 2, B: 0})
    assert lane.awaited == (A,)
    lane.receive(record(A, 0, 10**12))
    lane.receive(record(A, 1, 5))
    assert [(taken.topic, taken.offset) for taken in drain(lane)] == [(A, 0), (A, 1), (TICK, 0)]


def test_one_wrong_clock_does_not_hold_its_topic_back() -> None:
    """The record with a timestamp far ahead goes with those behind it, so the other topic does not run away."""
    lane = Lane(0, {})
    for offset, at_ms in enumerate((10**12, 10, 30)):
        lane.receive(record(A, offset, at_ms))
    for offset, at_ms in enumerate((20, 40)):
        lane.receive(record(B, offset, at_ms))
    lane.learn_ends({A: 3, B: 2})
    assert [(taken.topic, taken.offset) for taken in drain(lane)] == [(A, 0), (A, 1), (B, 0), (A, 2), (B, 1)]


def test_a_gap_at_the_end_of_a_topic_can_be_passed_over() -> None:
    lane = Lane(0, {})
    lane.receive(record(A, 0, 50))
    lane.learn_ends({A: 1, B: 1})
    assert lane.give_up_waiting() == (B,)
    assert len(drain(lane)) == 1


def test_what_was_received_before_is_not_taken_again() -> None:
    lane = Lane(0, {A: 5})
    assert not lane.receive(record(A, 4, 1))
    assert lane.receive(record(A, 5, 1))
    assert not lane.receive(record(A, 5, 1))


def test_a_crowded_topic_pauses_and_an_awaited_one_never_does() -> None:
    lane = Lane(0, {})
    for offset in range(CROWDED_RECORDS + 1):
        lane.receive(record(A, offset, offset))
    lane.learn_ends({A: CROWDED_RECORDS + 1, B: 1})
    assert lane.crowded() == {TopicPartition(A, 0)}
    assert TopicPartition(B, 0) in lane.roomy()


@given(
    st.lists(st.tuples(st.sampled_from(INPUT_NAMES), st.integers(0, 10**6)), max_size=60),
    st.integers(0, 2**32),
)
def test_nothing_is_lost_and_nothing_overtakes_what_it_depends_on(stored: list[tuple[str, int]], seed: int) -> None:
    """Records are stored one after the other with any timestamps, and read in any interleaving meanwhile."""
    chance = Random(seed)
    log: dict[str, list[LogRecord]] = {topic: [] for topic in INPUT_NAMES}
    number: dict[tuple[str, int], int] = {}
    unread: dict[str, list[LogRecord]] = {topic: [] for topic in INPUT_NAMES}
    lane = Lane(0, {})
    out: list[LogRecord] = []

    def read_some() -> None:
        while any(unread.values()) and chance.random() < 0.7:
            topic = chance.choice([t for t in INPUT_NAMES if unread[t]])
            lane.receive(unread[topic].pop(0))
            work()

    def work() -> None:
        if lane.must_ask:
            lane.learn_ends({topic: len(records) for topic, records in log.items()})
        out.extend(drain(lane))

    for turn, (topic, at_ms) in enumerate(stored):
        stored_record = record(topic, len(log[topic]), at_ms)
        log[topic].append(stored_record)
        unread[topic].append(stored_record)
        number[topic, stored_record.offset] = turn
        read_some()
    while any(unread.values()) or lane.held:
        read_some()
        work()
    assert {t: [r for r in out if r.topic == t] for t in INPUT_NAMES} == log
    place = {(r.topic, r.offset): position for position, r in enumerate(out)}
    first = {t: {number[key]: place[key] for key in place if key[0] == t} for t in INPUT_NAMES}
    for topic in (ENGINES.name, SLOS.name, CHANGES.name):
        for turn, position in first[topic].items():
            later = [p for t in (A, B, TICK) for n, p in first[t].items() if n > turn]
            assert all(position < p for p in later)
    for turn, position in first[TICK].items():
        earlier = [p for t in (A, B) for n, p in first[t].items() if n < turn]
        assert all(p < position for p in earlier)
