"""What each span class means for evidence: what a profile looks at, what a simulation varies. Measures nothing.

Names fall into classes by `twin.cost.span_rules`, the one table of patterns. Law: every span class has an entry.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from twin.cost.taxonomy import SpanClass


@dataclass(frozen=True, slots=True)
class ClassGuide:
    """One class in words. `varies` are settings of engines or traffic that a simulation can turn."""

    title: str
    profiling: str
    simulation: str
    varies: tuple[str, ...] = ()


GUIDE: Mapping[SpanClass, ClassGuide] = {
    SpanClass.COMPUTE: ClassGuide(
        "GEMM/FFN/MoE compute",
        "time and count of matrix products by shape; achieved share of the peak",
        "batch, tensor and expert parallelism, quantisation",
        ("max_num_seqs", "max_num_batched_tokens", "tensor_parallel"),
    ),
    SpanClass.ELEMENTWISE: ClassGuide(
        "elementwise and norm kernels",
        "count of small kernels, bytes moved, what could be fused",
        "fusion, batch",
        ("max_num_seqs",),
    ),
    SpanClass.ATTENTION: ClassGuide(
        "attention/KV",
        "time per context token, hits and misses of the KV cache",
        "ISL, hit ratio, KV policy",
        ("isl_factor", "prefix_hit_ratio", "kv_blocks"),
    ),
    SpanClass.COMMUNICATION: ClassGuide(
        "MoE all-to-all and communication",
        "time of collectives, waiting for the slowest rank, bytes per link",
        "expert parallelism and link domain",
        ("expert_parallel", "tensor_parallel"),
    ),
    SpanClass.COPY: ClassGuide(
        "copy/KV load",
        "bytes and time of copies, KV lookup, load and write, what of it overlaps with compute",
        "link between prefill and decode engines, where they hand KV over; overlap of load and compute",
        ("kv_link", "kv_blocks"),
    ),
    SpanClass.LAUNCH: ClassGuide(
        "launch/runtime",
        "host time per step, launches per step, gaps on the device",
        "graph capture, chunk size, microbatch",
        ("max_num_batched_tokens", "cudagraph_capture_sizes", "async_scheduling"),
    ),
    SpanClass.SYNC: ClassGuide(
        "sync/wait",
        "host waiting for the device, requests waiting to be scheduled",
        "scheduling, admission, mixed prefill and decode",
        ("max_num_seqs", "max_num_batched_tokens", "rate_factor"),
    ),
}
UNKNOWN = "unknown"


def title_of(span_class: str) -> str:
    """A class for people.

    >>> title_of("compute"), title_of("unknown")
    ('GEMM/FFN/MoE compute', 'unclassified')
    """
    return "unclassified" if span_class == UNKNOWN else GUIDE[SpanClass(span_class)].title
