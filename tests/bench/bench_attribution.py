"""Are causes of errors told apart? Labelled windows of the oracle engine: what was changed in each is known.

Run: python -m tests.bench.bench_attribution [windows per case]
"""

import math
import sys
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from schemas.slos import Metric
from tests.bench.oracle import COST, Requests, Truth, latencies_of, poisson, serve
from twin.attribution import ROLES, Attribution, StepEvidence, TrafficEvidence, attribute, step_evidence
from twin.cost.frozen import PS_PER_S, FrozenStepCost
from twin.engine.types import Noise
from twin.metrics import FloatArray, Latencies, quantile

WARM_S, WINDOW_S = 20.0, 60.0
EPOCHS = 512
RATE_PER_S = 6.0
SATURATING_PER_S = 11.5
FORECASTS = 4
KEYS: tuple[tuple[Metric, float], ...] = tuple((m, q) for m in ("ttft_s", "e2e_s") for q in (0.5, 0.95))


@dataclass(frozen=True, slots=True)
class Case:
    """What is changed in the window, and the cause that this must be called."""

    label: str
    name: str
    rate: float = 1.0
    isl: float = 1.0
    osl: float = 1.0
    prefill: float = 1.0
    decode: float = 1.0
    contention: float = 0.0
    host_tells: bool = False
    saturated: bool = False


CASES = (
    Case("costs", "prefill 1.5x", prefill=1.5),
    Case("costs", "decode 1.4x", decode=1.4),
    Case("costs", "all 1.25x", prefill=1.25, decode=1.25),
    Case("costs", "all 0.75x", prefill=0.75, decode=0.75),
    Case("traffic", "rate 1.4x", rate=1.4),
    Case("traffic", "rate 0.5x", rate=0.5),
    Case("traffic", "prompts 1.5x", isl=1.5),
    Case("traffic", "outputs 1.6x", osl=1.6),
    Case("saturated", "at the knee", saturated=True),
    Case("contended", "neighbour +60 %", contention=0.6),
    Case("contended", "host tells, +120 %", contention=1.2, host_tells=True),
)


def main(windows: int) -> None:
    """Print the share found per case, and the whole against its bar."""
    right = judged = 0
    for case in CASES:
        causes = Counter(judge(case, seed).cause for seed in range(windows))
        hits, quiet = causes[case.label], causes["none"]
        print(f"{case.label:10s} {case.name:18s}: {hits}/{windows - quiet} right, {quiet} within noise, {dict(causes)}")
        right += hits
        judged += windows - quiet
    print(f"cause of error: {right / judged:.0%} of {judged} windows right (bar: >= 90 %)")


def judge(case: Case, seed: int) -> Attribution:
    """One labelled window through the twin and attribution."""
    random = np.random.default_rng((seed, CASES.index(case)))
    base_rate = SATURATING_PER_S if case.saturated else RATE_PER_S
    requests = poisson(random, base_rate * case.rate, WARM_S + WINDOW_S, isl=case.isl, osl=case.osl)
    ratios, busy = _noise(random, case)
    truth = serve(requests, _costs(case), Noise.from_ratios(np.tile(ratios, (3, 1))))
    forecasts = [poisson(random, base_rate, WARM_S + WINDOW_S) for _ in range(FORECASTS)]
    forecast = [_quantiles(each, latencies_of(each)) for each in forecasts]
    steps = _evidence(truth, busy * (1.0 - 1.0 / (1.0 + case.contention)) if case.host_tells else None)
    return attribute(
        _quantiles(requests, truth.latencies),
        {key: float(np.median([found[key] for found in forecast])) for key in KEYS},
        traffic=_traffic(truth.requests, forecasts, base_rate),
        steps=steps,
        saturated_ratio=_saturated(truth),
        replayed=_quantiles(requests, latencies_of(requests)),
        levelled=_quantiles(requests, latencies_of(requests, _levelled(steps))),
    )


def _costs(case: Case) -> FrozenStepCost:
    mixed = math.sqrt(case.prefill * case.decode)
    return replace(
        COST,
        prefill=COST.prefill.scaled(case.prefill),
        decode=COST.decode.scaled(case.decode),
        mixed=COST.mixed.scaled(mixed),
    )


def _noise(random: np.random.Generator, case: Case) -> tuple[FloatArray, FloatArray]:
    """Per 64 steps: the machine's own wandering times a neighbour that comes and goes; and whether it is there."""
    wander = np.empty(EPOCHS)
    wander[0] = random.normal()
    for k in range(1, EPOCHS):
        wander[k] = 0.6 * wander[k - 1] + 0.8 * random.normal()
    ratios = np.exp(0.03 * random.normal() + 0.03 * wander)
    busy, at = np.zeros(EPOCHS), 0
    while case.contention and at < EPOCHS:
        at += int(random.integers(2, 8))
        busy[at : at + int(random.integers(2, 8))] = 1.0
        at += int(random.integers(2, 8))
    return ratios * (1.0 + case.contention * busy), busy


def _inside(requests: Requests) -> np.ndarray:
    return requests.arrived_s > WARM_S


def _quantiles(requests: Requests, found: Latencies) -> dict[tuple[Metric, float], float]:
    members = found[_inside(requests)]
    return {(metric, level): quantile(members.of(metric), level) for metric, level in KEYS}


def _evidence(truth: Truth, off_core_share: FloatArray | None) -> StepEvidence:
    """`off_core_share` of step time per 64 steps, where the host tells it."""
    chosen = [(k, step) for k, step in enumerate(truth.steps) if step.start_ps > WARM_S * PS_PER_S]
    steps = [step for _, step in chosen]
    off_core_s = None
    if off_core_share is not None:
        off_core_s = np.array([off_core_share[k // 64 % EPOCHS] * step.duration_ps / PS_PER_S for k, step in chosen])
    return step_evidence(
        np.array([(step.start_ps + step.duration_ps) / PS_PER_S for step in steps]),
        np.array([ROLES.index(step.shape.role) for step in steps]),
        np.array([step.duration_ps / PS_PER_S for step in steps]),
        np.array([COST.step_ps(step.shape) / PS_PER_S for step in steps]),
        off_core_s=off_core_s,
    )


def _levelled(steps: StepEvidence) -> FrozenStepCost:
    ratios = [math.exp(steps.role_log.get(role, steps.cost_log)) for role in ROLES]
    scaled = [COST.role(role).scaled(ratio) for role, ratio in zip(ROLES, ratios, strict=True)]
    return FrozenStepCost(*scaled)


def _saturated(truth: Truth) -> float:
    steps = [step for step in truth.steps if WARM_S * PS_PER_S < step.start_ps <= (WARM_S + WINDOW_S) * PS_PER_S]
    waiting = sum(step.duration_ps for step in steps if step.waiting)
    return waiting / sum(step.duration_ps for step in steps)


def _traffic(requests: Requests, forecasts: list[Requests], rate_per_s: float) -> TrafficEvidence:
    inside = _inside(requests)
    expected = rate_per_s * WINDOW_S
    counts = int(inside.sum())
    spread = 1.645 * math.sqrt(expected) * 1.2
    return TrafficEvidence(
        arrivals_log=math.log(counts / expected),
        prefill_tokens_log=_tokens_log(requests.isl_tokens[inside], [each.isl_tokens for each in forecasts]),
        output_tokens_log=_tokens_log(requests.osl_tokens[inside], [each.osl_tokens for each in forecasts]),
        outside=abs(counts - expected) > spread,
    )


def _tokens_log(seen: np.ndarray, expected: list[np.ndarray]) -> float:
    return math.log(float(seen.mean()) / float(np.concatenate(expected).mean()))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
