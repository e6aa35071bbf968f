"""Time of an operator from hardware alone: the larger of compute and memory, at the share of peak that kernels reach.

References: Williams et al., Roofline, CACM 2009; Graham, Bounds on multiprocessing timing anomalies, 1969 (a set of
tiles takes at least all work over all cores, and at least its longest tile on one core).
Law: twice the bandwidth and twice the peak is half the time, launches and latencies aside.
"""

from dataclasses import dataclass
from typing import Protocol

from twin.cost.shape import StepShape
from twin.cost.taxonomy import SpanClass
from twin.graph.operators import Operator, Stream
from twin.hardware.topology import Hardware


class OperatorCost(Protocol):
    """Seconds of one operator. A promise of every implementation: >= 0, finite, deterministic."""

    def operator_s(self, operator: Operator, shape: StepShape) -> float:
        """Seconds the operator's own work takes in a step of this shape."""
        ...

    def launch_s(self, operator: Operator) -> float:
        """Seconds its stream is busy starting it, before that work."""
        ...


@dataclass(frozen=True, slots=True)
class Roofline:
    """The prior of every operator on one kind of hardware."""

    hardware: Hardware

    def operator_s(self, operator: Operator, shape: StepShape) -> float:
        """Seconds of work. Raises ValueError if the hardware lacks a link or a data type that the operator needs."""
        if operator.stream is Stream.HOST:
            return self._host_s(operator, shape)
        if operator.stream is Stream.COMMUNICATION:
            return self.hardware.link_for(operator.devices).transfer_s(operator.bytes_sent(shape))
        if operator.stream is Stream.COPY:
            link = self.hardware.host_link
            return link.transfer_s(operator.bytes_moved(shape)) if link else 0.0
        return max(self.compute_s(operator, shape), self.memory_s(operator, shape))

    def launch_s(self, operator: Operator) -> float:
        """Kernels are launched; messages and host work carry their own latency."""
        return self.hardware.device.launch_s if operator.stream is Stream.COMPUTE else 0.0

    def compute_s(self, operator: Operator, shape: StepShape) -> float:
        """Seconds if memory were free."""
        device = self.hardware.device
        if operator.dtype is None:
            return operator.flops.of(shape) / device.vector_flops_per_s
        reached = device.peak(operator.dtype) * device.compute_efficiency_ratio
        if operator.attention is None:
            return operator.flops.of(shape) / reached
        total, longest = operator.attention.tiled_flops(shape, packed=device.packs_query_heads)
        return max(total, longest * device.cores) / reached

    def memory_s(self, operator: Operator, shape: StepShape) -> float:
        """Seconds if compute were free."""
        device = self.hardware.device
        reached = device.memory_bandwidth_bytes_per_s * device.memory_efficiency_ratio
        return operator.bytes_moved(shape) / reached

    def _host_s(self, operator: Operator, shape: StepShape) -> float:
        host = self.hardware.host
        if operator.span_class is SpanClass.SYNC:
            return host.sync_s
        return host.step_s + host.sequence_s * (shape.prefill_requests + shape.decode_requests)
