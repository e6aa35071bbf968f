"""Decode steps padded to the batch sizes for which an engine captured graphs, as vLLM does with CUDA graphs.

For costs that do not know of it: hardware priors and measured operators. Costs learned from steps hold it already. Only
steps of decodes alone are padded, and padding attends to nothing.
Law: padding never makes a step cheaper, and twice padded is once padded.

Reference: vLLM, vllm/v1/cudagraph_dispatcher.py.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from twin.cost.frozen import FrozenStepCost
from twin.cost.shape import Role, StepShape


def padded_requests(decode_requests: int, capture_sizes: Sequence[int]) -> int:
    """The smallest captured size that holds so many; without one, they run as they are.

    >>> [padded_requests(n, (1, 2, 4, 8)) for n in (1, 3, 8, 9)]
    [1, 4, 8, 9]
    """
    sizes = sorted(capture_sizes)
    at = bisect_left(sizes, decode_requests)
    return sizes[at] if at < len(sizes) else decode_requests


def padded_shape(shape: StepShape, capture_sizes: Sequence[int]) -> StepShape:
    """The step that runs when this one is asked for."""
    if shape.role is not Role.DECODE:
        return shape
    return replace(shape, decode_requests=padded_requests(shape.decode_requests, capture_sizes))


def padded_cost(cost: FrozenStepCost, capture_sizes: Sequence[int]) -> FrozenStepCost:
    """The same costs with padded decodes, up to as many sequences as the cost's table has."""
    decode = cost.decode
    table = tuple(decode.decodes_ps(padded_requests(n, capture_sizes)) for n in range(len(decode.decode_requests_ps)))
    # No step has no decode; its entry is the fixed cost.
    fixed = decode.decode_requests_ps[:1]
    return replace(cost, decode=replace(decode, decode_requests_ps=fixed + table[1:]))
