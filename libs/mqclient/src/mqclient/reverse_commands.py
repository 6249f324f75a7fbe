"""What brokers ask of a client over its sessions: the client is a server, too (MISSION L11).

Invariants: a command that cannot be carried out is logged and changes nothing, and the session it came by goes on; a
command with an id is answered once, whatever happens, and nobody waits for it meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.lifecycle import BackgroundTasks
from mqclient.message import MessageExt
from mqclient.registrations import InnerConsumer, Registrations
from mqclient.session import Reply
from mqproto.sealed_record import iter_sealed_records

logger = logging.getLogger("mqclient.reverse_commands")


class BrokerNames(Protocol):
    """Who stands at an address: the route table."""

    def broker_name(self, address: str) -> str | None: ...

    def is_master(self, address: str) -> bool: ...

    async def refresh_after_change(self, topics: Iterable[str]) -> None: ...


class ReverseCommands:
    """Carries commands out with the help of those who are registered.

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
        """Do what the broker at `address` says; an answer goes to `reply`, later."""
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
            consumer.reset_offsets(broker_name, reset.queues, by_slave=not self._routes.is_master(address))

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
            answer = _refusal(common_pb.CONSUMER_NOT_ONLINE, f"{what} has left this client")
        else:
            try:
                answer = await self._answered_table[name](consumer, broker_name, command)
            except Exception as error:
                logger.exception("the command %s of %s could not be carried out", name, address)
                answer = _refusal(common_pb.SYSTEM_ERROR, f"the client could not do it: {error!r}")
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


def _refusal(code: common_pb.ResponseCode.ValueType, remark: str) -> broker_pb.CommandAnswer:
    return broker_pb.CommandAnswer(code=code, remark=remark)
