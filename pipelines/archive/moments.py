"""Times and places as the command line has them. Reads no clock: what is relative is so to a start that is given.

Law: a text is one moment, or a ConfigError that shows what can be written.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from pipelines.errors import ConfigError

US_PER_S = 1_000_000
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SPAN = re.compile(r"([+-]?)(\d+(?:\.\d+)?)([smhd])")
_PLACE = re.compile(r"([A-Za-z0-9._-]+):(\d+):(\d+)")
EXAMPLES = (
    "2026-11-30T12:00:00Z, 1796040000 (seconds), 1796040000000 (ms), or a span: 90s from the start, -10m from now"
)


@dataclass(frozen=True, slots=True)
class Until:
    """Where a replay stops: before event time `at_us`, or before an offset of a partition."""

    at_us: int | None = None
    topic: str = ""
    partition: int = 0
    offset: int = 0

    def reached(self, at_us: int, topic: str, partition: int, offset: int) -> bool:
        """Whether this record is no longer played."""
        if self.at_us is not None:
            return at_us >= self.at_us
        return (topic, partition) == (self.topic, self.partition) and offset >= self.offset


def moment_us(text: str, option: str, start_us: int | None = None, now_us: int | None = None) -> int:
    """Microseconds of a time: ISO 8601 (UTC without an offset), seconds or ms since the epoch, or a span.

    A span such as 90s counts from `start_us`, one such as -10m back from `now_us`; each is refused where that is not
    given. Raises ConfigError.

    >>> moment_us("2026-11-30T00:00:00Z", "--from"), moment_us("2m", "--to", start_us=1_000_000)
    (1795996800000000, 121000000)
    """
    found = _SPAN.fullmatch(text.strip())
    if found is not None:
        span_us = round(float(found[2]) * _UNITS_S[found[3]] * US_PER_S)
        if found[1] == "-" and now_us is not None:
            return now_us - span_us
        if found[1] != "-" and start_us is not None:
            return start_us + span_us
        raise ConfigError(_unplaced(text, option, start_us, now_us))
    try:
        if text.strip().isdecimal():
            number = int(text)
            return number * 1000 if number >= 10**11 else number * US_PER_S
        when = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise ConfigError(f"{option} {text!r} is no time; write one such as {EXAMPLES}") from None
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * US_PER_S)


def _unplaced(text: str, option: str, start_us: int | None, now_us: int | None) -> str:
    """Which spans an option takes, for one that it does not."""
    known = [
        told
        for told, at_us in (("one such as 90s, from the start", start_us), ("one such as -10m, back from now", now_us))
        if at_us is not None
    ]
    spans = " or ".join(known)
    return f"{option} {text!r} is no time here, as nothing is known that it counts from; write {spans}, or a time"


def until_of(text: str, start_us: int) -> Until:
    """The end of a replay: a time or topic:partition:offset. Raises ConfigError."""
    place = _PLACE.fullmatch(text.strip())
    if place is not None:
        return Until(topic=place[1], partition=int(place[2]), offset=int(place[3]))
    return Until(at_us=moment_us(text, "--until", start_us))


def utc(at_us: int) -> str:
    """A moment for people and for `moment_us`.

    >>> utc(1795996800000000)
    '2026-11-30T00:00:00.000Z'
    """
    return datetime.fromtimestamp(at_us / US_PER_S, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_us // 1000 % 1000:03d}Z"
