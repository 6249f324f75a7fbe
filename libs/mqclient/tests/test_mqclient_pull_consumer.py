"""The pull consumer on fakes: pulls, positions, offsets at the brokers, errors (mechanisms C5, C6, C23)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from mqclient import (
    BrokerUnavailableError,
    BrokerUnreachableError,
    ClientConfig,
    IllegalArgumentError,
    IllegalGroupError,
    IllegalStateError,
    MessageExt,
    MessageQueue,
    MessageSelector,
    NoRouteError,
    PullConsumer,
    PullStatus,
    RequestTimeoutError,
)
from mqclient.testing import FakeBroker, FakeCluster
from mqclient.transport import methods
from osenv.sim_clock import settle

QUEUE = MessageQueue("orders", "a", 0)
OTHER = MessageQueue("orders", "a", 1)
START_MS = 1_700_000_000_000


@pytest_asyncio.fixture
async def cluster() -> FakeCluster:
    return FakeCluster.of("a", "b", queue_count=2)[0]


@pytest_asyncio.fixture
async def broker(cluster: FakeCluster) -> FakeBroker:
    return next(iter(cluster.brokers.values()))


@pytest_asyncio.fixture
async def consumer(cluster: FakeCluster) -> AsyncIterator[PullConsumer]:
    async with PullConsumer("readers", cluster.url) as running:
        yield running


def put(broker: FakeBroker, count: int, queue_id: int = 0, tag: str = "red") -> None:
    for number in range(count):
        broker.put("orders", queue_id, b"%d" % number, {"TAGS": tag})


def bodies(messages: list[MessageExt] | tuple[MessageExt, ...]) -> list[bytes]:
    return [message.body for message in messages]


class TestPull:
    async def test_the_four_statuses_and_where_to_go_on(self, broker: FakeBroker, consumer: PullConsumer) -> None:
        put(broker, 5)
        broker.min_offsets["orders", 0] = 2
        found = await consumer.pull(QUEUE, 2, max_messages=2)
        assert (found.status, found.next_begin_offset, bodies(found.messages)) == (PullStatus.FOUND, 4, [b"2", b"3"])
        assert (found.min_offset, found.max_offset) == (2, 5)
        nothing = await consumer.pull(QUEUE, 5)
        assert (nothing.status, nothing.next_begin_offset, nothing.messages) == (PullStatus.NO_NEW_MSG, 5, ())
        unwanted = await consumer.pull(QUEUE, 2, expression="blue")
        assert (unwanted.status, unwanted.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, 5)
        for offset, following in ((-1, 2), (0, 2), (1, 2), (6, 5), (1 << 40, 5)):
            outside = await consumer.pull(QUEUE, offset)
            assert (outside.status, outside.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, following)

    async def test_a_blocking_pull_is_answered_by_the_first_message(
        self, broker: FakeBroker, consumer: PullConsumer
    ) -> None:
        waiting = asyncio.create_task(consumer.pull(QUEUE, 0, block_s=15))
        await settle()
        assert not waiting.done()
        put(broker, 1)
        assert bodies((await waiting).messages) == [b"0"]

    async def test_a_broker_that_is_silent_is_given_up_a_request_s_time_after_the_block(
        self, cluster: FakeCluster, broker: FakeBroker, consumer: PullConsumer
    ) -> None:
        broker.silent = True
        waiting = asyncio.create_task(consumer.pull(QUEUE, 0, block_s=5))
        await cluster.clock.advance(7.9)
        assert not waiting.done()
        await cluster.clock.advance(0.1)
        with pytest.raises(RequestTimeoutError):
            await waiting

    async def test_a_selector_reaches_the_broker(
        self, cluster: FakeCluster, broker: FakeBroker, consumer: PullConsumer
    ) -> None:
        put(broker, 1)
        asked: list[tuple[str, Any]] = []
        serve = broker.unary

        async def remember(path: str, request: Any) -> Any:
            asked.append((path, request))
            return await serve(path, request)

        broker.unary = remember  # type: ignore[method-assign]
        await consumer.pull(QUEUE, 0, expression=MessageSelector.by_sql("amount > 100"), max_messages=7)
        ((path, request),) = asked
        assert path == methods.PULL.path
        assert (request.expression, request.expression_type) == ("amount > 100", "SQL92")
        assert (request.group, request.queue_offset, request.max_messages) == ("readers", 0, 7)

    async def test_it_knows_queues_that_it_has_not_asked_for(self, broker: FakeBroker, consumer: PullConsumer) -> None:
        """A queue and an offset from the caller's own database are enough."""
        put(broker, 3, queue_id=1)
        assert bodies((await consumer.pull(OTHER, 1)).messages) == [b"1", b"2"]

    async def test_a_broker_that_came_after_the_route_was_cached_is_found(
        self, cluster: FakeCluster, consumer: PullConsumer
    ) -> None:
        await consumer.pull(QUEUE, 0)
        late = cluster.add_broker("late")
        late.create_topic("orders", 1)
        put(late, 1)
        assert bodies((await consumer.pull(MessageQueue("orders", "late", 0), 0)).messages) == [b"0"]


