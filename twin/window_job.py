"""What replaying a closed window takes, as plain data that pickles. Replays nothing.

Law: a job holds everything its replay depends on, so that a replay is the same in any process and at any time.
"""

from dataclasses import dataclass

from schemas.forecasts import HorizonForecast
from schemas.requests import RequestFinished
from twin.bias import NO_FACTORS, Factors
from twin.job import EngineSetup, FrontendOverheads, SimulationJob
from twin.metrics import IntArray
from twin.scoring import closes_us
from twin.traffic.plan import TrafficPlan
from twin.window_steps import WindowSteps

REPLICATIONS = 8
"""Draws of noise; its mean over them is what the twin expects of the window's requests."""


@dataclass(frozen=True, slots=True, eq=False)
class WindowJob:
    """The window (as_of, as_of + window_s], after it has closed.

    `engines` are as they stood at `as_of`, with the costs the forecast had; of those in `drawn` nobody had told who was
    inside. `requests` hold at least all that were inside at `as_of` or arrived until the closing; `steps` the sums of
    the window's. `forecast` is the one made at `as_of`, of this horizon (None: no cause is asked for), and
    `expected_isl_tokens` and `_osl_tokens` what a request was expected to hold on the mean (None: unknown).
    `cost_factors` are those that the costs hold beside what was learned.
    """

    deployment: str
    as_of_us: int
    window_s: float
    root_seed: int
    engines: tuple[EngineSetup, ...]
    overheads: FrontendOverheads
    requests: tuple[RequestFinished, ...]
    steps: WindowSteps
    saturated_ratio: float
    drawn: frozenset[str] = frozenset()
    forecast: HorizonForecast | None = None
    expected_isl_tokens: float | None = None
    expected_osl_tokens: float | None = None
    replications: int = REPLICATIONS
    cost_factors: Factors = NO_FACTORS

    @classmethod
    def of(
        cls,
        job: SimulationJob,
        steps: WindowSteps,
        requests: tuple[RequestFinished, ...],
        window_s: float,
        saturated_ratio: float,
        forecast: HorizonForecast | None,
    ) -> "WindowJob":
        """The window that begins where the forecast of `job` did."""
        isl_tokens, osl_tokens = expected_tokens(job.traffic)
        return cls(
            deployment=job.deployment,
            as_of_us=job.as_of_us,
            window_s=window_s,
            root_seed=job.root_seed,
            engines=job.engines,
            overheads=job.overheads,
            requests=requests,
            steps=steps,
            saturated_ratio=saturated_ratio,
            drawn=frozenset(setup.name for setup in job.engines if setup.presence is not None),
            forecast=forecast,
            expected_isl_tokens=isl_tokens,
            expected_osl_tokens=osl_tokens,
        )

    @property
    def closes_us(self) -> int:
        """Event time of the closing; what has not finished then never does."""
        return closes_us(self.as_of_us, self.window_s)


def expected_tokens(traffic: TrafficPlan) -> tuple[float | None, float | None]:
    """Mean prompt and output tokens of the requests that a forecast resampled; None where none is known."""
    return _mean(traffic.sources.isl_tokens), _mean(traffic.sources.osl_tokens)


def _mean(tokens: IntArray) -> float | None:
    known = tokens[tokens > 0]
    return float(known.mean()) if known.size else None
