"""The allocation strategies: RocketMQ's examples, and what holds for any lists (mechanisms C13-C18)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqclient import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    AllocateMessageQueueStrategy,
    IllegalArgumentError,
    MessageQueue,
)
from mqproto.names import retry_topic

ROOMS = ("east", "west")
MEMBERS_3 = ["c1", "c2", "c3"]


class ByNumber:
    """A resolver: brokers and members say their room before the @."""

    def broker_deploy_in(self, queue: MessageQueue) -> str:
        return queue.broker_name.split("@")[0]

    def consumer_deploy_in(self, client_id: str) -> str:
        return client_id.split("@")[0]


def q(*numbers: int, broker_name: str = "east@a", topic: str = "t") -> list[MessageQueue]:
    """The queues that the articles call q1, q2, ..."""
    return [MessageQueue(topic, broker_name, number) for number in numbers]


Q8 = q(1, 2, 3, 4, 5, 6, 7, 8)


def shares(
    strategy: AllocateMessageQueueStrategy, queues: Sequence[MessageQueue], members: Sequence[str]
) -> dict[str, list[MessageQueue]]:
    return {member: list(strategy.allocate(member, queues, members)) for member in members}


PARTITIONING: list[AllocateMessageQueueStrategy] = [
    AllocateMessageQueueAveragely(),
    AllocateMessageQueueAveragelyByCircle(),
    AllocateMessageQueueConsistentHash(),
    AllocateMessageQueueConsistentHash(virtual_nodes=1),
    AllocateMessageQueueByMachineRoom(ROOMS),
    AllocateMachineRoomNearby(AllocateMessageQueueAveragelyByCircle(), ByNumber()),
]
ALL = [*PARTITIONING, AllocateMessageQueueByConfig(Q8)]

queue_lists = st.frozensets(
    st.builds(MessageQueue, st.just("t"), st.sampled_from(["east@a", "east@b", "west@c"]), st.integers(0, 12)),
    max_size=30,
).map(sorted)
member_lists = st.frozensets(st.integers(0, 40), min_size=1, max_size=12).map(
    lambda numbers: sorted(f"{ROOMS[number % 2]}@{number}" for number in numbers)
)


class TestExamples:
    @pytest.mark.mechanism("C14")
    def test_averagely_is_contiguous(self) -> None:
        assert shares(AllocateMessageQueueAveragely(), Q8, MEMBERS_3) == {
            "c1": q(1, 2, 3),
            "c2": q(4, 5, 6),
            "c3": q(7, 8),
        }

    @pytest.mark.mechanism("C15")
    def test_by_circle_deals_one_after_the_other(self) -> None:
        assert shares(AllocateMessageQueueAveragelyByCircle(), Q8, MEMBERS_3) == {
            "c1": q(1, 4, 7),
            "c2": q(2, 5, 8),
            "c3": q(3, 6),
        }

    @pytest.mark.mechanism("C16")
    def test_consistent_hash_gives_what_a_walk_around_rocketmq_s_ring_gives(self) -> None:
        """Its rule, written down plainly: 10 points for each member, MD5's first four bytes, the next point owns."""

        def place(text: str) -> int:
            return int(hashlib.md5(text.encode()).hexdigest()[:8], 16)

        ring = sorted((place(f"{member}-{node}"), member) for member in MEMBERS_3 for node in range(10))
        wanted: dict[str, list[MessageQueue]] = {member: [] for member in MEMBERS_3}
        for queue in Q8:
            at = place(f"MessageQueue [topic=t, brokerName=east@a, queueId={queue.queue_id}]")
            wanted[next((member for point, member in ring if point >= at), ring[0][1])].append(queue)
        assert shares(AllocateMessageQueueConsistentHash(), Q8, MEMBERS_3) == wanted
        assert wanted == {"c1": q(4, 5, 6), "c2": q(2, 7, 8), "c3": q(1, 3)}

    @pytest.mark.mechanism("C17")
    def test_by_config_is_what_was_configured_and_exists(self) -> None:
        mine = AllocateMessageQueueByConfig([*q(2, 5, 99), *q(1, topic="other")])
        assert list(mine.allocate("c1", Q8, MEMBERS_3)) == q(2, 5)
        assert list(mine.allocate("c1", q(1, 2, topic="other"), MEMBERS_3)) == q(1, topic="other")

    @pytest.mark.mechanism("C18")
    def test_by_machine_room_shares_the_queues_of_the_rooms_only(self) -> None:
        elsewhere = [*q(1, 2, broker_name="north@b"), *q(1, broker_name="plain"), *q(1, broker_name="east@x@y")]
        strategy = AllocateMessageQueueByMachineRoom({"east"})
        assert shares(strategy, sorted([*Q8, *elsewhere]), MEMBERS_3) == {
            "c1": q(1, 2, 7),
            "c2": q(3, 4, 8),
            "c3": q(5, 6),
        }

    @pytest.mark.mechanism("C18")
    def test_nearby_keeps_queues_in_their_room_while_it_has_members(self) -> None:
        strategy = AllocateMachineRoomNearby(AllocateMessageQueueAveragely(), ByNumber())
        east, west = q(1, 2, 3, 4), q(1, 2, 3, 4, broker_name="west@b")
        assert shares(strategy, [*east, *west], ["east@1", "east@2", "west@1"]) == {
            "east@1": east[:2],
            "east@2": east[2:],
            "west@1": west,
        }
        assert shares(strategy, [*east, *west], ["east@1", "east@2"]) == {
            "east@1": [*east[:2], *west[:2]],
            "east@2": [*east[2:], *west[2:]],
        }
        assert strategy.name == "MACHINE_ROOM_NEARBY-AVG"


