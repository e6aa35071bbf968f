"""The outlook on two weeks of real clients: the rate two hours ahead against seasonal-naive (the same time yesterday).

python -m tests.bench.bench_outlook

ServeGen tells the rate of each ten minutes; arrivals of each minute are drawn from it (Poisson). Learning begins at the
first day; from the second on, at every half hour, the mean rate of each ten minutes of the next two hours is foretold.
Intervals are those of the published outlook, made every five minutes from the first on, for each step of five minutes.
"""

import csv

import numpy as np

from tests.bench.traffic_series import SHARED
from twin.metrics import FloatArray
from twin.outlook import STEP_S, STEPS, outlook
from twin.outlook_widths import PRIOR_WIDENING, FrozenWidths, OutlookWidths
from twin.traffic.history import SLOW_HORIZONS_S, SLOW_SLOT_S
from twin.traffic.rate import RateForecaster

WINDOW_S = 600.0
DAY_WINDOWS = 144
AHEAD_WINDOWS = 12
EVERY_WINDOWS = 3
BAR = 0.0
START_US = 1_800_000_000_000_000
DAY_STEPS = 288
AHEAD_STEPS = (0, 5, 11, 23)
OWN_DOUBT = FrozenWidths(*((value,) * STEPS for value in (0.0, 0.0, 1.0 / PRIOR_WIDENING, 1.0 / PRIOR_WIDENING)))


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
    """Mean absolute errors (per second) of the outlook, seasonal-naive and persistence."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(np.repeat(rates, int(WINDOW_S / SLOW_SLOT_S)) * SLOW_SLOT_S)
    seen = counts.reshape(-1, int(WINDOW_S / SLOW_SLOT_S)).sum(axis=1) / WINDOW_S
    forecaster = RateForecaster(SLOW_SLOT_S, SLOW_HORIZONS_S)
    errors: dict[str, list[float]] = {"outlook": [], "seasonal": [], "persistence": []}
    for window in range(rates.size - AHEAD_WINDOWS):
        if window >= DAY_WINDOWS and window % EVERY_WINDOWS == 0:
            rate = forecaster.forecast()
            ahead = np.array(
                [rate.expected_by((k + 1) * WINDOW_S) - rate.expected_by(k * WINDOW_S) for k in range(AHEAD_WINDOWS)]
            )
            truth = seen[window : window + AHEAD_WINDOWS]
            yesterday = seen[window - DAY_WINDOWS : window - DAY_WINDOWS + AHEAD_WINDOWS]
            errors["outlook"].append(float(np.abs(ahead / WINDOW_S - truth).mean()))
            errors["seasonal"].append(float(np.abs(yesterday - truth).mean()))
            errors["persistence"].append(float(np.abs(seen[window - 1] - truth).mean()))
        for count in counts[window * 10 : (window + 1) * 10]:
            forecaster.update(int(count), forecaster.slots)
    return {name: float(np.mean(values)) for name, values in errors.items()}


def covered(rates: FloatArray, *, learned: bool, seed: int = 1) -> tuple[FloatArray, float]:
    """Which steps fell into their intervals, (outlooks, steps) with NaN beyond the end, and the median high / low.

    `learned`: whether widths follow what past outlooks missed, or are the rate forecast's own doubt.
    """
    rng = np.random.default_rng(seed)
    counts = rng.poisson(np.repeat(rates, int(WINDOW_S / SLOW_SLOT_S)) * SLOW_SLOT_S)
    slots = int(STEP_S / SLOW_SLOT_S)
    seen = counts.reshape(-1, slots).sum(axis=1) / STEP_S
    forecaster, widths = RateForecaster(SLOW_SLOT_S, SLOW_HORIZONS_S), OutlookWidths(STEPS, STEP_S)
    inside, ratios = np.full((seen.size, STEPS), np.nan), []
    for step in range(seen.size):
        as_of_us = START_US + round(step * STEP_S * 1e6)
        widths.on_tick(as_of_us, int(counts[: step * slots].sum()))
        if step:
            found = outlook(forecaster.forecast(), as_of_us, widths=widths.freeze() if learned else OWN_DOUBT)
            widths.on_outlook(as_of_us, found)
            truth = seen[step : step + STEPS]
            low, high = np.array(found.low_per_s), np.array(found.high_per_s)
            inside[step, : truth.size] = (low[: truth.size] <= truth) & (truth <= high[: truth.size])
            ratios.append(float(np.median(high / np.maximum(low, 1e-9))))
        for count in counts[step * slots : (step + 1) * slots]:
            forecaster.update(int(count), forecaster.slots)
    return inside, float(np.median(ratios))


def main() -> None:
    """Print one line per client and the pooled skill."""
    skills = []
    for name, rates in clients().items():
        found = judged(rates)
        skill = 1.0 - found["outlook"] / found["seasonal"]
        skills.append(skill)
        print(
            f"outlook {name}: error {found['outlook']:.3f}/s, seasonal-naive {found['seasonal']:.3f}/s, "
            f"persistence {found['persistence']:.3f}/s, skill {skill:+.0%}"
        )
        for learned, label in ((False, "own doubt of the rate forecast"), (True, "widths from past errors")):
            inside, ratio = covered(rates, learned=learned)
            ahead = ", ".join(f"{np.nanmean(inside[:, k]):.0%}" for k in AHEAD_STEPS)
            bar = " (bar: 85 to 95 %)" if learned else ""
            print(
                f"outlook {name}, {label}: {np.nanmean(inside):.1%} of steps within their 90 % interval{bar}, "
                f"first day {np.nanmean(inside[:DAY_STEPS]):.0%}, at 5, 30, 60, 120 minutes {ahead}, "
                f"median high / low {ratio:.2f}"
            )
    print(f"outlook: skill over seasonal-naive {np.mean(skills):+.0%} on average (bar: > {BAR:.0%})")


if __name__ == "__main__":
    main()
