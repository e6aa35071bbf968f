"""From prepared rows to requests inside an engine, at its start and later. Schedules nothing."""

from twin.engine.prepare import Prepared
from twin.engine.request import Request
from twin.engine.scheduler import Scheduler


class Rows:
    """The requests of a run, made when they enter an engine."""

    __slots__ = ("_ends", "_given", "_isl", "_osl", "_rank")

    def __init__(self, given: Prepared) -> None:
        self._given = given
        self._isl: list[int] = given.isl_tokens.tolist()
        self._osl: list[int] = given.osl_tokens.tolist()
        self._rank: list[int] = given.rank.tolist()
        self._ends: list[int] = given.key_offsets.tolist()

    def request(self, row: int) -> Request:
        """The request of this row, as it is before the window."""
        first, end = self._ends[row], self._ends[row + 1]
        keys = self._given.keys[first:end].tolist() if end > first else None
        return Request(row, self._isl[row], self._osl[row], self._rank[row], keys)


def warm_up(given: Prepared, scheduler: Scheduler) -> list[Request]:
    """Put the carried requests and cached blocks into an empty scheduler; ValueError if they do not fit."""
    rows = Rows(given)
    requests = [rows.request(row) for row in range(given.carried)]
    for row, request in enumerate(requests):
        request.generated = int(given.generated_tokens[row])
        request.preemptions = int(given.preemptions[row])
        request.computed = int(given.computed_tokens[row])
    for request in requests[: given.running]:
        try:
            scheduler.restore(request, in_flight=given.step_left_ps > 0)
        except ValueError as error:
            raise ValueError(f"state.running[{request.row}].computed_tokens: {error}") from error
    for request in requests[given.running :]:
        scheduler.waiting.push(request)
    scheduler.memory.park(given.cached_keys.tolist())
    return requests
