"""The folded state of one deployment: engines, live requests, what was observed, traffic, targets. Makes no forecast.

Law: the state depends on the units applied and their order, on nothing else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import msgspec

from schemas.changes import Change
from schemas.engines import EngineConfig
from schemas.forecasts import InputLevel
from schemas.requests import RequestArrived, RequestFinished, RequestRecord
from schemas.slos import Slos, SloTarget
from schemas.steps import EngineStats, Step
from twin.baselines import BaselineHistory
from twin.clock import StepRun, Unit
from twin.cost.block import StepBlock
from twin.cost.model import Learned
from twin.engine.types import EngineState
from twin.engine_room import EngineRoom
from twin.job import EngineSetup, FrontendOverheads
from twin.live import LiveEngine
from twin.observed import ObservedRequests, latencies_of
from twin.overheads import FrontendModel, TransferModel
from twin.saturation import Saturation
from twin.traffic.history import TrafficHistory
from twin.traffic.plan import TrafficPlan

US_PER_S = 1_000_000
MAX_CHANGES = 256
STEPS_SILENT_US = 30 * US_PER_S
"""Requests that end so long after the last step say that steps are told no more."""
NAMELESS = ""
UNSEEN_SPAN_S = 10.0
ENDED_SPAN_US = 60_000_000
APPEARS_WITHIN_US = 60_000_000
"""An engine that should be ready and has not told its configuration is believed for so long."""
STARTS_KEPT = 5
MOSTLY_LATE = 0.5
"""From this share of requests on that are told only at their end, arrivals are drawn."""


def in_force(change: Change) -> bool:
    """Whether it was, or is being, carried out."""
    return change.status != "rejected"


def _more(change: Change) -> int:
    """Engines more (or fewer) by a change; 0 where it does not tell."""
    if change.kind != "scale" or change.engines_before is None or change.engines_after is None:
        return 0
    return change.engines_after - change.engines_before


def announced(changes: Sequence[Change], as_of_us: int, known: int) -> list[int]:
    """When engines that were announced and are not among the `known` ones will be ready, soonest first.

    A change that is told again (accepted, then applied) counts once; one that takes engines away takes those that are
    still starting first; one that was refused counts for nothing.
    """
    refused = {change.action_id for change in changes if change.action_id and not in_force(change)}
    told: dict[str, Change] = {}
    for number, change in enumerate(changes):
        if in_force(change) and _more(change) and change.action_id not in refused:
            told[change.action_id or f"#{number}"] = (
                change if change.ready_at_us else told.get(change.action_id, change)
            )
    ready: list[int] = []
    base: int | None = None
    for change in sorted(told.values(), key=lambda each: each.at_us):
        extra = _more(change)
        if extra < 0:
            del ready[max(len(ready) + extra, 0) :]
        elif change.ready_at_us is not None and change.ready_at_us + APPEARS_WITHIN_US > as_of_us:
            base = change.engines_before if base is None else base
            ready += [change.ready_at_us] * extra
    appeared = max(known - (base if base is not None else known), 0)
    return sorted(ready)[appeared:]


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
        self.transfers = TransferModel()
        self.slos = slos
        self.changes: list[Change] = []
        self.has_stats = False
        self.has_arrivals = False
        self.newest_us = 0
        self._stepped_us = 0
        self._finished_us = 0
        self.refingerprinted = False
        self._learned_before: dict[str, Any] = {}

    def apply(self, unit: Unit | StepRun) -> list[LearnedSteps]:
        """Fold one unit or a run of steps; returns blocks of steps that were learned on the way."""
        if isinstance(unit, StepRun):
            return self._on_steps(unit.engine, unit.steps, unit.at_us)
        record = unit.record
        if isinstance(record, Step):
            return self._on_steps(unit.engine, (record,), (unit.at_us,))
        self.newest_us = max(self.newest_us, unit.at_us)
        if isinstance(record, RequestRecord):
            self._on_request(record)
        elif isinstance(record, EngineConfig):
            self._name_the_nameless(record.engine)
            self.refingerprinted |= self.room(record.engine).on_config(record)
        elif isinstance(record, Slos):
            self.slos = record.targets
        elif isinstance(record, Change):
            self.changes = [*self.changes[-MAX_CHANGES + 1 :], record]
        elif isinstance(record, EngineStats):
            self.has_stats = True
            self._name_the_nameless(record.engine)
            self.room(record.engine).stats = record
            inside = [room.inside for room in self.rooms.values()]
            if None not in inside:
                self.traffic.inside(record.at_us, sum(count or 0 for count in inside))
        return []

    def _on_steps(self, engine: str, steps: Sequence[Step], at_us: Sequence[int]) -> list[LearnedSteps]:
        self.newest_us = max(self.newest_us, at_us[-1])
        self._stepped_us = max(self._stepped_us, at_us[-1])
        self.saturation.on_steps(steps, at_us)
        room = self.room(engine)
        return [LearnedSteps(room.name, block, learned) for block, learned in room.on_steps(steps)]

    def _name_the_nameless(self, engine: str) -> None:
        """Requests that named no engine were served by the first one that tells its name."""
        if list(self.rooms) == [NAMELESS] and engine:
            room = self.rooms.pop(NAMELESS)
            room.name = engine
            self.rooms[engine] = room

    def _on_request(self, event: RequestRecord) -> None:
        self.observed.on_event(event)
        if isinstance(event, RequestArrived):
            self.has_arrivals = True
            self.traffic.arrived(event)
            self._live_for(event.engine).arrive(event)
            return
        left = next((room for room in self.rooms.values() if room.leave(event.request_id)), None)
        if not isinstance(event, RequestFinished):
            self.traffic.ended(event)
            return
        self._finished_us = max(self._finished_us, event.at_us)
        (left or self._served_by(event.engine)).on_finished(event)
        self.traffic.finished(event)
        if event.timed and event.first_token_us is not None:
            self.overheads.on_finished(event)
            self.transfers.on_finished(event)
            ttft_s, gap_s, e2e_s = latencies_of(event)
            self.baselines.observe(event.at_us, ttft_s, None if gap_s != gap_s else gap_s, e2e_s)

    def room(self, engine: str) -> EngineRoom:
        """The room of an engine, made when it is first heard of."""
        room = self.rooms.get(engine)
        if room is None:
            room = self.rooms[engine] = EngineRoom(engine)
            before = self._learned_before.get(engine) or next(iter(self._learned_before.values()), None)
            if before is not None:
                room.take_costs(before)
        return room

    def adopt(self, data: dict[str, Any]) -> None:
        """Take over costs and overheads from another run's state; an engine of a new name begins with the first's."""
        self._learned_before = {
            item["name"]: {"prior": item["prior"], "model": item["model"]} for item in data["rooms"]
        }
        self.overheads = FrontendModel.restore(data["overheads"])

    def _live_for(self, engine: str) -> LiveEngine:
        """Where an arrival goes: to its engine if it says so, else to the one with the fewest requests."""
        if engine or not self.rooms:
            return self.room(engine).live
        return min(self.rooms.values(), key=lambda room: (len(room.live), room.name)).live

    def _served_by(self, engine: str) -> EngineRoom:
        """Where an end is counted that was not announced: at its engine, else by turns."""
        if engine or not self.rooms:
            return self.room(engine)
        return min(self.rooms.values(), key=lambda room: (room.ended, room.name))

    def learn(self, as_of_us: int) -> list[LearnedSteps]:
        """Let every engine's model learn what has come since the last time."""
        found = []
        for room in self._in_order():
            found += [LearnedSteps(room.name, block, learned) for block, learned in room.learn()]
            for taught in room.learn_ends(as_of_us):
                found.append(LearnedSteps(room.name, taught.block, taught.learned))
                self.saturation.add_many(taught.block.at_us, taught.block.duration_s, taught.waiting > 0)
        return found

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

    def setups(self, as_of_us: int, plan: TrafficPlan) -> tuple[EngineSetup, ...]:
        """Engines as a simulation starts them, by name. `plan` tells how many requests come unseen."""
        late_ratio = self.traffic.late_ratio
        unseen_per_s = plan.rate.mean_per_s(UNSEEN_SPAN_S) * late_ratio if late_ratio >= MOSTLY_LATE else 0.0
        rooms = self._in_order()
        ended = [room.ended_since(as_of_us - ENDED_SPAN_US) for room in rooms]
        shares = [count / max(sum(ended), 1) for count in ended]
        made = (
            room.setup(as_of_us, unseen_per_s=unseen_per_s * share, dispersion=plan.rate.dispersion)
            for room, share in zip(rooms, shares, strict=True)
        )
        known = self._drained(tuple(setup for setup in made if setup is not None))
        return known + self._starting(as_of_us, known)

    def _drained(self, setups: tuple[EngineSetup, ...]) -> tuple[EngineSetup, ...]:
        """Engines that a change drains take no requests, until they tell a configuration again."""
        drained = {
            change.engine: change.at_us for change in self.changes if change.kind == "drain" and in_force(change)
        }
        found = tuple(
            replace(setup, available_until_s=0.0) if drained.get(setup.name, 0) >= setup.config.at_us else setup
            for setup in setups
        )
        return found if any(setup.available_until_s > 0.0 for setup in found) else setups

    def _starting(self, as_of_us: int, known: tuple[EngineSetup, ...]) -> tuple[EngineSetup, ...]:
        """Engines that changes have announced and that have not appeared, like the first one and empty."""
        if not known:
            return ()
        return tuple(
            replace(
                known[0],
                name=f"starting-{number + 1}",
                state=EngineState(),
                presence=None,
                available_from_s=max(ready_us - as_of_us, 0) / US_PER_S,
                available_until_s=math.inf,
            )
            for number, ready_us in enumerate(announced(self.changes, as_of_us, len(known)))
        )

    @property
    def start_s(self) -> float | None:
        """Seconds from accepting one more engine to its being ready, as recent changes told: their median.

        What is told again of the same action when it was carried out counts instead of what was promised.
        """
        told: dict[str, tuple[int, int]] = {}
        for number, change in enumerate(self.changes):
            if change.ready_at_us is None or not in_force(change) or _more(change) <= 0:
                continue
            name = change.action_id or f"#{number}"
            if change.status == "accepted":
                told[name] = (change.at_us, change.ready_at_us)
            elif name in told:
                told[name] = (told[name][0], change.ready_at_us)
        starts_s = [(ready_us - at_us) / US_PER_S for at_us, ready_us in told.values()]
        return max(median(starts_s[-STARTS_KEPT:]), 0.0) if starts_s else None

    def frontend(self) -> FrontendOverheads:
        """Time outside the engines: as their stamps tell, else as requests let guess that were not held up."""
        told = self.overheads.overheads()
        delays = [room.ends.front.delay_s for room in self.rooms.values() if room.ends is not None]
        if told.to_engine_s or told.to_client_s or not any(delays):
            return told
        return FrontendOverheads(to_engine_s=(sum(delays) / len(delays),))

    @property
    def assumed_limits(self) -> bool:
        """Whether an engine has not told its configuration, so that its limits are assumed."""
        return any(room.config is None and room.limits is not None for room in self.rooms.values())

    def _in_order(self) -> list[EngineRoom]:
        return [self.rooms[name] for name in sorted(self.rooms)]

    @property
    def input_level(self) -> InputLevel:
        """What the records tell: S3 rows, S2 arrivals and counts per step, S1 engine counts, S0 ends of requests.

        Requests that go on ending without a step say that steps are told no more, whatever was told before.
        """
        stepping = self._finished_us - self._stepped_us <= STEPS_SILENT_US
        if stepping and any(room.has_rows for room in self.rooms.values()) and self.has_arrivals:
            return "S3"
        stepping = stepping and any(room.steps_seen for room in self.rooms.values())
        if stepping and self.has_arrivals:
            return "S2"
        return "S1" if self.has_stats or stepping else "S0"

    @property
    def steps_learned(self) -> int:
        """Steps learned over all engines."""
        return sum(room.model.steps for room in self.rooms.values())

    def changed_within(self, start_us: int, end_us: int) -> bool:
        """Whether something was done to the deployment in (start, end], or was decided then and took effect by then."""
        return any(
            start_us < change.at_us <= end_us
            and (
                change.status == "applied"
                or (change.status == "accepted" and change.ready_at_us is not None and change.ready_at_us <= end_us)
            )
            for change in self.changes
        )

    def snapshot(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "rooms": [room.snapshot() for room in self._in_order()],
            "observed": self.observed.snapshot(),
            "saturation": self.saturation.snapshot(),
            "baselines": self.baselines.snapshot(),
            "traffic": self.traffic.snapshot(),
            "overheads": self.overheads.snapshot(),
            "transfers": self.transfers.snapshot(),
            "slos": [msgspec.to_builtins(target) for target in self.slos],
            "changes": [msgspec.to_builtins(change) for change in self.changes],
            "flags": [self.has_stats, self.has_arrivals, self.refingerprinted],
            "newest_us": self.newest_us,
            "stepped_us": self._stepped_us,
            "finished_us": self._finished_us,
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
        if "transfers" in data:  # older snapshots have none
            self.transfers = TransferModel.restore(data["transfers"])
        self.slos = msgspec.convert(data["slos"], tuple[SloTarget, ...])
        self.changes = msgspec.convert(data["changes"], list[Change])
        self.has_stats, self.has_arrivals, self.refingerprinted = data["flags"]
        self.newest_us = data["newest_us"]
        self._stepped_us = data.get("stepped_us", self.newest_us)  # older snapshots tell neither
        self._finished_us = data.get("finished_us", 0)
        self._learned_before = data["learned_before"]
