"""The cores of one worker: raw messages in, messages to write and jobs to simulate out. Talks to no log and no clock.

Every driver (Kafka, embedded log, replay of a recording) feeds this same object, which is why live equals replay.
Laws: no bytes whatever make `handle` raise; units in == sum of outcomes + units held; a core is fed only records of
its own partition.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pipelines.outputs import Headers, Outgoing, dead_letter, dead_letter_of, outgoing
from pipelines.partitions import partition_of
from schemas.codec import Decoded, SchemaError, decode
from schemas.state import Snapshot
from schemas.topics import STATE
from twin.accounting import Accounts, Outcome
from twin.clock import Original
from twin.core import Core
from twin.effects import Effect, Emit, Simulate
from twin.intake import Message, Refusal
from twin.job import SimulationJob, SimulationResult
from twin.settings import CoreSettings

FORWARDED_HEADER = "twincast_forwarded"
_Place = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """One message as it came from a log. `offset` is its own; the next one to read is `offset + 1`."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(slots=True)
class Todo:
    """What a call asks the driver to do: write these messages, in order, and run these jobs."""

    writes: list[Outgoing] = field(default_factory=list)
    jobs: list[SimulationJob] = field(default_factory=list)


class Runtime:
    """Cores by deployment.

    Parameters
    ----------
    settings_of
        Gives the settings of a deployment that appears.
    partitions
        How many partitions every core topic has, >= 1.
    warm
        State of an earlier run; what it had learned is where new cores begin.
    """

    def __init__(
        self, settings_of: Callable[[str], CoreSettings], partitions: int, warm: Snapshot | None = None
    ) -> None:
        if partitions < 1:
            raise ValueError(f"partitions must be >= 1, got {partitions}")
        self._settings_of = settings_of
        self._partitions = partitions
        self._warm = warm
        self._accounts: dict[int, Accounts] = {}
        self.cores: dict[str, Core] = {}

    def handle(self, message: Incoming) -> Todo:
        """Take one message of an input topic."""
        try:
            decoded = None if message.value is None else decode(message.topic, message.value)
        except SchemaError as error:
            return self._refuse(message, Outcome.DEAD_LETTER, error.reason, str(error))
        deployment = decoded.record.deployment if decoded else _deployment_of_key(message.key)
        if not deployment:  # a tombstone of nobody
            self._settle(message, Outcome.TOMBSTONE)
            return Todo()
        if partition_of(deployment, self._partitions) != message.partition:
            return self._misplaced(message, deployment, decoded.units if decoded else 1)
        return self._feed(message, deployment, decoded)

    def _feed(self, message: Incoming, deployment: str, decoded: Decoded | None) -> Todo:
        core = self.cores.get(deployment)
        if core is None:
            core = self.cores[deployment] = Core(deployment, self._settings_of(deployment))
            if self._warm is not None:
                core.adopt(self._warm)
        original = Original(message.key, message.value, message.headers)
        effects = core.on_message(
            Message(message.topic, message.partition, message.offset, decoded, message.key or b"", original)
        )
        return self._carry_out(effects, deployment)

    def on_simulated(self, result: SimulationResult) -> Todo:
        """Take the result of a job. One for a deployment that has moved away is dropped."""
        core = self.cores.get(result.deployment)
        return Todo() if core is None else self._carry_out(core.on_simulated(result), result.deployment)

    def on_skipped(self, job: SimulationJob) -> Todo:
        """A job whose result will not come, because a live run went on without it."""
        core = self.cores.get(job.deployment)
        return Todo() if core is None else self._carry_out(core.on_skipped(job.tick, job.phase), job.deployment)

    def _carry_out(self, effects: Iterable[Effect], deployment: str) -> Todo:
        todo = Todo()
        refused: dict[_Place, list[Refusal]] = {}
        for effect in effects:
            if isinstance(effect, Emit):
                todo.writes.append(outgoing(effect, deployment))
            elif isinstance(effect, Simulate):
                todo.jobs.append(effect.job)
            else:
                position = effect.refusal.position
                place = (position.topic, position.partition, position.offset)
                refused.setdefault(place, []).append(effect.refusal)
        for place, refusals in refused.items():
            original = refusals[0].original
            if original is None:
                todo.writes += [dead_letter_of(refusal, deployment) for refusal in refusals]
            else:
                message = Incoming(*place, original.key, original.value, original.headers)
                todo.writes.append(_letter_about(message, refusals))
        return todo

    def _refuse(self, message: Incoming, outcome: Outcome, reason: str, detail: str, units: int = 1) -> Todo:
        self._settle(message, outcome, units, reason)
        return Todo(writes=[_letter(message, reason, detail)])

    def _misplaced(self, message: Incoming, deployment: str, units: int) -> Todo:
        if any(name == FORWARDED_HEADER for name, _ in message.headers):
            detail = f"deployment {deployment!r} belongs to partition {partition_of(deployment, self._partitions)}"
            return self._refuse(message, Outcome.DEAD_LETTER, "wrong_partition", detail, units)
        self._settle(message, Outcome.FORWARDED, units)
        where = f"{message.topic}[{message.partition}]@{message.offset}".encode()
        headers = (*message.headers, (FORWARDED_HEADER, where))
        return Todo(writes=[Outgoing(message.topic, deployment, message.key, message.value or b"", headers, 0)])

    def _settle(self, message: Incoming, outcome: Outcome, units: int = 1, reason: str = "") -> None:
        """Account for units that reach no core."""
        accounts = self._accounts.setdefault(message.partition, Accounts())
        accounts.receive(units)
        accounts.settle(outcome, units, reason)

    def accounts(self, partition: int) -> Accounts:
        """What became of the units of a partition that reached no core."""
        return self._accounts.setdefault(partition, Accounts())

    def balance(self) -> dict[str, int]:
        """Units in, every outcome, and units held, over all cores and what never reached one."""
        total: Counter[str] = Counter(Accounts().as_dict())
        for accounts in self._accounts.values():
            total.update(accounts.as_dict())
        for core in self.cores.values():
            total.update(core.accounts.as_dict())
        return dict(total) | {"held": total["in"] - sum(total[outcome.value] for outcome in Outcome)}

    def hold(self, partition: int) -> None:
        """Start no tick in a partition until `go_on`, so that its snapshots can be taken."""
        for core in self._of(partition):
            core.hold()

    def go_on(self, partition: int) -> list[tuple[str, Todo]]:
        """End `hold`; per deployment what there is to do."""
        return [(core.deployment, self._carry_out(core.go_on(), core.deployment)) for core in self._of(partition)]

    def snapshots(self, partition: int) -> list[Outgoing] | None:
        """State of every core of a partition; None while one waits for results, for then it cannot be taken."""
        mine = self._of(partition)
        if any(core.awaiting for core in mine):
            return None
        return [outgoing(Emit(STATE, core.deployment, core.snapshot()), core.deployment) for core in mine]

    def restore(self, value: bytes) -> Snapshot:
        """Take over a snapshot. Raises SchemaError or SnapshotError if it is corrupt or of a newer program."""
        snapshot = read_snapshot(value)
        self.cores[snapshot.deployment] = Core.restore(snapshot, self._settings_of(snapshot.deployment))
        return snapshot

    def release(self, partition: int) -> None:
        """Forget the cores of a partition that moved to another worker."""
        for core in self._of(partition):
            del self.cores[core.deployment]
        self._accounts.pop(partition, None)

    def _of(self, partition: int) -> list[Core]:
        return [core for name, core in sorted(self.cores.items()) if self._lives_in(name, partition)]

    def _lives_in(self, deployment: str, partition: int) -> bool:
        return partition_of(deployment, self._partitions) == partition


def _letter_about(message: Incoming, refusals: list[Refusal]) -> Outgoing:
    """The whole message, with the reasons and the places of the units of it that were refused."""
    reason = ",".join(sorted({refusal.reason for refusal in refusals}))
    indexes = tuple(sorted(refusal.position.index for refusal in refusals))
    return _letter(message, reason, f"{len(indexes)} units refused", indexes)


def _letter(message: Incoming, reason: str, detail: str, indexes: tuple[int, ...] = ()) -> Outgoing:
    return dead_letter(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        key=message.key,
        value=message.value,
        headers=message.headers,
        reason=reason,
        detail=detail,
        indexes=indexes,
    )


def _deployment_of_key(key: bytes | None) -> str:
    try:
        return (key or b"").decode("utf-8").split("/")[0]
    except UnicodeDecodeError:
        return ""


def read_snapshot(value: bytes) -> Snapshot:
    """A snapshot from the bytes of the state topic or of a file. Raises SchemaError."""
    snapshot: Snapshot = decode(STATE.name, value).record
    return snapshot
