"""What an engine's prefix cache holds goes into the simulation's start, where its blocks fit."""

import pytest

from schemas.engines import EngineConfig
from schemas.requests import RequestArrived
from schemas.steps import Step, StepRow
from twin.engine_room import EngineRoom
from twin.recent_prefixes import RecentPrefixes

START_US = 1_800_000_000_000_000


def room_after(hash_block_tokens: int) -> EngineRoom:
    """One request of three blocks ran and left, another one with the first of them waits."""
    room = EngineRoom("0")
    room.on_config(
        EngineConfig(
            deployment="d",
            engine="0",
            at_us=START_US,
            block_size_tokens=16,
            kv_blocks=64,
            max_num_seqs=8,
            max_num_batched_tokens=256,
        )
    )
    for name, hashes in (("a", (1, 2, 3)), ("b", (1, 9))):
        room.live.arrive(
            RequestArrived(
                deployment="d",
                request_id=name,
                at_us=START_US,
                isl_tokens=50,
                block_hashes=hashes,
                hash_block_tokens=hash_block_tokens,
            )
        )
    rows = (StepRow("a", "first", 50, 0),)
    room.on_step(Step(step=0, start_us=START_US, duration_us=9_000, prefill_requests=1, prefill_tokens=50, rows=rows))
    assert room.leave("a")
    assert not room.leave("a")
    return room


def test_blocks_of_requests_that_left_are_cached_at_the_start() -> None:
    setup = room_after(16).setup(START_US + 10_000)
    assert setup is not None
    assert setup.state.cached_hashes == (3, 2, 1)
    assert setup.state.waiting[0].block_hashes == (1, 9)
    assert setup.state.hash_block_tokens == 16


@pytest.mark.parametrize("size", [24, 17])
def test_hashes_of_blocks_that_do_not_fit_are_left_out(size: int) -> None:
    setup = room_after(size).setup(START_US + 10_000)
    assert setup is not None
    assert setup.state.cached_hashes == ()
    assert setup.state.waiting[0].block_hashes == ()


def test_a_request_that_never_ran_leaves_no_blocks() -> None:
    room = room_after(16)
    assert room.leave("b")
    assert len(room.prefixes) == 3


def test_a_restored_room_holds_the_same_blocks() -> None:
    room = room_after(16)
    restored = EngineRoom.restore(room.snapshot())
    assert restored.setup(START_US + 10_000) == room.setup(START_US + 10_000)


def test_blocks_of_another_size_start_anew() -> None:
    seen = RecentPrefixes()
    seen.add((1, 2), 16)
    seen.add((5,), 32)
    assert seen.newest(10) == (5,)
