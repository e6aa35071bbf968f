"""The OTLP/HTTP endpoint: what the sink gets is what was sent, and a client's mistake is never a server error."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from pipelines.errors import ConfigError
from pipelines.ingest.otlp_receiver import otlp_app, receiving

JSON = b'{"resourceSpans":[]}'
PROTOBUF = b"\x0a\x02\x12\x00"


async def post(sink: Callable[[str, bytes], Awaitable[None]], path: str, body: bytes, headers: dict[str, str]) -> Any:
    async with TestClient(TestServer(otlp_app(sink, max_bytes=10_000))) as client:
        answer = await client.post(path, data=body, headers=headers)
        return answer.status, await answer.read()


def exchange(path: str, body: bytes, kind: str, encoding: str = "", fail: bool = False) -> tuple[int, bytes, list[Any]]:
    stored: list[Any] = []

    async def sink(topic: str, value: bytes) -> None:
        if fail:
            raise ConnectionError("broker away")
        stored.append((topic, value))

    headers = {"Content-Type": kind} | ({"Content-Encoding": encoding} if encoding else {})
    status, answer = asyncio.run(post(sink, path, body, headers))
    return status, answer, stored


@pytest.mark.parametrize(("kind", "body"), [("application/json", JSON), ("application/x-protobuf", PROTOBUF)])
@pytest.mark.parametrize(("path", "topic"), [("/v1/traces", "otlp_spans"), ("/v1/metrics", "otlp_metrics")])
@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_the_sink_gets_what_was_sent(kind: str, body: bytes, path: str, topic: str, encoding: str) -> None:
    sent = gzip.compress(body) if encoding else body
    status, _, stored = exchange(path, sent, kind, encoding)
    assert (status, stored) == (200, [(topic, body)])


@pytest.mark.parametrize(
    ("body", "kind", "encoding", "expected"),
    [
        (b"", "application/json", "", 400),
        (PROTOBUF, "application/json", "", 400),
        (JSON, "application/x-protobuf", "", 400),
        (JSON, "text/plain", "", 415),
        (b"{" + b" " * 20_000 + b"}", "application/json", "", 413),
        (gzip.compress(b"{" + b" " * 5_000_000 + b"}"), "application/json", "gzip", 413),
        (PROTOBUF, "application/x-protobuf", "snappy", 415),
        (PROTOBUF, "application/x-protobuf", "LZ4", 415),
        (JSON, "application/json", "zstd", 400),
        (b"\x1f\x8bnonsense", "application/json", "gzip", 400),
    ],
)
def test_a_clients_mistake_is_answered_and_not_stored(body: bytes, kind: str, encoding: str, expected: int) -> None:
    status, _, stored = exchange("/v1/traces", body, kind, encoding)
    assert (status, stored) == (expected, [])


def test_a_sink_that_fails_makes_the_sender_retry() -> None:
    status, _, _ = exchange("/v1/traces", JSON, "application/json", fail=True)
    assert status == 503


def test_it_listens_while_it_is_open_and_a_taken_port_is_one_clear_line() -> None:
    stored: list[tuple[str, bytes]] = []

    async def sink(topic: str, value: bytes) -> None:
        stored.append((topic, value))

    async def run() -> None:
        async with receiving(sink, port=0) as port:
            async with aiohttp.ClientSession() as session:
                headers = {"Content-Type": "application/json"}
                answer = await session.post(f"http://127.0.0.1:{port}/v1/traces", data=JSON, headers=headers)
                assert answer.status == 200
            with pytest.raises(ConfigError, match=f"port {port}"):
                async with receiving(sink, port=port):
                    pass

    asyncio.run(run())
    assert stored == [("otlp_spans", JSON)]
