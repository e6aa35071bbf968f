"""Causes of a window's error, on labelled windows of a queue whose costs, traffic and machine are known.

A processor that serves prefill and decode work of requests in order stands in for an engine: it is enough to make
costs, traffic, saturation and contention show in the latencies and steps as they do in a real one.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from twin.attribution import (
    ROLES,
    Cause,
    StepEvidence,
    TrafficEvidence,
    attribute,
    step_evidence,
)
from twin.cost.shape import Role

SPAN_S = 60.0


@dataclass(frozen=True)
class World:
    """What a window was really like, against a forecast of rate 1, costs 1, and a machine to itself."""

    rate: float = 1.0
    tokens: float = 1.0
    prefill_cost: float = 1.0
    decode_cost: float = 1.0
    busy_neighbour: float = 0.0
    utilisation: float = 0.6


def serve(arrived: np.ndarray, work: np.ndarray) -> np.ndarray:
    """Latencies of a single server in order of arrival."""
    free, out = 0.0, np.empty(arrived.size)
    for i, (at, need) in enumerate(zip(arrived, work, strict=True)):
        free = max(free, at) + need
        out[i] = free - at
    return out


def window(seed: int, world: World) -> tuple[Cause, dict[str, object]]:
    """Everything attribution is told of one window, and the cause it finds."""
    random = np.random.default_rng(seed)
    rate = 6.0
    mean_work = world.utilisation / rate
    count = random.poisson(rate * world.rate * SPAN_S)
    arrived = np.sort(random.uniform(0.0, SPAN_S, count))
    shares = random.lognormal(-0.125, 0.5, (2, count)) * mean_work / 2
    tokens = shares * world.tokens
    level = np.exp(random.normal(0.0, 0.02))
    slow = level * np.ones(count)
    if world.busy_neighbour:
        slow *= np.where(np.sin(arrived * random.uniform(0.5, 1.5)) > 0, 1.0 + world.busy_neighbour, 1.0)
    real = (tokens[0] * world.prefill_cost + tokens[1] * world.decode_cost) * slow
    observed = quantiles_of(serve(arrived, real))
    forecast_count = random.poisson(rate * SPAN_S)
    guess = random.lognormal(-0.125, 0.5, (2, forecast_count)) * mean_work / 2
    forecast = quantiles_of(serve(np.sort(random.uniform(0.0, SPAN_S, forecast_count)), guess.sum(axis=0)))
    roles, predicted, seconds = steps_of(random, arrived, tokens, slow, world)
    levels = {role: seconds[roles == i].sum() / predicted[roles == i].sum() for i, role in enumerate(ROLES[:2])}
    found = attribute(
        observed,
        forecast,
        traffic=TrafficEvidence(
            arrivals_log=math.log(count / (rate * SPAN_S)),
            prefill_tokens_log=math.log(world.tokens),
            output_tokens_log=math.log(world.tokens),
            outside=abs(count - rate * SPAN_S) > 1.645 * math.sqrt(rate * SPAN_S) * 1.3,
        ),
        steps=step_evidence(np.repeat(arrived, 20), roles, seconds, predicted),
        saturated_ratio=float(np.mean(serve(arrived, real) > real * 1.5)) if world.utilisation < 0.9 else 0.95,
        replayed=quantiles_of(serve(arrived, tokens.sum(axis=0))),
        levelled=quantiles_of(serve(arrived, tokens[0] * levels[Role.PREFILL] + tokens[1] * levels[Role.DECODE])),
    )
    return found.cause, {"found": found}


def steps_of(
    random: np.random.Generator, arrived: np.ndarray, tokens: np.ndarray, slow: np.ndarray, world: World
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ten steps of either role per request: roles, predicted and observed seconds."""
    roles = np.tile(np.repeat([0, 1], 10), arrived.size)
    predicted = np.stack([np.repeat(tokens[0] / 10, 1), tokens[1] / 10], axis=1).repeat(10, axis=1).ravel()
    factor = np.where(roles == 0, world.prefill_cost, world.decode_cost)
    noise = np.exp(random.normal(0.0, 0.08, roles.size))
    return roles, predicted, predicted * factor * np.repeat(slow, 20) * noise


def quantiles_of(latency_s: np.ndarray) -> dict[tuple[str, float], float]:
    return {("e2e_s", q): float(np.quantile(latency_s, q)) for q in (0.5, 0.95)}


LABELLED: dict[str, list[World]] = {
    "costs": [World(prefill_cost=1.5), World(decode_cost=1.6), World(prefill_cost=1.3, decode_cost=1.3)],
    "traffic": [World(rate=1.4), World(tokens=1.35), World(rate=0.6), World(rate=1.3, tokens=1.1)],
    "contended": [World(busy_neighbour=0.6), World(busy_neighbour=1.0)],
}


