"""Detectors of change in a stream of log ratios and exceedances: level, tail, peak. Raise no alert, know no cause.

The knob is the number of false alarms expected per day. It sets ADWIN's confidence per look, how far a level that
wanders may stray (the rate at which a Gaussian process of that spread crosses a bound), and the height of the tail's
cumulative sum (Wald's bound on its mean time to a false alarm).
Laws: the same values lead to the same answers, snapshot or not; memory is bounded.

References: [1] Bifet and Gavalda, Learning from Time-Changing Data with Adaptive Windowing, SDM 2007.
[2] Page, Continuous Inspection Schemes, Biometrika 1954.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

import numpy as np
from river.drift import ADWIN

DAY_S = 86_400.0
RECENT_BUCKETS = 40
PER_UNIT = 1e5
"""Log ratios are kept as whole numbers of 1e-5, so that a running sum stays exact."""
WARM_BUCKETS = 60
HISTORY_BUCKETS = 600
CONFIRMED_BUCKETS = 6 * RECENT_BUCKETS
"""A deviation that has lasted so long needs no jump: it crept in."""
PRIOR_WANDER = 0.03
PRIOR_WANDER_BUCKETS = 400.0
WANDER_GAIN = 1.0 - 0.5 ** (1.0 / 2_400.0)
WORSE_SHARE = 0.05
"""A P99 is exceeded by one value in a hundred; a look with five times as many is bad."""
PRIOR_BAD_SHARE = 0.04
PRIOR_LOOKS = 50.0
KEPT_PER_LOOK = 0.5 ** (1.0 / 2_000.0)
PEAK_HISTORY = 1_000
MIN_PEAK_HISTORY = 288
PEAK_SHARE = 0.02
PEAK_MEAN_GAIN = 1.0 - 0.5 ** (1.0 / 72.0)
CHANGED_BAD_SHARE = 0.6
"""Share of bad looks once the tail has changed: what the cumulative sum is built to find."""


@dataclass(frozen=True, slots=True)
class DetectorSettings:
    """When a change is worth telling.

    `false_alarms_per_day`: expected of one monitor, shared by its two detectors. `smallest_effect_ratio`: changes
    smaller than this are not told (0.25: levels between 1/1.25 and 1.25 times the reference). `bucket_s`: values are
    summed over this time, and over at least `bucket_rows` of them. `settle_s`: a changed level that holds so long is
    the new reference. `reference_half_life_s`: how slowly the reference follows what is not told.
    """

    false_alarms_per_day: float = 0.1
    smallest_effect_ratio: float = 0.25
    bucket_s: float = 0.25
    bucket_rows: int = 8
    settle_s: float = 300.0
    calm_s: float = 30.0
    reference_half_life_s: float = 3_600.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not 0.0 < value < 1e9:
                raise ValueError(f"drift.{name} must be a finite number > 0, got {value}")

    @property
    def effect_log(self) -> float:
        """The smallest effect as a difference of logarithms."""
        return math.log1p(self.smallest_effect_ratio)

    @property
    def looks_per_day(self) -> float:
        """Buckets of a busy day."""
        return DAY_S / self.bucket_s

    @property
    def adwin_delta(self) -> float:
        """ADWIN's chance of a false alarm per look, for half of the false alarms."""
        return min(0.5 * self.false_alarms_per_day / self.looks_per_day, 0.5)

    @property
    def wander_sigmas(self) -> float:
        """Standard deviations that a Gaussian level, averaged over RECENT_BUCKETS, crosses as often as is allowed."""
        crossings = DAY_S / (2.0 * math.pi * RECENT_BUCKETS * self.bucket_s * 0.5 * self.false_alarms_per_day)
        return math.sqrt(2.0 * math.log(max(crossings, math.e)))

    @property
    def tail_height(self) -> float:
        """Height of the cumulative sum: mean looks to a false alarm >= e^height."""
        looks_per_day = self.looks_per_day / RECENT_BUCKETS
        return math.log(max(looks_per_day / (0.5 * self.false_alarms_per_day), math.e))


