"""A likely sequence of engine steps behind the token times of finished requests. Learns nothing, simulates nothing.

Step counts per gap come from `step_counts`; here they become whole steps with a start, an end and a shape: decodes are
who was between first and last token, prefills are laid so that each prompt's last chunk ends with its first token,
first come first served within the token budget. The time of a stretch is shared among its steps as the present costs
say. Laws: steps do not overlap and lie within the stretch; every prompt token is computed once; the seconds of a busy
stretch are those that passed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from twin.ends.step_counts import Gaps, gaps_between, settled_counts
from twin.metrics import BoolArray, FloatArray, IntArray

Predict = Callable[[FloatArray], FloatArray]
"""Shapes (n, 5) as in `twin.cost.block.FEATURES` to seconds (n,)."""
LEAST_GAP_STEPS = 0.25
SHARED_STEPS = 4
"""Steps that share one factor on the predicted time: what jitter does to one step, it does not do to four."""
EARLY_STEPS = 0.3
MAX_STEPS = 50_000
"""Most steps laid out at a time; a longer window is gone on with later."""
_TYPICAL = np.array([[0.0, 0.0, 0.0, 4.0, 1200.0]])


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Requests of one engine with tokens after 0 s, in order of first token; arrays of n, seconds from the start.

    `started_s` is when its first step began, NaN where unknown, and `ready_s` when it could have. `computed_tokens` of
    the `isl_tokens` were not in the prefix cache. Who has `entered` had its first token, and `counted_steps` steps
    since, before 0. `exact`: it was never preempted.
    """

    arrived_s: FloatArray
    ready_s: FloatArray
    started_s: FloatArray
    first_s: FloatArray
    last_s: FloatArray
    isl_tokens: IntArray
    computed_tokens: IntArray
    osl_tokens: IntArray
    entered: BoolArray
    counted_steps: IntArray
    exact: BoolArray


@dataclass(frozen=True, slots=True, eq=False)
class LikelySteps:
    """K steps in order: start and end (s), shape (K, 5), the time each took as shared out (s), and how many requests
    had arrived before it and were not scheduled in it (K,).

    `first_token` (n,) is each request's step of its first token, `first_step` (n,) the first one of its prefill; both
    are -1 for who had entered before. `shares` (m, 3): request, step and tokens of every prefill chunk.
    """

    start_s: FloatArray
    end_s: FloatArray
    shapes: FloatArray
    duration_s: FloatArray
    waiting: IntArray
    first_step: IntArray
    first_token: IntArray
    shares: IntArray

    def prefilled_tokens(self, upto: int) -> IntArray:
        """Prompt tokens of each request (n,) that the first `upto` steps have computed."""
        part = self.shares[self.shares[:, 1] < upto]
        return np.bincount(part[:, 0], part[:, 2], len(self.first_token)).astype(np.int64)


def likely_steps(window: Window, predict: Predict, budget_tokens: int) -> LikelySteps | None:
    """The first steps of a window; None where there are none. `budget_tokens` is the engine's token budget per step."""
    tick_s = float(predict(_TYPICAL)[0])
    gaps = gaps_between(window.ready_s, window.first_s, window.last_s, window.entered, LEAST_GAP_STEPS * tick_s)
    if not gaps.count:
        return None
    needed = window.osl_tokens - 1 - window.counted_steps
    context = gaps.spread(gaps.enter, gaps.leave, window.isl_tokens + (window.osl_tokens + window.counted_steps) / 2.0)
    guess = _guess(window, gaps, context, predict, tick_s)
    laid = _whole_steps(window, gaps, settled_counts(gaps, guess, needed, window.exact), budget_tokens)
    if not laid.count:
        return None
    laid = laid.retimed(predict(_filled(window, laid, context, budget_tokens, tick_s).shapes))
    filled = _filled(window, laid, context, budget_tokens, tick_s)
    return LikelySteps(
        start_s=laid.start_s,
        end_s=laid.end_s,
        shapes=filled.shapes,
        duration_s=_shared_out(laid, predict(filled.shapes)),
        waiting=_waiting(laid, window, filled, tick_s),
        first_step=np.where(window.entered, -1, filled.first),
        first_token=np.where(window.entered, -1, filled.last),
        shares=filled.shares,
    )


