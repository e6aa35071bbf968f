"""Messages of a worker on their way into the log. Decides no content.

Law: a message that is too large or that the log refuses is counted and told, and stops nobody; nothing else is lost
here.
"""

import logging
import time
from collections import Counter

from pipelines.errors import ConfigError
from pipelines.log import Producer, RecordRefusedError
from pipelines.outputs import MADE_HEADER, Outgoing
from pipelines.partitions import partition_of
from pipelines.provision import record_limit_bytes
from schemas.codec import MAX_STATE_BYTES
from schemas.topics import DLQ

log = logging.getLogger("twincast.outbox")


def _require_fit(message: Outgoing) -> None:
    """A broker that refuses a record for its size refuses those of its batch as well."""
    size_bytes, limit_bytes = len(message.key or b"") + len(message.value), record_limit_bytes(message.topic)
    if size_bytes > limit_bytes:
        raise RecordRefusedError(f"it has {size_bytes} bytes, over {limit_bytes}; trim or split it")


class Outbox:
    """Writes to a producer; a deployment's messages go to its partition out of `partitions`."""

    def __init__(self, producer: Producer, partitions: int) -> None:
        self._producer = producer
        self._partitions = partitions
        self.written: Counter[str] = Counter()
        """Records written, per topic; refused ones under "<topic> refused"."""

    async def write(self, message: Outgoing) -> None:
        """Take a message for writing; wait only while the send buffer is full."""
        partition = partition_of(message.deployment, self._partitions) if message.deployment else None
        made_us = time.time_ns() // 1000
        try:
            _require_fit(message)
            await self._producer.send(
                message.topic,
                key=message.key,
                value=message.value,
                headers=(*message.headers, (MADE_HEADER, str(made_us).encode())),
                partition=partition,
                timestamp_ms=min(message.at_us, made_us) // 1000 if message.at_us else None,  # a log takes no later one
            )
        except RecordRefusedError as error:
            log.error("%s of %s was not written: %s", message.topic, message.deployment or "-", error)
            self.written[f"{message.topic} refused"] += 1
            return
        self.written[message.topic] += 1
        if message.topic == DLQ.name:
            headers = dict(message.headers)
            log.warning(
                "%s refused: %s, %s",
                headers["twincast_position"].decode(),
                headers["twincast_reason"].decode(),
                headers["twincast_detail"].decode(),
            )

    async def write_state(self, message: Outgoing) -> None:
        """Take a snapshot for writing. Raises ConfigError when it is too large to be read again."""
        if len(message.value) > MAX_STATE_BYTES:
            raise ConfigError(
                f"the snapshot of {message.deployment} has {len(message.value)} bytes, over {MAX_STATE_BYTES}; "
                "shorten horizons_s, or report it"
            )
        await self.write(message)

    async def flush(self) -> None:
        """Return when everything taken is stored."""
        await self._producer.flush()
