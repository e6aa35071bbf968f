"""A worker as a child process that tells how it stands. Decides nothing about it.

Law: the child ends when it is told to, when its parent closes the pipe or is gone, and at the latest at `kill`.
"""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import msgspec

from pipelines.errors import ConfigError
from pipelines.posts import Report

STOP_TIMEOUT_S = 10.0
LOG_LINES = 4


class WorkerChild:
    """`twincast up --report` with this environment; its talk goes to `log_path`."""

    def __init__(self, environ: Mapping[str, str], log_path: Path, slot: int = 0) -> None:
        self._environ = dict(environ)
        self._log_path = log_path
        self._slot = slot
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self.report: Report | None = None
        """The last report."""

    async def __aenter__(self) -> Self:
        with open(self._log_path, "ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "pipelines.cli",
                "up",
                "--report",
                "--slot",
                str(self._slot),
                env=self._environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; we then stop the worker
            )
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.stop()

    @property
    def pid(self) -> int:
        """Process id, 0 before the start."""
        return self._process.pid if self._process else 0

    async def _read(self) -> None:
        stdout = self._process.stdout if self._process else None
        while stdout is not None and (line := await stdout.readline()):
            self.report = msgspec.json.decode(line, type=Report)
            self._news.set()
        self._news.set()

    async def next_report(self) -> Report:
        """The next report. Raises ConfigError, with the last lines of its log, when the worker has ended."""
        self._news.clear()
        await self._news.wait()
        if self.report is None or (self._reading is not None and self._reading.done()):
            raise ConfigError(f"the worker ended: {self._last_words()}; its log is {self._log_path}")
        return self.report

    def _last_words(self) -> str:
        lines = self._log_path.read_text(errors="replace").strip().splitlines()[-LOG_LINES:]
        return " / ".join(line.strip() for line in lines) or "it said nothing"

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL after a bound; the last report is the one it made at its end."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._reading is not None:
            await self._reading

    def kill(self) -> None:
        """SIGKILL, at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