class LevelDetector:
    """Whether the mean of a stream has moved away from its reference by more than it wanders.

    The mean of the last RECENT_BUCKETS says by how much. ADWIN confirms a jump; time confirms what crept in.
    """

    def __init__(self, settings: DetectorSettings) -> None:
        self._settings = settings
        self._sigmas, self._effect_log = settings.wander_sigmas, settings.effect_log
        self._slowest_gain = 1.0 - 0.5 ** (settings.bucket_s / settings.reference_half_life_s)
        self._history: deque[tuple[int, int]] = deque(maxlen=HISTORY_BUCKETS)
        self._recent: deque[int] = deque(maxlen=RECENT_BUCKETS)
        self._recent_sum = 0
        self._history_sum = 0
        self._inputs: list[float] = []
        self._adwin = self._new_adwin()
        self.reference = 0.0
        self._reference_buckets = 0.0
        self._squares = 0.0
        self._wander = PRIOR_WANDER**2
        self._changed = False
        self._beyond_buckets = 0

    @property
    def warm(self) -> bool:
        """Whether there is a reference to compare with."""
        return self._reference_buckets >= WARM_BUCKETS

    @property
    def deviation(self) -> float:
        """Mean of the last RECENT_BUCKETS less the reference, in logarithms; 0 while there is no reference."""
        return self._recent_sum / len(self._recent) / PER_UNIT - self.reference if self.warm else 0.0

    @property
    def wander(self) -> float:
        """Standard deviation of the deviation while nothing is told."""
        return math.sqrt(self._wander)

    @property
    def threshold(self) -> float:
        """Deviation that is told: the smallest effect, or more on a stream that wanders much."""
        return max(self._effect_log, self._sigmas * math.sqrt(self._wander))

    @property
    def confirmed(self) -> bool:
        """Whether the recent mean is beyond the threshold because of a change, not by chance."""
        return self.beyond and (self._changed or self._beyond_buckets >= CONFIRMED_BUCKETS)

    @property
    def beyond(self) -> bool:
        """Whether the recent mean is beyond the threshold, confirmed or not."""
        return abs(self.deviation) >= self.threshold

    def update(self, at_us: int, value: float, *, told: bool = False) -> None:
        """Take the mean log ratio of one bucket. While a change is `told`, reference and wander stand still."""
        units = round(value * PER_UNIT)
        value = units / PER_UNIT
        history, recent = self._history, self._recent
        self._history_sum += units - (history[0][1] if len(history) == HISTORY_BUCKETS else 0)
        history.append((at_us, units))
        self._recent_sum += units - (recent[0] if len(recent) == RECENT_BUCKETS else 0)
        recent.append(units)
        if self._reference_buckets < WARM_BUCKETS:
            self._warm_up(value)
            return
        scaled = 0.5 + (value - self.reference) / (2.0 * self._effect_log)
        self._feed(round(min(max(scaled, 0.0), 1.0), 4))
        threshold = self.threshold
        beyond = abs(self._recent_sum / len(recent) / PER_UNIT - self.reference) >= threshold
        self._beyond_buckets = self._beyond_buckets + 1 if beyond else 0
        if not told:
            self._follow(value, threshold)

    def _follow(self, value: float, threshold: float) -> None:
        """Let the wander follow what is not told, and the reference what is not beyond the threshold.

        The wander is around the mean of the history, not the reference, or what creeps up would excuse itself.
        """
        recent = self._recent_sum / len(self._recent)
        strayed = min(abs(recent - self._history_sum / len(self._history)) / PER_UNIT, threshold)
        young = 1.0 / (PRIOR_WANDER_BUCKETS + self._reference_buckets)
        gain = WANDER_GAIN if self._beyond_buckets else max(WANDER_GAIN, young)
        self._wander += gain * (strayed**2 - self._wander)
        if self._beyond_buckets:
            return
        self._reference_buckets += 1.0
        bound = self._effect_log
        move = min(max(value - self.reference, -bound), bound)
        self.reference += max(self._slowest_gain, 1.0 / self._reference_buckets) * move

    def _warm_up(self, value: float) -> None:
        """Average the first buckets; their spread says how well the average can be known."""
        self._reference_buckets += 1.0
        move = value - self.reference
        self.reference += move / self._reference_buckets
        self._squares += move * (value - self.reference)
        if self.warm:
            variance = self._squares / (WARM_BUCKETS - 1)
            self._wander = max(self._wander, variance * (1.0 / RECENT_BUCKETS + 1.0 / WARM_BUCKETS))

    def forget_change(self) -> None:
        """The stream is back at its reference."""
        self._changed = False

    def adopt(self) -> None:
        """Take the recent mean as the reference from now on."""
        self.reference += self.deviation
        self._reference_buckets = float(WARM_BUCKETS)
        self._beyond_buckets = 0
        self._inputs = []
        self._adwin = self._new_adwin()
        self._changed = False

    def onset_us(self) -> int:
        """Where the history splits best into a mean before and a mean after: when the change began."""
        values = np.array([units for _, units in self._history], dtype=np.float64)
        n = len(values)
        if n < 2:
            return self._history[0][0] if n else 0
        before = np.arange(1, n)
        sums = np.cumsum(values)
        gap = sums[:-1] / before - (sums[-1] - sums[:-1]) / (n - before)
        return self._history[int(np.argmax(before * (n - before) * gap**2)) + 1][0]

    def _feed(self, scaled: float) -> None:
        self._inputs.append(scaled)
        self._adwin.update(scaled)
        if self._adwin.drift_detected:
            self._changed = True
            self._inputs = []
            self._adwin = self._new_adwin()
        elif len(self._inputs) >= HISTORY_BUCKETS:
            self._inputs = self._inputs[HISTORY_BUCKETS // 2 :]
            self._adwin = self._refilled()

    def _new_adwin(self) -> ADWIN:
        return ADWIN(delta=self._settings.adwin_delta, clock=1)

    def _refilled(self) -> ADWIN:
        """ADWIN as it stands after the inputs kept. Its own state cannot be written down, so it is fed again."""
        adwin = self._new_adwin()
        for value in self._inputs:
            adwin.update(value)
        return adwin

    def snapshot(self) -> dict[str, Any]:
        """State as numbers and lists."""
        return {
            "at_us": [int(step) for step in np.diff([at_us for at_us, _ in self._history], prepend=0)],
            "units": [units for _, units in self._history],
            "inputs": list(self._inputs),
            "reference": [self.reference, self._reference_buckets, self._squares],
            "wander": self._wander,
            "changed": [self._changed, self._beyond_buckets],
        }

    @classmethod
    def restore(cls, data: Mapping[str, Any], settings: DetectorSettings) -> Self:
        """The detector of a snapshot."""
        detector = cls(settings)
        times_us = np.cumsum(np.array(data["at_us"], dtype=np.int64)).tolist()
        detector._history.extend(zip(times_us, map(int, data["units"]), strict=True))
        detector._recent.extend(
            units for _, units in islice(detector._history, max(len(times_us) - RECENT_BUCKETS, 0), None)
        )
        detector._recent_sum = sum(detector._recent)
        detector._history_sum = sum(units for _, units in detector._history)
        detector._inputs = [float(value) for value in data["inputs"]]
        detector._adwin = detector._refilled()
        reference, buckets, squares = (float(value) for value in data["reference"])
        detector.reference, detector._reference_buckets, detector._squares = reference, buckets, squares
        detector._wander = float(data["wander"])
        detector._changed, detector._beyond_buckets = bool(data["changed"][0]), int(data["changed"][1])
        return detector


class PeakDetector:
    """Whether one value lies higher above its slow mean than it should once in so many days.

    The excesses above the 98th percentile are taken as exponential, on logarithms: a power law of the values. A peak
    seen again and again becomes usual, for it stays in the history.

    References: [1] Siffer et al., Anomaly Detection in Streams with Extreme Value Theory, KDD 2017.
    """

    def __init__(self, settings: DetectorSettings) -> None:
        self._chance = min(settings.false_alarms_per_day / settings.looks_per_day, 0.01)
        self._history: deque[int] = deque(maxlen=PEAK_HISTORY)
        self._mean: float | None = None

    @property
    def bound(self) -> float | None:
        """Excess above the slow mean that is a peak; None while too little was seen."""
        if len(self._history) < MIN_PEAK_HISTORY:
            return None
        values = np.sort(np.array(self._history)) / PER_UNIT
        top = max(round(len(values) * PEAK_SHARE), 10)
        foot = values[-top - 1]
        return float(foot + np.mean(values[-top:] - foot) * math.log(top / len(values) / self._chance))

    def update(self, value: float) -> bool:
        """Take one log ratio; True if it is a peak."""
        if self._mean is None:
            self._mean = value
        units = round((value - self._mean) * PER_UNIT)
        bound = self.bound
        self._history.append(units)
        self._mean += PEAK_MEAN_GAIN * (value - self._mean)
        return bound is not None and units / PER_UNIT > bound

    def snapshot(self) -> dict[str, Any]:
        """State as numbers and lists."""
        return {"history": list(self._history), "mean": self._mean}

    @classmethod
    def restore(cls, data: Mapping[str, Any], settings: DetectorSettings) -> Self:
        """The detector of a snapshot."""
        detector = cls(settings)
        detector._history.extend(int(units) for units in data["history"])
        detector._mean = None if data["mean"] is None else float(data["mean"])
        return detector


class TailDetector:
    """Whether values keep exceeding their predicted P99 more often than one in a hundred.

    Exceedances come in clumps: a neighbour that is busy for a second lifts fifty steps. So a look of RECENT_BUCKETS
    counts once, as bad when WORSE_SHARE of its values exceed, and the cumulative sum is of bad looks.
    """

    def __init__(self, settings: DetectorSettings) -> None:
        self._limit = settings.tail_height
        self.total = 0.0
        self.onset_us = 0
        self._open = [0.0, 0.0, 0.0]
        self._open_us = 0
        self._run = [0.0, 0.0]
        self._bad = [PRIOR_BAD_SHARE * PRIOR_LOOKS, PRIOR_LOOKS]

    @property
    def share(self) -> float:
        """Share of values beyond their P99 since the sum last left zero."""
        return self._run[0] / self._run[1] if self._run[1] else 0.0

    @property
    def bad_share(self) -> float:
        """Share of looks that are bad while nothing is told."""
        return min(max(self._bad[0] / self._bad[1], 0.25 * PRIOR_BAD_SHARE), 0.5 * CHANGED_BAD_SHARE)

    @property
    def height(self) -> float:
        """The sum in units of its limit: 1 and above is an alarm."""
        return self.total / self._limit

    def update(self, at_us: int, exceeded: int, values: int) -> None:
        """Take one bucket: how many of its values exceeded their predicted P99."""
        if self._open[2] == 0.0:
            self._open_us = at_us
        self._open = [self._open[0] + exceeded, self._open[1] + values, self._open[2] + 1.0]
        if self._open[2] >= RECENT_BUCKETS:
            self._look(self._open[0], self._open[1])
            self._open = [0.0, 0.0, 0.0]

    def _look(self, exceeded: float, values: float) -> None:
        bad = exceeded >= WORSE_SHARE * values
        usual = self.bad_share
        if self.height < 0.5:
            self._bad = [self._bad[0] * KEPT_PER_LOOK + bad, self._bad[1] * KEPT_PER_LOOK + 1.0]
        if self.total <= 0.0:
            self.onset_us = self._open_us
            self._run = [0.0, 0.0]
        self._run = [self._run[0] + exceeded, self._run[1] + values]
        gain = math.log(CHANGED_BAD_SHARE / usual) if bad else math.log((1.0 - CHANGED_BAD_SHARE) / (1.0 - usual))
        self.total = min(max(self.total + gain, 0.0), 2.0 * self._limit)

    def reset(self) -> None:
        """Start anew: something else explains what was seen."""
        self.total = 0.0
        self._open = [0.0, 0.0, 0.0]
        self._run = [0.0, 0.0]

    def snapshot(self) -> dict[str, Any]:
        """State as numbers and lists."""
        return {
            "total": self.total,
            "times_us": [self.onset_us, self._open_us],
            "open": self._open,
            "run": self._run,
            "bad": self._bad,
        }

    @classmethod
    def restore(cls, data: Mapping[str, Any], settings: DetectorSettings) -> Self:
        """The detector of a snapshot."""
        detector = cls(settings)
        detector.total = float(data["total"])
        detector.onset_us, detector._open_us = (int(at_us) for at_us in data["times_us"])
        detector._open = [float(value) for value in data["open"]]
        detector._run = [float(value) for value in data["run"]]
        detector._bad = [float(value) for value in data["bad"]]
        return detector
