"""The page over HTTP: events as they happen, what-ifs answered or told why not, files that ask nobody else."""

import asyncio
import hashlib
import json
import re
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from made_page import fill, made_log, page_settings, story

import pipelines.web
from pipelines.errors import ConfigError
from pipelines.web import server as server_module
from pipelines.web.access import Address
from pipelines.web.serve import RunningPage, running_page
from pipelines.web.server import STATIC
from schemas.topics import FORECASTS, STATE

pytestmark = pytest.mark.slow

UNTIL_S = 125.0
HERE = Address("127.0.0.1", 0)
VENDOR_SHA256 = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


@asynccontextmanager
async def served(
    *, with_story: bool = True, with_state: bool = True
) -> AsyncIterator[tuple[RunningPage, aiohttp.ClientSession]]:
    async with made_log() as log:
        told = [each for each in story(UNTIL_S) if with_state or each.message.topic != STATE.name] if with_story else []
        await fill(log, told)
        async with (
            running_page(log, page_settings(), HERE, log.name) as page,
            aiohttp.ClientSession(page.url) as session,
        ):
            await asyncio.wait_for(page.feed.caught_up.wait(), 20.0)
            yield page, session


async def events(session: aiohttp.ClientSession, path: str) -> AsyncIterator[tuple[str, Any]]:
    async with session.get(path) as answer:
        assert answer.content_type == "text/event-stream"
        name = ""
        async for raw in answer.content:
            line = raw.decode().rstrip("\n")
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


def test_events_tell_all_at_first_and_then_what_changes() -> None:
    async def act() -> tuple[set[str], list[str], Any]:
        async with served() as (page, session):
            first: set[str] = set()
            later: list[str] = []
            async for name, data in events(session, "/api/events?deployment=tiny"):
                if name != "parts":
                    continue
                if not first:
                    first = set(data["parts"])
                    forecast = next(each for each in story(UNTIL_S) if each.message.topic == FORECASTS.name)
                    await page_log_fill(page, forecast)
                else:
                    later = sorted(data["parts"])
                    return first, later, data["deployment"]
        raise AssertionError("no events")

    async def page_log_fill(page: RunningPage, forecast: Any) -> None:
        from schemas.codec import decode

        page.fleet.views["tiny"].take(decode(FORECASTS.name, forecast.message.value).record, 1)

    first, later, deployment = asyncio.run(act())
    assert first >= {"now", "forecast", "bands", "observed", "engine_rows", "scores", "alerts", "actions", "setup"}
    assert "forecast" in later
    assert not {"observed", "engine_rows", "scores", "alerts", "setup"} & set(later)
    assert deployment == "tiny"


def test_pages_that_are_open_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_READERS", 1)

    async def act() -> tuple[int, int]:
        async with served(with_story=False) as (_, session):
            first = await session.get("/api/events")
            second = await session.get("/api/events")
            first.close()
            return first.status, second.status

    assert asyncio.run(act()) == (200, 503)


def test_a_what_if_is_answered_beside_its_base_or_told_why_not() -> None:
    async def act() -> list[tuple[int, Any]]:
        found = []
        async with served() as (_, session):
            for body in (
                {"deployment": "tiny", "question": {"rate_factor": 2.0, "engines": 2}},
                {"deployment": "tiny", "question": {}},
                {"deployment": "nobody", "question": {}},
                {"deployment": "tiny", "question": {"engines": 0}},
                {"deployment": "tiny"},
            ):
                async with session.post("/api/whatif", json=body) as answer:
                    found.append((answer.status, await answer.json()))
            async with session.post(
                "/api/whatif", data=b"x" * 5000, headers={"content-type": "application/json"}
            ) as answer:
                found.append((answer.status, None))
            async with session.post("/api/whatif", data=b"{}", headers={"content-type": "text/plain"}) as answer:
                found.append((answer.status, None))
        return found

    answers = asyncio.run(act())
    assert [status for status, _ in answers] == [200, 200, 404, 400, 400, 413, 415]
    asked, plain = answers[0][1], answers[1][1]
    assert plain["base"] == plain["changed"]
    assert asked["base"]["replications"] == asked["changed"]["replications"]
    assert asked["changed"] != asked["base"]
    assert asked["changed"]["engines"] == 2
    assert asked["changed"]["simulated_requests"] > asked["base"]["simulated_requests"]


def test_without_a_stored_state_a_what_if_says_so() -> None:
    async def act() -> tuple[int, Any, int, Any]:
        async with served(with_state=False) as (page, session):
            body = {"deployment": "tiny", "question": {}}
            async with session.post("/api/whatif", json=body) as answer:
                first = answer.status, await answer.json()
            from pipelines.web.fleet import StoredState

            page.fleet.states["tiny"] = StoredState((0, 0), b"{}")
            async with session.post("/api/whatif", json=body) as answer:
                return *first, answer.status, await answer.json()

    status, told, again, why = asyncio.run(act())
    assert (status, again) == (409, 409)
    assert "no state" in told["problem"]
    assert "cannot be read" in why["problem"]


def test_a_port_that_is_taken_is_said_in_one_line() -> None:
    async def act() -> None:
        async with served(with_story=False) as (page, _):
            port = int(page.url.rsplit(":", 1)[1].rstrip("/"))
            async with made_log() as log:
                with pytest.raises(ConfigError, match=f"web port {port}"):
                    async with running_page(log, page_settings(), Address("127.0.0.1", port), ""):
                        pass

    asyncio.run(act())


OUTSIDE = re.compile(r"""(?:src|href|url|from|import|fetch)\s*[=(:]?\s*["'(]*\s*(?:https?:)?//""")


@pytest.mark.parametrize("path", sorted(STATIC.rglob("*.*")), ids=lambda path: path.name)
def test_no_file_of_the_page_names_another_server(path: Path) -> None:
    if path.suffix in (".js", ".css", ".html", ".svg"):
        assert not OUTSIDE.search(path.read_text(encoding="utf-8")), path


def test_every_file_is_short_linked_and_part_of_the_package() -> None:
    ours = [path for path in STATIC.rglob("*.*") if "vendor" not in path.parts]
    assert all(len(path.read_text().splitlines()) <= 250 for path in ours)
    text = "".join(path.read_text() for path in ours)
    unlinked = [path.name for path in STATIC.rglob("*.*") if path.name not in text]
    assert unlinked == ["index.html", "uPlot.LICENSE"] or unlinked == ["uPlot.LICENSE", "index.html"]
    project = tomllib.loads((Path(pipelines.web.__file__).parents[2] / "pyproject.toml").read_text())
    globs = project["tool"]["setuptools"]["package-data"]["pipelines.web"]
    packed = {path for glob in globs for path in STATIC.parent.glob(glob)}
    assert {path for path in STATIC.rglob("*.*") if path.is_file()} <= packed


def test_the_chart_library_is_the_one_that_was_taken_over() -> None:
    for name, digest in VENDOR_SHA256.items():
        assert hashlib.sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() == digest
    assert "MIT" in (STATIC / "vendor" / "uPlot.LICENSE").read_text()
