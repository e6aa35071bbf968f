"""What a forecast may be used for (authority), and what it may be trusted for (credibility). Makes no forecast.

Authority is earned by rounds: a round is a closed window of the shortest horizon, disjoint from the one before, so
that overlapping forecasts of one stretch of time count once. It rises one level at a time on errors under a bound and
falls on errors over a higher one, so an error that trembles between the two moves nothing.
Laws: level S0 and S1 stay advisory; nothing rises while something drifts; a rise takes at least the set rounds since
the last fall.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from schemas.forecasts import Authority as AuthorityLevel
from schemas.forecasts import Credibility, CredibilityLevel, InputLevel
from schemas.scores import Score, ScoreCell

US_PER_S = 1_000_000
LEVELS: tuple[AuthorityLevel, ...] = ("advisory", "guarded", "full")
EXECUTABLE_INPUTS: tuple[InputLevel, ...] = ("S2", "S3")
_JUDGED = (("ttft_s", 0.5), ("ttft_s", 0.95), ("e2e_s", 0.5), ("e2e_s", 0.95))
_MAX_ERROR = 3.0
_MAX_CHANGES = 256
_VERSION = 1


@dataclass(frozen=True, slots=True)
class AuthoritySettings:
    """Bars, each for reaching or keeping (guarded, full). All are averages over rounds with `half_life_rounds`.

    Judged are P50 and P95 of TTFT and E2E. `error`: distance of the observed value from the forecast in half intervals,
    so that noise which the interval states is no error. `coverage_ratio`: share inside. `width_log`: log(high / low);
    an interval may hold and still be too wide to act on. `rise_*` is to be reached, beyond `fall_*` the level ends.
    """

    rise_rounds: tuple[int, int] = (4, 12)
    rise_error: tuple[float, float] = (0.65, 0.5)
    fall_error: tuple[float, float] = (1.1, 0.9)
    rise_coverage_ratio: tuple[float, float] = (0.65, 0.75)
    fall_coverage_ratio: tuple[float, float] = (0.4, 0.5)
    rise_width_log: tuple[float, float] = (2.3, 1.6)
    fall_width_log: tuple[float, float] = (3.0, 2.3)
    half_life_rounds: float = 5.0
    steps: int = 500
    hold_rounds: int = 4

    def __post_init__(self) -> None:
        if not (math.isfinite(self.half_life_rounds) and self.half_life_rounds > 0):
            raise ValueError(f"authority.half_life_rounds must be a finite number > 0, got {self.half_life_rounds}")
        for name in ("error", "width_log"):
            for rise, fall in zip(getattr(self, f"rise_{name}"), getattr(self, f"fall_{name}"), strict=True):
                if not 0.0 < rise < fall:
                    raise ValueError(f"authority needs 0 < rise_{name} < fall_{name}, got {rise} and {fall}")
        for rise, fall in zip(self.rise_coverage_ratio, self.fall_coverage_ratio, strict=True):
            if not 0.0 <= fall < rise <= 1.0:
                raise ValueError(f"authority needs fall_coverage_ratio < rise_coverage_ratio, got {fall} and {rise}")


@dataclass(slots=True)
class _Record:
    """What the rounds so far have shown. Averages are None before the first round."""

    level: int = 0
    rounds: int = 0
    since_change: int = 0
    error: float | None = None
    coverage_ratio: float | None = None
    width_log: float | None = None
    next_round_us: int = 0
    fingerprint: str = ""


class Authority:
    """The state machine of one deployment; starts as `advisory`.

    Parameters
    ----------
    settings
        Bars for rising and falling.
    """

    def __init__(self, settings: AuthoritySettings | None = None) -> None:
        self._settings = settings or AuthoritySettings()
        self._record = _Record()
        self._drifting: set[str] = set()
        self._input_level: InputLevel = "S0"
        self._steps = 0
        self._changes: list[tuple[int, AuthorityLevel]] = []

    @property
    def level(self) -> AuthorityLevel:
        """What may be executed now."""
        return LEVELS[self._record.level]

    @property
    def rounds(self) -> int:
        """Disjoint rounds since the start or the last new fingerprint."""
        return self._record.rounds

    @property
    def changes(self) -> tuple[tuple[int, AuthorityLevel], ...]:
        """The newest changes as (event time in us, new level), oldest first."""
        return tuple(self._changes)

    def on_inputs(self, at_us: int, input_level: InputLevel, steps: int) -> AuthorityLevel:
        """What the forecast is made from now, and the steps learned; a level below S2 ends authority at once."""
        self._input_level, self._steps = input_level, steps
        if input_level not in EXECUTABLE_INPUTS:
            self._move(at_us, 0)
        return self.level

    def on_fingerprint(self, at_us: int, fingerprint: str) -> AuthorityLevel:
        """The engine's identity; a new one (device, driver, image, model, flags) starts authority from nothing."""
        if fingerprint != self._record.fingerprint:
            if self._record.fingerprint:
                self._move(at_us, 0)
                self._record = _Record(next_round_us=self._record.next_round_us)
            self._record.fingerprint = fingerprint
        return self.level

    def on_drift(self, at_us: int, cause: str, active: bool, levels: int = 1) -> AuthorityLevel:
        """A drift alert began or ended; a new one takes `levels` of authority, and holds what is left until it ends."""
        if not active:
            self._drifting.discard(cause)
        elif cause not in self._drifting:
            self._drifting.add(cause)
            self._move(at_us, max(self._record.level - levels, 0))
            self._record.since_change = 0
        return self.level

    def on_score(self, scored: Score) -> AuthorityLevel:
        """One closed window of the shortest horizon, in order. Overlapping and intervened ones do not count."""
        record = self._record
        if scored.intervened or scored.as_of_us < record.next_round_us:
            return self.level
        cells = [cell for cell in scored.cells if (cell.metric, cell.quantile) in _JUDGED]
        if not cells:
            return self.level
        record.next_round_us = scored.as_of_us + round(scored.horizon_s * US_PER_S)
        record.rounds += 1
        record.since_change += 1
        weight = max(1.0 - 0.5 ** (1.0 / self._settings.half_life_rounds), 1.0 / record.rounds)
        record.error = _average(record.error, [_error(cell) for cell in cells], weight)
        record.coverage_ratio = _average(record.coverage_ratio, [float(cell.covered) for cell in cells], weight)
        record.width_log = _average(record.width_log, [_log(cell.high_s, cell.low_s) for cell in cells], weight)
        self._judge(scored.closed_us)
        return self.level

    def _judge(self, at_us: int) -> None:
        record, settings = self._record, self._settings
        bar = record.level - 1
        if bar >= 0 and self._below(bar):
            self._move(at_us, bar)
            return
        bar = record.level
        if bar == len(LEVELS) - 1 or self._drifting or self._input_level not in EXECUTABLE_INPUTS:
            return
        enough = (
            record.rounds >= settings.rise_rounds[bar]
            and record.since_change >= settings.hold_rounds
            and self._steps >= settings.steps
        )
        if enough and self._reaches(bar):
            self._move(at_us, bar + 1)

    def _reaches(self, bar: int) -> bool:
        record, settings = self._record, self._settings
        return (
            (record.error or 0.0) <= settings.rise_error[bar]
            and (record.coverage_ratio or 0.0) >= settings.rise_coverage_ratio[bar]
            and (record.width_log or 0.0) <= settings.rise_width_log[bar]
        )

    def _below(self, bar: int) -> bool:
        record, settings = self._record, self._settings
        return (
            (record.error or 0.0) > settings.fall_error[bar]
            or (record.coverage_ratio or 0.0) < settings.fall_coverage_ratio[bar]
            or (record.width_log or 0.0) > settings.fall_width_log[bar]
        )

    def _move(self, at_us: int, level: int) -> None:
        if level == self._record.level:
            return
        self._record.level = level
        self._record.since_change = 0
        self._changes.append((at_us, LEVELS[level]))
        del self._changes[:-_MAX_CHANGES]

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, strings, lists and dicts; settings are not in it."""
        return {
            "version": _VERSION,
            "record": asdict(self._record),
            "drifting": sorted(self._drifting),
            "input_level": self._input_level,
            "steps": self._steps,
            "changes": [[at_us, level] for at_us, level in self._changes],
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any], settings: AuthoritySettings | None = None) -> Self:
        """The authority of a snapshot. Raises ValueError if it is of another version."""
        if state.get("version") != _VERSION:
            raise ValueError(f"authority snapshot has version {state.get('version')}, this code reads {_VERSION}")
        authority = cls(settings)
        authority._record = _Record(**state["record"])
        authority._drifting = set(state["drifting"])
        authority._input_level, authority._steps = state["input_level"], state["steps"]
        authority._changes = [(at_us, level) for at_us, level in state["changes"]]
        return authority


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a forecast's footing when it is made.

    `unseen_shape_ratio`: share of simulated step time in shapes beyond those learned. `transfer_ratio`: share of the
    latency that is KV transfer. `saturated_ratio`: share of recorded step time with requests waiting. `stale_s`: age of
    the newest input at `as_of`. `drifting`: causes of drift alerts that are open. `skill`: see `SkillLedger.skill`.
    `assumed_limits`: an engine has not told its configuration.
    """

    input_level: InputLevel
    steps: int
    scored_rounds: int = 0
    unseen_shape_ratio: float = 0.0
    transfer_ratio: float = 0.0
    saturated_ratio: float = 0.0
    stale_s: float = 0.0
    drifting: tuple[str, ...] = ()
    skill: float | None = None
    assumed_limits: bool = False


