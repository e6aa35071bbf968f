"""Exports of OpenTelemetry that come in over HTTP, stored in the raw topics. Reads none of them.

Law: an export is acknowledged when the log has stored it and not before; one that could not be stored in time is
answered with 503, so that its sender tries again, and may then stand in the log twice.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from pipelines.errors import ConfigError
from pipelines.log import MAX_RECORD_BYTES, Log, LogUnavailableError, Producer, TopicSpec
from schemas.topics import RAW_INPUTS

STORE_TIMEOUT_S = 5.0
"""Half of what exporters wait by default."""
MAX_WAITING = 32
"""Exports that wait for their turn; further ones are told to come back: a broker that is away must cost no memory."""


class Store:
    """Gives exports to a producer, one after the other: an error must be told to the sender of the export it befell."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._turn = asyncio.Lock()
        self._waiting = 0
        self.exports = 0
        """Exports stored."""

    async def take(self, topic: str, value: bytes) -> None:
        """Return when the export is stored. Raises LogUnavailableError or RecordRefusedError when it is not."""
        if self._waiting >= MAX_WAITING:
            raise LogUnavailableError(f"{self._waiting} exports wait to be stored; send again later")
        self._waiting += 1
        try:
            async with self._turn:
                await self._producer.send(topic, value=value)
                await self._producer.flush(STORE_TIMEOUT_S)
        finally:
            self._waiting -= 1
        self.exports += 1


@contextlib.asynccontextmanager
async def otlp_port(log: Log, host: str, port: int, partitions: int) -> AsyncIterator[int]:
    """Take exports while the context is open; gives the port, of the system's choice for 0.

    Creates the raw topics where they are missing. Raises ConfigError when the port cannot be had.
    """
    try:
        from pipelines.ingest.otlp_receiver import receiving
    except ImportError as error:
        raise ConfigError(
            f"OTLP over HTTP needs a package that is not here ({error}); install twincast[otlp]"
        ) from error

    found = await log.partition_counts([topic.name for topic in RAW_INPUTS])
    missing = [TopicSpec.of(topic, partitions=partitions) for topic in RAW_INPUTS if topic.name not in found]
    if missing:
        await log.create_topics(missing)
    async with (
        log.producer() as producer,
        receiving(Store(producer).take, host=host, port=port, max_bytes=MAX_RECORD_BYTES) as bound,
    ):
        yield bound


def host_and_port(text: str) -> tuple[str, int]:
    """The address in `PORT` or `HOST:PORT`; loopback unless a host is named. Raises ConfigError.

    >>> host_and_port("4318"), host_and_port("0.0.0.0:4318"), host_and_port("[::1]:0")
    (('127.0.0.1', 4318), ('0.0.0.0', 4318), ('::1', 0))
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535 or (":" in host and not host.startswith("[")):
        raise ConfigError(f"otlp must be PORT or HOST:PORT such as 4318 or 0.0.0.0:4318, got {text!r}; correct it")
    return host.strip("[]") or "127.0.0.1", int(port)
