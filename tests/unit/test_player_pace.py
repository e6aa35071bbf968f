"""Playing: the same records at any speed, in time, and nothing that speaks of all topics before what it speaks of."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from synthetic import service

from pipelines.errors import ConfigError
from pipelines.ingest.recording import Recording, event_of, in_order
from pipelines.local.embedded import memory_log
from pipelines.log import LogRecord, TopicPartition
from pipelines.outputs import Outgoing
from pipelines.partitions import partition_of
from pipelines.playback import as_incoming, messages_of
from pipelines.player import play
from pipelines.provision import create
from pipelines.settings import parse_slo
from schemas.topics import INPUTS, REQUESTS, STEPS, TICKS

PARTITIONS = 4


def messages(seconds: float = 4.0) -> list[Outgoing]:
    events = in_order(event_of(record) for record in service(seconds))
    recording = Recording("synthetic", "S3", min(event.at_us for event in events), events)
    return list(messages_of(recording, (parse_slo("ttft_s:0.95:0.5"),)))


async def played(sent: list[Outgoing], speed: float) -> tuple[list[LogRecord], float]:
    async with memory_log() as log:
        await create(log, PARTITIONS)
        began_s = time.monotonic()
        async with log.producer() as producer:
            await play(producer, sent, PARTITIONS, speed=speed)
        took_s = time.monotonic() - began_s
        places = [TopicPartition(topic.name, n) for topic in INPUTS for n in range(PARTITIONS)]
        async with log.reader(dict.fromkeys(places, 0)) as reader:
            found: list[LogRecord] = []
            while records := await reader.get(timeout_s=0.05):
                found += records
        return found, took_s


def test_every_speed_gives_the_records_of_the_recording_with_its_partitions_offsets_and_times() -> None:
    sent = messages()
    for speed in (float("inf"), 20.0):
        found, took_s = asyncio.run(played(sent, speed))
        there = {(r.topic, r.partition, r.offset): (r.key, r.value) for r in found}
        assert there == {(m.topic, m.partition, m.offset): (m.key, m.value) for m in as_incoming(sent, PARTITIONS)}
        assert sorted(r.timestamp_ms for r in found) == sorted(m.at_us // 1000 for m in sent)
        span_s = (sent[-1].at_us - sent[0].at_us) / 1e6
        if speed == 20.0:
            assert span_s / speed <= took_s < span_s / speed + 10.0


def test_a_tick_is_sent_when_all_before_it_is_stored() -> None:
    class Producer:
        def __init__(self) -> None:
            self.pending: list[str] = []
            self.violations = 0

        async def send(self, topic: str, **record: Any) -> None:
            if topic not in (REQUESTS.name, STEPS.name):
                self.violations += len(self.pending)
            self.pending.append(topic)

        async def flush(self, timeout_s: float = 60.0) -> None:
            self.pending.clear()

    async def act() -> None:
        producer = Producer()
        result = await play(producer, messages(), PARTITIONS, speed=float("inf"))  # type: ignore[arg-type]
        assert producer.violations == 0
        assert producer.pending == []
        assert result.offsets[(TICKS.name, partition_of("d", PARTITIONS))] == 1

    asyncio.run(act())


def test_playing_stops_when_it_is_told_to() -> None:
    answers: Iterator[bool] = iter([False] * 10 + [True])

    async def act() -> None:
        async with memory_log() as log:
            await create(log, PARTITIONS)
            async with log.producer() as producer:
                stopped = await play(producer, messages(), PARTITIONS, speed=float("inf"), stop=lambda: next(answers))
        assert stopped.messages == 10

    asyncio.run(act())


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan")])
def test_a_speed_that_is_none_is_refused(speed: float) -> None:
    with pytest.raises(ConfigError, match="speed must be above 0"):
        asyncio.run(played([], speed))
