"""The Faust application: agents that hand bytes to the worker, and nothing else. Decides no record and no offset.

What is set here, and why: raw bytes, since a typed topic crashes its agent on the first bad record; one agent per
topic with concurrency 1, since more can commit past a record in flight; all records of a fetch in one message, since
an agent costs 80 microseconds a message; no acknowledgements to Faust, since its offsets run ahead of our state; the
start of every partition comes from the state topic; a pause that loses no record; what was fetched before a seek is
dropped wherever it has got to, since a lane would take it for the records after a gap. Faust gives partitions, groups,
sessions and the consumer's thread.

Laws: an agent never raises and never waits; what it hands over begins where the last seek went and leaves out nothing.
"""

import asyncio
import logging
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faust
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer
from faust.types import TP
from yarl import URL

from pipelines.kafka.access import ClusterAccess
from pipelines.lanes import INPUT_NAMES
from pipelines.log import LogRecord, TopicPartition
from pipelines.worker import Worker

log = logging.getLogger("twincast.faust")

SESSION_TIMEOUT_S = 10.0
HEARTBEAT_INTERVAL_S = 2.0
FETCH_WAIT_MS = 100
"""A fetch without news blocks the next one to the same broker, so it is kept short."""
START_TIMEOUT_S = 60.0
ROOM_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class _Fetch:
    """Records of one partition that one fetch brought, and how many seeks there were before it began."""

    seeks: int
    records: list[Any]


class FaustShell:
    """A Faust app around a worker. `slot` makes the group membership static: a restart finds its partitions again."""

    def __init__(self, access: ClusterAccess, worker: Worker, *, group: str, slot: int, namespace: str) -> None:
        self._worker = worker
        self._prefix = f"{namespace}." if namespace else ""
        self._app = _app(access, f"{self._prefix}{group}", f"{self._prefix}{group}-{slot}")
        self._app.transport.Consumer = _consumer_class(self)
        self._app.on_partitions_revoked.connect(self._on_revoked)
        self._app.on_rebalance_complete.connect(self._on_settled)
        self._settled = False
        self._unsettled_since_s: float | None = time.monotonic()
        self._seeks = 0
        self._room: asyncio.Task[None] | None = None
        for name in INPUT_NAMES:
            self._add_agent(name)

    def _add_agent(self, name: str) -> None:
        topic = self._app.topic(self._prefix + name, key_serializer="raw", value_serializer="raw", acks=False)

        @self._app.agent(topic, name=name, concurrency=1)  # type: ignore[untyped-decorator]
        async def hand_over(stream: Any) -> AsyncIterator[None]:
            async for event in stream.events():
                self._hand_over(event.message.value, name)
                yield

    def _hand_over(self, fetch: _Fetch, name: str) -> None:
        if fetch.seeks == self._seeks:
            for record in fetch.records:
                self._worker.take(_record(record, name))

    async def start(self) -> None:
        """Connect and join the group; partitions come later, by themselves."""
        async with asyncio.timeout(START_TIMEOUT_S):
            await self._app.start()
        self._room = asyncio.create_task(self._make_room())

    async def stop(self, timeout_s: float) -> None:
        """Leave off within a bound; a Faust that hangs is left behind, for the process ends after this."""
        if self._room is not None:
            self._room.cancel()
        try:
            async with asyncio.timeout(timeout_s):
                await self._app.stop()
        except TimeoutError:
            log.warning("Faust did not stop within %.1f s and is left behind", timeout_s)

    @property
    def crash(self) -> BaseException | None:
        """Why Faust gave up, None while it runs."""
        reason = self._app.crash_reason
        if reason is None and self._app._crashed.is_set():
            return RuntimeError("Faust crashed without a reason")
        return reason if isinstance(reason, BaseException) else None

    @property
    def unsettled_s(self) -> float:
        """How long a rebalance, or joining the group, has been going on; 0 while partitions are ours or others'. Faust
        and aiokafka have been seen to lose their way in one and stay without partitions for good."""
        return 0.0 if self._unsettled_since_s is None else time.monotonic() - self._unsettled_since_s

    async def positions(self, assignment: set[TP]) -> Mapping[TP, int]:
        """Where to read each partition on. During a rebalance Faust asks too, with partitions that are ours no more."""
        owned = [TopicPartition(tp.topic.removeprefix(self._prefix), tp.partition) for tp in assignment]
        if self._settled:
            found = await self._worker.on_assigned(owned)
            self._unsettled_since_s = None
        else:
            found = self._worker.positions()
        return {TP(self._prefix + place.topic, place.partition): found[place] for place in owned if place in found}

    async def _on_settled(self, _: Any, **kwargs: Any) -> None:
        self._settled = True
        if not self._app.consumer.assignment():  # others have them all
            self._unsettled_since_s = None

    async def _on_revoked(self, _: Any, revoked: set[TP], **kwargs: Any) -> None:
        self._settled = False
        self._unsettled_since_s = time.monotonic()
        self._seeks += 1  # partitions may come back before what was fetched of them has got through
        await self._worker.on_revoked(
            [TopicPartition(tp.topic.removeprefix(self._prefix), tp.partition) for tp in revoked]
        )

    async def _make_room(self) -> None:
        """Pause the topics whose records pile up in the worker, and resume them when they have gone."""
        paused: set[TopicPartition] = set()
        while True:
            await asyncio.sleep(ROOM_POLL_S)
            crowded = self._worker.crowded() - paused
            roomy = self._worker.roomy() & paused
            if crowded:
                self._app.consumer.pause_partitions(self._tps(crowded))
            if roomy:
                self._app.consumer.resume_partitions(self._tps(roomy))
            paused = (paused | crowded) - roomy

    def _tps(self, places: set[TopicPartition]) -> set[TP]:
        return {TP(self._prefix + place.topic, place.partition) for place in places}


