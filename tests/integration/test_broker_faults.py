"""A broker that is killed, paused or unreachable under clients at work: nothing is lost, errors come in seconds."""

import asyncio
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Callable

import pytest

from pipelines.broker import JvmKafka, broker_settings, choose_broker
from pipelines.errors import ConfigError
from pipelines.kafka.access import ClusterAccess
from pipelines.kafka.kafka_log import KafkaLog
from pipelines.log import Log, LogUnavailableError, TopicPartition, TopicSpec

PARTITIONS = 3


@pytest.fixture(scope="module")
def jvm():
    """A broker of these tests' own, on the JVM."""
    settings = broker_settings({name: text for name, text in os.environ.items() if name != "TWINCAST_BOOTSTRAP"})
    choice = choose_broker(settings)
    if choice.kind != "jvm":
        pytest.skip("no Apache Kafka on the JVM here: " + "; ".join(over.reason for over in choice.passed_over))
    with JvmKafka(choice.classpath, java=choice.java) as running:
        yield running


@pytest.fixture
def broker(jvm):
    """The broker, running, whatever the test before did to it."""
    return jvm.start()


@pytest.fixture
def topic():
    return f"faults.{uuid.uuid4().hex[:8]}"


def connect(broker: JvmKafka, **changes) -> KafkaLog:
    return KafkaLog(ClusterAccess(bootstrap=broker.bootstrap), **changes)


class Traffic:
    """One producer and one reader, at work until told to stop."""

    def __init__(self, log: Log, topic: str) -> None:
        self.log = log
        self.topic = topic
        self.sent = 0
        self.read: list[tuple[int, int, int]] = []
        self.stopping = False

    async def produce(self) -> None:
        async with self.log.producer() as producer:
            while not self.stopping:
                for _ in range(20):
                    await producer.send(self.topic, value=b"%d" % self.sent, partition=self.sent % PARTITIONS)
                    self.sent += 1
                await asyncio.sleep(0.01)
            await producer.flush()

    async def consume(self) -> None:
        async with self.log.reader({TopicPartition(self.topic, number): 0 for number in range(PARTITIONS)}) as reader:
            while not self.stopping or len({value for *_, value in self.read}) < self.sent:
                for record in await reader.get(timeout_s=0.5):
                    self.read.append((record.partition, record.offset, int(record.value or b"")))

    def require_whole(self) -> None:
        """Nothing lost; in order; no offset twice. Idempotence keeps a record from being stored twice, too."""
        assert sorted(value for *_, value in self.read) == list(range(self.sent))
        for number in range(PARTITIONS):
            mine = [(offset, value) for partition, offset, value in self.read if partition == number]
            assert mine == sorted(mine)


def under_traffic(broker: JvmKafka, topic: str, fault: Callable[[], Awaitable[None]]) -> Traffic:
    async def body() -> Traffic:
        async with connect(broker) as log:
            await log.create_topics([TopicSpec(name=topic, partitions=PARTITIONS)])
            traffic = Traffic(log, topic)
            async with asyncio.timeout(100), asyncio.TaskGroup() as tasks:
                tasks.create_task(traffic.produce())
                tasks.create_task(traffic.consume())
                await asyncio.sleep(1.0)
                await fault()
                before = traffic.sent
                await asyncio.sleep(1.0)
                traffic.stopping = True
            assert traffic.sent > before > 0
            return traffic

    return asyncio.run(body())


@pytest.mark.kafka
@pytest.mark.slow
def test_nothing_is_lost_when_the_broker_is_killed_and_comes_back(broker, topic):
    async def kill() -> None:
        await asyncio.to_thread(broker.kill)
        await asyncio.sleep(2.0)
        await asyncio.to_thread(broker.restart)

    under_traffic(broker, topic, kill).require_whole()


@pytest.mark.kafka
@pytest.mark.slow
def test_nothing_is_lost_when_the_broker_stands_still_for_5_s(broker, topic):
    async def pause() -> None:
        broker.pause()
        await asyncio.sleep(5.0)
        broker.resume()

    under_traffic(broker, topic, pause).require_whole()


