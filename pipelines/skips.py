"""Results that a live run went on without, as records of the ticks topic. Decides none.

Law: what is written of a job is read back as its skip; a record that cannot be decoded skips nothing.
"""

from pipelines.outputs import Outgoing
from schemas.changes import Skipped
from schemas.codec import SchemaError, decode, encode
from schemas.topics import TICKS
from twin.job import SimulationJob

Skip = tuple[str, int, str]
"""Deployment, event time of the tick, phase."""


def skip_record(job: SimulationJob, at_us: int) -> Outgoing:
    """The record that a job was not waited for at an event time."""
    record = Skipped(deployment=job.deployment, at_us=at_us, tick_us=job.as_of_us, phase=job.phase)
    return Outgoing(TICKS.name, job.deployment, job.deployment.encode(), encode(record), (), at_us)


def skip_of(value: bytes | None) -> Skip | None:
    """The skip that a record of the ticks topic tells of, None where it tells of none.

    >>> skip_of(b"no record") is None
    True
    """
    try:
        tick = None if value is None else decode(TICKS.name, value).record
    except SchemaError:
        return None
    return (tick.deployment, tick.tick_us, tick.phase) if isinstance(tick, Skipped) else None