def _app(access: ClusterAccess, group: str, instance: str) -> Any:
    servers = ";".join(f"kafka://{server}" for server in access.servers())
    return faust.App(
        group,
        broker=[URL(server) for server in servers.split(";")],
        broker_credentials=_credentials(access),
        broker_session_timeout=SESSION_TIMEOUT_S,
        broker_heartbeat_interval=HEARTBEAT_INTERVAL_S,
        broker_request_timeout=30.0,
        consumer_group_instance_id=instance,
        consumer_auto_offset_reset="earliest",
        key_serializer="raw",
        value_serializer="raw",
        topic_disable_leader=True,
        topic_allow_declare=False,
        stream_wait_empty=False,  # nothing is in flight in an agent, and waiting can hang a rebalance
        stream_recovery_delay=0.0,
        store="memory://",
        datadir=str(Path(tempfile.gettempdir()) / f"twincast-faust-{os.getuid()}"),  # made, and nothing is put there
        web_enabled=False,
        autodiscover=False,
    )


def _credentials(access: ClusterAccess) -> Any:
    if access.protocol.startswith("SASL"):
        credentials = faust.SASLCredentials(
            username=access.username,
            password=access.password,
            mechanism=access.mechanism,
            ssl_context=access.ssl_context() if access.protocol == "SASL_SSL" else None,
        )
        credentials.protocol = faust.types.auth.AuthProtocol(access.protocol)
        return credentials
    return faust.SSLCredentials(context=access.ssl_context()) if access.protocol == "SSL" else None


def _consumer_class(shell: FaustShell) -> type:
    """Faust's consumer, except that it starts where the state says, and fetches in short rounds."""

    class Thread(AIOKafkaConsumerThread):  # type: ignore[misc]  # faust has no types
        def _create_worker_consumer(self, transport: Any) -> Any:
            consumer = super()._create_worker_consumer(transport)
            consumer._fetch_max_wait_ms = FETCH_WAIT_MS
            return consumer

    class StateConsumer(Consumer):  # type: ignore[misc]  # faust has no types
        _active_partitions: set[TP]
        _paused_partitions: set[TP]

        def _new_consumer_thread(self) -> Any:
            return Thread(self, loop=self.loop, beacon=self.beacon)

        async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Any]]:
            """One message per partition for all records of a fetch: an agent's cost is per message, not per record."""
            seeks = shell._seeks
            records, active = await self._wait_next_records(timeout)
            generation = self.app.consumer_generation_id
            if records is None or self.should_stop:
                return
            if not self.flow_active or shell._seeks != seeks:
                await self.perform_seek()  # what came is dropped
                return
            for tp, found in records.items():
                if not self.flow_active or self.app.consumer_generation_id != generation:
                    return
                if found and (tp in active or tp in self._buffered_partitions):
                    message = self._to_message(tp, found[-1])
                    message.key, message.value, message.headers = None, _Fetch(seeks, found), []
                    yield tp, message

        def pause_partitions(self, tps: Iterable[TP]) -> None:
            """From the next fetch on. Faust takes partitions out of the set that it holds against the records of the
            fetch under way, and drops those, although the next one begins behind them."""
            paused = set(tps)
            self._active_partitions = self._get_active_partitions() - paused
            self._paused_partitions = self._paused_partitions | paused

        async def perform_seek(self) -> None:
            shell._seeks += 1
            for tp, offset in (await shell.positions(self.assignment())).items():
                self._committed_offset[tp] = None
                await self.seek(tp, offset)

    return StateConsumer


def _record(record: Any, topic: str) -> LogRecord:
    """A record as aiokafka gives it, under the name that the topic has for us."""
    return LogRecord(
        topic,
        record.partition,
        record.offset,
        record.timestamp or 0,
        record.key,
        record.value,
        tuple(record.headers or ()),
    )
