"""Did a figure really change: ratio of two windows with an interval from blocks of time. Judges no cause.

Requests that wait together are late together, so blocks of time are resampled, never single requests. With paired
windows (one workload, served twice) both sides take the same blocks. The interval is that of the log ratio with
Student's factor for the number of blocks, as few blocks resampled alone tell too narrow an interval.
Laws: equal windows give a ratio of 1; the same data and seed give the same interval; under `LEAST_BLOCKS` blocks there
is none.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from twin.metrics import FloatArray, IntArray

Statistic = Callable[[FloatArray], float]
DRAWS = 400
LEAST_BLOCKS = 3
LEAST_IN_STRETCH = 6
"""Blocks of a stretch, however short it is."""
_STUDENT_975 = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131, 2.12)
"""Student's 97.5 % quantile for 2, 3, ... degrees of freedom; 1.96 and a little beyond these."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """n values of one window (none of them NaN), when each came (seconds from its start), and its span."""

    at_s: FloatArray
    values: FloatArray
    span_s: float

    def blocks(self, cut: "Blocks") -> list[FloatArray]:
        """The values of each block, in order."""
        place = np.clip(np.searchsorted(np.array(cut.edges_s), self.at_s, "right") - 1, 0, len(cut) - 1)
        return [self.values[place == number] for number in range(len(cut))]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of time: k + 1 edges in seconds from the window's start, and the stretch that each belongs to.

    Blocks are resampled within their stretch only, as stretches differ by design and not by chance.
    """

    edges_s: tuple[float, ...]
    stretch: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.stretch)

    @property
    def freedom(self) -> int:
        """Degrees of freedom."""
        return len(self) - len(set(self.stretch))

    @classmethod
    def of(cls, span_s: float, block_s: float, bounds_s: Sequence[float] = ()) -> "Blocks":
        """Blocks of about `block_s` in each stretch between `bounds_s`; with bounds at least `LEAST_IN_STRETCH`.

        >>> Blocks.of(90.0, 30.0).edges_s
        (0.0, 30.0, 60.0, 90.0)
        """
        ends = [0.0, *bounds_s, span_s]
        edges, stretch = [0.0], []
        for number, (low, high) in enumerate(pairwise(ends)):
            count = max(round((high - low) / block_s), LEAST_IN_STRETCH if bounds_s else 1)
            edges += [low + (high - low) * (place + 1) / count for place in range(count)]
            stretch += [number] * count
        return cls(tuple(edges), tuple(stretch))

    def pick(self, generator: np.random.Generator) -> IntArray:
        """Places of as many blocks, drawn with replacement within each stretch."""
        own = np.array(self.stretch)
        picked = np.empty(len(self), np.int64)
        for number in dict.fromkeys(self.stretch):
            places = np.flatnonzero(own == number)
            picked[places] = generator.choice(places, places.size)
        return picked


@dataclass(frozen=True, slots=True)
class Change:
    """Candidate over base minus 1, and its 95 % interval; None where undefined. `sigma` is of one log ratio of blocks.

    `blocks` is how many of the smaller side went in, `block_s` how long one is.
    """

    ratio: float | None
    low: float | None = None
    high: float | None = None
    blocks: int = 0
    block_s: float = 0.0
    sigma: float | None = None

    def beyond(self, floor_ratio: float) -> bool | None:
        """Whether it is a change: the interval leaves out zero and the ratio is over the floor. None without interval.

        >>> Change(-0.3, -0.4, -0.2).beyond(0.15), Change(-0.1, -0.12, -0.08).beyond(0.15), Change(-0.3).beyond(0.15)
        (True, False, None)
        """
        if self.ratio is None or self.low is None or self.high is None:
            return None
        return abs(math.log1p(self.ratio)) >= math.log1p(floor_ratio) and (self.low > 0.0 or self.high < 0.0)


def student_975(freedom: int) -> float:
    """Student's 97.5 % quantile.

    >>> student_975(5), student_975(100)
    (2.571, 1.984)
    """
    place = freedom - 2
    if place < 0:
        return math.inf
    return _STUDENT_975[place] if place < len(_STUDENT_975) else round(1.96 + 2.4 / freedom, 3)


def change(
    base: Sample, candidate: Sample, statistic: Statistic, *, cuts: tuple[Blocks, Blocks], paired: bool, seed: int = 0
) -> Change:
    """The change of a statistic from one window to another; `cuts` are the blocks of each side, equal if paired."""
    point = _log_ratio(statistic(base.values), statistic(candidate.values))
    if point is None:
        return Change(None)
    cut = min(cuts, key=len)
    ratio, block_s = math.expm1(point), cut.edges_s[-1] / len(cut)
    if cut.freedom < LEAST_BLOCKS - 1:
        return Change(ratio, blocks=len(cut), block_s=block_s)
    drawn = _draws([base.blocks(cuts[0]), candidate.blocks(cuts[1])], cuts, statistic, paired, seed)
    if drawn.size < DRAWS // 2:
        return Change(ratio, blocks=len(cut), block_s=block_s)
    error = float(drawn.std()) * math.sqrt(len(cut) / cut.freedom)
    half = error * student_975(cut.freedom)
    low, high = math.expm1(point - half), math.expm1(point + half)
    return Change(ratio, low, high, len(cut), block_s, error * math.sqrt(len(cut)))


def run_length_s(sigma: float, block_s: float, half_width_ratio: float) -> float:
    """How long to run for an interval of half this width, in log ratio, where one block strays by `sigma`.

    >>> run_length_s(0.1, 30.0, 0.05)
    570.0
    """
    target = math.log1p(half_width_ratio)
    blocks = LEAST_BLOCKS
    while blocks < 10_000 and student_975(blocks - 1) * sigma / math.sqrt(blocks) > target:
        blocks += 1
    return blocks * block_s


def _draws(
    sides: list[list[FloatArray]], cuts: tuple[Blocks, Blocks], statistic: Statistic, paired: bool, seed: int
) -> FloatArray:
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(DRAWS):
        first = cuts[0].pick(generator)
        picks = [first, first if paired else cuts[1].pick(generator)]
        values = [np.concatenate([side[i] for i in pick]) for side, pick in zip(sides, picks, strict=True)]
        ratio = _log_ratio(statistic(values[0]), statistic(values[1]))
        if ratio is not None:
            found.append(ratio)
    return np.array(found)


def _log_ratio(base: float, candidate: float) -> float | None:
    usable = all(math.isfinite(value) and value > 0.0 for value in (base, candidate))
    return math.log(candidate / base) if usable else None
