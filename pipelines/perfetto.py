"""A simulated run as a Chrome trace that ui.perfetto.dev opens: requests in lanes, counters of queues and blocks.

Each engine is a process. A request lies in the first free lane, with its phases inside it: queued, prefill, decode.
Does not write files. Laws: spans of one lane are apart or inside one another, never across; times never run backwards
within a lane.

References: "Trace Event Format", the JSON that chrome://tracing and Perfetto read.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

import msgspec
import numpy as np

from twin.engine.types import Status, Timeline
from twin.known.requests import KnownRequests
from twin.known.run import KnownRun

NS_PER_S = 1_000_000_000
PS_PER_NS = 1_000
COUNTERS = ("waiting", "running", "kv_used_blocks")
Event = dict[str, Any]


def perfetto_trace(requests: KnownRequests, run: KnownRun, source: str) -> bytes:
    """The trace; counters are there if the run has timelines."""
    events: list[Event] = []
    for place, (engine, result) in enumerate(zip(run.engines, run.results, strict=True)):
        pid = place + 1
        events.append(_named("process_name", pid, 0, f"engine {engine.config.engine}"))
        events += _requests(requests, run, np.flatnonzero(run.engine == place).tolist(), pid)
        if result.timeline is not None:
            events += _counters(result.timeline, pid)
    content = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"source": source, "by": "twincast"}}
    return msgspec.json.encode(content)


def _requests(requests: KnownRequests, run: KnownRun, rows: list[int], pid: int) -> Iterator[Event]:
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    lanes = 0
    for row in sorted(rows, key=lambda row: _start_ns(requests, run, row)):
        start = _start_ns(requests, run, row)
        if run.status[row] != Status.FINISHED:
            yield _instant(requests, row, start, pid)
            continue
        end = _ns(run.last_s[row])
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        if free:
            lane = heappop(free)
        else:
            lanes += 1
            lane = lanes
            yield _named("thread_name", pid, lane, f"requests {lane:03}")
        heappush(busy, (end, lane))
        yield from _spans(requests, run, row, pid, lane, start, end)


def _spans(
    requests: KnownRequests, run: KnownRun, row: int, pid: int, lane: int, start: int, end: int
) -> Iterator[Event]:
    details = {
        "request_id": requests.ids[row],
        "isl_tokens": int(requests.isl_tokens[row]),
        "osl_tokens": int(run.generated_tokens[row]),
        "cached_tokens": int(run.cached_tokens[row]),
        "preemptions": int(run.preemptions[row]),
    }
    yield _span(f"request {requests.ids[row]}", pid, lane, start, end, details)
    edges = (start, _ns(run.scheduled_s[row]), _ns(run.first_s[row]), end)
    for name, left, right in zip(("queued", "prefill", "decode"), edges[:-1], edges[1:], strict=True):
        if right > left:
            yield _span(name, pid, lane, left, right, {})


def _counters(timeline: Timeline, pid: int) -> Iterator[Event]:
    """One event per change; `busy` is the share of the interval before that was spent in steps."""
    step_ns = timeline.step_ps // PS_PER_NS
    busy_percent = np.rint(np.diff(timeline.busy_ps, prepend=0) * 100.0 / timeline.step_ps).astype(np.int64)
    columns = {name: getattr(timeline, name) for name in COUNTERS} | {"busy_percent": np.minimum(busy_percent, 100)}
    for name, values in columns.items():
        changes = np.flatnonzero(np.diff(values, prepend=values[:1] - 1))
        for at in changes.tolist():
            yield {
                "ph": "C",
                "name": name,
                "pid": pid,
                "ts": at * step_ns / 1e3,
                "args": {name: int(values[at])},
            }


def _start_ns(requests: KnownRequests, run: KnownRun, row: int) -> int:
    at_s = run.queued_s[row]
    return _ns(requests.arrived_s[row] if np.isnan(at_s) else at_s)


def _ns(seconds: float) -> int:
    return round(float(seconds) * NS_PER_S)


def _span(name: str, pid: int, tid: int, start: int, end: int, args: dict[str, Any]) -> Event:
    return {
        "ph": "X",
        "name": name,
        "cat": "request",
        "pid": pid,
        "tid": tid,
        "ts": start / 1e3,
        "dur": (end - start) / 1e3,
        "args": args,
    }


def _instant(requests: KnownRequests, row: int, at: int, pid: int) -> Event:
    return {
        "ph": "i",
        "s": "p",
        "name": f"refused {requests.ids[row]}",
        "cat": "request",
        "pid": pid,
        "tid": 0,
        "ts": at / 1e3,
        "args": {},
    }


def _named(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}
