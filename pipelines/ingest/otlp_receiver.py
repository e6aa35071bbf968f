"""An OTLP/HTTP endpoint of our own: takes exports from vLLM, SGLang or a Collector and hands the bytes on unchanged.

`/v1/traces` and `/v1/metrics`, protobuf and JSON, gzip or plain. Does not parse spans (the ingest stage does), and
answers only when the sink has taken the bytes, so that a sender that retries loses nothing.

Laws: what the sink gets is what was sent, unzipped; a body over the limit is never held in memory; nothing a client
sends makes it answer 5xx, only a sink that fails does (503, and the sender retries).
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from pipelines.errors import ConfigError
from pipelines.ingest.otlp import is_json
from schemas.codec import MAX_MESSAGE_BYTES
from schemas.topics import OTLP_METRICS, OTLP_SPANS

Sink = Callable[[str, bytes], Awaitable[None]]
"""Takes a topic's name and a value; returns when they are safe; raises what it likes if they are not."""

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
ENCODINGS = ("identity", "gzip", "deflate")
"""Those that are undone on the way in; the bytes of another would pass for an export."""
TOPIC_OF_PATH = {"/v1/traces": OTLP_SPANS.name, "/v1/metrics": OTLP_METRICS.name}


def otlp_app(sink: Sink, max_bytes: int = MAX_MESSAGE_BYTES) -> web.Application:
    """An application to be run on a loopback port; every accepted export is given to `sink` once."""
    app = web.Application(client_max_size=max_bytes)

    async def accept(request: web.Request) -> web.Response:
        kind = request.content_type
        if kind not in (PROTOBUF, JSON):
            return _answer(415, JSON, f"content type {kind}; expected {PROTOBUF} or {JSON}")
        encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ENCODINGS:
            return _answer(415, kind, f"content encoding {encoding[:40]}; expected gzip or none")
        try:
            body = await request.read()  # unzipped by aiohttp, piece by piece up to the limit
        except web.HTTPRequestEntityTooLarge:
            return _answer(413, kind, f"body over {max_bytes} bytes; lower the exporter's batch size")
        except web.RequestPayloadError as error:
            return _answer(400, kind, f"the body cannot be read: {error}")
        if not body or is_json(body) != (kind == JSON):
            return _answer(400, kind, f"the body is not {kind}")
        try:
            await sink(TOPIC_OF_PATH[request.path], body)
        except Exception as error:  # noqa: BLE001 - whatever the sink raises, the sender must retry
            return _answer(503, kind, f"not stored ({type(error).__name__}); retry")
        return web.Response(status=200, body=b"{}" if kind == JSON else b"", content_type=kind)

    for path in TOPIC_OF_PATH:
        app.router.add_post(path, accept)
    return app


@asynccontextmanager
async def receiving(
    sink: Sink, *, host: str = "127.0.0.1", port: int = 4318, max_bytes: int = MAX_MESSAGE_BYTES
) -> AsyncIterator[int]:
    """Listen while the context is open; gives the port (useful with port 0). Binds to loopback unless told otherwise.

    Raises ConfigError if the port cannot be had.
    """
    runner = web.AppRunner(otlp_app(sink, max_bytes), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise ConfigError(f"OTLP port {port} on {host} cannot be had ({error.strerror}); choose another") from error
    try:
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def _answer(status: int, kind: str, message: str) -> web.Response:
    """A google.rpc.Status with the message, in the sender's encoding."""
    if kind == PROTOBUF:
        text = message.encode()[:120]
        return web.Response(status=status, body=b"\x12" + bytes([len(text)]) + text, content_type=kind)
    return web.json_response({"message": message}, status=status)
