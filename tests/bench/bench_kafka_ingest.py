"""From Kafka through Faust into the state, and a bare consumer beside it: `python -m tests.bench.bench_kafka_ingest`.

An engine with eight requests in it: fifty steps, an arrival and an end, and so on; steps are applied as far as request
events reach, so both topics are read abreast, and costs are learned on the way. Two of three messages are then request
events, one record each; beside it stands the engine alone, whose every message holds fifty steps, and a tick now and
then tells the time. Everything lies in the log before the
clock starts. Rates are per CPU second of the process that reads, all its threads, since the machine may be busy; rates
by the clock and the load stand beside. Learning is told apart: it is due at ticks, whatever comes from where.
Needs Java, Docker or a cluster, and says so where there is none.
"""

import asyncio
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as KafkaPartition

from pipelines.broker import broker_settings, choose_broker, running_broker
from pipelines.kafka.faust_app import FaustShell
from pipelines.outputs import Outgoing
from pipelines.places import Place, open_log
from pipelines.player import play
from pipelines.provision import create
from pipelines.runtime import Runtime
from pipelines.settings import Settings, read_settings
from pipelines.worker import Worker
from pipelines.workers import Simulators
from schemas.changes import Tick
from schemas.codec import encode
from schemas.requests import RequestArrived, RequestFinished
from schemas.steps import Step, StepBatch
from schemas.topics import REQUESTS, STEPS, TICKS
from twin.drift import DriftAlerts
from twin.engine_room import EngineRoom
from twin.settings import CoreSettings

START_US = 1_796_052_000_000_000
STEP_US = 9_000
TURN_STEPS = 50
TICK_MESSAGES = 20
RUNNING = 8
ISL_TOKENS = 240
DEPLOYMENT = "chat-large"
GROUP = "bench"
TIMEOUT_S = 300.0
ROUNDS = 4


@dataclass(frozen=True)
class Rate:
    """What one reading took. `records` are steps and request events; `learning_s` of the CPU time taught costs."""

    messages: int
    records: int
    wall_s: float
    cpu_s: float
    learning_s: float = 0.0


def service(steps: int, per_message: int) -> Iterator[Outgoing]:
    """Messages of so many steps, in event order; one request comes and one goes every `TURN_STEPS`."""
    pending: list[Step] = []
    for number in range(steps):
        start_us = START_US + number * STEP_US
        turn, place = divmod(number, TURN_STEPS)
        if place == 0:
            yield _request(
                RequestArrived(deployment=DEPLOYMENT, request_id=f"r{turn}", at_us=start_us - 10, isl_tokens=ISL_TOKENS)
            )
        prefills = 1 if place == 0 else 0
        decodes = min(turn, RUNNING - 1) + (1 - prefills)
        pending.append(
            Step(
                step=number, start_us=start_us, duration_us=8_500 + 37 * (number % 11), prefill_requests=prefills,
                prefill_tokens=prefills * ISL_TOKENS,
                prefill_attention_pairs=prefills * ISL_TOKENS * (ISL_TOKENS + 1) // 2,
                decode_requests=decodes, decode_context_tokens=decodes * 440 + place, waiting=0,
                running=decodes + prefills, kv_used_blocks=20 * RUNNING,
                finished_requests=int(place == TURN_STEPS - 1 and turn >= RUNNING - 1),
            )
        )  # fmt: skip
        if len(pending) == per_message:
            batch = StepBatch(deployment=DEPLOYMENT, engine="0", steps=tuple(pending))
            yield Outgoing(STEPS.name, DEPLOYMENT, DEPLOYMENT.encode(), encode(batch), (), pending[-1].at_us)
            pending.clear()
        if place == TURN_STEPS - 1 and turn >= RUNNING - 1:
            yield _request(_finished(turn - RUNNING + 1, start_us + STEP_US))


def engine_alone(steps: int, per_message: int) -> Iterator[Outgoing]:
    """The steps of `service` without its requests, and the time every `TICK_MESSAGES` messages."""
    batches = (message for message in service(steps, per_message) if message.topic == STEPS.name)
    for number, message in enumerate(batches, start=1):
        yield message
        if number % TICK_MESSAGES == 0 or number * per_message >= steps:
            tick = Tick(deployment=DEPLOYMENT, at_us=message.at_us)
            yield Outgoing(TICKS.name, DEPLOYMENT, DEPLOYMENT.encode(), encode(tick), (), message.at_us)


def _finished(turn: int, at_us: int) -> RequestFinished:
    arrived_us = START_US + turn * TURN_STEPS * STEP_US - 10
    return RequestFinished(
        deployment=DEPLOYMENT, request_id=f"r{turn}", at_us=at_us, engine="0", arrived_us=arrived_us,
        isl_tokens=ISL_TOKENS, osl_tokens=RUNNING * TURN_STEPS, first_token_us=arrived_us + STEP_US,
    )  # fmt: skip


def _request(record: RequestArrived | RequestFinished) -> Outgoing:
    return Outgoing(REQUESTS.name, DEPLOYMENT, DEPLOYMENT.encode(), encode(record), (), record.at_us)


@contextmanager
def learning_timed() -> Iterator[list[float]]:
    """CPU seconds in which cost models and their detectors learn, summed up in the list's one number."""
    spent = [0.0]
    kept = EngineRoom.learn, DriftAlerts.on_steps

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            began_s = time.thread_time()
            try:
                return method(*args)
            finally:
                spent[0] += time.thread_time() - began_s

        return call

    EngineRoom.learn, DriftAlerts.on_steps = timed(kept[0]), timed(kept[1])  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        EngineRoom.learn, DriftAlerts.on_steps = kept  # type: ignore[method-assign]


