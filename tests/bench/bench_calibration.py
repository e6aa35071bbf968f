"""Do stated intervals hold, and do forecasts beat persistence? Every recording through the live core; then an oracle.

Run: python -m tests.bench.bench_calibration            figures against their bars
     python -m tests.bench.bench_calibration derive     default widths from the recordings, each judged by the others
     python -m tests.bench.bench_calibration oracle=6   hours of the oracle engine with noise as recorded
     python -m tests.bench.bench_calibration constant=1 the same at one rate: authority and alerts must keep still
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from schemas.scores import ScoreCell
from schemas.slos import SloTarget
from tests.bench.forecast_runs import SETTINGS, Run, Sample, log_replications, names, run_events, run_recording
from tests.bench.oracle import COST, START_US, poisson, recording_of, serve, wandering
from tests.bench.step_recordings import engines as step_engines
from twin.calibration import Predictive, forecast_centre, forecast_scale
from twin.cost.block import StepBlock
from twin.engine.types import STEPS_PER_EPOCH, Noise
from twin.interval_defaults import KNOTS_S, TAIL
from twin.metrics import METRICS, FloatArray

SKILLS = (("ttft_s", 0.5), ("ttft_s", 0.95), ("e2e_s", 0.5), ("e2e_s", 0.95))
SLOWER = 5.0
"""The oracle's steps take this many times longer at a rate as much lower: six hours in minutes, load unchanged."""
ORACLE_LOAD_PER_S = 6.0
RAMPS, STEADY, DRIFTING = "C", "AB", "F"


def main(mode: str) -> None:
    """Print what was asked for."""
    found = names()
    kind, _, hours = mode.partition("=")
    if kind in ("oracle", "constant"):
        oracle(float(hours or 1.0), constant=kind == "constant")
        return
    if not found:
        print("no recordings here: set TWINCAST_RECORDINGS to a folder of them")
        return
    runs = [run_recording(name) for name in found]
    if mode == "derive":
        derive([sample for run in runs for sample in run.samples])
        return
    report(runs)
    reliability(runs)


def report(runs: Sequence[Run]) -> None:
    """Coverage, widths and skill."""
    for horizon_s in _horizons(runs):
        pooled = [cell for run in runs for cell in _cells(run, horizon_s)]
        print(f"coverage at {horizon_s:g} s: {_coverage(pooled):.1%} of {len(pooled)} (bar: 85 to 95 %)")
    for run in runs:
        cells = [cell for horizon_s in _horizons(runs) for cell in _cells(run, horizon_s)]
        bar = "60" if run.name[0] in DRIFTING else "75"
        print(f"coverage on {run.name}: {_coverage(cells):.1%} (bar: >= {bar} %)")
    for metric, bar in (("e2e_s", 3.0), ("ttft_s", 4.5)):
        ratios = [cell.high_s / cell.low_s for run in runs for cell in _cells(run, 30.0) if cell.metric == metric]
        print(f"median high / low of {metric} at 30 s: {np.median(ratios):.2f} (bar: <= {bar:g})")
    for horizon_s, bar, ramp in ((30.0, 14, 60), (60.0, 11, 45)):
        skills = {run.name: _skill(run, horizon_s) for run in runs if run.name[0] in "ABCDEF"}
        for name, skill in skills.items():
            print(f"skill at {horizon_s:g} s on {name}: {skill:+.1%}{_bar_of(name, ramp)}")
        print(f"skill at {horizon_s:g} s, mean of A to F: {np.mean(list(skills.values())):+.1%} (bar: >= +{bar} %)")


