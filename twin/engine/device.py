"""A device that several engines share: while more than one is in a step, all are slower. Knows nothing of engines.

Law: work done per unit of time never exceeds what the sharing allows; an engine alone is not slowed.
"""

from collections.abc import Callable, Generator

import simpy

Use = Callable[[int], Generator[simpy.Event, object, None]]
"""Lasts as long as so many picoseconds of work take."""


class SharedDevice:
    """Processor sharing: with k users at once, each one's work takes 1 + ratio * (k - 1) times as long."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._users: list[_Work] = []
        self._since = 0
        self._turn = 0

    def share_of(self, ratio: float) -> Use:
        """How a user with this sharing ratio (0: not slowed by others, 1: bound by what is shared) does its work."""

        def use(work_ps: int) -> Generator[simpy.Event, object, None]:
            self._settle()
            mine = _Work(float(work_ps), ratio, self._env.event())
            self._users.append(mine)
            self._plan()
            yield mine.done

        return use

    def _settle(self) -> None:
        now = int(self._env.now)
        for user in self._users:
            user.left_ps -= (now - self._since) / user.slowdown(len(self._users))
        self._since = now

    def _plan(self) -> None:
        self._turn += 1
        if self._users:
            turn = self._turn
            soonest = min(user.left_ps * user.slowdown(len(self._users)) for user in self._users)
            event = self._env.timeout(max(round(soonest), 0))
            if event.callbacks is not None:
                event.callbacks.append(lambda _: self._finish(turn))

    def _finish(self, turn: int) -> None:
        if turn != self._turn:
            return
        self._settle()
        for user in [user for user in self._users if user.left_ps < 1.0]:
            self._users.remove(user)
            user.done.succeed()
        self._plan()


class _Work:
    __slots__ = ("done", "left_ps", "ratio")

    def __init__(self, left_ps: float, ratio: float, done: simpy.Event) -> None:
        self.left_ps = left_ps
        self.ratio = ratio
        self.done = done

    def slowdown(self, users: int) -> float:
        return 1.0 + self.ratio * (users - 1)
