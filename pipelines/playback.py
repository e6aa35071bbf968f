"""A recording as messages of the input topics, in event order. Writes to no log and keeps no time.

Law: the same recording gives the same messages, and per topic and partition the same offsets, whatever they go to.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from pipelines.ingest.recording import Recording
from pipelines.outputs import Outgoing
from pipelines.partitions import partition_of
from pipelines.runtime import Incoming
from schemas.changes import Tick
from schemas.codec import encode
from schemas.slos import Slos, SloTarget
from schemas.topics import SLOS, TICKS


def messages_of(recording: Recording, slos: tuple[SloTarget, ...] = ()) -> Iterator[Outgoing]:
    """Targets first (if given), then every record, then one tick that lets the last records through."""
    deployment = recording.deployment
    if slos:
        record = Slos(deployment=deployment, at_us=recording.t0_us, targets=slos)
        yield Outgoing(SLOS.name, deployment, deployment.encode(), encode(record), (), recording.t0_us)
    last_us = recording.t0_us
    for event in recording:
        last_us = max(last_us, event.at_us)
        yield Outgoing(event.topic, deployment, event.key.encode(), encode(event.record), (), event.at_us)
    yield tick_of(deployment, last_us + LAST_TICK_AFTER_US)


def tick_of(deployment: str, at_us: int) -> Outgoing:
    """Time as a record: all before `at_us` was sent."""
    tick = Tick(deployment=deployment, at_us=at_us)
    return Outgoing(TICKS.name, deployment, deployment.encode(), encode(tick), (), at_us)


LAST_TICK_AFTER_US = 2_000_000
"""More than the lateness of any native source."""


def as_incoming(messages: Iterable[Outgoing], partitions: int) -> Iterator[Incoming]:
    """The messages as a reader of an empty log would get them."""
    next_offset: Counter[tuple[str, int]] = Counter()
    for message in messages:
        place = (message.topic, partition_of(message.deployment, partitions))
        yield Incoming(*place, next_offset[place], message.key, message.value, message.headers)
        next_offset[place] += 1
