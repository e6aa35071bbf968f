"""Order of records across topics: what is known to come is waited for, nothing is lost, repeated or overtaken."""

from hypothesis import given
from hypothesis import strategies as st

from pipelines.lanes import CROWDED_RECORDS, Lane
from pipelines.log import LogRecord, TopicPartition

TOPICS = ("a", "b", "c")


def record(topic: str, offset: int, at_ms: int) -> LogRecord:
    return LogRecord(topic, 0, offset, at_ms, None, b"", ())


def drain(lane: Lane) -> list[LogRecord]:
    out = []
    while (taken := lane.pop()) is not None:
        out.append(taken)
    return out


def test_a_topic_known_to_hold_more_is_waited_for() -> None:
    lane = Lane(0, TOPICS, {})
    lane.receive(record("a", 0, 50))
    assert lane.must_ask
    lane.learn_ends({"a": 1, "b": 1, "c": 0})
    assert lane.pop() is None
    assert lane.awaited == ("b",)
    lane.receive(record("b", 0, 10))
    assert [taken.topic for taken in drain(lane)] == ["b", "a"]


def test_a_record_beyond_the_known_ends_waits_for_new_ones() -> None:
    lane = Lane(0, TOPICS, {})
    lane.receive(record("a", 0, 50))
    lane.learn_ends({"a": 1, "b": 0, "c": 0})
    assert len(drain(lane)) == 1
    lane.receive(record("a", 1, 60))
    assert lane.pop() is None
    assert lane.must_ask


def test_a_gap_at_the_end_of_a_topic_can_be_passed_over() -> None:
    lane = Lane(0, TOPICS, {})
    lane.receive(record("a", 0, 50))
    lane.learn_ends({"a": 1, "b": 1, "c": 0})
    assert lane.give_up_waiting() == ("b",)
    assert len(drain(lane)) == 1


def test_what_was_received_before_is_not_taken_again() -> None:
    lane = Lane(0, TOPICS, {"a": 5})
    assert not lane.receive(record("a", 4, 1))
    assert lane.receive(record("a", 5, 1))
    assert not lane.receive(record("a", 5, 1))


def test_a_crowded_topic_pauses_and_an_awaited_one_never_does() -> None:
    lane = Lane(0, TOPICS, {})
    for offset in range(CROWDED_RECORDS + 1):
        lane.receive(record("a", offset, offset))
    lane.learn_ends({"a": CROWDED_RECORDS + 1, "b": 1, "c": 0})
    assert lane.crowded() == {TopicPartition("a", 0)}
    assert TopicPartition("b", 0) in lane.roomy()


@given(
    st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(0, 50)), max_size=40),
    st.randoms(use_true_random=False),
)
def test_all_that_was_stored_comes_out_in_time_order_whatever_order_the_topics_are_read_in(
    stored: list[tuple[str, int]], chance: object
) -> None:
    """Timestamps rise within a topic, as a producer's do; topics are read in any interleaving."""
    log: dict[str, list[LogRecord]] = {topic: [] for topic in TOPICS}
    now_ms = 0
    for topic, gap_ms in stored:
        now_ms += gap_ms
        log[topic].append(record(topic, len(log[topic]), now_ms))
    lane = Lane(0, TOPICS, {})
    ends = {topic: len(records) for topic, records in log.items()}
    unread = {topic: list(records) for topic, records in log.items()}
    out: list[LogRecord] = []
    while any(unread.values()):
        topic = chance.choice([t for t in TOPICS if unread[t]])  # type: ignore[attr-defined]
        lane.receive(unread[topic].pop(0))
        if lane.must_ask:
            lane.learn_ends(ends)
        out += drain(lane)
    times = [taken.timestamp_ms for taken in out]
    assert times == sorted(times)
    assert {t: [r for r in out if r.topic == t] for t in TOPICS} == log
    assert lane.held == 0
    assert not lane.unread(ends)
