"""Windows under way, taken down as time passes: the engines at their start, who came, sums of their steps.

A window begins where a forecast does, the next one where it ends; once it has closed it is a `WindowJob`. Replays
nothing. Laws: at most `MAX_OPEN` windows and `MAX_REQUESTS` requests are held from a tick on, and a window that needs
more is given up whole; what comes after a window's closing is not in its job; restoring a snapshot changes no job.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import msgspec

from schemas.engines import EngineConfig
from schemas.forecasts import Forecast, HorizonForecast
from schemas.requests import RequestFinished
from twin.bias import Factors
from twin.cost.block import StepBlock
from twin.cost.frozen import FrozenStepCost
from twin.cost.noise import StepNoise
from twin.engine.types import EngineState
from twin.job import EngineSetup, FrontendOverheads, SimulationJob
from twin.live import LiveEngine
from twin.metrics import BoolArray
from twin.saturation import Saturation
from twin.scoring import closes_us, horizon_of
from twin.window_job import REPLICATIONS, WindowJob, expected_tokens
from twin.window_steps import WindowSteps

WINDOW_S = 60.0
MAX_OPEN = 8
MAX_REQUESTS = 20_000
MAX_HASHES = 200_000
US_PER_S = 1_000_000
_KEPT = (
    "at_us",
    "engine",
    "arrived_us",
    "isl_tokens",
    "osl_tokens",
    "first_token_us",
    "engine_scheduled_us",
    "engine_first_token_us",
    "engine_last_token_us",
    "cached_tokens",
    "preemptions",
    "priority",
    "block_hashes",
    "hash_block_tokens",
)
"""Fields of a finished request that a replay reads."""


@dataclass(slots=True)
class _Open:
    """A window from its start on; `forecast` once it is made."""

    as_of_us: int
    window_s: float
    engines: tuple[EngineSetup, ...]
    drawn: frozenset[str]
    overheads: FrontendOverheads
    expected: tuple[float | None, float | None]
    factors: Factors
    replications: int
    steps: WindowSteps
    forecast: HorizonForecast | None = None

    @property
    def closes_us(self) -> int:
        return closes_us(self.as_of_us, self.window_s)

    @property
    def end_us(self) -> int:
        return self.as_of_us + round(self.window_s * US_PER_S)


class WindowTapes:
    """Windows of one deployment that have begun and not closed, oldest first."""

    def __init__(self) -> None:
        self._open: list[_Open] = []
        self._requests: list[RequestFinished] = []
        self._next_us = 0
        self.given_up = 0
        """Windows that were too large, or cut by a change, or whose requests do not tell their engine."""

    def begin(self, job: SimulationJob, factors: Factors) -> None:
        """Begin a window where the forecast of `job` does, unless the last one has not ended."""
        if job.as_of_us < self._next_us or len(self._open) >= MAX_OPEN:
            return
        window_s = min(job.horizons_s, key=lambda each: abs(each - WINDOW_S))
        engines = tuple(_bare(setup) for setup in job.engines)
        self._open.append(
            _Open(
                as_of_us=job.as_of_us,
                window_s=window_s,
                engines=engines,
                drawn=frozenset(setup.name for setup in job.engines if setup.presence is not None),
                overheads=job.overheads,
                expected=expected_tokens(job.traffic),
                factors=factors,
                replications=min(job.fine_replications, REPLICATIONS),
                steps=_steps(engines, job.as_of_us, window_s),
            )
        )
        self._next_us = self._open[-1].end_us

    def on_steps(self, engine: str, block: StepBlock, accepted: BoolArray) -> None:
        """Count a block of steps, those that were learned (n,), into the windows they fall into."""
        for window in self._open:
            window.steps.add(engine, block, rows=accepted)

    def on_finished(self, event: RequestFinished) -> None:
        """Keep a finished request while windows are open, if its times are in order."""
        first_us = event.first_token_us
        if self._open and event.timed and first_us is not None and event.arrived_us <= first_us <= event.at_us:
            self._requests.append(_slim(event))

    def on_forecast(self, forecast: Forecast) -> None:
        """Keep the fine forecast that a window begins with."""
        for window in self._open:
            if forecast.phase == "fine" and forecast.as_of_us == window.as_of_us:
                window.forecast = horizon_of(forecast, window.window_s)

    def closed(
        self,
        deployment: str,
        root_seed: int,
        as_of_us: int,
        *,
        engines: Mapping[str, LiveEngine],
        saturation: Saturation,
        changes_us: Iterable[int],
    ) -> WindowJob | None:
        """The oldest window that has closed by `as_of_us`; None where there is none, or none worth a replay.

        `engines` tell who is still inside, `changes_us` when the deployment was changed.
        """
        self._bound()
        if not self._open or self._open[0].closes_us > as_of_us:
            return None
        window = self._open.pop(0)
        requests = [*self._requests, *_unfinished(window, engines, as_of_us)]
        self._forget()
        if _is_cut(window, requests, changes_us):
            self.given_up += 1
            return None
        return WindowJob(
            deployment=deployment,
            as_of_us=window.as_of_us,
            window_s=window.window_s,
            root_seed=root_seed,
            engines=window.engines,
            overheads=window.overheads,
            requests=tuple(requests),
            steps=window.steps,
            saturated_ratio=saturation.ratio(window.as_of_us, window.end_us),
            drawn=window.drawn,
            forecast=window.forecast,
            expected_isl_tokens=window.expected[0],
            expected_osl_tokens=window.expected[1],
            replications=window.replications,
            cost_factors=window.factors,
        )

    def _bound(self) -> None:
        """Give up all windows if they hold too much."""
        hashes = sum(len(each.block_hashes) for each in self._requests)
        hashes += sum(len(setup.state.cached_hashes) for window in self._open for setup in window.engines)
        if len(self._requests) > MAX_REQUESTS or hashes > MAX_HASHES:
            self.given_up += len(self._open)
            self._open.clear()
            self._requests.clear()

    def _forget(self) -> None:
        """Drop requests that had left before the oldest open window began."""
        begin_us = self._open[0].as_of_us if self._open else None
        self._requests = [] if begin_us is None else [each for each in self._requests if each.at_us > begin_us]

    def snapshot(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "windows": [_plain(window) for window in self._open],
            "requests": [[getattr(event, name) for name in _KEPT] for event in self._requests],
            "next_us": self._next_us,
            "given_up": self.given_up,
        }

    @classmethod
    def restore(cls, data: Mapping[str, Any]) -> Self:
        """The windows of a snapshot."""
        made = cls()
        made._open = [_restored(each) for each in data["windows"]]
        made._requests = [
            msgspec.convert({"event": "finished", **_NAMELESS, **dict(zip(_KEPT, row, strict=True))}, RequestFinished)
            for row in data["requests"]
        ]
        made._next_us, made.given_up = data["next_us"], data["given_up"]
        return made


_NOBODY = "-"
_NAMELESS = {"deployment": _NOBODY, "request_id": _NOBODY}


def _slim(event: RequestFinished) -> RequestFinished:
    return msgspec.structs.replace(event, **_NAMELESS, traffic_class="", engine_queued_us=None, chunks=())


def _bare(setup: EngineSetup) -> EngineSetup:
    """An engine as a replay reads it."""
    state = setup.state if setup.presence is None else replace(setup.state, running=(), waiting=())
    return EngineSetup(setup.name, setup.config, setup.cost, setup.noise, state)


def _steps(engines: Iterable[EngineSetup], as_of_us: int, window_s: float) -> WindowSteps:
    return WindowSteps({setup.name: setup.cost for setup in engines}, as_of_us, window_s)


def _unfinished(window: _Open, engines: Mapping[str, LiveEngine], as_of_us: int) -> list[RequestFinished]:
    """Who came before the closing and is still inside, as if it ended just after.

    How long its output would be nobody knows: as long as was expected, or longer than it is already.
    """
    usual_tokens = round(window.expected[1] or 1.0)
    later_us = max(as_of_us, window.closes_us) + 1
    return [
        RequestFinished(
            deployment=_NOBODY,
            request_id=_NOBODY,
            at_us=later_us,
            engine=name,
            arrived_us=request.arrived_us,
            isl_tokens=request.isl_tokens,
            osl_tokens=max(usual_tokens, request.generated_tokens + 1),
            first_token_us=request.first_token_us or later_us,
            priority=request.priority,
            block_hashes=request.block_hashes,
            hash_block_tokens=engine.hash_block_tokens if request.block_hashes else 0,
        )
        for name, engine in sorted(engines.items())
        for request in (*engine.running.values(), *engine.waiting.values())
        if request.arrived_us <= window.closes_us
    ]


def _is_cut(window: _Open, requests: Iterable[RequestFinished], changes_us: Iterable[int]) -> bool:
    """Whether the replay would not be of what was: a change fell into it, or nobody tells which engine served whom."""
    if any(window.as_of_us < at_us <= window.closes_us for at_us in changes_us):
        return True
    names = {setup.name for setup in window.engines}
    return len(names) > 1 and any(each.engine not in names for each in requests)


def _plain(window: _Open) -> dict[str, Any]:
    return {
        "as_of_us": window.as_of_us,
        "window_s": window.window_s,
        "engines": [
            [
                setup.name,
                msgspec.to_builtins(setup.config),
                msgspec.to_builtins(setup.cost),
                msgspec.to_builtins(setup.noise),
                msgspec.to_builtins(setup.state),
            ]
            for setup in window.engines
        ],
        "drawn": sorted(window.drawn),
        "overheads": msgspec.to_builtins(window.overheads),
        "expected": list(window.expected),
        "factors": list(window.factors),
        "replications": window.replications,
        "steps": window.steps.snapshot(),
        "forecast": msgspec.to_builtins(window.forecast),
    }


def _restored(data: Mapping[str, Any]) -> _Open:
    engines = tuple(
        EngineSetup(
            name,
            msgspec.convert(config, EngineConfig),
            msgspec.convert(cost, FrozenStepCost),
            msgspec.convert(noise, StepNoise | None),
            msgspec.convert(state, EngineState),
        )
        for name, config, cost, noise, state in data["engines"]
    )
    costs = {setup.name: setup.cost for setup in engines}
    isl_tokens, osl_tokens = data["expected"]
    prefill, decode, mixed = data["factors"]
    return _Open(
        as_of_us=data["as_of_us"],
        window_s=data["window_s"],
        engines=engines,
        drawn=frozenset(data["drawn"]),
        overheads=msgspec.convert(data["overheads"], FrontendOverheads),
        expected=(isl_tokens, osl_tokens),
        factors=(prefill, decode, mixed),
        replications=data["replications"],
        steps=WindowSteps.restore(data["steps"], costs, data["as_of_us"], data["window_s"]),
        forecast=msgspec.convert(data["forecast"], HorizonForecast | None),
    )