async def through_faust(settings: Settings, place: Place, messages: int, records: int) -> Rate:
    """Read everything with a worker fed by Faust; all of it must end up in the core's account."""
    core = CoreSettings(period_s=86_400.0)
    async with open_log(settings, place) as log, log.producer(max_record_bytes=1 << 24) as producer:
        worker = Worker(
            log, producer, Runtime(lambda _: core, 1), Simulators(1), partitions=1, max_backlog_units=10**6,
            silence_ticks=False,
        )  # fmt: skip
        group = f"{GROUP}-{uuid.uuid4().hex[:8]}"
        shell = FaustShell(settings.access(place.where), worker, group=group, slot=0, namespace=place.namespace)
        await shell.start()
        try:
            with learning_timed() as learning:
                began = await _progress(worker, 1)
                ended = await _progress(worker, messages)
            balance = worker.report().balance
        finally:
            await shell.stop(5.0)
        if balance["in"] != records or balance["applied"] < 0.99 * records or worker.failed.done():
            raise RuntimeError(f"{records} records were sent, and this became of them: {balance}")
        await worker.stop()
    return Rate(messages, records, ended[0] - began[0], ended[1] - began[1], learning[0])


async def _progress(worker: Worker, messages: int) -> tuple[float, float]:
    """Wait until so many messages were handled; wall and CPU seconds then."""
    deadline_s = time.perf_counter() + TIMEOUT_S
    while sum(worker.report().handed.values()) < messages:
        if worker.failed.done() or time.perf_counter() > deadline_s:
            raise RuntimeError(f"the worker does not get on: {worker.report()}")
        await asyncio.sleep(0.005)
    return time.perf_counter(), time.process_time()


async def bare(bootstrap: str, topics: list[str], messages: int, records: int) -> Rate:
    """Read everything with aiokafka's consumer and look at nothing."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        places = [KafkaPartition(topic, 0) for topic in topics]
        consumer.assign(places)
        for where in places:
            consumer.seek(where, 0)
        began, count = (time.perf_counter(), time.process_time()), 0
        while count < messages:
            count += sum(map(len, (await consumer.getmany(timeout_ms=5_000, max_records=2_000)).values()))
        return Rate(messages, records, time.perf_counter() - began[0], time.process_time() - began[1])
    finally:
        await consumer.stop()


async def measure(settings: Settings, sent: list[Outgoing], steps: int) -> tuple[list[Rate], list[Rate]]:
    """Through Faust and bare, turn by turn, each of `ROUNDS` on topics of its own."""
    records = steps + sum(message.topic != STEPS.name for message in sent)
    ours, theirs = [], []
    for number in range(ROUNDS):
        place = Place(kind="kafka", where=settings.broker.bootstrap or "", namespace=f"b{uuid.uuid4().hex[:8]}")
        async with open_log(settings, place) as log, log.producer() as producer:
            await create(log, 1, keep_for_ever=True)
            await play(producer, sent, 1, speed=float("inf"))
        names = [f"{place.namespace}.{topic.name}" for topic in (REQUESTS, STEPS, TICKS)]
        theirs.append(await bare(place.where, names, len(sent), records))
        ours.append(await through_faust(settings, place, len(sent), records))
        print(f"  round {number}: {ours[-1]} against {theirs[-1]}; load {os.getloadavg()[0]:.1f}", flush=True)
    return ours, theirs


def told(name: str, ours: list[Rate], theirs: list[Rate], *, many: bool, bar_per_s: float) -> str:
    """Rate per CPU second against its bar, with and without learning, by the clock, and over a bare consumer's."""
    best, bare_cpu_s = min(ours, key=lambda rate: rate.cpu_s), min(rate.cpu_s for rate in theirs)
    count, what = (best.records, "records") if many else (best.messages, "messages")

    def line(kind: str, cpu_s: float) -> str:
        verdict = "" if count / cpu_s >= bar_per_s else "  MISSED"
        return f"{name}{kind}: {count / cpu_s:,.0f} {what}/s per CPU second (bar: > {bar_per_s:,.0f}){verdict}"

    by_clock = count / min(rate.wall_s for rate in ours)
    return "\n".join(
        (
            f"{line('', best.cpu_s)}, {by_clock:,.0f} by the clock",
            line("_without_learning", best.cpu_s - best.learning_s),
            f"{name}_over_bare: {bare_cpu_s / best.cpu_s:.3f} of a bare consumer's {count / bare_cpu_s:,.0f} (no bar)",
        )
    )


def main() -> None:
    """Print one line per figure, and the load of the machine."""
    choice = choose_broker(broker_settings(os.environ))
    if choice.kind == "embedded":
        print("kafka_ingest: no Apache Kafka here: " + "; ".join(over.reason for over in choice.passed_over))
        return
    with running_broker(choice) as bootstrap, tempfile.TemporaryDirectory() as scratch:
        settings = read_settings({**os.environ, "TWINCAST_CACHE_DIR": scratch}, directory=Path(scratch))
        settings = replace(settings, broker=replace(settings.broker, bootstrap=str(bootstrap)))
        for name, made, steps, per_message, bar_per_s in (
            ("kafka_batched", engine_alone, 200_000, 50, 150_000.0),
            ("kafka_batched_with_requests", service, 200_000, 50, 150_000.0),
            ("kafka_single", service, 20_000, 1, 10_000.0),
        ):
            ours, theirs = asyncio.run(measure(settings, list(made(steps, per_message)), steps))
            print(told(name, ours, theirs, many=per_message > 1, bar_per_s=bar_per_s))
        print(f"load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
