"""How far a chain carries: A to D, with what is missing to be one grade higher. Knows no figures.

A: measured at kernel, engine and request level, repeated, and all agree with the simulation. B: two levels agree with
the simulation, or all do without repeats. C: one level, or a simulation with fitted costs alone. D: assumption or prior
alone. Laws: a grade above D rests on something measured or fitted; nothing missing means there is no higher grade;
what is taken away never raises the grade.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from schemas.evidence import EvidenceLevel, Grade

Standing = Literal["agrees", "measured", "void", "absent"]
CostOrigin = Literal["fitted", "prior", "none"]
LEVELS: tuple[EvidenceLevel, ...] = get_args(EvidenceLevel)
FIELDS: Mapping[str, str] = {
    "chunk_request": "request id per chunk",
    "chunk_tokens": "token range per chunk",
    "hit_tokens": "hit and miss tokens",
    "kv_times": "KV lookup, load and write durations",
    "window_tokens": "tokens finished in the window",
    "repeats": "repeats",
}
"""What a whole chain tells, by name."""
LEAST_REPEATS = 2
_HOW = {
    "kernel": "a torch-profiler trace of both sides (--base-trace, --candidate-trace)",
    "engine": "engine steps of both sides",
    "request": "requests of both sides with first and last token",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What a chain rests on. `levels` as they stand: agreeing with the simulation, measured only, void, absent.

    `told` are the names of `FIELDS` that are there; `voids` say why levels are void and what would mend them.
    """

    levels: Mapping[EvidenceLevel, Standing]
    simulated: CostOrigin = "none"
    simulation_agrees: bool = False
    repeats: int = 1
    told: frozenset[str] = frozenset()
    voids: Mapping[EvidenceLevel, str] = field(default_factory=dict)
    mended_by: tuple[str, ...] = ()
    needed_to_simulate: tuple[str, ...] = ()

    def count(self, *standings: Standing) -> int:
        """How many levels stand so."""
        return sum(self.levels.get(level, "absent") in standings for level in LEVELS)


@dataclass(frozen=True, slots=True)
class Graded:
    """A grade, why it is that one, and what one grade higher needs."""

    grade: Grade
    reasons: tuple[str, ...]
    missing: tuple[str, ...]


def grade(basis: Basis) -> Graded:
    """The grade of a basis."""
    found = _grade(basis)
    return Graded(found, _reasons(basis, found), _missing(basis, found))


def _grade(basis: Basis) -> Grade:
    agreeing = basis.count("agrees") if basis.simulation_agrees and basis.simulated == "fitted" else 0
    whole = set(FIELDS) <= basis.told
    if agreeing == len(LEVELS) and basis.repeats >= LEAST_REPEATS and whole:
        return "A"
    if agreeing >= 2:
        return "B"
    if basis.count("agrees", "measured") >= 1 or basis.simulated == "fitted":
        return "C"
    return "D"


def _reasons(basis: Basis, found: Grade) -> tuple[str, ...]:
    levels = []
    for level in LEVELS:
        standing = basis.levels.get(level, "absent")
        words = {
            "agrees": "measured, agrees with the simulation",
            "measured": "measured, not confirmed by the simulation",
            "void": f"void: {basis.voids.get(level, 'its figures do not belong together')}",
            "absent": "no measurement",
        }
        levels.append(f"{level} level: {words[standing]}")
    simulated = {
        "fitted": "simulated with fitted costs"
        + (", agrees" if basis.simulation_agrees else ", not confirmed by what was measured"),
        "prior": "simulated with a prior, which no measurement supports",
        "none": "not simulated",
    }[basis.simulated]
    repeats = "no repeat" if basis.repeats < LEAST_REPEATS else f"{basis.repeats} runs of each side"
    meaning = {
        "A": "all three levels agree with the simulation and were repeated",
        "B": "at least two levels agree with the simulation",
        "C": "measured on too few levels, or simulated without confirmation",
        "D": "assumption or prior alone",
    }[found]
    return (meaning, *levels, simulated, repeats)


def _missing(basis: Basis, found: Grade) -> tuple[str, ...]:
    """What one grade higher needs; of A nothing."""
    if found == "A":
        return ()
    needs: list[str] = []
    if found == "D":
        needs.append("a measurement: requests with first and last token under one of these settings")
        needs.append("step times of this model on this hardware, to fit costs to")
        return tuple(needs)
    wanted = len(LEVELS) if found == "B" else 2
    if basis.count("agrees") < wanted:
        needs += [
            f"{level} level: {_HOW[level]}" for level in reversed(LEVELS) if basis.levels.get(level) in (None, "absent")
        ]
    needs += basis.mended_by
    if basis.simulated != "fitted":
        needs += basis.needed_to_simulate or ("a simulation with costs fitted to these facts",)
    elif not basis.simulation_agrees:
        needs += basis.needed_to_simulate or ("a simulation that agrees with what was measured",)
    needs += [text for name, text in FIELDS.items() if name not in basis.told]
    return tuple(dict.fromkeys(needs))
