"""Where a partition is read on: from the oldest of its snapshots, so that no kill between two writes loses a record."""

import asyncio

import pytest

from pipelines.checkpoint import ACCOUNTS_HEADER, POSITIONS_HEADER, read_checkpoint, resume_from, with_positions
from pipelines.errors import ConfigError
from pipelines.local.embedded import memory_log
from pipelines.log import LogRecord
from pipelines.outputs import Outgoing
from pipelines.provision import create
from schemas.topics import STATE


def snapshot(deployment: str, value: bytes = b"{}") -> Outgoing:
    return Outgoing(STATE.name, deployment, deployment.encode(), value, (("ce_id", b"1"),), 0)


def stored(messages: list[Outgoing]) -> list[LogRecord]:
    return [LogRecord(m.topic, 0, i, 0, m.key, m.value, m.headers) for i, m in enumerate(messages)]


def test_no_snapshot_means_from_the_beginning() -> None:
    assert resume_from([]).positions == {}


def test_the_oldest_snapshot_decides_and_brings_its_accounts() -> None:
    older = with_positions([snapshot("a")], {"requests": 5, "steps": 7}, {"in": 12})
    newer = with_positions([snapshot("b")], {"requests": 9, "steps": 7, "slos": 1}, {"in": 17})
    found = resume_from(stored(older + newer))
    assert found.positions == {"requests": 5, "steps": 7, "slos": 0}
    assert found.accounts == {"in": 12}


def test_a_snapshot_keeps_its_own_headers() -> None:
    (written,) = with_positions([snapshot("a")], {}, {})
    assert dict(written.headers)["ce_id"] == b"1"


def test_only_the_last_snapshot_of_a_deployment_counts_and_a_tombstone_ends_it() -> None:
    async def act() -> None:
        async with memory_log() as log:
            await create(log, 1)
            async with log.producer() as producer:
                for deployment, at in (("a", 1), ("b", 2), ("a", 3)):
                    (message,) = with_positions([snapshot(deployment, f"{at}".encode())], {"requests": at}, {})
                    await producer.send(STATE.name, key=message.key, value=message.value, headers=message.headers)
                await producer.flush()
                found = await read_checkpoint(log, 0)
                assert sorted(record.value or b"" for record in found.snapshots) == [b"2", b"3"]
                assert found.positions == {"requests": 2}
                await producer.send(STATE.name, key=b"b", value=None)
                await producer.flush()
                assert (await read_checkpoint(log, 0)).positions == {"requests": 3}

    asyncio.run(act())


@pytest.mark.parametrize("header", [None, b"not json", b"[1]"])
def test_a_snapshot_without_readable_offsets_is_refused_clearly(header: bytes | None) -> None:
    headers = () if header is None else ((POSITIONS_HEADER, header), (ACCOUNTS_HEADER, b"{}"))
    record = LogRecord(STATE.name, 2, 7, 0, b"a", b"{}", headers)
    with pytest.raises(ConfigError, match=r"twincast.state.v1\[2\]@7.*twincast_positions"):
        resume_from([record])
