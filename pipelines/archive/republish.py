"""A replay onto a log: recorded input as it was, and what the core makes of it, in a namespace of its own.

Laws: nothing is written but to topics that begin with a namespace which had none before; no group is joined and no
offset committed; a record keeps topic (behind the namespace), partition, key, value, timestamp, and its headers but
those that were not to be kept; every output says in a header that it is of a replay, and of which.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from pipelines.archive.replaying import Played
from pipelines.errors import ConfigError
from pipelines.log import TOPIC_NAME, Log, Producer, RecordRefusedError
from pipelines.namespace import in_namespace
from pipelines.outbox import Outbox
from pipelines.outputs import Headers, Outgoing
from pipelines.provision import create, topic_specs
from schemas.codec import MAX_MESSAGE_BYTES

REPLAY_HEADER = "twincast_replay"


@dataclass(frozen=True, kw_only=True)
class KeptHeaders:
    """Which headers of recorded input go along: those of `allow` (empty: all) that are not in `deny`."""

    allow: frozenset[str] = field(default_factory=frozenset)
    deny: frozenset[str] = field(default_factory=frozenset)

    def of(self, headers: Headers) -> Headers:
        """The headers to keep, in order."""
        return tuple(
            (name, value) for name, value in headers if (not self.allow or name in self.allow) and name not in self.deny
        )


def require_namespace(namespace: str, ours: str) -> None:
    """Raise ConfigError for a namespace that cannot be one of a replay; `ours` is that of the running service."""
    if not namespace or not TOPIC_NAME.fullmatch(namespace):
        raise ConfigError(f"--namespace must be 1 to 249 of a-z A-Z 0-9 . _ -, got {namespace!r}; name another")
    if namespace == ours or ours.startswith(f"{namespace}."):
        raise ConfigError(f"--namespace {namespace} is that of the running service; name another")


async def require_fresh(log: Log, namespace: str, partitions: int) -> None:
    """Raise ConfigError if one of the topics that a replay would write to exists."""
    names = [spec.name for spec in topic_specs(partitions)]
    there = await in_namespace(log, namespace).partition_counts(names)
    if there:
        raise ConfigError(
            f"namespace {namespace} is not fresh, {log.name} has {namespace}.{sorted(there)[0]}; name another one"
        )


async def republish(
    log: Log,
    namespace: str,
    played: Iterator[Played],
    *,
    partitions: int,
    label: str,
    kept: KeptHeaders,
    told: Callable[[Played], None] = lambda _: None,
) -> int:
    """Write every input message and its outputs; how many records. Raises ConfigError, before the first is written,
    where the namespace is not fresh."""
    await require_fresh(log, namespace, partitions)
    inner = in_namespace(log, namespace)
    await create(inner, partitions, keep_for_ever=True)
    written = 0
    async with inner.producer(max_record_bytes=MAX_MESSAGE_BYTES + 65_536) as producer:
        outbox = Outbox(producer, partitions)
        while (each := await asyncio.to_thread(next, played, None)) is not None:
            await _sent(_input(producer, each, kept), each)
            for message in each.outputs:
                await _sent(outbox.write(_labelled(message, label)), each)
            written += 1 + len(each.outputs)
            told(each)
        await producer.flush()
    return written


async def _input(producer: Producer, played: Played, kept: KeptHeaders) -> None:
    message = played.fed.message
    await producer.send(
        message.topic,
        key=message.key,
        value=message.value,
        headers=kept.of(message.headers),
        partition=message.partition,
        timestamp_ms=played.fed.stamp_ms,
    )


async def _sent(sending: Awaitable[None], played: Played) -> None:
    try:
        await sending
    except RecordRefusedError as error:
        message = played.fed.message
        where = f"{message.topic}[{message.partition}]@{message.offset}"
        raise ConfigError(f"{where} cannot be written again: {error}; stop before it with --until") from error


def _labelled(message: Outgoing, label: str) -> Outgoing:
    headers = (*message.headers, (REPLAY_HEADER, label.encode()))
    return Outgoing(message.topic, message.deployment, message.key, message.value, headers, message.at_us)
