"""The ingest stage on a log: records keyed by deployment, bad bytes in the DLQ, offsets once all is stored."""

import asyncio
import json
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ingest_raw import spans

from pipelines.ingest.raw_stage import RawStage
from pipelines.local.embedded import LocalLog, memory_log
from pipelines.log import LogRecord, TopicPartition
from pipelines.outbox import Outbox
from pipelines.partitions import partition_of
from pipelines.provision import create
from pipelines.raw_drive import MAX_OPEN_RECORDS, RAW_NAMES, Abreast, Progress, ingest, messages_of
from schemas.codec import decode
from schemas.topics import DLQ, OTLP_SPANS, REQUESTS

PARTITIONS = 3
START_NS = 1_796_052_000_000_000_000
PLACES = [TopicPartition(name, number) for name in RAW_NAMES for number in range(PARTITIONS)]


async def records(log: LocalLog, topic: str) -> list[LogRecord]:
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    async with log.reader(dict.fromkeys(places, 0)) as reader:
        return await reader.get(timeout_s=0.01)


async def until(log: LocalLog, committed: int) -> None:
    async with asyncio.timeout(10.0):
        while sum(offset or 0 for offset in (await log.committed("g-ingest", PLACES)).values()) < committed:
            await asyncio.sleep(0.01)


async def stage_on(log: LocalLog, committed: int) -> None:
    """Run the stage until so many offsets are committed."""
    async with log.producer() as producer:
        task = asyncio.create_task(ingest(log, Outbox(producer, PARTITIONS), RawStage(), "g"))
        await until(log, committed)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def test_spans_become_records_of_their_deployment_and_bad_bytes_dead_letters() -> None:
    async def act() -> None:
        async with memory_log() as log:
            await create(log, PARTITIONS)
            async with log.producer() as producer:
                await producer.send(OTLP_SPANS.name, key=b"any", value=spans("llm_request", "llm_request"))
                await producer.send(OTLP_SPANS.name, key=b"k", value=b"{broken", headers=[("h", b"1")])
                await producer.send(OTLP_SPANS.name, key=b"gone", value=None)
                await producer.flush()
            await stage_on(log, committed=3)
            found = await records(log, REQUESTS.name)
            assert [decode(REQUESTS.name, record.value or b"").record.deployment for record in found] == ["default"] * 2
            assert {record.partition for record in found} == {partition_of("default", PARTITIONS)}
            (letter,) = await records(log, DLQ.name)
            assert (letter.key, letter.value) == (b"k", b"{broken")
            assert dict(letter.headers)["h"] == b"1"
            assert dict(letter.headers)["twincast_position"].startswith(b"otlp_spans[")

    asyncio.run(act())


def test_what_was_committed_is_not_read_again_and_what_was_not_is() -> None:
    async def act() -> None:
        async with memory_log() as log:
            await create(log, PARTITIONS)
            async with log.producer() as producer:
                await producer.send(OTLP_SPANS.name, value=spans("llm_request"), partition=0)
                await producer.flush()
                await stage_on(log, committed=1)
                await producer.send(OTLP_SPANS.name, value=spans("llm_request"), partition=0)
                await producer.flush()
            await stage_on(log, committed=2)
            assert len(await records(log, REQUESTS.name)) == 2

    asyncio.run(act())


def sglang(name: str, trace: int, end_s: int, **attributes: object) -> bytes:
    """One span of SGLang's: its request or a stage of its scheduler."""
    kinds = {str: "stringValue", int: "intValue", float: "doubleValue"}
    span = {
        "traceId": f"{trace:032x}", "spanId": f"{end_s:016x}", "name": name,
        "startTimeUnixNano": str(START_NS + trace * 10**9), "endTimeUnixNano": str(START_NS + end_s * 10**9),
        "attributes": [{"key": key, "value": {kinds[type(value)]: value}} for key, value in attributes.items()],
    }  # fmt: skip
    return json.dumps(
        {"resourceSpans": [{"scopeSpans": [{"scope": {"name": "sglang server"}, "spans": [span]}]}]}
    ).encode()


def request_of(trace: int, end_s: int, isl_tokens: int = 9) -> bytes:
    told = {"rid": f"r{trace}", "gen_ai.latency.e2e": 0.5, "gen_ai.usage.completion_tokens": 3}
    return sglang("Req", trace, end_s, **told, **{"gen_ai.usage.prompt_tokens": isl_tokens})


def test_offsets_are_committed_up_to_the_oldest_record_of_which_a_span_is_held() -> None:
    """Traces follow each other without a gap, so that some span is held at any time."""

    async def act() -> None:
        async with memory_log() as log:
            await create(log, PARTITIONS)
            async with log.producer() as producer:
                for second in range(40):
                    await producer.send(OTLP_SPANS.name, value=request_of(second, second + 1), partition=1)
                await producer.flush()
            await stage_on(log, committed=33)
            place = TopicPartition(OTLP_SPANS.name, 1)
            committed = (await log.committed("g-ingest", [place]))[place]
            assert committed is not None
            assert 33 <= committed <= 35  # the last five seconds are held
            found = len(await records(log, REQUESTS.name))
            assert found == committed
            await stage_on(log, committed=committed)  # a new stage holds again what the first one held
            again = RawStage()
            for second in range(committed, 40):
                again.handle(OTLP_SPANS.name, request_of(second, second + 1))
            assert again.held_spans == 40 - committed

    asyncio.run(act())


