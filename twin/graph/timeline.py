"""When each operator of a step runs: list scheduling on streams, each of which starts its operators in program order.

That is how engines launch kernels, and it makes the step a max-plus sum of its operators. Does not model contention
inside a stream. Law: critical path <= step <= sum of all operators; a cheaper operator never makes the step longer.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from twin.cost.roofline import OperatorCost
from twin.cost.shape import StepShape
from twin.cost.taxonomy import SpanClass
from twin.graph.operators import Operator, OperatorGraph, Stream


@dataclass(frozen=True, slots=True)
class Span:
    """One operator in time, seconds from the start of the step; `launch_s` of it is the launch."""

    name: str
    operator: Operator
    stage: int
    start_s: float
    end_s: float
    launch_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """A step in time. `critical` are indexes of the spans that decided its length, first to last."""

    spans: tuple[Span, ...]
    critical: tuple[int, ...]

    @property
    def step_s(self) -> float:
        """Seconds from the start of the first operator to the end of the last."""
        return max(span.end_s for span in self.spans)

    @property
    def busy_s(self) -> float:
        """Seconds of all operators, were they to run one after another."""
        return sum(span.end_s - span.start_s for span in self.spans)

    @property
    def overlap_s(self) -> float:
        """Seconds saved by running streams side by side."""
        return self.busy_s - self.step_s

    def class_s(self) -> Mapping[SpanClass, float]:
        """Seconds of work per span class, overlapped or not; launches are a class of their own."""
        seconds: dict[SpanClass, float] = {}
        for span in self.spans:
            kind = span.operator.span_class
            seconds[kind] = seconds.get(kind, 0.0) + span.end_s - span.start_s - span.launch_s
            seconds[SpanClass.LAUNCH] = seconds.get(SpanClass.LAUNCH, 0.0) + span.launch_s
        return seconds


def timeline(graph: OperatorGraph, costs: OperatorCost, shape: StepShape) -> Timeline:
    """Schedule one step of this shape."""
    starts, ends, launches, blockers = _schedule(graph, costs, shape)
    spans = tuple(
        Span(node.name, node.operator, node.stage, start, end, launch)
        for node, start, end, launch in zip(graph.nodes, starts, ends, launches, strict=True)
    )
    path = [max(range(len(ends)), key=ends.__getitem__)]
    while blockers[path[-1]] >= 0:
        path.append(blockers[path[-1]])
    return Timeline(spans, tuple(reversed(path)))


def step_s(graph: OperatorGraph, costs: OperatorCost, shape: StepShape) -> float:
    """Seconds of one step of this shape, start to end."""
    return max(_schedule(graph, costs, shape)[1])


def _schedule(
    graph: OperatorGraph, costs: OperatorCost, shape: StepShape
) -> tuple[list[float], list[float], list[float], list[int]]:
    """(start, end, launch, index of the node waited for or -1) of every node."""
    known: dict[int, tuple[float, float]] = {}
    last_on: dict[tuple[int, Stream], int] = {}
    starts: list[float] = []
    ends: list[float] = []
    launches: list[float] = []
    blockers: list[int] = []
    for index, node in enumerate(graph.nodes):
        operator = node.operator
        # Layers share their operators, so each is costed once per shape.
        if id(operator) not in known:
            known[id(operator)] = costs.launch_s(operator), costs.operator_s(operator, shape)
        launch, work = known[id(operator)]
        stream = (node.stage, operator.stream)
        start, blocker = 0.0, -1
        for before in (last_on.get(stream, -1), *node.after):
            if before >= 0 and ends[before] >= start:
                start, blocker = ends[before], before
        last_on[stream] = index
        starts.append(start)
        ends.append(start + launch + work)
        launches.append(launch)
        blockers.append(blocker)
    return starts, ends, launches, blockers
