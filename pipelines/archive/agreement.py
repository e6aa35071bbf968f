"""Whether a replay gave what the live run had written: digests of outputs, by topic and key. Holds no output.

Law: equal digests mean the same values in the same order for every topic and key; how deployments interleave in a
partition, which depends on the machine, does not count, nor do redeliveries.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from pipelines.archive.feeds import Recorded, State, made_us
from schemas.topics import OUTPUTS

REMEMBERED_IDS = 100_000
"""A redelivery comes soon after the first delivery, or never."""
_COMPARED = frozenset(topic.name for topic in OUTPUTS)


@dataclass(slots=True)
class Outputs:
    """Counts and digests of outputs; dead letters and others are counted and not part of the digest."""

    counts: dict[str, int] = field(default_factory=dict)
    _digests: dict[tuple[str, bytes], Any] = field(default_factory=dict)

    def add(self, topic: str, key: bytes | None, value: bytes) -> None:
        """Take the next output."""
        self.counts[topic] = self.counts.get(topic, 0) + 1
        if topic in _COMPARED:
            digest = self._digests.setdefault((topic, key or b""), sha256())
            digest.update(len(value).to_bytes(8, "big") + value)

    @property
    def sha256(self) -> str:
        """Digest of all."""
        lines = (
            f"{topic} {key.hex()} {digest.hexdigest()}\n" for (topic, key), digest in sorted(self._digests.items())
        )
        return sha256("".join(lines).encode()).hexdigest()

    def of_topic(self, topic: str) -> dict[bytes, str]:
        """Digests of one topic by key."""
        return {key: digest.hexdigest() for (name, key), digest in self._digests.items() if name == topic}


@dataclass(frozen=True, slots=True)
class Agreement:
    """Recorded against replayed: counts per topic, and the topics that differ."""

    recorded: dict[str, int]
    differing: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether all agree."""
        return not self.differing


def agreement(recorded: Iterable[Recorded], replayed: Outputs, states: Iterable[State] = ()) -> Agreement | None:
    """Compare; None where nothing was recorded.

    What was written before the state that the replay of a deployment began from is left out.
    """
    since_us = {state.deployment.encode(): state.made_us for state in states}
    live = Outputs()
    seen: OrderedDict[tuple[str, bytes], None] = OrderedDict()
    for output in recorded:
        if made_us(output.headers) < since_us.get(output.key or b"", 0):
            continue
        event_id = next((value for name, value in output.headers if name == "ce_id"), None)
        if event_id is not None:
            if (output.topic, event_id) in seen:
                continue
            seen[output.topic, event_id] = None
            if len(seen) > REMEMBERED_IDS:
                seen.popitem(last=False)
        live.add(output.topic, output.key, output.value)
    if not live.counts:
        return None
    topics = sorted({*live.counts, *replayed.counts} & _COMPARED)
    differing = tuple(topic for topic in topics if live.of_topic(topic) != replayed.of_topic(topic))
    return Agreement(live.counts, differing)
