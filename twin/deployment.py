"""The folded state of one deployment: engines, live requests, what was observed, traffic, targets. Makes no forecast.

Law: the state depends on the units applied and their order, on nothing else.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from schemas.changes import Change
from schemas.engines import EngineConfig
from schemas.forecasts import InputLevel
from schemas.requests import RequestArrived, RequestFinished, RequestRecord
from schemas.slos import Slos, SloTarget
from schemas.steps import EngineStats, Step
from twin.baselines import BaselineHistory
from twin.clock import Unit
from twin.cost.block import StepBlock
from twin.cost.model import Learned, StepCostModel
from twin.engine_room import EngineRoom
from twin.job import EngineSetup
from twin.live import LiveEngine
from twin.observed import ObservedRequests, latencies_of
from twin.overheads import FrontendModel
from twin.saturation import Saturation
from twin.traffic.history import TrafficHistory
from twin.traffic.plan import TrafficPlan

MAX_CHANGES = 256


@dataclass(frozen=True, slots=True)
class LearnedSteps:
    """A block of steps that an engine's model has just learned, and what that told."""

    engine: str
    block: StepBlock
    learned: Learned


class DeploymentState:
    """Applies units in order. `span_s` is how far back requests are kept for scoring."""

    def __init__(self, span_s: float, slos: tuple[SloTarget, ...]) -> None:
        self.rooms: dict[str, EngineRoom] = {}
        self.observed = ObservedRequests(span_s)
        self.saturation = Saturation(span_s)
        self.baselines = BaselineHistory()
        self.traffic = TrafficHistory()
        self.overheads = FrontendModel()
        self.slos = slos
        self.changes: list[Change] = []
        self.has_stats = False
        self.has_arrivals = False
        self.newest_us = 0
        self.refingerprinted = False
        self._learned_before: dict[str, Any] = {}

    def apply(self, unit: Unit) -> list[LearnedSteps]:
        """Fold one unit; returns blocks of steps that were learned on the way."""
        record = unit.record
        self.newest_us = max(self.newest_us, unit.at_us)
        if isinstance(record, Step):
            self.saturation.on_step(record)
            room = self.room(unit.engine)
            return [LearnedSteps(room.name, block, learned) for block, learned in room.on_step(record)]
        if isinstance(record, RequestRecord):
            self._on_request(record)
        elif isinstance(record, EngineConfig):
            self.refingerprinted |= self.room(record.engine).on_config(record)
        elif isinstance(record, Slos):
            self.slos = record.targets
        elif isinstance(record, Change):
            self.changes = [*self.changes[-MAX_CHANGES + 1 :], record]
        elif isinstance(record, EngineStats):
            self.has_stats = True
        return []

    def _on_request(self, event: RequestRecord) -> None:
        self.observed.on_event(event)
        if isinstance(event, RequestArrived):
            self.has_arrivals = True
            self.traffic.arrived(event)
            self._live_for(event.engine).arrive(event)
            return
        for room in self.rooms.values():
            if room.leave(event.request_id):
                break
        if not isinstance(event, RequestFinished):
            self.traffic.ended(event)
            return
        self.traffic.finished(event)
        if event.timed and event.first_token_us is not None:
            self.overheads.on_finished(event)
            ttft_s, gap_s, e2e_s = latencies_of(event)
            self.baselines.observe(event.at_us, ttft_s, None if gap_s != gap_s else gap_s, e2e_s)

    def room(self, engine: str) -> EngineRoom:
        """The room of an engine, made when it is first heard of."""
        room = self.rooms.get(engine)
        if room is None:
            room = self.rooms[engine] = EngineRoom(engine)
            before = self._learned_before.get(engine) or next(iter(self._learned_before.values()), None)
            if before is not None:
                room.model = StepCostModel.restore(before)
        return room

    def adopt(self, data: dict[str, Any]) -> None:
        """Take over costs and overheads from another run's state; an engine of a new name begins with the first's."""
        self._learned_before = {item["name"]: item["model"] for item in data["rooms"]}
        self.overheads = FrontendModel.restore(data["overheads"])

    def _live_for(self, engine: str) -> LiveEngine:
        """Where an arrival goes: to its engine if it says so, else to the one with the fewest requests."""
        if engine or not self.rooms:
            return self.room(engine).live
        return min(self.rooms.values(), key=lambda room: (len(room.live), room.name)).live

    def learn(self) -> list[LearnedSteps]:
        """Let every engine's model learn what has come since the last time."""
        return [LearnedSteps(room.name, block, learned) for room in self._in_order() for block, learned in room.learn()]

    def plan(self, as_of_us: int) -> TrafficPlan | None:
        """What traffic is expected; None before the first arrival."""
        if not len(self.traffic):
            return None
        progress = {
            request.request_id: request.generated_tokens
            for room in self._in_order()
            for request in (*room.live.running.values(), *room.live.waiting.values())
        }
        return self.traffic.plan(as_of_us, progress)

    def setups(self, as_of_us: int) -> tuple[EngineSetup, ...]:
        """Engines as a simulation starts them, by name."""
        made = (room.setup(as_of_us) for room in self._in_order())
        return tuple(setup for setup in made if setup is not None)

    def _in_order(self) -> list[EngineRoom]:
        return [self.rooms[name] for name in sorted(self.rooms)]

    @property
    def input_level(self) -> InputLevel:
        """What the records tell: S3 rows, S2 arrivals and counts per step, S1 engine counts, S0 ends of requests."""
        if any(room.has_rows for room in self.rooms.values()) and self.has_arrivals:
            return "S3"
        if any(room.steps_seen for room in self.rooms.values()) and self.has_arrivals:
            return "S2"
        return "S1" if self.has_stats or any(room.steps_seen for room in self.rooms.values()) else "S0"

    @property
    def steps_learned(self) -> int:
        """Steps learned over all engines."""
        return sum(room.model.steps for room in self.rooms.values())

    def changed_within(self, start_us: int, end_us: int) -> bool:
        """Whether something was done to the deployment in (start, end]."""
        return any(start_us < change.at_us <= end_us and change.status == "applied" for change in self.changes)

    def snapshot(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "rooms": [room.snapshot() for room in self._in_order()],
            "observed": self.observed.snapshot(),
            "saturation": self.saturation.snapshot(),
            "baselines": self.baselines.snapshot(),
            "traffic": self.traffic.snapshot(),
            "overheads": self.overheads.snapshot(),
            "slos": [msgspec.to_builtins(target) for target in self.slos],
            "changes": [msgspec.to_builtins(change) for change in self.changes],
            "flags": [self.has_stats, self.has_arrivals, self.refingerprinted],
            "newest_us": self.newest_us,
            "learned_before": self._learned_before,
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Take over what `snapshot` gave."""
        self.rooms = {item["name"]: EngineRoom.restore(item) for item in data["rooms"]}
        self.observed.restore(data["observed"])
        self.saturation.restore(data["saturation"])
        self.baselines = BaselineHistory.restore(data["baselines"])
        self.traffic = TrafficHistory.restore(data["traffic"])
        self.overheads = FrontendModel.restore(data["overheads"])
        self.slos = msgspec.convert(data["slos"], tuple[SloTarget, ...])
        self.changes = msgspec.convert(data["changes"], list[Change])
        self.has_stats, self.has_arrivals, self.refingerprinted = data["flags"]
        self.newest_us = data["newest_us"]
        self._learned_before = data["learned_before"]
