"""How an engine's process sleeps: until a time that others may bring forward, or until somebody comes.

Knows nothing of engines. Law: at one instant a process wakes after all arrivals of that instant.
"""

import simpy


class Bell:
    """Wakes one process. It sleeps on one event at a time."""

    __slots__ = ("_env", "_event", "idle")

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._event: simpy.Event | None = None
        self.idle = False

    def sleep(self, duration_ps: int) -> simpy.Event:
        """Until so much later, or earlier if it is brought forward."""
        self._event = self._env.timeout(duration_ps)
        return self._event

    def wait(self) -> simpy.Event:
        """Until somebody rings."""
        self.idle = True
        self._event = self._env.event()
        return self._event

    def ring(self) -> None:
        """Wake who waits, at this instant; who was rung already wakes once."""
        if self.idle and self._event is not None:
            self.idle = False
            self._event.succeed()

    def bring_forward(self, duration_ps: int) -> None:
        """Wake who sleeps so much from now, instead of later."""
        old = self._event
        self._event = self._env.timeout(duration_ps)
        if old is not None:
            # The old event still comes, and finds nobody.
            self._event.callbacks, old.callbacks = old.callbacks, self._event.callbacks


class Arrival(simpy.Event):
    """Comes at a time from now, before everything else of that instant."""

    def __init__(self, env: simpy.Environment, delay_ps: int) -> None:
        # As Timeout does it: a million arrivals are a million of these.
        self.env = env
        self.callbacks = []
        self._value = None
        self._ok = True
        env.schedule(self, simpy.events.URGENT, delay_ps)
