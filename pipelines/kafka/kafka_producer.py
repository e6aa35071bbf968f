"""Producer of `pipelines.log` on Kafka: idempotent, acknowledged by all replicas, resent after a fatal error.

Keeps every record until it is acknowledged. Does not order records of different partitions.

Law: a record leaves the buffer when it is stored, or with its error told to the next `send` or `flush`. When the
client library gives up for good (a gap in its sequence numbers, a producer id the broker forgot), it is replaced by
a new client and all that is not acknowledged is sent again in order: twice in the log perhaps, never zero times.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidTimestampError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownError,
)

from pipelines.errors import ConfigError
from pipelines.kafka.access import ClusterAccess
from pipelines.log import (
    Header,
    LogUnavailableError,
    RecordRefusedError,
    UnknownTopicError,
    require_sendable,
    require_topics,
)
from pipelines.partitions import partition_of

if TYPE_CHECKING:
    from pipelines.kafka.kafka_log import KafkaLog

Codec = Literal["gzip", "snappy", "lz4", "zstd"] | None
BUFFER_BYTES = 32 << 20
BATCH_BYTES = 131_072
LINGER_MS = 5
RECORD_BYTES = 64
"""Counted for a record besides its key and value."""
REVIVE_BACKOFF_S = 0.5
ABANDON_TIMEOUT_S = 3.0
REFUSALS = (
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    InvalidTimestampError,
    TopicAuthorizationFailedError,
    UnknownError,  # codes that aiokafka has no name for, such as INVALID_RECORD (no key in a compacted topic)
)
"""Errors that the same record would meet again."""


class _Unacknowledged(NamedTuple):
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    timestamp_ms: int
    size_bytes: int


class KafkaProducer:
    """See `Producer`."""

    def __init__(
        self, log: "KafkaLog", access: ClusterAccess, *, max_record_bytes: int, codec: Codec, linger_ms: int = LINGER_MS
    ) -> None:
        self._log = log
        self._access = access
        self._max_record_bytes = max_record_bytes
        self._codec = codec
        self._linger_ms = linger_ms
        self._client: Any = None
        self._unacknowledged: dict[int, _Unacknowledged] = {}
        self._with_client = 0
        """Records that are on their way to the client or unsettled there."""
        self._number = 0
        self._bytes = 0
        self._counts: dict[str, int] = {}
        self._keyless = 0
        self._failure: Exception | None = None
        self._last_error: BaseException | None = None
        self._changed = asyncio.Event()
        self._broken = False
        self._reviving: asyncio.Task[None] | None = None
        self.revivals = 0
        """How often the client was replaced."""

    async def __aenter__(self) -> Self:
        self._client = await self._new_client()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def send(
        self,
        topic: str,
        *,
        key: bytes | None = None,
        value: bytes | None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """See `Producer`."""
        now_ms = time.time_ns() // 1_000_000
        limit = self._max_record_bytes
        require_sendable(topic, key, value, headers, timestamp_ms, max_record_bytes=limit, now_ms=now_ms)
        where = await self._choose(topic, key, partition)
        self._raise_failure()
        while self._bytes >= BUFFER_BYTES:
            await self._change(None)
            self._raise_failure()
        at_ms = now_ms if timestamp_ms is None else timestamp_ms
        size_bytes = len(key or b"") + len(value or b"") + RECORD_BYTES
        record = _Unacknowledged(topic, where, key, value, list(headers), at_ms, size_bytes)
        self._number = number = self._number + 1
        self._unacknowledged[number] = record
        self._bytes += size_bytes
        try:
            # A client that is being replaced gets nothing: its replacement gets this record with the others.
            while self._reviving is None and not await self._hand_over(number, record):
                pass
        except BaseException:  # cancelled while the client's buffer is full: not sent
            self._forget(number)
            raise

    async def flush(self, timeout_s: float = 60.0) -> None:
        """See `Producer`."""
        deadline_s = time.monotonic() + timeout_s
        while self._unacknowledged:
            self._raise_failure()
            if not await self._change(deadline_s):
                waiting = len(self._unacknowledged)
                reason = f" ({self._last_error!r})" if self._last_error else ""
                raise LogUnavailableError(
                    f"{self._log.name} has not stored {waiting} records within {timeout_s:g} s{reason}; see if it runs"
                )
        self._raise_failure()

    async def close(self) -> None:
        """See `Producer`."""
        if self._client is None:
            return
        try:
            await self.flush(self._log.timeout_s)
        finally:
            if self._reviving is not None:
                self._reviving.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._reviving
            client, self._client = self._client, None
            if client is not None:
                await _abandon(client)

    async def _choose(self, topic: str, key: bytes | None, partition: int | None) -> int:
        if topic not in self._counts:
            found = await self._log.partition_counts([topic])
            require_topics([topic], found, self._log.name)
            self._counts |= found
        count = self._counts[topic]
        if partition is None:
            self._keyless += key is None
            return self._keyless % count if key is None else partition_of(key, count)
        if not 0 <= partition < count:
            raise UnknownTopicError(f"{self._log.name} has no {topic}[{partition}]; {topic} has {count}")
        return partition

    async def _new_client(self) -> Any:
        client: Any = AIOKafkaProducer(
            **self._access.client_arguments(),
            enable_idempotence=True,
            acks="all",
            linger_ms=self._linger_ms,
            max_batch_size=BATCH_BYTES,
            max_request_size=2 * self._max_record_bytes + BATCH_BYTES,
            compression_type=self._codec,
            request_timeout_ms=20_000,
        )
        try:
            await self._log.ask(client.start)
        except BaseException:
            await _abandon(client)
            raise
        return client

    async def _hand_over(self, number: int, record: _Unacknowledged) -> bool:
        """Give a record to the client; False when its buffer stayed full. A client that fails is replaced."""
        topic, partition, key, value, headers, timestamp_ms, _ = record
        self._with_client += 1
        try:
            future = await self._client.send(
                topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )
        except BaseException as error:
            self._with_client -= 1
            self._changed.set()
            if isinstance(error, KafkaTimeoutError):
                return False
            if isinstance(error, KafkaError):
                self._revive(error)
                return True
            raise
        future.add_done_callback(partial(self._settle, number, record))
        return True

    def _settle(self, number: int, record: _Unacknowledged, done: asyncio.Future[Any]) -> None:
        self._with_client -= 1
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if isinstance(error, REFUSALS):
            self._failure = RecordRefusedError(
                f"{self._log.name} refused a record for {record.topic}[{record.partition}], and the batch it came in: "
                f"{type(error).__name__} {error}"
            )
        elif error is not None:
            self._changed.set()
            self._revive(error)
            return
        self._forget(number)

    def _forget(self, number: int) -> None:
        record = self._unacknowledged.pop(number, None)
        if record is not None:
            self._bytes -= record.size_bytes
        self._changed.set()

    def _revive(self, reason: BaseException) -> None:
        self._last_error = reason
        self._broken = True
        if self._reviving is None and self._client is not None:
            self._reviving = asyncio.get_running_loop().create_task(self._replace_client())

    async def _replace_client(self) -> None:
        """Replace the client and send again what is not acknowledged, until a client has taken it all."""
        try:
            while self._broken:
                # All that the old client still holds has to end first, or it could be stored behind what is sent again.
                while self._with_client:
                    await self._change(None)
                await _abandon(self._client)
                self._broken = False
                try:
                    self._client = await self._new_client()
                except ConfigError as error:
                    self._revive(error)
                    await asyncio.sleep(REVIVE_BACKOFF_S)
                    continue
                self.revivals += 1
                await self._send_again()
        finally:
            self._reviving = None
            self._changed.set()

    async def _send_again(self) -> None:
        handed_over = 0
        while remaining := [number for number in self._unacknowledged if number > handed_over]:
            for number in remaining:
                record = self._unacknowledged.get(number)
                while record is not None and not self._broken and not await self._hand_over(number, record):
                    pass
                if self._broken:
                    await asyncio.sleep(REVIVE_BACKOFF_S)
                    return
                handed_over = number

    async def _change(self, deadline_s: float | None) -> bool:
        """Wait until a record was settled; False when the time is up first."""
        self._changed.clear()
        remaining_s = None if deadline_s is None else deadline_s - time.monotonic()
        if remaining_s is not None and remaining_s <= 0:
            return False
        try:
            async with asyncio.timeout(remaining_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


async def _abandon(client: Any) -> None:
    """Stop a client. One that still holds records and has no broker would wait for one: it is cut off."""
    try:
        async with asyncio.timeout(ABANDON_TIMEOUT_S):
            await client.stop()
    except (KafkaError, OSError, TimeoutError):
        await client.client.close()
