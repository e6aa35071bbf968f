"""Which span class a kernel or runtime call falls in, by its name: an ordered table of patterns, first match wins.

The table is data and carries a version: a changed table changes class durations, so what used it says which one it
was. A deployment may put its own rules in front (`with_rules`). Measures nothing.

Law: every name gets the same answer whatever was asked before; a name that no rule knows is None, never guessed.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from twin.cost.taxonomy import SpanClass

RULES_VERSION = 2


@dataclass(frozen=True, slots=True)
class SpanRule:
    """A pattern, searched in the lower-case name, and the class of names that hold it."""

    pattern: str
    span_class: SpanClass


RULES: tuple[SpanRule, ...] = (
    # Communication first: collectives are often fused with copies or reductions and named after all of them.
    SpanRule(
        r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|alltoall|broadcast_ring",
        SpanClass.COMMUNICATION,
    ),
    SpanRule(r"deep_?ep|nvshmem|internode|intranode|cross_device_reduce|custom_ar|multimem", SpanClass.COMMUNICATION),
    # Libraries whose name says attention, with parts that are none.
    SpanRule(
        r"flashinfer::(sampling|norm|activation|rope|quant)|topkgating|flashinfer_kv_indices", SpanClass.ELEMENTWISE
    ),
    # Copies and KV traffic. KV writes are copies; kernels that read the cache and multiply are attention.
    SpanRule(
        r"^mem(cpy|set)|memcpy|(?<!routing_)memset(?!.*routing)|copy_blocks|swap_blocks|copy_page", SpanClass.COPY
    ),
    SpanRule(
        r"reshape_and_cache|kv_?cache_?(write|store|copy|transfer)|store_kv|write_kv|concat_and_cache", SpanClass.COPY
    ),
    SpanRule(r"set_kv_buffer|kv_transfer|transfer_k(v|ernel)|offload|load_kv|load_and_reshape", SpanClass.COPY),
    # Attention, and the reductions that split attention needs.
    SpanRule(
        r"flash_?(fwd|bwd|attn|mla|infer)|flashinfer|fmha|paged_?attention|unified_attention", SpanClass.ATTENTION
    ),
    SpanRule(
        r"attention|attn|mla_|_mla|merge_state|reduce_segments|batchprefill|batchdecode|softmax.*qk",
        SpanClass.ATTENTION,
    ),
    SpanRule(r"_fwd_(grouped_)?kernel_stage\d", SpanClass.ATTENTION),
    # Convolutions, before their helpers that gather and permute.
    SpanRule(r"implicit_?gemm|[hsi]cudnn_\d+x\d+|computeoffsets|[dw]grad|fprop", SpanClass.COMPUTE),
    # Routing and scattering of experts move and sort rows: not products, though named after them.
    SpanRule(
        r"topk|moe_(align|sum|sort|permute)|bitmatrix|routing|scatter|gather|permute|argsort|histogram"
        r"|sort_expert|expandinputrows|doactivation|finalizemoe",
        SpanClass.ELEMENTWISE,
    ),
    # Matrix products, in the names of their libraries.
    SpanRule(
        r"gemm|gemv|matmul|cutlass|cublas|xmma|cijk_|wgmma|spl(i?)tk|addmm|_mm_|(^|_)bmm_|dot_kernel|nvjet|deep_gemm",
        SpanClass.COMPUTE,
    ),
    SpanRule(
        r"fused_moe|fmoe|moe_kernel|expert|grouped_mm|marlin|awq|gptq|machete|conv(olution|_)",
        SpanClass.COMPUTE,
    ),
    # Everything that touches each element a few times.
    SpanRule(
        r"elementwise|vectorized|norm|silu|gelu|swiglu|act_and_mul|rotary|rope|softmax|sampl|logits|argmax",
        SpanClass.ELEMENTWISE,
    ),
    SpanRule(
        r"reduce|cat_?array|index_?select|arange|fill|triton_(poi|red|per)|copy_kernel|nchwtonhwc|nhwctonchw",
        SpanClass.ELEMENTWISE,
    ),
    SpanRule(
        r"bn_(fw|bw)|batch_?norm|pool|dropout|embedding|quant|cast|multi_tensor_apply|cumsum|kernel_scan|devicescan|sort|where|bitmask|compute_position|slot_mapping|penalt|write_indices",
        SpanClass.ELEMENTWISE,
    ),
    # Host side.
    SpanRule(r"synchronize|streamwait|eventquery|event_?wait|waitevent", SpanClass.SYNC),
    SpanRule(r"launch|graphexec|^(cuda|hip|cu)[a-z]", SpanClass.LAUNCH),
)


@dataclass(frozen=True, slots=True)
class SpanRules:
    """A table of rules and the version to quote."""

    rules: tuple[SpanRule, ...] = RULES
    version: str = str(RULES_VERSION)

    def classify(self, name: str) -> SpanClass | None:
        """The class of a kernel's or runtime call's name; None if no rule knows it.

        >>> SpanRules().classify("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64")
        <SpanClass.COMPUTE: 'compute'>
        >>> SpanRules().classify("ncclKernel_AllReduce_RING_LL_Sum_float") is SpanClass.COMMUNICATION
        True
        """
        return _classify(self.rules, name)

    def with_rules(self, own: Iterable[SpanRule], version: str) -> "SpanRules":
        """The same table with own rules in front. Raises ValueError for a pattern that is none."""
        rules = (*own, *self.rules)
        for rule in rules:
            try:
                re.compile(rule.pattern)
            except re.error as error:
                raise ValueError(f"rule {rule.pattern!r} is no pattern: {error}") from error
        return SpanRules(rules, version)


@lru_cache(maxsize=50_000)
def _classify(rules: tuple[SpanRule, ...], name: str) -> SpanClass | None:
    text = name.lower()
    return next((rule.span_class for rule in rules if re.search(rule.pattern, text)), None)
