"""All that the page shows of one deployment, folded from decoded records. Encodes nothing and draws nothing.

Law: it holds a bounded number of records and rows of every kind, whatever comes in; what was folded twice is shown once
wherever the record has a name or a time of its own.
"""

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from typing import Any

import msgspec

from pipelines.board import Board, horizons_of
from pipelines.web.engine_series import EngineSeries
from pipelines.web.latencies import ObservedLatencies
from pipelines.web.series import Number, Rows
from schemas.actions import Action, Withdrawal
from schemas.alerts import Alert
from schemas.changes import Change
from schemas.engines import EngineConfig
from schemas.forecasts import Forecast
from schemas.requests import RequestFinished, RequestRecord
from schemas.scores import Replay, Score
from schemas.slos import Slos
from schemas.steps import EngineStats, StepBatch
from twin.ledger import Account, Ledger
from twin.metrics import METRICS, QUANTILES
from twin.scoring import SkillLedger

MAX_BANDS = 720
MAX_CHANGES = 200
MAX_ACTIONS = 100
MAX_PROPOSALS = 400
MAX_REQUESTS = 20_000
MAX_SCORED = 10_000
DEFAULT_HORIZONS_S = (30.0, 60.0, 120.0)


@dataclass(frozen=True, slots=True)
class ActionStanding:
    """The newest record of a proposal, when it was first made, and how it ended (empty: it stands)."""

    action: Action
    ended: str = ""
    ended_us: int = 0


class DeploymentView:
    """One deployment. `revisions` rise with every change of a part, by the part's name."""

    def __init__(self, deployment: str) -> None:
        self.deployment = deployment
        self.board = Board(deployment)
        self.observed = ObservedLatencies()
        self.engines = EngineSeries()
        self.bands = Rows(MAX_BANDS)
        self.changes: deque[Change] = deque(maxlen=MAX_CHANGES)
        self.finished: deque[RequestFinished] = deque(maxlen=MAX_REQUESTS)
        self.proposals: deque[Action | Withdrawal] = deque(maxlen=MAX_PROPOSALS)
        self.actions: OrderedDict[str, ActionStanding] = OrderedDict()
        self.ledger = SkillLedger()
        self.configs: OrderedDict[str, EngineConfig] = OrderedDict()
        self.made_us: dict[str, int] = {}
        self.revisions: Counter[str] = Counter()
        self._scored: OrderedDict[tuple[str, int, float], None] = OrderedDict()

    def take(self, found: Any, made_us: int = 0) -> None:
        """Fold a record; `made_us` is the processing time at which an output was made, 0 where it does not tell."""
        if isinstance(found, Score) and self._is_known(found):
            return
        self.board.fold(found)
        if isinstance(found, RequestRecord):
            self.observed.take(found)
            if isinstance(found, RequestFinished):
                self.finished.append(_slim(found))
        elif isinstance(found, StepBatch):
            self.engines.on_steps(found.engine, found.steps)
        elif isinstance(found, EngineStats):
            self.engines.on_stats(found)
        elif isinstance(found, EngineConfig):
            self._on_config(found)
        elif isinstance(found, Slos):
            self.revisions["setup"] += 1
        elif isinstance(found, Forecast):
            self._on_forecast(found, made_us)
        elif isinstance(found, Score):
            self._on_score(found)
        elif isinstance(found, Replay):
            self.revisions["scores"] += 1
        elif isinstance(found, Alert):
            self.revisions["alerts"] += 1
        elif isinstance(found, Change):
            self._on_change(found)
        elif isinstance(found, Action | Withdrawal):
            self._on_action(found)

    def refresh(self) -> None:
        """Bring what is computed lazily up to date."""
        self.observed.refresh(self.board.newest_us, self.horizons_s)

    @property
    def horizons_s(self) -> tuple[float, ...]:
        """Those of the newest forecast."""
        forecast = self.board.forecast
        found = tuple(horizon.horizon_s for horizon in horizons_of(forecast)) if forecast else ()
        return found or DEFAULT_HORIZONS_S

    @property
    def firing(self) -> list[Alert]:
        """Alerts whose newest record says that they fire."""
        newest = {alert.alert_id: alert for alert in self.board.alerts}
        return [alert for alert in newest.values() if alert.state == "firing"]

    def account(self) -> Account | None:
        """What was foreseen, proposed and done within what is held here; None before a request has finished."""
        ledger = Ledger(self.deployment, self.board.targets)
        for record in (*self.configs.values(), *self.finished, *self.board.alerts, *self.changes, *self.proposals):
            ledger.on_record(record)
        return ledger.account() if any(each.timed and each.first_token_us for each in self.finished) else None

    @property
    def open_actions(self) -> list[Action]:
        """Proposals that stand: neither answered nor withdrawn nor expired."""
        return [
            standing.action
            for standing in self.actions.values()
            if not standing.ended and standing.action.expires_us >= self.board.newest_us
        ]

    def _on_config(self, config: EngineConfig) -> None:
        self.engines.on_config(config)
        self.configs.pop(config.engine, None)
        if not config.removed:
            self.configs[config.engine] = config
        self.revisions["setup"] += 1

    def _on_forecast(self, forecast: Forecast, made_us: int) -> None:
        self.made_us[forecast.phase] = made_us or forecast.as_of_us
        self.revisions["forecast"] += 1
        cells = {
            (horizon.horizon_s, each.metric, each.quantile): each
            for horizon in horizons_of(forecast)
            for each in horizon.latencies
        }
        row: list[Number] = []
        for horizon_s in self.horizons_s:
            for metric in METRICS:
                for level in QUANTILES:
                    cell = cells.get((horizon_s, metric, level))
                    row += (None, None, None) if cell is None else _significant(cell.value_s, cell.low_s, cell.high_s)
        self.bands.put(forecast.as_of_us, tuple(row))

    def _is_known(self, scored: Score) -> bool:
        """Whether this window was scored before: a log holds a record twice after some failures."""
        key = (scored.phase, scored.as_of_us, scored.horizon_s)
        if key in self._scored:
            return True
        self._scored[key] = None
        if len(self._scored) > MAX_SCORED:
            self._scored.popitem(last=False)
        return False

    def _on_score(self, scored: Score) -> None:
        if scored.phase == "fine":
            self.ledger.add(scored)
            self.revisions["scores"] += 1

    def _on_change(self, change: Change) -> None:
        if change in self.changes:
            return
        self.changes.append(change)
        self.revisions["changes"] += 1
        standing = self.actions.get(change.action_id)
        if standing is not None:
            self._end(standing.action, change.status, change.at_us)

    def _on_action(self, found: Action | Withdrawal) -> None:
        self.revisions["actions"] += 1
        self.proposals.append(found)
        standing = self.actions.get(found.action_id)
        if isinstance(found, Withdrawal):
            if standing is not None:
                self._end(standing.action, f"withdrawn: {found.reason}", found.at_us)
            return
        ended = (standing.ended, standing.ended_us) if standing else ("", 0)
        self.actions[found.action_id] = ActionStanding(found, *ended)
        while len(self.actions) > MAX_ACTIONS:
            self.actions.popitem(last=False)

    def _end(self, action: Action, how: str, at_us: int) -> None:
        self.actions[action.action_id] = ActionStanding(action, how, at_us)
        self.revisions["actions"] += 1


def _slim(request: RequestFinished) -> RequestFinished:
    """Without what may be long."""
    return msgspec.structs.replace(request, block_hashes=(), chunks=())


def _significant(*values_s: float) -> tuple[float, ...]:
    return tuple(float(f"{value:.4g}") for value in values_s)
