"""How an embedded log deals partitions out among the members of a group."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.local.groups import Group
from pipelines.log import TopicPartition

COUNTS = {"left": 5, "right": 5, "other": 2}


def settle(group: Group) -> None:
    """Let every member do what it would do in `get`."""
    for seat in group.seats:
        if group.must_give_up(seat):
            group.give_up(seat)
    for seat in group.seats:
        if group.may_take(seat):
            group.take(seat, COUNTS)


def owned_twice(group: Group) -> set[TopicPartition]:
    every = [where for seat in group.seats for where in seat.owned]
    return {where for where in every if every.count(where) > 1}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["join", "leave", "step"]), st.integers(0, 9)), max_size=40))
def test_a_partition_never_has_two_owners_and_in_the_end_has_one(steps):
    group = Group()
    for step, number in steps:
        if step == "join":
            group.join(COUNTS)
        elif group.seats:
            seat = group.seats[number % len(group.seats)]
            if step == "leave":
                group.leave(seat)
            elif group.must_give_up(seat):
                group.give_up(seat)
            elif group.may_take(seat):
                group.take(seat, COUNTS)
        assert not owned_twice(group)
    settle(group)
    every = {TopicPartition(topic, number) for topic, count in COUNTS.items() for number in range(count)}
    assert {where for seat in group.seats for where in seat.owned} == (every if group.seats else set())


@given(st.integers(1, 7))
def test_partitions_of_one_number_stay_together_and_shares_differ_by_one(members):
    group = Group()
    for _ in range(members):
        group.join(["left", "right"])
    settle(group)
    shares = []
    for seat in group.seats:
        left, right = ({w.partition for w in seat.owned if w.topic == topic} for topic in ("left", "right"))
        assert left == right
        shares.append(len(left))
    assert max(shares) - min(shares) <= 1


def test_nobody_takes_before_all_have_given_up():
    group = Group()
    first = group.join(["left"])
    settle(group)
    second = group.join(["left"])
    group.give_up(second)
    assert not group.may_take(second)
    group.give_up(first)
    assert group.may_take(second)
    assert group.may_take(first)
