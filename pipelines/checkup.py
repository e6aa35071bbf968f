"""What the last records of a log say about its health: clocks, versions, lag, age of forecasts. Changes nothing.

Law: it reads a bounded number of records of each partition, however long the topics are.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipelines.checkpoint import read_checkpoint
from pipelines.client.ages import US_PER_S
from pipelines.errors import ConfigError
from pipelines.lanes import INPUT_NAMES
from pipelines.log import Log, LogRecord, TopicPartition
from schemas.codec import SchemaError, decode
from schemas.topics import FORECASTS, REQUESTS, STEPS, TOPICS

LAST_RECORDS = 5
"""Of each partition: enough to see what is written now."""
MOST_AHEAD_US = 5 * US_PER_S
LIVE_WITHIN_US = 3600 * US_PER_S
"""A service whose newest record is older is not live: a recording, or nobody sends."""
MANY_BEHIND = 100_000
GET_TIMEOUT_S = 2.0
TYPED = tuple(topic.name for topic in TOPICS.values() if topic.type is not None)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at; a text of what is not well ends with what to do next."""

    name: str
    well: bool
    text: str


@dataclass(frozen=True, slots=True)
class Seen:
    """The last records, decoded, those that would not decode, and how far topics and workers are."""

    records: tuple[tuple[LogRecord, Any], ...]
    refused: tuple[tuple[LogRecord, SchemaError], ...]
    ends: dict[TopicPartition, int]
    handled: dict[TopicPartition, int]


async def look_at(log: Log, partitions: int) -> Seen:
    """Read what there is to judge."""
    places = [TopicPartition(topic, number) for topic in TYPED for number in range(partitions)]
    begins, ends = await log.begin_offsets(places), await log.end_offsets(places)
    starts = {place: max(begins[place], ends[place] - LAST_RECORDS) for place in places}
    found: list[LogRecord] = []
    async with log.reader(starts) as reader:
        while any(reader.position(place) < ends[place] for place in places):
            more = await reader.get(timeout_s=GET_TIMEOUT_S)
            found += [record for record in more if record.offset < ends[TopicPartition(record.topic, record.partition)]]
            if not more:  # gaps at the end of a compacted topic
                break
    handled = {}
    for number in range(partitions):
        for topic, offset in (await read_checkpoint(log, number)).positions.items():
            handled[TopicPartition(topic, number)] = offset
    records, refused = [], []
    for record in found:
        if record.value is None:
            continue
        try:
            records.append((record, decode(record.topic, record.value).record))
        except SchemaError as error:
            refused.append((record, error))
    return Seen(tuple(records), tuple(refused), ends, handled)


def judge(seen: Seen, now_us: int) -> list[Finding]:
    """Findings on what was read at `now_us`, by this machine's clock."""
    looks: dict[str, Callable[[Seen, int], str]] = {
        "clocks": _clocks, "schemas": _schemas, "lag": _lag, "forecasts": _forecasts,
    }  # fmt: skip
    findings = []
    for name, look in looks.items():
        try:
            findings.append(Finding(name, True, look(seen, now_us)))
        except ConfigError as error:
            findings.append(Finding(name, False, str(error)))
    return findings


def _clocks(seen: Seen, now_us: int) -> str:
    """Event times of inputs against this machine's clock."""
    stamped = [(record, _at_us(value)) for record, value in seen.records if record.topic in (REQUESTS.name, STEPS.name)]
    if not stamped:
        return "no request or step came so far; send some, see docs/INPUTS.md"
    record, newest_us = max(stamped, key=lambda pair: pair[1])
    ahead_s = (newest_us - now_us) / US_PER_S
    if newest_us - now_us > MOST_AHEAD_US:
        raise ConfigError(f"{record} is {ahead_s:.1f} s ahead of this machine's clock; synchronise the clocks (NTP)")
    if -ahead_s * US_PER_S > LIVE_WITHIN_US:
        return f"newest event {_span(-ahead_s)} ago: a recording, or nobody sends any more"
    return f"newest event {_span(max(-ahead_s, 0.0))} ago"


def _schemas(seen: Seen, now_us: int) -> str:
    if seen.refused:
        record, error = seen.refused[0]
        raise ConfigError(
            f"{len(seen.refused)} of the last records cannot be read, such as {record} ({error.reason}"
            f"{' at ' + error.where if error.where else ''}); correct their producer, docs/contracts has the schemas"
        )
    versions = Counter(getattr(value, "schema_version", 1) for _, value in seen.records)
    told = ", ".join(f"version {version}: {count}" for version, count in sorted(versions.items()))
    return f"the last records of every topic can be read ({told})" if told else "no record in any topic"


def _lag(seen: Seen, now_us: int) -> str:
    behind = {
        place: end - seen.handled.get(place, 0)
        for place, end in seen.ends.items()
        if place.topic in INPUT_NAMES and end > seen.handled.get(place, 0)
    }
    total = sum(behind.values())
    if total > MANY_BEHIND:
        worst = max(behind, key=lambda place: behind[place])
        raise ConfigError(
            f"{total} records stand behind the last snapshots, most in {worst}; start workers "
            "(`twincast up --slot 1`), or see why they do not run"
        )
    return f"{total} records since the last snapshots" if total else "every record is in a snapshot"


def _forecasts(seen: Seen, now_us: int) -> str:
    newest: dict[str, Any] = {}
    for record, value in seen.records:
        if record.topic == FORECASTS.name:
            known = newest.get(value.deployment)
            newest[value.deployment] = value if known is None or value.as_of_us >= known.as_of_us else known
    if not newest:
        return "none so far; start `twincast up` and send requests"
    ages = {name: now_us - forecast.as_of_us for name, forecast in newest.items()}
    live = {name: age for name, age in ages.items() if age <= LIVE_WITHIN_US}
    stale = [name for name in live if now_us >= newest[name].expires_us]
    if stale:
        raise ConfigError(
            f"stale for {', '.join(sorted(stale))} (the newest {_span(max(ages[n] for n in stale) / US_PER_S)} old); "
            "see whether `twincast up` runs and requests still come"
        )
    youngest = min(ages, key=lambda name: ages[name])
    return f"{len(newest)} deployments, the newest of {youngest} {_span(ages[youngest] / US_PER_S)} old"


def _at_us(value: Any) -> int:
    steps = getattr(value, "steps", None)
    if steps:
        return max(int(step.at_us) for step in steps)
    return int(getattr(value, "at_us", 0))


def _span(seconds: float) -> str:
    for unit_s, name in ((86_400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {name}"
    return f"{seconds:.1f} s"
