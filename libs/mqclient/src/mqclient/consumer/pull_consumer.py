"""The pull consumer: reads queues on demand, from a given offset.

Invariants: it changes nothing at a broker but the offsets of its group, and those only by `commit`, `reset` and
`commit_all`, and for a group that has none yet by the first `poll`. A queue that is not paused has one pull at most,
under way or waiting to be handed out, and it began at the queue's position; a position moves when messages are handed
out or by a seek, and in no other way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.client_instance import ClientInstance, acquire_instance
from mqclient.config import ClientConfig, legal_group
from mqclient.connection.broker_connections import BrokerCalls, Readers
from mqclient.consumer.offsets import GroupOffsets
from mqclient.consumer.pulling import (
    ALL,
    MessageSelector,
    PulledFrame,
    PullFromWhichNode,
    PullResult,
    Subscription,
    ask_for,
    offset_at,
    offsets_of,
    parse_subscription,
    pull_request,
    pull_result,
    pulled_frame,
)
from mqclient.errors import IllegalArgumentError, IllegalStateError, NoRouteError
from mqclient.lifecycle import BackgroundTasks, Lifecycle, LifecycleEvent, Service
from mqclient.message import MessageExt, MessageQueue
from mqclient.name_servers import TopicRoute
from mqclient.observed.operations import observed_receive
from mqproto.codes import PullStatus
from osenv import Clock
from osenv.clock import timeout
from telemetry import is_observing

logger = logging.getLogger("mqclient.pull_consumer")

Begin = Callable[[MessageQueue], Awaitable[int]]
Pull = Callable[[MessageQueue, int], Awaitable[PullResult]]

BLOCK_S_MAX = 15.0  # mechanism C7: how long a broker holds a pull


class PullConsumer(Service):
    """What RocketMQ's DefaultMQPullConsumer does, and DefaultLitePullConsumer with assigned queues.

    It is no member of its group: brokers do not count it, it gets no share of the queues and hears of no reset. Which
    process reads which queue is the application's business; two that read the same one both get everything.

    Either the application knows where it is. `pull` is told the offset, every time, so it can be kept wherever the
    results are: in memory, in a file, in the database transaction that stores the results, which makes their effect
    happen exactly once; or at the brokers, with `committed` and `commit`.

        offset = await consumer.committed(queue) or await consumer.min_offset(queue)
        result = await consumer.pull(queue, offset, block_s=5)
        ...
        await consumer.commit(queue, result.next_begin_offset)

    Or the consumer does: `assign` queues, `poll` messages in turns, and `commit_all` when they are processed. A queue
    begins where its group has committed, and else at its end; `seek` begins elsewhere.
    """

    def __init__(
        self, group: str, url: str, *, client_config: ClientConfig | None = None, prefers_replicas: bool = False
    ) -> None:
        """`url` is `mq://host:port;host:port` with the name servers. Raises IllegalGroupError.

        With `prefers_replicas` a replica serves the pulls wherever there is one, so that a reader of everything does
        not push the new messages out of the master's memory; the master serves what the replica does not have yet.
        """
        self.group = legal_group(group)
        self._prefers_replicas = prefers_replicas
        self._url = url
        self._config = client_config or ClientConfig()
        self._lifecycle = Lifecycle(f"pull consumer {group}")
        self._instance: ClientInstance
        self._offsets: GroupOffsets
        self._nodes: PullFromWhichNode
        self._assigned: AssignedQueues

    async def start(self) -> None:
        """Join the client instance. Raises UnknownTransportError, IllegalArgumentError, IllegalStateError."""
        self._lifecycle.move(LifecycleEvent.START)
        self._instance = acquire_instance(self._url, self._config)
        self._instance.register_admin(self)  # like an admin, it keeps the instance and needs no session
        self._offsets = GroupOffsets(self._calls, self.group, self._instance.client_id)
        self._nodes = PullFromWhichNode(self._instance, prefers_replicas=self._prefers_replicas)
        self._assigned = AssignedQueues(self._instance.clock, self._offsets.begin)
        self._lifecycle.move(LifecycleEvent.STARTED)

    async def shutdown(self, *, timeout_s: float = 10.0) -> None:
        """Leave the client instance, within `timeout_s`; nothing is committed by itself. Raises IllegalStateError."""
        self._lifecycle.move(LifecycleEvent.SHUTDOWN)
        await self._assigned.close()
        self._instance.unregister_admin(self)
        await self._instance.release(self._instance.clock.monotonic() + timeout_s)

    # ------------------------------------------------------------------------------------------------- the queues

    async def fetch_subscribe_message_queues(self, topic: str) -> list[MessageQueue]:
        """The topic's queues that can be read now, sorted, as a name server knows them now.

        Raises NoRouteError when no name server knows the topic, or none answers.
        """
        self._lifecycle.require_running()
        route = await self._instance.routes.refresh(topic)
        return list(_existing(topic, route).subscribe_queues())

    async def min_offset(self, queue: MessageQueue) -> int:
        """The first offset that can be read. Raises NoRouteError, the broker's rejection, MQClientError."""
        return (await offsets_of(await self._readers(queue), queue))[0]

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset of the next message to come. Raises as `min_offset`."""
        return (await offsets_of(await self._readers(queue), queue))[1]

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset that was stored at or after the time (ms since 1970); the queue's end when all are older.

        Raises as `min_offset`.
        """
        return await offset_at(await self._readers(queue), queue, timestamp_ms)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        expression: str | MessageSelector | None = ALL,
        max_messages: int = 32,
        block_s: float = 0.0,
    ) -> PullResult:
        """Messages of the queue from `offset` on: at once, or as soon as there are any, within `block_s` seconds.

        The broker's master serves, or a replica that it suggests, or any replica while it is away. A replica that does
        not have the offset yet, or no more, finds NO_NEW_MSG.

        An offset that the queue does not have is no error but a result: OFFSET_ILLEGAL, and where to go on. The broker
        looks at a part of the queue only, so NO_MATCHED_MSG says nothing about what comes after `next_begin_offset`.
        Raises IllegalArgumentError (`block_s` is 15 at most, mechanism C7), NoRouteError, the broker's rejection,
        MQClientError.
        """
        _check_block(block_s)
        subscription = parse_subscription(queue.topic, expression)
        pulling = self._pull(queue, offset, subscription, max_messages, block_s)
        if is_observing():
            pulling = observed_receive(self.group, pulling, lambda result: result.messages, self._instance.clock)
        return await pulling

    async def pull_frame(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        expression: str | MessageSelector | None = ALL,
        max_messages: int = 32,
        block_s: float = 0.0,
    ) -> PulledFrame:
        """As `pull`, but the records as the bytes that came, for callers that decode many of them in their own way.

        Nothing of them is checked, not even their CRC. Raises as `pull`, which is not for damaged records then.
        """
        _check_block(block_s)
        subscription = parse_subscription(queue.topic, expression)
        return pulled_frame(await self._answer(queue, offset, subscription, max_messages, block_s))

    # ---------------------------------------------------------------------------------- offsets kept by the brokers

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset in this queue, from its broker; None when it has never committed.

        Raises as `min_offset`.
        """
        return await self._running_offsets.query(queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit that everything below `offset` is finished; call it after processing.

        This only grows. A broker that has a larger offset keeps it; `reset` is what goes back. When the offset was
        reset, by an operator perhaps, since this consumer last asked, nothing is committed, and IllegalStateError is
        raised: ask `committed` where to go on. Raises as `min_offset` otherwise.
        """
        if await self._running_offsets.grow({queue: offset}):
            raise IllegalStateError(
                f"the offset of group {self.group} in {queue} was reset since it was asked for; "
                f"committed() tells where to go on"
            )

    async def reset(self, queue: MessageQueue, offset: int) -> None:
        """Set the group's offset to exactly `offset`, back or forward: to consume again, or to skip.

        It holds for every process that consumes as this group, and what is still reported from before does not count
        any more. Only the broker's master does that. A queue that is assigned here goes on there. Raises as
        `min_offset`.
        """
        await self._running_offsets.set_to({queue: offset})
        self._assigned.follow(queue, offset)

    # ---------------------------------------------------------------------------- positions kept by this consumer

    def assign(
        self, queues: Iterable[MessageQueue], *, expression: str | MessageSelector | None = ALL, max_messages: int = 32
    ) -> None:
        """Assign these queues to `poll`, and no others; those that were assigned before go on where they are.

        Raises IllegalArgumentError, IllegalStateError.
        """
        assigned = self._running_assigned
        if max_messages < 1:
            raise IllegalArgumentError(f"{max_messages} messages; ask for 1 at least")
        wanted = list(queues)
        subscriptions = {queue.topic: parse_subscription(queue.topic, expression) for queue in wanted}

        async def pull(queue: MessageQueue, offset: int) -> PullResult:
            return await self._pull(queue, offset, subscriptions[queue.topic], max_messages, BLOCK_S_MAX)

        assigned.assign(wanted, pull)

    async def poll(self, timeout_s: float = 5.0) -> list[MessageExt]:
        """Up to `max_messages` messages of one queue, the queues taking turns; empty when none come in `timeout_s`.

        Ahead of time, each queue is pulled once. Raises IllegalStateError when nothing is assigned, and what the pull
        of a queue has raised; the next `poll` tries it again, after the other queues.
        """
        polling = self._running_assigned.poll(timeout_s)
        if is_observing():
            polling = observed_receive(self.group, polling, lambda messages: messages, self._instance.clock)
        return await polling

    def position(self, queue: MessageQueue) -> int | None:
        """The offset behind what `poll` has returned; None before it is known. Raises IllegalStateError."""
        return self._running_assigned.position(queue)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue this assigned queue at `offset`. The next `commit_all` sets it, backwards as well.

        Raises IllegalStateError when the queue is not assigned.
        """
        self._running_assigned.seek(queue, offset)

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """As `seek`, to the first message that was stored at or after the time (ms since 1970)."""
        self.seek(queue, await self.search_offset(queue, timestamp_ms))

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """As `seek`, to the first message that can be read."""
        self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """As `seek`, to the next message to come."""
        self.seek(queue, await self.max_offset(queue))

    def pause(self, queue: MessageQueue) -> None:
        """Pause this assigned queue: `poll` returns nothing of it until `resume`. Raises IllegalStateError."""
        self._running_assigned.pause(queue)

    def resume(self, queue: MessageQueue) -> None:
        """End a `pause`; the queue goes on where it was. Raises IllegalStateError."""
        self._running_assigned.resume(queue)

    async def commit_all(self) -> None:
        """Commit the positions: everything that `poll` has returned so far counts as finished.

        A queue whose offset was reset since goes on there instead. Raises MQClientError when a broker does not take it,
        and can be called again then.
        """
        assigned, offsets = self._running_assigned, self._running_offsets
        sought, others = assigned.to_commit()
        await offsets.set_to(sought)
        assigned.committed(sought)
        for queue in await offsets.grow(others):
            offset = await offsets.query(queue)
            if offset is not None:
                assigned.follow(queue, offset)

    # ------------------------------------------------------------------------------------------------------ inside

    async def _calls(self, queue: MessageQueue) -> BrokerCalls:
        """To the queue's broker, also when its topic has no cached route yet. Raises NoRouteError, MQClientError."""
        self._lifecycle.require_running()
        routes = self._instance.routes
        route = _existing(queue.topic, await routes.subscribe_route(queue.topic))
        if queue.broker_name not in route.brokers:
            await routes.refresh(queue.topic)
        return self._instance.calls

    async def _readers(self, queue: MessageQueue) -> Readers:
        return (await self._calls(queue)).readers(queue.broker_name)

    async def _pull(
        self, queue: MessageQueue, offset: int, subscription: Subscription, max_messages: int, block_s: float
    ) -> PullResult:
        answer = await self._answer(queue, offset, subscription, max_messages, block_s)
        return pull_result(answer, queue, subscription)

    async def _answer(
        self, queue: MessageQueue, offset: int, subscription: Subscription, max_messages: int, block_s: float
    ) -> broker_pb.PullResponse:
        await self._calls(queue)
        request = pull_request(self.group, queue, offset, subscription, max_messages)
        guard_s = block_s + self._config.request_timeout_s
        ask = partial(ask_for, request, block_s=block_s, guard_s=guard_s)
        return await self._nodes.pull(queue, offset, ask, wait_s=block_s)

    @property
    def _running_offsets(self) -> GroupOffsets:
        self._lifecycle.require_running()
        return self._offsets

    @property
    def _running_assigned(self) -> AssignedQueues:
        self._lifecycle.require_running()
        return self._assigned


