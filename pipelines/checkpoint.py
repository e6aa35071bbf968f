"""Snapshots in the state topic with the input offsets they hold: how they are written, and where to read on.

Does not make or judge a snapshot. Laws: a partition is read on from the smallest offsets of its snapshots, so no record
is passed over whichever write a kill interrupts; what a core has seen it skips itself. Offsets committed to a group
decide nothing.
"""

import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pipelines.errors import ConfigError
from pipelines.log import Log, LogRecord, LogUnavailableError, TopicPartition
from pipelines.outputs import Headers, Outgoing
from pipelines.skips import Skip, skip_of
from schemas.topics import STATE, TICKS

POSITIONS_HEADER = "twincast_positions"
ACCOUNTS_HEADER = "twincast_accounts"
READ_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a partition goes on from: snapshots, offsets of input topics, accounts of units that reached no core."""

    positions: dict[str, int] = field(default_factory=dict)
    snapshots: tuple[LogRecord, ...] = ()
    accounts: dict[str, Any] | None = None


def with_positions(
    snapshots: Iterable[Outgoing], positions: Mapping[str, int], accounts: Mapping[str, Any]
) -> list[Outgoing]:
    """Snapshots of a partition, taken together, with what has been read of it and its accounts in their headers."""
    extra: Headers = (
        (POSITIONS_HEADER, msgspec.json.encode(dict(positions))),
        (ACCOUNTS_HEADER, msgspec.json.encode(dict(accounts))),
    )
    return [Outgoing(s.topic, s.deployment, s.key, s.value, (*s.headers, *extra), s.at_us) for s in snapshots]


async def read_checkpoint(log: Log, partition: int) -> Checkpoint:
    """The last snapshot of every deployment of a partition. Raises ConfigError where one has no offsets."""
    latest: dict[bytes | None, LogRecord] = {}
    async for record in _all_records(log, TopicPartition(STATE.name, partition), 0):
        latest.pop(record.key, None)
        if record.value is not None:
            latest[record.key] = record
    return resume_from(latest.values())


async def read_skips(log: Log, partition: int, start_offset: int) -> frozenset[Skip]:
    """Results that a run after this offset of the ticks topic went on without."""
    values = [r.value async for r in _all_records(log, TopicPartition(TICKS.name, partition), start_offset)]
    return frozenset(skip for skip in map(skip_of, values) if skip is not None)


def resume_from(records: Iterable[LogRecord]) -> Checkpoint:
    """Where to read on with these snapshots. Those of one write hold equal offsets, an older write smaller ones."""
    snapshots = tuple(records)
    if not snapshots:
        return Checkpoint()
    found = [(_header(record, POSITIONS_HEADER), record) for record in snapshots]
    topics = {topic for positions, _ in found for topic in positions}
    smallest = {topic: min(positions.get(topic, 0) for positions, _ in found) for topic in sorted(topics)}
    oldest = min(found, key=lambda pair: sum(pair[0].values()))[1]
    return Checkpoint(smallest, snapshots, _header(oldest, ACCOUNTS_HEADER))


def _header(record: LogRecord, name: str) -> dict[str, Any]:
    for key, value in record.headers:
        if key == name:
            try:
                return msgspec.json.decode(value, type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise ConfigError(
                    f"{record}: header {name} is corrupt ({error}); delete the record's key, or start without state"
                ) from error
    raise ConfigError(f"{record} has no header {name}; it was not written by a worker: remove it")


async def _all_records(log: Log, where: TopicPartition, start_offset: int) -> AsyncIterator[LogRecord]:
    begin = max(start_offset, (await log.begin_offsets([where]))[where])
    end = (await log.end_offsets([where]))[where]
    if begin >= end:
        return
    deadline_s = time.monotonic() + READ_TIMEOUT_S
    async with log.reader({where: begin}) as reader:
        while reader.position(where) < end:
            for record in await reader.get(timeout_s=0.5):
                yield record
            if time.monotonic() > deadline_s:
                raise LogUnavailableError(
                    f"{where} was not read to its end within {READ_TIMEOUT_S:g} s; see the broker"
                )
