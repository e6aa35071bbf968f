"""What our log costs over the bare client, and what the embedded log does. `python -m tests.bench.bench_logs`.

Records of 300 bytes. Needs Java or a cluster for the Kafka lines, and says so where there is none.
"""

import asyncio
import os
import tempfile
import time
import uuid
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as KafkaPartition

from pipelines.broker import broker_settings, choose_broker, running_broker
from pipelines.kafka.access import ClusterAccess
from pipelines.kafka.kafka_log import KafkaLog
from pipelines.kafka.kafka_producer import BATCH_BYTES, LINGER_MS
from pipelines.local.embedded import file_log, memory_log
from pipelines.log import Log, TopicPartition, TopicSpec

RECORDS = 100_000
VALUE = b"v" * 300


async def write(log: Log, topic: str) -> float:
    """Records/s through our producer."""
    await log.create_topics([TopicSpec(name=topic, partitions=1)])
    began_s = time.perf_counter()
    async with log.producer() as producer:
        for _ in range(RECORDS):
            await producer.send(topic, value=VALUE, key=b"deployment", partition=0)
        await producer.flush()
    return RECORDS / (time.perf_counter() - began_s)


async def read(log: Log, topic: str) -> float:
    """Records/s through our reader."""
    async with log.reader({TopicPartition(topic, 0): 0}) as reader:
        began_s, count = time.perf_counter(), 0
        while count < RECORDS:
            count += len(await reader.get(max_records=2000, timeout_s=5.0))
        return RECORDS / (time.perf_counter() - began_s)


async def bare_write(bootstrap: str, topic: str) -> float:
    """Records/s through aiokafka's producer with the same settings."""
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=True,
        acks="all",
        linger_ms=LINGER_MS,
        max_batch_size=BATCH_BYTES,
    )
    await producer.start()
    try:
        began_s = time.perf_counter()
        for _ in range(RECORDS):
            await producer.send(topic, VALUE, b"deployment", partition=0, timestamp_ms=1)
        await producer.flush()
        return RECORDS / (time.perf_counter() - began_s)
    finally:
        await producer.stop()


async def bare_read(bootstrap: str, topic: str) -> float:
    """Records/s through aiokafka's consumer."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        where = KafkaPartition(topic, 0)
        consumer.assign([where])
        consumer.seek(where, 0)
        began_s, count = time.perf_counter(), 0
        while count < RECORDS:
            found = await consumer.getmany(timeout_ms=5000, max_records=2000)
            count += sum(map(len, found.values()))
        return RECORDS / (time.perf_counter() - began_s)
    finally:
        await consumer.stop()


async def embedded(name: str, log: Log) -> None:
    async with log:
        written, got = await write(log, "bench"), await read(log, "bench")
    print(f"embedded log, {name}: {written:,.0f} records/s written, {got:,.0f} read (no bar)")


async def kafka(bootstrap: str) -> None:
    async with KafkaLog(ClusterAccess(bootstrap=bootstrap)) as log:
        topic = f"bench.{uuid.uuid4().hex[:8]}"
        for _ in range(2):  # the first round warms the broker up
            await log.create_topics([TopicSpec(name=topic, partitions=1)])
            bare, ours = await bare_write(bootstrap, topic), await write(log, topic)
            bare_got, ours_got = await bare_read(bootstrap, topic), await read(log, topic)
    print(f"kafka writes: {ours:,.0f} records/s, {ours / bare:.2f}x bare aiokafka (bar: > 0.4x)")
    print(f"kafka reads: {ours_got:,.0f} records/s, {ours_got / bare_got:.2f}x bare aiokafka (bar: > 0.5x)")


def main() -> None:
    """Print one line for each figure."""
    asyncio.run(embedded("memory", memory_log()))
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(embedded("files", file_log(Path(scratch))))
    choice = choose_broker(broker_settings(os.environ))
    if choice.kind == "embedded":
        print("kafka: not measured; " + "; ".join(over.reason for over in choice.passed_over))
        return
    with running_broker(choice) as bootstrap:
        asyncio.run(kafka(str(bootstrap)))


if __name__ == "__main__":
    main()
