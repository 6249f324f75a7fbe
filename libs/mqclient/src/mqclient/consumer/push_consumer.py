"""The push consumer: joins its group, pulls its queues, and calls the listener."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.client_instance import ClientInstance, acquire_instance
from mqclient.config import ClientConfig, ConsumerConfig, legal_group
from mqclient.consumer.consume_service import ProcessQueue
from mqclient.consumer.engine import ConsumerEngine, ConsumerSpec
from mqclient.consumer.listener import (
    ConsumeFromWhere,
    ConsumeHooks,
    ConsumeMessageHook,
    Listener,
    ListenerInvoker,
    MessageListenerConcurrently,
    MessageListenerOrderly,
    MessageModel,
)
from mqclient.consumer.offsets import of_queues
from mqclient.consumer.pulling import ALL, MessageSelector, Subscription, parse_subscription
from mqclient.consumer.rebalance import AllocateMessageQueueAveragely, AllocateMessageQueueStrategy
from mqclient.errors import IllegalArgumentError, IllegalStateError, MQClientError
from mqclient.lifecycle import Lifecycle, LifecycleEvent, Service, ServiceState
from mqclient.message import MessageExt, MessageQueue
from mqproto.codes import ResponseCode
from mqproto.names import retry_topic
from mqproto.values import to_message
from osenv import Clock
from osenv.clock import timeout

logger = logging.getLogger("mqclient.push_consumer")

JOIN_TIMEOUT_S = 3.0  # how long `start` waits to be a working member; it goes on without, and joins later


def running_info(instance: ClientInstance, engine: ConsumerEngine, broker_name: str) -> broker_pb.ConsumerRunningInfo:
    """The consumer's present state, with its queues of one broker."""
    return broker_pb.ConsumerRunningInfo(
        client_id=instance.client_id,
        data=engine.consumer_data(),
        start_timestamp_ms=engine.started_ms,
        consume_concurrency=engine.concurrency.count,
        suspended=not engine.resumed.is_set(),
        queues=[
            _queue_info(one, locked=engine.assigned.may_consume(one))
            for one in engine.assigned.process_queues
            if one.queue.broker_name == broker_name
        ],
        stats=[
            to_message(broker_pb.TopicConsumeStats, one)
            for one in engine.stats.of_last_minute(instance.clock.monotonic())
        ],
    )


async def consume_directly(
    clock: Clock, listening: ListenerInvoker, message: MessageExt
) -> broker_pb.ConsumeDirectlyResult:
    """Call the listener with this one message; the outcome."""
    began = clock.monotonic()
    success, status = await listening.outcome(message.message_queue, [message])
    result, remark = broker_pb.CR_SUCCESS if success else broker_pb.CR_LATER, ""
    if isinstance(status, Exception):
        result, remark = broker_pb.CR_THROW_EXCEPTION, repr(status)
    spent_ms = round((clock.monotonic() - began) * 1_000)
    return broker_pb.ConsumeDirectlyResult(result=result, remark=remark, spent_ms=spent_ms)


def _queue_info(process_queue: ProcessQueue, *, locked: bool) -> broker_pb.ProcessQueueInfo:
    return broker_pb.ProcessQueueInfo(
        topic=process_queue.queue.topic,
        queue_id=process_queue.queue.queue_id,
        commit_offset=process_queue.commit_offset,
        pull_offset=process_queue.pull_offset,
        cached_messages=process_queue.message_count,
        cached_bytes=process_queue.byte_count,
        locked=locked,
        last_pull_timestamp_ms=process_queue.last_pull_ms,
        last_consume_timestamp_ms=process_queue.last_consume_ms,
    )


