"""The ledger: what was foreseen and proposed, what was done, and what then happened. Judges; forecasts nothing.

A breach of a target is a stretch of more than `LEAST_BREACH_S` in which its quantile over the requests that arrived in
the last `WINDOW_S` is over the limit. It is foreseen if a risk alert fired, or a proposal of more engines or of another
remedy was opened, before it began and no longer than `AHEAD_S` before. A proposal of more is needless if nobody obeyed
it and no breach came while it stood or within `AHEAD_S` after; where somebody obeyed it, nobody can tell.
Laws: foreseen + missed = breaches; obeyed + refused + withdrawn + left = proposals; the account does not depend on how
records of equal time are ordered across topics.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from schemas.actions import Action, Scale, Withdrawal
from schemas.alerts import Alert
from schemas.changes import Change
from schemas.engines import EngineConfig
from schemas.forecasts import Forecast
from schemas.requests import RequestFinished
from schemas.slos import Slos, SloTarget
from twin.ledger_engines import Steps, reversals
from twin.ledger_obeyed import COLUMN, NOTHING_OBEYED, Obeyed, Surface, judge
from twin.metrics import FloatArray, IntArray, quantile
from twin.observed import latencies_of

US_PER_S = 1_000_000
WINDOW_S = 30.0
GRID_S = 5.0
LEAST_BREACH_S = 20.0
JOIN_S = 30.0
AHEAD_S = 180.0
LEAST_REQUESTS = 5

Fate = Literal["obeyed", "refused", "withdrawn", "left"]


@dataclass(frozen=True, slots=True)
class Breach:
    """One stretch in which a target was missed; `missed_requests` of its members were over the limit.

    `foreseen_us` is the earliest warning, None if there was none; `proposed` a proposal that, obeyed when it was
    opened, would have been in effect when the breach began.
    """

    target: SloTarget
    start_us: int
    end_us: int
    missed_requests: int
    foreseen_us: int | None
    proposed: str = ""

    @property
    def lead_s(self) -> float | None:
        """How long before it began the first warning came; None where there was none."""
        return None if self.foreseen_us is None else (self.start_us - self.foreseen_us) / US_PER_S


@dataclass(slots=True)
class Proposal:
    """One proposal from its opening to its end. `needless` is None where nobody can tell."""

    action: Action
    opened_us: int
    ended_us: int | None = None
    fate: Fate = "left"
    needless: bool | None = None

    @property
    def more(self) -> bool:
        """Whether it was to prevent a breach, and not to save engines."""
        return self.action.cost_engine_hours_per_hour >= 0.0


@dataclass(frozen=True, slots=True)
class Account:
    """What the ledger says of one deployment over (`start_us`, `end_us`).

    `engine_hours` are those that ran as far as records tell; `engine_hours_obeyed` those if every proposal of scale had
    been followed while it stood; None where engines are not known. `covered` counts breaches for which a proposal,
    obeyed when it was opened, would have been in effect; `covered_requests` the misses in them; `judged` forecasts
    that were obeyed.
    """

    deployment: str
    start_us: int
    end_us: int
    requests: int
    breaches: tuple[Breach, ...]
    proposals: tuple[Proposal, ...]
    false_pages: int
    pages: int
    engine_hours: float | None
    engine_hours_obeyed: float | None
    reversals_proposed: int
    reversals_done: int
    steps_done: int
    covered: int
    covered_requests: int
    judged: Obeyed = NOTHING_OBEYED

    @property
    def foreseen(self) -> int:
        """Breaches with a warning before they began."""
        return sum(breach.foreseen_us is not None for breach in self.breaches)

    @property
    def obeyed(self) -> int:
        """Proposals that somebody followed; with none, the twin runs in shadow."""
        return sum(each.fate == "obeyed" for each in self.proposals)

    @property
    def needless(self) -> int:
        """Proposals of more that nothing came of."""
        return sum(each.needless is True for each in self.proposals)


@dataclass(slots=True)
class Ledger:
    """Folds the records of one deployment, in any order of topics, and accounts for them."""

    deployment: str
    targets: tuple[SloTarget, ...] = ()
    _rows: list[tuple[int, float, float, float]] = field(default_factory=list)
    _alerts: list[Alert] = field(default_factory=list)
    _told: list[Action | Withdrawal] = field(default_factory=list)
    _changes: list[Change] = field(default_factory=list)
    _surfaces: list[Surface] = field(default_factory=list)
    _engines: dict[str, int] = field(default_factory=dict)
    _targets_us: int = 0

    def on_record(self, record: Any) -> None:
        """Take one record; what the ledger has no use for is left out."""
        if isinstance(record, RequestFinished):
            if record.timed and record.first_token_us is not None:
                self._rows.append((record.arrived_us, *latencies_of(record)))
        elif isinstance(record, Alert):
            if record.kind == "slo_risk" and record.state != "suspected":
                self._alerts.append(record)
        elif isinstance(record, Action | Withdrawal):
            self._told.append(record)
        elif isinstance(record, Change):
            self._changes.append(record)
        elif isinstance(record, Forecast):
            surface = Surface.of(record)
            self._surfaces += [] if surface is None else [surface]
        elif isinstance(record, EngineConfig):
            self._engines.setdefault(record.engine, record.at_us)
        elif isinstance(record, Slos) and record.at_us >= self._targets_us:
            self.targets, self._targets_us = record.targets, record.at_us

    def account(self) -> Account:
        """The account of all that was taken. Raises ValueError without a single finished request."""
        if not self._rows:
            raise ValueError(f"no request of {self.deployment!r} has finished; there is nothing to account for")
        rows = sorted(self._rows)
        at_us = np.array([row[0] for row in rows], np.int64)
        values = np.array([row[1:] for row in rows], np.float64)
        start_us, end_us = (
            int(at_us[0]),
            max(int(at_us[-1]), *(each.at_us for each in (*self._told, *self._changes)), 0),
        )
        proposals = self._proposals()
        pages = _pages(self._alerts, end_us)
        spans = [
            (target, start, end, missed)
            for target in self.targets
            for start, end, missed in _breaches(target, at_us, values[:, COLUMN[target.metric]])
        ]
        found = [_breach(*span, pages, proposals) for span in spans if span[2] - span[1] > LEAST_BREACH_S * US_PER_S]
        _judge(proposals, [(start, end) for _, start, end, _ in spans])
        steps = Steps.of(self._changes, proposals[0].action if proposals else None, len(self._engines), start_us)
        covered = [breach for breach in found if breach.proposed]
        scales = [each for each in proposals if isinstance(each.action.what, Scale)]
        return Account(
            deployment=self.deployment,
            start_us=start_us,
            end_us=end_us,
            requests=len(rows),
            breaches=tuple(found),
            proposals=tuple(proposals),
            false_pages=sum(not _followed(page, [(s, e) for _, s, e, _ in spans]) for page in pages),
            pages=len(pages),
            engine_hours=steps.hours(end_us),
            engine_hours_obeyed=steps.hours_obeyed(end_us, scales),
            reversals_proposed=reversals([(p.opened_us, p.action.cost_engine_hours_per_hour) for p in scales]),
            reversals_done=steps.reversals,
            steps_done=steps.count,
            covered=len(covered),
            covered_requests=sum(breach.missed_requests for breach in covered),
            judged=judge(self._surfaces, self._changes, self.targets, at_us, values),
        )

    def _proposals(self) -> list[Proposal]:
        """Proposals in order of their opening; each with the last that was told of it."""
        found: dict[str, Proposal] = {}
        for record in sorted(self._told, key=lambda each: (each.at_us, each.phase == "fine", each.action_id)):
            known = found.get(record.action_id)
            if isinstance(record, Action):
                if known is None:
                    found[record.action_id] = Proposal(record, record.opened_us)
                else:
                    known.action = record
            elif known is not None and known.ended_us is None:
                known.ended_us, known.fate = record.at_us, "withdrawn"
        for change in sorted(self._changes, key=lambda each: each.at_us):
            known = found.get(change.action_id)
            if known is not None and known.fate not in ("obeyed", "refused"):
                known.fate = "refused" if change.status == "rejected" else "obeyed"
                known.ended_us = change.at_us
        return sorted(found.values(), key=lambda each: (each.opened_us, each.action.action_id))


def _breaches(target: SloTarget, at_us: IntArray, values: FloatArray) -> list[tuple[int, int, int]]:
    """Stretches (start, end, requests over the limit) in which the trailing quantile is over the limit.

    A target of one traffic class is judged on all traffic.
    """
    grid = np.arange(int(at_us[0]) + round(WINDOW_S * US_PER_S), int(at_us[-1]) + 1, round(GRID_S * US_PER_S))
    low = np.searchsorted(at_us, grid - round(WINDOW_S * US_PER_S), side="right")
    high = np.searchsorted(at_us, grid, side="right")
    spans: list[tuple[int, int]] = []
    for now_us, begin, end in zip(grid.tolist(), low.tolist(), high.tolist(), strict=True):
        members = values[begin:end]
        if end - begin < LEAST_REQUESTS or not quantile(members, target.quantile) > target.limit_s:
            continue
        if spans and now_us - spans[-1][1] <= JOIN_S * US_PER_S:
            spans[-1] = (spans[-1][0], now_us)
        else:
            spans.append((now_us, now_us))
    found = []
    for start_us, end_us in spans:
        inside = (at_us > start_us - round(WINDOW_S * US_PER_S)) & (at_us <= end_us)
        found.append((start_us, end_us, int(np.count_nonzero(values[inside] > target.limit_s))))
    return found


def _pages(alerts: Iterable[Alert], end_us: int) -> list[tuple[int, int]]:
    """(fired, resolved) of every alert that fired."""
    fired: dict[str, list[int]] = {}
    for alert in sorted(alerts, key=lambda each: (each.at_us, each.state == "resolved")):
        if alert.state == "firing":
            fired.setdefault(alert.alert_id, [alert.at_us, end_us])
        elif alert.alert_id in fired:
            fired[alert.alert_id][1] = alert.at_us
    return [(first, last) for first, last in fired.values()]


def _breach(
    target: SloTarget,
    start_us: int,
    end_us: int,
    missed: int,
    pages: Sequence[tuple[int, int]],
    proposals: Sequence[Proposal],
) -> Breach:
    ahead_us = round(AHEAD_S * US_PER_S)
    warnings = [
        fired for fired, until in pages if fired < start_us <= until + ahead_us and fired >= start_us - ahead_us
    ]
    remedies = [p for p in proposals if p.more and p.opened_us < start_us and _stood(p, start_us - ahead_us)]
    warnings += [p.opened_us for p in remedies if p.opened_us >= start_us - ahead_us]
    ready = [p for p in remedies if p.opened_us + round(p.action.start_s * US_PER_S) <= start_us]
    return Breach(
        target=target,
        start_us=start_us,
        end_us=end_us,
        missed_requests=missed,
        foreseen_us=min(warnings, default=None),
        proposed=ready[0].action.action_id if ready else "",
    )


def _stood(proposal: Proposal, since_us: int) -> bool:
    return proposal.ended_us is None or proposal.ended_us >= since_us


def _followed(page: tuple[int, int], spans: Sequence[tuple[int, int]]) -> bool:
    """Whether a target was missed, however shortly, while the page stood or soon after it fired."""
    fired, until = page
    last = max(until, fired + round(AHEAD_S * US_PER_S))
    return any(start <= last and end >= fired for start, end in spans)


def _judge(proposals: Sequence[Proposal], spans: Sequence[tuple[int, int]]) -> None:
    """Say which proposals of more nothing came of."""
    starts = sorted(spans)
    for each in proposals:
        if not each.more or each.fate == "obeyed":
            continue
        last = (each.ended_us or each.action.expires_us) + round(AHEAD_S * US_PER_S)
        before = starts[: bisect_right(starts, (last, last))]
        each.needless = not any(end >= each.opened_us for _, end in before)
