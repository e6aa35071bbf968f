"""Draws futures from a plan: blocks of past arrivals, stretched to the forecast rate, with lengths and prefixes.

All replications of a scenario come out of one call as flat arrays. Knows no engine. Laws: replication k is the same
whatever else is drawn; arrivals within a block keep their order, sizes, priorities and shared prefixes; a request
that repeats a past one never finds its own unique blocks in the cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twin.metrics import BoolArray, FloatArray, IntArray
from twin.traffic.plan import UNKNOWN_TOKENS, TrafficPlan
from twin.traffic.scenarios import Scenario
from twin.traffic.streams import Streams

MAX_REQUESTS = 200_000
"""Most requests of one replication; arrivals beyond are not drawn."""
MAX_TOKENS = 10_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Requests of R replications in order, flat: those of replication r are `offsets[r]:offsets[r + 1]` (int64[R + 1]).

    `arrived_s` (float64[n]) rises within a replication, in (0, span]. Hashes as in `Workload`. The first of them is
    number `first_replication` of its forecast.
    """

    first_replication: int
    offsets: IntArray
    arrived_s: FloatArray
    isl_tokens: IntArray
    osl_tokens: IntArray
    priority: IntArray
    traffic_class: IntArray
    hash_offsets: IntArray
    hash_values: IntArray
    hash_block_tokens: int

    @classmethod
    def of_one(
        cls,
        *,
        arrived_s: FloatArray,
        isl_tokens: IntArray,
        osl_tokens: IntArray,
        priority: IntArray | None = None,
        block_hashes: Sequence[Sequence[int]] | None = None,
        hash_block_tokens: int = 0,
    ) -> "Arrivals":
        """One replication from known requests, in order of arrival."""
        count = arrived_s.size
        lengths = [len(hashes) for hashes in block_hashes or [()] * count]
        flat = [value & (2**64 - 1) for hashes in block_hashes or () for value in hashes]
        zeros = np.zeros(count, np.int64)
        return cls(
            first_replication=0,
            offsets=np.array([0, count], np.int64),
            arrived_s=arrived_s,
            isl_tokens=isl_tokens,
            osl_tokens=osl_tokens,
            priority=zeros if priority is None else priority,
            traffic_class=zeros,
            hash_offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
            hash_values=np.array(flat, np.uint64).view(np.int64),
            hash_block_tokens=hash_block_tokens,
        )

    @property
    def replications(self) -> int:
        """R."""
        return int(self.offsets.size) - 1


