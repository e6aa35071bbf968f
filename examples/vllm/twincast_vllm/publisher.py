"""Records to Kafka or to a file, from a thread of its own. The engine only appends to a bounded queue.

Steps of an engine are sent many in one message: after 64 of them or 0.25 s. When the queue is full the oldest record
is dropped and counted; a broker that is away is tried again every second, for as long as it takes.
Law: `put` never blocks and never raises, whatever the broker does.
"""

import asyncio
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from twincast_vllm.observer import STEPS

log = logging.getLogger("twincast_vllm")

MAX_QUEUED = 20_000
BATCH_STEPS = 64
BATCH_S = 0.25
POLL_S = 0.05
RETRY_S = 1.0
REPORT_S = 30.0

Message = tuple[str, str, bytes]
"""Topic, key, value."""


class Sink(Protocol):
    """Where messages go. Both calls may raise; the publisher tries again."""

    async def open(self) -> None:
        """Connect."""

    async def send(self, messages: list[Message]) -> None:
        """Hand over; returns when they are safe."""

    async def close(self) -> None:
        """Let go."""


class Publisher:
    """A queue and the thread that empties it into a sink."""

    def __init__(
        self, sink: Sink, envelope: Callable[[list[dict[str, Any]]], dict[str, Any]], max_queued: int = MAX_QUEUED
    ) -> None:
        self._sink = sink
        self._envelope = envelope
        self._queue: deque[tuple[str, str, dict[str, Any]]] = deque(maxlen=max_queued)
        self._encoder = msgspec.json.Encoder()
        self._steps: list[dict[str, Any]] = []
        self._steps_key = ""
        self._steps_since = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="twincast-tap", daemon=True)
        self.dropped = 0
        self.sent = 0
        self.failures = 0
        self.cpu_s = 0.0

    def start(self) -> None:
        """Begin to empty the queue."""
        self._thread.start()

    def put(self, topic: str, key: str, record: dict[str, Any]) -> None:
        """Queue a record; the oldest gives way if the queue is full."""
        if len(self._queue) == self._queue.maxlen:
            self.dropped += 1
        self._queue.append((topic, key, record))

    def stop(self, timeout_s: float = 2.0) -> None:
        """Send what is queued if that is possible within the time."""
        self._stopping.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            log.exception("the tap's thread ended; nothing is published any more")

    async def _serve(self) -> None:
        waiting: list[Message] = []
        is_open = False
        reported = time.monotonic()
        while True:
            last_round = self._stopping.is_set()
            waiting += self._messages(flush=last_round)
            try:
                if not is_open:
                    await self._sink.open()
                    is_open = True
                if waiting:
                    await self._sink.send(waiting)
                    self.sent += len(waiting)
                    waiting = []
            except Exception as error:  # noqa: BLE001 - whatever the broker says, the engine goes on
                self.failures += 1
                if self.failures in (1, 10, 100) or self.failures % 1000 == 0:
                    log.warning(
                        "nothing could be published (%s: %s), %d tries", type(error).__name__, error, self.failures
                    )
                is_open = await self._reopen(is_open)
                waiting = waiting[-self._queue.maxlen // BATCH_STEPS :] if self._queue.maxlen else waiting
                await asyncio.sleep(0.0 if last_round else RETRY_S)
            if last_round:
                break
            if time.monotonic() - reported > REPORT_S:
                reported = time.monotonic()
                log.info("published %d messages, dropped %d records", self.sent, self.dropped)
            self.cpu_s = time.thread_time()
            await asyncio.sleep(POLL_S)
        await self._reopen(is_open)

    async def _reopen(self, is_open: bool) -> bool:
        if is_open:
            try:
                await self._sink.close()
            except Exception as error:  # noqa: BLE001
                log.debug("closing failed: %s", error)
        return False

    def _messages(self, flush: bool) -> list[Message]:
        """Messages that are due. Steps wait for company, everything else goes at once."""
        steps = self._steps
        found: list[Message] = []
        for _ in itertools.repeat(None, len(self._queue)):
            topic, key, record = self._queue.popleft()
            if topic == STEPS:
                if not steps:
                    self._steps_since = time.monotonic()
                self._steps_key = key
                steps.append(record)
                if len(steps) >= BATCH_STEPS:
                    found.append(self._batch(steps))
            else:
                found.append((topic, key, self._encoder.encode(record)))
        if steps and (flush or time.monotonic() - self._steps_since >= BATCH_S):
            found.append(self._batch(steps))
        return found

    def _batch(self, steps: list[dict[str, Any]]) -> Message:
        message = (STEPS, self._steps_key, self._encoder.encode(self._envelope(steps)))
        steps.clear()
        return message


class FileSink:
    """One JSON record per line; `twincast import native FILE` reads it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: Any = None

    async def open(self) -> None:
        """Open for appending."""
        self._file = open(self._path, "ab")  # noqa: SIM115 - kept open between messages

    async def send(self, messages: list[Message]) -> None:
        """Append lines."""
        for _, _, value in messages:
            self._file.write(value + b"\n")
        self._file.flush()

    async def close(self) -> None:
        """Close the file."""
        self._file.close()


class KafkaSink:
    """A broker. All records of a deployment go to one partition, whatever their key."""

    def __init__(self, bootstrap: str, deployment: str) -> None:
        self._bootstrap = bootstrap
        self._deployment = deployment.encode()
        self._producer: Any = None

    async def open(self) -> None:
        """Connect; raises if the broker is away."""
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap, linger_ms=10, request_timeout_ms=10_000)
        try:
            await producer.start()
        except Exception:
            await producer.stop()
            raise
        self._producer = producer

    async def send(self, messages: list[Message]) -> None:
        """Send and wait for all of them."""
        from aiokafka.partitioner import murmur2

        sent = []
        for topic, key, value in messages:
            partitions = await self._producer.partitions_for(topic)
            partition = (murmur2(self._deployment) & 0x7FFFFFFF) % max(1, len(partitions))
            sent.append(await self._producer.send(topic, value=value, key=key.encode(), partition=partition))
        await asyncio.gather(*sent)

    async def close(self) -> None:
        """Disconnect."""
        await self._producer.stop()
