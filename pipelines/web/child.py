"""The page as a process beside a worker, so that neither waits for the other. Serves nothing itself.

Law: the page ends when its worker does, however that ends; a page that fails is started again and stops no worker.
"""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping

from pipelines.free_port import require_free
from pipelines.places import Place
from pipelines.web.access import address_of, token_in

log = logging.getLogger("twincast.web")

EXIT_CONFIG = 2
AGAIN_AFTER_S = 2.0
STOP_TIMEOUT_S = 3.0


def environ_of(place: Place, environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a command of ours finds this place."""
    own = {"TWINCAST_NAMESPACE": place.namespace}
    if place.kind == "kafka":
        own["TWINCAST_BOOTSTRAP"] = place.where
    else:
        own |= {"TWINCAST_DATA_DIR": place.where, "TWINCAST_BOOTSTRAP": ""}
    return {**environ, **own}


@contextlib.asynccontextmanager
async def page_beside(address: str, environ: Mapping[str, str]) -> AsyncIterator[None]:
    """A page at PORT or HOST:PORT while the context is open. Raises ConfigError for an address that may not be, or is
    taken: whoever asks for a page is told at once, not in a log that says the page came to an end."""
    found = address_of(address, token_in(environ))
    require_free("the page", found.host, found.port)
    keeping = asyncio.create_task(_keep(address, environ))
    try:
        yield
    finally:
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping


async def _keep(address: str, environ: Mapping[str, str]) -> None:
    while True:
        code = await _run(address, environ)
        if code in (0, EXIT_CONFIG):
            log.error("the page ended (exit code %d); the worker goes on without it", code)
            return
        log.warning("the page ended (exit code %d) and is started again", code)
        await asyncio.sleep(AGAIN_AFTER_S)


async def _run(address: str, environ: Mapping[str, str]) -> int:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "pipelines.cli",
        "web",
        address,
        "--parent",
        str(os.getpid()),
        env=dict(environ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=sys.stderr,  # what a worker writes on stdout is for programs
        start_new_session=True,  # Ctrl-C is for the worker, which then stops the page
    )
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
