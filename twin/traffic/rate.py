"""The rate forecast, learned online: several models side by side, weighted per horizon by how they have done.

Counts come in slots of fixed length; time is the slot number. Nothing here draws or sees single requests.
Laws: a forecast is never negative; a slot changes no forecast made before it; restoring a snapshot changes no number.
"""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from twin.metrics import FloatArray
from twin.traffic.forecast import RateForecast
from twin.traffic.models import GatedTrend, Holt, LevelBank, Persistence, RateModel, Seasonal

VERSION = 1
DAY_S = 86_400.0
PRIOR = {"level": 0.45, "trend": 0.45, "holt": 0.04, "persistence": 0.03, "seasonal": 0.03}
"""Weight of each model before it has a score: level and gated trend differ only while the gate is open."""
SCORE_HALF_LIFE_HORIZONS = 20.0
WORST_LOSS = 9.0
SPREAD_PRIOR_WINDOWS = 10.0
MIN_SPREAD, MAX_SPREAD = 0.5, 9.0


class RateForecaster:
    """Mean rate over each of some horizons, with the doubt about its level.

    Parameters
    ----------
    slot_s
        Length of a slot, seconds > 0.
    horizons_s
        Horizons at which models are scored, rising, at least one slot each.

    Notes
    -----
    A loss is a squared error over the variance the level filters gave, at most `WORST_LOSS`, counted 1/slots because
    windows overlap. Weight = prior x exp(-discounted loss / 2), as in aggregating forecasters [1].

    References
    ----------
    [1] Vovk, Aggregating Strategies, COLT 1990.
    """

    def __init__(self, slot_s: float = 5.0, horizons_s: tuple[float, ...] = (30.0, 60.0, 120.0)) -> None:
        if not (math.isfinite(slot_s) and slot_s > 0.0):
            raise ValueError(f"rate.slot_s must be a finite number > 0, got {slot_s}")
        if not horizons_s or horizons_s[0] < slot_s or list(horizons_s) != sorted(set(horizons_s)):
            raise ValueError(f"rate.horizons_s must rise and be at least {slot_s} s, got {horizons_s}")
        self.slot_s = slot_s
        self.horizons_s = horizons_s
        self._slots = [max(round(horizon_s / slot_s), 1) for horizon_s in horizons_s]
        self._level = LevelBank()
        self._models: dict[str, RateModel] = {
            "level": self._level,
            "trend": GatedTrend(self._level),
            "holt": Holt(self._level),
            "persistence": Persistence(max(self._slots)),
            "seasonal": Seasonal(self._level, day_slots=max(round(DAY_S / slot_s), 1)),
        }
        self._losses = np.zeros((len(self._slots), len(self._models)))
        self._spread = np.ones(len(self._slots))
        self._scored = np.zeros(len(self._slots))
        self._pending: deque[tuple[list[list[float]], list[float]]] = deque(maxlen=max(self._slots))
        self._counts: deque[float] = deque(maxlen=max(self._slots))
        self.slots = 0

    def update(self, count: int, slot: int) -> None:
        """Learn the arrivals of one slot: first score what was said of it, then learn it."""
        self._counts.append(float(count))
        self._score()
        for model in self._models.values():
            model.update(float(count), slot)
        self.slots += 1
        self._pending.append(self._ask())

    def _ask(self) -> tuple[list[list[float]], list[float]]:
        """(mean per model, variance of the mean count per slot) for each horizon."""
        means = [[max(model.mean(slots), 0.0) for model in self._models.values()] for slots in self._slots]
        counting = self._level.noise.variance
        return means, [self._level.level_variance(slots) + counting / slots for slots in self._slots]

    def _score(self) -> None:
        for row, slots in enumerate(self._slots):
            if len(self._pending) < slots:
                continue
            means, variances = self._pending[-slots]
            truth = math.fsum(list(self._counts)[-slots:]) / slots
            variance = max(variances[row], 1e-9)
            blend = float(self._weights(row) @ np.array(means[row]))
            loss = np.minimum((np.array(means[row]) - truth) ** 2 / variance, WORST_LOSS)
            keep = 0.5 ** (1.0 / (SCORE_HALF_LIFE_HORIZONS * slots))
            self._losses[row] = keep * self._losses[row] + loss / slots
            weight = self._scored[row] / slots + SPREAD_PRIOR_WINDOWS
            missed = min((blend - truth) ** 2 / variance, WORST_LOSS)
            self._spread[row] += (missed - self._spread[row]) / (weight * slots)
            self._scored[row] = min(self._scored[row] + 1.0, SCORE_HALF_LIFE_HORIZONS * slots)

    def _weights(self, row: int) -> FloatArray:
        losses = self._losses[row]
        raw: FloatArray = np.array(list(PRIOR.values())) * np.exp(-(losses - losses.min()) / 2.0)
        raw /= raw.sum()
        return raw

    def forecast(self) -> RateForecast:
        """Freeze what is expected from the end of the last slot on; no arrivals while nothing was seen."""
        anchors = np.array([0.0, *self.horizons_s])
        if not self.slots:
            return RateForecast(anchors, np.zeros(anchors.size), np.zeros(anchors.size), 1.0)
        means, variances = self._ask()
        counting = self._level.noise.variance
        arrivals, sigma = [0.0], [0.0]
        for row, slots in enumerate(self._slots):
            weights = self._weights(row)
            mean = max(float(weights @ np.array(means[row])), 0.0)
            apart = float(weights @ (np.array(means[row]) - mean) ** 2)
            spread = min(max(self._spread[row], MIN_SPREAD), MAX_SPREAD)
            doubt = max((variances[row] + apart) * spread - counting / slots, 0.0)
            arrivals.append(max(mean * self.horizons_s[row] / self.slot_s, arrivals[-1]))
            sigma.append(math.sqrt(math.log1p(doubt / max(mean, 0.05) ** 2)) if mean > 0.0 else 0.0)
        sigma[0] = sigma[1]
        chosen = list(self._models)[int(np.argmax(self._weights(0)))]
        return RateForecast(anchors, np.array(arrivals), np.array(sigma), self._level.noise.dispersion, chosen)

    def weights(self, horizon_s: float) -> dict[str, float]:
        """Weight of each model at one of the horizons."""
        row = self.horizons_s.index(horizon_s)
        return dict(zip(self._models, self._weights(row).tolist(), strict=True))

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, strings, lists and dicts."""
        return {
            "version": VERSION,
            "slot_s": self.slot_s,
            "horizons_s": list(self.horizons_s),
            "models": {name: model.snapshot() for name, model in self._models.items()},
            "losses": self._losses.tolist(),
            "spread": self._spread.tolist(),
            "scored": self._scored.tolist(),
            "pending": [[means, variances] for means, variances in self._pending],
            "counts": list(self._counts),
            "slots": self.slots,
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> "RateForecaster":
        """The forecaster of a snapshot. Raises ValueError if it is of another version."""
        if state.get("version") != VERSION:
            raise ValueError(f"rate forecaster snapshot has version {state.get('version')}, this code reads {VERSION}")
        made = cls(state["slot_s"], tuple(state["horizons_s"]))
        for name, model in made._models.items():
            model.restore(state["models"][name])
        made._losses = np.array(state["losses"], np.float64)
        made._spread = np.array(state["spread"], np.float64)
        made._scored = np.array(state["scored"], np.float64)
        made._pending.extend((means, variances) for means, variances in state["pending"])
        made._counts.extend(state["counts"])
        made.slots = state["slots"]
        return made
