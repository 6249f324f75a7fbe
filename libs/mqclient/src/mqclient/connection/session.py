"""The session with one broker: heartbeats and answers go up, commands come down, so that the client is a server, too.

Invariants: a group is registered at most once as a producer and once as a consumer, and every heartbeat names exactly
the groups that are registered; an instance lives as long as any is. The first thing on every opened stream is a whole
heartbeat; one task writes to a stream; a command is answered on the stream that it came by, or not at all; a broken
stream is opened again until the session is closed, with a backoff that doubles and starts anew once the broker has
answered a heartbeat; `answer` is what the broker says to the newest heartbeat, and None while it has not said anything
to that one. A command that cannot be carried out is logged and changes nothing, and the session it came by goes on; a
command with an id is answered once, whatever happens, and nothing waits for it meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.config import ClientConfig
from mqclient.errors import ConnectionLostError, IllegalStateError, MQClientError, code_name
from mqclient.lifecycle import BackgroundTasks
from mqclient.message import MessageExt
from mqclient.transport import Channel, Stream
from mqclient.transport.methods import SESSION
from mqproto.record import iter_sealed_records
from osenv import Clock

logger = logging.getLogger("mqclient.connection.session")

SessionStream = Stream[broker_pb.SessionRequest, broker_pb.SessionResponse]
Reply = Callable[[broker_pb.CommandAnswer], None]


class SessionHandler(Protocol):
    """Fills in heartbeats, and carries commands out."""

    def heartbeat(self, address: str) -> broker_pb.Heartbeat:
        """All groups of this client that concern the broker at `address`."""

    def session_opened(self, address: str) -> None:
        """The broker has answered the first heartbeat of a stream: it knows the groups that it has not rejected."""

    def session_broke(self, address: str) -> None:
        """The stream has ended, and the client did not end it; it will be opened again."""

    def heartbeat_answered(self) -> None:
        """`answer` has changed."""

    def command(self, address: str, response: broker_pb.SessionResponse, reply: Reply) -> None:
        """The broker has sent a command, and may want an answer by `reply`, now or later. Raises nothing.

        An answer whose stream is gone is dropped.
        """


class Session:
    """Keeps one Session stream to `address` open."""

    def __init__(
        self, address: str, channel: Channel, handler: SessionHandler, config: ClientConfig, clock: Clock
    ) -> None:
        self.answer: broker_pb.HeartbeatAck | None = None
        self.id_in_use: broker_pb.HeartbeatAck | None = None  # the last answer, while it says so
        self._address = address
        self._channel = channel
        self._handler = handler
        self._config = config
        self._clock = clock
        self._tasks = BackgroundTasks(clock)
        self._heartbeat_due = False
        self._replies: deque[broker_pb.CommandAnswer] = deque()  # of the stream that is open
        self._something_due = asyncio.Event()
        self._unanswered = 0  # heartbeats of the stream that is open
        self._stream: SessionStream | None = None
        self._is_known = False  # to the broker, by a heartbeat of the stream that is open
        self._ended = asyncio.Event()
        self._closing = False

    def start(self) -> None:
        self._tasks.start(self._run(), f"mqclient session {self._address}")

    def heartbeat_now(self) -> None:
        """Something of the heartbeat has changed, or it is time for the next one."""
        self.answer = None
        self._heartbeat_due = True
        self._something_due.set()

    async def send_leave_notices(self) -> None:
        """End the stream in order, so that the broker sees the client leave at once; return when it has ended.

        A silent broker ends nothing: the caller limits the time.
        """
        self._closing = True
        if self._stream is not None and self._is_known:
            await self._stream.done_writing()
            await self._ended.wait()

    async def close(self) -> None:
        """Break off what is open, and leave nothing behind."""
        self._closing = True
        if self._stream is not None:
            self._stream.cancel()
        await self._tasks.close()

    async def _run(self) -> None:
        backoff_s = self._config.reconnect_backoff_min_s
        while not self._closing:
            try:
                await self._run_stream()
            except MQClientError as error:
                logger.info("the session with %s broke: %s", self._address, error)
            if self._is_known:
                backoff_s = self._config.reconnect_backoff_min_s
            self._is_known = False
            self.answer = None
            self._ended.set()
            if not self._closing:
                self._handler.session_broke(self._address)
                await self._clock.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, self._config.reconnect_backoff_max_s)

    async def _run_stream(self) -> None:
        stream = self._stream = self._channel.stream(SESSION)
        self._ended.clear()
        self._unanswered = 0
        self._heartbeat_due = True
        self._replies.clear()
        reply = partial(self._reply, stream)
        writer = self._tasks.start(self._write(stream), f"mqclient session writer {self._address}")
        try:
            while (response := await stream.read()) is not None:
                if response.WhichOneof("command") == "heartbeat_ack":
                    self._answered(response.heartbeat_ack)
                else:
                    self._handler.command(self._address, response, reply)
        finally:
            writer.cancel()
            stream.cancel()
        if not self._closing:
            raise ConnectionLostError(f"the broker at {self._address} ended the session")

    def _reply(self, stream: SessionStream, answer: broker_pb.CommandAnswer) -> None:
        if stream is self._stream:
            self._replies.append(answer)
            self._something_due.set()
        else:
            logger.info("the answer to command %d of %s comes too late", answer.command_id, self._address)

    async def _write(self, stream: SessionStream) -> None:
        try:
            while not self._closing:
                self._something_due.clear()
                if self._heartbeat_due:
                    self._heartbeat_due = False
                    self._unanswered += 1
                    await stream.write(broker_pb.SessionRequest(heartbeat=self._handler.heartbeat(self._address)))
                while self._replies:
                    await stream.write(broker_pb.SessionRequest(command_answer=self._replies.popleft()))
                await self._something_due.wait()
        except MQClientError as error:
            logger.debug("nothing can be written to %s, the reader reopens: %s", self._address, error)
            stream.cancel()

    def _answered(self, ack: broker_pb.HeartbeatAck) -> None:
        self._unanswered -= 1
        self.id_in_use = ack if ack.code == common_pb.CLIENT_ID_IN_USE else None
        if self._unanswered <= 0 and not self._heartbeat_due:
            self.answer = ack
        if ack.code != common_pb.SUCCESS:
            logger.warning("%s rejected a heartbeat: %s: %s", self._address, code_name(ack.code), ack.remark)
        if not self._is_known:
            self._is_known = True
            self._handler.session_opened(self._address)
        self._handler.heartbeat_answered()


class InnerProducer(Protocol):
    """What the instance asks of a registered producer."""

    @property
    def in_flight(self) -> int: ...

    def check_transaction(self, broker_name: str, check: broker_pb.CheckTransaction) -> None: ...


class InnerConsumer(Protocol):
    """What the instance asks of a registered consumer."""

    @property
    def in_flight(self) -> int: ...

    def consumer_data(self) -> broker_pb.ConsumerData: ...

    def rebalance_now(self) -> None: ...

    def session_opened(self) -> None: ...

    def reset_offsets(
        self, broker_name: str, queues: Sequence[broker_pb.QueueProgress], *, by_replica: bool = False
    ) -> None: ...

    async def persist_offsets(self) -> None: ...

    def running_info(self, broker_name: str) -> broker_pb.ConsumerRunningInfo: ...

    async def consume_directly(self, message: MessageExt) -> broker_pb.ConsumeDirectlyResult: ...


class Registrations:
    """The producers and consumers of one client by group, and its admins, which have none."""

    def __init__(self, client_id: str, incarnation: str = "") -> None:
        self._client_id = client_id
        self._incarnation = incarnation
        self.producers: dict[str, InnerProducer] = {}
        self.consumers: dict[str, InnerConsumer] = {}
        self._admins: set[object] = set()

    @property
    def is_empty(self) -> bool:
        """Whether none is registered."""
        return not (self.producers or self.consumers or self._admins)

    def in_flight(self) -> Iterator[str]:
        """The calls in flight, for people: sends without a result, listeners without an answer."""
        for group, producer in self.producers.items():
            if producer.in_flight:
                yield f"producer {group}: {producer.in_flight} calls without a result"
        for group, consumer in self.consumers.items():
            if consumer.in_flight:
                yield f"consumer {group}: {consumer.in_flight} listeners without an answer"

    def add_producer(self, group: str, producer: InnerProducer) -> None:
        """Raises IllegalStateError when the group is there already."""
        if group in self.producers:
            raise IllegalStateError(self._twice("producer", group))
        self.producers[group] = producer

    def add_consumer(self, group: str, consumer: InnerConsumer) -> None:
        """Raises IllegalStateError when the group is there already."""
        if group in self.consumers:
            raise IllegalStateError(self._twice("consumer", group))
        self.consumers[group] = consumer

    def add_admin(self, admin: object) -> None:
        """Raises IllegalStateError when this very admin is there already."""
        if admin in self._admins:
            raise IllegalStateError(f"the client {self._client_id} has this admin already")
        self._admins.add(admin)

    def remove_producer(self, group: str) -> None:
        self.producers.pop(group, None)

    def remove_consumer(self, group: str) -> None:
        self.consumers.pop(group, None)

    def remove_admin(self, admin: object) -> None:
        self._admins.discard(admin)

    def heartbeat(self, *, to_replica: bool = False) -> broker_pb.Heartbeat:
        """All groups of this client; without the producers for a replica, which never asks them for anything."""
        producers = () if to_replica else sorted(self.producers)
        return broker_pb.Heartbeat(
            client_id=self._client_id,
            producers=[broker_pb.ProducerData(group=group) for group in producers],
            consumers=[consumer.consumer_data() for _, consumer in sorted(self.consumers.items())],
            incarnation=self._incarnation,
        )

    def _twice(self, kind: str, group: str) -> str:
        return (
            f"the client {self._client_id} has a {kind} of the group {group!r} already; "
            f"share that one, or give the second one a ClientConfig with another instance_name"
        )


class BrokerNames(Protocol):
    """The brokers by address: the route table."""

    def broker_name(self, address: str) -> str | None: ...

    def is_master(self, address: str) -> bool: ...

    async def refresh_after_change(self, topics: Iterable[str]) -> None: ...


class ReverseCommands:
    """Carries commands out with the registered producers and consumers.

    `routes` know whose address that is; what takes its time runs in `tasks`.
    """

    def __init__(self, registrations: Registrations, routes: BrokerNames, tasks: BackgroundTasks) -> None:
        self._registrations = registrations
        self._routes = routes
        self._broker_name = routes.broker_name
        self._tasks = tasks
        # By the name in SessionResponse, beside `heartbeat_ack`, which is the session's own.
        self._table: Mapping[str, Callable[[str, Any], None]] = {
            "consumer_ids_changed": self._consumer_ids_changed,
            "topic_route_changed": self._topic_route_changed,
            "check_transaction": self._check_transaction,
            "reset_consumer_offset": self._reset_consumer_offset,
        }
        self._answered_table: Mapping[str, Callable[[InnerConsumer, str, Any], Awaitable[broker_pb.CommandAnswer]]] = {
            "get_running_info": self._get_running_info,
            "consume_directly": self._consume_directly,
        }

    @property
    def names(self) -> frozenset[str]:
        """The commands that this version knows."""
        return frozenset({*self._table, *self._answered_table})

    def carry_out(self, address: str, response: broker_pb.SessionResponse, reply: Reply) -> None:
        """Carry out a command of the broker at `address`; an answer goes to `reply`, later."""
        name = response.WhichOneof("command") or ""
        if name in self._answered_table:
            answering = self._answer(name, address, getattr(response, name), reply)
            self._tasks.start(answering, f"mqclient {name} of {address}")
            return
        command = self._table.get(name)
        if command is None:
            logger.warning("%s sent a command that this version does not know", address)
            return
        try:
            command(address, getattr(response, name))
        except Exception:
            logger.exception("the command %s of %s could not be carried out", name, address)

    # ----------------------------------------------------------------------------------------- without an answer

    def _consumer_ids_changed(self, address: str, changed: broker_pb.ConsumerIdsChanged) -> None:
        consumer = self._consumer(address, changed.group)
        if consumer is not None:
            consumer.rebalance_now()

    def _topic_route_changed(self, address: str, changed: broker_pb.TopicRouteChanged) -> None:
        async def refresh() -> None:
            await self._routes.refresh_after_change(changed.topics)
            for consumer in self._registrations.consumers.values():
                consumer.rebalance_now()

        self._tasks.start(refresh(), f"mqclient routes that {address} has changed")

    def _check_transaction(self, address: str, check: broker_pb.CheckTransaction) -> None:
        producer = self._registrations.producers.get(check.producer_group)
        broker_name = self._broker_name(address)
        if producer is None or broker_name is None:
            what = "its producer group" if producer is None else "the broker"
            logger.warning("the check of %s by %s: %s has left this client", check.transaction_id, address, what)
        else:
            producer.check_transaction(broker_name, check)

    def _reset_consumer_offset(self, address: str, reset: broker_pb.ResetConsumerOffset) -> None:
        consumer = self._consumer(address, reset.group)
        broker_name = self._broker_name(address)
        if consumer is not None and broker_name is not None:
            consumer.reset_offsets(broker_name, reset.queues, by_replica=not self._routes.is_master(address))

    def _consumer(self, address: str, group: str) -> InnerConsumer | None:
        consumer = self._registrations.consumers.get(group)
        if consumer is None:
            logger.info("%s speaks of the group %s, which has left this client", address, group)
        return consumer

    # -------------------------------------------------------------------------------------------- with an answer

    async def _answer(self, name: str, address: str, command: Any, reply: Reply) -> None:
        consumer = self._consumer(address, command.group)
        broker_name = self._broker_name(address)
        if consumer is None or broker_name is None:
            what = f"group {command.group!r}" if consumer is None else f"the broker at {address}"
            answer = _rejection(common_pb.CONSUMER_NOT_ONLINE, f"{what} has left this client")
        else:
            try:
                answer = await self._answered_table[name](consumer, broker_name, command)
            except Exception as error:
                logger.exception("the command %s of %s could not be carried out", name, address)
                answer = _rejection(common_pb.SYSTEM_ERROR, f"the client could not do it: {error!r}")
        answer.command_id = command.command_id
        reply(answer)

    async def _get_running_info(
        self, consumer: InnerConsumer, broker_name: str, _: broker_pb.GetRunningInfo
    ) -> broker_pb.CommandAnswer:
        return broker_pb.CommandAnswer(running_info=consumer.running_info(broker_name))

    async def _consume_directly(
        self, consumer: InnerConsumer, broker_name: str, command: broker_pb.ConsumeDirectly
    ) -> broker_pb.CommandAnswer:
        (record,) = iter_sealed_records(command.record)
        return broker_pb.CommandAnswer(consumed=await consumer.consume_directly(MessageExt(record, broker_name)))


def _rejection(code: common_pb.ResponseCode.ValueType, remark: str) -> broker_pb.CommandAnswer:
    return broker_pb.CommandAnswer(code=code, remark=remark)
