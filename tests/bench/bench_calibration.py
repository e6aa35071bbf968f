"""Do stated intervals hold, and do forecasts beat persistence? Every recording through the live core; then an oracle.

Run: python -m tests.bench.bench_calibration            figures against their bars
     python -m tests.bench.bench_calibration derive     default widths from the recordings, each judged by the others
     python -m tests.bench.bench_calibration oracle     hours of the oracle engine with noise as recorded
"""

import sys
from collections.abc import Iterable, Sequence

import numpy as np

from schemas.scores import ScoreCell
from tests.bench.forecast_runs import Run, Sample, log_spread, names, run_recording
from twin.calibration import forecast_scale
from twin.interval_defaults import KNOTS_S
from twin.metrics import METRICS, FloatArray

SKILLS = (("ttft_s", 0.5), ("ttft_s", 0.95), ("e2e_s", 0.5), ("e2e_s", 0.95))
RAMPS, STEADY, DRIFTING = "C", "AB", "F"


def main(mode: str) -> None:
    """Print what was asked for."""
    found = names()
    if not found:
        print("no recordings here: set TWINCAST_RECORDINGS to a folder of them")
        return
    runs = [run_recording(name) for name in found]
    if mode == "derive":
        derive([sample for run in runs for sample in run.samples])
        return
    report(runs)


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
    centre, logs = log_spread(sample)
    return (float(np.log(max(sample.observed_s, 1e-6))) - centre) / forecast_scale(logs)


def _multiples(samples: Sequence[Sample], scaled: dict[int, float]) -> tuple[float, float]:
    """5 % and 95 % points of scaled residuals, each recording with the same weight."""
    values = np.array([scaled[id(sample)] for sample in samples])
    counts = {name: sum(s.recording == name for s in samples) for name in {s.recording for s in samples}}
    weights = np.array([1.0 / counts[sample.recording] for sample in samples])
    return -_weighted_quantile(values, weights, 0.05), _weighted_quantile(values, weights, 0.95)


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
