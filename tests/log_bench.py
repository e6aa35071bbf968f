"""What the contract tests of logs share: the log under test, opened again and again, and ways to fill and empty it."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pipelines.log import Log, LogRecord, Reader, TopicPartition, TopicSpec


@dataclass
class Bench:
    """Opens the log under test, again and again on the same records, and makes names that nobody else uses."""

    open: Callable[[], Log]
    prefix: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:10]}")

    def name(self, what: str = "topic") -> str:
        return f"{self.prefix}.{what}"

    def run(self, body: Callable[[Log], Awaitable[None]]) -> None:
        async def within() -> None:
            async with asyncio.timeout(60), self.open() as log:
                await body(log)

        asyncio.run(within())


async def make(log: Log, name: str, partitions: int = 1, **more) -> str:
    await log.create_topics([TopicSpec(name=name, partitions=partitions, **more)])
    return name


async def put(log: Log, topic: str, values: list[bytes], **more) -> None:
    async with log.producer() as producer:
        for value in values:
            await producer.send(topic, value=value, **more)


async def drain(reader: Reader, count: int, timeout_s: float = 20.0) -> list[LogRecord]:
    records: list[LogRecord] = []
    deadline_s = time.monotonic() + timeout_s
    while len(records) < count and time.monotonic() < deadline_s:
        records += await reader.get(timeout_s=0.5)
    return records


async def contents(log: Log, topic: str) -> list[LogRecord]:
    counts = await log.partition_counts([topic])
    where = [TopicPartition(topic, number) for number in range(counts[topic])]
    begins, ends = await log.begin_offsets(where), await log.end_offsets(where)
    async with log.reader(begins) as reader:
        return await drain(reader, sum(ends[w] - begins[w] for w in where))
