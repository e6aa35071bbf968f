"""Actions (`twincast.actions.v1`): what the twin proposes to do, tried in the twin first, and what it takes back.

A proposal is told again when a fine forecast confirms or resizes it: the newest record of an `action_id` counts. It
ends by a withdrawal, by a change that answers it (`twincast.changes.v1`), or at `expires_us`. Nobody has to obey.
"""

from typing import Literal

from schemas.base import Count, EventTime, Name, NonNegative, Ratio, Record, Seconds, Wire
from schemas.changes import Phase
from schemas.forecasts import Authority, CredibilityLevel, Estimate, LatencyEstimate
from schemas.lineage import Lineage

ActionState = Literal["proposed", "confirmed", "resized"]
LimitName = Literal["max_num_seqs", "max_num_batched_tokens", "watermark_ratio"]


class Scale(Wire, frozen=True, kw_only=True, tag_field="kind", tag="scale"):
    """Run `engines_after` engines; the counts include engines that are starting.

    `device` is the hardware to add or free (empty: the engines do not tell theirs), `remove` the engines to drain.
    """

    engines_before: Count
    engines_after: Count
    device: str = ""
    remove: tuple[Name, ...] = ()


class EngineWeight(Wire, frozen=True, kw_only=True):
    """One engine's share of new requests."""

    engine: Name
    weight: Ratio


class ShiftTraffic(Wire, frozen=True, kw_only=True, tag_field="kind", tag="shift_traffic"):
    """Route new requests by these weights, which sum to 1."""

    weights: tuple[EngineWeight, ...]


class SetLimit(Wire, frozen=True, kw_only=True, tag_field="kind", tag="set_limit"):
    """Change one limit of every engine. `watermark_ratio` is the KV reserve: the share of blocks kept free."""

    limit: LimitName
    before: NonNegative
    after: NonNegative


class HoldBack(Wire, frozen=True, kw_only=True, tag_field="kind", tag="hold_back"):
    """Treat requests of the least important traffic apart: admit them when there is room (`defer`), or refuse (`shed`).

    A larger `priority` is less important, as in vLLM; all requests of at least `priority_from` are meant, which are
    `traffic_ratio` of those expected.
    """

    how: Literal["defer", "shed"]
    priority_from: int
    traffic_ratio: Ratio


class CutOver(Wire, frozen=True, kw_only=True, tag_field="kind", tag="cut_over"):
    """Send all new requests to the engines `to`, none to `engine` any more; those that it holds end there.

    It goes on running: sending it requests again undoes this at once.
    """

    engine: Name
    to: tuple[Name, ...]


What = Scale | ShiftTraffic | SetLimit | HoldBack | CutOver


class Predicted(Wire, frozen=True, kw_only=True):
    """What the twin expects over `horizon_s`, of members of that horizon, with or without the action.

    Both sides come from the same random numbers. `breach_probability` is of any target; `latencies` are those that
    targets speak of.
    """

    horizon_s: Seconds
    breach_probability: Ratio
    goodput_requests_per_s: Estimate
    latencies: tuple[LatencyEstimate, ...] = ()


class Action(Record, frozen=True, kw_only=True, tag_field="record", tag="action"):
    """One proposal as it stands at `at_us`, the `as_of` of the forecast that it follows from.

    Whoever wants the predicted effect acts before `act_before_us`: when a target first comes into danger, less the
    `start_s` that an engine needs to be ready. Where it equals `at_us` some harm is late to prevent: act at once. Where
    nothing is in danger (engines saved) it is `expires_us`, after which nobody acts. `executable` is False where
    authority or doubt allow advice only. `cost_engine_hours_per_hour` is engines added (negative: saved).
    `confidence_ratio` is the share of simulated futures in which the action does better than doing nothing, or, where
    it saves engines, keeps every target.
    """

    deployment: Name
    at_us: EventTime
    action_id: Name
    state: ActionState
    phase: Phase
    what: What
    reversible: bool
    executable: bool
    act_before_us: EventTime
    expires_us: EventTime
    before: Predicted
    after: Predicted
    cost_engine_hours_per_hour: float
    confidence_ratio: Ratio
    authority: Authority
    credibility: CredibilityLevel
    start_s: Seconds
    reasons: tuple[str, ...]
    lineage: Lineage
    opened_us: EventTime


class Withdrawal(Record, frozen=True, kw_only=True, tag_field="record", tag="withdrawal"):
    """The proposal `action_id` no longer holds; `reason` is one short clause. A change already made stays made."""

    deployment: Name
    at_us: EventTime
    action_id: Name
    phase: Phase
    reason: str
