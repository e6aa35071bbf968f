"""What was done to a deployment (`twincast.changes.v1`) and time for silent ones (`twincast.ticks.v1`)."""

from typing import Literal

from schemas.base import Count, EventTime, Name, Record

ChangeKind = Literal["scale", "drain", "config", "deploy", "route"]
ChangeStatus = Literal["accepted", "rejected", "applied"]
Phase = Literal["coarse", "fine"]


class Change(Record, frozen=True, kw_only=True, tag_field="record", tag="change"):
    """A change, ours or anybody's. `action_id` names the proposal it answers; `ready_at_us` when capacity is there."""

    deployment: Name
    at_us: EventTime
    kind: ChangeKind
    status: ChangeStatus = "applied"
    action_id: str = ""
    engine: str = ""
    engines_before: Count | None = None
    engines_after: Count | None = None
    ready_at_us: EventTime | None = None
    detail: str = ""


class Tick(Record, frozen=True, kw_only=True, tag_field="record", tag="tick"):
    """Time as a record: every source of the deployment was read to its end when the clock said `at_us`."""

    deployment: Name
    at_us: EventTime


class Skipped(Record, frozen=True, kw_only=True, tag_field="record", tag="skipped"):
    """The live run missed this tick's deadline for `phase`; a replay leaves it out too."""

    deployment: Name
    at_us: EventTime
    tick_us: EventTime
    phase: Phase
