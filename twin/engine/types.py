"""What an engine simulation takes and gives: workload, starting state, noise, result. Simulates nothing.

Time is int64 picoseconds from the window's start; `UNDEFINED_PS` stands for a time that never came.
Law: what these constructors accept, every engine can run to its end; what they refuse names the field.

The entry points that use these types are in `twin.engine.run`::

    simulate(config, cost, workload, state=None, noise=None, *, grid=None, until_ps=None, engine="auto")
        -> EngineResult
    simulate_many(jobs: Sequence[Job], *, engine="auto") -> list[EngineResult]   # one nogil call for all jobs
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from schemas.engines import EngineConfig
from twin.cost.frozen import PS_PER_S, StepCost

Int64Array = NDArray[np.int64]

LATEST_PS = 2**62
"""No arrival, deadline or step may lie beyond this (53 days), or as long before the window."""
UNDEFINED_PS = -LATEST_PS
MAX_TOKENS = 100_000_000
NOISE_ONE = 1 << 16
"""The fixed-point noise multiplier that changes nothing."""
MAX_NOISE = 4 * NOISE_ONE
STEPS_PER_EPOCH = 64

EngineName = Literal["kernel", "simpy", "plain"]
EngineChoice = Literal["auto", "kernel", "simpy", "plain"]


class Status(IntEnum):
    """How a request ended. `UNFINISHED` only where the run was told to stop before its end."""

    FINISHED = 0
    REJECTED = 1
    TIMED_OUT = 2
    UNFINISHED = 3


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Requests in order of arrival, as arrays of equal length (int64). Build it with `Workload.build`.

    `priority`: lower is served first (only under the priority policy). `timeout_ps`: 0 means the client waits for ever.
    The prompt's block hashes of request i are `hash_values[hash_offsets[i]:hash_offsets[i + 1]]`, one for each full
    block of `hash_block_tokens` tokens, each standing for the whole prefix up to its end.
    """

    arrival_ps: Int64Array
    isl_tokens: Int64Array
    osl_tokens: Int64Array
    priority: Int64Array
    timeout_ps: Int64Array
    hash_offsets: Int64Array
    hash_values: Int64Array
    hash_block_tokens: int = 0

    @classmethod
    def build(
        cls,
        *,
        arrival_ps: ArrayLike,
        isl_tokens: ArrayLike,
        osl_tokens: ArrayLike,
        priority: ArrayLike | None = None,
        timeout_ps: ArrayLike | None = None,
        block_hashes: Sequence[Sequence[int]] | None = None,
        hash_block_tokens: int = 0,
    ) -> "Workload":
        """Check and convert. Raises ValueError naming the field and the first bad index.

        >>> Workload.build(arrival_ps=[0, 10], isl_tokens=[5, 7], osl_tokens=[1, 2]).requests
        2
        >>> Workload.build(arrival_ps=[0.0, float("nan")], isl_tokens=[5, 7], osl_tokens=[1, 2])
        Traceback (most recent call last):
        ValueError: workload.arrival_ps[1] must be a whole number in 0 .. 4611686018427387903, got nan
        """
        arrival = _whole("workload.arrival_ps", arrival_ps, 0, LATEST_PS - 1)
        n = len(arrival)
        falls = np.flatnonzero(np.diff(arrival) < 0)
        if len(falls):
            i = int(falls[0]) + 1
            raise ValueError(f"workload.arrival_ps[{i}] = {arrival[i]} is before its predecessor; sort by arrival")
        offsets, values = _hashes(block_hashes, hash_block_tokens, n)
        zeros = np.zeros(n, np.int64)
        return cls(
            arrival_ps=arrival,
            isl_tokens=_whole("workload.isl_tokens", isl_tokens, 1, MAX_TOKENS, n),
            osl_tokens=_whole("workload.osl_tokens", osl_tokens, 1, MAX_TOKENS, n),
            priority=zeros if priority is None else _whole("workload.priority", priority, -(2**31), 2**31, n),
            timeout_ps=zeros if timeout_ps is None else _whole("workload.timeout_ps", timeout_ps, 0, LATEST_PS, n),
            hash_offsets=offsets,
            hash_values=values,
            hash_block_tokens=hash_block_tokens,
        )

    @classmethod
    def from_seconds(cls, *, arrival_s: ArrayLike, **columns: Any) -> "Workload":
        """Like `build`, with arrivals in float seconds from the window's start, rounded to whole picoseconds."""
        seconds = np.asarray(arrival_s, dtype=np.float64)
        return cls.build(arrival_ps=np.round(seconds * PS_PER_S), **columns)

    @property
    def requests(self) -> int:
        """How many."""
        return len(self.arrival_ps)


