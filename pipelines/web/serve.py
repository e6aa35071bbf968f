"""The page as a program: a log read, a process that answers, a port served, until asked to stop. Decides nothing.

Law: it changes nothing in the log, so any number of pages may run beside any number of workers.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from pipelines.log import Log
from pipelines.places import Place, open_log
from pipelines.settings import Settings
from pipelines.web.access import Address
from pipelines.web.asking import Asker
from pipelines.web.feed import Feed
from pipelines.web.fleet import Fleet
from pipelines.web.server import Page, serving

LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class RunningPage:
    """A page that is served at `url`; `reading` ends only with an error."""

    url: str
    fleet: Fleet
    feed: Feed
    asker: Asker
    reading: "asyncio.Task[None]"


@contextlib.asynccontextmanager
async def running_page(log: Log, settings: Settings, address: Address, where: str) -> AsyncIterator[RunningPage]:
    """Serve the page of a log while the context is open. Raises ConfigError when the port cannot be had."""
    known, asker = Fleet(), Asker()
    feed = Feed(log, known.take, known.link)
    page = Page(known, asker, settings, address, where)
    async with serving(page, address) as bound, contextlib.AsyncExitStack() as stack:
        await asker.start()
        stack.push_async_callback(asker.stop)
        reading = asyncio.create_task(feed.run())
        stack.push_async_callback(_ended, reading)
        yield RunningPage(address.url(bound), known, feed, asker, reading)


async def serve_page(
    settings: Settings,
    place: Place,
    address: Address,
    on_ready: Callable[[str], None] = lambda _: None,
    *,
    parent: int | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, or until the process `parent` is no longer ours; `on_ready` hears the address.

    Raises ConfigError.
    """
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_log(settings, place) as log, running_page(log, settings, address, str(place)) as page:
        on_ready(page.url)
        while not stop.is_set() and not page.reading.done() and parent in (None, os.getppid()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await stop.wait()
        if page.reading.done():
            await page.reading


async def _ended(task: "asyncio.Task[None]") -> None:
    """Whatever it ended with was told where it was awaited."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