@pytest.mark.parametrize("strategy", ALL, ids=lambda one: one.name)
class TestEveryStrategy:
    def test_a_client_that_is_no_member_gets_nothing(self, strategy: AllocateMessageQueueStrategy) -> None:
        assert list(strategy.allocate("stranger", Q8, ["east@1", "east@2"])) == []
        assert list(strategy.allocate("stranger", Q8, [])) == []

    def test_without_queues_there_is_nothing_to_share(self, strategy: AllocateMessageQueueStrategy) -> None:
        assert list(strategy.allocate("east@1", [], ["east@1", "east@2"])) == []


@pytest.mark.parametrize("strategy", PARTITIONING, ids=lambda one: one.name)
class TestEveryPartition:
    @pytest.mark.mechanism("C14")
    @settings(deadline=None)
    @given(queues=queue_lists, members=member_lists)
    def test_every_queue_has_one_owner_and_shares_keep_the_order(
        self, strategy: AllocateMessageQueueStrategy, queues: list[MessageQueue], members: list[str]
    ) -> None:
        given_out = shares(strategy, queues, members)
        assert sorted(queue for share in given_out.values() for queue in share) == queues
        assert all(share == sorted(share) for share in given_out.values())
        assert given_out == shares(strategy, list(queues), list(members))

    @settings(deadline=None)
    @given(queues=queue_lists, members=member_lists)
    def test_surplus_members_get_nothing(
        self, strategy: AllocateMessageQueueStrategy, queues: list[MessageQueue], members: list[str]
    ) -> None:
        busy = [member for member, share in shares(strategy, queues, members).items() if share]
        assert len(busy) <= len(queues)


EVEN = [
    AllocateMessageQueueAveragely(),
    AllocateMessageQueueAveragelyByCircle(),
    AllocateMessageQueueByMachineRoom(ROOMS),
]


@pytest.mark.parametrize("strategy", EVEN, ids=lambda one: one.name)
@settings(deadline=None)
@given(queues=queue_lists, members=member_lists)
def test_shares_differ_by_one_queue_at_most(
    strategy: AllocateMessageQueueStrategy, queues: list[MessageQueue], members: list[str]
) -> None:
    sizes = [len(share) for share in shares(strategy, queues, members).values()]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


class TestConsistentHash:
    @pytest.mark.mechanism("C16")
    @settings(deadline=None)
    @given(queues=queue_lists, members=member_lists, nodes=st.integers(1, 20), data=st.data())
    def test_only_queues_of_the_member_that_left_change_their_owner(
        self, queues: list[MessageQueue], members: list[str], nodes: int, data: st.DataObject
    ) -> None:
        """Read from right to left, it is the same for a member that comes."""
        leaver = data.draw(st.sampled_from(members))
        strategy = AllocateMessageQueueConsistentHash(nodes)
        before = shares(strategy, queues, members)
        after = shares(strategy, queues, [member for member in members if member != leaver])
        for member, share in after.items():
            assert set(before[member]) <= set(share)
            assert set(share) - set(before[member]) <= set(before[leaver])

    @pytest.mark.parametrize("virtual_nodes", [0, -1, 1.5, True])
    def test_a_ring_without_points_is_rejected(self, virtual_nodes: int) -> None:
        with pytest.raises(IllegalArgumentError, match="virtual_nodes has to be an integer of at least 1"):
            AllocateMessageQueueConsistentHash(virtual_nodes)


class TestByConfig:
    @pytest.mark.mechanism("C17")
    def test_an_unconfigured_queue_is_not_consumed(self) -> None:
        first, second = AllocateMessageQueueByConfig(q(1, 2)), AllocateMessageQueueByConfig(q(3))
        given_out = [*first.allocate("c1", Q8, ["c1", "c2"]), *second.allocate("c2", Q8, ["c1", "c2"])]
        assert given_out == q(1, 2, 3)

    def test_retried_messages_are_shared_by_all_members(self) -> None:
        retries = q(0, 1, 2, topic=retry_topic("g"))
        first, second = AllocateMessageQueueByConfig(q(1, 2)), AllocateMessageQueueByConfig([])
        assert list(first.allocate("c1", retries, ["c1", "c2"])) == retries[:2]
        assert list(second.allocate("c2", retries, ["c1", "c2"])) == retries[2:]

    def test_queues_of_a_retry_topic_cannot_be_configured(self) -> None:
        with pytest.raises(IllegalArgumentError, match=r"%RETRY%g@east@a:0 is shared by all members"):
            AllocateMessageQueueByConfig(q(0, topic=retry_topic("g")))


@pytest.mark.parametrize(("rooms", "sentence"), [("east", r"such as \['east'\]"), ([], "consumer_rooms is empty")])
def test_machine_rooms_that_make_no_sense_are_rejected(rooms: Sequence[str], sentence: str) -> None:
    with pytest.raises(IllegalArgumentError, match=sentence):
        AllocateMessageQueueByMachineRoom(rooms)
