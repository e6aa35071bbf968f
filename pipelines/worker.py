"""One worker: records of its partitions into the runtime, what the runtime asks for out of it. Knows no Kafka.

Whoever reads the log tells it of partitions (`on_assigned`, `on_revoked`) and gives it records (`take`). Each partition
has one task, so what concerns it happens in one order. Laws: no record makes `take` raise or wait; outputs are stored
before the snapshot that follows them; a partition goes on from its snapshots, whatever the group committed.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from pipelines.checkpoint import read_checkpoint, read_skips, with_positions
from pipelines.errors import ConfigError
from pipelines.jobs import Jobs
from pipelines.lanes import INPUT_NAMES, Lane
from pipelines.log import Log, LogRecord, Producer, TopicPartition
from pipelines.outbox import Outbox
from pipelines.partitions import partition_of
from pipelines.playback import tick_of
from pipelines.posts import Post, Report, brief, incoming, whole_partitions
from pipelines.runtime import Runtime, Todo
from pipelines.workers import Simulators
from schemas.codec import SchemaError
from schemas.topics import TICKS
from twin.core import SnapshotError

log = logging.getLogger("twincast.worker")

AWAITED_SILENCE_S = 2.0
"""How long to wait for records that the end offset promises before taking them for a gap in the log."""
SILENCE_POLL_S = 1.0
TURN_RECORDS = 64
"""Records handled before other tasks get a turn."""


class Worker:
    """See the module. `max_backlog_units` and `silence_ticks`: see `WorkerSettings`.

    `failed` is a future that ends with the error that ended the worker.
    """

    def __init__(
        self,
        log_: Log,
        producer: Producer,
        runtime: Runtime,
        simulators: Simulators,
        *,
        partitions: int,
        max_backlog_units: int,
        silence_ticks: bool = True,
    ) -> None:
        self._log = log_
        self._outbox = Outbox(producer, partitions)
        self._runtime = runtime
        self._simulators = simulators
        self._partitions = partitions
        self._max_backlog_units = max_backlog_units
        self._silence_ticks = silence_ticks
        self._posts: dict[int, Post] = {}
        self._changing = asyncio.Lock()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.snapshots = 0

    # Partitions come and go

    async def on_assigned(self, owned: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Begin to work on partitions, from their snapshots; returns where to read each topic on.

        Raises ConfigError when not all input topics of a partition are here, or a snapshot cannot be taken over.
        """
        numbers = whole_partitions(owned)
        async with self._changing:
            for number in numbers:
                if number not in self._posts:
                    self._posts[number] = await self._open(number)
        return self.positions()

    def positions(self) -> dict[TopicPartition, int]:
        """Where to read on each topic of the partitions at work."""
        return {
            TopicPartition(topic, number): offset
            for number, post in self._posts.items()
            for topic, offset in post.lane.received.items()
        }

    async def _open(self, number: int) -> Post:
        checkpoint = await read_checkpoint(self._log, number)
        for record in checkpoint.snapshots:
            try:
                self._runtime.restore(record.value or b"")
            except (SchemaError, SnapshotError, ValueError, LookupError, TypeError) as error:
                raise ConfigError(
                    f"{record}: this state cannot be taken over ({error}); run the program that wrote it, or delete it"
                ) from error
        if checkpoint.accounts is not None:
            self._runtime.accounts(number).restore(checkpoint.accounts)
        places = [TopicPartition(topic, number) for topic in INPUT_NAMES]
        begins = await self._log.begin_offsets(places)
        positions = {place.topic: max(checkpoint.positions.get(place.topic, 0), begins[place]) for place in places}
        wake = asyncio.Event()
        skips = await read_skips(self._log, number, positions[TICKS.name])
        post = Post(Lane(number, positions), Jobs(self._simulators, wake.set, self.fail, skips), wake)
        post.saved_ticks = {core.deployment: core.ticks for core in self._cores(number)}
        post.task = asyncio.create_task(self._guard(post), name=f"partition {number}")
        log.info("partition %d: %d deployments, from %s", number, len(post.saved_ticks), brief(positions))
        return post

    async def on_revoked(self, lost: Iterable[TopicPartition]) -> None:
        """End work on partitions. Their state is saved if the results due come soon, else the last one stands."""
        async with self._changing:
            numbers = sorted({place.partition for place in lost} & set(self._posts))
            await asyncio.gather(*(self._close(number) for number in numbers))

    async def _close(self, number: int) -> None:
        post = self._posts.pop(number)
        self._runtime.hold(number)
        post.closing = True
        post.wake.set()
        if post.task is not None:
            done, _ = await asyncio.wait([post.task], timeout=CLOSE_TIMEOUT_S)
            if done and not self.failed.done():
                with contextlib.suppress(ConfigError, TimeoutError):
                    async with asyncio.timeout(CLOSE_TIMEOUT_S):
                        await self._save(post)
            post.task.cancel()
        self._runtime.release(number)
        log.info("partition %d: given up at %s", number, brief(post.lane.handed))

    # Records and results come in

    def take(self, record: LogRecord) -> None:
        """Take a record of an input topic. One of a partition that is not ours is dropped: its owner reads it."""
        post = self._posts.get(record.partition)
        if post is not None and post.lane.receive(record):
            post.wake.set()

    def crowded(self) -> set[TopicPartition]:
        """Topics and partitions whose reading should pause."""
        return {place for post in self._posts.values() for place in post.lane.crowded()}

    def roomy(self) -> set[TopicPartition]:
        """Topics and partitions that may be read."""
        return {place for post in self._posts.values() for place in post.lane.roomy()}

    def awaits_records(self) -> bool:
        """Whether a partition cannot go on without records that stand in the log."""
        return any(post.lane.awaited for post in self._posts.values())

    # The task of a partition

    async def _guard(self, post: Post) -> None:
        try:
            await self._work(post)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # whatever it is, it ends the worker, with its trace in the log
            log.exception("partition %d stopped", post.lane.partition)
            self.fail(error)

    async def _work(self, post: Post) -> None:
        await self._go_on(post)  # a snapshot is taken before the ticks that were due by then
        handled = 0
        while post.jobs or not post.closing:
            post.wake.clear()
            todo = await self._next(post)
            if todo is None:
                await self._wait(post)
                continue
            post.moved_s = time.monotonic()
            await self._carry_out(post, todo)
            if not post.closing and self._save_is_due(post):
                await self._hold_and_save(post)
            handled += 1
            if handled % TURN_RECORDS == 0:
                await asyncio.sleep(0)

    async def _next(self, post: Post) -> Todo | None:
        if post.jobs.results:
            return self._runtime.on_simulated(post.jobs.results.popleft())
        if post.jobs.skipped:
            job, told = post.jobs.skipped.popleft()
            if told is not None:  # stored before anything that follows from it
                await self._outbox.write(told)
                await self._outbox.flush()
            return self._runtime.on_skipped(job)
        record = None if post.closing or self._congested(post) else post.lane.pop()
        return None if record is None else self._runtime.handle(incoming(record))

    def _congested(self, post: Post) -> bool:
        """Whether a deployment waits for a simulation with more records behind it than it may hold."""
        cores = (self._runtime.cores.get(name) for name in post.jobs.outstanding)
        return any(core is not None and core.awaiting and core.backlog > self._max_backlog_units for core in cores)

    async def _wait(self, post: Post) -> None:
        lane = post.lane
        if not post.closing and not self._congested(post):
            if lane.must_ask:
                lane.learn_ends(await self._ends(lane.partition))
                return
            if lane.awaited:
                await self._await_promised(post)
                return
        now_s = time.monotonic()
        if self._silence_ticks and not lane.held and now_s - post.looked_s >= SILENCE_POLL_S:
            post.looked_s = now_s
            await self._tell_time(post)
        post.idle = not post.jobs and not lane.held and not post.closing
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SILENCE_POLL_S if self._silence_ticks else None):
                await post.wake.wait()
        post.idle = False

    async def _tell_time(self, post: Post) -> None:
        """Write the time for live deployments that have fallen silent, if all that stands in the log was handled."""
        now_us = time.time_ns() // 1000
        cores = self._cores(post.lane.partition)
        post.silence.forget({core.deployment for core in cores})
        for core in cores:
            post.silence.observe(core.deployment, core.heard_us, core.watermark_us, now_us)
        due = []
        for core in cores:
            lateness_us = max(core.settings.sources.values())
            at_us = post.silence.due_us(core.deployment, core.settings.period_us, now_us, lateness_us)
            due.append((core.deployment, at_us))
        if any(at_us for _, at_us in due) and await self._ends(post.lane.partition) == post.lane.handed:
            for name, at_us in due:
                if at_us is not None:
                    await self._outbox.write(tick_of(name, at_us))

    async def _await_promised(self, post: Post) -> None:
        try:
            async with asyncio.timeout(AWAITED_SILENCE_S):
                await post.wake.wait()
        except TimeoutError:
            lane = post.lane
            if lane.awaited and not await self._readable(lane, lane.awaited):
                log.info("partition %d: a gap at the end of %s", lane.partition, ", ".join(lane.give_up_waiting()))

    async def _ends(self, number: int) -> dict[str, int]:
        ends = await self._log.end_offsets([TopicPartition(topic, number) for topic in INPUT_NAMES])
        return {place.topic: end for place, end in ends.items()}

    # What the runtime asks for

    async def _carry_out(self, post: Post, todo: Todo) -> None:
        for message in todo.writes:
            await self._outbox.write(message)
        for job in todo.jobs:
            post.jobs.start(job, self._runtime.cores[job.deployment].settings.period_us)

    # Snapshots

    def _cores(self, number: int) -> list[Any]:
        return [core for name, core in self._runtime.cores.items() if partition_of(name, self._partitions) == number]

    def _save_is_due(self, post: Post) -> bool:
        """After so many ticks of any deployment; at once for a new one, or records before the others' offsets that
        only it has seen would be passed over by a restart."""
        saved = post.saved_ticks
        return post.holding or any(
            core.deployment not in saved or core.ticks - saved[core.deployment] >= core.settings.snapshot_ticks
            for core in self._cores(post.lane.partition)
        )

    async def _hold_and_save(self, post: Post) -> None:
        """Save as soon as no result is awaited; until then no new tick starts, and records go on being taken."""
        number = post.lane.partition
        if not post.holding:
            post.holding = True
            self._runtime.hold(number)
        if await self._save(post):
            post.holding = False
            await self._go_on(post)

    async def _go_on(self, post: Post) -> None:
        for _, todo in self._runtime.go_on(post.lane.partition):
            await self._carry_out(post, todo)

    async def _save(self, post: Post) -> bool:
        number = post.lane.partition
        snapshots = self._runtime.snapshots(number)
        if snapshots is None:
            return False
        ticks = {core.deployment: core.ticks for core in self._cores(number)}
        accounts = self._runtime.accounts(number).snapshot()
        written = with_positions(snapshots, post.lane.handed, accounts)
        await self._outbox.flush()
        new = [message for message in written if message.deployment not in post.saved_ticks]
        for message in new:
            await self._outbox.write_state(message)
        if new:
            await self._outbox.flush()
        for message in written:
            if message.deployment in post.saved_ticks:
                await self._outbox.write_state(message)
        post.saved_ticks = ticks
        self.snapshots += 1
        return True

    # The end

    def fail(self, error: BaseException) -> None:
        """End the worker for this error."""
        if not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()  # retrieved: whoever waits gets it, and nobody may

    async def stop(self) -> None:
        """Give up all partitions, their state saved where it can be, and store everything written."""
        await self.on_revoked([TopicPartition(INPUT_NAMES[0], number) for number in list(self._posts)])
        await self._outbox.flush()

    def report(self) -> Report:
        """How it stands."""
        handed = {
            f"{topic}[{n}]": at for n, post in self._posts.items() for topic, at in post.lane.handed.items() if at
        }
        return Report(
            partitions=tuple(sorted(self._posts)),
            balance=self._runtime.balance(),
            handed=handed,
            held=sum(post.lane.held for post in self._posts.values()),
            outstanding=sum(post.jobs.outstanding.total() for post in self._posts.values()),
            simulators_ready=self._simulators.ready.is_set(),
            idle=all(post.idle and not post.wake.is_set() for post in self._posts.values()),
            snapshots=self.snapshots,
            written=dict(self._outbox.written),
        )

    async def stalled(self, longer_than_s: float) -> str | None:
        """A partition that has not moved for that long though records or results are due; None where all is well."""
        now_s = time.monotonic()
        for number, post in list(self._posts.items()):
            still_s = now_s - post.moved_s
            if still_s < longer_than_s:
                continue
            ends = await self._ends(number)
            behind = [topic for topic, end in ends.items() if post.lane.received[topic] < end]
            if post.lane.held or post.jobs or await self._readable(post.lane, behind):
                where = f"at {brief(post.lane.handed)} of {brief(ends)}"
                return f"partition {number} has not moved for {still_s:.0f} s, {where}"
            post.moved_s = now_s
        return None

    async def _readable(self, lane: Lane, topics: Iterable[str]) -> bool:
        """Whether the log really holds a record that was not received: an end offset alone may be a gap."""
        places = {TopicPartition(topic, lane.partition): lane.received[topic] for topic in topics}
        if not places:
            return False
        async with self._log.reader(places) as reader:
            return bool(await reader.get(max_records=1, timeout_s=2.0))


CLOSE_TIMEOUT_S = 1.0
"""How long giving up a partition may wait for its task, and for its last snapshot."""
