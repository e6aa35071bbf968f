"""What-ifs of the page on the state of a deployment: another rate, number of engines, batch size or hit ratio.

Pure: a prospect and a question in, numbers out; keeps no time and no state. Laws: a question that asks for nothing is
answered by the base itself, number for number; base and answer meet the same requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
import numpy as np

from pipelines.board import horizons_of
from schemas.forecasts import Forecast
from twin.engine.types import CarriedRequest, EngineState
from twin.forecasting import Footing, assemble
from twin.job import EngineSetup, SimulationJob
from twin.simulate import run
from twin.traffic.plan import TrafficPlan
from twin.traffic.scenarios import BASELINE, Scenario
from twin.whatif import resized, with_config

MOST_ENGINES = 256
SHOWN_CURVE = "waiting_requests"
_SHARED = np.int64(0x7C1A57)
"""Names of the blocks of the prompt that all share begin here."""


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is changed; None leaves it as it is. `hit_ratio` of each prompt's tokens are one cached text."""

    rate_factor: Annotated[float, msgspec.Meta(ge=0.05, le=20.0)] = 1.0
    engines: Annotated[int, msgspec.Meta(ge=1, le=MOST_ENGINES)] | None = None
    max_num_seqs: Annotated[int, msgspec.Meta(ge=1, le=65_536)] | None = None
    max_num_batched_tokens: Annotated[int, msgspec.Meta(ge=16, le=1_048_576)] | None = None
    hit_ratio: Annotated[float, msgspec.Meta(ge=0.0, le=0.99)] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Prospect:
    """The job of a forecast that would be made now, and its footing."""

    job: SimulationJob
    footing: Footing


def ask(prospect: Prospect, question: Question, replications: int) -> dict[str, Any]:
    """The forecast under the question, from `replications` futures, as plain data; `simulated_requests` beside it."""
    job = changed(prospect.job, question, replications)
    result = run(job)
    forecast = assemble(job, result, prospect.footing)
    return {
        "replications": result.replications,
        "simulated_requests": result.simulated_requests,
        "engines": sum(setup.available_until_s > 0.0 for setup in job.engines),
        "horizons": [_plain(horizon) for horizon in horizons_of(forecast)],
        "curves": [msgspec.to_builtins(curve) for curve in _curves(forecast)],
    }


def changed(job: SimulationJob, question: Question, replications: int) -> SimulationJob:
    """The job under a question, coarse, of the baseline only."""
    job = replace(
        job,
        phase="coarse",
        coarse_replications=replications,
        fine_replications=max(replications, job.fine_replications),
        scenarios=(Scenario(BASELINE.name, rate_factor=question.rate_factor),),
        with_insight=False,
    )
    if question.hit_ratio is not None:
        job = _sharing(job, question.hit_ratio)
    limits = {name: value for name in ("max_num_seqs", "max_num_batched_tokens") if (value := getattr(question, name))}
    if limits:
        job = with_config(job, **limits)
    if question.engines is not None:
        job = replace(job, engines=resized(job.engines, question.engines - len(job.engines), 0.0))
    return job


def _sharing(job: SimulationJob, ratio: float) -> SimulationJob:
    """Prompts of which `ratio` is one text that is in the cache, and the rest each one's own."""
    block_tokens = job.engines[0].config.block_size_tokens
    job = with_config(job, enable_prefix_caching=True, block_size_tokens=block_tokens)
    plan = _with_hashes(job.traffic, ratio, block_tokens)
    longest = int(np.rint(plan.sources.isl_tokens * ratio / block_tokens).max(initial=0))
    warm = tuple(int(_SHARED) + place for place in reversed(range(longest)))
    return replace(job, traffic=plan, engines=tuple(_with_cache(setup, warm, block_tokens) for setup in job.engines))


def _with_hashes(plan: TrafficPlan, ratio: float, block_tokens: int) -> TrafficPlan:
    sources = plan.sources
    blocks = sources.isl_tokens // block_tokens
    shared = np.minimum(np.rint(sources.isl_tokens * ratio / block_tokens), blocks).astype(np.int64)
    ends = np.cumsum(blocks)
    request = np.repeat(np.arange(blocks.size), blocks)
    place = np.arange(request.size) - np.repeat(ends - blocks, blocks)
    own = (request + 1) * np.int64(2**31) + place
    common = place < shared[request]
    return replace(
        plan,
        hash_block_tokens=block_tokens,
        sources=replace(
            sources,
            hash_offsets=np.concatenate(([0], ends)).astype(np.int64),
            hash_values=np.where(common, _SHARED + place, own),
            hash_first=np.where(common, -1, request),
        ),
    )


def _with_cache(setup: EngineSetup, warm: tuple[int, ...], block_tokens: int) -> EngineSetup:
    """The engine with the shared text cached, as far as it fits beside what is in use; its requests share nothing."""
    state = setup.state
    in_use = sum(-(-request.computed_tokens // block_tokens) for request in state.running)
    room = max(setup.config.kv_blocks - setup.config.reserved_blocks - in_use, 0)
    return replace(
        setup,
        state=EngineState(
            running=tuple(_nameless(request) for request in state.running),
            waiting=tuple(_nameless(request) for request in state.waiting),
            cached_hashes=warm[max(len(warm) - room, 0) :],
            hash_block_tokens=block_tokens,
            step_left_ps=state.step_left_ps,
        ),
    )


def _nameless(request: CarriedRequest) -> CarriedRequest:
    return replace(request, block_hashes=())


def _plain(horizon: Any) -> Mapping[str, Any]:
    """With the fields that have their default."""
    return {name: msgspec.to_builtins(getattr(horizon, name)) for name in type(horizon).__struct_fields__}


def _curves(forecast: Forecast) -> tuple[Any, ...]:
    curves = next((each.curves for each in forecast.scenarios if each.scenario == BASELINE.name), ())
    return tuple(curve for curve in curves if curve.name == SHOWN_CURVE)