class TestQueues:
    @pytest.mark.mechanism("C5")
    async def test_all_queues_of_the_topic_sorted(self, cluster: FakeCluster, consumer: PullConsumer) -> None:
        found = await consumer.fetch_subscribe_message_queues("orders")
        assert found == [MessageQueue("orders", name, number) for name in ("a", "b") for number in (0, 1)]
        cluster.add_broker("c").create_topic("orders", 1)
        assert MessageQueue("orders", "c", 0) in await consumer.fetch_subscribe_message_queues("orders")

    async def test_offsets_by_place_and_by_time(
        self, cluster: FakeCluster, broker: FakeBroker, consumer: PullConsumer
    ) -> None:
        for _ in range(4):
            put(broker, 1)
            await cluster.clock.advance(1)
        broker.min_offsets["orders", 0] = 1
        assert (await consumer.min_offset(QUEUE), await consumer.max_offset(QUEUE)) == (1, 4)
        for milliseconds, wanted in ((0, 1), (1_001, 2), (2_000, 2), (9_000, 4)):
            assert await consumer.search_offset(QUEUE, START_MS + milliseconds) == wanted


class TestCommittedOffsets:
    async def test_what_was_never_committed_is_none_and_nothing_is_made_by_asking(
        self, broker: FakeBroker, consumer: PullConsumer
    ) -> None:
        assert await consumer.committed(QUEUE) is None
        assert broker.offsets == {}

    async def test_a_commit_grows_and_is_no_reset(self, broker: FakeBroker, consumer: PullConsumer) -> None:
        put(broker, 9)
        for offset, wanted in ((3, 3), (7, 7), (5, 7)):
            await consumer.commit(QUEUE, offset)
            assert await consumer.committed(QUEUE) == wanted
        assert [(one.group, one.set) for one in broker.commits] == [("readers", False)] * 3

    async def test_a_reset_goes_back_and_says_so_on_the_wire(self, broker: FakeBroker, consumer: PullConsumer) -> None:
        put(broker, 9)
        await consumer.commit(QUEUE, 7)
        await consumer.reset(QUEUE, 2)
        assert await consumer.committed(QUEUE) == 2
        request = broker.commits[-1]
        assert (request.set, request.group, request.client_id.startswith("10.0.0.1@")) == (True, "readers", True)
        assert [(one.topic, one.queue_id, one.offset) for one in request.queues] == [("orders", 0, 2)]
        await consumer.commit(QUEUE, 4)
        assert await consumer.committed(QUEUE) == 4

    async def test_a_commit_does_not_undo_a_reset(
        self, cluster: FakeCluster, broker: FakeBroker, consumer: PullConsumer
    ) -> None:
        put(broker, 9)
        await consumer.commit(QUEUE, 7)
        async with PullConsumer("readers", cluster.url, client_config=ClientConfig(instance_name="operator")) as other:
            await other.reset(QUEUE, 2)
        for _ in range(2):
            with pytest.raises(IllegalStateError, match=r"the offset of group readers in orders@a:0 was reset"):
                await consumer.commit(QUEUE, 8)
        assert await consumer.committed(QUEUE) == 2
        await consumer.commit(QUEUE, 3)
        assert await consumer.committed(QUEUE) == 3

    async def test_a_reset_overrides_an_earlier_reset(
        self, cluster: FakeCluster, broker: FakeBroker, consumer: PullConsumer
    ) -> None:
        put(broker, 9)
        await consumer.commit(QUEUE, 7)
        async with PullConsumer("readers", cluster.url, client_config=ClientConfig(instance_name="operator")) as other:
            await other.reset(QUEUE, 2)
        await consumer.reset(QUEUE, 5)
        assert await consumer.committed(QUEUE) == 5


