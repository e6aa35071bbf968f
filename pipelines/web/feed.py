"""Reads the log into the fleet, for as long as it is asked to, through outages of the log. Writes nothing.

Law: after an outage it goes on where it was, so no record is folded twice or left out; a record that the log no longer
holds is skipped; whether the log answers is known within `SILENT_S`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping

from pipelines.errors import ConfigError
from pipelines.log import Log, LogRecord, OffsetOutOfRangeError, Reader, TopicPartition
from pipelines.web.fleet import Link
from schemas.topics import (
    ACTIONS,
    ALERTS,
    CHANGES,
    DLQ,
    ENGINES,
    FORECASTS,
    REQUESTS,
    SCORES,
    SLOS,
    STATE,
    STEPS,
)

log = logging.getLogger("twincast.web")

LOOK_BACK_RECORDS = {
    REQUESTS.name: 20_000,
    STEPS.name: 3_000,
    FORECASTS.name: 720,
    SCORES.name: 2_000,
    ALERTS.name: 200,
    ACTIONS.name: 200,
    CHANGES.name: 200,
    STATE.name: 32,
}
"""How far back to read, per partition, so that the page is not empty at first; topics not named: from the beginning."""
FROM_THE_BEGINNING = (ENGINES.name, SLOS.name)
FROM_NOW_ON = (DLQ.name,)
READ_TOPICS = (*FROM_THE_BEGINNING, *LOOK_BACK_RECORDS, *FROM_NOW_ON)
PROBE_EVERY_S = 2.0
"""A reader of Kafka falls silent when the broker is gone, as it does when nothing happens: so the log is asked."""
SILENT_S = 6.0
RETRY_S = 1.0
TURN_RECORDS = 100


class Feed:
    """`on_record` gets each record once, in the order of its partition; `link` tells how the log stands."""

    def __init__(self, log_: Log, on_record: Callable[[LogRecord], None], link: Link) -> None:
        self._log = log_
        self._on_record = on_record
        self._link = link
        self._positions: dict[TopicPartition, int] = {}
        self.caught_up = asyncio.Event()
        """Set once all that stood in the log at first was read."""

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            try:
                await self._read()
            except OffsetOutOfRangeError as error:
                self._positions[error.where] = max(error.begin, min(self._positions[error.where], error.end))
            except TimeoutError:
                self._down(f"no answer within {SILENT_S - PROBE_EVERY_S:g} s")
                await asyncio.sleep(RETRY_S)
            except (ConfigError, OSError) as error:
                self._down(str(error) or type(error).__name__)
                await asyncio.sleep(RETRY_S)

    async def _read(self) -> None:
        await self._find_positions()
        await self._read_settings()
        ends = await self._log.end_offsets(list(self._positions))
        async with _reading(self._log, self._positions) as reader:
            self._up()
            probing = asyncio.create_task(self._probe())
            try:
                while True:
                    await self._fold(await reader.get(timeout_s=0.25))
                    if probing.done():
                        probing.result()
                    if all(self._positions[place] >= end for place, end in ends.items()):
                        self.caught_up.set()
            finally:
                probing.cancel()

    async def _read_settings(self) -> None:
        """Read engines and targets to their ends first: the other records are seen by their light."""
        places = [place for place in self._positions if place.topic in FROM_THE_BEGINNING]
        ends = await self._log.end_offsets(places)
        async with _reading(self._log, {place: self._positions[place] for place in places}) as reader:
            while any(self._positions[place] < end for place, end in ends.items()):
                found = await reader.get(timeout_s=RETRY_S)
                if not found:  # an end offset may be a gap
                    return
                await self._fold(found)

    async def _fold(self, records: list[LogRecord]) -> None:
        for count, record in enumerate(records, 1):
            self._on_record(record)
            self._positions[TopicPartition(record.topic, record.partition)] = record.offset + 1
            if count % TURN_RECORDS == 0:
                await asyncio.sleep(0)

    async def _find_positions(self) -> None:
        """Where to begin each partition that is not known yet. Topics that are missing are left for the next time."""
        known = await self._log.partition_counts(READ_TOPICS)
        places = [TopicPartition(topic, number) for topic, count in known.items() for number in range(count)]
        new = [place for place in places if place not in self._positions]
        if not places:
            raise ConfigError("the log has no topic of ours yet")
        begins, ends = await self._log.begin_offsets(new), await self._log.end_offsets(new)
        for place in new:
            back = ends[place] - LOOK_BACK_RECORDS.get(place.topic, 0)
            self._positions[place] = begins[place] if place.topic in FROM_THE_BEGINNING else max(begins[place], back)

    async def _probe(self) -> None:
        """Ends with an error when the log does not answer."""
        while True:
            await asyncio.sleep(PROBE_EVERY_S)
            async with asyncio.timeout(SILENT_S - PROBE_EVERY_S):
                await self._log.end_offsets(list(self._positions)[:1])

    def _up(self) -> None:
        if not self._link.up:
            self._link.up, self._link.since_us, self._link.detail = True, time.time_ns() // 1000, ""
            log.info("reads %s", self._log.name)

    def _down(self, why: str) -> None:
        if self._link.up or not self._link.since_us:
            self._link.up, self._link.since_us = False, time.time_ns() // 1000
            log.warning("%s does not answer: %s", self._log.name, why)
        self._link.detail = why


@contextlib.asynccontextmanager
async def _reading(log_: Log, positions: Mapping[TopicPartition, int]) -> AsyncIterator[Reader]:
    """A reader, let go of in a task of its own: clients of a broker that is gone end with errors and cancellations."""
    reader = await log_.reader(dict(positions)).__aenter__()
    try:
        yield reader
    finally:
        await asyncio.gather(asyncio.create_task(reader.close()), return_exceptions=True)
