"""Metrics endpoints of engines, read on a period and handed on as engine counts. Keeps no history, computes no rates.

An endpoint that does not answer is skipped and counted, never waited for: each has its own deadline within the period.
Law: a page is handed on once, stamped with the moment its answer was complete; nothing an endpoint sends raises.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import aiohttp

from pipelines.errors import ConfigError
from pipelines.ingest.endpoint import Endpoint
from pipelines.ingest.engine_metrics import engine_stats
from pipelines.ingest.prometheus import parse_scrape
from schemas.steps import EngineStats

MAX_PAGE_BYTES = 8 * 1024 * 1024
StatsSink = Callable[[EngineStats], Awaitable[None]]


class Scraper:
    """Scrapes endpoints every `period_s` seconds. `counts` holds pages, failures and lines that were no samples."""

    def __init__(self, endpoints: Sequence[Endpoint], sink: StatsSink, period_s: float = 5.0) -> None:
        if not endpoints or not 0.1 <= period_s <= 3600.0:
            raise ConfigError(
                f"scraping needs endpoints and a period in [0.1, 3600] s, got {len(endpoints)}, {period_s}"
            )
        self._endpoints = tuple(endpoints)
        self._sink = sink
        self._period_s = period_s
        self.counts: Counter[str] = Counter()

    async def run(self, rounds: int | None = None) -> None:
        """Scrape until cancelled, or `rounds` times. A slow round delays none: the next one starts on the period."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._period_s * 0.8)) as session:
            done = 0
            while rounds is None or done < rounds:
                started = time.monotonic()
                await asyncio.gather(*(self._scrape(session, endpoint) for endpoint in self._endpoints))
                done += 1
                if rounds is None or done < rounds:
                    await asyncio.sleep(max(0.0, self._period_s - (time.monotonic() - started)))

    async def _scrape(self, session: aiohttp.ClientSession, endpoint: Endpoint) -> None:
        try:
            async with session.get(endpoint.url) as answer:
                answer.raise_for_status()
                page = await answer.content.read(MAX_PAGE_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError):
            self.counts["failures"] += 1
            return
        at_us = time.time_ns() // 1000
        scrape = parse_scrape(page.decode("utf-8", errors="replace").splitlines())
        self.counts["malformed_lines"] += scrape.malformed
        records = engine_stats(scrape.samples, endpoint.deployment, endpoint.engine, at_us)
        self.counts["pages" if records else "pages_without_counts"] += 1
        for record in records:
            await self._sink(record)
