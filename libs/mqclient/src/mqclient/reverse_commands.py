"""What brokers ask of a client over its sessions: the client is a server, too (MISSION L11).

Invariant: a command that cannot be carried out is logged and changes nothing; the session it came by goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.message_queue import MessageQueue
from mqclient.registrations import InnerConsumer, Registrations

logger = logging.getLogger("mqclient.reverse_commands")


class ReverseCommands:
    """Carries commands out with the help of those who are registered. `broker_name` knows whose address that is."""

    def __init__(self, registrations: Registrations, broker_name: Callable[[str], str | None]) -> None:
        self._registrations = registrations
        self._broker_name = broker_name
        # By the name in SessionResponse, beside `heartbeat_ack`, which is the session's own.
        self._table: Mapping[str, Callable[[str, Any], None]] = {
            "consumer_ids_changed": self._consumer_ids_changed,
            "check_transaction": self._check_transaction,
            "reset_consumer_offset": self._reset_consumer_offset,
        }

    @property
    def names(self) -> frozenset[str]:
        """The commands that this version knows."""
        return frozenset(self._table)

    def carry_out(self, address: str, response: broker_pb.SessionResponse) -> None:
        """Do what the broker at `address` says."""
        name = response.WhichOneof("command")
        command = self._table.get(name or "")
        if command is None:
            logger.warning("%s sent a command that this version does not know", address)
            return
        try:
            command(address, getattr(response, str(name)))
        except Exception:
            logger.exception("the command %s of %s could not be carried out", name, address)

    def _consumer_ids_changed(self, address: str, changed: broker_pb.ConsumerIdsChanged) -> None:
        consumer = self._consumer(address, changed.group)
        if consumer is not None:
            consumer.rebalance_now()

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
            consumer.reset_offsets(
                {MessageQueue(one.topic, broker_name, one.queue_id): one.offset for one in reset.offsets}
            )

    def _consumer(self, address: str, group: str) -> InnerConsumer | None:
        consumer = self._registrations.consumers.get(group)
        if consumer is None:
            logger.info("%s speaks of the group %s, which has left this client", address, group)
        return consumer
