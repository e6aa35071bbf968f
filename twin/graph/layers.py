"""The operators of a transformer layer, of the embedding and of the head, for one device of a split model.

A block is a list of (operator, positions in the block it follows); position -1 is whatever came before the block.
Law: a block's last operator follows, at one remove or more, every other one.
"""

from dataclasses import dataclass

from twin.cost.taxonomy import SpanClass
from twin.graph.attention import AttentionTiles, Heads
from twin.graph.model import ModelShape
from twin.graph.operators import Amount, Collective, Operator, Routed, Stream
from twin.hardware.topology import DTYPE_BYTES

Block = list[tuple[Operator, tuple[int, ...]]]

PREPARE = Operator(kind="prepare", span_class=SpanClass.LAUNCH, stream=Stream.HOST)
SYNC = Operator(kind="sync", span_class=SpanClass.SYNC, stream=Stream.HOST)
INPUTS = Operator(
    kind="inputs",
    span_class=SpanClass.COPY,
    stream=Stream.COPY,
    # Token ids, positions, slots and a block table row: 4 or 8 bytes each.
    moved_bytes=Amount(per_token=24.0, per_sequence=64.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A model and the part of it that one device holds."""

    model: ModelShape
    tensor: int
    expert: int
    kv_element_bytes: float

    @property
    def element_bytes(self) -> float:
        """Bytes of one activation."""
        return DTYPE_BYTES[self.model.dtype]

    @property
    def heads(self) -> int:
        """Query heads of one device."""
        return self.model.heads // self.tensor

    @property
    def kv_heads(self) -> int:
        """Key-value heads of one device; copied where there are fewer than devices."""
        return max(self.model.kv_heads // self.tensor, 1)

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of the KV cache per token and layer on one device. A latent cache is not split."""
        latent = self.model.latent
        elements = latent.kv_rank + latent.rope_dim if latent else 2 * self.kv_heads * self.model.head_dim
        return elements * self.kv_element_bytes


def matrix(split: Split, kind: str, rows: float, columns: float, *, per_sequence: bool = False) -> Operator:
    """A product of activations with a (rows, columns) weight, per token or per sequence."""
    flops, moved = 2.0 * rows * columns, (rows + columns) * split.element_bytes
    return Operator(
        kind=kind,
        span_class=SpanClass.COMPUTE,
        dtype=split.model.weight_dtype,
        flops=Amount(per_sequence=flops) if per_sequence else Amount(per_token=flops),
        weight_bytes=rows * columns * DTYPE_BYTES[split.model.weight_dtype],
        moved_bytes=Amount(per_sequence=moved) if per_sequence else Amount(per_token=moved),
    )


def elementwise(split: Split, kind: str, elements: float, span_class: SpanClass = SpanClass.ELEMENTWISE) -> Operator:
    """Reads and writes `elements` activations per token, with about one FLOP each."""
    return Operator(
        kind=kind,
        span_class=span_class,
        flops=Amount(per_token=elements),
        moved_bytes=Amount(per_token=elements * split.element_bytes),
    )


def exchange(split: Split, kind: str, collective: Collective, devices: int, elements: float) -> Operator:
    """A collective over `devices` of messages of `elements` activations per token."""
    size = Amount(per_token=elements * split.element_bytes)
    return Operator(
        kind=kind,
        span_class=SpanClass.COMMUNICATION,
        stream=Stream.COMMUNICATION,
        collective=collective,
        devices=devices,
        message_bytes=size,
    )


def attention(split: Split) -> Block:
    """Norm, projections, attention and the way back to the residual stream."""
    block = _latent_projections(split) if split.model.latent else _projections(split)
    block.append((_attention(split), (len(block) - 1,)))
    model, latent = split.model, split.model.latent
    value_dim = latent.value_dim if latent else model.head_dim
    block.append((matrix(split, "o_proj", split.heads * value_dim, model.hidden), (len(block) - 1,)))
    return _reduced(split, block)


def _projections(split: Split) -> Block:
    model = split.model
    columns = (split.heads + 2 * split.kv_heads) * model.head_dim
    rotated = (split.heads + split.kv_heads) * model.head_dim
    chain = [elementwise(split, "layernorm", 4 * model.hidden), matrix(split, "qkv_proj", model.hidden, columns)]
    if model.normed_heads:
        chain.append(elementwise(split, "qk_norm", 2 * rotated))
    chain.append(elementwise(split, "rotary_emb", 2 * rotated))
    chain.append(elementwise(split, "kv_write", 4 * split.kv_heads * model.head_dim, SpanClass.COPY))
    return _chain(chain)


def _latent_projections(split: Split) -> Block:
    model, latent = split.model, split.model.latent
    if latent is None:
        raise ValueError(f"model family {model.family!r} has no latent attention")
    cached, query = latent.kv_rank + latent.rope_dim, split.heads * (latent.nope_dim + latent.rope_dim)
    chain = [elementwise(split, "layernorm", 4 * model.hidden)]
    if latent.query_rank:
        chain += [
            matrix(split, "qkv_a_proj", model.hidden, latent.query_rank + cached),
            elementwise(split, "latent_norm", 2 * (latent.query_rank + latent.kv_rank)),
            matrix(split, "q_b_proj", latent.query_rank, query),
        ]
    else:
        chain += [
            matrix(split, "qkv_a_proj", model.hidden, query + cached),
            elementwise(split, "latent_norm", 2 * latent.kv_rank),
        ]
    chain += [
        elementwise(split, "rotary_emb", 2 * (split.heads + 1) * latent.rope_dim),
        elementwise(split, "kv_write", 2 * cached, SpanClass.COPY),
        # Prefill expands the latent vector, decoding folds the same weights into query and output: the same FLOPs.
        matrix(split, "kv_b_proj", latent.kv_rank, split.heads * (latent.nope_dim + latent.value_dim)),
    ]
    return _chain(chain)


def _attention(split: Split) -> Operator:
    model, latent = split.model, split.model.latent
    if latent:
        prefill = Heads(
            query=split.heads, kv=split.heads, key_dim=latent.nope_dim + latent.rope_dim, value_dim=latent.value_dim
        )
        cached = latent.kv_rank + latent.rope_dim
        decode = Heads(query=split.heads, kv=1, key_dim=cached, value_dim=latent.kv_rank)
    else:
        dim = model.head_dim
        prefill = decode = Heads(query=split.heads, kv=split.kv_heads, key_dim=dim, value_dim=dim)
    return Operator(
        kind="attention",
        span_class=SpanClass.ATTENTION,
        dtype=model.dtype,
        flops=Amount(
            per_prefill_pair=prefill.flops_per_pair,
            per_decode_context_token=decode.flops_per_pair,
        ),
        moved_bytes=Amount(per_token=2 * split.heads * prefill.value_dim * split.element_bytes),
        attention=AttentionTiles(prefill=prefill, decode=decode, kv_bytes_per_token=split.kv_bytes_per_token),
    )


def feed_forward(split: Split, moe: bool) -> Block:
    """Norm and feed-forward: dense, or routed experts beside a shared one."""
    norm = elementwise(split, "layernorm", 4 * split.model.hidden)
    if moe:
        return _expert_block(split, norm)
    return _reduced(split, _chain([norm, *_gated(split, "", split.model.intermediate / split.tensor)]))


def _gated(split: Split, prefix: str, size: float) -> list[Operator]:
    hidden = split.model.hidden
    return [
        matrix(split, f"{prefix}gate_up_proj", hidden, 2 * size),
        elementwise(split, f"{prefix}act_fn", 3 * size),
        matrix(split, f"{prefix}down_proj", size, hidden),
    ]


def _expert_block(split: Split, norm: Operator) -> Block:
    """The shared expert needs no exchange, so it runs while tokens travel to their experts."""
    model, experts = split.model, split.model.experts
    if experts is None:
        raise ValueError(f"model family {model.family!r} has no experts")
    ranks = max(split.expert // split.tensor, 1)
    block = _chain([norm, matrix(split, "router", model.hidden, experts.count)])
    routed_after = 1
    if ranks > 1:
        sent = experts.per_token * model.hidden / split.tensor
        block.append((exchange(split, "dispatch", Collective.ALL_TO_ALL, split.expert, sent), (1,)))
        routed_after = 2
    shared: tuple[int, ...] = ()
    if experts.shared_size:
        start = len(block)
        chain = _gated(split, "shared_", experts.shared_size / split.tensor)
        block += [(operator, (0 if i == 0 else start + i - 1,)) for i, operator in enumerate(chain)]
        shared = (len(block) - 1,)
    block.append((_experts(split, ranks), (routed_after,)))
    if ranks > 1:
        block.append((exchange(split, "combine", Collective.ALL_TO_ALL, split.expert, sent), (len(block) - 1,)))
    block.append((elementwise(split, "add", 3 * model.hidden), (len(block) - 1, *shared)))
    return _reduced(split, block)


def _experts(split: Split, ranks: int) -> Operator:
    """The experts of one device, which works on its even share of the tokens of all ranks."""
    model, experts = split.model, split.model.experts
    if experts is None:
        raise ValueError(f"model family {model.family!r} has no experts")
    held = experts.count // split.expert if split.expert > 1 else experts.count
    size = experts.size if split.expert > 1 else experts.size / split.tensor
    weights = 3.0 * model.hidden * size
    active = experts.per_token * 3.0 * model.hidden * experts.size / split.tensor
    return Operator(
        kind="experts",
        span_class=SpanClass.COMPUTE,
        dtype=model.weight_dtype,
        flops=Amount(per_token=2.0 * active),
        weight_bytes=held * weights * DTYPE_BYTES[model.weight_dtype],
        moved_bytes=Amount(
            per_token=experts.per_token * (2 * model.hidden + 3 * experts.size) / split.tensor * split.element_bytes
        ),
        routed=Routed(experts=experts.count, per_token=experts.per_token, ranks=ranks),
    )


def embedding(split: Split) -> Operator:
    """Look up a row per token. The table itself is held, not read: see `embedding_bytes`."""
    return elementwise(split, "embedding", 2 * split.model.hidden)


def embedding_bytes(split: Split) -> float:
    """Bytes of the embedding table on one device; none where it shares its weights with the head."""
    model = split.model
    return 0.0 if model.tied_embeddings else model.vocab * model.hidden / split.tensor * split.element_bytes


def head(split: Split) -> Block:
    """Final norm, logits of one token per sequence, and sampling over the whole vocabulary."""
    model = split.model
    logits = matrix(split, "lm_head", model.hidden, model.vocab / split.tensor, per_sequence=True)
    chain = [elementwise(split, "final_layernorm", 4 * model.hidden), logits]
    if split.tensor > 1:
        chain.append(
            Operator(
                kind="all_gather",
                span_class=SpanClass.COMMUNICATION,
                stream=Stream.COMMUNICATION,
                collective=Collective.ALL_GATHER,
                devices=split.tensor,
                message_bytes=Amount(per_sequence=model.vocab * split.element_bytes),
            )
        )
    # Logits are read, widened to fp32, written, and read again to sample: 10 bytes each.
    sampler = Operator(
        kind="sampler",
        span_class=SpanClass.ELEMENTWISE,
        flops=Amount(per_sequence=4.0 * model.vocab),
        moved_bytes=Amount(per_sequence=10.0 * model.vocab),
    )
    outputs = Operator(
        kind="outputs", span_class=SpanClass.COPY, stream=Stream.COPY, moved_bytes=Amount(per_sequence=8.0)
    )
    return _chain([*chain, sampler, outputs])


def hop(split: Split) -> Operator:
    """Hidden state and residual, handed to the next stage of the pipeline."""
    return exchange(split, "hop", Collective.SEND, 2, 2 * split.model.hidden / split.tensor)


def _chain(operators: list[Operator]) -> Block:
    return [(operator, (i - 1,)) for i, operator in enumerate(operators)]


def _reduced(split: Split, block: Block) -> Block:
    """Add the sum over tensor-parallel devices to the end of a block."""
    if split.tensor > 1:
        reduce = exchange(split, "all_reduce", Collective.ALL_REDUCE, split.tensor, split.model.hidden)
        block.append((reduce, (len(block) - 1,)))
    return block
