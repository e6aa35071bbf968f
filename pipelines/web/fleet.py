"""Every deployment that the log tells of, and how the connection to the log stands. Reads no log itself.

Law: no record makes `take` raise; deployments beyond `MAX_DEPLOYMENTS` are counted and left out.
"""

from dataclasses import dataclass

from pipelines.log import LogRecord
from pipelines.outputs import MADE_HEADER
from pipelines.web.view import DeploymentView
from schemas.codec import SchemaError, decode
from schemas.topics import DLQ, STATE

MAX_DEPLOYMENTS = 256


@dataclass(frozen=True, slots=True)
class StoredState:
    """The newest snapshot of a deployment as it stands in the log; `version` is equal for the same record."""

    version: tuple[int, int]
    value: bytes


@dataclass(slots=True)
class Link:
    """Whether the log answers, since when (processing time, microseconds), and why not."""

    up: bool = False
    since_us: int = 0
    detail: str = "connecting"


class Fleet:
    """Views by deployment, and the newest snapshot of each."""

    def __init__(self) -> None:
        self.views: dict[str, DeploymentView] = {}
        self.states: dict[str, StoredState] = {}
        self.link = Link()
        self.dead_letters = 0
        self.unreadable = 0
        self._left_out: set[str] = set()

    @property
    def left_out(self) -> int:
        """Deployments beyond the limit."""
        return len(self._left_out)

    def take(self, record: LogRecord) -> None:
        """Fold a record of any topic."""
        if record.topic == DLQ.name:
            self.dead_letters += 1
            return
        if record.topic == STATE.name:
            self._take_state(record)
            return
        if record.value is None:
            return
        try:
            found = decode(record.topic, record.value).record
        except SchemaError:
            self.unreadable += 1  # the worker tells of it
            return
        view = self._view(found.deployment)
        if view is not None:
            view.take(found, _made_us(record))

    def _view(self, deployment: str) -> DeploymentView | None:
        view = self.views.get(deployment)
        if view is None:
            if len(self.views) >= MAX_DEPLOYMENTS:
                if len(self._left_out) < 10 * MAX_DEPLOYMENTS:
                    self._left_out.add(deployment)
                return None
            view = self.views[deployment] = DeploymentView(deployment)
        return view

    def _take_state(self, record: LogRecord) -> None:
        """Keep the bytes; they are decoded when somebody asks a what-if."""
        deployment = (record.key or b"").decode(errors="replace")
        if record.value is None:
            self.states.pop(deployment, None)
        elif deployment and (deployment in self.states or len(self.states) < MAX_DEPLOYMENTS):
            self.states[deployment] = StoredState((record.partition, record.offset), record.value)


def _made_us(record: LogRecord) -> int:
    for name, value in record.headers:
        if name == MADE_HEADER:
            return int(value) if value.isdigit() else 0
    return 0
