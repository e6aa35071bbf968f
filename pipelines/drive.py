"""A worker fed by a member of a log's group: for logs that need no Faust. Carries out no effect itself."""

import asyncio

from pipelines.lanes import INPUT_NAMES
from pipelines.log import Log
from pipelines.worker import Worker

READ_RECORDS = 500
READ_TIMEOUT_S = 0.5
ROOM_POLL_S = 0.01


async def drive(log: Log, worker: Worker, group: str) -> None:
    """Read until cancelled, and give up the partitions then. Raises ConfigError."""
    async with log.member(group, INPUT_NAMES, on_assigned=worker.on_assigned, on_revoked=worker.on_revoked) as member:
        while True:
            for record in await member.get(max_records=READ_RECORDS, timeout_s=READ_TIMEOUT_S):
                worker.take(record)
            while worker.crowded() and not worker.awaits_records():
                await asyncio.sleep(ROOM_POLL_S)