MIN_STEPS = 500
MIN_ROUNDS = 4
UNSEEN_RATIO = 0.1
TRANSFER_RATIO = 0.25
SATURATED_RATIO = 0.8
STALE_S = 5.0


def assess(standing: Standing) -> Credibility:
    """Credibility with its reasons: any grave reason makes it low, any other medium.

    >>> assess(Standing(input_level="S3", steps=9000, scored_rounds=20, skill=0.2)).level
    'high'
    >>> assess(Standing(input_level="S0", steps=0)).reasons
    ('few steps learned (0)', 'input level S0', 'few rounds scored (0)')
    """
    grave, minor = _grave_reasons(standing), _minor_reasons(standing)
    level: CredibilityLevel = "low" if grave else ("medium" if minor else "high")
    return Credibility(level=level, reasons=(*grave, *minor))


def margin_ratio(standing: Standing) -> float:
    """Factor >= 1 by which intervals are widened (on the log scale) for what their calibration has not seen.

    Few steps, a level without steps, costs beyond seen shapes, transfers whose jitter is not simulated, and drift.

    >>> margin_ratio(Standing(input_level="S3", steps=9000))
    1.0
    """
    ratio = 1.0
    if standing.input_level not in EXECUTABLE_INPUTS:
        ratio *= 1.3
    if standing.steps < MIN_STEPS:
        ratio *= 1.0 + 0.5 * (1.0 - standing.steps / MIN_STEPS)
    if standing.drifting:
        ratio *= 1.4
    ratio *= 1.0 + min(standing.unseen_shape_ratio, 0.5)
    return ratio * (1.0 + min(max(standing.transfer_ratio - TRANSFER_RATIO, 0.0), 0.5))