def oracle(hours: float, *, constant: bool) -> None:
    """Coverage on disjoint windows of an engine whose rules and noise are known, warm after ten minutes.

    Unless `constant`, the rate wanders by a fifth.
    """
    random = np.random.default_rng(2026)
    slow = COST.scaled(SLOWER)
    make = poisson if constant else wandering
    requests = make(random, ORACLE_LOAD_PER_S / SLOWER, hours * 3600.0)
    truth = serve(requests, slow, Noise.from_ratios(np.tile(recorded_noise(random), (3, 1))))
    limit_s = 4.0 * float(np.quantile(truth.latencies.ttft_s, 0.95))
    slos = (SloTarget(metric="ttft_s", quantile=0.95, limit_s=limit_s),)
    settings = replace(SETTINGS, period_s=30.0, slos=slos)
    run = run_events("oracle", recording_of(truth, "oracle"), settings)
    for horizon_s in _horizons([run]):
        every = round(horizon_s / settings.period_s)
        scored = [s for s in run.scores if s.horizon_s == horizon_s and s.as_of_us > START_US + 600 * 10**6][::every]
        cells = [cell for one in scored for cell in one.cells]
        ratio = np.median([cell.high_s / cell.low_s for cell in cells])
        print(
            f"oracle, {hours:g} h, coverage at {horizon_s:g} s: {_coverage(cells):.1%} "
            f"of {len(scored)} disjoint windows, median high / low {ratio:.2f} (bar: 86 to 94 %, 300 windows)"
        )
    changes = [level for _, level in run.result.core.authority.changes]
    fired = [alert for alert in run.result.alerts if alert.state == "firing"]
    word = "constant" if constant else "wandering"
    bar = " (bar: each level once, no alert)" if constant else ""
    print(f"oracle, {hours:g} h of {word} load: authority {changes}, {len(fired)} alerts fired{bar}")
    for alert in fired:
        print(f"  {alert.kind} at {(alert.at_us - START_US) / 1e6:.0f} s: {alert.cause}; {alert.evidence}")


def recorded_noise(random: np.random.Generator) -> FloatArray:
    """Ratios of 64 steps in a row to a fit over their whole recording, recordings without a hog chained."""
    pieces = []
    for name in names():
        if name[0] in DRIFTING:
            continue
        for block in step_engines(name).values():
            pieces.append(_epoch_ratios(block))
    if not pieces:
        return np.exp(random.normal(0.0, 0.05, 4096))
    return np.concatenate([pieces[k] for k in random.permutation(len(pieces))])


def _epoch_ratios(block: StepBlock) -> FloatArray:
    used = block.shapes[:, 1] + block.shapes[:, 3] > 0
    shapes, seconds = block.shapes[used], block.duration_s[used]
    features = np.column_stack(
        [np.ones(len(shapes)), shapes, np.maximum(shapes[:, 3:4] - np.array([4.0, 8.0, 16.0]), 0)]
    )
    weights = 1.0 / seconds
    fitted = np.linalg.lstsq(features * weights[:, None], seconds * weights, rcond=None)[0]
    predicted = np.maximum(features @ fitted, 1e-4)
    epochs = len(seconds) // STEPS_PER_EPOCH
    cut = epochs * STEPS_PER_EPOCH
    sums = [values[:cut].reshape(epochs, -1).sum(axis=1) for values in (seconds, predicted)]
    ratios: FloatArray = sums[0] / sums[1]
    return ratios


def reliability(runs: Sequence[Run]) -> None:
    """Breach probabilities against what happened, over limits spread around each recording's own latencies."""
    told: list[tuple[float, bool]] = []
    for run in runs:
        cells = [cell for scored in run.scores for cell in scored.cells if cell.observed_s is not None]
        for metric in METRICS:
            seen = [cell.observed_s for cell in cells if cell.metric == metric and cell.observed_s]
            for limit_s in np.quantile(seen, (0.1, 0.3, 0.5, 0.7, 0.9)):
                for cell in cells:
                    if cell.metric == metric:
                        found = Predictive(cell.forecast_s, cell.low_s, cell.high_s).exceeds(float(limit_s))
                        told.append((found, (cell.observed_s or 0.0) > limit_s))
    said, came = np.array([p for p, _ in told]), np.array([breached for _, breached in told], float)
    brier, plain = float(np.mean((said - came) ** 2)), float(came.mean() * (1.0 - came.mean()))
    print(f"breach probability: Brier score {brier:.3f} (always the base rate: {plain:.3f}), n = {came.size}")
    for low, high in ((0.0, 0.1), (0.1, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 1.01)):
        inside = (said >= low) & (said < high)
        if inside.any():
            print(f"  said {said[inside].mean():.0%}: came {came[inside].mean():.0%} of {inside.sum()}")


