"""Archives made for tests: records sent to a log in memory and recorded into a folder."""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from synthetic import service

from pipelines.archive.capture import Wanted, record
from pipelines.archive.manifest import Manifest
from pipelines.backtest import Backtest, backtest
from pipelines.ingest.recording import Recording, event_of, in_order
from pipelines.local.embedded import LocalLog, memory_log
from pipelines.log import Log, LogRecord, TopicSpec
from pipelines.outputs import Outgoing
from pipelines.partitions import partition_of
from pipelines.playback import messages_of
from pipelines.provision import create
from schemas.slos import SloTarget
from schemas.topics import TOPICS
from twin.settings import CoreSettings
from twin.traffic.scenarios import BASELINE

PARTITIONS = 4
START_MS = 1_796_052_000_000
QUICK = CoreSettings(
    coarse_replications=1,
    fine_replications=2,
    scenarios=(BASELINE,),
    period_s=5.0,
    horizons_s=(10.0, 20.0),
    insight=False,
)
SLO = SloTarget(metric="ttft_s", quantile=0.95, limit_s=0.2)


def made_recording(seconds: float, deployment: str = "d", rate_per_s: float = 4.0) -> Recording:
    """A small service as a recording."""
    events = in_order(event_of(each) for each in service(seconds, rate_per_s, deployment=deployment))
    return Recording("synthetic", "S3", min(event.at_us for event in events), events)


def live_run(recording: Recording, settings: CoreSettings = QUICK) -> Backtest:
    """What a live run writes."""
    return backtest(recording, settings, slos=(SLO,))


async def send(log: Log, messages: Iterable[Outgoing], partitions: int = PARTITIONS) -> None:
    """Messages where a player or a worker would put them."""
    async with log.producer() as producer:
        for message in messages:
            await producer.send(
                message.topic,
                key=message.key,
                value=message.value,
                headers=message.headers,
                partition=partition_of(message.deployment, partitions),
                timestamp_ms=message.at_us // 1000,
            )
        await producer.flush()


async def log_of(run: Backtest, *, extra: Sequence[Outgoing] = ()) -> LocalLog:
    """A log as a live run leaves it: input and outputs, and what else is given."""
    log = memory_log()
    await create(log, PARTITIONS, keep_for_ever=True)
    messages = [*messages_of(run.recording, (SLO,)), *extra]
    await send(log, sorted(messages, key=lambda message: message.at_us))
    await send(log, run.outputs)
    return log


def archive_of(run: Backtest, folder: Path, *, extra: Sequence[Outgoing] = ()) -> Path:
    """The archive of a live run, outputs included."""

    async def act() -> None:
        log = await log_of(run, extra=extra)
        await record(log, folder, Wanted(topics=tuple(TOPICS)))

    asyncio.run(act())
    return folder


async def plain_log(records: Iterable[LogRecord], partitions: int = 2) -> LocalLog:
    """A log that holds these records; their offsets are counted anew."""
    listed = list(records)
    log = memory_log()
    await log.create_topics([TopicSpec(name=name, partitions=partitions) for name in {r.topic for r in listed}])
    async with log.producer() as producer:
        for each in listed:
            await producer.send(
                each.topic,
                key=each.key,
                value=each.value,
                headers=each.headers,
                partition=each.partition,
                timestamp_ms=each.timestamp_ms,
            )
    return log


def recorded(log: Log, folder: Path, *topics: str, part_bytes: int = 4_000) -> Manifest:
    """Record some topics in small parts."""
    return asyncio.run(record(log, folder, Wanted(topics=topics), part_bytes=part_bytes))
