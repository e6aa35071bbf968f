"""Reading the log for the page, through outages: every record once, and the outage told."""

import asyncio
from collections.abc import Iterable, Mapping

import pytest

from pipelines.local.clients import LocalReader
from pipelines.local.embedded import LocalLog, memory_log
from pipelines.log import Log, LogRecord, LogUnavailableError, OffsetOutOfRangeError, TopicPartition, TopicSpec
from pipelines.provision import create
from pipelines.web import feed as feed_module
from pipelines.web.feed import Feed
from pipelines.web.fleet import Link
from schemas.topics import ACTIONS, ENGINES, FORECASTS, REQUESTS

PARTITIONS = 2


class Shaky(LocalLog):
    """A log that can be made not to answer."""

    def __init__(self, log: LocalLog) -> None:
        super().__init__(log._store)
        self.down = False

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        if self.down:
            raise LogUnavailableError("no answer; start it")
        return await super().end_offsets(partitions)


class Backwards(Shaky):
    """Its readers give the last topic first: no log promises an order across topics."""

    def reader(self, positions: Mapping[TopicPartition, int]) -> LocalReader:
        return super().reader(dict(reversed(list(positions.items()))))


async def send(log: Log, topic: str, *values: str, partition: int = 0) -> None:
    async with log.producer() as producer:
        for value in values:
            await producer.send(topic, key=b"d", value=value.encode(), partition=partition)


async def until(condition: object, within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "PROBE_EVERY_S", 0.02)
    monkeypatch.setattr(feed_module, "RETRY_S", 0.02)


def test_after_an_outage_it_goes_on_where_it_was(quick: None) -> None:
    async def act() -> tuple[list[str], list[bool], Link]:
        seen: list[LogRecord] = []
        link, ups = Link(), []
        async with Shaky(memory_log()) as log:
            await create(log, PARTITIONS)
            await send(log, FORECASTS.name, "1", "2")
            reading = asyncio.create_task(Feed(log, seen.append, link).run())
            await until(lambda: len(seen) == 2)
            for number in (3, 4):
                log.down = True
                await until(lambda: not link.up)
                ups.append("no answer" in link.detail)
                await send(log, FORECASTS.name, str(number))
                log.down = False
                await until(lambda: link.up and len(seen) == number)  # noqa: B023
            reading.cancel()
            return [(record.value or b"").decode() for record in seen], ups, link

    seen, told, link = asyncio.run(act())
    assert seen == ["1", "2", "3", "4"]
    assert told == [True, True]
    assert link.up
    assert link.detail == ""


def test_settings_of_engines_are_read_before_all_else_and_history_only_so_far_back(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(feed_module.LOOK_BACK_RECORDS, REQUESTS.name, 3)

    async def act() -> list[tuple[str, str]]:
        seen: list[LogRecord] = []
        async with Backwards(memory_log()) as log:
            await create(log, PARTITIONS)
            await send(log, REQUESTS.name, *map(str, range(10)))
            await send(log, ENGINES.name, "a", "b", partition=1)
            feed = Feed(log, seen.append, Link())
            reading = asyncio.create_task(feed.run())
            await asyncio.wait_for(feed.caught_up.wait(), 5.0)
            reading.cancel()
        return [(record.topic, (record.value or b"").decode()) for record in seen]

    assert asyncio.run(act()) == [
        (ENGINES.name, "a"),
        (ENGINES.name, "b"),
        *((REQUESTS.name, str(number)) for number in (7, 8, 9)),
    ]


def test_a_log_without_topics_is_waited_for(quick: None) -> None:
    async def act() -> tuple[str, int]:
        seen: list[LogRecord] = []
        link = Link()
        async with memory_log() as log:
            reading = asyncio.create_task(Feed(log, seen.append, link).run())
            await until(lambda: "no topic" in link.detail)
            why = link.detail
            await create(log, PARTITIONS)
            await until(lambda: link.up)
            await send(log, ACTIONS.name, "1")
            await until(lambda: bool(seen))
            reading.cancel()
        return why, len(seen)

    assert asyncio.run(act()) == ("the log has no topic of ours yet", 1)


def test_records_that_the_log_gave_up_are_passed_over(quick: None) -> None:
    async def act() -> list[str]:
        seen: list[str] = []
        async with memory_log() as log:
            await log.create_topics([TopicSpec(name=FORECASTS.name, partitions=1)])
            await send(log, FORECASTS.name, "1", "2", "3", "4")
            where = TopicPartition(FORECASTS.name, 0)
            feed = Feed(log, lambda record: seen.append((record.value or b"").decode()), Link())
            feed._positions = {where: 1}
            await log.delete_before({where: 3})
            with pytest.raises(OffsetOutOfRangeError):
                await feed._read()
            reading = asyncio.create_task(feed.run())
            await until(lambda: seen == ["4"])
            reading.cancel()
        return seen

    assert asyncio.run(act()) == ["4"]


class Grudging(Shaky):
    """Its readers end with a cancellation of their own, as clients of a broker that is gone do."""

    def reader(self, positions: Mapping[TopicPartition, int]) -> LocalReader:
        made = super().reader(positions)

        async def close() -> None:
            raise asyncio.CancelledError

        made.close = close  # type: ignore[method-assign]
        return made


def test_a_reader_that_ends_badly_ends_no_reading(quick: None) -> None:
    async def act() -> list[str]:
        seen: list[str] = []
        link = Link()
        async with Grudging(memory_log()) as log:
            await create(log, PARTITIONS)
            reading = asyncio.create_task(Feed(log, lambda r: seen.append((r.value or b"").decode()), link).run())
            await until(lambda: link.up)
            log.down = True
            await until(lambda: not link.up)
            log.down = False
            await send(log, FORECASTS.name, "1")
            await until(lambda: bool(seen))
            assert not reading.done()
            reading.cancel()
        return seen

    assert asyncio.run(act()) == ["1"]
