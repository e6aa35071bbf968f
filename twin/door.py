"""The door of the core: well-formed records that cannot be true. Says why; repairs nothing.

Law: what passes has times in causal order and no latency that is negative, zero by omission, or a failure's.
"""

from schemas.requests import RequestAborted, RequestFinished
from schemas.steps import Step

LONGEST_REQUEST_US = 24 * 3600 * 1_000_000


def objection(record: object) -> str | None:
    """The reason why a record is quarantined, or None if it may be applied.

    >>> from schemas.steps import Step
    >>> objection(Step(step=1, start_us=1796052001416172, duration_us=90_000_000_000))
    'out_of_range'
    """
    if isinstance(record, RequestFinished):
        return _finished(record)
    if isinstance(record, RequestAborted) and record.arrived_us is not None and record.at_us < record.arrived_us:
        return "negative_duration"
    if isinstance(record, Step):
        return _step(record)
    return None


def passes(shortest_us: int, longest_us: int) -> bool:
    """Whether no step of such a duration is objected to, whatever else is in it."""
    return shortest_us > 0 and longest_us <= LONGEST_REQUEST_US


def _finished(record: RequestFinished) -> str | None:
    seen = (record.arrived_us, record.first_token_us, record.at_us)
    engine = (
        record.engine_queued_us,
        record.engine_scheduled_us,
        record.engine_first_token_us,
        record.engine_last_token_us,
    )
    if not (_in_order(seen) and _in_order(engine)):
        return "negative_duration"
    if record.at_us - record.arrived_us > LONGEST_REQUEST_US:
        return "out_of_range"
    if record.osl_tokens == 0 or record.isl_tokens == 0:
        return "zero_tokens"
    return None


def _in_order(stamps: tuple[int | None, ...]) -> bool:
    """Whether no known stamp precedes one before it."""
    latest = 0
    for stamp in stamps:
        if stamp is not None:
            if stamp < latest:
                return False
            latest = stamp
    return True


def _step(record: Step) -> str | None:
    if record.duration_us > LONGEST_REQUEST_US:
        return "out_of_range"
    if record.duration_us == 0 and record.prefill_tokens + record.decode_requests > 0:
        return "zero_duration"
    return None
