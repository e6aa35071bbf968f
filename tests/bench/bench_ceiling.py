"""The throughput ceiling learned from a recording at half load, against the plateau of another one in overload.

Run as `python -m tests.bench.bench_ceiling`. Reads ../shared/recordings; says so and ends where they are absent.
Measured on a tiny model on one CPU core, eager mode: costs, lengths and traffic of `A_steady` up to each third of its
minutes; the truth is the busiest minute of `C_ramp`, recorded on another day, when the machine may be 3 to 11 % other.
"""

import gzip
import json
import sys
from dataclasses import replace

import numpy as np

from pipelines.backtest import backtest
from pipelines.ingest.recording import read_recording
from tests.bench.forecast_runs import RECORDINGS, SETTINGS
from twin.job import SimulationJob, SimulationResult
from twin.simulate import run
from twin.sweep import sweep

LEARNED, OVERLOADED = "A_steady_s101", "C_ramp_s301"
MINUTE_S = 60.0


def jobs(name: str) -> list[SimulationJob]:
    """Every fine forecast job of a recording."""
    kept: list[SimulationJob] = []

    def keep(job: SimulationJob) -> SimulationResult:
        if job.phase == "fine":
            kept.append(job)
        return run(job)

    backtest(read_recording(RECORDINGS / name), SETTINGS, simulate=keep)
    return kept


def plateau_per_s(name: str) -> float:
    """Requests completed per second in the busiest minute."""
    with gzip.open(RECORDINGS / name / "requests.jsonl.gz", "rt") as lines:
        ends = np.sort([row["t_last"] for row in map(json.loads, lines) if row["t_last"] is not None])
    counts = np.searchsorted(ends, ends + MINUTE_S, side="right") - np.arange(ends.size)
    return float(counts.max()) / MINUTE_S


def main() -> int:
    """Print the figures."""
    if not (RECORDINGS / LEARNED).is_dir() or not (RECORDINGS / OVERLOADED).is_dir():
        print(f"ceiling: skipped, {LEARNED} or {OVERLOADED} is absent from {RECORDINGS}", file=sys.stderr)
        return 0
    truth_per_s = plateau_per_s(OVERLOADED)
    known = jobs(LEARNED)
    for at in (len(known) // 3, 2 * len(known) // 3, len(known) - 1):
        asked = replace(known[at], fine_replications=6, coarse_replications=3, with_insight=False)
        curve = sweep(asked)
        ceiling, low, high = curve.ceiling()
        print(
            f"ceiling learned from {LEARNED}, forecast {at + 1} of {len(known)}: "
            f"{ceiling:.2f}/s ({low:.2f} to {high:.2f}), knee {curve.knee_requests_per_s:.2f}/s; "
            f"{ceiling / truth_per_s - 1:+.1%} against the plateau of {OVERLOADED}, {truth_per_s:.2f}/s "
            "(bar: within 10 %)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