def _guess(window: Window, gaps: Gaps, context: FloatArray, predict: Predict, tick_s: float) -> FloatArray:
    """Steps per gap if the present costs were right: time left by prefills over the time of a decode step."""
    n = len(window.first_s)
    tokens = window.computed_tokens.astype(np.float64)
    decoding = np.full(n, _TYPICAL[0, 3])
    shapes = np.stack((np.ones(n), tokens, tokens * (tokens + 1) / 2, decoding, decoding * 300.0), axis=1)
    prefill_s = np.maximum(predict(shapes) - tick_s, 0.0)
    begin_s = np.maximum(window.ready_s, window.first_s - prefill_s - tick_s)
    begin_s = np.where(np.isnan(window.started_s), begin_s, window.started_s)
    taken_s = np.zeros(gaps.count)
    for i in np.flatnonzero(~window.entered).tolist():
        end = int(gaps.enter[i])
        start = min(max(int(np.searchsorted(gaps.bounds_s, begin_s[i], side="right")) - 1, 0), max(end - 1, 0))
        edges = np.clip(gaps.bounds_s[start : end + 1], begin_s[i], None)
        span_s = edges[-1] - edges[0]
        if span_s > 0.0:
            taken_s[start:end] += prefill_s[i] * np.diff(edges) / span_s
    zeros = np.zeros(gaps.count)
    shapes = np.stack((zeros, zeros, zeros, np.maximum(gaps.decoding, 1.0), np.maximum(context, 1.0)), axis=1)
    decode_s = predict(shapes)
    left_s = np.maximum(gaps.length_s - taken_s, 0.02 * gaps.length_s)
    return np.where(gaps.decoding > 0, left_s / decode_s, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Laid:
    """Whole steps in order, and the stretch (consecutive steps between two token times) that each belongs to."""

    start_s: FloatArray
    end_s: FloatArray
    gap: IntArray
    decoding: FloatArray

    @property
    def count(self) -> int:
        return len(self.start_s)

    def retimed(self, seconds: FloatArray) -> "_Laid":
        """The steps of each gap share its time in proportion to `seconds` (K,)."""
        first = np.flatnonzero(np.diff(self.gap, prepend=-1))
        sizes = np.diff(np.append(first, self.count))
        begin = np.repeat(self.start_s[first], sizes)
        length = np.repeat(self.end_s[first + sizes - 1] - self.start_s[first], sizes)
        total = np.cumsum(seconds)
        before = np.repeat(total[first] - seconds[first], sizes)
        whole = np.repeat(np.add.reduceat(seconds, first), sizes)
        return _Laid(
            begin + (total - seconds - before) / whole * length,
            begin + (total - before) / whole * length,
            self.gap,
            self.decoding,
        )


def _whole_steps(window: Window, gaps: Gaps, counts: FloatArray, budget_tokens: int) -> _Laid:
    """Round the running count, so that errors do not add up; gaps where nobody decodes hold prefills alone."""
    whole = np.diff(np.rint(np.concatenate(([0.0], np.cumsum(counts))))).astype(np.int64)
    ending = np.zeros(gaps.count + 1)
    np.add.at(ending, gaps.enter, np.where(window.entered, 0, window.computed_tokens))
    alone = gaps.decoding == 0
    whole[alone] = np.ceil(ending[1:] / budget_tokens)[alone]
    begin_s = gaps.bounds_s[:-1].copy()
    for i in range(1, gaps.count):
        # A gap without a step of its own is part of the next: its two tokens came out of one step.
        if whole[i - 1] == 0 and not alone[i - 1] and not alone[i]:
            begin_s[i] = begin_s[i - 1]
    used = np.flatnonzero(whole > 0)
    sizes = whole[used]
    sizes = np.minimum(sizes, np.maximum(MAX_STEPS - (np.cumsum(sizes) - sizes), 0))
    gap = np.repeat(used, sizes)
    place = np.arange(gap.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    length = (gaps.bounds_s[1:] - begin_s)[gap] / whole[gap]
    start_s = begin_s[gap] + place * length
    return _Laid(start_s, start_s + length, gap, gaps.decoding[gap])


@dataclass(frozen=True, slots=True, eq=False)
class _Filled:
    """Shapes (K, 5), each request's first and last step of its prefill (n,; K is beyond), and its chunks (m, 3)."""

    shapes: FloatArray
    first: IntArray
    last: IntArray
    shares: IntArray


def _filled(window: Window, laid: _Laid, context: FloatArray, budget_tokens: int, tick_s: float) -> _Filled:
    """Prompts laid into the steps before their first tokens, as the budget allows."""
    shapes = np.zeros((laid.count, 5))
    shapes[:, 3] = laid.decoding
    shapes[:, 4] = np.where(laid.decoding > 0, context[laid.gap], 0.0)
    room = np.maximum(budget_tokens - laid.decoding, 1.0).astype(np.int64)
    last = np.searchsorted((laid.end_s[1:] + laid.end_s[:-1]) / 2.0, window.first_s)
    last[window.first_s > laid.end_s[-1] + tick_s] = laid.count
    known = ~np.isnan(window.started_s)
    middle = (laid.start_s[1:] + laid.start_s[:-1]) / 2.0
    told = np.searchsorted(middle, np.where(known, window.started_s, 0.0))
    first = np.minimum(np.where(known, told, _next_steps(laid, window.ready_s, tick_s)), last)
    shares: list[tuple[int, int, int]] = []
    for i in np.flatnonzero(~window.entered & (last < laid.count)).tolist():
        tokens = int(window.computed_tokens[i])
        if not known[i]:
            first[i] = _latest_start(room, shapes[:, 1], int(first[i]), int(last[i]), tokens)
        shares += [(i, *share) for share in _lay(shapes, room, int(first[i]), int(last[i]), tokens)]
    return _Filled(shapes, first, last, np.array(shares, np.int64).reshape(-1, 3))


def _next_steps(laid: _Laid, times_s: FloatArray, tick_s: float) -> IntArray:
    """The first step to start after each time, give or take."""
    return np.searchsorted(laid.start_s, times_s - EARLY_STEPS * tick_s)


def _waiting(laid: _Laid, window: Window, filled: _Filled, tick_s: float) -> IntArray:
    new = ~window.entered
    since = np.minimum(_next_steps(laid, window.ready_s, tick_s)[new], filled.first[new])
    change = np.bincount(since, minlength=laid.count + 1) - np.bincount(filled.first[new], minlength=laid.count + 1)
    return np.cumsum(change)[: laid.count]


def _latest_start(room: IntArray, prefill_tokens: FloatArray, first: int, end: int, tokens: int) -> int:
    """The last step from which on the budget suffices; one earlier if prefills before it left room there."""
    step = end
    while step > first and tokens > room[step]:
        tokens -= max(int(room[step]), 0)
        step -= 1
    return step - 1 if step > first and room[step - 1] > 0 and prefill_tokens[step - 1] > 0 else step


def _lay(shapes: FloatArray, room: IntArray, first: int, end: int, tokens: int) -> Iterator[tuple[int, int]]:
    """Compute a prompt in the steps first .. end, in place; what does not fit goes into the last. Yields step and
    tokens of each chunk."""
    before = 0
    for step in range(first, end + 1):
        share = tokens if step == end else min(tokens, max(int(room[step]), 0))
        if share <= 0:
            continue
        yield step, share
        shapes[step, 0] += 1
        shapes[step, 1] += share
        shapes[step, 2] += share * before + share * (share + 1) / 2
        room[step] -= share
        before += share
        tokens -= share


def _shared_out(laid: _Laid, predicted_s: FloatArray) -> FloatArray:
    """Time per step (K,): predicted, times a factor that fits the sum of at least `SHARED_STEPS` consecutive ones."""
    out = np.empty(laid.count)
    begin = 0
    for step in range(laid.count):
        following = step + 1
        broken = following == laid.count or laid.start_s[following] > laid.end_s[step] + 1e-6
        full = following - begin >= SHARED_STEPS and (broken or laid.gap[following] != laid.gap[step])
        if broken or full:
            part = slice(begin, following)
            passed_s = laid.end_s[step] - laid.start_s[begin]
            out[part] = predicted_s[part] * (passed_s / predicted_s[part].sum())
            begin = following
    return out
