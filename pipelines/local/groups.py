"""Who reads which partition: groups of an embedded log, in one process. Stores no offsets and reads no records.

As in Kafka's eager protocol: when a member comes or goes, all give up what they have before anybody gets anything.

Laws: a partition has at most one owner at any time, and exactly one once all members have taken part; partitions of
the same number go to the same member in every topic of the same size, so that one member sees a deployment whole.
A member that stops asking holds the others up: there is no session time-out within one process.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pipelines.log import TopicPartition


@dataclass(slots=True, eq=False)
class Seat:
    """One member of a group, in the order of joining."""

    topics: frozenset[str]
    seen_generation: int = -1
    """The last generation for which it gave up its partitions."""
    taken_generation: int = -1
    """The last generation whose partitions it took."""
    owned: frozenset[TopicPartition] = frozenset()


@dataclass(slots=True, eq=False)
class Group:
    """Members and generation of one group."""

    seats: list[Seat] = field(default_factory=list)
    generation: int = 0

    def join(self, topics: Iterable[str]) -> Seat:
        """Add a member; all others will have to give up what they own."""
        seat = Seat(frozenset(topics))
        self.seats.append(seat)
        self.generation += 1
        return seat

    def leave(self, seat: Seat) -> None:
        """Remove a member, which owns nothing from now on."""
        if seat in self.seats:
            self.seats.remove(seat)
            seat.owned = frozenset()
            self.generation += 1

    def must_give_up(self, seat: Seat) -> bool:
        """Whether the member has yet to give up its partitions for the newest generation."""
        return seat.seen_generation != self.generation

    def give_up(self, seat: Seat) -> None:
        """The member owns nothing and is ready for the newest generation."""
        seat.owned = frozenset()
        seat.seen_generation = self.generation

    def may_take(self, seat: Seat) -> bool:
        """Whether all are ready and this member has yet to take its partitions."""
        ready = all(other.seen_generation == self.generation for other in self.seats)
        return ready and seat.taken_generation != self.generation

    def take(self, seat: Seat, partition_counts: Mapping[str, int]) -> frozenset[TopicPartition]:
        """Give the member its partitions."""
        seat.owned = frozenset(
            TopicPartition(topic, number)
            for topic in seat.topics
            for number in self._range(seat, topic, partition_counts[topic])
        )
        seat.taken_generation = self.generation
        return seat.owned

    def _range(self, seat: Seat, topic: str, count: int) -> range:
        """Neighbouring partitions, as evenly as they go, the first members one more."""
        sharing = [other for other in self.seats if topic in other.topics]
        place = next(i for i, other in enumerate(sharing) if other is seat)
        share, extra = divmod(count, len(sharing))
        start = place * share + min(place, extra)
        return range(start, start + share + (place < extra))
