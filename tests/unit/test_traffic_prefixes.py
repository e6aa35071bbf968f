"""Bounds and order of the prefix memory."""

import numpy as np
import orjson
import pytest

from twin.traffic import prefixes
from twin.traffic.prefixes import PrefixMemory


def test_the_first_arrival_with_a_hash_is_found_in_any_order() -> None:
    memory = PrefixMemory(8)
    for sequence, hashes in enumerate([[1], [1, 2], [2, 3], [1]]):
        memory.add(sequence, hashes)
    offsets, values, first = memory.columns(np.array([3, 1, 2]))
    assert offsets.tolist() == [0, 1, 3, 5]
    assert values.tolist() == [1, 1, 2, 2, 3]
    assert first.tolist() == [-1, -1, 1, 1, 2]


def test_held_and_known_hashes_are_bounded_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "MAX_HELD", 30)
    monkeypatch.setattr(prefixes, "MAX_KNOWN", 12)
    memory = PrefixMemory(64)
    for sequence in range(40):
        memory.add(sequence, [7, *range(1_000 * sequence, 1_000 * sequence + 4)])
    state = memory.snapshot()
    assert sum(len(values) for _, values, _ in state["rows"]) <= 30
    assert len(state["first_with"]) <= 12
    assert [slot for slot, _, _ in state["rows"]] == [34, 35, 36, 37, 38, 39]
    assert dict(state["first_with"])[7] == 0, "a prefix in use is not forgotten"


def test_a_slot_used_again_holds_only_the_new_hashes() -> None:
    memory = PrefixMemory(2)
    for sequence in range(5):
        memory.add(sequence, [sequence, sequence + 100])
    assert memory.columns(np.array([3, 4]))[1].tolist() == [3, 103, 4, 104]
    assert memory.snapshot()["held"] == 4


def test_hashes_of_any_size_survive_json() -> None:
    memory = PrefixMemory(4)
    memory.add(0, [2**63 + 5, -1, 2**70])
    restored = PrefixMemory.restore(orjson.loads(orjson.dumps(memory.snapshot())))
    for each in (memory, restored):
        each.add(1, [-1])
    assert np.array_equal(restored.columns(np.array([0, 1]))[1], memory.columns(np.array([0, 1]))[1])
    assert restored.columns(np.array([0, 1]))[2].tolist() == [0, 0, 0, 0]
