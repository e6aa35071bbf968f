"""Alerts through a real Apache Kafka to a webhook that is down at first, by a relay that is stopped meanwhile."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pipelines.kafka.access import cluster_access
from pipelines.kafka.kafka_log import KafkaLog
from pipelines.log import Log
from pipelines.namespace import in_namespace
from pipelines.outlets.alert_file import AlertFile
from pipelines.outlets.alert_relay import AlertRelay
from pipelines.outlets.alertmanager import Alertmanager
from pipelines.provision import create
from schemas.alerts import Alert
from schemas.codec import encode
from schemas.topics import ALERTS

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
PARTITIONS = 2


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(40.0):
        while not condition():
            await asyncio.sleep(0.05)


async def write(log: Log, name: str, state: str) -> None:
    now_us = time.time_ns() // 1000
    alert = Alert(
        deployment="d", at_us=now_us, alert_id=name, kind="slo_risk", state=state, cause="c", onset_us=now_us  # type: ignore[arg-type]
    )  # fmt: skip
    async with log.producer() as producer:
        await producer.send(ALERTS.name, key=b"d", value=encode(alert), partition=0)


@asynccontextmanager
async def relaying(log: Log, url: str, file: Path) -> AsyncIterator[AlertRelay]:
    async with Alertmanager(url) as webhook:
        relay = AlertRelay(log, "g", webhook=webhook, file=AlertFile(file))
        task = asyncio.create_task(relay.run())
        try:
            yield relay
        finally:
            task.cancel()
            await asyncio.wait([task])


def test_nothing_is_lost_while_the_webhook_or_the_relay_is_down(kafka_bootstrap: str, tmp_path: Path) -> None:
    taken: list[dict[str, Any]] = []
    status = [503]

    async def handle(request: web.Request) -> web.Response:
        if status[0] == 200:
            taken.extend(await request.json())
        return web.Response(status=status[0])

    async def main() -> None:
        app = web.Application()
        app.add_routes([web.post("/api/v2/alerts", handle)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url, file = f"http://127.0.0.1:{runner.addresses[0][1]}", tmp_path / "alerts.jsonl"
        name = f"alerts-{uuid.uuid4().hex[:8]}"
        async with in_namespace(KafkaLog(cluster_access({}, kafka_bootstrap)), name) as log:
            await create(log, PARTITIONS)
            async with relaying(log, url, file) as relay:
                await write(log, "a1", "firing")
                await until(lambda: "answers 503" in relay.trouble)
            await write(log, "a2", "firing")  # nobody relays now
            await write(log, "a1", "resolved")
            status[0] = 200
            async with relaying(log, url, file):
                await until(lambda: {row["labels"]["alert_id"] for row in taken} == {"a1", "a2"})
                await asyncio.sleep(2.5)  # and they are committed
            told = len(taken)
            async with relaying(log, url, file):  # only what still fires is repeated
                await until(lambda: len(taken) > told)
                await asyncio.sleep(1.5)
            assert {row["labels"]["alert_id"] for row in taken[told:]} == {"a2"}
        await runner.cleanup()
        lines = file.read_text().splitlines()
        states = {(name, state) for name in ("a1", "a2") for state in ("firing", "resolved")} - {("a2", "resolved")}
        found = [(name, state) for name, state in states for line in lines if name in line and f'"{state}"' in line]
        assert set(found) == states
        assert len(lines) <= 4  # one may stand there twice, since nothing was committed while the webhook was down

    asyncio.run(main())
