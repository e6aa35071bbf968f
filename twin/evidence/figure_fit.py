"""Published figures of one request at a time into costs that a twin can run: what hits touch, and what they do not.

A single request waits for nobody, so its TTFT is a part that hits do not touch and a part in proportion to the prompt
tokens computed. Figures with the cache on and off tell the product of that part and the hit ratio; kernel figures tell
the hit ratio, each in its own way: matrix products fall with the tokens computed, attention with its pairs (a token
reads all before it, so they fall with 1 - hits^2), and the total with something between. Each way is one reading, and
their spread is the interval. What a fit was made of confirms nothing of it. Law: at the hit ratio of a reading the twin
gives the published TTFT back.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from schemas.base import EARLIEST_US
from schemas.engines import EngineConfig
from schemas.evidence import ClassChange, Fact, SimulatedEffect
from schemas.requests import RequestFinished
from twin.cost.frozen import FrozenStepCost
from twin.cost.taxonomy import SpanClass
from twin.evidence.class_guide import title_of
from twin.evidence.hypotheses import PREFIX_SETTING
from twin.evidence.twin_runs import sharing_as_recorded
from twin.known.requests import known_requests
from twin.known.run import KnownEngine, run_known

PROMPT_TOKENS = 4096
"""Assumed: with one request at a time and one chunk a prompt, TTFT depends on shares of it alone."""
BLOCK_TOKENS = 16
HIT_RATIOS = (0.0, 0.5, 0.9)
PS_PER_MS = 1_000_000_000
_APART_S = 1_000
_MS = {"s": 1e3, "ms": 1.0, "us": 1e-3}
NEEDED = "ISL, chunk size, hit tokens, and step times by shape (fixed, per prompt token, per pair)"


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read the hit ratio. Milliseconds of TTFT: `fixed_ms` that hits leave, `prefill_ms` without any hit."""

    told_by: str
    hit_ratio: float
    fixed_ms: float
    prefill_ms: float

    def cost(self) -> FrozenStepCost:
        """Of steps with one prompt in them."""
        return FrozenStepCost.uniform(
            fixed_ps=max(round(self.fixed_ms * PS_PER_MS), 1),
            prefill_token_ps=round(self.prefill_ms * PS_PER_MS / PROMPT_TOKENS),
        )


@dataclass(frozen=True, slots=True)
class FigureFit:
    """Readings of one case by rising hit ratio; `on_ratio` is the published TTFT with the cache over that without."""

    readings: tuple[Reading, ...]
    on_ratio: float

    @property
    def about(self) -> str:
        """What was fitted to what, in words."""
        told = "; ".join(
            f"{each.told_by} says {each.hit_ratio * 100:.0f} % of the prompt hit: {each.fixed_ms:.0f} ms that hits do"
            f" not touch and {each.prefill_ms:.0f} ms of prefill"
            for each in self.readings
        )
        return f"costs fitted to the figures of single requests ({told}), which therefore confirm nothing of them"

    @property
    def assumed(self) -> str:
        """What no figure tells."""
        return (
            f"a prompt of {PROMPT_TOKENS} tokens in one chunk (assumed; alone on its engine, a request's TTFT depends"
            " on shares of its prompt); windows of kernels and of requests held the same work (assumed)"
        )


