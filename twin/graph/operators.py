"""Operators and their graph: what one step computes, moves and sends, as functions of its shape. Knows no time.

All amounts are those of one device. Law: no amount is negative, and none falls when a count of the shape grows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from twin.cost.shape import StepShape
from twin.cost.taxonomy import SpanClass
from twin.graph.attention import AttentionTiles


class Stream(StrEnum):
    """What an operator occupies while it runs; operators of one stream run in program order, one at a time."""

    COMPUTE = "compute"
    COPY = "copy"
    COMMUNICATION = "communication"
    HOST = "host"


class Collective(StrEnum):
    """How devices exchange data."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    ALL_TO_ALL = "all_to_all"
    SEND = "send"

    def sent_ratio(self, devices: int) -> float:
        """Bytes one device sends per byte of its message, ring or pairwise.

        >>> Collective.ALL_REDUCE.sent_ratio(4)
        1.5
        """
        if self is Collective.SEND:
            return 1.0
        others = (devices - 1) / devices
        return 2 * others if self is Collective.ALL_REDUCE else others


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A quantity that is affine in the counts of a step. A sequence is a prefill chunk or a decoding request.

    >>> Amount(fixed=10.0, per_token=2.0).of(StepShape(prefill_requests=1, prefill_tokens=4, decode_requests=1))
    20.0
    """

    fixed: float = 0.0
    per_token: float = 0.0
    per_sequence: float = 0.0
    per_prefill_pair: float = 0.0
    per_decode_context_token: float = 0.0

    def of(self, shape: StepShape) -> float:
        """The quantity for one step."""
        return (
            self.fixed
            + self.per_token * (shape.prefill_tokens + shape.decode_requests)
            + self.per_sequence * (shape.prefill_requests + shape.decode_requests)
            + self.per_prefill_pair * shape.prefill_attention_pairs
            + self.per_decode_context_token * shape.decode_context_tokens
        )


NOTHING = Amount()


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """Expert weights are read only where a token is routed to: `experts` in all, `per_token` of them for each token.

    `ranks` engines send their tokens to the same experts. Routing is taken as uniform.
    """

    experts: int
    per_token: int
    ranks: int = 1

    def touched_ratio(self, tokens: float) -> float:
        """Expected share of the experts that at least one of `tokens` tokens per rank is routed to.

        >>> round(Routed(experts=8, per_token=2).touched_ratio(1), 12)
        0.25
        """
        return 1.0 - math.pow(1.0 - self.per_token / self.experts, tokens * self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator of one device.

    `kind` names the cluster of operators it is measured with (vLLM's own module names). `flops` are matrix FLOPs in
    `dtype`, or vector FLOPs where `dtype` is None. `weight_bytes` are read once a step, `moved_bytes` are activations.
    `message_bytes` are exchanged between `devices` by `collective`. Host work has no amounts here: the hardware says.
    """

    kind: str
    span_class: SpanClass
    stream: Stream = Stream.COMPUTE
    dtype: str | None = None
    flops: Amount = NOTHING
    weight_bytes: float = 0.0
    moved_bytes: Amount = NOTHING
    routed: Routed | None = None
    attention: AttentionTiles | None = None
    collective: Collective | None = None
    devices: int = 1
    message_bytes: Amount = NOTHING

    def bytes_moved(self, shape: StepShape) -> float:
        """Bytes read and written in device memory (over the host link for the copy stream)."""
        weights = self.weight_bytes
        if self.routed is not None:
            weights *= self.routed.touched_ratio(shape.prefill_tokens + shape.decode_requests)
        kv = self.attention.kv_bytes(shape) if self.attention is not None else 0.0
        return weights + self.moved_bytes.of(shape) + kv

    def bytes_sent(self, shape: StepShape) -> float:
        """Bytes this device sends to others."""
        if self.collective is None:
            return 0.0
        return self.message_bytes.of(shape) * self.collective.sent_ratio(self.devices)


@dataclass(frozen=True, slots=True)
class Node:
    """An operator at its place: `after` are indexes of earlier nodes, `stage` is its stage of the pipeline."""

    name: str
    operator: Operator
    after: tuple[int, ...] = ()
    stage: int = 0


@dataclass(frozen=True)
class OperatorGraph:
    """Nodes in program order, for one of `devices` devices. Law: a node depends on earlier nodes only: no cycles.

    `kv_bytes_per_token` and `weight_bytes` are what the fullest device holds.
    """

    nodes: tuple[Node, ...]
    kv_bytes_per_token: float = 0.0
    weight_bytes: float = 0.0
    devices: int = 1

    def __post_init__(self) -> None:
        for index, node in enumerate(self.nodes):
            late = [i for i in node.after if not 0 <= i < index]
            if late:
                raise ValueError(f"operator {node.name!r} at {index} must come after what it depends on, got {late}")

    @cached_property
    def operators(self) -> Mapping[str, Operator]:
        """One operator of each kind: the first in program order."""
        return {node.operator.kind: node.operator for node in reversed(self.nodes)}
