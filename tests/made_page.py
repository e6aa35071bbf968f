"""Logs for tests of the page: a stretch of the bundled ramp with all that a worker writes about it, under any name."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import msgspec

from pipelines.backtest import finish
from pipelines.ingest.recording import read_recording
from pipelines.local.embedded import LocalLog, memory_log
from pipelines.log import Log
from pipelines.outbox import Outbox
from pipelines.outputs import Outgoing, outgoing
from pipelines.playback import as_incoming, messages_of
from pipelines.provision import create
from pipelines.runtime import Runtime
from pipelines.samples import RAMP, WARM
from pipelines.settings import Settings, parse_slo, read_settings
from pipelines.warmth import read_warm
from schemas.changes import Change
from schemas.codec import MAX_STATE_BYTES, decode, encode
from schemas.topics import CHANGES, STATE
from twin.effects import Emit
from twin.insight import run_with_insight
from twin.job import SimulationJob, SimulationResult
from twin.settings import CoreSettings
from twin.simulate import run

PARTITIONS = 4
CORE = CoreSettings(coarse_replications=4, fine_replications=8)
TARGET = parse_slo("ttft_s:0.95:0.5")
DEPLOYED_S = 60.0
INSIGHT_S = 25.0
"""Forecasts of the last seconds have the ceiling, bottlenecks and proposals, which take longest to simulate."""


@dataclass(frozen=True, slots=True)
class Told:
    """A message, and how far into the recording it was written, seconds."""

    at_s: float
    message: Outgoing


@cache
def story(until_s: float) -> tuple[Told, ...]:
    """What stands in a log after so many seconds of the ramp: inputs, outputs and a snapshot at the end."""
    recording = read_recording(RAMP)
    runtime = Runtime(lambda _: CORE, PARTITIONS, read_warm(WARM))
    told: list[Told] = []

    def simulate(job: SimulationJob) -> SimulationResult:
        late = job.as_of_us - recording.t0_us >= (until_s - INSIGHT_S) * 1e6
        return run_with_insight(job) if late else run(job)

    messages = list(messages_of(recording, (TARGET,)))
    deployed = False
    for message, coming in zip(messages, as_incoming(messages, PARTITIONS), strict=True):
        at_s = (message.at_us - recording.t0_us) / 1e6
        if at_s > until_s:
            break
        if at_s >= DEPLOYED_S and not deployed:
            deployed = True
            told.append(Told(at_s, _deploy(recording.deployment, message.at_us)))
        told.append(Told(at_s, message))
        told += [Told(at_s, each) for each in finish(runtime, runtime.handle(coming), simulate)]
    core = runtime.cores[recording.deployment]
    told.append(Told(until_s, outgoing(Emit(STATE, recording.deployment, core.snapshot()), recording.deployment)))
    return tuple(told)


def _deploy(deployment: str, at_us: int) -> Outgoing:
    change = Change(deployment=deployment, at_us=at_us, kind="deploy", detail="image 0.32.1")
    return Outgoing(CHANGES.name, deployment, deployment.encode(), encode(change), (), at_us)


def named(told: Iterable[Told], deployment: str) -> Iterator[Told]:
    """The same story of a deployment of another name."""
    for each in told:
        record: Any = decode(each.message.topic, each.message.value).record
        renamed = msgspec.structs.replace(record, deployment=deployment)
        key = (each.message.key or b"").replace(record.deployment.encode(), deployment.encode(), 1)
        message = Outgoing(
            each.message.topic, deployment, key, encode(renamed), each.message.headers, each.message.at_us
        )
        yield Told(each.at_s, message)


def made_log() -> LocalLog:
    """A log in memory, without topics."""
    return memory_log()


async def fill(log: Log, told: Iterable[Told]) -> None:
    """Write a story; its outputs are made now."""
    await create(log, PARTITIONS, keep_for_ever=True)
    async with log.producer(max_record_bytes=MAX_STATE_BYTES + 65_536) as producer:
        outbox = Outbox(producer, PARTITIONS)
        for each in told:
            await outbox.write(each.message)
        await outbox.flush()


def page_settings() -> Settings:
    """Settings of the story, that no file and no variable changes."""
    return replace(read_settings({"TWINCAST_PARTITIONS": str(PARTITIONS)}), defaults=CORE)