def derive(samples: Sequence[Sample]) -> None:
    """Default side multiples per metric and horizon, recordings weighted alike; coverage of each by the others'."""
    scaled = {id(sample): _scaled(sample) for sample in samples}
    for metric in METRICS:
        rows = [_multiples([s for s in samples if s.metric == metric and s.horizon_s == h], scaled) for h in KNOTS_S]
        rising = np.maximum.accumulate(np.array(rows), axis=0)
        print(f'    "{metric}": ({", ".join(f"({low:.2f}, {high:.2f})" for low, high in rising)}),')
    for horizon_s in KNOTS_S:
        inside = []
        for name in sorted({sample.recording for sample in samples}):
            hits: list[bool] = []
            for metric in METRICS:
                alike = [s for s in samples if s.metric == metric and s.horizon_s == horizon_s]
                low, high = _multiples([s for s in alike if s.recording != name], scaled)
                hits += [-low <= scaled[id(s)] <= high for s in alike if s.recording == name]
            if hits:
                inside.append(float(np.mean(hits)))
                print(f"left out {name} at {horizon_s:g} s: {inside[-1]:.1%} of {len(hits)} inside")
        print(f"left out, mean at {horizon_s:g} s: {np.mean(inside):.1%}")


def _scaled(sample: Sample) -> float:
    logs = log_replications(sample)
    distance = float(np.log(max(sample.observed_s, 1e-6))) - forecast_centre(sample.quantile, logs)
    return distance / forecast_scale(sample.metric, logs)


def _multiples(samples: Sequence[Sample], scaled: dict[int, float]) -> tuple[float, float]:
    """Scaled residuals at `TAIL` on either side, each recording with the same weight."""
    values = np.array([scaled[id(sample)] for sample in samples])
    counts = {name: sum(s.recording == name for s in samples) for name in {s.recording for s in samples}}
    weights = np.array([1.0 / counts[sample.recording] for sample in samples])
    return -_weighted_quantile(values, weights, TAIL), _weighted_quantile(values, weights, 1.0 - TAIL)


def _weighted_quantile(values: FloatArray, weights: FloatArray, level: float) -> float:
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][min(int(np.searchsorted(share, level)), values.size - 1)])


def _horizons(runs: Iterable[Run]) -> list[float]:
    return sorted({scored.horizon_s for run in runs for scored in run.scores})


def _cells(run: Run, horizon_s: float) -> list[ScoreCell]:
    return [cell for scored in run.scores if scored.horizon_s == horizon_s for cell in scored.cells]


def _coverage(cells: Sequence[ScoreCell]) -> float:
    return float(np.mean([cell.covered for cell in cells])) if cells else float("nan")


def _skill(run: Run, horizon_s: float) -> float:
    rows = run.result.core.ledger.rows()
    found = [
        row["skill_persistence"]
        for row in rows
        if row["horizon_s"] == horizon_s and (row["metric"], row["quantile"]) in SKILLS
    ]
    return float(np.mean(found)) if found else float("nan")


def _bar_of(name: str, ramp: int) -> str:
    bars = {RAMPS: f" (bar: >= +{ramp} %)", DRIFTING: " (bar: > 0)"} | dict.fromkeys(STEADY, " (bar: A, B > -2 %)")
    return bars.get(name[0], "")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
