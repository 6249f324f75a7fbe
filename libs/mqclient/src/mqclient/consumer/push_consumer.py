"""The push consumer: joins its group, pulls its queues, and calls the listener (MISSION C1, C9-C14, C20-C22).

Invariants: a message is finished when the listener has consumed it or the broker has taken it back; offsets never pass
an unfinished message, so every message is delivered at least once.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from functools import partial

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.background import wait_event
from mqclient.client_config import ClientConfig
from mqclient.client_instance import ClientInstance, acquire_instance
from mqclient.consumer.allocate import AllocateMessageQueueAveragely, AllocateMessageQueueStrategy
from mqclient.consumer.consume_service import ConsumeMessageConcurrentlyService
from mqclient.consumer.listener import ConsumeFromWhere, MessageListenerConcurrently
from mqclient.consumer.offset_store import OffsetStore
from mqclient.consumer.process_queue import ProcessQueue
from mqclient.consumer.pull_loop import PullLoop
from mqclient.consumer.rebalance import Rebalance
from mqclient.consumer.subscription import ALL, Subscription, parse_subscription
from mqclient.errors import (
    IllegalArgumentError,
    IllegalGroupError,
    IllegalStateError,
    MQClientError,
    require_success,
)
from mqclient.lifecycle import Lifecycle, LifecycleEvent, Living, ServiceState
from mqclient.message_ext import MessageExt
from mqclient.message_queue import MessageQueue
from mqclient.transport.methods import CONSUMER_SEND_BACK
from mqproto.names import IllegalNameError, check_group, retry_topic
from osenv.clock import timeout

logger = logging.getLogger("mqclient.push_consumer")

CONSUME_CONCURRENCY = 20
MAX_RECONSUME_TIMES = 16  # MISSION R1
PULL_BATCH_SIZE = 256
COMMIT_SHARE = 0.2  # of the time for a shutdown: what is kept back for the last offsets
COMMIT_S_MAX = 1.0
JOIN_TIMEOUT_S = 3.0  # how long `start` waits to be a working member; it goes on without, and joins later


class PushConsumer(Living):
    """One member of a consumer group in clustering mode: each message goes to one member (C1)."""

    def __init__(
        self,
        group: str,
        url: str,
        *,
        client_config: ClientConfig | None = None,
        consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        consume_concurrency: int = CONSUME_CONCURRENCY,
        consume_message_batch_max_size: int = 1,
        pull_batch_size: int = PULL_BATCH_SIZE,
        max_reconsume_times: int = MAX_RECONSUME_TIMES,
        allocate_strategy: AllocateMessageQueueStrategy | None = None,
    ) -> None:
        """`url` is `mq://host:port;host:port` with the name servers. Raises IllegalGroupError, IllegalArgumentError."""
        try:
            check_group(group)
        except IllegalNameError as error:
            raise IllegalGroupError(str(error)) from error
        numbers = {
            "consume_concurrency": consume_concurrency,
            "consume_message_batch_max_size": consume_message_batch_max_size,
            "pull_batch_size": pull_batch_size,
            "max_reconsume_times": max_reconsume_times,
        }
        for name, value in numbers.items():
            if type(value) is not int or value < 1:
                raise IllegalArgumentError(f"{name} is {value!r}; it has to be an integer of at least 1")
        self.group = group
        self._url = url
        self._config = client_config or ClientConfig()
        self._consume_from_where = consume_from_where
        self._consume_concurrency = consume_concurrency
        self._batch_max_size = consume_message_batch_max_size
        self._pull_batch_size = pull_batch_size
        self._max_reconsume_times = max_reconsume_times
        self._strategy = allocate_strategy or AllocateMessageQueueAveragely()
        self._subscriptions: dict[str, Subscription] = {}
        self._listener: MessageListenerConcurrently | None = None
        self._lifecycle = Lifecycle(f"consumer {group}")
        self._instance: ClientInstance
        self._offset_store: OffsetStore
        self._consume_service: ConsumeMessageConcurrentlyService
        self._rebalance: Rebalance

    def subscribe(self, topic: str, tag_expression: str = ALL) -> None:
        """Want messages of `topic`: all ("*"), or those with one of the tags in "A || B".

        Every member of the group has to subscribe alike (C4). Raises IllegalArgumentError, and IllegalStateError after
        the start.
        """
        self._require_not_started("subscribe")
        self._subscriptions[topic] = parse_subscription(topic, tag_expression)

    def register_message_listener(self, listener: MessageListenerConcurrently) -> None:
        """`listener` gets up to `consume_message_batch_max_size` messages of one queue and says what became of them.

        It has to be idempotent: every message comes at least once, and may come again. Raises IllegalStateError after
        the start.
        """
        self._require_not_started("register a listener")
        self._listener = listener

    @property
    def queues(self) -> list[MessageQueue]:
        """What this member consumes now, the retry topic included; empty unless running."""
        return self._rebalance.queues if self._lifecycle.running else []

    async def start(self) -> None:
        """Join the group and begin to consume; returns when the first queues are assigned, or after a few seconds.

        Needs no server to be there. Raises IllegalStateError, IllegalArgumentError, UnknownTransportError, and
        BrokerRejectedError when a broker that can be reached does not take this group.
        """
        if self._listener is None or not self._subscriptions:
            raise IllegalArgumentError(f"consumer {self.group} needs a subscription and a listener before its start")
        self._lifecycle.move(LifecycleEvent.START)
        instance = acquire_instance(self._url, self._config)
        self._assemble(instance, self._listener)
        refused_before = instance.refusals().keys()
        try:
            instance.register_consumer(self.group, self)
        except IllegalStateError:
            await instance.release()
            raise
        try:
            self._consume_service.start()
            if not await self._join(refused_before):
                logger.warning("consumer %s could not join its group yet; it keeps trying", self.group)
        except BaseException:  # a start that is cancelled leaves nothing behind either
            await self._leave(0.0)
            raise
        self._lifecycle.move(LifecycleEvent.STARTED)

    async def shutdown(self, *, timeout_s: float = 10.0) -> None:
        """Pull nothing more, let running listeners finish, commit the offsets, leave the group.

        All of it takes `timeout_s` at most, whatever hangs; what is not finished by then will be delivered again.
        """
        self._lifecycle.move(LifecycleEvent.SHUTDOWN)
        await self._leave(timeout_s)

    # -------------------------------------------------------------------------------- what the client instance asks

    def consumer_data(self) -> broker_pb.ConsumerData:
        """This consumer's part of the heartbeat."""
        return broker_pb.ConsumerData(
            group=self.group,
            message_model=broker_pb.CLUSTERING,
            consume_from_where=broker_pb.ConsumeFromWhere.Value(self._consume_from_where.value),
            subscriptions=[
                broker_pb.Subscription(topic=subscription.topic, tag_expression=subscription.expression)
                for subscription in self._all_subscriptions().values()
            ],
        )

    def rebalance_now(self) -> None:
        self._rebalance.rebalance_now()

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """An operator has set these offsets of the group."""
        self._rebalance.reset(offsets)

    async def persist_offsets(self) -> None:
        """Write the offsets that have changed to their brokers (MISSION L9)."""
        await self._rebalance.commit()

    # ---------------------------------------------------------------------------------------------------- inside

    def _all_subscriptions(self) -> dict[str, Subscription]:
        """What the application wants, and the group's retry topic (C11)."""
        retry = retry_topic(self.group)
        return {**self._subscriptions, retry: parse_subscription(retry, ALL)}

    def _assemble(self, instance: ClientInstance, listener: MessageListenerConcurrently) -> None:
        self._instance = instance
        self._offset_store = OffsetStore(instance, self.group, self._consume_from_where)
        self._consume_service = ConsumeMessageConcurrentlyService(
            instance.clock,
            listener,
            self._send_back,
            concurrency=self._consume_concurrency,
            batch_size_max=self._batch_max_size,
        )
        self._rebalance = Rebalance(
            instance,
            self.group,
            subscriptions=self._all_subscriptions(),
            strategy=self._strategy,
            offset_store=self._offset_store,
            make_pull_loop=self._make_pull_loop,
        )

    def _make_pull_loop(self, process_queue: ProcessQueue, subscription: Subscription) -> PullLoop:
        return PullLoop(
            self._instance,
            self.group,
            subscription,
            process_queue,
            consume_service=self._consume_service,
            offset_store=self._offset_store,
            pull_batch_size=self._pull_batch_size,
        )

    async def _join(self, refused_before: Collection[str]) -> bool:
        """Routes, sessions, first rebalance, in this order: a member that no broker knows gets no queues.

        Raises BrokerRejectedError when a broker refuses the heartbeat that names this group, other than those at
        `refused_before`, which do so for another group of this client.
        """
        try:
            async with timeout(self._instance.clock, JOIN_TIMEOUT_S):
                for topic in self._all_subscriptions():
                    await self._instance.routes.subscribe_route(topic)
        except (MQClientError, TimeoutError) as error:
            logger.info("consumer %s starts without all its routes: %s", self.group, error)
        joined = await self._instance.wait_for_sessions(JOIN_TIMEOUT_S)
        for address, refusal in self._instance.refusals().items():
            if address not in refused_before:
                raise refusal
        self._rebalance.start()
        return await wait_event(self._instance.clock, self._rebalance.done_once, JOIN_TIMEOUT_S) and joined

    async def _leave(self, timeout_s: float) -> None:
        unregister = partial(self._instance.unregister_consumer, self.group)
        await self._instance.leave(timeout_s, finish=self._finish, unregister=unregister)

    async def _finish(self, until: float) -> None:
        """Let listeners finish and commit the last offsets until the monotonic time `until`; then break off."""
        clock = self._instance.clock
        left_s = max(0.0, until - clock.monotonic())
        commit_s = min(COMMIT_SHARE * left_s, COMMIT_S_MAX)
        await self._rebalance.stop()
        await self._consume_service.close(left_s - commit_s)
        if not commit_s:
            return
        try:
            async with timeout(clock, commit_s):
                await self._rebalance.commit()
        except TimeoutError:
            logger.warning("consumer %s leaves, and not every broker has its last offsets", self.group)

    async def _send_back(self, message: MessageExt) -> None:
        """Give the message back to the broker that holds it. Raises MQClientError."""
        request = broker_pb.ConsumerSendBackRequest(
            group=self.group, log_offset=message.log_offset, max_reconsume_times=self._max_reconsume_times
        )
        response = await self._instance.connection(message.broker_name).unary(CONSUMER_SEND_BACK, request)
        require_success(response.code, response.remark, message.broker_name)

    def _require_not_started(self, what: str) -> None:
        if self._lifecycle.state is not ServiceState.CREATE_JUST:
            raise IllegalStateError(
                f"consumer {self.group} can {what} before its start only; it is in state {self._lifecycle.state.value}"
            )
