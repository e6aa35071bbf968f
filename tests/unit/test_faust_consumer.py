"""Faust's consumer as we change it: whole fetches to an agent, and no record lost to a pause. Needs no broker."""

import asyncio
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP

from pipelines.kafka.access import ClusterAccess
from pipelines.kafka.faust_app import FaustShell
from pipelines.log import LogRecord, TopicPartition
from pipelines.service import StalledError, _unsettled
from schemas.topics import REQUESTS, STEPS

ONE, TWO = TP(REQUESTS.name, 0), TP(STEPS.name, 0)


class Taker:
    """A worker that notes what it is given."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def take(self, record: LogRecord) -> None:
        self.taken.append(record.offset)

    async def on_revoked(self, lost: Iterable[TopicPartition]) -> None:
        pass

    def positions(self) -> dict[TopicPartition, int]:
        return {}


@pytest.fixture
def shell() -> Iterator[FaustShell]:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield FaustShell(ClusterAccess(bootstrap="127.0.0.1:9"), Taker(), group="g", slot=0, namespace="")  # type: ignore[arg-type]
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture
def consumer(shell: FaustShell) -> Any:
    found = shell._app.consumer
    found._set_active_tps({ONE, TWO})
    found.assignment = lambda: {ONE, TWO}
    return found


def record(tp: TP, offset: int) -> Any:
    return SimpleNamespace(
        topic=tp.topic, partition=tp.partition, offset=offset, timestamp=1, timestamp_type=0, headers=(), key=b"k",
        value=b"v", checksum=None, serialized_key_size=1, serialized_value_size=1,
    )  # fmt: skip


def fetched(
    consumer: Any, records: dict[TP, list[Any]], meanwhile: Any = lambda: None, after_each: Any = lambda: None
) -> list[tuple[TP, list[int]]]:
    """What comes of one fetch, with something happening while it is under way, or after each message of it."""
    consumer.flow_active = True

    async def getmany(active_partitions: set[TP], timeout: float) -> dict[TP, list[Any]]:
        meanwhile()
        return records

    consumer._getmany = getmany
    consumer.not_waiting_next_records = SimpleNamespace(set=lambda: None)

    async def read() -> list[tuple[TP, list[int]]]:
        found = []
        async for tp, message in consumer.getmany(1.0):
            found.append((tp, [r.offset for r in message.value.records]))
            after_each()
        return found

    return asyncio.get_event_loop().run_until_complete(read())


def test_all_records_of_a_fetch_come_in_one_message_per_partition(consumer: Any) -> None:
    found = fetched(consumer, {ONE: [record(ONE, offset) for offset in (3, 4, 9)], TWO: [record(TWO, 0)]})
    assert found == [(ONE, [3, 4, 9]), (TWO, [0])]


def test_a_pause_does_not_drop_what_the_fetch_under_way_brings(consumer: Any) -> None:
    """The next fetch begins behind it, so it would be lost."""
    found = fetched(consumer, {ONE: [record(ONE, 0)]}, meanwhile=lambda: consumer.pause_partitions([ONE]))
    assert found == [(ONE, [0])]


def test_paused_partitions_are_not_fetched_until_they_are_resumed(consumer: Any) -> None:
    consumer.pause_partitions([ONE])
    assert consumer._get_active_partitions() == {TWO}
    consumer.resume_partitions([ONE])
    assert consumer._get_active_partitions() == {ONE, TWO}


def test_a_rebalance_ends_what_is_left_of_a_fetch(consumer: Any) -> None:
    """The partitions that are ours afterwards are read from where the state says."""

    def next_generation() -> None:
        consumer.app.consumer_generation_id += 1

    found = fetched(consumer, {ONE: [record(ONE, 0)], TWO: [record(TWO, 0)]}, after_each=next_generation)
    assert found == [(ONE, [0])]


def run(call: Any) -> Any:
    return asyncio.get_event_loop().run_until_complete(call)


def message_of(consumer: Any, offset: int) -> Any:
    """What an agent gets of a fetch that brought one record."""

    async def read() -> Any:
        async def getmany(active_partitions: set[TP], timeout: float) -> dict[TP, list[Any]]:
            return {ONE: [record(ONE, offset)]}

        consumer._getmany = getmany
        [(_, message)] = [each async for each in consumer.getmany(1.0)]
        return message.value

    consumer.not_waiting_next_records = SimpleNamespace(set=lambda: None)
    return run(read())


def test_what_was_fetched_before_a_seek_is_not_handed_over_after_it(shell: FaustShell, consumer: Any) -> None:
    """It stands behind records that are read again: a lane would take it for the first ones after a gap."""
    before = message_of(consumer, 400)
    run(consumer.perform_seek())
    shell._hand_over(before, REQUESTS.name)
    shell._hand_over(message_of(consumer, 88), REQUESTS.name)
    assert shell._worker.taken == [88]  # type: ignore[attr-defined]


def test_what_was_fetched_before_a_revocation_is_not_handed_over_after_it(shell: FaustShell, consumer: Any) -> None:
    before = message_of(consumer, 400)
    run(shell._on_revoked(None, {ONE, TWO}))
    shell._hand_over(before, REQUESTS.name)
    assert shell._worker.taken == []  # type: ignore[attr-defined]


def test_a_fetch_that_a_seek_overtook_is_dropped_and_sought_again(shell: FaustShell, consumer: Any) -> None:
    """Its records may be of either side of the seek, and what is dropped must be read again."""
    sought = []

    async def positions(assignment: set[TP]) -> dict[TP, int]:
        sought.append(assignment)
        return {}

    def overtake() -> None:
        shell._seeks += 1

    shell.positions = positions  # type: ignore[method-assign]
    assert fetched(consumer, {ONE: [record(ONE, 400)]}, meanwhile=overtake) == []
    assert sought == [{ONE, TWO}]


def test_a_rebalance_that_does_not_end_is_told_and_one_that_leaves_others_all_partitions_has_ended(
    shell: FaustShell, consumer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr("pipelines.kafka.faust_app.time", SimpleNamespace(monotonic=lambda: now_s[0]))

    async def on_assigned(owned: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {}

    shell._worker.on_assigned = on_assigned  # type: ignore[method-assign]
    run(shell._on_revoked(None, {ONE, TWO}))
    now_s[0] += 91.0
    assert shell.unsettled_s == 91.0
    assert isinstance(_unsettled(shell.unsettled_s, 90.0), StalledError)
    run(shell._on_settled(None))
    assert shell.unsettled_s == 91.0  # where to read on is not known yet
    run(shell.positions({ONE, TWO}))
    assert shell.unsettled_s == 0.0
    assert _unsettled(shell.unsettled_s, 90.0) is None
    run(shell._on_revoked(None, {ONE, TWO}))
    consumer.assignment = set
    now_s[0] += 91.0
    run(shell._on_settled(None))
    assert shell.unsettled_s == 0.0


def test_faust_s_folder_is_not_made_where_a_command_is_called(consumer: Any) -> None:
    assert Path(consumer.app.conf.datadir).is_relative_to(tempfile.gettempdir())
