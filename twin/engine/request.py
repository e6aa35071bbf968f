"""A request inside one engine, and the queue it waits in. Decides nothing."""

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Protocol

from twin.engine.types import UNDEFINED_PS


class Request:
    """Progress of one request.

    `computed` counts tokens scheduled so far, those of a step in flight included; `known` is the prompt and what was
    generated. `placeholders` are tokens of steps in flight that will exist when these end. `held` counts its blocks;
    `blocks` names them where the engine tells blocks apart, and the first `registered` are in the prefix cache.
    `order` numbers admissions (-1: not running). `clock` belongs to the engine that takes short cuts. The KV of the
    first `arrived_tokens` comes with the request.
    """

    # Defaults live in the class: thousands are made a second, and most never need most of them.
    computed = 0
    generated = 0
    placeholders = 0
    preemptions = 0
    cached_tokens = -1
    held = 0
    registered = 0
    prefilling = True
    ended = False
    order = -1
    clock = UNDEFINED_PS
    arrived_tokens = 0
    blocks: list[int]

    def __init__(self, row: int, isl: int, osl: int, rank: int = 0, keys: list[int] | None = None) -> None:
        self.row = row
        self.isl = isl
        self.osl = osl
        self.rank = rank
        self.keys = keys

    @property
    def known(self) -> int:
        """Tokens whose value is known."""
        return self.isl + self.generated

    def key(self, index: int) -> int:
        """Prefix cache key of its block: shared for prompt blocks with a hash, else its own (negative)."""
        if self.keys is not None and index < len(self.keys):
            return self.keys[index]
        return -1 - (self.row << 32 | index)


class WaitingQueue(Protocol):
    """Requests in the order they will be admitted."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...

    def push(self, request: Request) -> None:
        """A new request."""
        ...

    def push_back(self, request: Request) -> None:
        """A preempted request."""
        ...

    def head(self) -> Request:
        """The next one; IndexError if there is none."""
        ...

    def pop(self) -> Request:
        """Take the next one."""
        ...

    def remove(self, request: Request) -> None:
        """Take this one; ValueError if it is not here."""
        ...


class FcfsQueue(deque[Request]):
    """In order of arrival; who was preempted goes to the front."""

    push = deque.append
    push_back = deque.appendleft
    pop = deque.popleft

    def head(self) -> Request:
        return self[0]


class PriorityQueue:
    """By rank, lowest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, Request]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in sorted(self._heap, key=lambda entry: entry[0]))

    def push(self, request: Request) -> None:
        heappush(self._heap, (request.rank, request))

    push_back = push

    def head(self) -> Request:
        return self._heap[0][1]

    def pop(self) -> Request:
        return heappop(self._heap)[1]

    def remove(self, request: Request) -> None:
        kept = [entry for entry in self._heap if entry[1] is not request]
        if len(kept) == len(self._heap):
            raise ValueError(f"request row {request.row} is not waiting")
        # A sorted list is a heap.
        self._heap = sorted(kept, key=lambda entry: entry[0])
