"""Evidence chains (`twincast.evidence.v1`): facts, class, hypothesis, simulated sensitivity, grade, next experiment.

One record holds one comparison whole. What was not measured or is infinite is None, never 0; the grade and what it
lacks stand before the advice.
"""

from typing import Literal

from schemas.base import Count, EventTime, Name, Record, Seconds, Wire

EvidenceLevel = Literal["request", "engine", "kernel"]
Side = Literal["base", "candidate"]
Grade = Literal["A", "B", "C", "D"]
Origin = Literal["measured", "published", "fitted", "prior", "assumed"]
Verdict = Literal["agrees", "disagrees", "not measured", "not simulated"]
AdviceTitle = Literal["Recommendation", "Hypothesis", "No recommendation"]


class Boundary(Wire, frozen=True, kw_only=True):
    """Where a side's facts were sampled. `window_s` is wall time of the window, never a request's latency.

    `events` are requests, steps or kernels, after the level. `open_requests` arrived in the window and had not ended.
    """

    side: Side
    level: EvidenceLevel
    source: str
    window_s: Seconds | None = None
    events: Count | None = None
    requests_finished: Count | None = None
    tokens_finished: Count | None = None
    open_requests: Count = 0
    repeats: Count = 1


class Fact(Wire, frozen=True, kw_only=True):
    """One figure on both sides. Ratios are relative changes, -0.1 is ten per cent less; the interval is 95 %.

    `changed` is None where nothing tells how far the figure strays by itself. `parent` names the span that holds this.
    """

    level: EvidenceLevel
    name: Name
    unit: str
    base: float | None
    candidate: float | None
    change_ratio: float | None = None
    low_ratio: float | None = None
    high_ratio: float | None = None
    changed: bool | None = None
    group: str = ""
    statistic: str = ""
    parent: str = ""
    origin: Origin = "measured"


class ClassChange(Wire, frozen=True, kw_only=True):
    """Time of one span class on both sides, and its share of the total change. Fitted ones are work times fitted costs.

    `unit` says what `base` and `candidate` count, such as ms or ms per request.
    """

    span_class: str
    level: EvidenceLevel
    unit: str
    base: float | None
    candidate: float | None
    base_count: Count | None = None
    candidate_count: Count | None = None
    share_of_change_ratio: float | None = None
    origin: Origin = "measured"


class SimulatedEffect(Wire, frozen=True, kw_only=True):
    """What the twin says of one setting, beside what was measured (None: not measured). Ratios as in `Fact`.

    `value` is the figure itself where it is told. `falls_out` are limits met without the setting and not met with it.
    """

    setting: str
    metric: Name
    group: str = ""
    value: float | None = None
    unit: str = ""
    change_ratio: float | None = None
    low_ratio: float | None = None
    high_ratio: float | None = None
    observed_ratio: float | None = None
    observed_low_ratio: float | None = None
    observed_high_ratio: float | None = None
    verdict: Verdict = "not measured"
    falls_out: tuple[str, ...] = ()


class Hypothesis(Wire, frozen=True, kw_only=True):
    """One explanation made by a rule. `weight_ratio` ranks: the largest simulated effect on a request's latency."""

    code: Name
    statement: str
    span_classes: tuple[str, ...]
    parameter: str
    refuted_by: str
    weight_ratio: float | None = None
    verdict: Verdict = "not simulated"
    effects: tuple[SimulatedEffect, ...] = ()


class Experiment(Wire, frozen=True, kw_only=True):
    """One cell of the matrix that would move the grade. `run_s` is how long to run for the interval it needs."""

    prefix_cache: str
    hit_ratio: str
    chunk: str
    prefill: str
    instrumentation: tuple[str, ...]
    repeats: Count
    why: str
    run_s: Seconds | None = None
    run_basis: str = ""


class Advice(Wire, frozen=True, kw_only=True):
    """What to do. Below grade B the title is `Hypothesis`; without a change beyond noise there is none."""

    title: AdviceTitle
    text: str
    risks: tuple[str, ...] = ()


class Evidence(Record, frozen=True, kw_only=True, tag_field="record", tag="evidence"):
    """A chain. `missing` is what one grade higher needs; `limits` say what was found wrong and what it voids."""

    deployment: Name
    at_us: EventTime
    title: str
    base: str
    candidate: str
    grade: Grade
    grade_reasons: tuple[str, ...]
    missing: tuple[str, ...]
    refuted_by: str
    advice: Advice
    finding: str
    span_classes: tuple[str, ...] = ()
    boundaries: tuple[Boundary, ...] = ()
    facts: tuple[Fact, ...] = ()
    classes: tuple[ClassChange, ...] = ()
    hypotheses: tuple[Hypothesis, ...] = ()
    experiments: tuple[Experiment, ...] = ()
    not_shown: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    noise_floor_ratio: float | None = None
    rules_version: str = ""
    twincast_version: str = ""
    seed: int = 0
