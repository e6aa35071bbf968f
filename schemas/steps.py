"""Engine spans (`twincast.steps.v1`): one record per engine step, many in one message; and counts between steps.

Counts are those of Dynamo's forward-pass metrics: `prefill_requests` is its `num_prefill_requests`,
`prefill_context_tokens` its `sum_prefill_kv_tokens`, `decode_context_tokens` its `sum_decode_kv_tokens`.
"""

from typing import Literal

from schemas.base import Count, DurationUs, EventTime, Name, Ratio, Record, Row, Tokens, Wire

RowKind = Literal["first", "chunk", "decode", "resumed"]


class StepRow(Row, frozen=True):
    """One request's share of one step: first scheduled, a later prefill chunk, a decode, or back after preemption."""

    request_id: str
    kind: RowKind
    tokens: Tokens
    computed_tokens: Tokens


class Step(Wire, frozen=True, kw_only=True):
    """One forward pass: what was scheduled, how long it took, what waited. Queue counts are taken after scheduling.

    `prefill_attention_pairs` is the number of query-key pairs of the prefill tokens; None where only sums are known.
    `class_us` holds durations per span class when a profile gives them.
    """

    step: Count
    start_us: EventTime
    duration_us: DurationUs
    prefill_requests: Count = 0
    prefill_tokens: Tokens = 0
    prefill_context_tokens: Count = 0
    prefill_attention_pairs: Count | None = None
    decode_requests: Count = 0
    decode_context_tokens: Count = 0
    waiting: Count | None = None
    running: Count | None = None
    kv_used_blocks: Count | None = None
    cached_tokens: Tokens = 0
    preempted: tuple[str, ...] = ()
    finished_requests: Count = 0
    schedule_us: DurationUs | None = None
    execute_us: DurationUs | None = None
    update_us: DurationUs | None = None
    class_us: dict[str, DurationUs] = {}  # noqa: RUF012 - msgspec copies mutable defaults
    rows: tuple[StepRow, ...] = ()

    @property
    def at_us(self) -> int:
        """Event time: the end of the step, when its tokens exist."""
        return self.start_us + self.duration_us


class StepBatch(Record, frozen=True, kw_only=True, tag_field="record", tag="steps"):
    """A message: steps of one engine in order; `epoch` counts its restarts; (engine, epoch, step) is unique."""

    deployment: Name
    engine: Name
    epoch: Count = 0
    steps: tuple[Step, ...]


class EngineStats(Record, frozen=True, kw_only=True, tag_field="record", tag="stats"):
    """Counts of one engine at one moment, as its metrics endpoint tells. Totals count since the engine's start."""

    deployment: Name
    engine: Name
    at_us: EventTime
    running: Count | None = None
    waiting: Count | None = None
    kv_used_ratio: Ratio | None = None
    prompt_tokens_total: Count | None = None
    generation_tokens_total: Count | None = None
    prefix_query_tokens_total: Count | None = None
    prefix_hit_tokens_total: Count | None = None
    preemptions_total: Count | None = None
    finished_requests_total: Count | None = None
    rejected_requests_total: Count | None = None


StepRecord = StepBatch | EngineStats
