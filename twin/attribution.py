"""Why a closed window missed its forecast: costs wrong, traffic different, saturated, or contended. Changes nothing.

The window is run through the twin twice more: with its real requests and the costs the forecast had (`replayed`), and
with its real requests and its real cost level per role (`levelled`). From forecast to `replayed` only the traffic
changes, from there to `levelled` only the costs; what is left is neither. Where the two runs are missing, deviations
of work and of step time stand in for them. A cost deviation that comes and goes in all roles at once, goes with a
neighbour being busy, or is time off the core, is contention and no property of the model. A saturated queue turns
deviations within the usual noise into large errors: then none of them is to blame.
Law: exactly one cause per window, and the same facts give the same cause.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from schemas.scores import Cause
from schemas.slos import Metric
from twin.cost.shape import Role
from twin.metrics import FloatArray, IntArray

Values = Mapping[tuple[Metric, float], float]
ROLES = (Role.PREFILL, Role.DECODE, Role.MIXED)
_JUDGED_LEVELS = (0.5, 0.95)
_MAX_LOG = 3.0


@dataclass(frozen=True, slots=True)
class AttributionSettings:
    """What counts as usual: deviations (log ratios, or shares) at or under these explain nothing by themselves.

    `error`: of the judged latencies. `cost`: of step time, as engines wander by 3 to 11 % from minute to minute.
    `traffic`: of offered work. `patchy`: standard deviation of the level between one-second blocks, noise taken off.
    `overlap`: step time with a busy neighbour against without. `off_core`: share of step time off the core.
    """

    error: float = 0.1
    cost: float = 0.08
    traffic: float = 0.1
    patchy: float = 0.09
    overlap: float = 0.1
    off_core: float = 0.15
    saturated: float = 0.8


@dataclass(frozen=True, slots=True)
class StepEvidence:
    """Steps of one window against the costs the forecast had; log ratios are log(observed / predicted).

    `cost_log`: all steps. `role_log`: per role with at least 20 steps. `patchy_log`: how much the level of one-second
    blocks varies beyond usual noise and beyond what the levels of the roles explain. `overlap_log`: steps beside a busy
    neighbour against steps alone, None if unknown. `off_core_ratio`: share of step time not on the core, beyond the
    usual; None if unknown.
    """

    cost_log: float
    role_log: Mapping[Role, float]
    patchy_log: float
    overlap_log: float | None = None
    off_core_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class TrafficEvidence:
    """Requests of the window against those forecast: log(observed / forecast) of count, and of mean tokens to compute.

    `outside`: whether the count fell out of the forecast's interval. `prefill_ratio`: share of step time in prefill.
    """

    arrivals_log: float
    prefill_tokens_log: float = 0.0
    output_tokens_log: float = 0.0
    outside: bool = False
    prefill_ratio: float = 0.5

    @property
    def work_log(self) -> float:
        """Offered work against that forecast, weighted by where the time goes."""
        per_request = self.prefill_ratio * self.prefill_tokens_log + (1 - self.prefill_ratio) * self.output_tokens_log
        return self.arrivals_log + per_request


@dataclass(frozen=True, slots=True)
class Attribution:
    """The cause, and the mean log ratios of latency that traffic, costs and the rest account for; sum: `error_log`.

    `parts_from` tells whether they come from runs of the twin or from the deviations alone.
    """

    cause: Cause
    error_log: float
    traffic_log: float
    costs_log: float
    rest_log: float
    parts_from: Literal["runs", "deviations"]
    evidence: str


def step_evidence(
    end_s: FloatArray,
    roles: IntArray,
    observed_s: FloatArray,
    predicted_s: FloatArray,
    *,
    steps: IntArray | None = None,
    overlap_ratio: FloatArray | None = None,
    off_core_s: FloatArray | None = None,
    usual_off_core_ratio: float = 0.0,
    usual_block_sigma: float = 0.05,
) -> StepEvidence:
    """Evidence from n steps: ends, roles (index into `ROLES`), observed and predicted seconds, each of shape (n,).

    `steps`: how many steps each row sums up (None: one), all of one role and within a second. `overlap_ratio`: share of
    each step during which a neighbour on the device was busy. Raises ValueError for no steps or a duration that is not
    > 0.
    """
    if end_s.size == 0:
        raise ValueError("step evidence needs at least one step; a window without steps has no cost to judge")
    if not (np.all(observed_s > 0) and np.all(predicted_s > 0)):
        raise ValueError("step evidence needs durations > 0 s; leave out steps that scheduled nothing")
    counts = np.ones(end_s.size, np.int64) if steps is None else steps
    by_role = {
        role: _log_ratio(observed_s[roles == i], predicted_s[roles == i])
        for i, role in enumerate(ROLES)
        if counts[roles == i].sum() >= 20
    }
    whole = _log_ratio(observed_s, predicted_s)
    levels = np.exp([by_role.get(role, whole) for role in ROLES])
    off_core = None
    if off_core_s is not None:
        off_core = float(off_core_s.sum() / observed_s.sum()) - usual_off_core_ratio
    return StepEvidence(
        cost_log=whole,
        role_log=by_role,
        patchy_log=_patchiness(end_s, observed_s, predicted_s * levels[roles], usual_block_sigma),
        overlap_log=None if overlap_ratio is None else _overlap_effect(overlap_ratio, observed_s, predicted_s),
        off_core_ratio=off_core,
    )


def attribute(
    observed: Values,
    forecast: Values,
    *,
    traffic: TrafficEvidence,
    steps: StepEvidence | None,
    saturated_ratio: float,
    replayed: Values | None = None,
    levelled: Values | None = None,
    settings: AttributionSettings | None = None,
) -> Attribution:
    """The cause of one window's error. Latencies in seconds per (metric, quantile); infinite ones are e^3 apart."""
    bars = settings or AttributionSettings()
    error = _mean_log(observed, forecast)
    costs_deviation = steps.cost_log if steps else 0.0
    if replayed is not None and levelled is not None:
        traffic_part, costs_part = _mean_log(replayed, forecast), _mean_log(levelled, replayed)
    else:
        traffic_part, costs_part = traffic.work_log, costs_deviation
    cause = _cause(error, traffic_part, costs_part, traffic, steps, saturated_ratio, bars)
    return Attribution(
        cause=cause,
        error_log=error,
        traffic_log=traffic_part,
        costs_log=costs_part,
        rest_log=error - traffic_part - costs_part,
        parts_from="runs" if replayed is not None and levelled is not None else "deviations",
        evidence=_evidence(traffic, steps, saturated_ratio),
    )


