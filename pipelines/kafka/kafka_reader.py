"""Reader and group member of `pipelines.log` on Kafka. Commits nothing by itself.

Law: see `pipelines.log`. The callbacks of a member run in the task that calls `get`, as a rebalance waits for it;
so nothing of a partition is returned after `on_revoked` has been told of it.
"""

import asyncio
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka import TopicPartition as KafkaPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import CommitFailedError, IllegalStateError, NoOffsetForPartitionError
from aiokafka.errors import OffsetOutOfRangeError as KafkaOutOfRangeError

from pipelines.kafka.access import ClusterAccess
from pipelines.log import (
    GroupBusyError,
    LogRecord,
    OffsetOutOfRangeError,
    OnAssigned,
    OnRevoked,
    TopicPartition,
    require_topics,
)

if TYPE_CHECKING:
    from pipelines.kafka.kafka_log import KafkaLog

SESSION_TIMEOUT_MS = 10_000
HEARTBEAT_INTERVAL_MS = 2_000
GRACE_S = 0.05


class KafkaReader:
    """See `Reader`."""

    def __init__(self, log: "KafkaLog", access: ClusterAccess, positions: Mapping[TopicPartition, int]) -> None:
        self._log = log
        self._access = access
        self._positions = dict(positions)
        self._consumer: Any = None

    async def __aenter__(self) -> Self:
        await self._log.end_offsets(self._positions)  # they exist
        self._consumer = await self._new_consumer()
        self._consumer.assign([KafkaPartition(*where) for where in self._positions])
        for where, offset in self._positions.items():
            self.seek(where, offset)
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def get(self, *, max_records: int = 500, timeout_s: float = 1.0) -> list[LogRecord]:
        """See `Reader`."""
        records = await self._fetch(max_records, timeout_s)
        for record in records:
            self._positions[TopicPartition(record.topic, record.partition)] = record.offset + 1
        return records

    async def _fetch(self, max_records: int, timeout_s: float) -> list[LogRecord]:
        try:
            found = await self._consumer.getmany(timeout_ms=max(0, int(1000 * timeout_s)), max_records=max_records)
        except KafkaOutOfRangeError as error:
            raise await self._out_of_range(error) from error
        return [
            LogRecord(
                there.topic,
                there.partition,
                row.offset,
                row.timestamp,
                row.key,
                row.value,
                tuple(row.headers),
                row.timestamp_type or 0,
            )
            for there, rows in found.items()
            for row in rows
        ]

    def position(self, where: TopicPartition) -> int:
        """See `Reader`."""
        return self._positions[where]

    def seek(self, where: TopicPartition, offset: int) -> None:
        """See `Reader`."""
        if where not in self._positions:
            raise KeyError(where)
        self._positions[where] = offset
        self._consumer.seek(KafkaPartition(*where), offset)

    async def close(self) -> None:
        """See `Reader`."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await asyncio.sleep(0)  # aiokafka raises CancelledError for a task of its own that has not begun
            await consumer.stop()

    async def _new_consumer(self, **more: Any) -> Any:
        consumer: Any = AIOKafkaConsumer(
            **self._access.client_arguments(), enable_auto_commit=False, auto_offset_reset="none", **more
        )
        try:
            await self._log.ask(consumer.start)
        except BaseException:
            await consumer.stop()
            raise
        return consumer

    async def _out_of_range(self, error: KafkaOutOfRangeError) -> OffsetOutOfRangeError:
        partition, offset = next(iter(error.args[0].items()))
        where = TopicPartition(partition.topic, partition.partition)
        begins, ends = await self._log.begin_offsets([where]), await self._log.end_offsets([where])
        return OffsetOutOfRangeError(where, offset, begins[where], ends[where])


class KafkaMember(KafkaReader):
    """See `Member`."""

    def __init__(
        self,
        log: "KafkaLog",
        access: ClusterAccess,
        group: str,
        topics: Iterable[str],
        *,
        on_assigned: OnAssigned,
        on_revoked: OnRevoked,
    ) -> None:
        super().__init__(log, access, {})
        self._group = group
        self._topics = tuple(topics)
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._closed = False
        self._step_waits: asyncio.Future[None] | None = None
        self._steps: asyncio.Queue[tuple[Callable[[], Awaitable[None]], asyncio.Event]] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        require_topics(self._topics, await self._log.partition_counts(self._topics), self._log.name)
        self._consumer = await self._new_consumer(
            group_id=self._group,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            # Ranges keep partitions of the same number together, so that one member sees a deployment whole.
            partition_assignment_strategy=(RangePartitionAssignor,),
        )
        self._consumer.subscribe(self._topics, listener=_Listener(self))
        return self

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """See `Member`."""
        return frozenset(self._positions)

    async def get(self, *, max_records: int = 500, timeout_s: float = 1.0) -> list[LogRecord]:
        """See `Reader`; the callbacks run in here."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            await self._take_steps()
            remaining_s = deadline_s - time.monotonic()
            found = await self._fetch_or_step(max_records, remaining_s)
            # What came of partitions between their loss and `take` is from a position that `take` does not start at.
            records = [r for r in found if TopicPartition(r.topic, r.partition) in self._positions]
            for record in records:
                self._positions[TopicPartition(record.topic, record.partition)] = record.offset + 1
            if records or remaining_s <= 0:
                return records

    async def _fetch_or_step(self, max_records: int, timeout_s: float) -> list[LogRecord]:
        """Records, or [] as soon as there is a step to take: until it is, aiokafka lets no time-out end the fetch."""
        fetch = asyncio.create_task(self._fetch(max_records, timeout_s))
        step_waits: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._step_waits = step_waits
        both: set[asyncio.Future[Any]] = {fetch, step_waits}
        try:
            await asyncio.wait(both, timeout=max(0.0, timeout_s) + GRACE_S, return_when=FIRST_COMPLETED)
        finally:
            if not fetch.done():
                fetch.cancel()
        await asyncio.wait([fetch])
        if fetch.cancelled():
            return []
        try:
            return fetch.result()
        except NoOffsetForPartitionError:  # noticed before `take` has sought one
            await asyncio.sleep(GRACE_S)
            return []

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See `Member`."""
        lost = [str(where) for where in offsets if where not in self._positions]
        if not lost:
            try:
                await self._log.ask(
                    lambda: self._consumer.commit({KafkaPartition(*where): offsets[where] for where in offsets}),
                    let_pass=(CommitFailedError, IllegalStateError),
                )
                return
            except (CommitFailedError, IllegalStateError):
                lost = [str(where) for where in offsets]
        raise GroupBusyError(f"{', '.join(lost)} belongs to another member of group {self._group}; drop it")

    async def close(self) -> None:
        """See `Reader`; the partitions are given up first, as in a rebalance."""
        self._closed = True
        if self._consumer is not None:
            await self.give_up()
        while not self._steps.empty():
            self._steps.get_nowait()[1].set()
        await super().close()

    async def in_turn(self, step: Callable[[], Awaitable[None]]) -> None:
        """Have `get` run a step of a rebalance, and wait until it has. After `close` nothing runs any more."""
        if self._closed:
            return
        done = asyncio.Event()
        self._steps.put_nowait((step, done))
        if self._step_waits is not None and not self._step_waits.done():
            self._step_waits.set_result(None)
        await done.wait()

    async def give_up(self) -> None:
        """Tell of the partitions that are this member's no longer."""
        owned = self.assignment
        if owned:
            await self._on_revoked(owned)
        self._positions = {}

    async def take(self, owned: frozenset[TopicPartition]) -> None:
        """Find out where to start the partitions that are this member's now, and go there."""
        starts = dict(await self._on_assigned(owned))
        committed = await self._log.committed(self._group, owned)
        begins = await self._log.begin_offsets(owned)
        for where in sorted(owned):
            known = committed[where]
            self._positions[where] = 0
            self.seek(where, starts.get(where, begins[where] if known is None else known))

    async def _take_steps(self) -> None:
        while not self._steps.empty():
            step, done = self._steps.get_nowait()
            try:
                await step()
            finally:
                done.set()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Hands a rebalance over to the task that reads."""

    def __init__(self, member: KafkaMember) -> None:
        self._member = member

    async def on_partitions_revoked(self, revoked: Iterable[KafkaPartition]) -> None:
        await self._member.in_turn(self._member.give_up)

    async def on_partitions_assigned(self, assigned: Iterable[KafkaPartition]) -> None:
        owned = frozenset(TopicPartition(partition.topic, partition.partition) for partition in assigned)
        await self._member.in_turn(lambda: self._member.take(owned))
