"""A port where Prometheus scrapes. Makes no metric.

Law: it answers GET /metrics and GET /healthz and nothing else, and only where it was told to listen.
"""

import contextlib
from collections.abc import AsyncIterator

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from pipelines.errors import ConfigError


@contextlib.asynccontextmanager
async def metrics_port(collector: Collector, host: str, port: int) -> AsyncIterator[int]:
    """Serve while the context is open; gives the port, of the system's choice for 0.

    Raises ConfigError when the port cannot be had.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    async def healthz(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", healthz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise ConfigError(
                f"metrics cannot be served at {host}:{port} ({error.strerror or error}); choose another port"
            ) from error
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
