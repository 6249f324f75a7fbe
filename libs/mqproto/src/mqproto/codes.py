"""Definitions that both sides of the wire share: response codes, the version, and the rules of its change.

Response codes have Apache RocketMQ's names and numbers; common.proto has the same ones for the wire.

Within one version every program talks with every other one, older or newer. Fields, methods and values of enums are
only added, never given another meaning, type or number; a number that is no longer used stays reserved. A program that
does not know a field passes over it; one that does not get a field sees its default, which means what was so before
there was the field. A change that does not fit this makes a new package, `hourglass.mq.v2`, beside the old one.

The version is the package's in the .proto files. It is not negotiated: a program of another version finds no such
method.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from pathlib import PurePosixPath

PROTOCOL_VERSION = 1

# The file that says which programs may open a store. A restore writes it after all other files.
VERSION_PATH = "version"
PART_BYTES_MAX = 1024 * 1024  # of a file's content in one message


class ResponseCode(IntEnum):
    """The outcome of a request, as far as the queue is concerned."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29  # of a frame: gRPC's INVALID_ARGUMENT
    TRANSACTION_STATE_UNKNOW = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    NOT_LEADER_FOR_QUEUE = 501
    GO_AWAY = 1500
    SUBSCRIPTION_NOT_CONSISTENT = 5001  # not RocketMQ's
    CLIENT_ID_IN_USE = 5002  # not RocketMQ's


class PullStatus(IntEnum):
    """The status of a pull (mechanism C6)."""

    UNSPECIFIED = 0
    FOUND = 1
    NO_NEW_MSG = 2
    NO_MATCHED_MSG = 3
    OFFSET_ILLEGAL = 4


class ExpressionType(StrEnum):
    """The language of a subscription's filter (mechanisms F1, F2)."""

    TAG = "TAG"
    SQL92 = "SQL92"


class LifeEventKind(IntEnum):
    """Events of a message, or its present state; admin_service.proto has the same ones for the wire."""

    SENT = 1  # stored under its own topic and visible, without a detour
    HALF = 2  # stored as the half message of a transaction
    COMMITTED = 3
    ROLLED_BACK = 4
    PARKED = 5  # asked for 15 times without an answer, and put aside
    WAITING = 6  # stored in a delay level
    DELIVERED = 7  # its delay is over: stored under its own topic
    RETRIED = 8  # a group could not consume it and gave it back
    DEAD = 9  # a group has given it up
    CONSUMED = 10  # a group's offset has passed it
    UNCONSUMED = 11  # a group that reads the topic has not come to it yet
    RECALLED = 12  # taken back while it waited


class RecallOutcome(IntEnum):
    """The outcome of a recall of a waiting message; broker_service.proto has the same ones."""

    REMOVED = 1
    RESCHEDULED = 2
    ALREADY_DELIVERED = 3


class TransactionPhase(IntEnum):
    """The phases of a transaction; admin_service.proto has the same ones."""

    PREPARED = 1
    PARKED = 2
    COMMITTED = 3
    ROLLED_BACK = 4


class Permission(IntEnum):
    """RocketMQ's permission bits of a topic; 6 is read and write (mechanism N11)."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    READ_WRITE = 6


def check_path(path: str) -> PurePosixPath:
    """The path of a file below the root of a store. Raises ValueError for one that leads anywhere else."""
    parts = path.split("/")
    if "\\" in path or "\0" in path or any(part in {"", ".", ".."} for part in parts) or ":" in parts[0]:
        raise ValueError(f"{path!r} is no path of a file below the root of a store")
    return PurePosixPath(path)
