"""What only Kafka has: compression, refusals of the cluster, answers that aiokafka does not raise."""

import asyncio
import uuid

import pytest

from pipelines.errors import ConfigError
from pipelines.kafka.access import ClusterAccess
from pipelines.kafka.kafka_log import KafkaLog
from pipelines.log import TopicPartition, TopicSpec

pytestmark = pytest.mark.kafka


@pytest.fixture
def access(kafka_bootstrap):
    return ClusterAccess(bootstrap=kafka_bootstrap)


@pytest.fixture
def topic():
    return f"kafka.{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_writes_and_reads(access, topic, codec):
    values = [b"%d" % number * 50 for number in range(200)]

    async def body() -> None:
        async with KafkaLog(access, codec=codec) as log:
            await log.create_topics([TopicSpec(name=topic, partitions=1)])
            async with log.producer() as producer:
                for value in values:
                    await producer.send(topic, value=value)
            async with log.reader({TopicPartition(topic, 0): 0}) as reader:
                back = []
                while len(back) < len(values):
                    back += await reader.get(timeout_s=5.0)
        assert [record.value for record in back] == values

    asyncio.run(body())


def test_a_topic_that_the_cluster_refuses_is_told_with_its_reason(access, topic):
    async def body() -> None:
        async with KafkaLog(access, replication=3) as log:
            with pytest.raises(ConfigError, match=rf"did not create {topic}: .*eplication factor"):
                await log.create_topics([TopicSpec(name=topic, partitions=1)])
            assert await log.partition_counts([topic]) == {}

    asyncio.run(body())


def test_asking_for_an_unknown_topic_does_not_make_it(access, topic):
    async def body() -> None:
        async with KafkaLog(access) as log:
            assert await log.partition_counts([topic]) == {}
            assert await log.partition_counts([topic]) == {}

    asyncio.run(body())


def test_a_topic_has_the_policy_that_was_asked_for(access, topic):
    async def body() -> None:
        async with KafkaLog(access) as log:
            spec = TopicSpec(name=topic, partitions=1, policy="compact", retention_ms=-1, max_record_bytes=2_000_000)
            await log.create_topics([spec])
            assert await log.topic_settings(topic) == {
                "cleanup.policy": "compact",
                "retention.ms": "-1",
                "max.message.bytes": "2065536",
            }

    asyncio.run(body())
