"""Metrics pages of vLLM and SGLang to `EngineStats`. Does not fetch pages (the scraper does) and computes no rates.

Names are tables, so a renamed metric is one more entry. A series summed over labels (finish reasons, refusal
reasons) counts once; ranks of one engine that repeat a gauge are not summed: the largest is taken.
"""

from collections.abc import Iterable, Mapping

import msgspec

from pipelines.ingest.prometheus import Sample
from schemas.steps import EngineStats

GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_used_ratio",
    "vllm:gpu_cache_usage_perc": "kv_used_ratio",
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
    "sglang:token_usage": "kv_used_ratio",
}
COUNTERS = {
    "vllm:prompt_tokens": "prompt_tokens_total",
    "vllm:generation_tokens": "generation_tokens_total",
    "vllm:prefix_cache_queries": "prefix_query_tokens_total",
    "vllm:gpu_prefix_cache_queries": "prefix_query_tokens_total",
    "vllm:prefix_cache_hits": "prefix_hit_tokens_total",
    "vllm:gpu_prefix_cache_hits": "prefix_hit_tokens_total",
    "vllm:num_preemptions": "preemptions_total",
    "vllm:request_success": "finished_requests_total",
    "vllm:admission_rejections": "rejected_requests_total",
    "sglang:prompt_tokens": "prompt_tokens_total",
    "sglang:generation_tokens": "generation_tokens_total",
    "sglang:cached_tokens": "prefix_hit_tokens_total",
    "sglang:num_retracted_requests": "preemptions_total",
    "sglang:num_requests": "finished_requests_total",
}
NOT_SUCCESS = ("abort", "error")
ENGINE_LABELS = ("engine", "dp_rank", "engine_idx")


def engine_stats(samples: Iterable[Sample], deployment: str, engine: str, at_us: int) -> tuple[EngineStats, ...]:
    """One record per engine of the page, in the order of their labels.

    `engine` names the scraped server; where the page tells several engines apart (data parallel ranks), each is
    `engine.rank`. Values that no engine can have (a ratio over 1, a negative count) are left out, never clipped.
    """
    by_rank: dict[str, dict[str, float]] = {}
    shared: dict[str, float] = {}
    for sample in samples:
        rank = next((sample.labels[label] for label in ENGINE_LABELS if label in sample.labels), None)
        values = shared if rank is None else by_rank.setdefault(rank, {})
        _fold(values, sample)
    if not by_rank:
        by_rank = {"0": shared} if shared else {}
    elif len(by_rank) == 1:
        next(iter(by_rank.values())).update(shared)
    single = len(by_rank) <= 1
    return tuple(
        stats_record(values, deployment, engine if single else f"{engine}.{rank}", at_us)
        for rank, values in sorted(by_rank.items())
        if values
    )


def _fold(values: dict[str, float], sample: Sample) -> None:
    gauge = GAUGES.get(sample.name)
    counter = COUNTERS.get(sample.name.removesuffix("_total"))
    if gauge:
        values[gauge] = max(values.get(gauge, sample.value), sample.value)
    elif counter and sample.labels.get("finished_reason") not in NOT_SUCCESS:
        values[counter] = values.get(counter, 0.0) + sample.value


def stats_record(values: Mapping[str, float], deployment: str, engine: str, at_us: int) -> EngineStats:
    """Values by field name as a record; what no engine can have is left out, never clipped."""
    fields: dict[str, object] = {"record": "stats", "deployment": deployment, "engine": engine, "at_us": at_us}
    for name, value in values.items():
        if name == "kv_used_ratio":
            fields[name] = value if 0.0 <= value <= 1.0 else None
        else:
            fields[name] = int(value) if 0.0 <= value <= 2**53 and value == int(value) else None
    return msgspec.convert(fields, EngineStats)