@dataclass(slots=True)
class _Queue:
    """`position` is None before it is known. `sought`: a seek has moved it since it was last committed."""

    position: int | None = None
    sought: bool = False
    paused: bool = False
    pull: asyncio.Task[PullResult] | None = None

    def drop_pull(self) -> None:
        """What was pulled, or is being pulled, is not wanted any more."""
        if self.pull is not None:
            self.pull.cancel()
            self.pull = None


class AssignedQueues:
    """`begin` tells where to begin with a queue without a seek; `assign` tells how to pull."""

    def __init__(self, clock: Clock, begin: Begin) -> None:
        self._clock = clock
        self._begin = begin
        self._pull: Pull
        self._tasks = BackgroundTasks(clock)
        self._queues: dict[MessageQueue, _Queue] = {}  # in the order of their turns
        self._changed = asyncio.Event()
        self._closed = False

    def assign(self, queues: Iterable[MessageQueue], pull: Pull) -> None:
        """Read these queues from now on, and no others; those that stay go on where they are."""
        wanted = dict.fromkeys(queues)
        for state in self._queues.values():
            state.drop_pull()
        self._queues = {queue: self._queues.get(queue) or _Queue() for queue in wanted}
        self._pull = pull
        self._changed.set()

    @property
    def queues(self) -> list[MessageQueue]:
        """What is assigned, sorted."""
        return sorted(self._queues)

    def position(self, queue: MessageQueue) -> int | None:
        """The offset behind what was handed out; None before it is known. Raises IllegalStateError."""
        return self._state(queue).position

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at `offset`. Raises IllegalStateError when the queue is not assigned."""
        state = self._state(queue)
        state.drop_pull()
        state.position, state.sought = offset, True
        self._changed.set()

    def pause(self, queue: MessageQueue) -> None:
        """Hand out nothing of this queue until `resume`. Raises IllegalStateError."""
        state = self._state(queue)
        state.drop_pull()
        state.paused = True

    def resume(self, queue: MessageQueue) -> None:
        """Hand out messages of this queue again. Raises IllegalStateError."""
        self._state(queue).paused = False
        self._changed.set()

    async def poll(self, timeout_s: float) -> list[MessageExt]:
        """The next messages of the next queue that has any; empty after `timeout_s` without one.

        Raises IllegalStateError, and what a pull has raised; the queue is pulled again by the next `poll`.
        """
        try:
            async with timeout(self._clock, timeout_s):
                while True:
                    self._require_queues()
                    self._changed.clear()
                    messages = self._take_next()
                    self._start_pulls()
                    if messages or timeout_s <= 0:
                        return messages
                    await self._changed.wait()
        except TimeoutError:
            return []

    def to_commit(self) -> tuple[dict[MessageQueue, int], dict[MessageQueue, int]]:
        """The positions that were sought, and the others that are known."""
        known = {queue: state.position for queue, state in self._queues.items() if state.position is not None}
        sought = {queue: position for queue, position in known.items() if self._queues[queue].sought}
        return sought, {queue: position for queue, position in known.items() if queue not in sought}

    def committed(self, sought: Mapping[MessageQueue, int]) -> None:
        """The broker has taken over what was sought."""
        for queue in sought:
            if state := self._queues.get(queue):
                state.sought = False

    def follow(self, queue: MessageQueue, offset: int) -> None:
        """The group's offset was reset elsewhere: go on there."""
        if queue in self._queues:
            logger.info("%s: the offset of the group was set to %d", queue, offset)
            self.seek(queue, offset)
            self._queues[queue].sought = False

    async def close(self) -> None:
        """Pull nothing more; a `poll` that waits raises IllegalStateError."""
        self._closed = True
        self._changed.set()
        await self._tasks.close()

    def _require_queues(self) -> None:
        if self._closed:
            raise IllegalStateError("the consumer has been shut down")
        if not self._queues:
            raise IllegalStateError("no queue is assigned; call assign first")

    def _start_pulls(self) -> None:
        for queue, state in self._queues.items():
            if state.pull is None and not state.paused:
                state.pull = self._tasks.start(self._read(queue, state), f"mqclient pull {queue}", awaited=True)
                state.pull.add_done_callback(lambda _: self._changed.set())

    async def _read(self, queue: MessageQueue, state: _Queue) -> PullResult:
        if state.position is None:
            state.position = await self._begin(queue)
        return await self._pull(queue, state.position)

    def _take_next(self) -> list[MessageExt]:
        """What the first queue in turn has found, or raises. Either ends its turn."""
        for queue, state in list(self._queues.items()):
            if state.pull is None or not state.pull.done():
                continue
            pull, state.pull = state.pull, None
            if pull.exception() is not None or pull.result().messages:
                self._queues[queue] = self._queues.pop(queue)
            result = pull.result()
            if result.status is PullStatus.OFFSET_ILLEGAL:
                following = result.next_begin_offset
                logger.warning("%s has no offset %s any more; it goes on at %d", queue, state.position, following)
            state.position = result.next_begin_offset
            if result.messages:
                return list(result.messages)
        return []

    def _state(self, queue: MessageQueue) -> _Queue:
        state = self._queues.get(queue)
        if state is None:
            raise IllegalStateError(f"{queue} is not assigned to this consumer; assigned are {self.queues}")
        return state


def _check_block(block_s: float) -> None:
    if not 0 <= block_s <= BLOCK_S_MAX:
        raise IllegalArgumentError(f"block_s is {block_s!r}; a broker waits for 0 to {BLOCK_S_MAX:g} s")


def _existing(topic: str, route: TopicRoute | None) -> TopicRoute:
    if route is None:
        raise NoRouteError(f"no registered broker has the topic {topic!r}")
    return route
