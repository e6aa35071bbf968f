"""Engine configuration (`twincast.engines.v1`, compacted): what decides its behaviour, named after vLLM's flags."""

from typing import Annotated, Literal

from msgspec import Meta

from schemas.base import Count, EventTime, Name, NonNegative, Ratio, Record, Tokens, Wire

Positive = Annotated[int, Meta(ge=1, le=2**40)]
Sequences = Annotated[int, Meta(ge=1, le=2**16)]
"""The twin holds the cost of every batch size."""


class Fingerprint(Wire, frozen=True, kw_only=True):
    """What was running. Any change resets authority and keeps the old costs as a prior."""

    device: str = ""
    driver: str = ""
    firmware: str = ""
    image: str = ""
    engine_version: str = ""
    model: str = ""
    flags: tuple[str, ...] = ()


class KvTier(Wire, frozen=True, kw_only=True):
    """A host or disk tier behind the KV cache: how fast blocks come back, and whether loading overlaps with compute.

    `load_bytes_per_s` is the rate of the whole engine, all its devices together.
    """

    kind: Literal["host", "disk", "remote"]
    capacity_blocks: Positive
    load_bytes_per_s: NonNegative
    overlapped: bool = True


class EngineConfig(Record, frozen=True, kw_only=True, tag_field="record", tag="engine"):
    """One engine with its own scheduler and KV pool.

    `kv_blocks` counts all blocks; `reserved_blocks` of them are never usable (vLLM keeps one null block).
    `reserve_full_isl` is vLLM's `scheduler_reserve_full_isl`: a waiting request is admitted only if all its known
    tokens fit in free blocks. `watermark_ratio` is the share of blocks kept free at admission.
    `max_queued_requests` refuses requests beyond that many in flight, waiting or running, as vLLM's
    `max_num_queued_reqs` does (None: never).
    """

    deployment: Name
    engine: Name
    at_us: EventTime
    block_size_tokens: Positive
    kv_blocks: Positive
    reserved_blocks: Count = 1
    max_num_seqs: Sequences
    max_num_batched_tokens: Positive
    max_model_len_tokens: Positive | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_threshold_tokens: Tokens = 0
    policy: Literal["fcfs", "priority"] = "fcfs"
    reserve_full_isl: bool = True
    watermark_ratio: Ratio = 0.0
    prefill_schedule_interval_steps: Positive = 1
    async_scheduling: bool = False
    cudagraph_capture_sizes: tuple[int, ...] = ()
    max_queued_requests: Count | None = None
    tensor_parallel: Positive = 1
    pipeline_parallel: Positive = 1
    expert_parallel: Positive = 1
    kv_tiers: tuple[KvTier, ...] = ()
    role: Literal["both", "prefill", "decode"] = "both"
    emits_steps: bool = True
    hardware: str = ""
    model_config: dict[str, str | int | float | bool | None] = {}  # noqa: RUF012 - msgspec copies mutable defaults
    fingerprint: Fingerprint = Fingerprint()
    removed: bool = False