@dataclass(frozen=True, slots=True)
class CarriedRequest:
    """A request that is in the engine when the window starts. Times are <= 0, or None where they have not come yet.

    `computed_tokens` counts tokens as the scheduler does: those of the step in flight are included.
    """

    isl_tokens: int
    osl_tokens: int
    arrival_ps: int
    computed_tokens: int = 0
    generated_tokens: int = 0
    scheduled_ps: int | None = None
    first_token_ps: int | None = None
    preemptions: int = 0
    cached_tokens: int = 0
    priority: int = 0
    timeout_ps: int = 0
    block_hashes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineState:
    """Where an engine stands at the window's start, for a warm start.

    `running` and `waiting` are in the scheduler's order. With `step_left_ps` > 0 a step is in flight: it ends after
    that time, and every running request whose known tokens are all computed (`computed == isl + generated`) then gets
    its next token. With 0 the engine stands between steps. `cached_hashes` are the unused blocks of the prefix cache,
    least recently used first, of `hash_block_tokens` each, like the `block_hashes` of its requests.
    """

    running: tuple[CarriedRequest, ...] = ()
    waiting: tuple[CarriedRequest, ...] = ()
    cached_hashes: tuple[int, ...] = ()
    hash_block_tokens: int = 0
    step_left_ps: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.step_left_ps < LATEST_PS:
            raise ValueError(f"state.step_left_ps must be >= 0 ps, got {self.step_left_ps}")
        for name, requests in (("running", self.running), ("waiting", self.waiting)):
            for i, request in enumerate(requests):
                _check_carried(f"state.{name}[{i}]", request, running=name == "running", idle=self.step_left_ps == 0)
        if self.step_left_ps and not self.running:
            raise ValueError("state.step_left_ps > 0 needs running requests; a step in flight computes something")


@dataclass(frozen=True, slots=True, eq=False)
class Noise:
    """Multipliers of step cost as data: one per role and epoch of 64 steps, fixed point with `NOISE_ONE` as 1.

    Row 0 is prefill, 1 decode, 2 mixed; epochs repeat from the first when they run out. Every coefficient is scaled
    and rounded once per epoch, so sums over steps stay exact integers. Values are means over 64 steps, not of one.
    """

    multipliers: Int64Array

    def __post_init__(self) -> None:
        shape = self.multipliers.shape
        if self.multipliers.dtype != np.int64 or len(shape) != 2 or shape[0] != 3 or shape[1] == 0:
            raise ValueError(f"noise.multipliers must be int64 of shape (3, epochs >= 1), got {shape}")
        if self.multipliers.min() < 1 or self.multipliers.max() > MAX_NOISE:
            raise ValueError(f"noise.multipliers must lie in 1 .. {MAX_NOISE}")

    @classmethod
    def from_ratios(cls, ratios: ArrayLike) -> "Noise":
        """From float factors of shape (3, epochs), each within 2**-16 .. 4; outside values are clipped to that."""
        values = np.asarray(ratios, dtype=np.float64)
        if not np.isfinite(values).all():
            raise ValueError("noise ratios must be finite")
        return cls(multipliers=np.clip(np.rint(values * NOISE_ONE), 1, MAX_NOISE).astype(np.int64))

    @classmethod
    def lognormal(cls, *, seed: int, epochs: int, cv: float) -> "Noise":
        """Independent factors of mean 1 and coefficient of variation `cv`, from a Philox generator keyed by `seed`."""
        if not 0.0 <= cv < 10.0:
            raise ValueError(f"noise.cv must be in 0 .. 10, got {cv}")
        sigma = np.sqrt(np.log1p(cv * cv))
        rng = np.random.Generator(np.random.Philox(key=seed))
        return cls.from_ratios(np.exp(rng.standard_normal((3, epochs)) * sigma - sigma * sigma / 2))


