"""What a send came to (MISSION M10)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mqclient.message_id import offset_message_id
from mqclient.message_queue import MessageQueue
from mqclient.producer.transaction_listener import LocalTransactionState
from mqproto.address import parse_address
from mqproto.codes import ResponseCode


class SendStatus(Enum):
    """RocketMQ's names. In all four cases the message is stored; all but SEND_OK say: less safe than wished."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


# By number, because that is what the wire has and what the hot path looks up.
STATUS_OF_CODE: dict[int, SendStatus] = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}


@dataclass(slots=True)
class SendResult:
    """`message_id` is the producer's unique id; `queue_offset` and `log_offset` are where the broker stored it."""

    send_status: SendStatus
    message_id: str
    message_queue: MessageQueue
    queue_offset: int
    log_offset: int
    broker_address: str

    @property
    def offset_message_id(self) -> str:
        """The id by position (M8).

        Empty when the broker is reached by a name instead of an IPv4 address, and when that part of its log is gone.
        """
        return _offset_message_id(self.broker_address, self.log_offset)


@dataclass(slots=True)
class BatchSendResult(SendResult):
    """Where the messages of a batch were stored; the offsets of SendResult are those of the first.

    `message_id` and `offset_message_id` have the ids of all, with commas between, as in RocketMQ. `places` are the
    queue and log offsets of the messages.
    """

    message_ids: tuple[str, ...]
    places: tuple[tuple[int, int], ...]

    @property
    def offset_message_id(self) -> str:
        """The ids by position (M8), with commas between."""
        return ",".join(_offset_message_id(self.broker_address, log_offset) for _, log_offset in self.places)


@dataclass(slots=True)
class TransactionSendResult(SendResult):
    """Where the half message was stored, and what the local transaction came to.

    Offsets are those of the half topic; the message gets others when it is committed.
    """

    local_transaction_state: LocalTransactionState

    @property
    def transaction_id(self) -> str:
        return self.message_id


def _offset_message_id(address: str, log_offset: int) -> str:
    host, port = parse_address(address)
    return offset_message_id(host, port, log_offset) if log_offset >= 0 else ""
