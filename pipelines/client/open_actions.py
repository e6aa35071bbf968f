"""Proposals that still stand: told, not taken back, not past their time. Carries none out.

Law: a withdrawal ends its proposal whatever the order of arrival; memory is bounded by proposals that stand, and as
many that ended.
"""

from collections import OrderedDict

from pipelines.client.ages import Clock
from schemas.actions import Action, Withdrawal

MAX_ACTIONS = 10_000


class OpenActions:
    """Folds records of the actions topic."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: OrderedDict[tuple[str, str], tuple[Action | Withdrawal, int]] = OrderedDict()

    def take(self, record: Action | Withdrawal, made_us: int) -> None:
        """The newest record of an `action_id` counts, by event time; of equal ones the withdrawal."""
        key = (record.deployment, record.action_id)
        known = self._told.get(key)
        if known is not None and _order(record) <= _order(known[0]):
            return
        self._told[key] = (record, made_us)
        self._told.move_to_end(key)
        while len(self._told) > MAX_ACTIONS:
            self._told.popitem(last=False)

    def standing(self, deployment: str) -> tuple[Action, ...]:
        """Proposals of a deployment that may still be carried out, as far as time goes; the oldest first."""
        found = [
            told
            for (name, _), (told, made_us) in self._told.items()
            if name == deployment and isinstance(told, Action) and self._in_time(told, made_us)
        ]
        return tuple(sorted(found, key=lambda action: action.opened_us))

    def _in_time(self, action: Action, made_us: int) -> bool:
        return self._clock.age_us(action.at_us, made_us) < action.expires_us - action.at_us


def _order(record: Action | Withdrawal) -> tuple[int, bool, bool]:
    return record.at_us, isinstance(record, Withdrawal), record.phase == "fine"
