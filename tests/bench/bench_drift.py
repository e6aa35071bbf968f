"""Drift alerts against their bars: the slowed engine, quiet recordings, the stated rate, labelled series.

Run: python -m tests.bench.bench_drift
"""

import csv
import datetime
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import orjson

from schemas.alerts import Alert
from tests.bench import step_recordings
from tests.bench.bench_step_cost import rows
from twin.cost.block import FloatArray, IntArray, StepBlock
from twin.cost.model import StepCostModel
from twin.detectors import DetectorSettings
from twin.drift import DriftAlerts, DriftMonitor

NAB = step_recordings.ROOT / "data" / "nab"
HOG_SHARE = 0.5
"""The hog of F starts at half time."""
RATES_PER_DAY = (0.1, 1.0, 10.0)
NOISE_DAYS = 1.0
PIECE_S = 60.0


def learn(block: StepBlock) -> tuple[list[Alert], FloatArray]:
    """Alerts of one engine's steps, and the seconds predicted before each."""
    model, alerts, told, predicted = StepCostModel(), DriftAlerts("d"), [], []
    for start in range(0, len(block), 256):
        part = rows(block, start, start + 256)
        learned = model.learn_block(part)
        told += alerts.on_steps("0", part, learned)
        predicted.append(learned.predicted_s)
    return told, np.concatenate(predicted)


def bench_recordings() -> None:
    """The slowed engine is told; the others are not."""
    for name in step_recordings.names():
        for engine, block in step_recordings.engines(name).items():
            told, predicted = learn(block)
            if name.startswith("F"):
                _slowed(name, block, told, predicted)
                continue
            bar = " (bar: 0)" if name[0] in "AB" else ""
            print(f"drift alerts {name} engine {engine}: {len(told)}{bar}")


def _slowed(name: str, block: StepBlock, told: list[Alert], predicted: FloatArray) -> None:
    hog_us = block.at_us[0] + int(HOG_SHARE * round((block.at_us[-1] - block.at_us[0]) / 1e7) * 1e7)
    firing = [alert for alert in told if alert.state == "firing"]
    early = sum(alert.at_us < hog_us for alert in told)
    for alert in firing[:1]:
        print(
            f"drift alert {name}: firing {(alert.at_us - hog_us) / 1e6:.1f} s after the slow-down, onset off by "
            f"{(alert.onset_us - hog_us) / 1e6:+.1f} s, {early} alerts before (bar: 30 s, 0)"
        )
    if not firing:
        print(f"drift alert {name}: none (bar: 30 s)")
    works = np.isfinite(predicted)
    errors, at_us = np.abs(predicted / block.duration_s - 1.0)[works], block.at_us[works]
    usual = errors[(at_us < hog_us) & (at_us > block.at_us[0] + 60_000_000)].mean()
    seconds = (at_us - hog_us) / 1e6
    means = [(s, errors[(seconds > s - 5) & (seconds <= s)].mean()) for s in np.arange(5.0, 120.0, 1.0)]
    late = [s for s, mean in means if mean >= 2 * usual]
    print(
        f"step error {name}: under twice the usual {usual:.1%} from {max(late, default=4.0) + 1:.0f} s after the "
        f"slow-down on, means over 5 s (bar: 40 s)"
    )


@dataclass(frozen=True, slots=True)
class Pieces:
    """Recorded residuals of one quiet engine: time since the start, observed, level-free prediction, exceedance."""

    at_us: IntArray
    observed: FloatArray
    expected: FloatArray
    exceeded: FloatArray


def _quiet() -> list[Pieces]:
    pieces = []
    for name in step_recordings.names():
        if name.startswith("F"):
            continue
        for block in step_recordings.engines(name).values():
            learned = StepCostModel().learn_block(block)
            good = np.isfinite(learned.shape_s)
            observed, expected = block.duration_s[good], learned.shape_s[good]
            at_us = block.at_us[good] - block.at_us[good][0]
            exceeded = observed > learned.p99_s[good]
            pieces.append(Pieces(at_us, observed, expected * observed.sum() / expected.sum(), exceeded))
    return pieces


