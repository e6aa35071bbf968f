"""The account of a run, from its log: forecasts, skill, coverage, step-cost error, lead time, the balance of records.

Computes no forecast. Law: records in == sum of outcomes + records held, or it says by how much not.
"""

from dataclasses import dataclass
from typing import Any

from pipelines.board import US_PER_S, Board
from pipelines.checkpoint import read_checkpoint
from pipelines.log import Log
from pipelines.posts import Report
from schemas.codec import decode
from schemas.topics import STATE
from twin.accounting import Outcome
from twin.core import Core
from twin.settings import CoreSettings


@dataclass(frozen=True, kw_only=True)
class Summary:
    """See the module; None is what could not be measured. Times `first_*` are wall seconds since playing began."""

    deployment: str
    event_time_s: float
    forecasts: int
    windows: int
    skill: float | None
    coverage: float | None
    coverage_cells: int
    step_error: float | None
    steps: int
    predicted_s: float | None
    happened_s: float | None
    lead_s: float | None
    first_forecast_s: float | None
    first_alert_s: float | None
    dead_letters: int
    balance: dict[str, int]

    @property
    def balanced(self) -> bool:
        """Whether every record in has an outcome or is held."""
        total = sum(self.balance.get(outcome.value, 0) for outcome in Outcome)
        return self.balance.get("in", 0) == total + self.balance.get("held", 0)

    def lines(self) -> list[str]:
        """For a person."""
        outcomes = [f"{name} {count}" for name, count in self.balance.items() if count and name not in ("in", "held")]
        if self.balance.get("held"):
            outcomes.append(f"held {self.balance['held']}")
        sign = "=" if self.balanced else "IS NOT"
        return [
            f"{self.deployment}: {self.event_time_s:.0f} s of event time",
            f"forecasts made      {self.forecasts}" + _since(", the first after", self.first_forecast_s),
            f"skill               {_number(self.skill, '+.2f')} against persistence, {self.windows} windows scored",
            f"inside the interval {_percent(self.coverage)} of {self.coverage_cells} cells (stated: 90 %)",
            f"step-cost error     {_percent(self.step_error)} mean of {self.steps} steps, each predicted before seen",
            f"SLO breach          {self._breach()}" + _since("; alert shown after", self.first_alert_s),
            f"records in          {self.balance.get('in', 0)} {sign} {' + '.join(outcomes) or '0'}",
        ]

    def _breach(self) -> str:
        if self.happened_s is None:
            return "none happened" + (
                "" if self.predicted_s is None else f", one predicted at +{self.predicted_s:.0f} s"
            )
        if self.predicted_s is None or self.lead_s is None:
            return f"at +{self.happened_s:.0f} s, not predicted"
        when = "before" if self.lead_s >= 0 else "AFTER"
        return (
            f"predicted at +{self.predicted_s:.0f} s, {abs(self.lead_s):.0f} s {when} it happened "
            f"at +{self.happened_s:.0f} s"
        )


async def summarise(
    log: Log,
    partitions: int,
    board: Board,
    report: Report,
    *,
    settings: CoreSettings,
    first_forecast_s: float | None,
    first_alert_s: float | None,
) -> Summary:
    """The account of the board's deployment, from the board, the worker's last report and the last snapshot."""
    core = await _core(log, partitions, board.deployment, settings)
    errors = [] if core is None else [room.errors.as_dict() for room in core.state.rooms.values()]
    steps = sum(error["n"] for error in errors)
    breaches = board.breaches()
    cover = board.coverage
    return Summary(
        deployment=board.deployment,
        event_time_s=(board.newest_us - board.first_us) / US_PER_S,
        forecasts=board.forecasts_made,
        windows=cover.windows,
        skill=None if core is None else core.ledger.skill(),
        coverage=cover.covered / cover.cells if cover.cells else None,
        coverage_cells=cover.cells,
        step_error=sum(error["n"] * (error["mape"]["all"] or 0.0) for error in errors) / steps if steps else None,
        steps=steps,
        predicted_s=_after(board, breaches.predicted_us),
        happened_s=_after(board, breaches.happened_us),
        lead_s=breaches.lead_s,
        first_forecast_s=first_forecast_s,
        first_alert_s=first_alert_s,
        dead_letters=board.dead_letters,
        balance=report.balance,
    )


async def _core(log: Log, partitions: int, deployment: str, settings: CoreSettings) -> Core | None:
    """The core as its last snapshot holds it."""
    for partition in range(partitions):
        for record in (await read_checkpoint(log, partition)).snapshots:
            if record.key == deployment.encode():
                found: Any = decode(STATE.name, record.value or b"").record
                return Core.restore(found, settings)
    return None


def _after(board: Board, at_us: int | None) -> float | None:
    return None if at_us is None else (at_us - board.first_us) / US_PER_S


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _since(words: str, seconds: float | None) -> str:
    return "" if seconds is None else f"{words} {seconds:.1f} s"
