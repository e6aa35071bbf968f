"""What a grid of what-ifs says, in words: who falls out of a limit, who is best, and what must not be compared.

Law: points that differ in prompt length, output length or prefill to decode mix are never ranked against each other,
and the words name which of these differs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from schemas.slos import SloTarget
from twin.known.comparison import quantile_name
from twin.known.points import LOADS, Judged, Point

CLOSE_RATIO = 0.02
"""Mean lengths closer than this are the same traffic: grid points that cut long requests differ by a little."""
_WORDS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}


@dataclass(frozen=True, slots=True)
class Ranking:
    """Comparable points that meet every limit, the best first: most output tokens per minute and chip."""

    mix: str
    best_first: tuple[Point, ...]


def rank(points: Sequence[Point]) -> tuple[list[Ranking], str]:
    """One ranking for each mix, and why there are several (empty if there is one)."""
    groups: list[list[Point]] = []
    for point in points:
        home = next((group for group in groups if not _differing(group[0], point)), None)
        if home is None:
            groups.append([point])
        else:
            home.append(point)
    rankings = [Ranking(_mix_text(group[0]), _ordered(group)) for group in groups]
    if len(groups) < 2:
        return rankings, ""
    names = sorted({name for group in groups[1:] for name in _differing(groups[0][0], group[0])})
    seen = "; ".join(
        f"{name} is {', '.join(dict.fromkeys(str(group[0].mix[name]) for group in groups))}" for name in names
    )
    return rankings, (
        f"not ranked against each other: {seen}. Chip-seconds per token of different traffic or P:D mix answer"
        " different questions; compare points of one mix, or fix the mix and vary the rest"
    )


def limit_sentences(points: Sequence[Point], limits: Sequence[SloTarget]) -> list[str]:
    """Per target and load: who falls out and who stays. A target given tightened says who falls out on the way."""
    sentences = []
    ordered = sorted(limits, key=lambda limit: (limit.metric, limit.quantile, -limit.limit_s))
    for _, same in groupby(ordered, key=lambda limit: (limit.metric, limit.quantile)):
        steps = list(same)
        for load in LOADS:
            held: SloTarget | None = None
            for limit in steps:
                verdicts = [(point, _verdict(point, limit, load)) for point in points]
                if all(judged is None for _, judged in verdicts):
                    continue
                sentences.append(_sentence([(p, j) for p, j in verdicts if j is not None], limit, load, held))
                held = limit
    return sentences


def limit_text(limit: SloTarget) -> str:
    """A target in words.

    >>> limit_text(SloTarget(metric="tpot_s", quantile=0.95, limit_s=0.01))
    'TPOT P95 <= 10 ms'
    """
    return f"{_WORDS[limit.metric]} {quantile_name(limit.quantile).upper()} <= {limit.limit_s * 1e3:g} ms"


def _sentence(verdicts: list[tuple[Point, Judged]], limit: SloTarget, load: str, looser: SloTarget | None) -> str:
    if looser is not None:
        before = {point.name for point, _ in verdicts if not _require(point, looser, load).met}
        verdicts = [(point, judged) for point, judged in verdicts if point.name not in before]
        start = f"{load}, {limit_text(looser)} tightened to {limit.limit_s * 1e3:g} ms"
        verb = "also falls out"
    else:
        start, verb = f"{load}, {limit_text(limit)}", "falls out"
    out = [f"{point.name} ({_value(judged)})" for point, judged in verdicts if not judged.met]
    kept = [f"{point.name} ({_value(judged)})" for point, judged in verdicts if judged.met]
    return (
        f"{start[0].upper()}{start[1:]}: {verb}: {'; '.join(out) or 'nothing'}. Stays: {'; '.join(kept) or 'nothing'}."
    )


def _verdict(point: Point, limit: SloTarget, load: str) -> Judged | None:
    return next((judged for judged in point.judged if judged.limit == limit and judged.load == load), None)


def _require(point: Point, limit: SloTarget, load: str) -> Judged:
    found = _verdict(point, limit, load)
    if found is None:
        raise ValueError(f"point {point.name!r} was not judged by {limit_text(limit)} {load}")
    return found


def _value(judged: Judged) -> str:
    return "undefined" if judged.value_s is None else f"{judged.value_s * 1e3:.1f} ms"


def _ordered(group: Sequence[Point]) -> tuple[Point, ...]:
    return tuple(sorted((p for p in group if p.meets_all), key=lambda point: -point.tokens_per_min_per_chip))


def _differing(one: Point, other: Point) -> list[str]:
    names = []
    for name, value in one.mix.items():
        against = other.mix[name]
        if isinstance(value, float) and isinstance(against, float):
            same = abs(value - against) <= CLOSE_RATIO * max(value, against)
        else:
            same = value == against
        if not same:
            names.append(name)
    return names


def _mix_text(point: Point) -> str:
    return ", ".join(f"{name} {value}" for name, value in point.mix.items())
