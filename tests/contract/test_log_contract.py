"""What every log promises (pipelines.log), held against memory, files and a real Apache Kafka alike."""

import asyncio
import itertools
import time

import pytest
from log_bench import contents, drain, make, put

from pipelines.log import (
    MAX_RECORD_BYTES,
    Log,
    LogRecord,
    OffsetOutOfRangeError,
    Producer,
    RecordRefusedError,
    TopicMismatchError,
    TopicPartition,
    TopicSpec,
    UnknownTopicError,
)
from pipelines.partitions import partition_of

YEAR_2025_MS = 1_735_689_600_000


@pytest.mark.kafka
def test_this_suite_runs_on_a_container_too(a_container):
    assert a_container.startswith("127.0.0.1:")


async def send_and_flush(producer: Producer, topic: str) -> None:
    await producer.send(topic, value=b"v")
    await producer.flush()


def test_records_come_back_as_they_were_sent(bench):
    keys = [None, b"", b"k", b"\xff\x00"]
    values = [None, b"", b"v", bytes(range(256))]
    headers = [(), (("h", b""),), (("twice", b"1"), ("twice", b"2"), ("ü", b"\xff"))]
    # Without key and value there is nothing to send.
    sent = [(k, v, h) for k, v, h in itertools.product(keys, values, headers) if (k, v) != (None, None)]

    async def body(log: Log) -> None:
        topic = await make(log, bench.name())
        async with log.producer() as producer:
            for number, (key, value, some) in enumerate(sent):
                await producer.send(topic, key=key, value=value, headers=some, timestamp_ms=YEAR_2025_MS - number)
        back = await contents(log, topic)
        assert [(r.key, r.value, r.headers) for r in back] == sent
        assert [r.timestamp_ms for r in back] == [YEAR_2025_MS - number for number in range(len(sent))]
        assert [(r.topic, r.partition, r.offset) for r in back] == [(topic, 0, number) for number in range(len(sent))]

    bench.run(body)


def test_records_of_one_partition_keep_their_order(bench):
    async def body(log: Log) -> None:
        topic = await make(log, bench.name(), partitions=3)
        async with log.producer() as producer:
            for number in range(3000):
                await producer.send(topic, value=b"%d" % number, partition=number % 3)
            await producer.flush()
            ends = await log.end_offsets([TopicPartition(topic, p) for p in range(3)])
        back = await contents(log, topic)
        assert list(ends.values()) == [1000, 1000, 1000]
        for partition in range(3):
            mine = [r for r in back if r.partition == partition]
            assert [r.offset for r in mine] == list(range(1000))
            assert [int(r.value) for r in mine] == list(range(partition, 3000, 3))

    bench.run(body)


def test_a_key_chooses_its_partition_as_in_kafka(bench):
    keys = [f"deployment-{number}".encode() for number in range(40)]

    async def body(log: Log) -> None:
        topic = await make(log, bench.name(), partitions=5)
        async with log.producer() as producer:
            for key in keys:
                await producer.send(topic, key=key, value=b"v")
        back = await contents(log, topic)
        assert {r.key: r.partition for r in back} == {key: partition_of(key, 5) for key in keys}

    bench.run(body)


def test_records_without_a_key_all_arrive(bench):
    async def body(log: Log) -> None:
        topic = await make(log, bench.name(), partitions=3)
        await put(log, topic, [b"%d" % number for number in range(30)])
        assert sorted(int(r.value) for r in await contents(log, topic)) == list(range(30))

    bench.run(body)


def test_a_record_without_a_timestamp_gets_the_present(bench):
    async def body(log: Log) -> None:
        topic = await make(log, bench.name())
        before_ms = time.time_ns() // 1_000_000
        await put(log, topic, [b"v"])
        after_ms = time.time_ns() // 1_000_000
        assert before_ms <= (await contents(log, topic))[0].timestamp_ms <= after_ms

    bench.run(body)


def test_what_flush_returned_for_is_there_for_the_next_one(bench):
    async def first(log: Log) -> None:
        await make(log, bench.name(), partitions=2)
        producer = log.producer()
        async with producer:
            await producer.send(bench.name(), value=b"kept", partition=1)
            await producer.flush()
            assert (await log.end_offsets([TopicPartition(bench.name(), 1)]))[TopicPartition(bench.name(), 1)] == 1
        await producer.close()
        await log.commit(bench.name("group"), {TopicPartition(bench.name(), 1): 1})

    async def second(log: Log) -> None:
        assert await log.partition_counts([bench.name()]) == {bench.name(): 2}
        assert [r.value for r in await contents(log, bench.name())] == [b"kept"]
        committed = await log.committed(bench.name("group"), [TopicPartition(bench.name(), p) for p in (0, 1)])
        assert list(committed.values()) == [None, 1]

    bench.run(first)
    bench.run(second)