@pytest.mark.parametrize("label", LABELLED)
def test_the_cause_of_labelled_windows_is_found(label: str) -> None:
    causes = [window(seed, world)[0] for world in LABELLED[label] for seed in range(30)]
    judged = [cause for cause in causes if cause != "none"]
    assert len(judged) >= 0.6 * len(causes)
    assert sum(cause == label for cause in judged) >= 0.9 * len(judged)


STEADY = step_evidence(np.linspace(0.0, 60.0, 600), np.tile([0, 1], 300), np.full(600, 0.102), np.full(600, 0.1))
USUAL = TrafficEvidence(arrivals_log=0.03)


def values(error_log: float) -> dict[tuple[str, float], float]:
    return {("e2e_s", q): math.exp(error_log) for q in (0.5, 0.95)}


def test_small_deviations_in_a_saturated_window_blame_saturation() -> None:
    found = attribute(values(0.5), values(0.0), traffic=USUAL, steps=STEADY, saturated_ratio=0.95)
    assert found.cause == "saturated"


def test_the_same_deviations_with_room_left_stay_unexplained() -> None:
    found = attribute(values(0.5), values(0.0), traffic=USUAL, steps=STEADY, saturated_ratio=0.1)
    assert found.cause == "unexplained"


def test_a_small_error_has_no_cause() -> None:
    found = attribute(values(0.05), values(0.0), traffic=USUAL, steps=STEADY, saturated_ratio=0.95)
    assert found.cause == "none"


def test_time_off_the_core_and_a_busy_neighbour_are_contention() -> None:
    slow = StepEvidence(cost_log=0.7, role_log={Role.DECODE: 0.7}, patchy_log=0.0)
    steady = attribute(values(0.7), values(0.0), traffic=USUAL, steps=slow, saturated_ratio=0.2)
    assert steady.cause == "costs"
    for sign in ({"off_core_ratio": 0.5}, {"overlap_log": 0.4}):
        told = StepEvidence(cost_log=0.7, role_log={Role.DECODE: 0.7}, patchy_log=0.0, **sign)
        assert attribute(values(0.7), values(0.0), traffic=USUAL, steps=told, saturated_ratio=0.2).cause == "contended"


def test_a_cause_that_pulls_the_other_way_is_not_blamed() -> None:
    faster = StepEvidence(cost_log=-0.3, role_log={Role.DECODE: -0.3}, patchy_log=0.0)
    heavier = TrafficEvidence(arrivals_log=0.4)
    found = attribute(values(0.5), values(0.0), traffic=heavier, steps=faster, saturated_ratio=0.2)
    assert found.cause == "traffic"


def test_lighter_traffic_is_not_blamed_for_longer_latencies() -> None:
    slower = StepEvidence(cost_log=0.3, role_log={Role.DECODE: 0.3}, patchy_log=0.0)
    lighter = TrafficEvidence(arrivals_log=-0.4)
    found = attribute(values(0.5), values(0.0), traffic=lighter, steps=slower, saturated_ratio=0.2)
    assert found.cause == "costs"


def test_usual_noise_between_seconds_is_not_patchy() -> None:
    level = np.exp(np.random.default_rng(2).normal(0.0, 0.05, 60)).repeat(10)
    found = step_evidence(np.arange(600) / 10.0, np.ones(600, np.int64), 0.1 * level, np.full(600, 0.1))
    assert found.patchy_log < 0.03


def test_parts_add_up_and_infinite_latencies_stay_bounded() -> None:
    endless = {("e2e_s", q): math.inf for q in (0.5, 0.95)}
    found = attribute(
        endless, values(0.0), traffic=USUAL, steps=STEADY, saturated_ratio=1.0, replayed=endless, levelled=endless
    )
    assert found.error_log == pytest.approx(found.traffic_log + found.costs_log + found.rest_log)
    assert found.error_log == 3.0
    assert found.parts_from == "runs"


def test_overlap_with_a_neighbour_is_measured() -> None:
    overlap = np.tile([0.0, 1.0], 300)
    seconds = 0.1 * np.where(overlap > 0, 1.4, 1.0)
    found = step_evidence(
        np.linspace(0.0, 60.0, 600), np.ones(600, np.int64), seconds, np.full(600, 0.1), overlap_ratio=overlap
    )
    assert found.overlap_log == pytest.approx(math.log(1.4))


def test_a_window_without_usable_steps_is_refused() -> None:
    none = np.zeros(0)
    with pytest.raises(ValueError, match="at least one step"):
        step_evidence(none, none.astype(np.int64), none, none)
    with pytest.raises(ValueError, match="durations > 0"):
        step_evidence(np.ones(1), np.zeros(1, np.int64), np.zeros(1), np.ones(1))
