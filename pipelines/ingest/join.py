"""Spans of one trace brought together, in whatever order they come, within a bound. Does not read bytes.

A request span that needs nothing else is a record at once. Where its trace has more to tell (stages of SGLang's
scheduler, a gateway's span named by the mapping) it is held until it is complete or until event time has moved
`hold_s` past its end; spans whose request never comes are counted as orphans and forgotten after `orphan_s`.

Laws: any order in which no span is displaced by more than `hold_s` gives the same records; every span ends as exactly
one of used, orphan, refused, ignored; at most `max_traces` traces are held.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pipelines.ingest.otlp import Span
from pipelines.ingest.span_mapping import SpanMapping
from pipelines.ingest.spans import is_request, is_stage, refused_by_gateway, rejected_record, request_record
from schemas.codec import SchemaError
from schemas.requests import RequestRecord

NS_PER_S = 1_000_000_000
HOLD_S = 5.0
ORPHAN_S = 60.0
MAX_TRACES = 20_000
MAX_JUMP_NS = 60 * NS_PER_S
_SWEEP_NS = NS_PER_S // 4


@dataclass(slots=True)
class _Trace:
    """What is known of one trace; its clock starts at the end of its newest span. `mark` came with its first span."""

    requests: list[Span] = field(default_factory=list)
    stages: list[Span] = field(default_factory=list)
    frontends: list[Span] = field(default_factory=list)
    newest_ns: int = 0
    mark: int = 0

    def spans(self) -> int:
        return len(self.requests) + len(self.stages) + len(self.frontends)


@dataclass(slots=True)
class Joined:
    """Records that became complete, in order of event time, and spans refused with why."""

    records: list[RequestRecord] = field(default_factory=list)
    refused: list[tuple[Span, SchemaError]] = field(default_factory=list)


class SpanJoiner:
    """Joins spans by trace. `counts` says what became of every span taken."""

    def __init__(
        self, mapping: SpanMapping, *, hold_s: float = HOLD_S, orphan_s: float = ORPHAN_S, max_traces: int = MAX_TRACES
    ) -> None:
        if not 0.0 < hold_s <= orphan_s or max_traces < 1:
            raise ValueError(f"need 0 < hold_s <= orphan_s and max_traces >= 1, got {hold_s}, {orphan_s}, {max_traces}")
        self._mapping = mapping
        self._hold_ns = round(max(hold_s, mapping.timeout_s if mapping.frontend_span else 0.0) * NS_PER_S)
        self._orphan_ns = max(round(orphan_s * NS_PER_S), self._hold_ns)
        self._max_traces = max_traces
        self._traces: OrderedDict[str, _Trace] = OrderedDict()
        self._now_ns = 0
        self._suspect_ns = 0
        self._swept_ns = 0
        self.counts: Counter[str] = Counter()

    @property
    def held_spans(self) -> int:
        """Spans that wait for the rest of their trace."""
        return sum(trace.spans() for trace in self._traces.values())

    @property
    def oldest_mark(self) -> int | None:
        """The mark of the first span of the trace that is held the longest; None when none is held."""
        return next((trace.mark for trace in self._traces.values()), None)

    def add(self, spans: Iterable[Span], mark: int = 0) -> Joined:
        """Take spans; returns what became complete by them or by the time they tell. `mark` rises from call to call."""
        joined = Joined()
        for span in spans:
            self._take(span, joined, mark)
            self._advance(span.end_ns)
        self._expire(joined)
        joined.records.sort(key=lambda record: (record.at_us, record.request_id))
        return joined

    def flush(self) -> Joined:
        """The stream is over: settle everything that is held."""
        joined = Joined()
        while self._traces:
            self._settle(self._traces.popitem(last=False)[1], joined)
        joined.records.sort(key=lambda record: (record.at_us, record.request_id))
        return joined

    def _take(self, span: Span, joined: Joined, mark: int) -> None:
        frontend = bool(self._mapping.frontend_span) and span.name == self._mapping.frontend_span
        request = not frontend and is_request(span)
        if not (frontend or request or is_stage(span)):
            self.counts["ignored"] += 1
            return
        if request and span.scope.startswith("vllm") and not self._mapping.frontend_span:
            self._emit(span, (), None, joined)
            return
        trace = self._traces.setdefault(span.trace_id, _Trace(mark=mark))
        (trace.frontends if frontend else trace.requests if request else trace.stages).append(span)
        trace.newest_ns = max(trace.newest_ns, span.end_ns)
        if len(self._traces) > self._max_traces:
            self._settle(self._traces.popitem(last=False)[1], joined)

    def _advance(self, end_ns: int) -> None:
        """Event time; a jump of more than 60 s counts only when a second span confirms it."""
        if self._now_ns and end_ns > self._now_ns + MAX_JUMP_NS:
            confirmed = self._suspect_ns > 0 and abs(end_ns - self._suspect_ns) <= MAX_JUMP_NS
            self._suspect_ns = end_ns
            if not confirmed:
                return
        self._now_ns = max(self._now_ns, end_ns)

    def _expire(self, joined: Joined) -> None:
        if self._now_ns - self._swept_ns < _SWEEP_NS:
            return
        self._swept_ns = self._now_ns
        due = [
            trace_id
            for trace_id, trace in self._traces.items()
            if self._now_ns - trace.newest_ns > (self._hold_ns if trace.requests else self._orphan_ns)
        ]
        for trace_id in due:
            self._settle(self._traces.pop(trace_id), joined)

    def _settle(self, trace: _Trace, joined: Joined) -> None:
        frontend = min(trace.frontends, key=lambda span: (span.start_ns, span.span_id), default=None)
        if not trace.requests:
            self._settle_without_request(trace, frontend, joined)
            return
        for place, request in enumerate(sorted(trace.requests, key=lambda span: (span.start_ns, span.span_id))):
            mine = tuple(stage for stage in trace.stages if _within(stage, request, trace))
            self._emit(request, mine, frontend if place == 0 else None, joined)
        self.counts["used"] += len(trace.stages) + len(trace.frontends)

    def _settle_without_request(self, trace: _Trace, frontend: Span | None, joined: Joined) -> None:
        if frontend is None or not refused_by_gateway(frontend):
            self.counts["orphan"] += trace.spans()
            return
        self.counts["orphan"] += len(trace.stages) + len(trace.frontends) - 1
        self._record(frontend, lambda: rejected_record(frontend, self._mapping), joined)

    def _emit(self, request: Span, stages: tuple[Span, ...], frontend: Span | None, joined: Joined) -> None:
        self._record(request, lambda: request_record(request, self._mapping, stages, frontend), joined)

    def _record(self, span: Span, make: Callable[[], RequestRecord], joined: Joined) -> None:
        try:
            joined.records.append(make())
        except SchemaError as error:
            joined.refused.append((span, error))
            self.counts["refused"] += 1
        else:
            self.counts["used"] += 1


def _within(stage: Span, request: Span, trace: _Trace) -> bool:
    """A trace may hold several requests (a session): a stage belongs to the one whose time it lies in."""
    return len(trace.requests) == 1 or request.start_ns <= stage.start_ns <= request.end_ns