def test_progress_gives_every_offset_once_and_in_order() -> None:
    progress = Progress()
    one, two = TopicPartition("a", 0), TopicPartition("a", 1)
    for offset, place in enumerate([one, two, one, two, one]):
        progress.read(LogRecord(*place, offset, 0, None, b"", ()))
    progress.settle(2)
    assert progress.take() == {one: 1, two: 2}
    assert progress.take() == {}
    progress.forget([two])
    progress.settle(None)
    assert progress.take() == {one: 5}


def test_a_trace_that_never_ends_does_not_hold_up_the_rest_for_ever() -> None:
    progress = Progress()
    place = TopicPartition("a", 0)
    for offset in range(MAX_OPEN_RECORDS + 5):
        progress.read(LogRecord(*place, offset, 0, None, b"", ()))
    progress.settle(0)
    assert progress.take() == {place: 5}


def test_a_span_refused_after_its_record_had_gone_by_is_a_dead_letter_of_its_own() -> None:
    stage = RawStage()
    first = LogRecord(OTLP_SPANS.name, 0, 7, 0, None, request_of(1, 2, isl_tokens=-1), ())
    later = LogRecord(OTLP_SPANS.name, 0, 8, 0, None, request_of(30, 31), ())
    assert messages_of(first, stage.handle(first.topic, first.value)) == []
    (letter,) = messages_of(later, stage.handle(later.topic, later.value))
    assert (letter.topic, json.loads(letter.value)["trace_id"]) == (DLQ.name, f"{1:032x}")
    assert dict(letter.headers)["twincast_reason"] == b"out_of_range"


def test_a_clock_in_the_future_does_not_keep_a_record_out_of_the_log() -> None:
    """A log refuses timestamps far ahead; what the record says of its time is for the core to judge."""
    ahead = spans("llm_request").replace(b"1796052", b"4000000")

    async def act() -> None:
        async with memory_log() as log:
            await create(log, PARTITIONS)
            async with log.producer() as producer:
                await producer.send(OTLP_SPANS.name, value=ahead)
                await producer.flush()
            await stage_on(log, committed=1)
            assert len(await records(log, REQUESTS.name)) == 1

    asyncio.run(act())


ONE, TWO = TopicPartition("a", 0), TopicPartition("a", 1)


def at(place: TopicPartition, offset: int, timestamp_ms: int) -> LogRecord:
    return LogRecord(*place, offset, timestamp_ms, None, b"x", ())


def drained(abreast: Abreast, positions: dict[TopicPartition, int], *, patient: bool = True) -> list[int]:
    found = []
    while (record := abreast.pop(positions, patient=patient)) is not None:
        found.append(record.timestamp_ms)
    return found


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), max_size=30), st.randoms(use_true_random=False))
def test_partitions_come_out_by_time_however_far_one_is_read_ahead(first: list[bool], random: Random) -> None:
    """Records at even and uneven milliseconds; whichever partition is read first, time goes on evenly."""
    abreast, positions, ends = Abreast(), {ONE: 0, TWO: 0}, {ONE: len(first), TWO: len(first)}
    found: list[int] = []
    while positions != ends:
        place = random.choice([place for place in (ONE, TWO) if positions[place] < ends[place]])
        abreast.push(at(place, positions[place], 2 * positions[place] + place.partition))
        positions[place] += 1
        if abreast.must_ask:
            abreast.learn_ends(ends)
        found += drained(abreast, positions)
    assert found == list(range(2 * len(first)))


def test_a_promised_record_that_is_not_there_is_waited_for_only_so_long() -> None:
    abreast = Abreast()
    abreast.push(at(ONE, 0, 5))
    assert abreast.must_ask
    abreast.learn_ends({ONE: 1, TWO: 1})
    assert drained(abreast, {ONE: 1, TWO: 0}) == []
    assert drained(abreast, {ONE: 1, TWO: 0}, patient=False) == [5]


def test_room_is_bounded_and_what_was_lost_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.raw_drive.MAX_HELD_BYTES", 3)
    abreast = Abreast()
    for offset in range(4):
        abreast.push(at(ONE, offset, offset))
    abreast.learn_ends({ONE: 4, TWO: 1})
    assert drained(abreast, {ONE: 4, TWO: 0}) == [0, 1]  # two are left, and those can wait
    abreast.forget([ONE])
    abreast.push(at(TWO, 0, 9))
    assert drained(abreast, {TWO: 1}) == [9]
    assert not abreast.must_ask


def test_a_record_after_the_end_of_a_round_waits_for_the_next() -> None:
    abreast = Abreast()
    abreast.push(at(ONE, 0, 1))
    abreast.learn_ends({ONE: 1})
    abreast.push(at(ONE, 1, 2))
    assert drained(abreast, {ONE: 2}) == [1]
    assert abreast.must_ask


def test_a_backlog_in_several_partitions_is_told_in_its_order() -> None:
    async def act() -> None:
        async with memory_log() as log:
            await create(log, PARTITIONS)
            async with log.producer() as producer:
                for second in range(60):
                    value = spans("llm_request").replace(b"179605200", str(179605200 + second).encode())
                    await producer.send(
                        OTLP_SPANS.name, value=value, partition=2 - second // 20, timestamp_ms=1_000 * second
                    )
                await producer.flush()
            await stage_on(log, committed=60)
            found = [
                decode(REQUESTS.name, record.value or b"").record.at_us for record in await records(log, REQUESTS.name)
            ]
            assert len(found) == 60
            assert found == sorted(found)

    asyncio.run(act())
