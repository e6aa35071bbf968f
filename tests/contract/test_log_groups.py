"""What every log promises to the members of a group, held against memory, files and a real Apache Kafka alike."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from log_bench import make, put

from pipelines.log import GroupBusyError, Log, LogRecord, TopicPartition


@dataclass
class Witness:
    """A group member that writes down what it is told, and commits what it has read when it loses partitions."""

    starts: dict[TopicPartition, int] = field(default_factory=dict)
    events: list[tuple[str, frozenset[TopicPartition]]] = field(default_factory=list)
    records: list[LogRecord] = field(default_factory=list)
    member: object = None
    stopped: bool = False

    async def on_assigned(self, owned):
        self.events.append(("assigned", owned))
        return {where: offset for where, offset in self.starts.items() if where in owned}

    async def on_revoked(self, lost):
        self.events.append(("revoked", lost))
        await self.commit()

    async def commit(self):
        await self.member.commit({where: self.member.position(where) for where in self.member.assignment})

    async def read(self, log: Log, group: str, topics: list[str], *, until=lambda: False) -> None:
        joined = log.member(group, topics, on_assigned=self.on_assigned, on_revoked=self.on_revoked)
        self.member = joined
        async with joined:
            while not (self.stopped or until()):
                self.records += await joined.get(timeout_s=0.1)


def test_a_lone_member_gets_all_and_goes_on_where_it_committed(bench):
    async def body(log: Log) -> None:
        topic, group = await make(log, bench.name(), partitions=3), bench.name("group")
        await put(log, topic, [b"%d" % number for number in range(30)])
        first = Witness()
        await first.read(log, group, [topic], until=lambda: len(first.records) >= 30)
        every = frozenset(TopicPartition(topic, p) for p in range(3))
        assert first.events == [("assigned", every), ("revoked", every)]
        await put(log, topic, [b"%d" % number for number in range(30, 40)])
        second = Witness()
        await second.read(log, group, [topic], until=lambda: len(second.records) >= 10)
        assert sorted(int(r.value) for r in second.records) == list(range(30, 40))

    bench.run(body)


def test_a_member_may_start_where_its_snapshot_says(bench):
    async def body(log: Log) -> None:
        topic, group = await make(log, bench.name(), partitions=2), bench.name("group")
        await put(log, topic, [b"%d" % number for number in range(10)], partition=0)
        await put(log, topic, [b"%d" % number for number in range(10)], partition=1)
        await log.commit(group, {TopicPartition(topic, 0): 9, TopicPartition(topic, 1): 6})
        one = Witness(starts={TopicPartition(topic, 0): 2})
        await one.read(log, group, [topic], until=lambda: len(one.records) >= 12)
        assert [r.offset for r in one.records if r.partition == 0] == list(range(2, 10))
        assert [r.offset for r in one.records if r.partition == 1] == list(range(6, 10))

    bench.run(body)


def test_only_the_owner_commits(bench):
    async def body(log: Log) -> None:
        topic, group = await make(log, bench.name()), bench.name("group")
        await put(log, topic, [b"v"])
        one = Witness()
        reading = asyncio.create_task(one.read(log, group, [topic]))
        while not one.records:
            await asyncio.sleep(0.01)
        with pytest.raises(GroupBusyError, match="has members"):
            await log.commit(group, {TopicPartition(topic, 0): 0})
        with pytest.raises(GroupBusyError, match="belongs to another member"):
            await one.member.commit({TopicPartition(topic, 5): 0})
        one.stopped = True
        await reading
        await log.commit(group, {TopicPartition(topic, 0): 0})

    bench.run(body)


@pytest.mark.slow
def test_members_come_and_go_and_no_record_is_lost_or_doubled(bench):
    async def body(log: Log) -> None:
        topics = [await make(log, bench.name(what), partitions=5) for what in ("left", "right")]
        group, total = bench.name("group"), 0
        one, two = Witness(), Witness()

        async def send(count: int) -> None:
            nonlocal total
            for topic in topics:
                await put(log, topic, [b"%d" % number for number in range(total, total + count)])
            total += count

        async def until(done: Callable[[], bool]) -> None:
            while not done():
                await asyncio.sleep(0.02)

        await send(40)
        first = asyncio.create_task(one.read(log, group, topics))
        await until(lambda: len(one.records) == 80)
        second = asyncio.create_task(two.read(log, group, topics))
        await until(lambda: bool(two.events) and one.events[-1][0] == "assigned" and len(one.events) >= 3)
        await send(40)
        await until(lambda: len(one.records) + len(two.records) == 160)
        for mine in (one.member.assignment, two.member.assignment):
            left, right = ({w.partition for w in mine if w.topic == topic} for topic in topics)
            assert left == right
            assert len(left) in (2, 3)
        assert not one.member.assignment & two.member.assignment
        one.stopped = True
        await first
        await until(lambda: len(two.member.assignment) == 10)
        await send(40)
        await until(lambda: len(one.records) + len(two.records) >= 240)
        two.stopped = True
        await second
        read = sorted((r.topic, r.partition, r.offset) for r in one.records + two.records)
        assert len(read) == len(set(read)) == 240
        for witness in (one, two):
            assert [kind for kind, _ in witness.events] == ["assigned", "revoked"] * (len(witness.events) // 2)

    bench.run(body)
