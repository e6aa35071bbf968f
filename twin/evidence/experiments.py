"""The next experiment: a matrix of conditions, pruned to the cells that would move the grade. Plans, runs nothing.

Factors: prefix cache, hit ratio, chunk size, prefill alone, concurrent or mixed with decode, instrumentation, repeats.
Laws: every cell that stays says what it closes; cells that are measured already stay only to be repeated or
instrumented; a chain of grade A has none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from schemas.evidence import EvidenceLevel, Experiment
from twin.evidence.grade import FIELDS, LEAST_REPEATS, Basis, Graded
from twin.evidence.resample import run_length_s

CACHES = ("off", "on")
HIT_RATIOS = ("0 %", "50 %", "90 %")
CHUNKS = ("small", "default", "large")
PREFILLS = ("single prefill", "concurrent prefill", "mixed with decode")
NEAR_RATIO = 0.2
"""A measured hit ratio this close to a cell's stands for it."""
ASSUMED_SIGMA = 0.15
"""Of one block's log ratio where nothing measured it: the noise floor of two runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """What was measured: cache states, hit ratios with the cache on, kinds of prefill, and the sigma of a block.

    `about_prefix` says whether the chain is about the prefix cache; `sigma` and `block_s` are None where not measured.
    """

    about_prefix: bool
    caches: frozenset[str] = frozenset()
    hit_ratios: tuple[float, ...] = ()
    prefills: frozenset[str] = frozenset()
    effect_ratio: float | None = None
    sigma: float | None = None
    block_s: float = 30.0


def plan(basis: Basis, graded: Graded, covered: Covered) -> tuple[tuple[Experiment, ...], int]:
    """Cells to run, and how many the whole matrix has."""
    cells = list(product(CACHES, HIT_RATIOS, CHUNKS, PREFILLS))
    if graded.grade == "A":
        return (), len(cells)
    tools = _instrumentation(basis)
    found = []
    for cache, hit, chunk, prefill in cells:
        why = _why(cache, hit, chunk, prefill, covered, tools, basis)
        if why:
            run_s, told = _run_s(covered)
            found.append(
                Experiment(
                    prefix_cache=cache if covered.about_prefix else "as it is",
                    hit_ratio=hit if covered.about_prefix else "as it is",
                    chunk=chunk,
                    prefill=prefill,
                    instrumentation=tools,
                    repeats=LEAST_REPEATS,
                    why=why,
                    run_s=run_s,
                    run_basis=told,
                )
            )
    return tuple(found), len(cells)


def _why(cache: str, hit: str, chunk: str, prefill: str, covered: Covered, tools: Sequence[str], basis: Basis) -> str:
    """What a cell closes; empty for one that would move nothing."""
    usual = chunk == "default" and prefill == _usual_prefill(covered)
    if not covered.about_prefix:
        control = (cache, hit) == ("off", "0 %")
        return "base and candidate once more, instrumented" if usual and control else ""
    ratio = float(hit.split()[0]) / 100.0
    if cache == "off" and ratio > 0.0:
        return ""  # without the cache the hit ratio changes nothing
    if usual:
        measured = cache in covered.caches and (
            cache == "off" or any(abs(ratio - seen) <= NEAR_RATIO for seen in covered.hit_ratios)
        )
        if not measured:
            return f"hit ratio {hit} with the cache {cache} is not measured"
        closes = [*(["repeats"] if basis.repeats < LEAST_REPEATS else []), *tools]
        return f"measured without {', '.join(closes)}" if closes else ""
    if cache == "on" and ratio == 0.5 and prefill == _usual_prefill(covered) and "chunk_tokens" not in basis.told:
        return f"chunk level: does a {chunk} chunk keep the effect"
    if ratio == 0.5 and chunk == "default" and prefill not in covered.prefills:
        return f"does the effect reach users: {prefill}"
    return ""


def _usual_prefill(covered: Covered) -> str:
    return next((kind for kind in PREFILLS if kind in covered.prefills), PREFILLS[2])


def _instrumentation(basis: Basis) -> tuple[str, ...]:
    """What to record besides, by what is not told yet."""
    tools: list[str] = []
    level: EvidenceLevel = "kernel"
    if basis.levels.get(level, "absent") != "agrees":
        tools.append("kernel trace of both sides")
    tools += [text for name, text in FIELDS.items() if name not in basis.told and name != "repeats"]
    return tuple(tools)


def _run_s(covered: Covered) -> tuple[float, str]:
    """Long enough that the interval is half as wide as the effect."""
    effect = max(min(abs(covered.effect_ratio or ASSUMED_SIGMA), 0.5), 0.05)
    sigma = covered.sigma if covered.sigma is not None else ASSUMED_SIGMA
    told = "measured" if covered.sigma is not None else "assumed"
    seconds = run_length_s(sigma, covered.block_s, effect / 2.0)
    basis = f"a block of {covered.block_s:.3g} s strays by {sigma * 100:.0f} % ({told})"
    return seconds, f"for an interval of +-{effect / 2.0 * 100:.0f} %; {basis}"
