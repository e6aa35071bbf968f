"""The outlook on two weeks of real clients: the rate two hours ahead against seasonal-naive (the same time yesterday).

python -m tests.bench.bench_outlook

ServeGen tells the rate of each ten minutes; arrivals of each minute are drawn from it (Poisson). Learning begins at the
first day; from the second on, at every half hour, the mean rate of each ten minutes of the next two hours is foretold.
"""

import csv

import numpy as np

from tests.bench.traffic_series import SHARED
from twin.metrics import FloatArray
from twin.traffic.history import SLOW_HORIZONS_S, SLOW_SLOT_S
from twin.traffic.rate import RateForecaster

WINDOW_S = 600.0
DAY_WINDOWS = 144
AHEAD_WINDOWS = 12
EVERY_WINDOWS = 3
BAR = 0.0


def clients() -> dict[str, FloatArray]:
    """Requests per second of every ten minutes, per client that is here; else one that is made."""
    found = {}
    for path in sorted((SHARED / "data" / "servegen").glob("*/*/*-trace.csv")):
        with path.open(newline="") as lines:
            rows = [(float(row[0]), float(row[1])) for row in csv.reader(lines)]
        rates = np.zeros(int(max(at for at, _ in rows) / WINDOW_S) + 1)
        for at, rate in rows:
            rates[int(at / WINDOW_S)] = rate
        found[f"{path.parent.name}/{path.stem}"] = rates
    if not found:
        at = np.arange(14 * DAY_WINDOWS)
        noise = np.random.default_rng(1).lognormal(0.0, 0.15, at.size)
        found["made"] = (2.0 + 1.5 * np.sin(2 * np.pi * at / DAY_WINDOWS)) * noise
    return found


def judged(rates: FloatArray, seed: int = 1) -> dict[str, float]:
    """Mean absolute errors (per second) of the outlook, seasonal-naive and persistence, and the interval's coverage."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(np.repeat(rates, int(WINDOW_S / SLOW_SLOT_S)) * SLOW_SLOT_S)
    seen = counts.reshape(-1, int(WINDOW_S / SLOW_SLOT_S)).sum(axis=1) / WINDOW_S
    forecaster = RateForecaster(SLOW_SLOT_S, SLOW_HORIZONS_S)
    errors: dict[str, list[float]] = {"outlook": [], "seasonal": [], "persistence": [], "covered": []}
    for window in range(rates.size - AHEAD_WINDOWS):
        if window >= DAY_WINDOWS and window % EVERY_WINDOWS == 0:
            rate = forecaster.forecast()
            ahead = np.array(
                [rate.expected_by((k + 1) * WINDOW_S) - rate.expected_by(k * WINDOW_S) for k in range(AHEAD_WINDOWS)]
            )
            truth = seen[window : window + AHEAD_WINDOWS]
            yesterday = seen[window - DAY_WINDOWS : window - DAY_WINDOWS + AHEAD_WINDOWS]
            low, high = rate.interval_per_s(AHEAD_WINDOWS * WINDOW_S)
            errors["outlook"].append(float(np.abs(ahead / WINDOW_S - truth).mean()))
            errors["seasonal"].append(float(np.abs(yesterday - truth).mean()))
            errors["persistence"].append(float(np.abs(seen[window - 1] - truth).mean()))
            errors["covered"].append(float(low <= truth.mean() <= high))
        for count in counts[window * 10 : (window + 1) * 10]:
            forecaster.update(int(count), forecaster.slots)
    return {name: float(np.mean(values)) for name, values in errors.items()}


def main() -> None:
    """Print one line per client and the pooled skill."""
    skills = []
    for name, rates in clients().items():
        found = judged(rates)
        skill = 1.0 - found["outlook"] / found["seasonal"]
        skills.append(skill)
        print(
            f"outlook {name}: error {found['outlook']:.3f}/s, seasonal-naive {found['seasonal']:.3f}/s, "
            f"persistence {found['persistence']:.3f}/s, skill {skill:+.0%}, "
            f"two-hour mean within its 90 % interval {found['covered']:.0%}"
        )
    print(f"outlook: skill over seasonal-naive {np.mean(skills):+.0%} on average (bar: > {BAR:.0%})")


if __name__ == "__main__":
    main()
