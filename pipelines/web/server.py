"""The page over HTTP: its files, events as they happen, and answers to what-ifs. Folds no record.

Laws: it answers with no file but those of the page, and asks no other machine for anything; a reader that is too slow
is told the newest state when it is ready for it, and nothing piles up for it meanwhile.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from pipelines.errors import ConfigError
from pipelines.settings import Settings
from pipelines.web.access import HEADERS, Address, refusal, sign_in
from pipelines.web.asking import Asker, AskError
from pipelines.web.fleet import Fleet
from pipelines.web.payload import Cursor, changed_parts, fleet
from pipelines.web.question import Question

STATIC = Path(__file__).parent / "static"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
EVENTS_EVERY_S = 0.5
FLEET_EVERY = 2
MAX_READERS = 64
MAX_BODY_BYTES = 4_096
SEND_TIMEOUT_S = 30.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _WhatIf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    deployment: str
    question: Question


class Page:
    """The page of a fleet."""

    def __init__(self, known: Fleet, asker: Asker, settings: Settings, address: Address, where: str) -> None:
        self._fleet = known
        self._asker = asker
        self._settings = settings
        self._address = address
        self._where = where
        self._readers = 0
        self.closing = asyncio.Event()
        self._files = {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("*") if path.is_file()}

    def app(self) -> web.Application:
        """The application."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        app.router.add_get("/", self._index)
        app.router.add_get("/static/{name:.+}", self._file)
        app.router.add_get("/api/fleet", self._fleet_now)
        app.router.add_get("/api/events", self._events)
        app.router.add_post("/api/whatif", self._whatif)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        found = sign_in(self._address, request) or refusal(self._address, request)
        answer = found if found is not None else await handler(request)
        if not answer.prepared:
            answer.headers.update(HEADERS)
        return answer

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return self._answer_file("index.html")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return self._answer_file(request.match_info["name"])

    def _answer_file(self, name: str) -> web.StreamResponse:
        """Only files that were there at the start are known, so no path leads elsewhere."""
        path = self._files.get(name)
        kind = KINDS.get(path.suffix) if path else None
        if path is None or kind is None:
            return web.Response(status=404, text="no such file\n")
        headers = {"Cache-Control": "no-cache", "Content-Type": f"{kind}; charset=utf-8"}
        return web.FileResponse(path, headers=headers)

    async def _fleet_now(self, request: web.Request) -> web.StreamResponse:
        return _json(self._status() | {"fleet": fleet(self._fleet)})

    def _status(self) -> dict[str, Any]:
        link = self._fleet.link
        return {
            "now_us": time.time_ns() // 1000,
            "link": {"up": link.up, "since_us": link.since_us, "detail": link.detail, "where": self._where},
        }

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: `status` always, `fleet` and the parts of `?deployment=` as they change."""
        if self._readers >= MAX_READERS:
            return web.Response(status=503, text="too many pages are open\n")
        answer = web.StreamResponse(
            headers=HEADERS
            | {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        self._readers += 1
        try:
            await answer.prepare(request)
            with contextlib.suppress(ConnectionError, TimeoutError):
                await self._tell(answer, request.query.get("deployment", ""))
        finally:
            self._readers -= 1
        return answer

    async def _tell(self, answer: web.StreamResponse, deployment: str) -> None:
        cursor: Cursor = {}
        last_fleet = b""
        turn = 0
        while not self.closing.is_set():
            text = _event("status", msgspec.json.encode(self._status()))
            if turn % FLEET_EVERY == 0:
                encoded = msgspec.json.encode(fleet(self._fleet))
                if encoded != last_fleet:
                    text += _event("fleet", encoded)
                    last_fleet = encoded
            view = self._fleet.views.get(deployment)
            if view is not None:
                parts = changed_parts(view, cursor)
                if parts:
                    text += _event("parts", msgspec.json.encode({"deployment": deployment, "parts": parts}))
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await answer.write(text)
            turn += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVENTS_EVERY_S):
                    await self.closing.wait()

    async def _whatif(self, request: web.Request) -> web.StreamResponse:
        if request.content_type != "application/json":
            return _problem(415, "a question is JSON")
        try:
            asked = msgspec.json.decode(await request.read(), type=_WhatIf)
        except msgspec.DecodeError as error:
            return _problem(400, f"no question that can be answered: {error}")
        state = self._fleet.states.get(asked.deployment)
        if asked.deployment not in self._fleet.views:
            return _problem(404, "no such deployment")
        if state is None:
            return _problem(409, "no state of this deployment is stored yet; the worker stores one every few forecasts")
        try:
            found = await self._asker.ask(
                asked.deployment, state, self._settings.core(asked.deployment), asked.question
            )
        except AskError as error:
            return _problem(409, str(error))
        return _json(found)


@contextlib.asynccontextmanager
async def serving(page: Page, address: Address) -> AsyncIterator[int]:
    """Serve while the context is open; gives the port. Raises ConfigError when it cannot be had."""
    runner = web.AppRunner(page.app(), access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, address.host, address.port).start()
    except OSError as error:
        await runner.cleanup()
        raise ConfigError(
            f"web port {address.port} on {address.host} cannot be had ({error.strerror}); choose another"
        ) from error
    try:
        yield int(runner.addresses[0][1])
    finally:
        page.closing.set()
        await runner.cleanup()


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def _json(found: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(found),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def _problem(status: int, why: str) -> web.Response:
    return _json({"problem": why}, status)
