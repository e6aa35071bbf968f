"""Guesses simulated: what each does to latencies and ceiling, whether that is what was measured, and how it goes on.

Laws: hypotheses come ranked by their simulated effect; an effect agrees only with something measured that changed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from schemas.evidence import EvidenceLevel, Hypothesis, SimulatedEffect, Verdict
from schemas.slos import SloTarget
from twin.cost.taxonomy import SpanClass
from twin.evidence.hypotheses import PREFIX_SETTING, Guess, Turn
from twin.evidence.measure import Measured
from twin.evidence.resample import Change, student_975
from twin.evidence.twin_runs import CEILING, PREFILL, STEP, Figures, Twin, ratios
from twin.known.variants import CONFIG_FIELDS, plain_value
from twin.known.verdict import limit_text
from twin.metrics import FloatArray

TOGETHER = "together"
HIT_RATIOS = (0.0, 0.5, 0.9)
RATE_FACTORS = (0.8, 1.2)
COST_FACTORS = (0.8, 1.2)
LINK_FACTORS = (0.5, 2.0)
COPY_CODES = ("kv_link", f"class:{SpanClass.COPY}")
GRID_METRICS = ("TTFT P50", "TTFT P95", "TPOT P95", CEILING)
_FELT = ("TTFT P50", "TTFT P95", "TPOT P50", "TPOT P95", "E2E P50", "E2E P95")
_ENGINE = (PREFILL, STEP)
_METRICS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}


@dataclass(frozen=True, slots=True)
class Simulated:
    """Ranked hypotheses, how far the twin is from the base itself, and the levels that agree with it.

    `reproduces` says whether the twin's base is the measured one within the noise floor: else nothing agrees.
    """

    hypotheses: tuple[Hypothesis, ...]
    agreeing: tuple[EvidenceLevel, ...]
    reproduces: bool
    base_error_ratio: float | None
    notes: tuple[str, ...]


def simulate(twin: Twin, guesses: Sequence[Guess], measured: Measured, limits: Sequence[SloTarget]) -> Simulated:
    """Every guess on the base, all of them together where there are several, and a grid around each."""
    before = twin.figures(Turn())
    error = _base_error(before, measured)
    reproduces = error is not None and abs(math.log1p(error)) <= math.log1p(measured.floor_ratio)
    found: list[Hypothesis] = []
    notes: list[str] = []
    for guess in guesses:
        try:
            after = twin.figures(guess.turn)
            effects = (*_effects(guess, before, after, measured, alone=len(guesses) == 1), *_grid(twin, guess, limits))
        except ValueError as reason:
            notes.append(f"{guess.code} was not simulated: {reason}")
            found.append(_hypothesis(guess, (), None, "not simulated"))
            continue
        found.append(_hypothesis(guess, effects, _weight(before, after), _overall(effects)))
    found.sort(key=lambda each: -(each.weight_ratio or 0.0))
    if len(guesses) > 1 and not notes:
        whole = _all(guesses)
        after = twin.figures(whole.turn)
        effects = tuple(_effects(whole, before, after, measured, alone=True))
        found.append(_hypothesis(whole, effects, _weight(before, after), _overall(effects)))
    judged = next((each for each in found if each.code == TOGETHER), found[0] if found else None)
    agreeing = _agreeing(judged.effects, measured) if judged is not None and reproduces else ()
    return Simulated(tuple(found), agreeing, reproduces, error, tuple(notes))


def not_simulated(guesses: Sequence[Guess], why: str) -> Simulated:
    """Guesses as they are, in the order of the rules."""
    found = tuple(_hypothesis(guess, (), None, "not simulated") for guess in guesses)
    return Simulated(found, (), False, None, (why,))


def verdict(simulated: float | None, observed: Change, floor_ratio: float) -> Verdict:
    """Whether a simulated ratio lies in the measured interval widened by what machines stray by.

    >>> verdict(-0.35, Change(-0.33, -0.40, -0.25), 0.15), verdict(0.5, Change(-0.33, -0.40, -0.25), 0.15)
    ('agrees', 'disagrees')
    """
    if simulated is None or observed.low is None or observed.high is None or observed.low <= -1.0:
        return "not measured"
    floor = math.log1p(floor_ratio)
    inside = math.log1p(observed.low) - floor <= math.log1p(simulated) <= math.log1p(observed.high) + floor
    return "agrees" if inside else "disagrees"


def _all(guesses: Sequence[Guess]) -> Guess:
    turn = Turn()
    for guess in guesses:
        turn = turn.joined(guess.turn)
    return Guess(
        code=TOGETHER,
        statement=f"all differences together ({', '.join(guess.code for guess in guesses)})",
        span_classes=tuple(dict.fromkeys(name for guess in guesses for name in guess.span_classes)),
        parameter=", ".join(guess.parameter for guess in guesses),
        refuted_by="the candidate measured again: if its figures are not the simulated ones, something else differs",
        turn=turn,
    )


def _hypothesis(
    guess: Guess, effects: tuple[SimulatedEffect, ...], weight: float | None, overall: Verdict
) -> Hypothesis:
    return Hypothesis(
        code=guess.code,
        statement=guess.statement,
        span_classes=tuple(str(name) for name in guess.span_classes),
        parameter=guess.parameter,
        refuted_by=guess.refuted_by,
        weight_ratio=weight,
        verdict=overall,
        effects=effects,
    )


def _effects(
    guess: Guess, before: Figures, after: Figures, measured: Measured, *, alone: bool
) -> list[SimulatedEffect]:
    """Simulated changes beside measured ones; only a guess that stands for everything is judged."""
    found = []
    for (name, group), values in ratios(before, after).items():
        observed = measured.changes.get((name, group), Change(None))
        mean, low, high = _interval(values)
        found.append(
            SimulatedEffect(
                setting=f"{guess.parameter} as in the candidate",
                metric=name,
                group=group,
                change_ratio=mean,
                low_ratio=low,
                high_ratio=high,
                observed_ratio=observed.ratio,
                observed_low_ratio=observed.low,
                observed_high_ratio=observed.high,
                verdict=verdict(mean, observed, measured.floor_ratio) if alone else "not measured",
            )
        )
    return found


def _interval(values: FloatArray) -> tuple[float | None, float | None, float | None]:
    """Mean over draws, and where 95 % of single runs lie; None where undefined or there is one draw."""
    known = values[np.isfinite(values)]
    if not known.size or known.size < values.size:
        return None, None, None
    mean = float(known.mean())
    if known.size < 3:
        return mean, None, None
    half = student_975(known.size - 1) * float(known.std(ddof=1))
    return mean, mean - half, mean + half


def _weight(before: Figures, after: Figures) -> float | None:
    """The largest change of a figure that users feel."""
    felt = [
        abs(mean)
        for (name, _), values in ratios(before, after).items()
        if name in _FELT and (mean := _interval(values)[0]) is not None
    ]
    return max(felt, default=None)


def _overall(effects: Sequence[SimulatedEffect]) -> Verdict:
    """Disagrees if anything felt does; agrees if something felt does and nothing disagrees."""
    seen = {effect.verdict for effect in effects if effect.metric in (*_FELT, *_ENGINE)}
    if "disagrees" in seen:
        return "disagrees"
    return "agrees" if "agrees" in seen else "not measured"


def _agreeing(effects: Sequence[SimulatedEffect], measured: Measured) -> tuple[EvidenceLevel, ...]:
    """Levels where something changed and everything that changed is as simulated."""
    found: list[EvidenceLevel] = []
    levels: tuple[tuple[EvidenceLevel, tuple[str, ...]], ...] = (("request", _FELT), ("engine", _ENGINE))
    changed = {(fact.name, fact.group) for fact in measured.facts if fact.changed}
    for level, names in levels:
        verdicts = [
            effect.verdict
            for effect in effects
            if effect.metric in names and effect.observed_ratio is not None and (effect.metric, effect.group) in changed
        ]
        if verdicts and all(each == "agrees" for each in verdicts):
            found.append(level)
    return tuple(found)


def _base_error(before: Figures, measured: Measured) -> float | None:
    """The twin's base against the measured one: the middle error of the medians."""
    errors = []
    for name in ("TTFT P50", "TPOT P50", "E2E P50"):
        fact = measured.fact(name)
        if fact is not None and fact.base:
            errors.append(float(before[name, ""].mean()) * 1e3 / fact.base - 1.0)
    known = sorted(error for error in errors if math.isfinite(error))
    return known[len(known) // 2] if known else None


def _grid(twin: Twin, guess: Guess, limits: Sequence[SloTarget]) -> tuple[SimulatedEffect, ...]:
    """The parameter at other values, against its value at the base; one run each."""
    found: list[SimulatedEffect] = []
    origin: Mapping[str, Any] = {PREFIX_SETTING: False} if guess.code == "prefix_reuse" else {}
    before = twin.figures(Turn(), origin, draws=1)
    for turn, settings in _cells(twin, guess):
        try:
            after = twin.figures(turn, settings, draws=1)
        except ValueError:
            continue  # a value that this engine cannot have
        told = settings or _told(turn)
        changes = ratios(before, after)
        out = _falls_out(before, after, limits)
        for metric in GRID_METRICS:
            mean, _, _ = _interval(changes[metric, ""])
            found.append(
                SimulatedEffect(
                    setting=", ".join(f"{name}={plain_value(value)}" for name, value in told.items()),
                    metric=metric,
                    change_ratio=mean,
                    falls_out=out if metric == GRID_METRICS[0] else (),
                )
            )
    return tuple(found)


def _cells(twin: Twin, guess: Guess) -> list[tuple[Turn, dict[str, Any]]]:
    """Turns and settings to try around the guess."""
    if guess.code == "prefix_reuse":
        return [(Turn(), {"prefix_hit_ratio": ratio}) for ratio in HIT_RATIOS]
    if guess.code == "load":
        return [(Turn(), {"rate_factor": factor}) for factor in RATE_FACTORS]
    if guess.code in COPY_CODES and twin.link is not None:
        return [(Turn(link_factor=factor), {}) for factor in LINK_FACTORS]
    if guess.turn.role_factors:
        return [(Turn(role_factors=dict.fromkeys(guess.turn.role_factors, factor)), {}) for factor in COST_FACTORS]
    name = guess.parameter
    value = guess.turn.settings.get(name)
    if name not in CONFIG_FIELDS or not isinstance(value, int) or isinstance(value, bool):
        return []
    start = getattr(twin.base.configs[0], name)
    values = {max(value // 2, 1), value, value * 2} - {start}
    return [(Turn(), {name: each}) for each in sorted(values)]


def _told(turn: Turn) -> dict[str, Any]:
    """A turn of costs, in words."""
    if turn.role_factors:
        return {"step cost factor": next(iter(turn.role_factors.values()))}
    return {"KV transfer time factor": turn.link_factor}


def _falls_out(before: Figures, after: Figures, limits: Sequence[SloTarget]) -> tuple[str, ...]:
    """Limits that are met before and broken after."""
    found = []
    for limit in limits:
        key = (f"{_METRICS[limit.metric]} P{limit.quantile * 100:g}", "")
        if key in before and before[key].mean() <= limit.limit_s < after[key].mean():
            found.append(limit_text(limit))
    return tuple(found)
