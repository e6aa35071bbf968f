"""From prepared rows to requests inside an engine, at its start and later. Schedules nothing."""

from twin.engine.prepare import Prepared
from twin.engine.request import Request
from twin.engine.scheduler import Scheduler


def new_request(given: Prepared, row: int) -> Request:
    """The request of this row, as it is before the window."""
    first, end = int(given.key_offsets[row]), int(given.key_offsets[row + 1])
    request = Request(
        row,
        int(given.isl_tokens[row]),
        int(given.osl_tokens[row]),
        int(given.rank[row]),
        given.keys[first:end].tolist() if end > first else None,
    )
    if row < given.carried:
        request.generated = int(given.generated_tokens[row])
        request.preemptions = int(given.preemptions[row])
        request.computed = int(given.computed_tokens[row])
    return request


def warm_up(given: Prepared, scheduler: Scheduler) -> list[Request]:
    """Put the carried requests and cached blocks into an empty scheduler; ValueError if they do not fit."""
    requests = [new_request(given, row) for row in range(given.carried)]
    for request in requests[: given.running]:
        try:
            scheduler.restore(request, in_flight=given.step_left_ps > 0)
        except ValueError as error:
            raise ValueError(f"state.running[{request.row}].computed_tokens: {error}") from error
    for request in requests[given.running :]:
        scheduler.waiting.push(request)
    scheduler.memory.park(given.cached_keys.tolist())
    return requests
