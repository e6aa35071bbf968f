"""The demonstration: a broker, a worker and a player of a recording, shown on a terminal, with an account at the end.

Law: however it ends, no process of it is left; what it says it measured, it measured in this run.
"""

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live

from pipelines.board import US_PER_S, Board
from pipelines.broker import BrokerChoice, choose_broker, running_broker
from pipelines.budget import affordable
from pipelines.child import WorkerChild
from pipelines.errors import ConfigError
from pipelines.free_port import require_free
from pipelines.ingest.recording import Recording, read_recording
from pipelines.log import Log, LogRecord, TopicPartition
from pipelines.places import Place, noted, open_log
from pipelines.playback import LAST_TICK_AFTER_US, messages_of, tick_of
from pipelines.player import Played, play
from pipelines.posts import Report
from pipelines.provision import create
from pipelines.settings import Settings
from pipelines.standard_job import measure, warm_up
from pipelines.summary import Summary, summarise
from pipelines.watch import WATCHED, draw, follow, tell
from pipelines.web.access import address_of, token_in
from pipelines.web.child import page_beside
from schemas.slos import SloTarget
from twin.settings import CoreSettings

DEFAULT_SPEED = 4.0
FINISH_TIMEOUT_S = 45.0
"""Without any progress: a busy machine may need longer for all of it."""
WORKER_LOG = "demo-worker.log"


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """`speed` is in multiples of event time, `seconds` bounds the playing (None: to the end of the recording).

    At `web`, PORT or HOST:PORT, the page is served meanwhile; nowhere if it is empty.
    """

    recording: Path
    warm: Path | None
    slos: tuple[SloTarget, ...]
    speed: float = DEFAULT_SPEED
    seconds: float | None = None
    web: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.speed <= 1000:
            raise ConfigError(f"--speed must be above 0 and at most 1000, got {self.speed}")
        if self.seconds is not None and not self.seconds > 0:
            raise ConfigError(f"--seconds must be above 0, got {self.seconds}")
        if self.web:
            page = address_of(self.web, token_in(os.environ))
            require_free("the page", page.host, page.port)


def demo(settings: Settings, options: DemoOptions, console: Console) -> Summary:
    """Run it. Raises ConfigError, or KeyboardInterrupt on Ctrl-C and SIGTERM, with everything stopped."""
    with _sigterm_as_interrupt(), contextlib.ExitStack() as stack:
        recording = read_recording(options.recording)
        choice = choose_broker(settings.broker, lambda line: _say(console, line))
        for line in choice.lines():
            _say(console, line)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="twincast-demo-")))
        # The broker starts while the simulator is compiled and timed.
        starting = stack.enter_context(ThreadPoolExecutor(1)).submit(stack.enter_context, running_broker(choice))
        core = _affordable(settings.core(recording.deployment), recording, options, console)
        place = _place(choice, settings, starting.result(), scratch)
        stack.enter_context(noted(settings.cache_dir, place))
        return asyncio.run(_Stage(settings, options, console, recording, core, place, scratch).run())


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(console: Console, line: str) -> None:
    console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)


def _affordable(core: CoreSettings, recording: Recording, options: DemoOptions, console: Console) -> CoreSettings:
    """The work per tick for this machine and speed."""
    began_s = time.monotonic()
    warm_up()
    if time.monotonic() - began_s > 5.0:
        _say(console, f"compiled the simulator, once ({time.monotonic() - began_s:.0f} s)")
    pace = measure()
    span_s = (recording.events[-1].at_us - recording.t0_us) / US_PER_S
    rate = recording.counts.get("arrived", 0) / max(span_s, 1.0)
    chosen = affordable(core, pace, requests_per_s=1.5 * rate, wall_s=core.period_s / options.speed)
    names = ", ".join(scenario.name for scenario in chosen.scenarios)
    _say(
        console,
        f"work per forecast: {chosen.coarse_replications} coarse and {chosen.fine_replications} fine replications of "
        f"{names}{', with bottlenecks' if chosen.insight else ''} ({pace.simulated_per_s:,.0f} requests/s here)",
    )
    return chosen


def _place(choice: BrokerChoice, settings: Settings, bootstrap: str | None, scratch: Path) -> Place:
    """A log of nobody else: a fresh broker, a fresh directory, or topics of their own on the user's cluster."""
    if choice.kind == "embedded" or bootstrap is None:
        return Place(kind="file", where=str(scratch / "log"))
    shared = choice.kind == "cluster" or settings.broker.data_dir is not None
    return Place(kind="kafka", where=bootstrap, namespace=f"demo-{time.time_ns() // 10**9}" if shared else "")


