"""Metrics endpoints of engines, scraped beside a worker into the steps topic. Reads no topic and decides no count.

Law: a log that is away costs the counts of that moment and nothing else; scraping goes on when it is back.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence

from pipelines.ingest.endpoint import Endpoint
from pipelines.ingest.recording import event_of
from pipelines.ingest.scraper import Scraper
from pipelines.log import Log, LogUnavailableError
from pipelines.outbox import Outbox
from pipelines.outputs import Outgoing
from schemas.codec import encode
from schemas.steps import EngineStats

log = logging.getLogger("twincast.scraping")


@contextlib.asynccontextmanager
async def scraping(
    log_: Log, endpoints: Sequence[Endpoint], partitions: int, period_s: float = 5.0
) -> AsyncIterator[Scraper | None]:
    """Scrape while the context is open; nothing where there are no endpoints."""
    if not endpoints:
        yield None
        return
    async with log_.producer() as producer:
        outbox = Outbox(producer, partitions)

        async def write(record: EngineStats) -> None:
            event = event_of(record)
            message = Outgoing(event.topic, record.deployment, event.key.encode(), encode(record), (), event.at_us)
            try:
                await outbox.write(message)
            except LogUnavailableError as error:
                log.warning("counts of %s/%s are lost: %s", record.deployment, record.engine, error)

        scraper = Scraper(endpoints, write, period_s)
        task = asyncio.create_task(scraper.run())
        try:
            yield scraper
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
