"""`pipelines.log` on Apache Kafka, over aiokafka. Starts no broker.

Law: see `pipelines.log`. A question that the cluster does not answer within `timeout_s` raises LogUnavailableError;
until then it is asked again, so a broker that is restarting is only slow.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Self, TypeVar

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as KafkaPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaConnectionError, KafkaError, for_code

from pipelines.errors import ConfigError
from pipelines.kafka.access import ClusterAccess
from pipelines.kafka.kafka_producer import Codec, KafkaProducer
from pipelines.kafka.kafka_reader import KafkaMember, KafkaReader
from pipelines.log import (
    MAX_RECORD_BYTES,
    GroupBusyError,
    LogUnavailableError,
    OffsetOutOfRangeError,
    OnAssigned,
    OnRevoked,
    TopicPartition,
    TopicSpec,
    UnknownTopicError,
    require_partitions,
    require_topics,
)

T = TypeVar("T")
BACKOFF_S = 0.2
BATCH_OVERHEAD_BYTES = 65_536
"""Room for what a batch adds to a record's own bytes."""
NO_ERROR, TOPIC_EXISTS = 0, 36


class _Told(logging.Filter):
    """Keeps what aiokafka says of a first contact out of the log: it is in the error, and of no use without one."""

    def __init__(self) -> None:
        super().__init__()
        self.last = ""
        self._logger = logging.getLogger("aiokafka")

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the text."""
        if record.levelno >= logging.ERROR:
            self.last = record.getMessage()
            return False
        return True

    def __enter__(self) -> None:
        self._logger.addFilter(self)

    def __exit__(self, *failure: object) -> None:
        self._logger.removeFilter(self)


class KafkaLog:
    """See `Log`. `timeout_s` bounds every question, `connect_timeout_s` the first contact.

    `codec` compresses batches (gzip needs nothing; snappy, lz4 and zstd need cramjam); `replication` of new topics,
    -1 for the cluster's own default.
    """

    def __init__(
        self,
        access: ClusterAccess,
        *,
        timeout_s: float = 20.0,
        connect_timeout_s: float = 8.0,
        codec: Codec = None,
        replication: int = -1,
    ) -> None:
        self._access = access
        self.timeout_s = timeout_s
        """Bound of every question, and of the last flush of a producer that is closed."""
        self._connect_timeout_s = connect_timeout_s
        self._codec: Codec = codec
        self._replication = replication
        self._counts: dict[str, int] = {}
        """Partitions of topics seen before: they never become fewer."""
        self._admin: Any = None
        self._asker: Any = None

    @property
    def name(self) -> str:
        """See `Log`."""
        return f"Kafka at {self._access.bootstrap}"

    async def __aenter__(self) -> Self:
        arguments = self._access.client_arguments()
        self._admin = AIOKafkaAdminClient(**arguments, request_timeout_ms=self._request_timeout_ms())
        self._asker = AIOKafkaConsumer(
            **arguments, request_timeout_ms=self._request_timeout_ms(), enable_auto_commit=False
        )
        told = _Told()
        try:
            with told:
                async with asyncio.timeout(self._connect_timeout_s):
                    await self._admin.start()
                    await self._asker.start()
        except (KafkaError, TimeoutError, OSError) as error:
            await self.__aexit__()
            raise LogUnavailableError(
                f"no Kafka answers at {self._access.bootstrap} ({told.last or _reason(error)}); start it, or correct "
                "TWINCAST_BOOTSTRAP and the security settings"
            ) from error
        return self

    async def __aexit__(self, *failure: object) -> None:
        if self._admin is not None:
            await self._admin.close()
        if self._asker is not None:
            await self._asker.stop()

    async def create_topics(self, specs: Iterable[TopicSpec]) -> list[str]:
        """See `Log`."""
        wanted = {spec.name: spec for spec in specs}
        found = await self.partition_counts(wanted)
        require_partitions(wanted.values(), found)
        missing = [spec for name, spec in wanted.items() if name not in found]
        if not missing:
            return []
        answer = await self.ask(lambda: self._admin.create_topics([self._new_topic(spec) for spec in missing]))
        # The call does not raise for a topic that could not be made: its error is in the answer.
        refused = [
            (name, code, text) for name, code, text in answer.topic_errors if code not in (NO_ERROR, TOPIC_EXISTS)
        ]
        if refused:
            reasons = "; ".join(f"{name}: {text or for_code(code).__name__}" for name, code, text in refused)
            raise ConfigError(f"{self.name} did not create {reasons}; correct the settings or your rights there")
        await self.ask(lambda: self._await_topics(wanted))
        return [name for name, code, _ in answer.topic_errors if code == NO_ERROR]

    async def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """See `Log`."""
        # All topics are asked for, since asking for one by name makes it on clusters with automatic creation.
        described = await self.ask(lambda: self._admin.describe_topics())
        counts = {topic["topic"]: len(topic["partitions"]) for topic in described if topic["error_code"] == NO_ERROR}
        return {topic: counts[topic] for topic in topics if topic in counts}

    async def begin_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See `Log`."""
        wanted = await self._known(partitions)
        found = await self.ask(lambda: self._asker.beginning_offsets(list(wanted.values())))
        return {where: found[there] for where, there in wanted.items()}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See `Log`."""
        wanted = await self._known(partitions)
        found = await self.ask(lambda: self._asker.end_offsets(list(wanted.values())))
        return {where: found[there] for where, there in wanted.items()}

    async def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """See `Log`."""
        wanted = await self._known(times_ms)
        times = {there: times_ms[where] for where, there in wanted.items()}
        found = await self.ask(lambda: self._asker.offsets_for_times(dict(times)))
        return {where: None if found.get(there) is None else found[there].offset for where, there in wanted.items()}

    async def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """See `Log`."""
        wanted = await self._known(partitions)
        found = await self.ask(lambda: self._admin.list_consumer_group_offsets(group, partitions=list(wanted.values())))
        offsets = {where: found[there].offset if there in found else -1 for where, there in wanted.items()}
        return {where: None if offset < 0 else offset for where, offset in offsets.items()}

    async def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """See `Log`."""
        wanted = await self._known(offsets)
        if await self.ask(lambda: self._has_members(group)):
            raise GroupBusyError(f"group {group} of {self.name} has members; let them commit, or stop them")
        committer: Any = AIOKafkaConsumer(
            **self._access.client_arguments(),
            group_id=group,
            enable_auto_commit=False,
            request_timeout_ms=self._request_timeout_ms(),
        )
        try:
            await self.ask(committer.start)
            committer.assign(list(wanted.values()))
            await self.ask(lambda: committer.commit({there: offsets[where] for where, there in wanted.items()}))
        finally:
            await committer.stop()

    async def delete_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See `Log`."""
        wanted = await self._known(offsets)
        ends = await self.end_offsets(offsets)
        for where, offset in offsets.items():
            if offset > ends[where]:
                begin = (await self.begin_offsets([where]))[where]
                raise OffsetOutOfRangeError(where, offset, begin, ends[where])
        cuts = {there: RecordsToDelete(before_offset=offsets[where]) for where, there in wanted.items()}
        await self.ask(lambda: self._admin.delete_records(cuts))

    async def topic_settings(self, topic: str) -> dict[str, str]:
        """What a topic was created with: cleanup.policy, retention.ms, max.message.bytes."""
        names = dict.fromkeys(("cleanup.policy", "retention.ms", "max.message.bytes"), "")
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=names)
        answers = await self.ask(lambda: self._admin.describe_configs([resource]))
        entries = [entry for answer in answers for found in answer.resources for entry in found[4]]
        return {entry[0]: entry[1] for entry in entries}

    def producer(self, *, max_record_bytes: int = MAX_RECORD_BYTES) -> KafkaProducer:
        """See `Log`."""
        return KafkaProducer(self, self._access, max_record_bytes=max_record_bytes, codec=self._codec)

    def reader(self, positions: Mapping[TopicPartition, int]) -> KafkaReader:
        """See `Log`."""
        return KafkaReader(self, self._access, positions)

    def member(
        self, group: str, topics: Iterable[str], *, on_assigned: OnAssigned, on_revoked: OnRevoked
    ) -> KafkaMember:
        """See `Log`."""
        return KafkaMember(self, self._access, group, topics, on_assigned=on_assigned, on_revoked=on_revoked)

    async def ask(self, question: Callable[[], Awaitable[T]], *, let_pass: tuple[type[Exception], ...] = ()) -> T:
        """The answer to a question, asked again while the cluster is not ready for it. For this package's own use.

        Errors in `let_pass` are raised as they are.
        """
        deadline_s = time.monotonic() + self.timeout_s
        while True:
            try:
                async with asyncio.timeout(max(0.01, deadline_s - time.monotonic())):
                    return await question()
            except let_pass:
                raise
            except (KafkaError, TimeoutError, OSError) as error:
                again = not isinstance(error, KafkaError) or error.retriable or isinstance(error, KafkaConnectionError)
                if not again:
                    raise ConfigError(
                        f"{self.name} refused ({_reason(error)}); correct what it complains of"
                    ) from error
                if time.monotonic() + BACKOFF_S > deadline_s:
                    raise LogUnavailableError(
                        f"{self.name} did not answer within {self.timeout_s:g} s ({_reason(error)}); see if it runs"
                    ) from error
            await asyncio.sleep(BACKOFF_S)

    async def _known(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, KafkaPartition]:
        """The partitions in aiokafka's type. Raises UnknownTopicError: asking for one that is not there hangs."""
        wanted = list(partitions)
        if any(where.partition >= self._counts.get(where.topic, 0) for where in wanted):
            self._counts |= await self.partition_counts({where.topic for where in wanted})
        require_topics({where.topic for where in wanted}, self._counts, self.name)
        for where in wanted:
            if not 0 <= where.partition < self._counts[where.topic]:
                raise UnknownTopicError(f"{self.name} has no {where}; {where.topic} has {self._counts[where.topic]}")
        return {where: KafkaPartition(*where) for where in wanted}

    async def _await_topics(self, specs: Mapping[str, TopicSpec]) -> None:
        """Return when every partition has a leader: creation is answered a moment earlier."""
        while True:
            described = {topic["topic"]: topic for topic in await self._admin.describe_topics()}
            partitions = [
                p for name in specs for p in described.get(name, {"partitions": [{"leader": -1}]})["partitions"]
            ]
            if all(partition["leader"] >= 0 for partition in partitions):
                return
            await asyncio.sleep(0.02)

    async def _has_members(self, group: str) -> bool:
        described = await self._admin.describe_consumer_groups([group])
        groups = [found for answer in described for found in answer.groups]
        members_column = 5
        return any(found[members_column] for found in groups)

    def _new_topic(self, spec: TopicSpec) -> NewTopic:
        configs = {
            "cleanup.policy": spec.policy,
            "retention.ms": str(spec.retention_ms),
            "max.message.bytes": str(spec.max_record_bytes + BATCH_OVERHEAD_BYTES),
        }
        topic = NewTopic(spec.name, spec.partitions, 1, topic_configs=configs)
        topic.replication_factor = self._replication  # -1 is Kafka's word for the default, but not for the constructor
        return topic

    def _request_timeout_ms(self) -> int:
        return int(1000 * self.timeout_s)


def _reason(error: BaseException) -> str:
    """A short reason, even where the library gives an exception without a text."""
    name = type(error).__name__
    return str(error) if str(error).startswith(name) else f"{name}: {error}".removesuffix(": ")