class _Stage:
    """One run on a log that is there."""

    def __init__(
        self,
        settings: Settings,
        options: DemoOptions,
        console: Console,
        recording: Recording,
        core: CoreSettings,
        place: Place,
        scratch: Path,
    ) -> None:
        self._settings = settings
        self._options = options
        self._console = console
        self._recording = recording
        self._core = core
        self._place = place
        self._scratch = scratch
        self._board = Board(recording.deployment)
        self._played = Played()
        self._phase = "starting the worker"
        self._began_s = time.monotonic()
        self._first_forecast_s: float | None = None
        self._first_alert_s: float | None = None

    async def run(self) -> Summary:
        """Play, show, finish, and give the account."""
        log_path = self._settings.cache_dir / WORKER_LOG
        log_path.unlink(missing_ok=True)
        async with open_log(self._settings, self._place) as log:
            await create(log, self._settings.partitions, keep_for_ever=True)
            async with self._page(), WorkerChild(self._environment(), log_path) as worker, self._shown(log):
                await self._until_ready(worker)
                self._began_s = time.monotonic()
                await self._play(log)
                report = await self._finish(worker, log)
                await worker.stop()
            return await summarise(
                log,
                self._settings.partitions,
                self._board,
                worker.report or report,
                settings=self._core,
                first_forecast_s=self._first_forecast_s,
                first_alert_s=self._first_alert_s,
            )

    def _page(self) -> contextlib.AbstractAsyncContextManager[None]:
        """The page, where it is asked for."""
        if not self._options.web:
            return contextlib.nullcontext()
        address = address_of(self._options.web, token_in(os.environ))
        _say(self._console, f"the page: {address.url(address.port)}")
        return page_beside(self._options.web, self._environment())

    def _environment(self) -> dict[str, str]:
        """The worker's own settings: this run's work per tick, place and group."""
        config = self._scratch / "twincast.toml"
        config.write_text(_toml(self._core))
        place, own = self._place, {"TWINCAST_CONFIG": str(config), "TWINCAST_GROUP": "twincast-demo"}
        own["TWINCAST_REPLAYED"] = repr(self._options.speed)
        if place.kind == "kafka":
            own |= {"TWINCAST_BOOTSTRAP": place.where, "TWINCAST_NAMESPACE": place.namespace}
        else:
            own |= {"TWINCAST_DATA_DIR": place.where, "TWINCAST_NAMESPACE": "", "TWINCAST_BOOTSTRAP": ""}
        if self._options.warm is not None:
            own["TWINCAST_WARM_FILE"] = str(self._options.warm)
        return {**os.environ, **own, "TWINCAST_PARTITIONS": str(self._settings.partitions)}

    @contextlib.asynccontextmanager
    async def _shown(self, log: Log) -> AsyncIterator[None]:
        """Follow the log and draw it meanwhile."""
        following = asyncio.create_task(
            follow(log, self._settings.partitions, self._on_record, topics=WATCHED, look_back=True)
        )
        live = Live(console=self._console, auto_refresh=False, transient=True) if self._console.is_terminal else None
        with live or contextlib.nullcontext():
            drawing = asyncio.create_task(draw(live, self._board, self._status)) if live else None
            try:
                yield
                await asyncio.sleep(1.0)  # what was just written is still on its way here
            finally:
                for task in (following, drawing):
                    if task is not None:
                        task.cancel()
                        with contextlib.suppress(asyncio.CancelledError):
                            await task

    def _on_record(self, record: LogRecord) -> None:
        found = self._board.take(record)
        now_s = time.monotonic() - self._began_s
        if self._board.forecasts_made and self._first_forecast_s is None:
            self._first_forecast_s = now_s
        if self._first_alert_s is None and self._board.breaches_predicted:
            self._first_alert_s = now_s
        if not self._console.is_terminal:
            tell(self._console, self._board, found)

    def _status(self) -> str:
        return f"{self._phase}   {self._place}"

    async def _until_ready(self, worker: WorkerChild) -> None:
        while True:
            report = await worker.next_report()
            if len(report.partitions) == self._settings.partitions and report.simulators_ready:
                return

    async def _play(self, log: Log) -> None:
        options, deployment = self._options, self._recording.deployment
        self._phase = f"playing {self._recording.name} at {options.speed:g}x"
        if not self._console.is_terminal:
            _say(self._console, self._phase)
        stop_s = float("inf") if options.seconds is None else self._began_s + options.seconds
        async with log.producer() as producer:
            await play(
                producer,
                messages_of(self._recording, options.slos),
                self._settings.partitions,
                speed=options.speed,
                played=self._played,
                stop=lambda: time.monotonic() > stop_s,
            )
            if time.monotonic() > stop_s:
                end = tick_of(deployment, self._played.at_us + LAST_TICK_AFTER_US)
                await play(producer, [end], self._settings.partitions, speed=float("inf"), played=self._played)

    async def _finish(self, worker: WorkerChild, log: Log) -> Report:
        """Wait until the worker has handled all that was played, and has nothing left to do."""
        self._phase = "finishing"
        # The ends of the log, not the number of messages: others may have written there as well.
        ends = await log.end_offsets([TopicPartition(topic, number) for topic, number in self._played.offsets])
        before, moved_s = None, time.monotonic()
        while True:
            report = await worker.next_report()
            behind = sum(max(end - report.handed.get(str(place), 0), 0) for place, end in ends.items())
            if report.idle and not behind:
                return report
            now = (behind, report.written)
            if now != before:
                before, moved_s = now, time.monotonic()
            elif time.monotonic() - moved_s > FINISH_TIMEOUT_S:
                raise ConfigError(
                    f"the worker has not moved for {FINISH_TIMEOUT_S:.0f} s, with {behind} of {sum(ends.values())} "
                    f"messages and {report.outstanding} simulations to do; lower --speed, or see "
                    f"{self._settings.cache_dir / WORKER_LOG}"
                )


def _toml(core: CoreSettings) -> str:
    scenarios = ", ".join(f'"{scenario.name}"' for scenario in core.scenarios)
    return (
        "[forecast]\n"
        f"period_s = {core.period_s!r}\nhorizons_s = {list(core.horizons_s)!r}\nscenarios = [{scenarios}]\n"
        f"coarse_replications = {core.coarse_replications}\nfine_replications = {core.fine_replications}\n"
        f"root_seed = {core.root_seed}\nlateness_s = {core.lateness_s!r}\nsnapshot_ticks = {core.snapshot_ticks}\n"
        f'routing = "{core.routing}"\nsteps_expected = {str(core.steps_expected).lower()}\n'
        f"insight = {str(core.insight).lower()}\n"
    )
