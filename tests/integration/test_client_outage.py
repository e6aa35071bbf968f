"""A subscriber through a restart of a real broker: stale meanwhile, and fresh again by itself."""

import asyncio
import time
from pathlib import Path

import pytest
from made_forecasts import forecast

from pipelines.broker import BrokerChoice, JvmKafka
from pipelines.client import LiveClock, Subscriber
from pipelines.kafka.access import cluster_access
from pipelines.kafka.kafka_log import KafkaLog
from pipelines.log import Log
from pipelines.partitions import partition_of
from pipelines.provision import create
from schemas.codec import encode
from schemas.topics import FORECASTS

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
PARTITIONS = 2


async def publish(log: Log, tick: int) -> None:
    made = forecast(tick, as_of_us=time.time_ns() // 1000, valid_s=3.0)
    async with log.producer() as producer:
        await producer.send(FORECASTS.name, key=b"d", value=encode(made), partition=partition_of("d", PARTITIONS))


def test_a_subscriber_is_stale_while_the_broker_is_away_and_fresh_when_it_is_back(
    kafka_choice: BrokerChoice, tmp_path: Path
) -> None:
    if kafka_choice.java is None or kafka_choice.classpath is None:
        pytest.skip("no Apache Kafka on the JVM here")
    broker = JvmKafka(kafka_choice.classpath, java=kafka_choice.java, data_dir=tmp_path / "kafka")

    async def main(bootstrap: str) -> None:
        async with KafkaLog(cluster_access({}, bootstrap)) as log:
            await create(log, PARTITIONS)
            async with Subscriber(log, clock=LiveClock()) as subscriber:
                await publish(log, 1)
                first = await subscriber.next(timeout_s=20.0)
                assert first is not None
                await asyncio.to_thread(broker.kill)
                assert await subscriber.next(timeout_s=4.0) is None
                assert subscriber.newest("d") is None
                await asyncio.to_thread(broker.start)
                await publish(log, 2)
                second = await subscriber.next(timeout_s=30.0)
                assert second is not None
                assert second.forecast.tick == 2

    with broker:
        asyncio.run(main(broker.bootstrap))
