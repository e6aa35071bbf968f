"""Plays messages into the input topics at a multiple of event time. Changes no record.

Law: topics, partitions, keys, values and timestamps are those of the messages, whatever the speed; records of the same
topic and partition keep their order; what tells of all topics (a tick, a target) is sent when all before it is stored.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pipelines.errors import ConfigError
from pipelines.log import Producer
from pipelines.outputs import Outgoing
from pipelines.partitions import partition_of
from schemas.topics import REQUESTS, STEPS

MAX_SPEED = 1e6
ALONE = frozenset({REQUESTS.name, STEPS.name})
"""Topics whose records need not wait for those of others."""
TURN_RECORDS = 200


@dataclass(slots=True)
class Played:
    """How far playing has come. `at_us` is the event time of the last message sent."""

    messages: int = 0
    at_us: int = 0
    offsets: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Messages sent, per topic and partition."""


async def play(
    producer: Producer,
    messages: Iterable[Outgoing],
    partitions: int,
    *,
    speed: float,
    played: Played | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Played:
    """Send messages, in event order, at `speed` times event time (infinite: as fast as they go).

    `played` is kept up to date meanwhile; `stop` is asked before each message. Raises ConfigError for a speed that is
    not above 0.
    """
    if not speed > 0:
        raise ConfigError(f"speed must be above 0, got {speed}; 1 plays a recording as it happened")
    so_far = played if played is not None else Played()
    began_s, first_us = time.monotonic(), None
    for message in messages:
        if stop():
            break
        if first_us is None:
            first_us = message.at_us
        if math.isfinite(speed):
            await _until(began_s + (message.at_us - first_us) / 1e6 / speed)
        together = message.topic not in ALONE
        if together:
            await producer.flush()
        partition = partition_of(message.deployment, partitions)
        await producer.send(
            message.topic,
            key=message.key,
            value=message.value,
            headers=message.headers,
            partition=partition,
            timestamp_ms=message.at_us // 1000,
        )
        if together:
            await producer.flush()
        so_far.messages += 1
        so_far.at_us = message.at_us
        so_far.offsets[(message.topic, partition)] += 1
        if so_far.messages % TURN_RECORDS == 0:
            await asyncio.sleep(0)
    await producer.flush()
    return so_far


async def _until(due_s: float) -> None:
    remaining_s = due_s - time.monotonic()
    if remaining_s > 0.001:
        await asyncio.sleep(remaining_s)
