"""What if one thing were cheaper: a span class, a kind of operator, a resource of the hardware.

Bottlenecks are ranked by effect, not by share: a class that hides behind another gains nothing when it shrinks.
Changes costs only; running the twin on them is the caller's. Law: cheaper never makes a step longer.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from twin.cost.freeze import OperatingRange, StepSeconds, freeze
from twin.cost.frozen import PS_PER_S, FrozenStepCost, StepCost
from twin.cost.roofline import OperatorCost, Roofline
from twin.cost.shape import StepShape
from twin.cost.tables import MeasuredCosts
from twin.cost.taxonomy import SpanClass
from twin.graph.operators import Operator, OperatorGraph
from twin.graph.timeline import step_s
from twin.hardware.topology import Hardware, Link

RESOURCES = ("compute", "memory_bandwidth", "links", "launch", "host")
"""What of the hardware can be made cheaper."""


@dataclass(frozen=True, slots=True)
class Change:
    """Time of one thing times `factor` (> 0): of a span class with its subclasses, an operator kind, or a resource."""

    what: Literal["class", "operator", "resource"]
    name: str
    factor: float = 0.9

    def __post_init__(self) -> None:
        if not 0.0 < self.factor < 1e6:
            raise ValueError(f"factor of {self.what} {self.name!r} must be a finite number > 0, got {self.factor}")
        if self.what == "class" and self.name not in set(SpanClass):
            raise ValueError(f"span class {self.name!r} is not known; expected one of {', '.join(SpanClass)}")
        if self.what == "resource" and self.name not in RESOURCES:
            raise ValueError(f"resource {self.name!r} is not known; expected one of {', '.join(RESOURCES)}")


@dataclass(frozen=True, slots=True)
class Scaled:
    """Operator costs with one class or one kind of operator changed."""

    costs: OperatorCost
    change: Change

    def operator_s(self, operator: Operator, shape: StepShape) -> float:
        """Seconds after the change."""
        span_class = operator.span_class
        names = (operator.kind,) if self.change.what == "operator" else (span_class, span_class.top)
        return self.costs.operator_s(operator, shape) * (self.change.factor if self.change.name in names else 1.0)

    def launch_s(self, operator: Operator) -> float:
        """Launches belong to the class `launch`, and to their operator."""
        names = (operator.kind,) if self.change.what == "operator" else (SpanClass.LAUNCH,)
        return self.costs.launch_s(operator) * (self.change.factor if self.change.name in names else 1.0)


def changed(costs: Roofline | MeasuredCosts, change: Change) -> OperatorCost:
    """`costs` after the change."""
    if change.what != "resource":
        return Scaled(costs, change)
    roofline = costs if isinstance(costs, Roofline) else costs.roofline
    faster = Roofline(scaled_hardware(roofline.hardware, change.name, change.factor))
    return faster if isinstance(costs, Roofline) else replace(costs, roofline=faster)


def scaled_hardware(hardware: Hardware, resource: str, factor: float) -> Hardware:
    """Hardware on which a resource takes `factor` times the time. Raises ValueError on an unknown resource."""
    device, host = hardware.device, hardware.host
    if resource == "compute":
        peaks = {dtype: peak / factor for dtype, peak in device.peak_flops_per_s.items()}
        vector = device.vector_flops_per_s / factor
        return replace(hardware, device=replace(device, peak_flops_per_s=peaks, vector_flops_per_s=vector))
    if resource == "memory_bandwidth":
        bandwidth = device.memory_bandwidth_bytes_per_s / factor
        return replace(hardware, device=replace(device, memory_bandwidth_bytes_per_s=bandwidth))
    if resource == "launch":
        return replace(hardware, device=replace(device, launch_s=device.launch_s * factor))
    if resource == "host":
        times = {name: getattr(host, name) * factor for name in ("step_s", "sequence_s", "sync_s")}
        return replace(hardware, host=replace(host, **times))
    if resource == "links":
        links = tuple(_scaled_link(link, factor) for link in hardware.links)
        host_link = _scaled_link(hardware.host_link, factor) if hardware.host_link else None
        return replace(hardware, links=links, host_link=host_link)
    raise ValueError(f"resource {resource!r} is not known; expected one of {', '.join(RESOURCES)}")


def _scaled_link(link: Link, factor: float) -> Link:
    bandwidth = link.bandwidth_bytes_per_s / factor
    return replace(link, bandwidth_bytes_per_s=bandwidth, latency_s=link.latency_s * factor)


def all_changes(graph: OperatorGraph, factor: float = 0.9) -> Iterator[Change]:
    """Every class and kind of operator that the graph has, and every resource."""
    operators = graph.operators
    for span_class in sorted({operator.span_class for operator in operators.values()} | {SpanClass.LAUNCH}):
        yield Change("class", span_class, factor)
    for kind in operators:
        yield Change("operator", kind, factor)
    for resource in RESOURCES:
        yield Change("resource", resource, factor)


def rank(
    graph: OperatorGraph, costs: Roofline | MeasuredCosts, shape: StepShape, changes: Iterable[Change]
) -> list[tuple[Change, float]]:
    """Changes with the share of a step's time that each saves, largest first."""
    before = step_s(graph, costs, shape)
    saved = [(change, 1.0 - step_s(graph, changed(costs, change), shape) / before) for change in changes]
    return sorted(saved, key=lambda item: -item[1])


def carry_over(learned: StepCost, before: StepSeconds, after: StepSeconds, work: OperatingRange) -> FrozenStepCost:
    """Learned costs after a change that only the operator graph knows: times `after / before` at every shape."""
    return freeze(lambda shape: learned.step_ps(shape) / PS_PER_S * after(shape) / before(shape), work)