@dataclass(frozen=True, slots=True)
class Grid:
    """Sample the engine at 0, `step_ps`, 2 * `step_ps`, ...: `points` times."""

    step_ps: int
    points: int

    def __post_init__(self) -> None:
        if self.step_ps <= 0 or self.points <= 0 or self.step_ps * self.points > LATEST_PS:
            raise ValueError(f"grid needs step_ps > 0 and points > 0 within 53 days, got {self.step_ps}, {self.points}")


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Samples of one engine on a grid, each as of the last step boundary at or before its time.

    `busy_ps` is the time spent in steps since the window's start, `saturated_ps` the part of it with requests waiting.
    """

    step_ps: int
    waiting: Int64Array
    running: Int64Array
    kv_used_blocks: Int64Array
    busy_ps: Int64Array
    saturated_ps: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """One entry per request. `queued_ps`: taken in by the engine between two steps; `scheduled_ps`: first step's start.

    Times that never came are `UNDEFINED_PS`; those of carried requests may lie before the window (<= 0).
    """

    queued_ps: Int64Array
    scheduled_ps: Int64Array
    first_token_ps: Int64Array
    last_token_ps: Int64Array
    generated_tokens: Int64Array
    cached_tokens: Int64Array
    preemptions: Int64Array
    status: Int64Array


WORK_COLUMNS = (
    "steps",
    "prefill_requests",
    "prefill_tokens",
    "prefill_attention_pairs",
    "decode_requests",
    "decode_context_tokens",
    "busy_ps",
)
"""Columns of `EngineResult.work`; its rows are the roles prefill, decode, mixed."""


@dataclass(frozen=True, slots=True, eq=False)
class EngineResult:
    """What one engine did. `requests` follows the workload, `carried` the state (running first, then waiting).

    `work` (3 x 7, see `WORK_COLUMNS`) sums step counts, shapes and time per role. `engine` says what ran;
    `fallback` why it was not the kernel, empty if it was or was not asked for.
    """

    requests: Outcomes
    carried: Outcomes
    work: Int64Array
    end_ps: int
    saturated_ps: int
    timeline: Timeline | None
    engine: EngineName
    fallback: str = ""

    @property
    def steps(self) -> int:
        """Engine steps, the one in flight at a warm start not included."""
        return int(self.work[:, 0].sum())

    @property
    def prefill_tokens(self) -> int:
        """Prompt and recomputed tokens that were computed, cache hits excluded."""
        return int(self.work[:, 2].sum())

    @property
    def busy_ps(self) -> int:
        """Time spent in steps."""
        return int(self.work[:, 6].sum())

    @property
    def preemptions(self) -> int:
        """Preemptions within the window."""
        return int(self.requests.preemptions.sum() + self.carried.preemptions.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One engine run, for `simulate_many`. `until_ps`: no step starts at or after it (None: run until all is done)."""

    config: EngineConfig
    cost: StepCost
    workload: Workload
    state: EngineState = field(default_factory=EngineState)
    noise: Noise | None = None
    grid: Grid | None = None
    until_ps: int | None = None

    def __post_init__(self) -> None:
        if self.until_ps is not None and not 0 < self.until_ps <= LATEST_PS:
            raise ValueError(f"until_ps must be in 1 .. {LATEST_PS}, got {self.until_ps}")


def _whole(name: str, values: ArrayLike, low: int, high: int, n: int | None = None) -> Int64Array:
    raw = np.asarray(values)
    if raw.ndim != 1 or (raw.size and raw.dtype.kind not in "iuf"):
        raise ValueError(f"{name} must be a one-dimensional array of numbers, got {raw.dtype} of shape {raw.shape}")
    if n is not None and len(raw) != n:
        raise ValueError(f"{name} must have one entry per request: {n}, got {len(raw)}")
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero(~((raw >= low) & (raw <= high)))
    if raw.dtype.kind == "f" and not len(bad):
        bad = np.flatnonzero(raw != np.floor(raw))
    if len(bad):
        i = int(bad[0])
        raise ValueError(f"{name}[{i}] must be a whole number in {low} .. {high}, got {raw[i]}")
    return np.ascontiguousarray(raw, dtype=np.int64)


def _hashes(block_hashes: Sequence[Sequence[int]] | None, block_tokens: int, n: int) -> tuple[Int64Array, Int64Array]:
    if block_hashes is None:
        return np.zeros(n + 1, np.int64), np.zeros(0, np.int64)
    if len(block_hashes) != n:
        raise ValueError(f"workload.block_hashes must have one entry per request: {n}, got {len(block_hashes)}")
    if block_tokens <= 0:
        raise ValueError(f"workload.hash_block_tokens must be > 0 where hashes are given, got {block_tokens}")
    lengths = np.fromiter((len(h) for h in block_hashes), np.int64, n)
    flat = [value & (2**64 - 1) for hashes in block_hashes for value in hashes]
    return np.concatenate(([0], np.cumsum(lengths))), np.array(flat, np.uint64).view(np.int64)


def _check_carried(name: str, request: CarriedRequest, *, running: bool, idle: bool) -> None:
    if not (1 <= request.isl_tokens <= MAX_TOKENS and 1 <= request.osl_tokens <= MAX_TOKENS):
        raise ValueError(f"{name} must have isl_tokens and osl_tokens in 1 .. {MAX_TOKENS}")
    if not -LATEST_PS < request.arrival_ps <= 0:
        raise ValueError(f"{name}.arrival_ps must be <= 0 (before the window), got {request.arrival_ps}")
    if not 0 <= request.generated_tokens < request.osl_tokens:
        raise ValueError(f"{name}.generated_tokens must be below osl_tokens, got {request.generated_tokens}")
    if not 0 <= request.timeout_ps <= LATEST_PS:
        raise ValueError(f"{name}.timeout_ps must be >= 0, got {request.timeout_ps}")
    known = request.isl_tokens + request.generated_tokens
    most = known - 1 if idle else known
    if running and not 0 <= request.computed_tokens <= most:
        raise ValueError(f"{name}.computed_tokens must be in 0 .. {most}, got {request.computed_tokens}")
    if not running and request.computed_tokens:
        raise ValueError(f"{name}.computed_tokens must be 0 while waiting, got {request.computed_tokens}")