def draw(
    plan: TrafficPlan,
    streams: Streams,
    *,
    replications: int,
    span_s: float,
    scenario: Scenario,
    first_replication: int = 0,
) -> Arrivals:
    """`replications` futures of `span_s` seconds each, from number `first_replication` on.

    Raises ValueError unless there is at least one, of a span > 0.
    """
    if replications < 1 or not 0.0 < span_s < float("inf"):
        raise ValueError(f"draw needs replications >= 1 and a finite span_s > 0, got {replications} and {span_s}")
    numbers = range(first_replication, first_replication + replications)
    picked = [_pick(plan, streams, number, span_s, scenario) for number in numbers]
    offsets = np.concatenate(([0], np.cumsum([each.source.size for each in picked]))).astype(np.int64)
    source = np.concatenate([each.source for each in picked])
    isl, osl = _lengths(plan, streams, source, offsets, scenario, first_replication)
    hash_offsets, hash_values = _hashes(plan, picked, source, isl)
    return Arrivals(
        first_replication=first_replication,
        offsets=offsets,
        arrived_s=np.concatenate([each.arrived_s for each in picked]),
        isl_tokens=isl,
        osl_tokens=osl,
        priority=plan.sources.priority[source],
        traffic_class=plan.sources.traffic_class[source],
        hash_offsets=hash_offsets,
        hash_values=hash_values,
        hash_block_tokens=plan.hash_block_tokens,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Picked:
    """One replication: indices into the sources, times, and per request the first source of its block and its salt."""

    source: IntArray
    arrived_s: FloatArray
    block_first: IntArray
    salt: IntArray


def _pick(plan: TrafficPlan, streams: Streams, replication: int, span_s: float, scenario: Scenario) -> _Picked:
    sources = plan.sources
    times_s, expected = _path(plan, streams, replication, span_s, scenario)
    wanted = min(float(expected[-1]), float(MAX_REQUESTS))
    none = np.zeros(0, np.int64)
    if not sources.requests or wanted <= 0.0:
        return _Picked(none, np.zeros(0), none, none)
    blocks = int(np.ceil(wanted / plan.block))
    generator = streams.generator("blocks", replication)
    start = generator.random(blocks) * sources.extent
    low = np.searchsorted(sources.at, start, side="right")
    # a block that runs over the end goes on at the beginning: every arrival is equally likely
    wrapped = start + plan.block - sources.extent
    inside = np.searchsorted(sources.at, start + plan.block, side="right") - low
    again = np.where(wrapped > 0.0, np.searchsorted(sources.at, wrapped, side="right"), 0)
    count = inside + again
    block = np.repeat(np.arange(blocks), count)
    position = np.arange(block.size) - np.repeat(np.cumsum(count) - count, count)
    over = position >= inside[block]
    source = np.where(over, position - inside[block], low[block] + position)
    operational = block * plan.block + sources.at[source] - start[block] + np.where(over, sources.extent, 0.0)
    keep = slice(0, int(np.searchsorted(operational, wanted, side="right")))
    salt = np.zeros(0, np.int64)
    if plan.hash_block_tokens:
        salts = streams.generator("prefixes", replication).integers(0, 2**63 - 1, blocks, dtype=np.int64)
        salt = salts[block[keep]]
    return _Picked(
        source=source[keep],
        arrived_s=np.interp(operational[keep], expected, times_s),
        block_first=np.where(over, 0, low[block])[keep],
        salt=salt,
    )


def _path(
    plan: TrafficPlan, streams: Streams, replication: int, span_s: float, scenario: Scenario
) -> tuple[FloatArray, FloatArray]:
    """Times and expected arrivals by then, under the scenario's rate, for one draw of the level."""
    level_z = float(streams.generator("level", replication).standard_normal())
    times_s, expected = plan.rate.path(level_z, span_s)
    if scenario.burst_factor == 1.0 or scenario.burst_s == 0.0:
        return times_s, expected * scenario.rate_factor
    edges = np.array([scenario.burst_start_s, scenario.burst_start_s + scenario.burst_s])
    all_s = np.union1d(times_s, edges[(edges > 0.0) & (edges < span_s)])
    middle = (all_s[1:] + all_s[:-1]) / 2.0
    factor = np.where((middle >= edges[0]) & (middle < edges[1]), scenario.burst_factor, 1.0) * scenario.rate_factor
    steps = np.diff(np.interp(all_s, times_s, expected)) * factor
    return all_s, np.concatenate(([0.0], np.cumsum(steps)))


def _lengths(
    plan: TrafficPlan, streams: Streams, source: IntArray, offsets: IntArray, scenario: Scenario, first: int
) -> tuple[IntArray, IntArray]:
    """Prompt and output lengths; unknown outputs are drawn given how far they got."""
    isl = plan.sources.isl_tokens[source]
    osl = plan.sources.osl_tokens[source]
    unknown = osl == UNKNOWN_TOKENS
    if unknown.any():
        uniform = _uniform(streams, "output_lengths", first, offsets, unknown)
        osl[unknown] = plan.lengths.draw(plan.sources.generated_tokens[source[unknown]], uniform)
    for name, tokens, factor, long_ratio, long_factor in (
        ("long_prompts", isl, scenario.isl_factor, scenario.long_prompt_ratio, scenario.long_prompt_factor),
        ("long_outputs", osl, scenario.osl_factor, scenario.long_output_ratio, scenario.long_output_factor),
    ):
        if long_ratio > 0.0 and long_factor != 1.0:
            chosen = _uniform(streams, name, first, offsets, None) < long_ratio
            factors = np.where(chosen, factor * long_factor, factor)
            tokens[:] = np.clip(np.rint(tokens * factors), 1, MAX_TOKENS)
        elif factor != 1.0:
            tokens[:] = np.clip(np.rint(tokens * factor), 1, MAX_TOKENS)
    return isl, osl


def _uniform(streams: Streams, subsystem: str, first: int, offsets: IntArray, where: BoolArray | None) -> FloatArray:
    """Uniform numbers in [0, 1), for all requests or those `where`, each replication from its own stream."""
    parts = []
    for replication in range(offsets.size - 1):
        low, high = int(offsets[replication]), int(offsets[replication + 1])
        count = high - low if where is None else int(np.count_nonzero(where[low:high]))
        parts.append(streams.generator(subsystem, first + replication).random(count))
    return np.concatenate(parts)


def _hashes(plan: TrafficPlan, picked: list[_Picked], source: IntArray, isl: IntArray) -> tuple[IntArray, IntArray]:
    """Block hashes of the drawn prompts.

    A prefix first seen within the resampled block is new: its copies share a new name. One that was known before the
    block keeps its name, so it may be cached.
    """
    if not plan.hash_block_tokens:
        return np.zeros(source.size + 1, np.int64), np.zeros(0, np.int64)
    offsets = plan.sources.hash_offsets
    count = np.minimum(offsets[source + 1] - offsets[source], isl // plan.hash_block_tokens)
    ends = np.cumsum(count)
    request = np.repeat(np.arange(source.size), count)
    at = np.arange(request.size) - np.repeat(ends - count, count) + offsets[source[request]]
    values = plan.sources.hash_values[at]
    block_first = np.concatenate([each.block_first for each in picked])
    salt = np.concatenate([each.salt for each in picked])
    new = plan.sources.hash_first[at] >= block_first[request]
    values = np.where(new, _mix(values, salt[request]), values)
    return np.concatenate(([0], ends)).astype(np.int64), values


def _mix(values: IntArray, salt: IntArray) -> IntArray:
    """A new 64-bit name for each (value, salt): the finaliser of SplitMix64."""
    mixed = values.view(np.uint64) ^ salt.view(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))).view(np.int64)
