"""The page as a program: a log read, a process that answers, a port served, until asked to stop. Decides nothing.

Law: it changes nothing in the log, so any number of pages may run beside any number of workers.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable

from pipelines.places import Place, open_log
from pipelines.settings import Settings
from pipelines.web.access import Address
from pipelines.web.asking import Asker
from pipelines.web.feed import Feed
from pipelines.web.fleet import Fleet
from pipelines.web.server import Page, serving

log = logging.getLogger("twincast.web")

LOOK_EVERY_S = 0.5


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
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    known, asker = Fleet(), Asker()
    async with open_log(settings, place) as open_, contextlib.AsyncExitStack() as stack:
        feed = Feed(open_, known.take, known.link)
        page = Page(known, asker, settings, address, str(place))
        bound = await stack.enter_async_context(serving(page, address))
        await asker.start()
        stack.push_async_callback(asker.stop)
        reading = asyncio.create_task(feed.run())
        stack.push_async_callback(_ended, reading)
        on_ready(address.url(bound))
        while not stop.is_set() and not reading.done() and parent in (None, os.getppid()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await stop.wait()
        if reading.done():
            await reading


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