def fit_of(
    facts: Sequence[Fact], classes: Sequence[ClassChange], settings: Mapping[str, tuple[Any, Any]], tried: str
) -> FigureFit | str:
    """The fit of a case, or what its figures lack for one."""
    sides = settings.get(PREFIX_SETTING)
    if sides is None or bool(sides[0]) == bool(sides[1]):
        return "nothing to simulate: no side has the prefix cache on where the other has it off"
    if "single" not in tried:
        return f"under load a TTFT holds queueing that figures do not tell; a simulation needs {NEEDED}, and arrivals"
    ttft = next((fact for fact in facts if fact.name.split(" ")[0] == "TTFT" and fact.unit in _MS), None)
    if ttft is None or not ttft.base or not ttft.candidate:
        return f"no TTFT of both sides; a simulation needs it, or {NEEDED}"
    off_on = (ttft.base, ttft.candidate) if sides[1] else (ttft.candidate, ttft.base)
    off_ms, on_ms = (value * _MS[ttft.unit] for value in off_on)
    if on_ms >= off_ms:
        return f"TTFT is not lower with the cache on, so no figure tells a cost per token; a simulation needs {NEEDED}"
    read = _hit_ratios(facts, classes, on_first=not sides[1])
    readings = tuple(
        Reading(told_by, hit, off_ms - (off_ms - on_ms) / hit, (off_ms - on_ms) / hit)
        for told_by, hit in sorted(read, key=lambda each: each[1])
        if hit > (off_ms - on_ms) / off_ms
    )
    if not readings:
        return f"no kernel figure tells how much of the prompts hit; a simulation needs {NEEDED}"
    return FigureFit(readings, on_ms / off_ms)


def effects_of(fit: FigureFit) -> tuple[SimulatedEffect, ...]:
    """TTFT of a single request at other hit ratios, against none; the interval is the spread of the readings."""
    found = []
    for hit in HIT_RATIOS:
        changes = [ttft_ms(reading, hit) / ttft_ms(reading, 0.0) - 1.0 for reading in fit.readings]
        times = [ttft_ms(reading, hit) for reading in fit.readings]
        found.append(
            SimulatedEffect(
                setting=f"prefix_hit_ratio={hit:g}",
                metric="TTFT of a single request",
                value=sum(times) / len(times),
                unit="ms",
                change_ratio=sum(changes) / len(changes),
                low_ratio=min(changes),
                high_ratio=max(changes),
            )
        )
    return tuple(found)


def ttft_ms(reading: Reading, hit_ratio: float) -> float:
    """What the twin says of one request, whose prompt shares so much with one that was served before it."""
    config = EngineConfig(
        deployment="figures",
        engine="0",
        at_us=EARLIEST_US,
        block_size_tokens=BLOCK_TOKENS,
        kv_blocks=4 * PROMPT_TOKENS // BLOCK_TOKENS,
        max_num_seqs=1,
        max_num_batched_tokens=2 * PROMPT_TOKENS,
        enable_prefix_caching=True,
    )
    asked = known_requests(
        (
            RequestFinished(
                deployment=config.deployment,
                request_id=name,
                at_us=EARLIEST_US + number * _APART_S * 1_000_000,
                arrived_us=EARLIEST_US + number * _APART_S * 1_000_000,
                isl_tokens=PROMPT_TOKENS,
                osl_tokens=1,
                timed=False,
            )
            for number, name in enumerate(("first", "second"))
        ),
        EARLIEST_US,
    )
    hits = np.array([PROMPT_TOKENS, round(hit_ratio * PROMPT_TOKENS)], np.int64)
    requests = sharing_as_recorded(asked, hits, BLOCK_TOKENS)
    run = run_known([KnownEngine(config, reading.cost())], requests, simulator="simpy")
    return float(run.first_s[1] - requests.arrived_s[1]) * 1e3


def _hit_ratios(facts: Sequence[Fact], classes: Sequence[ClassChange], *, on_first: bool) -> list[tuple[str, float]]:
    """How much of the prompts hit, as each kernel figure has it."""
    found = []
    total = next((fact for fact in facts if fact.name == "kernel total"), None)
    if total is not None and (left := _left(total.base, total.candidate, on_first)) is not None:
        found.append(("kernel total", 1.0 - left))
    for row in classes:
        left = _left(row.base, row.candidate, on_first) if row.level == "kernel" else None
        if left is not None and row.span_class in (SpanClass.COMPUTE, SpanClass.ATTENTION):
            hit = 1.0 - left if row.span_class == SpanClass.COMPUTE else math.sqrt(1.0 - left)
            found.append((title_of(row.span_class), hit))
    return found


def _left(base: float | None, candidate: float | None, on_first: bool) -> float | None:
    """What is left with the cache on, as a share; None where nothing was saved."""
    off, on = (candidate, base) if on_first else (base, candidate)
    return on / off if on is not None and off and on < off else None