def test_a_position_is_the_next_record_to_read(bench):
    async def body(log: Log) -> None:
        topic = await make(log, bench.name())
        where = TopicPartition(topic, 0)
        await put(log, topic, [b"%d" % number for number in range(10)])
        async with log.reader({where: 4}) as reader:
            assert reader.position(where) == 4
            records = await drain(reader, 6)
            assert [r.offset for r in records] == [4, 5, 6, 7, 8, 9]
            assert reader.position(where) == 10
            reader.seek(where, 8)
            assert reader.position(where) == 8
            assert [r.offset for r in await drain(reader, 2)] == [8, 9]
            with pytest.raises(KeyError):
                reader.seek(TopicPartition(topic, 7), 0)
        await reader.close()

    bench.run(body)


def test_get_returns_no_more_than_asked_for_and_loses_none(bench):
    async def body(log: Log) -> None:
        topic = await make(log, bench.name(), partitions=2)
        await put(log, topic, [b"%d" % number for number in range(20)])
        async with log.reader({TopicPartition(topic, p): 0 for p in range(2)}) as reader:
            pieces: list[list[LogRecord]] = []
            while sum(map(len, pieces)) < 20:
                pieces.append(await reader.get(max_records=3, timeout_s=5.0))
        assert max(map(len, pieces)) <= 3
        assert sorted(int(r.value) for piece in pieces for r in piece) == list(range(20))

    bench.run(body)


def test_get_at_the_end_waits_for_its_time_and_wakes_for_a_record(bench):
    async def body(log: Log) -> None:
        topic = await make(log, bench.name())
        async with log.reader({TopicPartition(topic, 0): 0}) as reader, log.producer() as producer:
            began_s = time.monotonic()
            assert await reader.get(timeout_s=0.2) == []
            assert 0.15 < time.monotonic() - began_s < 15.0
            waiting = asyncio.create_task(reader.get(timeout_s=30.0))
            await asyncio.sleep(0.1)
            began_s = time.monotonic()
            await producer.send(topic, value=b"news")
            assert [r.value for r in await waiting] == [b"news"]
            assert time.monotonic() - began_s < 15.0

    bench.run(body)


def test_an_empty_partition_begins_and_ends_at_zero(bench):
    async def body(log: Log) -> None:
        topic = await make(log, bench.name())
        where = TopicPartition(topic, 0)
        assert await log.begin_offsets([where]) == {where: 0}
        assert await log.end_offsets([where]) == {where: 0}
        assert await log.offsets_for_times({where: 0}) == {where: None}
        assert await log.begin_offsets([]) == {}

    bench.run(body)


def test_times_lead_to_the_first_offset_not_before_them(bench):
    async def body(log: Log) -> None:
        topic = await make(log, bench.name())
        where = TopicPartition(topic, 0)
        async with log.producer() as producer:
            for at_ms in (1000, 2000, 2000, 5000):
                await producer.send(topic, value=b"v", timestamp_ms=YEAR_2025_MS + at_ms)
                await producer.flush()
        expected = {0: 0, 1000: 0, 1001: 1, 2000: 1, 2001: 3, 5000: 3, 5001: None}
        for at_ms, offset in expected.items():
            assert await log.offsets_for_times({where: YEAR_2025_MS + at_ms}) == {where: offset}, at_ms

    bench.run(body)


def test_deleted_records_are_out_of_range_and_the_rest_stays(bench):
    async def body(log: Log) -> None:
        topic = await make(log, bench.name())
        where = TopicPartition(topic, 0)
        await put(log, topic, [b"%d" % number for number in range(10)])
        with pytest.raises(OffsetOutOfRangeError):
            await log.delete_before({where: 11})
        await log.delete_before({where: 6})
        assert await log.begin_offsets([where]) == {where: 6}
        assert [r.offset for r in await contents(log, topic)] == [6, 7, 8, 9]
        for offset in (0, 5, 11):
            async with log.reader({where: offset}) as reader:
                with pytest.raises(OffsetOutOfRangeError) as refusal:
                    await drain(reader, 1)
                assert (refusal.value.where, refusal.value.begin, refusal.value.end) == (where, 6, 10)
        await put(log, topic, [b"10"])
        assert [r.offset for r in await contents(log, topic)] == [6, 7, 8, 9, 10]

    bench.run(body)


def test_all_records_may_be_deleted_and_offsets_go_on(bench):
    async def body(log: Log) -> None:
        topic = await make(log, bench.name())
        where = TopicPartition(topic, 0)
        await put(log, topic, [b"a", b"b"])
        await log.delete_before({where: 2})
        assert await log.begin_offsets([where]) == await log.end_offsets([where]) == {where: 2}
        await put(log, topic, [b"c"])
        assert [(r.offset, r.value) for r in await contents(log, topic)] == [(2, b"c")]

    bench.run(body)


