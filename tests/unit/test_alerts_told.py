"""Alerts to Alertmanager and to a file: told until taken, repeated while they fire, ended when they resolve."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from pipelines.local.embedded import memory_log
from pipelines.log import Log, TopicPartition, TopicSpec
from pipelines.outlets.alert_book import RESEND_US, AlertBook, Standing
from pipelines.outlets.alert_file import AlertFile
from pipelines.outlets.alert_relay import AlertRelay
from pipelines.outlets.alertmanager import Alertmanager, SinkDownError, payload
from pipelines.outlets.outlet_settings import OutletSettings
from schemas.alerts import Alert
from schemas.codec import encode
from schemas.topics import ALERTS

START_US = 1_796_052_000_000_000
S = 1_000_000


def alert(state: str = "firing", after_s: float = 0.0, name: str = "a1", **more: Any) -> Alert:
    fields: dict[str, Any] = {"deployment": "d", "kind": "slo_risk", "cause": "ttft P95 over 0.5 s", "lead_s": 31.0}
    return Alert(
        at_us=START_US + round(after_s * S), alert_id=name, state=state, onset_us=START_US - 5 * S, **(fields | more)
    )


def told_states(book: AlertBook, now_us: int) -> list[str]:
    due = book.due(now_us)
    book.told(due, now_us)
    return [standing.alert.state for standing in due]


def test_an_alert_goes_from_firing_over_repetition_to_resolved_and_is_forgotten() -> None:
    book = AlertBook()
    book.take(alert("suspected"))
    assert told_states(book, 0) == []
    book.take(alert("firing", 5))
    assert told_states(book, 1) == ["firing"]
    book.take(alert("firing", 5))  # a redelivery
    assert told_states(book, RESEND_US) == []
    assert told_states(book, 1 + RESEND_US) == ["firing"]
    book.take(alert("resolved", 90))
    assert book.untold == 1
    assert told_states(book, 2 + RESEND_US) == ["resolved"]
    assert told_states(book, 9 * RESEND_US) == []
    assert len(book) == 0


def test_a_suspicion_that_passes_is_told_to_nobody() -> None:
    book = AlertBook()
    book.take(alert("suspected"))
    book.take(alert("resolved", 9))
    assert told_states(book, 1) == []
    assert len(book) == 0


def test_what_changes_while_it_is_being_told_is_told_again() -> None:
    book = AlertBook()
    book.take(alert("firing"))
    due = book.due(1)
    book.take(alert("resolved", 9))
    book.told(due, 1)
    assert told_states(book, 2) == ["resolved"]


def test_after_a_restart_what_fires_is_repeated_and_what_is_over_is_not() -> None:
    book = AlertBook()
    for told in (alert("firing"), alert("firing", 1, "a2"), alert("resolved", 2)):
        book.take(told, told=True)
    assert [standing.alert.alert_id for standing in book.due(START_US)] == ["a2"]
    assert book.untold == 0


def test_an_alert_and_its_end_carry_the_same_labels() -> None:
    begun = payload(Standing(alert("firing", 5, engine="0"), START_US + 5 * S), START_US + 6 * S)
    ended = payload(Standing(alert("resolved", 90, engine="0"), START_US + 5 * S), START_US + 91 * S)
    assert begun["labels"] == ended["labels"]
    assert begun["labels"] == {
        "alertname": "TwincastSloRisk", "deployment": "d", "alert_id": "a1", "severity": "page", "engine": "0",
    }  # fmt: skip
    assert begun["startsAt"] == ended["startsAt"] == "2026-11-30T15:20:05.000Z"
    assert begun["endsAt"] == "2026-11-30T15:24:06.000Z"  # later than the next repetition, should we be gone
    assert ended["endsAt"] == "2026-11-30T15:21:30.000Z"
    assert begun["annotations"] == {
        "summary": "ttft P95 over 0.5 s",
        "since": "2026-11-30T15:19:55.000Z",
        "lead": "31 s",
    }


class Webhook:
    """An Alertmanager that answers what it is told to."""

    def __init__(self) -> None:
        self.status: Callable[[list[Any]], int] = lambda body: 200
        self.taken: list[dict[str, Any]] = []
        self.asked = 0

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked += 1
        status = self.status(body)
        if status == 200:
            self.taken += body
        return web.Response(status=status)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        app = web.Application()
        app.add_routes([web.post("/api/v2/alerts", self.handle)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


@asynccontextmanager
async def alerts_log() -> AsyncIterator[Log]:
    async with memory_log() as log:
        await log.create_topics([TopicSpec(name=ALERTS.name, partitions=2)])
        yield log


async def write(log: Log, *alerts: Alert | bytes) -> None:
    async with log.producer() as producer:
        for each in alerts:
            value = each if isinstance(each, bytes) else encode(each)
            await producer.send(ALERTS.name, key=b"d", value=value, partition=0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(8.0):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def relaying(log: Log, url: str | None, file: Path | None = None) -> AsyncIterator[AlertRelay]:
    webhook = Alertmanager(url) if url else None
    relay = AlertRelay(log, "g", webhook=webhook, file=AlertFile(file) if file else None)
    if webhook is not None:
        await webhook.__aenter__()
    task = asyncio.create_task(relay.run())
    try:
        yield relay
    finally:
        task.cancel()
        await asyncio.wait([task])
        if webhook is not None:
            await webhook.__aexit__()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.outlets.alert_relay.POLL_S", 0.02)
    monkeypatch.setattr("pipelines.outlets.alert_relay.FIRST_RETRY_S", 0.02)


def test_a_webhook_that_is_down_loses_nothing_and_is_asked_ever_less_often(tmp_path: Path) -> None:
    async def main() -> None:
        hook = Webhook()
        hook.status = lambda body: 503
        file = tmp_path / "new" / "alerts.jsonl"
        async with alerts_log() as log, hook.served() as url, relaying(log, url, file) as relay:
            began_s = time.monotonic()
            await write(log, alert("suspected"), b"{", alert("firing", 5), alert("firing", 6, "a2"))
            await until(lambda: hook.asked >= 3)
            assert time.monotonic() - began_s >= 0.02 + 0.04  # the second and third after growing waits
            assert "answers 503" in relay.trouble
            place = TopicPartition(ALERTS.name, 0)
            assert (await log.committed("g-alerts", [place]))[place] is None  # a restart would tell them
            await write(log, alert("resolved", 50))  # begun and over while the webhook was down
            hook.status = lambda body: 200
            await until(lambda: len(hook.taken) == 2 and not relay.trouble)
            ids = {row["labels"]["alert_id"]: row for row in hook.taken}
            assert set(ids) == {"a1", "a2"}
            assert ids["a1"]["endsAt"] == "2026-11-30T15:20:50.000Z"
            await until(lambda: relay._committed.get(place) == 5)
            assert (await log.committed("g-alerts", [place]))[place] == 5
        lines = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
        assert [(line["alert_id"], line["state"]) for line in lines] == [
            ("a1", "suspected"), ("a1", "firing"), ("a2", "firing"), ("a1", "resolved"),
        ]  # fmt: skip

    asyncio.run(main())


def test_a_restart_tells_what_was_not_told_and_repeats_no_line(tmp_path: Path) -> None:
    async def main() -> None:
        hook, file = Webhook(), tmp_path / "alerts.jsonl"
        async with alerts_log() as log, hook.served() as url:
            async with relaying(log, url, file) as relay:
                await write(log, alert("firing"))
                await until(lambda: bool(relay._committed))
                await until(lambda: len(hook.taken) == 1)
                await until(lambda: relay._committed.get(TopicPartition(ALERTS.name, 0)) == 1)
            await write(log, alert("resolved", 50))
            async with relaying(log, url, file):
                await until(lambda: hook.taken[-1]["endsAt"] == "2026-11-30T15:20:50.000Z")
                await until(lambda: len(file.read_bytes().splitlines()) == 2)

    asyncio.run(main())


def test_one_malformed_alert_holds_up_no_other() -> None:
    async def main() -> None:
        hook = Webhook()
        hook.status = lambda body: 400 if any(row["labels"]["alert_id"] == "bad" for row in body) else 200
        async with alerts_log() as log, hook.served() as url, relaying(log, url) as relay:
            await write(log, alert(name="bad"), alert(name="good"))
            await until(lambda: relay._webhook is not None and relay._webhook.refused == 1)
            await until(lambda: not relay._book.untold)
            assert {row["labels"]["alert_id"] for row in hook.taken} == {"good"}

    asyncio.run(main())


def test_a_webhook_that_does_not_answer_is_named_without_its_password() -> None:
    async def main() -> None:
        async with Alertmanager("http://me:secret@127.0.0.1:9") as webhook:
            await webhook.tell([Standing(alert(), START_US)], START_US)

    with pytest.raises(SinkDownError) as caught:
        asyncio.run(main())
    assert "http://127.0.0.1:9/api/v2/alerts does not answer" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(SinkDownError, match=r"cannot be written \(Is a directory\); make room"):
        AlertFile(tmp_path).tell([alert()])
    file = tmp_path / "alerts.jsonl"
    AlertFile(file).tell([alert(), alert("resolved", 3)])
    AlertFile(file).tell([])
    assert [json.loads(line)["state"] for line in file.read_text().splitlines()] == ["firing", "resolved"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"alertmanager": "127.0.0.1:9093"}, "alertmanager must be a URL such as"),
        ({"alertmanager": "ftp://u:secret@host"}, "got 'ftp://host'"),
        ({"metrics": "port"}, "metrics must be PORT or HOST:PORT"),
        ({"metrics": "70000"}, "metrics must be PORT or HOST:PORT"),
        ({"replayed_speed": 0.0}, "replayed must be a finite number > 0"),
        ({"replayed_speed": float("nan")}, "replayed must be a finite number > 0"),
    ],
)
def test_settings_that_cannot_be_are_one_line(fields: dict[str, Any], words: str) -> None:
    from pipelines.errors import ConfigError

    with pytest.raises(ConfigError) as caught:
        OutletSettings(**fields)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
