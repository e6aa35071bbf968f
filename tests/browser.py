"""Headless Chromium for tests, driven over its DevTools protocol: pages opened, looked at and typed into.

Everything that a page logs, throws or asks a server for is kept. Where there is no Chromium, `find_chromium` says so.
"""

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_TIMEOUT_S = 30.0
MAX_MESSAGE_BYTES = 64 * 2**20
FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-port=0",
)


def find_chromium() -> str | None:
    """The program, or None."""
    named = os.environ.get("TWINCAST_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """One tab. `problems` holds console errors and exceptions, `asked` the address of every request."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.problems: list[str] = []
        self.asked: list[str] = []

    async def read(self) -> None:
        """Take what the browser tells, until it closes."""
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                answer = self._answers.pop(told["id"], None)
                if answer is not None and not answer.done():
                    answer.set_result(told)
            else:
                self._on_event(told["method"], told["params"])

    def _on_event(self, name: str, params: dict[str, Any]) -> None:
        if name == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif name == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(each.get("value", each.get("description"))) for each in params["args"]))
        elif name == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif name == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol."""
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        told = await asyncio.wait_for(self._answers[number], 30.0)
        if "error" in told:
            raise AssertionError(f"{method}: {told['error']}")
        result: dict[str, Any] = told["result"]
        return result

    async def begin(self, width: int, height: int, *, dark: bool) -> None:
        """Listen, and take a size and a colour scheme."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.resize(width, height)
        await self.scheme(dark=dark)

    async def resize(self, width: int, height: int) -> None:
        """Take another size."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def scheme(self, *, dark: bool) -> None:
        """Prefer dark or light."""
        value = "dark" if dark else "light"
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    async def open(self, url: str) -> None:
        """Go to an address."""
        await self.call("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """The value of an expression; a promise is awaited."""
        told = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in told:
            raise AssertionError(f"{script}: {told['exceptionDetails']}")
        return told["result"].get("value")

    async def until(self, script: str, within_s: float = 15.0) -> Any:
        """Wait until an expression is true; its value. Raises AssertionError when it does not become so."""
        deadline_s = time.monotonic() + within_s
        while not (found := await self.run(script)):
            if time.monotonic() > deadline_s:
                raise AssertionError(f"not true within {within_s} s: {script}; problems: {self.problems}")
            await asyncio.sleep(0.05)
        return found

    async def press(self, key: str, code: int = 0, *, shift: bool = False) -> None:
        """Press and let go of a key, as named by KeyboardEvent.key."""
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        more = {"text": "\r"} if key == "Enter" else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **common, **more)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def screenshot(self, path: Path, *, whole: bool = False) -> bytes:
        """A PNG of the window, or of the whole page."""
        if whole:
            size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
            await self.resize(round(size["width"]), round(size["height"]))
            await asyncio.sleep(0.4)
        data = base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])
        path.write_bytes(data)
        return data


@contextlib.asynccontextmanager
async def browsing(width: int = 1440, height: int = 900, *, dark: bool = False) -> AsyncIterator[Tab]:
    """A tab of a fresh Chromium, ended at the end."""
    program = find_chromium()
    if program is None:
        raise AssertionError("no Chromium here; ask find_chromium before")
    with tempfile.TemporaryDirectory(prefix="twincast-chromium-", ignore_cleanup_errors=True) as profile:
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        process = subprocess.Popen(
            [program, *FLAGS, *root, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            async with aiohttp.ClientSession() as session:
                address = await _debugger(session, Path(profile), process)
                async with session.ws_connect(address, max_msg_size=MAX_MESSAGE_BYTES) as socket:
                    tab = Tab(socket)
                    reading = asyncio.create_task(tab.read())
                    await tab.begin(width, height, dark=dark)
                    yield tab
                    reading.cancel()
        finally:
            process.terminate()
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def _debugger(session: aiohttp.ClientSession, profile: Path, process: "subprocess.Popen[bytes]") -> str:
    """The address of the tab's socket, once the browser listens."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with contextlib.suppress(OSError, IndexError, ValueError, aiohttp.ClientError):
            port = int((profile / "DevToolsActivePort").read_text().splitlines()[0])
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                for target in await answer.json():
                    if target["type"] == "page":
                        return str(target["webSocketDebuggerUrl"])
        await asyncio.sleep(0.05)
    raise AssertionError(f"Chromium did not start within {START_TIMEOUT_S} s (exit code {process.poll()})")