def _noise(
    pieces: list[Pieces], days: float, seed: int
) -> Iterator[tuple[IntArray, FloatArray, FloatArray, FloatArray]]:
    """Recorded minutes in random order, back to back: constant load with real noise."""
    rng = np.random.default_rng(seed)
    start_us, piece_us = step_recordings.START_US, int(PIECE_S * 1e6)
    for _ in range(round(days * 86_400 / PIECE_S)):
        piece = pieces[rng.integers(len(pieces))]
        begin_us = rng.integers(max(int(piece.at_us[-1]) - piece_us, 1))
        part = slice(*np.searchsorted(piece.at_us, (begin_us, begin_us + piece_us)))
        yield (
            piece.at_us[part] - begin_us + start_us,
            piece.observed[part],
            piece.expected[part],
            piece.exceeded[part],
        )
        start_us += piece_us


def bench_rate() -> None:
    """Alerts on a day of constant load with recorded noise, at the stated rates; the noise never changes."""
    pieces = _quiet()
    for per_day in RATES_PER_DAY if pieces else ():
        monitor = DriftMonitor(DetectorSettings(false_alarms_per_day=per_day))
        states = [told.state for part in _noise(pieces, NOISE_DAYS, 1) for told in monitor.update_many(*part)]
        print(
            f"false alarms on {NOISE_DAYS:g} day of recorded noise: {states.count('firing')} firing, "
            f"{states.count('suspected')} suspected (stated: {per_day * NOISE_DAYS:g})"
        )


def _series(name: str) -> tuple[IntArray, FloatArray]:
    with (NAB / name).open(newline="") as lines:
        pairs = [(_us(row["timestamp"]), float(row["value"])) for row in csv.DictReader(lines)]
    return np.array([at_us for at_us, _ in pairs]), np.array([value for _, value in pairs])


def _us(text: str) -> int:
    return int(datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC).timestamp() * 1e6)


def bench_series() -> None:
    """Labelled series of other systems: windows found, and alerts outside them."""
    if not NAB.exists():
        print(f"no labelled series in {NAB}; nothing to measure there")
        return
    labels: dict[str, list[list[str]]] = orjson.loads((NAB / "combined_windows.json").read_bytes())
    for per_day in RATES_PER_DAY[:2]:
        tallies = {"firing": [0, 0], "firing or peak": [0, 0], "firing or suspected": [0, 0]}
        days = 0.0
        for name, windows in labels.items():
            at_us, values = _series(name)
            days += (at_us[-1] - at_us[0]) / 86_400e6
            spans = [(_us(start), _us(end)) for start, end in windows]
            for kind, times in _alerts(at_us, values, per_day).items():
                tallies[kind][0] += sum(any(start <= at <= end for at in times) for start, end in spans)
                tallies[kind][1] += sum(not any(start <= at <= end for start, end in spans) for at in times)
        total = sum(len(windows) for windows in labels.values())
        for kind, (found, false) in tallies.items():
            print(
                f"labelled series, {kind}: {found} of {total} windows found, {false} false alarms in {days:.0f} days, "
                f"{false / days:.2f} per day (stated: {per_day:g})"
            )


def _alerts(at_us: IntArray, values: FloatArray, per_day: float) -> dict[str, list[int]]:
    """Times of alerts by kind. Values are 300 s apart; a thousandth of the median keeps zeros apart from nothing."""
    settings = DetectorSettings(
        false_alarms_per_day=per_day,
        bucket_s=300.0,
        bucket_rows=1,
        settle_s=86_400.0,
        calm_s=43_200.0,
        reference_half_life_s=3 * 86_400.0,
    )
    monitor = DriftMonitor(settings, peaks=True)
    floor = max(1e-3 * float(np.median(np.abs(values))), 1e-6)
    told = [
        transition
        for at, value in zip(at_us.tolist(), values, strict=True)
        for transition in monitor.update_one(at, max(value, 0.0) + floor, 1.0)
        if transition.state != "resolved"
    ]
    firing = [t.at_us for t in told if t.state == "firing"]
    peaks = [t.at_us for t in told if t.state == "suspected" and "far above" in t.evidence]
    return {"firing": firing, "firing or peak": firing + peaks, "firing or suspected": [t.at_us for t in told]}


def main() -> None:
    """Print every figure with its bar."""
    if not step_recordings.names():
        print(f"no recordings in {step_recordings.RECORDINGS}; nothing to measure there")
    bench_recordings()
    bench_series()
    bench_rate()


if __name__ == "__main__":
    main()
