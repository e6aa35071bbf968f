"""Inputs of one replication: noise of step costs, the live state with drawn lengths, the workload of an engine.

Runs nothing. Law: what is made depends on the job, the replication and the scenario alone, and every workload made
here can run to its end on the engine it is for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from schemas.engines import EngineConfig
from twin.cost.frozen import PS_PER_S
from twin.cost.noise import StepNoise
from twin.engine.types import CarriedRequest, EngineState, Noise, Workload
from twin.job import EngineSetup, FrontendOverheads
from twin.metrics import FloatArray, IntArray
from twin.traffic.draw import Arrivals
from twin.traffic.lengths import OutputLengths
from twin.traffic.streams import Streams

NOISE_EPOCHS = 256
"""Epochs of 64 steps before noise repeats: two minutes of 8 ms steps."""


def noise_of(noise: StepNoise | None, streams: Streams, replication: int, engine: str) -> Noise | None:
    """Factors of one engine in one replication: one level for the window times epochs that wander; mean 1."""
    if noise is None:
        return None
    normal = streams.generator(f"noise/{engine}", replication).standard_normal(NOISE_EPOCHS + 1)
    rho = noise.epoch_rho
    wander = np.empty(NOISE_EPOCHS)
    state = normal[1]
    fresh = math.sqrt(1.0 - rho * rho) * normal[1:]
    for epoch in range(NOISE_EPOCHS):
        state = fresh[epoch] + rho * state if epoch else state
        wander[epoch] = state
    sigmas = (noise.window_sigma_ratio, noise.epoch_sigma_ratio)
    log_ratio = sigmas[0] * normal[0] + sigmas[1] * wander - (sigmas[0] ** 2 + sigmas[1] ** 2) / 2.0
    return Noise.from_ratios(np.tile(np.exp(log_ratio), (3, 1)))


def most_tokens(config: EngineConfig) -> int:
    """Longest request (prompt and output) this engine can hold and schedule."""
    limit = (config.kv_blocks - config.reserved_blocks) * config.block_size_tokens + 1
    if config.max_model_len_tokens is not None:
        limit = min(limit, config.max_model_len_tokens)
    if not config.enable_chunked_prefill and not config.long_prefill_threshold_tokens:
        limit = min(limit, config.max_num_batched_tokens + 1)
    return limit


def state_of(
    setup: EngineSetup, lengths: OutputLengths, streams: Streams, replication: int, flush: bool
) -> EngineState:
    """The live state with an output length drawn for each of its requests, given how far it is."""
    limit = most_tokens(setup.config)
    state = setup.state
    if setup.presence is not None:
        drawn_state = setup.presence.draw(setup.config, limit, streams.generator(f"presence/{setup.name}", replication))
        state = replace(state, running=drawn_state.running, waiting=drawn_state.waiting)
    requests = state.running + state.waiting
    if not requests:
        return replace(state, cached_hashes=()) if flush else state
    uniform = streams.generator(f"live/{setup.name}", replication).random(len(requests))
    generated = np.array([request.generated_tokens for request in requests], np.int64)
    drawn = lengths.draw(generated, uniform)
    room = np.array([limit - request.isl_tokens for request in requests], np.int64)
    osl = np.maximum(np.minimum(drawn, room), generated + 1).tolist()
    carried = tuple(_with_length(request, length) for request, length in zip(requests, osl, strict=True))
    return EngineState(
        running=carried[: len(state.running)],
        waiting=carried[len(state.running) :],
        cached_hashes=() if flush else state.cached_hashes,
        hash_block_tokens=state.hash_block_tokens,
        step_left_ps=state.step_left_ps,
    )


def _with_length(request: CarriedRequest, osl_tokens: int) -> CarriedRequest:
    return CarriedRequest(
        isl_tokens=request.isl_tokens,
        osl_tokens=osl_tokens,
        arrival_ps=request.arrival_ps,
        computed_tokens=request.computed_tokens,
        generated_tokens=request.generated_tokens,
        scheduled_ps=request.scheduled_ps,
        first_token_ps=request.first_token_ps,
        preemptions=request.preemptions,
        cached_tokens=request.cached_tokens,
        priority=request.priority,
        timeout_ps=request.timeout_ps,
        block_hashes=request.block_hashes,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Frontend:
    """Overheads drawn for the requests of all replications: engine arrival (int64 ps) and delay to the client (s)."""

    engine_arrival_ps: IntArray
    to_client_s: FloatArray


def frontend_of(arrivals: Arrivals, overheads: FrontendOverheads, streams: Streams) -> Frontend:
    """Draw overheads. The frontend keeps order: nobody reaches the engine before one who came earlier."""
    into = _drawn(overheads.to_engine_s, "to_engine", arrivals, streams)
    out = _drawn(overheads.to_client_s, "to_client", arrivals, streams)
    at_s = arrivals.arrived_s + into
    if len(overheads.to_engine_s) > 1:
        for replication in range(arrivals.replications):
            part = at_s[arrivals.offsets[replication] : arrivals.offsets[replication + 1]]
            np.maximum.accumulate(part, out=part)
    return Frontend(np.rint(at_s * PS_PER_S).astype(np.int64), out)


def _drawn(values_s: tuple[float, ...], subsystem: str, arrivals: Arrivals, streams: Streams) -> FloatArray:
    count = arrivals.arrived_s.size
    if len(values_s) < 2:
        return np.full(count, values_s[0] if values_s else 0.0)
    table = np.array(values_s)
    picked = [
        streams.generator(subsystem, number).integers(0, table.size, int(size))
        for number, size in enumerate(np.diff(arrivals.offsets), start=arrivals.first_replication)
    ]
    return table[np.concatenate(picked)]


def workload_of(
    arrivals: Arrivals, engine_arrival_ps: IntArray, which: slice | IntArray, *configs: EngineConfig
) -> Workload:
    """Some requests as a workload for engines that may each get any of them; lengths are cut to what all can hold.

    Hashes are left out where the engines could not use them: no prefix cache, or blocks that do not fit into theirs.
    """
    limit = min(most_tokens(config) for config in configs)
    isl = np.minimum(arrivals.isl_tokens[which], limit - 1)
    osl = np.minimum(arrivals.osl_tokens[which], limit - isl)
    count = isl.size
    hash_offsets, hash_values = np.zeros(count + 1, np.int64), arrivals.hash_values[:0]
    if _can_share(arrivals.hash_block_tokens, configs):
        hash_offsets, hash_values = _hashes_of(arrivals, which, isl)
    return Workload(
        arrival_ps=engine_arrival_ps[which],
        isl_tokens=isl,
        osl_tokens=osl,
        priority=arrivals.priority[which],
        timeout_ps=np.zeros(count, np.int64),
        hash_offsets=hash_offsets,
        hash_values=hash_values,
        hash_block_tokens=arrivals.hash_block_tokens,
    )


def _can_share(hash_tokens: int, configs: Sequence[EngineConfig]) -> bool:
    sizes = {config.block_size_tokens for config in configs}
    if not hash_tokens or len(sizes) > 1 or not any(config.enable_prefix_caching for config in configs):
        return False
    size = sizes.pop()
    return 0 in (hash_tokens % size, size % hash_tokens)


def _hashes_of(arrivals: Arrivals, which: slice | IntArray, isl: IntArray) -> tuple[IntArray, IntArray]:
    low = arrivals.hash_offsets[:-1][which]
    count = np.minimum(arrivals.hash_offsets[1:][which] - low, isl // arrivals.hash_block_tokens)
    ends = np.cumsum(count)
    at = np.arange(int(ends[-1]) if ends.size else 0) - np.repeat(ends - count, count) + np.repeat(low, count)
    return np.concatenate(([0], ends)).astype(np.int64), arrivals.hash_values[at]