def _cause(
    error: float,
    traffic_part: float,
    costs_part: float,
    traffic: TrafficEvidence,
    steps: StepEvidence | None,
    saturated_ratio: float,
    bars: AttributionSettings,
) -> Cause:
    costs_off = steps is not None and _costs_off(steps, bars)
    traffic_off = _traffic_off(traffic, bars)
    if abs(error) <= bars.error:
        return "none"
    sign = math.copysign(1.0, error)
    by_traffic = sign * traffic_part if traffic_off else 0.0
    by_costs = sign * costs_part if costs_off else 0.0
    if max(by_traffic, by_costs) > 0.0:
        if by_traffic >= by_costs:
            return "traffic"
        return "contended" if steps is not None and _contended(steps, bars) else "costs"
    return "saturated" if saturated_ratio >= bars.saturated else "unexplained"


def _costs_off(steps: StepEvidence, bars: AttributionSettings) -> bool:
    roles = [abs(value) for value in steps.role_log.values()]
    return abs(steps.cost_log) > bars.cost or max(roles, default=0.0) > 2 * bars.cost or _contended(steps, bars)


def _traffic_off(traffic: TrafficEvidence, bars: AttributionSettings) -> bool:
    per_request = max(abs(traffic.prefill_tokens_log), abs(traffic.output_tokens_log))
    return abs(traffic.work_log) > bars.traffic or traffic.outside or per_request > 2 * bars.traffic