CALLS: dict[str, Callable[[PullConsumer], Awaitable[object]]] = {
    "pull": lambda consumer: consumer.pull(QUEUE, 0),
    "committed": lambda consumer: consumer.committed(QUEUE),
    "commit": lambda consumer: consumer.commit(QUEUE, 0),
    "reset": lambda consumer: consumer.reset(QUEUE, 0),
    "min_offset": lambda consumer: consumer.min_offset(QUEUE),
    "search_offset": lambda consumer: consumer.search_offset(QUEUE, 0),
    "fetch": lambda consumer: consumer.fetch_subscribe_message_queues("orders"),
    "poll": lambda consumer: consumer.poll(0),
    "commit_all": lambda consumer: consumer.commit_all(),
}


class TestLife:
    @pytest.mark.parametrize("call", CALLS)
    async def test_before_its_start_and_after_its_shutdown_it_asks_no_broker(
        self, cluster: FakeCluster, call: str
    ) -> None:
        consumer = PullConsumer("readers", cluster.url)
        with pytest.raises(IllegalStateError, match="is not running"):
            await CALLS[call](consumer)
        await consumer.start()
        await consumer.shutdown()
        with pytest.raises(IllegalStateError, match="is not running"):
            await CALLS[call](consumer)

    async def test_it_is_no_member_of_its_group(self, broker: FakeBroker, consumer: PullConsumer) -> None:
        put(broker, 1)
        await consumer.pull(QUEUE, 0)
        await consumer.commit(QUEUE, 1)
        await settle()
        assert broker.members("readers") == []
        assert [stream for stream in broker.streams if stream.path == methods.SESSION.path] == []

    async def test_nothing_is_left_after_its_shutdown(self, cluster: FakeCluster, broker: FakeBroker) -> None:
        async with PullConsumer("readers", cluster.url) as consumer:
            consumer.assign([QUEUE, OTHER])
            assert await consumer.poll(0) == []
            await settle()
        assert all(channel.closed for channel in cluster.channels)
        assert cluster.clock.timers == 0
        assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("mqclient")] == []
        assert broker.commits == []

    async def test_a_group_name_that_the_queue_does_not_take_is_rejected(self, cluster: FakeCluster) -> None:
        with pytest.raises(IllegalGroupError, match="group name"):
            PullConsumer("two words", cluster.url)


class TestErrors:
    @pytest.mark.parametrize("block_s", [-1, 15.1])
    async def test_a_block_beyond_what_a_broker_waits_is_rejected(self, consumer: PullConsumer, block_s: float) -> None:
        with pytest.raises(IllegalArgumentError, match="a broker waits for 0 to 15 s"):
            await consumer.pull(QUEUE, 0, block_s=block_s)

    async def test_arguments_that_make_no_sense_are_rejected(self, consumer: PullConsumer) -> None:
        with pytest.raises(IllegalArgumentError, match="ask for 1 at least"):
            await consumer.pull(QUEUE, 0, max_messages=0)
        with pytest.raises(IllegalArgumentError, match="ask for 1 at least"):
            consumer.assign([QUEUE], max_messages=0)
        with pytest.raises(IllegalArgumentError, match="tag expression"):
            consumer.assign([QUEUE], expression="a || *")

    async def test_an_unknown_topic_and_an_unknown_broker_are_said_so(self, consumer: PullConsumer) -> None:
        missing = MessageQueue("missing", "a", 0)
        with pytest.raises(NoRouteError, match="no registered broker has the topic 'missing'"):
            await consumer.pull(missing, 0)
        with pytest.raises(NoRouteError, match="no registered broker has the topic 'missing'"):
            await consumer.fetch_subscribe_message_queues("missing")
        with pytest.raises(BrokerUnreachableError, match="'z'"):
            await consumer.pull(MessageQueue("orders", "z", 0), 0)

    async def test_a_rejection_of_the_broker_is_raised(self, broker: FakeBroker, consumer: PullConsumer) -> None:
        await consumer.pull(QUEUE, 0)
        del broker.topics["orders"]
        with pytest.raises(BrokerUnavailableError, match="TOPIC_NOT_EXIST"):
            await consumer.pull(QUEUE, 0)

    async def test_a_broker_that_is_down_is_unreachable(self, broker: FakeBroker, consumer: PullConsumer) -> None:
        await consumer.pull(QUEUE, 0)
        broker.down = True
        for block_s in (0, 5):
            with pytest.raises(BrokerUnreachableError):
                await consumer.pull(QUEUE, 0, block_s=block_s)
