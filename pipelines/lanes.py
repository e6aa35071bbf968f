"""Records of one partition's input topics in one order. Reads from no log; judges no record.

Topics are read side by side, and after a pause one of them may be minutes ahead of another. A lane hands out what
describes the service first (engines, targets, changes), then requests and steps, then ticks, which say that all before
them was read. It does so in rounds: a round reaches to end offsets that were asked for after its records had come, so
whatever was stored before a record was sent is in the same round or an earlier one. Timestamps only keep requests and
steps abreast: they are other people's clocks.

Laws: records of one topic come out in offset order, each once; a description comes out before every request and step
that was sent after it was stored, and a tick after all that was stored before it was sent; nothing comes out while
a topic of its turn is known to hold more and has none here, unless `give_up_waiting` said so.
"""

from collections import deque
from collections.abc import Mapping

from pipelines.log import LogRecord, TopicPartition
from schemas.topics import CHANGES, ENGINES, REQUESTS, SLOS, STEPS, TICKS

TURNS: tuple[tuple[str, ...], ...] = (
    (ENGINES.name, SLOS.name, CHANGES.name),
    (REQUESTS.name, STEPS.name),
    (TICKS.name,),
)
"""Topics in the order of their turns in a round."""
INPUT_NAMES = tuple(topic for turn in TURNS for topic in turn)
CROWDED_RECORDS = 4_000
"""Records of one topic held here above which reading of that topic pauses until half of them are gone."""


class _Queue:
    """Records of one topic that have come and not gone, with the earliest timestamp among them at hand."""

    def __init__(self, position: int) -> None:
        self.records: deque[LogRecord] = deque()
        self.received = position
        self.handed = position
        self.end = position
        self._earliest_ms: deque[int] = deque()

    def push(self, record: LogRecord) -> None:
        self.received = record.offset + 1
        self.records.append(record)
        while self._earliest_ms and self._earliest_ms[-1] > record.timestamp_ms:
            self._earliest_ms.pop()
        self._earliest_ms.append(record.timestamp_ms)

    def pop(self) -> LogRecord:
        record = self.records.popleft()
        self.handed = record.offset + 1
        if self._earliest_ms[0] == record.timestamp_ms:
            self._earliest_ms.popleft()
        return record

    @property
    def earliest_ms(self) -> int:
        return self._earliest_ms[0]

    @property
    def ready(self) -> bool:
        """Whether the first record belongs to this round."""
        return bool(self.records) and self.records[0].offset < self.end

    @property
    def awaited(self) -> bool:
        """Whether the round holds more, of which none is here."""
        return not self.records and self.received < self.end


class Lane:
    """One partition; `positions` are the offsets of the next records to receive, 0 where there is none."""

    def __init__(self, partition: int, positions: Mapping[str, int]) -> None:
        self.partition = partition
        self._queues = {topic: _Queue(positions.get(topic, 0)) for topic in INPUT_NAMES}
        self._turns = [[self._queues[topic] for topic in turn] for turn in TURNS]

    def receive(self, record: LogRecord) -> bool:
        """Take a record of one of the topics; False for one that came before."""
        queue = self._queues[record.topic]
        if record.offset < queue.received:
            return False
        queue.push(record)
        return True

    def learn_ends(self, ends: Mapping[str, int]) -> None:
        """End offsets of all topics, asked for after the last record was received: the next round."""
        for topic, end in ends.items():
            queue = self._queues[topic]
            queue.end = max(end, queue.end)

    @property
    def received(self) -> dict[str, int]:
        """Per topic, the offset of the next record to receive."""
        return {topic: queue.received for topic, queue in self._queues.items()}

    @property
    def handed(self) -> dict[str, int]:
        """Per topic, the offset after the last record handed out."""
        return {topic: queue.handed for topic, queue in self._queues.items()}

    @property
    def held(self) -> int:
        """Records received and not handed out."""
        return sum(len(queue.records) for queue in self._queues.values())

    @property
    def awaited(self) -> tuple[str, ...]:
        """Topics known to hold more of which none is here, in the turn that holds up the others."""
        for turn in TURNS:
            waiting = tuple(topic for topic in turn if self._queues[topic].awaited)
            if waiting or any(self._queues[topic].ready for topic in turn):
                return waiting
        return ()

    @property
    def must_ask(self) -> bool:
        """Whether this round is through and records of the next are here, so that ends must be asked for."""
        return self.held > 0 and not any(queue.ready or queue.awaited for queue in self._queues.values())

    def pop(self) -> LogRecord | None:
        """The next record, or None where there is none, a topic is awaited, or ends must be asked for."""
        for turn in self._turns:
            first = None
            for queue in turn:
                if queue.ready:
                    if first is None or queue.earliest_ms < first.earliest_ms:
                        first = queue
                elif queue.awaited:
                    return None
            if first is not None:
                return first.pop()
        return None

    def give_up_waiting(self) -> tuple[str, ...]:
        """Go on without the topics awaited: what seemed to be records there are gaps. Returns the topics."""
        missing = self.awaited
        for topic in missing:
            self._queues[topic].end = self._queues[topic].received
        return missing

    def crowded(self) -> set[TopicPartition]:
        """Topics to stop reading for a while; never one that is awaited."""
        return {self._place(topic) for topic, queue in self._queues.items() if len(queue.records) > CROWDED_RECORDS}

    def roomy(self) -> set[TopicPartition]:
        """Topics that may be read again."""
        return {
            self._place(topic) for topic, queue in self._queues.items() if 2 * len(queue.records) <= CROWDED_RECORDS
        }

    def _place(self, topic: str) -> TopicPartition:
        return TopicPartition(topic, self.partition)