@pytest.mark.kafka
@pytest.mark.slow
def test_a_producer_whose_sequence_broke_is_replaced_and_sends_all_again(broker, topic):
    async def body() -> None:
        async with connect(broker) as log:
            await log.create_topics([TopicSpec(name=topic, partitions=1)])
            async with log.producer() as producer:
                await producer.send(topic, value=b"0")
                await producer.flush()
                # A gap in the numbers, as after a broker has lost what it had acknowledged.
                state = producer._client._txn_manager
                state.increment_sequence_number(TopicPartition(topic, 0), 7)
                for number in range(1, 50):
                    await producer.send(topic, value=b"%d" % number)
                await producer.flush()
                assert producer.revivals == 1
            async with log.reader({TopicPartition(topic, 0): 0}) as reader:
                records = await reader.get(timeout_s=10.0)
            assert [int(r.value or b"") for r in records] == list(range(50))

    asyncio.run(body())


@pytest.mark.kafka
@pytest.mark.slow
def test_a_dead_broker_is_told_within_the_time_given(broker, topic):
    async def body() -> None:
        async with connect(broker, timeout_s=2.0) as log:
            await log.create_topics([TopicSpec(name=topic, partitions=1)])
            producer = log.producer()
            await producer.__aenter__()
            await producer.send(topic, value=b"v")
            await producer.flush()
            await asyncio.to_thread(broker.kill)
            began_s = time.monotonic()
            with pytest.raises(LogUnavailableError, match="did not answer within 2 s"):
                await log.end_offsets([TopicPartition(topic, 0)])
            await producer.send(topic, value=b"w")
            with pytest.raises(LogUnavailableError, match="has not stored 1 records within 1 s"):
                await producer.flush(timeout_s=1.0)
            assert time.monotonic() - began_s < 40.0
            await asyncio.to_thread(broker.restart)
            await producer.flush(timeout_s=30.0)
            await producer.close()
            assert await log.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 2}

    asyncio.run(body())


@pytest.mark.kafka
@pytest.mark.slow
def test_closing_a_producer_does_not_wait_for_a_dead_broker_for_ever(broker, topic):
    async def body() -> None:
        async with connect(broker, timeout_s=2.0) as log:
            await log.create_topics([TopicSpec(name=topic, partitions=1)])
            producer = log.producer()
            await producer.__aenter__()
            await producer.send(topic, value=b"v")
            await producer.flush()
            await asyncio.to_thread(broker.kill)
            await producer.send(topic, value=b"w")
            began_s = time.monotonic()
            with pytest.raises(LogUnavailableError, match="has not stored 1 records"):
                await producer.close()
            assert time.monotonic() - began_s < 40.0

    asyncio.run(body())


def unanswered(address: str) -> str:
    async def body() -> None:
        async with KafkaLog(ClusterAccess(bootstrap=address), connect_timeout_s=1.0):
            pass

    began_s = time.monotonic()
    with pytest.raises(ConfigError) as refusal:
        asyncio.run(body())
    assert time.monotonic() - began_s < 30.0
    return str(refusal.value)


def test_an_unknown_broker_is_told_in_one_line_within_seconds():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        text = unanswered(address)
    assert text.startswith(f"no Kafka answers at {address}")
    assert "TWINCAST_BOOTSTRAP" in text
    assert "\n" not in text


def test_a_server_that_accepts_and_says_nothing_is_told_within_seconds():
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        assert "no Kafka answers" in unanswered(f"127.0.0.1:{mute.getsockname()[1]}")


def test_what_the_library_says_of_a_failed_contact_is_in_the_error_and_not_beside_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        assert "Connect call failed" in unanswered(f"127.0.0.1:{nobody.getsockname()[1]}")
    assert not [record for record in caplog.records if record.name == "aiokafka"]