def _grave_reasons(standing: Standing) -> list[str]:
    reasons = []
    if standing.steps < MIN_STEPS:
        reasons.append(f"few steps learned ({standing.steps})")
    if standing.transfer_ratio > TRANSFER_RATIO:
        reasons.append(f"transfer-heavy ({standing.transfer_ratio:.0%} of latency)")
    if standing.stale_s > STALE_S:
        reasons.append(f"stale input ({standing.stale_s:.0f} s old)")
    if standing.unseen_shape_ratio > 3 * UNSEEN_RATIO:
        reasons.append(f"far beyond seen shapes ({standing.unseen_shape_ratio:.0%} of step time)")
    reasons += [f"drifting: {cause}" for cause in standing.drifting]
    return reasons


def _minor_reasons(standing: Standing) -> list[str]:
    reasons = []
    if standing.input_level not in EXECUTABLE_INPUTS:
        reasons.append(f"input level {standing.input_level}")
    if standing.assumed_limits:
        reasons.append("engine configuration not told: limits assumed")
    if standing.scored_rounds < MIN_ROUNDS:
        reasons.append(f"few rounds scored ({standing.scored_rounds})")
    if UNSEEN_RATIO < standing.unseen_shape_ratio <= 3 * UNSEEN_RATIO:
        reasons.append(f"beyond seen shapes ({standing.unseen_shape_ratio:.0%} of step time)")
    if standing.saturated_ratio >= SATURATED_RATIO:
        reasons.append("saturated: small errors grow")
    if standing.skill is not None and standing.skill <= 0.0:
        reasons.append(f"no skill against persistence ({standing.skill:+.0%})")
    return reasons


def _average(old: float | None, values: list[float], weight: float) -> float:
    new = sum(values) / len(values)
    return new if old is None else old + weight * (new - old)


def _error(cell: ScoreCell) -> float:
    """Distance from the forecast in half intervals, at most `_MAX_ERROR`; that where too many never finished."""
    if cell.observed_s is None:
        return 0.0 if cell.covered else _MAX_ERROR
    above = cell.observed_s > cell.forecast_s
    side = _log(cell.high_s, cell.forecast_s) if above else _log(cell.forecast_s, cell.low_s)
    return min(abs(_log(cell.observed_s, cell.forecast_s)) / max(side, 1e-6), _MAX_ERROR)


def _log(above_s: float, below_s: float) -> float:
    return math.log(max(above_s, 1e-6) / max(below_s, 1e-6))