class PushConsumer(Service):
    """One member of a consumer group.

    In clustering (the default) each message goes to one member, in broadcasting to every one; a message that every
    process needs is better read by several groups (mechanism C3): they have their offsets with the brokers, and failed
    messages come again. Every message is delivered at least once, and may come again.
    """

    def __init__(
        self,
        group: str,
        url: str,
        *,
        client_config: ClientConfig | None = None,
        consumer_config: ConsumerConfig | None = None,
        consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        message_model: MessageModel = MessageModel.CLUSTERING,
        allocate_strategy: AllocateMessageQueueStrategy | None = None,
    ) -> None:
        """`url` is `mq://host:port;host:port` with the name servers. Raises IllegalGroupError."""
        self.group = legal_group(group)
        self._url = url
        self._client_config = client_config or ClientConfig()
        self._config = consumer_config or ConsumerConfig()
        self._consume_from_where = consume_from_where
        self._message_model = message_model
        self._strategy = allocate_strategy or AllocateMessageQueueAveragely()
        self._subscriptions: dict[str, Subscription] = {}
        self._listener: Listener | None = None
        self._orderly = False
        self._hooks = ConsumeHooks()
        self._lifecycle = Lifecycle(f"consumer {group}")
        self._instance: ClientInstance
        self._engine: ConsumerEngine

    def subscribe(self, topic: str, expression: str | MessageSelector | None = ALL) -> None:
        """Subscribe to `topic`: all messages ("*" or None), those with a tag of "A || B", or what a selector says.

        Every member of the group has to subscribe alike (mechanism C4). Raises IllegalArgumentError, and
        IllegalStateError after the start.
        """
        self._require_not_started("subscribe")
        self._subscriptions[topic] = parse_subscription(topic, expression)

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from `topic`; without a subscription to it nothing happens.

        While running, listeners that have begun finish, and offsets stay: a later subscription goes on there. Members
        of a group have to subscribe alike (mechanism C4), so the brokers reject this one unless it is alone or the
        group allows different subscriptions. Raises IllegalStateError after the shutdown.
        """
        self._subscriptions.pop(topic, None)
        if self._lifecycle.state is not ServiceState.CREATE_JUST:
            self._lifecycle.require_running()
            self._engine.unsubscribe(topic)

    def register_message_listener(self, listener: MessageListenerConcurrently) -> None:
        """`listener` gets up to `consume_message_batch_max_size` messages of one queue and says what became of them.

        Several run at a time, in any order; a plain function runs in a thread. What is not consumed comes again later,
        16 times, and is a dead letter then (mechanisms R1, R2). It has to be idempotent: every message comes at least
        once, and may come again. Raises IllegalStateError after the start.
        """
        self._register(listener, orderly=False)

    def register_message_listener_orderly(self, listener: MessageListenerOrderly) -> None:
        """The same, but each queue is consumed in its order, by one listener of the whole group at a time.

        Mechanism O2.

        What is not consumed is tried again after `suspend_current_queue_time_s`, and what follows it in its queue
        waits; for good, unless `max_reconsume_times` is set. A topic with one queue has one order (mechanism O1).
        """
        self._register(listener, orderly=True)

    def register_consume_message_hook(self, hook: ConsumeMessageHook) -> None:
        """Register a hook around each call of the listener (mechanism C12)."""
        self._hooks.register(hook)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this member consumes now, the retry topic's included; empty unless running."""
        return self._engine.assigned.queues if self._lifecycle.running else []

    async def wait_assigned(self, timeout_s: float = 10.0) -> list[MessageQueue]:
        """Wait until this member has its share of every topic to which it subscribes; returns `queues` then.

        The share may have no queue of a topic, where there are more members than queues. A topic that does not exist
        yet is waited for. Raises TimeoutError after `timeout_s`, IllegalStateError unless running, and
        BrokerRejectedError when another process has this member's client id.
        """
        self._lifecycle.require_running()
        try:
            async with timeout(self._instance.clock, timeout_s):
                await self._engine.wait_assigned()
        except TimeoutError:
            if (rejection := self._instance.id_in_use()) is not None:
                raise rejection from None
            raise TimeoutError(f"consumer {self.group} has not got its queues within {timeout_s:g} s") from None
        return self.queues

    async def start(self) -> None:
        """Join the group and begin to consume; returns when the first queues are assigned, or after a few seconds.

        Where there are other members, it returns 200 ms before: so long their queues take to be handed over (ADR 34).
        Needs no server to be there. Raises IllegalStateError, IllegalArgumentError, UnknownTransportError, and
        BrokerRejectedError when a broker that can be reached does not take this group or its subscriptions.
        """
        if self._listener is None or not self._subscriptions:
            raise IllegalArgumentError(f"consumer {self.group} needs a subscription and a listener before its start")
        self._lifecycle.move(LifecycleEvent.START)
        instance = self._instance = acquire_instance(self._url, self._client_config)
        self._engine = ConsumerEngine(instance, self._spec(self._listener))
        rejected_before = instance.rejections().keys()
        try:
            instance.register_consumer(self.group, self)
        except IllegalStateError:
            await instance.release()
            raise
        try:
            await self._engine.start()
            if not await self._join(rejected_before):
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

    def suspend(self) -> None:
        """Pull nothing more until `resume`; what has been pulled is still consumed, and the queues stay this member's.

        Raises IllegalStateError unless running.
        """
        self._lifecycle.require_running()
        self._engine.resumed.clear()

    def resume(self) -> None:
        """Go on after `suspend`. Raises IllegalStateError unless running."""
        self._lifecycle.require_running()
        self._engine.resumed.set()

    # -------------------------------------------------------------------------------- what the client instance asks

    @property
    def in_flight(self) -> int:
        """Listeners at work, until their messages are finished or given back."""
        return self._engine.listeners_running

    def consumer_data(self) -> broker_pb.ConsumerData:
        """This consumer's part of the heartbeat."""
        return self._engine.consumer_data()

    def rebalance_now(self) -> None:
        self._engine.rebalance_now()

    def session_opened(self) -> None:
        self._engine.session_opened()

    def reset_offsets(
        self, broker_name: str, queues: Sequence[broker_pb.QueueProgress], *, by_replica: bool = False
    ) -> None:
        """An operator has set these offsets of the group; a replica may hear of it late."""
        self._engine.assigned.reset_offsets(of_queues(broker_name, queues), only_newer=by_replica)

    async def persist_offsets(self) -> None:
        """Write the offsets that have changed to where they are kept (mechanism L9)."""
        await self._engine.assigned.commit()

    def running_info(self, broker_name: str) -> broker_pb.ConsumerRunningInfo:
        """This consumer's state, with its queues of that broker (mechanisms L11, L12)."""
        return running_info(self._instance, self._engine, broker_name)

    async def consume_directly(self, message: MessageExt) -> broker_pb.ConsumeDirectlyResult:
        """Give the message to the listener now; offsets do not move (mechanism L13)."""
        return await consume_directly(self._instance.clock, self._engine.listening, message)

    # ---------------------------------------------------------------------------------------------------- inside

    def close_listener_threads(self, timeout_s: float) -> None:
        """Wait in this thread, after the shutdown, until the threads of a plain listener have ended."""
        self._engine.listening.close(timeout_s)

    def _register(self, listener: Listener, *, orderly: bool) -> None:
        self._require_not_started("register a listener")
        self._listener, self._orderly = listener, orderly

    def _spec(self, listener: Listener) -> ConsumerSpec:
        return ConsumerSpec(
            self.group,
            self._message_model,
            self._consume_from_where,
            self._strategy,
            self._config,
            self._all_subscriptions(),
            listener,
            self._orderly,
            self._hooks,
        )

    def _all_subscriptions(self) -> Mapping[str, Subscription]:
        """The application's subscriptions, and in clustering that to the group's retry topic (mechanism C11)."""
        if self._message_model is MessageModel.BROADCASTING:
            return dict(self._subscriptions)
        retry = retry_topic(self.group)
        return {**self._subscriptions, retry: parse_subscription(retry, ALL)}

    async def _join(self, rejected_before: Collection[str]) -> bool:
        """Routes, sessions, first rebalance, in this order: a member that no broker knows gets no queues.

        Raises BrokerRejectedError when a broker rejects this group. A rejection that does not name it, at an address of
        `rejected_before`, is about another group of this client.
        """
        try:
            async with timeout(self._instance.clock, JOIN_TIMEOUT_S):
                for topic in self._all_subscriptions():
                    await self._instance.routes.subscribe_route(topic)
        except (MQClientError, TimeoutError) as error:
            logger.info("consumer %s starts without all its routes: %s", self.group, error)
        joined = await self._instance.wait_for_sessions(JOIN_TIMEOUT_S)
        for address, rejection in self._instance.rejections().items():
            in_use = rejection.code == ResponseCode.CLIENT_ID_IN_USE
            if in_use or address not in rejected_before or f"group {self.group!r}" in str(rejection):
                raise rejection
        return await self._engine.join(JOIN_TIMEOUT_S) and joined

    async def _leave(self, timeout_s: float) -> None:
        unregister = partial(self._instance.unregister_consumer, self.group)
        await self._instance.leave(timeout_s, finish=self._engine.finish, unregister=unregister)

    def _require_not_started(self, what: str) -> None:
        if self._lifecycle.state is not ServiceState.CREATE_JUST:
            raise IllegalStateError(
                f"consumer {self.group} can {what} before its start only; it is in state {self._lifecycle.state.value}"
            )
