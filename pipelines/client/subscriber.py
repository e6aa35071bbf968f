"""The newest forecast and the open proposals of every deployment, read as they come. Decides nothing.

Law: a caller that is slow gets the newest forecast of each deployment and no other; an older or repeated one never
replaces a newer one; however long the log is away, reading goes on when it is back.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Self

from pipelines.client.ages import Clock, LiveClock
from pipelines.client.open_actions import OpenActions
from pipelines.client.reading import Reading
from pipelines.errors import ConfigError
from pipelines.log import Log, LogRecord, TopicPartition, require_topics
from pipelines.outputs import MADE_HEADER
from pipelines.partitions import partition_of
from pipelines.places import find_place, open_log
from pipelines.settings import Settings, read_settings
from schemas.actions import Action
from schemas.changes import Change
from schemas.codec import SchemaError, decode, encode
from schemas.forecasts import Forecast
from schemas.topics import ACTIONS, CHANGES, FORECASTS

log = logging.getLogger("twincast.client")

LOOK_BACK_RECORDS = {FORECASTS.name: 20, ACTIONS.name: 200}
"""Per partition, so that a subscriber that starts knows the present state at once."""
MAX_DEPLOYMENTS = 10_000
FIRST_RETRY_S, LAST_RETRY_S = 0.2, 5.0
GET_TIMEOUT_S = 1.0


@contextlib.asynccontextmanager
async def subscribe(
    bootstrap: str | None = None, *, clock: Clock | None = None, settings: Settings | None = None
) -> AsyncIterator["Subscriber"]:
    """A subscriber of a Kafka cluster, or of what `TWINCAST_*` and twincast.toml name where `bootstrap` is None.

    Raises ConfigError when nothing answers there, or it has no topic of forecasts; later outages are waited for.
    """
    chosen = settings or read_settings()
    async with (
        open_log(chosen, find_place(chosen, bootstrap).place) as opened,
        Subscriber(opened, clock=clock or LiveClock()) as subscriber,
    ):
        yield subscriber


class Subscriber:
    """Reads forecasts from an open log in a task of its own; use it with `async with`."""

    def __init__(self, log_: Log, *, clock: Clock) -> None:
        self._log = log_
        self._clock = clock
        self._newest: OrderedDict[str, Reading] = OrderedDict()
        self._actions = OpenActions(clock)
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._partitions: dict[str, int] = {}
        self.received = 0
        """Forecasts read that were newer than what was known."""
        self.skipped = 0
        """Forecasts that a newer one replaced before they were asked for."""
        self.refused = 0
        """Records that cannot be read, and forecasts that no longer count."""
        self.trouble = ""
        """Why reading stands still, empty while it does not."""

    async def __aenter__(self) -> Self:
        self._partitions = await self._log.partition_counts(LOOK_BACK_RECORDS)
        require_topics([FORECASTS.name], self._partitions, self._log.name)
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *failure: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])  # what ended it was raised by `next`

    @property
    def deployments(self) -> tuple[str, ...]:
        """Every deployment that was heard of, fresh or not."""
        return tuple(sorted(self._newest))

    def newest(self, deployment: str) -> Reading | None:
        """The newest forecast if it may still be used, else None."""
        reading = self._newest.get(deployment)
        return reading if reading is not None and reading.fresh else None

    def require(self, deployment: str) -> Reading:
        """The newest forecast. Raises StaleForecastError if it is past its time, LookupError if none ever came."""
        reading = self._newest.get(deployment)
        if reading is None:
            raise LookupError(
                f"no forecast of {deployment!r} came so far; known: {', '.join(self.deployments) or 'none'}"
            )
        return reading.require_fresh()

    def actions(self, deployment: str) -> tuple[Action, ...]:
        """What is proposed now: neither taken back nor expired. `executable` says whether it is more than advice."""
        return self._actions.standing(deployment)

    async def next(self, timeout_s: float | None = None) -> Reading | None:
        """The next fresh forecast of any deployment; None if there was none within `timeout_s`.

        For one caller. Deployments take turns, each with its newest. Raises what ended the reading, if it ended.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    reading = self._pop()
                    if reading is not None:
                        return reading
                    self._news.clear()
                    self._raise_failure()
                    await self._news.wait()
        return None

    async def updates(self) -> AsyncIterator[Reading]:
        """What `next` gives, without end."""
        while True:
            reading = await self.next()
            if reading is not None:
                yield reading

    async def report(self, change: Change) -> None:
        """Tell the twin what was done; returns when that is stored. A forecast that was obeyed is scored apart."""
        counts = await self._log.partition_counts([CHANGES.name])
        require_topics([CHANGES.name], counts, self._log.name)
        async with self._log.producer() as producer:
            await producer.send(
                CHANGES.name,
                key=change.deployment.encode(),
                value=encode(change),
                partition=partition_of(change.deployment, counts[CHANGES.name]),
            )
            await producer.flush()

    def _pop(self) -> Reading | None:
        while self._waiting:
            deployment, _ = self._waiting.popitem(last=False)
            reading = self._newest.get(deployment)
            if reading is not None and reading.fresh:
                return reading
            self.refused += 1
        return None

    def _raise_failure(self) -> None:
        if self._task is not None and self._task.done() and not self._task.cancelled():
            error = self._task.exception()
            if error is not None:
                raise error

    async def _read(self) -> None:
        retry_s = FIRST_RETRY_S
        try:
            while True:
                try:
                    async with self._log.reader(await self._starts()) as reader:
                        while True:
                            records = await reader.get(timeout_s=GET_TIMEOUT_S)
                            self.trouble, retry_s = "", FIRST_RETRY_S
                            for record in records:
                                self._take(record)
                except (ConfigError, LookupError, OSError) as error:  # away, cut off, or fallen behind retention
                    self.trouble = str(error)
                    log.warning("reading again in %.1f s: %s", retry_s, error)
                await asyncio.sleep(retry_s)
                retry_s = min(2.0 * retry_s, LAST_RETRY_S)
        finally:
            self._news.set()

    async def _starts(self) -> dict[TopicPartition, int]:
        places = [TopicPartition(topic, number) for topic, count in self._partitions.items() for number in range(count)]
        begins, ends = await self._log.begin_offsets(places), await self._log.end_offsets(places)
        return {place: max(begins[place], ends[place] - LOOK_BACK_RECORDS[place.topic]) for place in places}

    def _take(self, record: LogRecord) -> None:
        try:
            found = decode(record.topic, record.value or b"").record
            made_us = int(dict(record.headers).get(MADE_HEADER, b"0"))
        except (SchemaError, ValueError) as error:
            log.warning("%s cannot be read: %s", record, error)
            self.refused += 1
            return
        if isinstance(found, Forecast):
            self._on_forecast(found, made_us)
        else:
            self._actions.take(found, made_us)

    def _on_forecast(self, forecast: Forecast, made_us: int) -> None:
        known = self._newest.get(forecast.deployment)
        if known is not None and not _newer(forecast, made_us, known):
            self.refused += 1
            return
        self._newest[forecast.deployment] = Reading(forecast, made_us, self._clock, _surface_of(known))
        self._newest.move_to_end(forecast.deployment)
        while len(self._newest) > MAX_DEPLOYMENTS:
            gone, _ = self._newest.popitem(last=False)
            self._waiting.pop(gone, None)
        self.received += 1
        self.skipped += forecast.deployment in self._waiting
        self._waiting[forecast.deployment] = None
        self._news.set()


def _newer(forecast: Forecast, made_us: int, known: Reading) -> bool:
    """By event time, the fine one of a tick last. Event time that runs back, as when a recording is played again,
    counts as newer once what is known is stale."""
    before = (known.forecast.as_of_us, known.forecast.phase == "fine")
    now = (forecast.as_of_us, forecast.phase == "fine")
    return now > before or (now != before and made_us > known.made_us and not known.fresh)


def _surface_of(known: Reading | None) -> Reading | None:
    """The newest reading with a response surface, without those before it: a chain of them would have no end."""
    if known is None or not known.forecast.responses:
        return None if known is None else known.surface_of
    return replace(known, surface_of=None)
