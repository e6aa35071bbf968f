"""From prepared rows to requests inside an engine, at its start and later. Schedules nothing."""

from typing import NamedTuple

from twin.engine.prepare import Prepared, Table
from twin.engine.record import Ledger
from twin.engine.request import Request
from twin.engine.scheduler import Scheduler


class Rows:
    """The requests of a run, made when they enter an engine. Shared by the engines of a cluster."""

    __slots__ = ("_arrived", "_ends", "_isl", "_keys", "_osl", "_rank", "deadline")

    def __init__(self, table: Table) -> None:
        self._keys = table.keys
        self._isl: list[int] = table.isl_tokens.tolist()
        self._osl: list[int] = table.osl_tokens.tolist()
        self._rank: list[int] = table.rank.tolist()
        self._ends: list[int] = table.key_offsets.tolist()
        self._arrived = None if table.arrived_tokens is None else table.arrived_tokens.tolist()
        self.deadline: list[int] = table.deadline_ps.tolist()

    def request(self, row: int) -> Request:
        """The request of this row, as it is before the window."""
        first, end = self._ends[row], self._ends[row + 1]
        keys = self._keys[first:end].tolist() if end > first else None
        request = Request(row, self._isl[row], self._osl[row], self._rank[row], keys)
        if self._arrived is not None:
            request.arrived_tokens = self._arrived[row]
        return request


class Seat(NamedTuple):
    """An engine's place in a cluster's count of requests that were sent and have not left."""

    outstanding: list[int]
    engine: int


Parts = tuple[Ledger, Rows, Seat]
"""What the engines of a cluster share."""


def warm_up(given: Prepared, rows: Rows, scheduler: Scheduler) -> list[Request]:
    """Put the carried requests and cached blocks into an empty scheduler; `prepare` saw that they fit."""
    table = given.table
    requests = [rows.request(given.first_carried + i) for i in range(given.carried)]
    for request in requests:
        request.generated = int(table.generated_tokens[request.row])
        request.preemptions = int(table.preemptions[request.row])
        request.computed = int(table.computed_tokens[request.row])
    for request in requests[: given.running]:
        scheduler.restore(request, in_flight=given.step_left_ps > 0)
    for request in requests[given.running :]:
        scheduler.waiting.push(request)
    scheduler.memory.park(given.cached_keys.tolist())
    return requests
