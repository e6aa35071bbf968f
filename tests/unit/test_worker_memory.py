"""The worker on a log in memory: what it writes, when it saves, and what a kill at any moment leaves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from synthetic import service

from pipelines.backtest import Backtest, backtest
from pipelines.drive import drive
from pipelines.errors import ConfigError
from pipelines.ingest.recording import Recording, event_of, in_order
from pipelines.local.embedded import LocalLog, memory_log
from pipelines.log import LogRecord, Producer, TopicPartition
from pipelines.outputs import Outgoing
from pipelines.partitions import partition_of
from pipelines.playback import messages_of
from pipelines.player import play
from pipelines.provision import create
from pipelines.runtime import Runtime
from pipelines.worker import Worker
from schemas.topics import DLQ, FORECASTS, OUTPUTS, REQUESTS, STATE, STEPS
from twin.job import SimulationJob, SimulationResult
from twin.settings import CoreSettings
from twin.simulate import run
from twin.traffic.scenarios import BASELINE

PARTITIONS = 2
SETTINGS = CoreSettings(
    period_s=5.0,
    horizons_s=(10.0,),
    scenarios=(BASELINE,),
    coarse_replications=1,
    fine_replications=2,
    snapshot_ticks=2,
    insight=False,
)


class InlineSimulators:
    """Simulates in this process, when the event loop turns. `hold` keeps results back until `release`."""

    def __init__(self, simulate: Callable[[SimulationJob], SimulationResult] = run) -> None:
        self._simulate = simulate
        self.ready = asyncio.Event()
        self.ready.set()
        self.hold = False
        self._held: list[Callable[[], None]] = []

    def submit(self, job: SimulationJob) -> "asyncio.Future[SimulationResult]":
        future: asyncio.Future[SimulationResult] = asyncio.get_running_loop().create_future()

        def settle() -> None:
            if future.done():
                return
            try:
                future.set_result(self._simulate(job))
            except RuntimeError as error:
                future.set_exception(error)

        if self.hold:
            self._held.append(settle)
        else:
            asyncio.get_running_loop().call_soon(settle)
        return future

    def release(self) -> None:
        self.hold = False
        for settle in self._held:
            settle()


def recording(seconds: float = 40.0, deployment: str = "d") -> Recording:
    events = in_order(event_of(record) for record in service(seconds, deployment=deployment))
    return Recording("synthetic", "S3", min(event.at_us for event in events), events)


class Bench:
    """A log and the means to run workers on it."""

    def __init__(self, log: LocalLog) -> None:
        self.log = log
        self.simulators = InlineSimulators()

    @asynccontextmanager
    async def worker(self, *, clean: bool = True, backlog: int = 20_000, producer: Any = None) -> AsyncIterator[Worker]:
        """A worker at work; not `clean` ends it as a kill does, with nothing saved."""
        async with self.log.producer(max_record_bytes=16 << 20) as own:
            worker = Worker(
                self.log,
                producer(own) if producer else own,
                Runtime(lambda _: SETTINGS, PARTITIONS),
                self.simulators,  # type: ignore[arg-type]  # what it needs of them
                partitions=PARTITIONS,
                max_backlog_units=backlog,
            )
            reading = asyncio.create_task(drive(self.log, worker, "g"))
            try:
                yield worker
                if clean:
                    await worker.stop()
            finally:
                if not clean:
                    for post in worker._posts.values():
                        if post.task is not None:
                            post.task.cancel()
                    worker._posts.clear()
                reading.cancel()
                with suppress(asyncio.CancelledError):
                    await reading

    async def send(self, messages: Sequence[Outgoing]) -> int:
        async with self.log.producer() as producer:
            return (await play(producer, messages, PARTITIONS, speed=float("inf"))).messages

    async def done(self, worker: Worker, messages: int) -> None:
        async with asyncio.timeout(20.0):
            while not (worker.report().idle and sum(worker.report().handed.values()) == messages):
                if worker.failed.done():
                    await worker.failed
                await asyncio.sleep(0.005)

    async def records(self, topic: str) -> list[LogRecord]:
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        ends = await self.log.end_offsets(places)
        found: list[LogRecord] = []
        async with self.log.reader(dict.fromkeys(places, 0)) as reader:
            while any(reader.position(place) < ends[place] for place in places):
                found += await reader.get(timeout_s=0.1)
        return found

    async def core(self, deployment: str = "d") -> Any:
        runtime = Runtime(lambda _: SETTINGS, PARTITIONS)
        for record in await self.records(STATE.name):
            runtime.restore(record.value or b"")
        return runtime.cores[deployment]


def on_a_bench(scene: Callable[[Bench], Awaitable[None]]) -> None:
    async def act() -> None:
        async with memory_log() as log:
            await create(log, PARTITIONS)
            await scene(Bench(log))

    asyncio.run(act())


@pytest.fixture(scope="module")
def replay() -> Backtest:
    return backtest(recording(), SETTINGS)


def expected(replay: Backtest, topic: str) -> list[bytes]:
    return [message.value for message in replay.outputs if message.topic == topic]


def test_live_equals_replay(replay: Backtest) -> None:
    async def scene(bench: Bench) -> None:
        async with bench.worker() as worker:
            await bench.done(worker, await bench.send(list(messages_of(recording()))))
            assert worker.report().balance == replay.balance
        for topic in OUTPUTS:
            assert [record.value for record in await bench.records(topic.name)] == expected(replay, topic.name)
        assert (await bench.core()).state_hash() == replay.core.state_hash()

    on_a_bench(scene)


@pytest.mark.parametrize("after", [1, 40, 150, 300, 420])
def test_a_kill_at_any_moment_loses_and_doubles_nothing(replay: Backtest, after: int) -> None:
    sent = list(messages_of(recording()))

    async def scene(bench: Bench) -> None:
        async with bench.worker(clean=False) as worker:
            await bench.send(sent[:after])
            await bench.done(worker, min(after, len(sent)))
        await bench.send(sent[after:])
        async with bench.worker() as worker:
            await bench.done(worker, len(sent))
        core = await bench.core()
        assert core.state_hash() == replay.core.state_hash()
        assert core.accounts.as_dict() == replay.core.accounts.as_dict()
        found = await bench.records(FORECASTS.name)
        assert list(dict.fromkeys(record.value for record in found)) == expected(replay, FORECASTS.name)

    on_a_bench(scene)


def test_a_deployment_is_saved_when_it_appears_so_that_others_do_not_carry_its_records_away() -> None:
    names = [name for name in map(str, range(20)) if partition_of(name, PARTITIONS) == 0][:2]

    async def scene(bench: Bench) -> None:
        first, second = (list(messages_of(recording(20.0, name))) for name in names)
        async with bench.worker(clean=False) as worker:
            await bench.done(worker, await bench.send(first))
            await bench.done(worker, len(first) + await bench.send(second[:1]))
            keys = [record.key for record in await bench.records(STATE.name)]
            assert names[1].encode() in keys
            await bench.done(worker, len(first) + 1 + await bench.send(first[:1]))
        await bench.send(second[1:])
        async with bench.worker() as worker:
            await bench.done(worker, len(first) + len(second) + 1)
        alone = backtest(recording(20.0, names[1]), SETTINGS)
        assert (await bench.core(names[1])).accounts.as_dict() == alone.core.accounts.as_dict()

    on_a_bench(scene)


def test_outputs_are_stored_before_the_snapshot_that_follows_them() -> None:
    """A producer that remembers: when a snapshot is sent, everything sent before it was flushed."""

    class Remembering:
        def __init__(self, producer: Producer) -> None:
            self._producer = producer
            self.unflushed: list[str] = []
            self.violations: list[str] = []
            self.snapshots = 0

        async def send(self, topic: str, **record: Any) -> None:
            if topic == STATE.name:
                self.snapshots += 1
                self.violations += [name for name in self.unflushed if name != STATE.name]
            self.unflushed.append(topic)
            await self._producer.send(topic, **record)

        async def flush(self, timeout_s: float = 60.0) -> None:
            await self._producer.flush(timeout_s)
            self.unflushed.clear()

    spies: list[Remembering] = []

    def spy(producer: Producer) -> Remembering:
        spies.append(Remembering(producer))
        return spies[-1]

    async def scene(bench: Bench) -> None:
        async with bench.worker(producer=spy) as worker:
            await bench.done(worker, await bench.send(list(messages_of(recording()))))
        assert spies[0].snapshots >= 3
        assert spies[0].violations == []

    on_a_bench(scene)


@pytest.mark.parametrize("snapshots", [2, 3, 4])
def test_a_kill_right_after_a_snapshot_leaves_no_tick_undone(replay: Backtest, snapshots: int) -> None:
    """All records are in the log, so nothing but the state says that ticks are due."""
    sent = list(messages_of(recording()))

    class EndingWith:
        def __init__(self, producer: Producer) -> None:
            self._producer = producer
            self._left = snapshots
            self.ended = asyncio.Event()
            endings.append(self)

        async def send(self, topic: str, **record: Any) -> None:
            if self._left == 0:
                self.ended.set()
                await asyncio.Event().wait()
            await self._producer.send(topic, **record)
            self._left -= topic == STATE.name

        async def flush(self, timeout_s: float = 60.0) -> None:
            await self._producer.flush(timeout_s)

    endings: list[EndingWith] = []

    async def scene(bench: Bench) -> None:
        await bench.send(sent)
        async with bench.worker(clean=False, producer=EndingWith):
            await asyncio.wait_for(endings[0].ended.wait(), 20.0)
        async with bench.worker() as worker:
            await bench.done(worker, len(sent))
        assert (await bench.core()).state_hash() == replay.core.state_hash()
        found = await bench.records(FORECASTS.name)
        assert list(dict.fromkeys(record.value for record in found)) == expected(replay, FORECASTS.name)

    on_a_bench(scene)


def test_bad_bytes_reach_the_dlq_as_they_were_and_the_next_record_is_handled() -> None:
    bad = [b"\xff\xfe", b"", b"{", b'{"event":"arrived"}', b"[" * 5000]

    async def scene(bench: Bench) -> None:
        sent = list(messages_of(recording(10.0)))
        async with bench.worker() as worker:
            await bench.done(worker, await bench.send(sent))
            async with bench.log.producer() as producer:
                for number, value in enumerate(bad):
                    await producer.send(
                        REQUESTS.name, key=b"k", value=value, headers=[("n", str(number).encode())], partition=0
                    )
                await producer.send(STEPS.name, key=b"d", value=None, partition=partition_of("d", PARTITIONS))
            await bench.done(worker, len(sent) + len(bad) + 1)
            assert worker.report().balance["dead_letter"] == len(bad)
            assert worker.report().balance["tombstone"] == 1
        letters = await bench.records(DLQ.name)
        assert [letter.value for letter in letters] == bad
        assert [dict(letter.headers)["n"] for letter in letters] == [b"0", b"1", b"2", b"3", b"4"]

    on_a_bench(scene)


def test_accounts_of_records_that_reached_no_core_survive_a_kill() -> None:
    async def scene(bench: Bench) -> None:
        sent = list(messages_of(recording()))
        async with bench.worker(clean=False) as worker:
            async with bench.log.producer() as producer:
                await producer.send(REQUESTS.name, value=b"bad", partition=partition_of("d", PARTITIONS))
            await bench.done(worker, 1 + await bench.send(sent))
            before = worker.report().balance
            assert worker.snapshots > 2
        async with bench.worker() as worker:
            await bench.done(worker, 1 + len(sent))
            assert worker.report().balance == before

    on_a_bench(scene)


def test_a_deployment_that_waits_for_its_simulation_takes_no_more_than_it_may_hold() -> None:
    async def scene(bench: Bench) -> None:
        bench.simulators.hold = True
        sent = list(messages_of(recording()))
        async with bench.worker(backlog=50) as worker:
            await bench.send(sent)
            await asyncio.sleep(0.3)
            report = worker.report()
            assert report.outstanding == 2
            assert report.held > 0
            assert worker._runtime.cores["d"].backlog < 70  # one message of steps may go over
            bench.simulators.release()
            await bench.done(worker, len(sent))

    on_a_bench(scene)


def test_a_simulation_that_fails_ends_the_worker_with_its_reason() -> None:
    def fail(job: SimulationJob) -> SimulationResult:
        raise RuntimeError("the kernel is broken")

    async def scene(bench: Bench) -> None:
        bench.simulators = InlineSimulators(fail)
        async with bench.worker() as worker:
            await bench.send(list(messages_of(recording())))
            with pytest.raises(RuntimeError, match="the kernel is broken"):
                await asyncio.wait_for(worker.failed, 10.0)

    on_a_bench(scene)


def still(worker: Worker, seconds: float) -> None:
    """As if nothing had moved for so long."""
    for post in worker._posts.values():
        post.moved_s -= seconds


def test_a_partition_that_does_not_move_with_records_waiting_is_told() -> None:
    async def scene(bench: Bench) -> None:
        bench.simulators.hold = True
        async with bench.worker(backlog=50) as worker:
            sent = await bench.send(list(messages_of(recording())))
            while worker.report().outstanding == 0:
                await asyncio.sleep(0.01)
            assert await worker.stalled(60.0) is None
            still(worker, 61.0)
            told = await worker.stalled(60.0)
            assert told is not None
            assert f"partition {partition_of('d', PARTITIONS)} has not moved" in told
            bench.simulators.release()
            await bench.done(worker, sent)
        async with bench.worker() as idle:
            await bench.done(idle, sent)
            still(idle, 61.0)
            assert await idle.stalled(60.0) is None

    on_a_bench(scene)


def test_a_partition_without_all_of_its_topics_is_refused() -> None:
    async def scene(bench: Bench) -> None:
        async with bench.worker() as worker:
            with pytest.raises(ConfigError, match=r"partition 1 came without .*twincast.steps.v1"):
                await worker.on_assigned([TopicPartition(REQUESTS.name, 1)])

    on_a_bench(scene)


@pytest.mark.parametrize("damage", [b"not json", b'{"record":"snapshot"}'])
def test_a_state_that_cannot_be_taken_over_is_refused_and_not_overwritten(damage: bytes) -> None:
    async def scene(bench: Bench) -> None:
        async with bench.log.producer() as producer:
            headers = [("twincast_positions", b"{}"), ("twincast_accounts", b"{}")]
            await producer.send(STATE.name, key=b"d", value=damage, headers=headers, partition=0)
            await producer.flush()
            worker = Worker(
                bench.log,
                producer,
                Runtime(lambda _: SETTINGS, PARTITIONS),
                bench.simulators,  # type: ignore[arg-type]
                partitions=PARTITIONS,
                max_backlog_units=1000,
            )
            with pytest.raises(ConfigError, match=r"twincast.state.v1\[0\]@0: this state cannot be taken over"):
                await drive(bench.log, worker, "g")
        assert len(await bench.records(STATE.name)) == 1

    on_a_bench(scene)