def _contended(steps: StepEvidence, bars: AttributionSettings) -> bool:
    """Slower, and in a way that costs of a model cannot be."""
    if steps.off_core_ratio is not None and steps.off_core_ratio > bars.off_core:
        return True
    if steps.overlap_log is not None and steps.overlap_log > bars.overlap:
        return True
    return steps.patchy_log > bars.patchy


def _patchiness(end_s: FloatArray, observed_s: FloatArray, predicted_s: FloatArray, usual_sigma: float) -> float:
    """Standard deviation of the log level between one-second blocks, usual noise taken off; 0 for under five blocks."""
    blocks = np.floor(end_s - end_s.min()).astype(np.int64)
    count = int(blocks.max()) + 1
    observed = np.bincount(blocks, weights=observed_s, minlength=count)
    predicted = np.bincount(blocks, weights=predicted_s, minlength=count)
    filled = predicted > 0.2 * np.median(predicted[predicted > 0])
    if np.count_nonzero(filled) < 5:
        return 0.0
    spread = float(np.std(np.log(observed[filled] / predicted[filled])))
    return math.sqrt(max(spread**2 - usual_sigma**2, 0.0))


def _overlap_effect(overlap_ratio: FloatArray, observed_s: FloatArray, predicted_s: FloatArray) -> float | None:
    """Log level of steps mostly beside a busy neighbour minus that of steps mostly alone; None if either is rare."""
    beside, alone = overlap_ratio >= 0.5, overlap_ratio < 0.5
    if min(np.count_nonzero(beside), np.count_nonzero(alone)) < 20:
        return None
    return _log_ratio(observed_s[beside], predicted_s[beside]) - _log_ratio(observed_s[alone], predicted_s[alone])


def _log_ratio(observed_s: FloatArray, predicted_s: FloatArray) -> float:
    return math.log(float(observed_s.sum()) / float(predicted_s.sum()))


def _mean_log(numerator: Values, denominator: Values) -> float:
    """Mean log ratio over TTFT and E2E at P50 and P95, or over what both have; each bounded by e^3."""
    keys = [key for key in numerator if key in denominator and key[1] in _JUDGED_LEVELS and key[0] != "tpot_s"]
    if not keys:
        keys = [key for key in numerator if key in denominator]
    logs = [_bounded_log(numerator[key], denominator[key]) for key in sorted(keys)]
    return sum(logs) / len(logs) if logs else 0.0


def _bounded_log(above_s: float, below_s: float) -> float:
    if math.isinf(above_s) and math.isinf(below_s):
        return 0.0
    if math.isinf(above_s) or math.isinf(below_s):
        return math.copysign(_MAX_LOG, above_s - below_s)
    return min(max(math.log(max(above_s, 1e-6) / max(below_s, 1e-6)), -_MAX_LOG), _MAX_LOG)


def _evidence(traffic: TrafficEvidence, steps: StepEvidence | None, saturated_ratio: float) -> str:
    clauses = [f"offered work {math.expm1(traffic.work_log):+.0%}", f"saturated {saturated_ratio:.0%} of step time"]
    if steps is not None:
        clauses.append(f"step time {math.expm1(steps.cost_log):+.0%}")
        clauses += [f"{role.value} {math.expm1(value):+.0%}" for role, value in steps.role_log.items()]
        clauses.append(f"level varies by {steps.patchy_log:.0%} between seconds")
        if steps.overlap_log is not None:
            clauses.append(f"beside a busy neighbour {math.expm1(steps.overlap_log):+.0%}")
        if steps.off_core_ratio is not None:
            clauses.append(f"off the core {steps.off_core_ratio:.0%} more than usual")
    return "; ".join(clauses)
