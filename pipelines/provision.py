"""Topics as a log needs them: created where missing, checked where they stand. Deletes nothing.

Law: after `create`, `check` is content; neither changes a topic that exists.
"""

from dataclasses import replace

from pipelines.log import FOREVER_MS, MAX_RECORD_BYTES, Log, TopicSpec, require_partitions, require_topics
from schemas.codec import MAX_MESSAGE_BYTES, MAX_STATE_BYTES
from schemas.topics import DLQ, RAW_INPUTS, STATE, TOPICS

LARGER_THAN_USUAL = {STATE.name: MAX_STATE_BYTES, DLQ.name: MAX_MESSAGE_BYTES + 65_536}
"""A snapshot is one record, and a dead letter is what was refused plus headers."""


def topic_specs(partitions: int, *, keep_for_ever: bool = False) -> list[TopicSpec]:
    """Every topic of the table. `keep_for_ever` is for replays: their old timestamps would be deleted otherwise."""
    specs = []
    for topic in TOPICS.values():
        spec = TopicSpec.of(topic, partitions=partitions, retention_ms=FOREVER_MS if keep_for_ever else None)
        specs.append(replace(spec, max_record_bytes=record_limit_bytes(topic.name)))
    return specs


def record_limit_bytes(topic_name: str) -> int:
    """How large a record of this topic may be, headers left out."""
    return LARGER_THAN_USUAL.get(topic_name, MAX_RECORD_BYTES)


async def create(log: Log, partitions: int, *, keep_for_ever: bool = False) -> list[str]:
    """Create what is missing; return its names. Raises TopicMismatchError, before creating anything."""
    return await log.create_topics(topic_specs(partitions, keep_for_ever=keep_for_ever))


async def check(log: Log, partitions: int) -> dict[str, int]:
    """Partitions of every topic that a worker needs. Raises UnknownTopicError or TopicMismatchError."""
    raw = {topic.name for topic in RAW_INPUTS}
    specs = [spec for spec in topic_specs(partitions) if spec.name not in raw]
    found = await log.partition_counts([spec.name for spec in specs])
    require_topics([spec.name for spec in specs], found, log.name)
    require_partitions(specs, found)
    return found