def test_topics_are_created_once_and_a_wrong_number_of_partitions_changes_nothing(bench):
    async def body(log: Log) -> None:
        one, two = TopicSpec(name=bench.name("one"), partitions=2), TopicSpec(name=bench.name("two"), partitions=3)
        assert await log.create_topics([one]) == [one.name]
        assert await log.create_topics([one]) == []
        wrong = TopicSpec(name=one.name, partitions=4)
        with pytest.raises(TopicMismatchError, match=rf"{one.name} has 2 partitions, expected 4; delete the topic"):
            await log.create_topics([wrong, two])
        assert await log.partition_counts([one.name, two.name]) == {one.name: 2}
        assert await log.create_topics([one, two]) == [two.name]
        assert await log.partition_counts([one.name, two.name]) == {one.name: 2, two.name: 3}

    bench.run(body)


def test_an_unknown_topic_is_named_and_not_created(bench):
    async def body(log: Log) -> None:
        known = await make(log, bench.name())
        missing = bench.name("missing")
        for where in (TopicPartition(missing, 0), TopicPartition(known, 1), TopicPartition(known, -1)):
            with pytest.raises(UnknownTopicError, match="has no"):
                await log.end_offsets([where])
            with pytest.raises(UnknownTopicError, match="has no"):
                async with log.reader({where: 0}):
                    pass
            with pytest.raises(UnknownTopicError, match="has no"):
                await log.commit(bench.name("group"), {where: 0})
            async with log.producer() as producer:
                with pytest.raises(UnknownTopicError, match="has no"):
                    await producer.send(where.topic, value=b"v", partition=where.partition)
        assert await log.partition_counts([missing]) == {}
        assert (await log.end_offsets([TopicPartition(known, 0)]))[TopicPartition(known, 0)] == 0

    bench.run(body)


def test_a_record_that_a_broker_would_refuse_is_not_sent_and_harms_no_other(bench):
    hour_ahead_ms = time.time_ns() // 1_000_000 + 3_700_000
    refused = [
        {"value": b"v" * (MAX_RECORD_BYTES + 1)},
        {"value": b"v" * MAX_RECORD_BYTES, "headers": (("h", b"x"),)},
        {"value": b"v", "timestamp_ms": hour_ahead_ms},
        {"value": b"v", "timestamp_ms": -1},
        {"value": None},
    ]

    async def body(log: Log) -> None:
        topic = await make(log, bench.name())
        async with log.producer() as producer:
            await producer.send(topic, value=b"before")
            for record in refused:
                with pytest.raises(RecordRefusedError):
                    await producer.send(topic, **record)
            await producer.send(topic, value=b"v" * MAX_RECORD_BYTES)
            await producer.send(topic, value=b"after")
        sizes = [len(r.value) for r in await contents(log, topic)]
        assert sizes == [len(b"before"), MAX_RECORD_BYTES, len(b"after")]

    bench.run(body)


def test_a_producer_with_a_higher_limit_reaches_topics_that_allow_it(bench):
    async def body(log: Log) -> None:
        topic = await make(log, bench.name(), max_record_bytes=2 * MAX_RECORD_BYTES)
        async with log.producer(max_record_bytes=2 * MAX_RECORD_BYTES) as producer:
            await producer.send(topic, value=b"v" * (2 * MAX_RECORD_BYTES))
        assert [len(r.value) for r in await contents(log, topic)] == [2 * MAX_RECORD_BYTES]

    bench.run(body)


def test_a_compacted_topic_refuses_a_record_without_a_key(bench):
    async def body(log: Log) -> None:
        topic = await make(log, bench.name(), policy="compact")
        async with log.producer() as producer:
            with pytest.raises(RecordRefusedError):
                await send_and_flush(producer, topic)
            await producer.send(topic, key=b"k", value=b"w")
            await producer.send(topic, key=b"k", value=None)
        assert [(r.key, r.value) for r in await contents(log, topic)] == [(b"k", b"w"), (b"k", None)]

    bench.run(body)


def test_each_group_has_its_own_offsets(bench):
    async def body(log: Log) -> None:
        topic = await make(log, bench.name(), partitions=2)
        here, there = TopicPartition(topic, 0), TopicPartition(topic, 1)
        one, two = bench.name("one"), bench.name("zwei ü/..")
        assert await log.committed(one, [here, there]) == {here: None, there: None}
        await log.commit(one, {here: 5, there: 0})
        await log.commit(one, {here: 3})
        await log.commit(two, {here: 9})
        assert await log.committed(one, [here, there]) == {here: 3, there: 0}
        assert await log.committed(two, [here, there]) == {here: 9, there: None}

    bench.run(body)
