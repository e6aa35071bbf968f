"""A log in a namespace is the same log under other names, in every call."""

import asyncio

from pipelines.local.embedded import memory_log
from pipelines.log import TopicPartition, TopicSpec
from pipelines.namespace import in_namespace

A0 = TopicPartition("a", 0)


def test_two_namespaces_do_not_see_each_other() -> None:
    async def act() -> None:
        async with memory_log() as log:
            one, two = in_namespace(log, "one"), in_namespace(log, "two")
            assert in_namespace(log, "") is log
            assert await one.create_topics([TopicSpec(name="a", partitions=2)]) == ["a"]
            assert await two.create_topics([TopicSpec(name="a", partitions=3)]) == ["a"]
            assert await log.partition_counts(["one.a", "two.a", "a"]) == {"one.a": 2, "two.a": 3}
            assert await one.partition_counts(["a", "b"]) == {"a": 2}
            async with one.producer() as producer:
                await producer.send("a", key=b"k", value=b"v", headers=[("h", b"x")], partition=0, timestamp_ms=5)
                await producer.flush()
            assert await one.end_offsets([A0]) == {A0: 1}
            assert await two.end_offsets([A0]) == {A0: 0}
            assert await one.begin_offsets([A0]) == {A0: 0}
            assert await one.offsets_for_times({A0: 5}) == {A0: 0}
            async with one.reader({A0: 0}) as reader:
                (record,) = await reader.get()
                assert (record.topic, record.key, record.headers) == ("a", b"k", (("h", b"x"),))
                assert reader.position(A0) == 1
                reader.seek(A0, 0)
                assert len(await reader.get()) == 1
            await one.commit("g", {A0: 1})
            assert await one.committed("g", [A0]) == {A0: 1}
            assert await two.committed("g", [A0]) == {A0: None}
            await one.delete_before({A0: 1})
            assert await one.begin_offsets([A0]) == {A0: 1}
            assert "namespace one" in one.name

    asyncio.run(act())


def test_members_of_a_group_hear_of_their_partitions_under_their_own_names() -> None:
    heard: list[frozenset[TopicPartition]] = []

    async def act() -> None:
        async with memory_log() as log:
            one = in_namespace(log, "one")
            await one.create_topics([TopicSpec(name="a", partitions=1)])
            async with one.producer() as producer:
                for value in (b"0", b"1"):
                    await producer.send("a", value=value, partition=0)

            async def assigned(owned: frozenset[TopicPartition]) -> dict[TopicPartition, int]:
                heard.append(owned)
                return {A0: 1}

            async def revoked(lost: frozenset[TopicPartition]) -> None:
                heard.append(lost)

            async with one.member("g", ["a"], on_assigned=assigned, on_revoked=revoked) as member:
                records = await member.get()
                assert [record.value for record in records] == [b"1"]
                assert member.assignment == {A0}
                await member.commit({A0: 2})
            assert await one.committed("g", [A0]) == {A0: 2}
            assert heard == [frozenset({A0}), frozenset({A0})]

    asyncio.run(act())
