"""What the core asks its shell to do. Data only; the shell carries it out and feeds results back as input."""

from dataclasses import dataclass
from typing import Any

from schemas.topics import Topic
from twin.intake import Refusal
from twin.job import SimulationJob


@dataclass(frozen=True, slots=True)
class Emit:
    """Write a record to an output topic under a key."""

    topic: Topic
    key: str
    record: Any


@dataclass(frozen=True, slots=True)
class Simulate:
    """Run a job outside the event loop; its result comes back through `Core.on_simulated`."""

    job: SimulationJob


@dataclass(frozen=True, slots=True)
class Refuse:
    """A unit that was not applied, for the dead-letter queue."""

    refusal: Refusal


Effect = Emit | Simulate | Refuse
