"""A worker as a process: its log, simulators and reader started, watched and stopped. Decides no record.

Law: it makes progress or ends: with 0 when it was asked to stop, with an error when a partition does not move, a
rebalance does not end, the broker stays away, or Faust gives up; and it ends within a bound even if a library hangs.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import msgspec

from pipelines.drive import drive
from pipelines.errors import ConfigError
from pipelines.free_port import require_free
from pipelines.heartbeat import Heartbeat
from pipelines.ingest.endpoint import endpoint_of
from pipelines.ingest.raw_stage import RawStage
from pipelines.ingest.span_mapping import read_mapping
from pipelines.log import Log
from pipelines.otlp_port import host_and_port, otlp_port
from pipelines.outbox import Outbox
from pipelines.outlets.outlet_settings import metrics_address
from pipelines.outlets.outlets import outlets
from pipelines.places import Place, open_log
from pipelines.posts import Report
from pipelines.provision import check, create
from pipelines.raw_drive import RAW_NAMES, ingest
from pipelines.runtime import Runtime
from pipelines.scraping import scraping
from pipelines.settings import Settings
from pipelines.standard_job import warm_up
from pipelines.warmth import read_warm
from pipelines.web.child import environ_of, page_beside
from pipelines.worker import Worker
from pipelines.workers import Simulators
from schemas.codec import MAX_STATE_BYTES

log = logging.getLogger("twincast.service")

WATCH_EVERY_S = 1.0
STALL_CHECKS_EVERY = 5


class StalledError(RuntimeError):
    """The worker does not get on; a restart may help, waiting does not."""


async def serve(
    settings: Settings, place: Place, heartbeat: Heartbeat, report: Callable[[Report], None] = lambda _: None
) -> None:
    """Run a worker until SIGINT or SIGTERM; `report` hears of it every second and at the end.

    Raises ConfigError, StalledError, or whatever ended the worker.
    """
    stop = _stop_on_signals()
    _require_ports(settings)
    warm = read_warm(settings.worker.warm_file) if settings.worker.warm_file else None
    simulators = Simulators(settings.worker.simulators, warm=warm_up)
    async with open_log(settings, place) as open_, contextlib.AsyncExitStack() as stack:
        if place.kind == "file":
            await create(open_, settings.partitions, keep_for_ever=True)
        await check(open_, settings.partitions)
        if settings.worker.web:
            await stack.enter_async_context(page_beside(settings.worker.web, environ_of(place, os.environ)))
        log.info("starting %d simulators", settings.worker.simulators)
        await simulators.start()
        stack.push_async_callback(simulators.stop)
        producer = await stack.enter_async_context(open_.producer(max_record_bytes=MAX_STATE_BYTES + 65_536))
        worker = Worker(
            open_,
            producer,
            Runtime(settings.core, settings.partitions, warm),
            simulators,
            partitions=settings.partitions,
            max_backlog_units=settings.worker.max_backlog_units,
            silence_ticks=settings.worker.silence_ticks,
        )
        async with _reading(settings, place, open_, worker) as failure, _ingesting(settings, open_) as ingesting:
            log.info("worker %d of group %s reads %s", settings.worker.slot, settings.worker.group, place)

            endpoints = [endpoint_of(text) for text in settings.worker.scrape]
            scraper = await stack.enter_async_context(scraping(open_, endpoints, settings.partitions))

            def state() -> Report:
                ingested = ingesting.counts() | ({} if scraper is None else dict(scraper.counts))
                return msgspec.structs.replace(worker.report(), ingested=ingested)

            await stack.enter_async_context(
                outlets(
                    settings.outlets, open_, group=settings.worker.group, partitions=settings.partitions, report=state
                )
            )
            await _watch(
                settings, worker, lambda: failure() or ingesting.failure(), stop, heartbeat, lambda: report(state())
            )
            heartbeat.must_end_within(_end_bound_s(settings))
            last = state()
            await worker.stop()
            report(last)
    log.info("stopped: %s", " ".join(f"{name} {count}" for name, count in sorted(last.written.items())))


def _require_ports(settings: Settings) -> None:
    """Raise ConfigError before anything is started for a port that another program has."""
    if settings.worker.otlp:
        require_free("OTLP", *host_and_port(settings.worker.otlp))
    if settings.outlets.metrics:
        require_free("metrics", *metrics_address(settings.outlets.metrics))


@contextlib.asynccontextmanager
async def _reading(
    settings: Settings, place: Place, open_: Log, worker: Worker
) -> AsyncIterator[Callable[[], BaseException | None]]:
    """Feed the worker, by Faust from Kafka, directly from an embedded log; gives a question for why that failed."""
    group = settings.worker.group
    if place.kind == "kafka":
        from pipelines.kafka.faust_app import FaustShell

        access = settings.access(place.where)
        shell = FaustShell(access, worker, group=group, slot=settings.worker.slot, namespace=place.namespace)
        try:
            await shell.start()
            yield lambda: shell.crash or _unsettled(shell.unsettled_s, settings.worker.stall_timeout_s)
        finally:
            await shell.stop(settings.worker.stop_timeout_s)
        return
    reader = asyncio.create_task(drive(open_, worker, group))
    try:
        yield lambda: _failure_of(reader)
    finally:
        reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reader


def _unsettled(for_s: float, bound_s: float) -> StalledError | None:
    return StalledError(f"no partitions for {for_s:.0f} s: a rebalance does not end") if for_s > bound_s else None


@dataclass(frozen=True, slots=True)
class _Ingesting:
    """The ingest stage at work: why it failed, and what became of its spans."""

    failure: Callable[[], BaseException | None] = lambda: None
    counts: Callable[[], dict[str, int]] = dict


@contextlib.asynccontextmanager
async def _ingesting(settings: Settings, open_: Log) -> AsyncIterator[_Ingesting]:
    """Take in raw spans and metrics where the log has topics for them, and exports over HTTP where settings say so."""
    async with contextlib.AsyncExitStack() as stack:
        if settings.worker.otlp:
            host, port = host_and_port(settings.worker.otlp)
            bound = await stack.enter_async_context(otlp_port(open_, host, port, settings.partitions))
            log.info("takes OTLP over HTTP at http://%s:%d", host, bound)
        if len(await open_.partition_counts(RAW_NAMES)) < len(RAW_NAMES):
            yield _Ingesting()
            return
        file = settings.worker.spans_file
        stage = RawStage(None if file is None else read_mapping(file))
        producer = await stack.enter_async_context(open_.producer(max_record_bytes=MAX_STATE_BYTES + 65_536))
        task = asyncio.create_task(ingest(open_, Outbox(producer, settings.partitions), stage, settings.worker.group))
        try:
            yield _Ingesting(lambda: _failure_of(task), lambda: stage.counts | {"held": stage.held_spans})
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConfigError):
                await task


def _failure_of(task: "asyncio.Task[None]") -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


async def _watch(
    settings: Settings,
    worker: Worker,
    failure: Callable[[], BaseException | None],
    stop: asyncio.Event,
    heartbeat: Heartbeat,
    report: Callable[[], None],
) -> None:
    """Return when asked to stop; raise when the worker failed or stalled."""
    turn = 0
    while not stop.is_set():
        heartbeat.beat()
        if worker.failed.done():
            await worker.failed
        error = failure()
        if error is not None:
            raise error
        report()
        turn += 1
        if turn % STALL_CHECKS_EVERY == 0:
            stalled = await worker.stalled(settings.worker.stall_timeout_s)
            if stalled is not None:
                raise StalledError(stalled)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WATCH_EVERY_S):
                await stop.wait()


def _end_bound_s(settings: Settings) -> float:
    return 3.0 * settings.worker.stop_timeout_s + 4.0


def _stop_on_signals() -> asyncio.Event:
    """An event set by the first SIGINT or SIGTERM; the second one ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        log.info("stopping")
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    return stop
