"""The outlets of one worker, beside it in its process: metrics and alerts. Does no work of the worker's.

Law: an outlet that fails because the log is away goes on when it is back; it never ends the worker.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from pipelines.client.ages import LiveClock, ReplayClock
from pipelines.errors import ConfigError
from pipelines.log import Log, TopicPartition
from pipelines.outlets.alert_file import AlertFile
from pipelines.outlets.alert_relay import AlertRelay
from pipelines.outlets.alertmanager import Alertmanager
from pipelines.outlets.metrics_port import metrics_port
from pipelines.outlets.outlet_settings import OutletSettings, metrics_address
from pipelines.outlets.prometheus_metrics import READ_TOPICS, Metrics
from pipelines.posts import Report
from schemas.topics import ALERTS

log = logging.getLogger("twincast.outlets")

RETRY_S = 2.0
LOOK_BACK_RECORDS = 50


@contextlib.asynccontextmanager
async def outlets(
    settings: OutletSettings, log_: Log, *, group: str, partitions: int, report: Callable[[], Report]
) -> AsyncIterator[None]:
    """Run what the settings name while the context is open. Raises ConfigError for a port that cannot be had."""
    async with contextlib.AsyncExitStack() as stack:
        if settings.metrics:
            host, port = metrics_address(settings.metrics)
            speed = settings.replayed_speed
            metrics = Metrics(LiveClock() if speed is None else ReplayClock(speed=speed), report)
            bound = await stack.enter_async_context(metrics_port(metrics, host, port))
            log.info("metrics at http://%s:%d/metrics", host, bound)
            await stack.enter_async_context(_kept_up(lambda: _follow(log_, metrics, partitions)))
        if settings.alertmanager or settings.alerts_file:
            webhook = (
                await stack.enter_async_context(Alertmanager(settings.alertmanager)) if settings.alertmanager else None
            )
            file = AlertFile(settings.alerts_file) if settings.alerts_file else None
            await stack.enter_async_context(_kept_up(lambda: AlertRelay(log_, group, webhook=webhook, file=file).run()))
        yield


@contextlib.asynccontextmanager
async def _kept_up(run: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run a task, and again when the log was away."""

    async def again() -> None:
        while True:
            try:
                await run()
            except (ConfigError, LookupError, OSError) as error:
                log.warning("an outlet begins again in %.0f s: %s", RETRY_S, error)
                await asyncio.sleep(RETRY_S)

    task = asyncio.create_task(again())
    task.add_done_callback(_tell_of_failure)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _tell_of_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("an outlet has ended", exc_info=task.exception())


async def _follow(log_: Log, metrics: Metrics, partitions: int) -> None:
    """Feed metrics with what is written; alerts from the beginning, since those of long ago may still fire."""
    places = [TopicPartition(topic, number) for topic in READ_TOPICS for number in range(partitions)]
    begins, ends = await log_.begin_offsets(places), await log_.end_offsets(places)
    starts = {
        place: begins[place] if place.topic == ALERTS.name else max(begins[place], ends[place] - LOOK_BACK_RECORDS)
        for place in places
    }
    async with log_.reader(starts) as reader:
        while True:
            for record in await reader.get():
                metrics.take(record)
