"""Which span class a kernel or runtime call falls in, by its name: an ordered table of patterns, first match wins.

The table is data and carries a version: a changed table changes class durations, so what used it says which one it
was. A deployment may put its own rules in front (`with_rules`). Measures nothing.

Law: every name gets the same answer whatever was asked before; a name that no rule knows is None, never guessed.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from twin.cost.taxonomy import SpanClass

RULES_VERSION = 3
MOST_KNOWN = 50_000
"""Names whose answer is kept."""


@dataclass(frozen=True, slots=True)
class SpanRule:
    """A pattern, searched in the lower-case name, and the class of names that hold it."""

    pattern: str
    span_class: SpanClass


RULES: tuple[SpanRule, ...] = (
    # Generators whose names list what was fused in: the prefix says what the kernel is, the list what it stands for.
    SpanRule(r"^triton_(poi|per|for)_|^triton_red_(?!.*_[ab]?(add|b)?mm_)", SpanClass.ELEMENTWISE),
    SpanRule(
        r"nvfuser_|cudacodegen::|^(void )?at::native::(?!.*(conv_depthwise|im2col|col2im))", SpanClass.ELEMENTWISE
    ),
    # Rows moved to and from experts on one device, though named after the library of the exchange.
    SpanRule(r"deepep_\w*(permute|src2dst|preprocess)|post_reorder|ep_(scatter|gather)_?\d?", SpanClass.ELEMENTWISE),
    # Communication early: collectives are often fused with copies, norms or reductions and named after all of them.
    SpanRule(
        r"nccl|rccl|msccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|alltoall|all2all|broadcast_ring|send_?recv",
        SpanClass.COMMUNICATION,
    ),
    SpanRule(
        r"deep_?ep|nvshmem|internode|intranode|cross_device_reduce|custom_ar|multimem|userbuffers|symm(etric)?_mem"
        r"|a2a_?(dispatch|combine)|ep(dispatch|combine)|quickreduce|lamport|(put|wait)_signal"
        r"|(^|[^a-z])(one|two)_?shot_|ibgda|rdma|pplx|(^|_)p2p_",
        SpanClass.COMMUNICATION,
    ),
    # Names that can be nothing but attention, some of which also name what they read or the GEMM they are made with.
    SpanRule(
        r"flash_?(fwd|bwd|attn|attention)|fmha|sdpa|paged_?attention|unified_attention|flex_attention"
        r"|(batch|single)(prefill|decode)with|multi_?head_?attention|kernel_mha|(^|[^a-z])xqa|indexer_\w*logits|mqa_logits",
        SpanClass.ATTENTION,
    ),
    # Copies and KV traffic. KV writes are copies; kernels that read the cache and multiply are attention.
    SpanRule(
        r"^mem(cpy|set)|memcpy|(?<!routing_)memset(?!.*routing)|(copy|swap|swap_in|swap_out)_blocks|block_copy|copybuffer|copy_page(?!_ind)|offload"
        r"|_and_cache|(gather|store|write)_(\w+_)?cache|rope_cache|set_k_and_s|(^|_)[hd]2[hd]_|nixl",
        SpanClass.COPY,
    ),
    SpanRule(
        r"(append|update|write|store|set|copy|zero|gather|load|transfer|swap|move|insert)[a-z_]{0,20}kv"
        r"(?!_?(ind|len|seq|split|page_))|kv_?(cache_?)?(\w*_)?(write|store|copy|copies|transfer|load|\w{0,16}insert|scatter)"
        r"|transfer_kernel|load_and_reshape",
        SpanClass.COPY,
    ),
    # What prepares attention is none: rotation, gates, sums of gates, lists of pages; nor are other parts of libraries.
    SpanRule(
        r"rope|rotary|gating(?!_delta)|local_cumsum|chunk_cumsum|kv_indices"
        r"|flashinfer(::)?(sampling|norm|activation|quant)",
        SpanClass.ELEMENTWISE,
    ),
    SpanRule(
        r"flashinfer(?!::(gemm|trtllm|comm|moe))|attention|attn|flashmla|mla_|_mla|merge_state|merge_split"
        r"|variablelengthmerge|reduce_segments|paged_(decode|prefill)|(^|_)(nsa|indexer)_|softmax.*qk|prepare_varlen",
        SpanClass.ATTENTION,
    ),
    SpanRule(
        r"^_(fwd|bwd)_(grouped_)?kernel(_stage\d\w*|_d[kqv]\w*)?$|_fwd_(grouped_)?kernel_stage\d"
        r"|(^|[^a-z])pa_(bf|fp|decode|prefill|fwd|ps)",
        SpanClass.ATTENTION,
    ),
    # Mixers with a state in place of the cache: linear attention and state-space scans, with the parts of a chunk.
    SpanRule(
        r"delta_(rule|net)|fused_recurrent|(^|_)(gdn|kda|gdr|gla|wkv\d?)_|selective_(scan|state)|ssm_scan|rwkv|retention"
        r"|(^|_)chunk_(scan|state|fwd|bwd|scaled|delta)|state_passing|dot_kkt|recompute_w_u|solve_tril|_inverse_kernel",
        SpanClass.ATTENTION,
    ),
    # Short convolutions along the sequence touch each element a few times; those of images are products.
    SpanRule(r"causal_conv|ssm_conv|short_conv|post_conv", SpanClass.ELEMENTWISE),
    # Convolutions, before their helpers that gather and permute.
    SpanRule(
        r"implicit_?(gemm|convolve)|[hsi]cudnn_\d+x\d+|computeoffsets|[dw]grad|fprop|winograd|conv_depthwise|im2col",
        SpanClass.COMPUTE,
    ),
    # Routing and scattering of experts move and sort rows: not products, though named after them.
    SpanRule(
        r"topk|moe_?(align|sum|sort|permute|unpermute)|bitmatrix|routing|scatter|gather|permute|argsort|histogram"
        r"|sort_expert|expandinputrows|shuffleinputrows|doactivation|finalizemoe|expertprefixsum|expertmaps"
        r"|moe::dev::(finalize|activation)|fused_gate|group_ptrs"
        r"|expert_(num|id|map|off|load|count|first)|per_expert|(gptq|awq)\w*::shuffle",
        SpanClass.ELEMENTWISE,
    ),
    # Matrix products, in the names of their libraries; types of a library among a template's arguments say nothing.
    SpanRule(
        r"gemm|gemv|matmul|mul_?mat|cublas|xmma|cijk_|wgmma|splt?i?t?k|addmm|_mm_|scaled_mm|(^|_)bmm_|dot_kernel|nvjet"
        r"|cutlass(?!_kernels|::(half_t|bfloat16_t|float_|tfloat|array|epilogue::thread))",
        SpanClass.COMPUTE,
    ),
    SpanRule(r"sgmv|bgmv|lora_?(shrink|expand|[ab]_)|csrmm|spmm|_mm(_\w{1,3})?$", SpanClass.COMPUTE),
    # Weights and activations brought from one number format into another, before the products of these formats.
    SpanRule(r"quantize|(^|_)dequant|repack|reconstruct|quant_(fp|int|kernel)|cvt_|_to_fp\d", SpanClass.ELEMENTWISE),
    SpanRule(
        r"fused_moe|fmoe|moe_kernel|moe_?q\d|mfma_moe|expert|grouped_mm|marlin|awq|gptq|machete|conv(olution|_|\d)"
        r"|cudnn_infer|_mma_|linear_?(kernel|fwd|bwd)?(<|$)|(^|_)(ffn|mlp|dense)_?(\w*_)?kernel",
        SpanClass.COMPUTE,
    ),
    # Host side, before words that its calls share with kernels.
    SpanRule(r"synchronize|streamwait|eventquery|event_?wait|waitevent", SpanClass.SYNC),
    SpanRule(
        r"launch|graphexec|^(cuda|hip)[a-z]|^cu(ctx|device|event|func|graph|kernel|library|mem|module|occupancy|stream)",
        SpanClass.LAUNCH,
    ),
    # Everything that touches each element a few times.
    SpanRule(
        r"elementwise|vectorized|pointwise|norm|silu|gelu|swiglu|act_and_mul|soft_?max|sampl|logits|argmax|reject"
        r"|unary|bin_bcast|cross_entropy|(^|_)ce_|loss|(^|[^a-z])m?hc_",
        SpanClass.ELEMENTWISE,
    ),
    SpanRule(
        r"reduc(e|tion)|cat_?array|concat|index_?select|arange|fill|copy_kernel|transpose|split_\w*(cat|reshape)|tri[ul]_"
        r"|nchwtonhwc|nhwctonchw|(get|set)_rows|(^|_)expand_kernel|apply_write|assignqkv",
        SpanClass.ELEMENTWISE,
    ),
    SpanRule(
        r"bn_(fw|bw)|batch_?norm|pool|dropout|embedding|quant|cast|convert|multi_tensor_apply|cumsum|kernel_scan"
        r"|devicescan|sort|where|bitmask|penalt|cub::|rocprim|thrust|partition",
        SpanClass.ELEMENTWISE,
    ),
    # Bookkeeping of a step on the device: positions, slots, drafts, trees of drafts.
    SpanRule(
        r"compute_position|slot_mapping|write_indices|metadata|prepare_\w*(input|pos|seq)|draft|build_tree"
        r"|verify_tree|req_to_token|alloc_(extend|decode)|post_update|bincount|ngram|propose|cu_?seq"
        r"|seq_?lens?(_|$)|_ids(_|$)|indices|eagle|num_tokens|token_count",
        SpanClass.ELEMENTWISE,
    ),
    # Plain words of arithmetic and layout, last: whatever else such a kernel was, its name would have said so above.
    SpanRule(
        r"sigmoid|softplus|relu|tanh|hadamard|residual|bias|states?_kernel"
        r"|(^|_)(add|mul|sub|div|exp|pow|scale|clamp|copy)_|_(add|mul)(_|$)"
        r"|swizzle|interleave|shuffle|slice|stride|flip|mask|temperature|(^|_)(min|top)_[kp](_|$)|ranks?_kernel",
        SpanClass.ELEMENTWISE,
    ),
)


@dataclass(frozen=True, slots=True)
class SpanRules:
    """A table of rules and the version to quote."""

    rules: tuple[SpanRule, ...] = RULES
    version: str = str(RULES_VERSION)
    _known: dict[str, SpanClass | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def classify(self, name: str) -> SpanClass | None:
        """The class of a kernel's or runtime call's name; None if no rule knows it.

        >>> SpanRules().classify("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64")
        <SpanClass.COMPUTE: 'compute'>
        >>> SpanRules().classify("ncclKernel_AllReduce_RING_LL_Sum_float") is SpanClass.COMMUNICATION
        True
        """
        if name not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            text = name.lower()
            self._known[name] = next((rule.span_class for rule in self.rules if re.search(rule.pattern, text)), None)
        return self._known[name]

    def with_rules(self, own: Iterable[SpanRule], version: str) -> "SpanRules":
        """The same table with own rules in front. Raises ValueError for a pattern that is none."""
        rules = (*own, *self.rules)
        for rule in rules:
            try:
                re.compile(rule.pattern)
            except re.error as error:
                raise ValueError(f"rule {rule.pattern!r} is no pattern: {error}") from error
        return SpanRules(rules, version)
