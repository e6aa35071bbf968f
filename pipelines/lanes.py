"""Records of one partition's input topics in one order. Reads from no log; judges no record.

Topics are read side by side, and after a pause one of them may be minutes ahead of another. A lane hands out the
record with the earliest timestamp, and waits for a topic that is known to hold more. What is known are end offsets,
asked for before a record beyond them is handed out: a record that was stored before another was sent is never
overtaken by it.

Laws: records of one topic come out in offset order, each once; nothing comes out while a topic that is known to hold
more has none here, unless `give_up_waiting` said so.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from pipelines.log import LogRecord, TopicPartition

CROWDED_RECORDS = 4_000
"""Records of one topic held here above which reading of that topic pauses until half of them are gone."""


class Lane:
    """One partition. `topics` are its input topics, in the order that settles equal timestamps."""

    def __init__(self, partition: int, topics: Iterable[str], positions: Mapping[str, int]) -> None:
        self.partition = partition
        self._held: dict[str, deque[LogRecord]] = {topic: deque() for topic in topics}
        self.received = {topic: positions.get(topic, 0) for topic in self._held}
        """Per topic, the offset of the next record to receive."""
        self.handed = dict(self.received)
        """Per topic, the offset after the last record handed out."""
        self._ends = dict(self.received)

    def receive(self, record: LogRecord) -> bool:
        """Take a record of one of the topics; False for one that came before."""
        if record.offset < self.received[record.topic]:
            return False
        self.received[record.topic] = record.offset + 1
        self._held[record.topic].append(record)
        return True

    def learn_ends(self, ends: Mapping[str, int]) -> None:
        """End offsets of all topics, asked for after the last record was received."""
        for topic, end in ends.items():
            self._ends[topic] = max(end, self._ends[topic])

    @property
    def held(self) -> int:
        """Records received and not handed out."""
        return sum(len(records) for records in self._held.values())

    @property
    def awaited(self) -> tuple[str, ...]:
        """Topics known to hold more of which none is here."""
        return tuple(
            topic for topic, records in self._held.items() if not records and self.received[topic] < self._ends[topic]
        )

    @property
    def must_ask(self) -> bool:
        """Whether the next record lies beyond the known ends, so that these must be asked for before `pop`."""
        first = self._first()
        return first is not None and first.offset >= self._ends[first.topic]

    def pop(self) -> LogRecord | None:
        """The next record, or None where there is none, a topic is awaited, or ends must be asked for."""
        first = self._first()
        if first is None or first.offset >= self._ends[first.topic] or self.awaited:
            return None
        self._held[first.topic].popleft()
        self.handed[first.topic] = first.offset + 1
        return first

    def _first(self) -> LogRecord | None:
        heads = [records[0] for records in self._held.values() if records]
        return min(heads, key=lambda record: record.timestamp_ms, default=None)

    def give_up_waiting(self) -> tuple[str, ...]:
        """Go on without the topics awaited: what seemed to be records there are gaps. Returns the topics."""
        missing = self.awaited
        for topic in missing:
            self._ends[topic] = self.received[topic]
        return missing

    def crowded(self) -> set[TopicPartition]:
        """Topics to stop reading for a while; never one that is awaited."""
        return {self._place(topic) for topic, records in self._held.items() if len(records) > CROWDED_RECORDS}

    def roomy(self) -> set[TopicPartition]:
        """Topics that may be read again."""
        return {self._place(topic) for topic, records in self._held.items() if 2 * len(records) <= CROWDED_RECORDS}

    def _place(self, topic: str) -> TopicPartition:
        return TopicPartition(topic, self.partition)

    def unread(self, ends: Mapping[str, int]) -> bool:
        """Whether records wait, here or in the log, given its end offsets."""
        return any(self.handed[topic] < end for topic, end in ends.items())
