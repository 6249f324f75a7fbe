"""The limits of a broker: for one request, one client and all clients, and for the use of its disk."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from mqproto.codes import ResponseCode
from mqproto.record import RECORD_BYTES_MAX

# Every number that bounds what a peer can make the broker do, hold or remember stands here, with its unit last in its
# name and the reason for its value behind it. What makes a record valid is not here but in `mqproto`, because clients,
# brokers and tools share it.

# Topics and groups. The configuration may set other numbers (keys in brackets); together they stay below
# NAME_SERVER_TOPICS_MAX, because each group has up to two topics (retries and dead letters).
TOPIC_COUNT_MAX = 20_000  # [topicCountMax] that clients or operators can make; a topic has 4 queues, each with a file
GROUP_COUNT_MAX = 10_000  # [subscriptionGroupCountMax]
AUTO_CREATED_TOPICS_MAX = 1_000  # [autoCreatedTopicsPerClient] by one connection
AUTO_CREATED_GROUPS_MAX = 1_000  # [autoCreatedGroupsPerClient] by one connection
NAME_SERVER_TOPICS_MAX = 100_000  # of one broker; a name server leaves out the others (mq_namesrv, core/limits.py)
TOPICS_PER_PAGE_MAX = 10_000  # of a list of topics, for clients that take pages; 1.4 MB
REGISTRATION_TOPICS_MAX = 4_096  # in one request to a name server: 600 KB at most, encoded in about 10 ms
COUNTED_CLIENTS_MAX = 4_096  # connections of which it is remembered how much they made; the least recent is forgotten

CONSUMER_OFFSETS_MAX = 500_000  # queues in which groups have an offset, of all groups; about 180 MB

# Numbers of producers (core/producer_table.py), of which each checkpoint writes all that is remembered. Bytes are those
# of the file: 100 to 200 for a pair of producer and queue, by the length of its topic; memory takes three to four times
# as much.
DRAWN_PRODUCERS_BYTES_MAX = 4 * 1024 * 1024  # of ordinary producers; 25,000 pairs of one producer each, or more
RETURNING_PRODUCERS_BYTES_MAX = 8 * 1024 * 1024  # of queries and named writes of Spark's sink
WRITE_PRODUCERS_BYTES_MAX = 4 * 1024 * 1024  # of its other writes
PRODUCER_LIVE_MS = 120_000  # a send's budget, if that is not configured: 3 s, of Spark's sink 120 s
QUEUE_STRETCHES_MAX = 8_192  # of one pair; a producer has 4 frames of at most 1,024 batches unanswered

# Requests, checked before any work (rpc/calls.py). A real client stays far below; what is beyond one of these
# is answered with INVALID_ARGUMENT. Work for each item is at most some 10 us, so that no request holds the event loop
# for longer than about 0.2 s.
NAME_CHARACTERS_MAX = 255  # of a topic or group; mqproto.names checks which names are legal
TEXT_CHARACTERS_MAX = 4_096  # of a client id, an address, a remark
KEY_CHARACTERS_MAX = 32_767  # of a message's key or transaction id: RocketMQ's properties are no longer
EXPRESSION_CHARACTERS_MAX = 16 * 1024  # of a subscription, as in mqfilter
EXPRESSIONS_CHARACTERS_MAX = 128 * 1024  # of all subscriptions of a heartbeat; SQL92 takes 1.5 us a character
FRAME_BATCHES_MAX = 1_024  # of one frame of a producer
QUEUES_PER_REQUEST_MAX = 16_384  # that are reported, committed, locked or reset
QUEUE_LOCKS_BYTES_MAX = 2 * 1024 * 1024  # handed over with the role: 20,000 queues and more, half of gRPC's message
RANGES_PER_REQUEST_MAX = 300_000  # finished ranges of all queues; as many as 4 MB hold with offsets of real queues
GROUPS_PER_REQUEST_MAX = 1_024  # producer groups, consumer groups, groups that report
SUBSCRIPTIONS_PER_REQUEST_MAX = 16_384
SENTENCES_MAX = 8  # of one remark; it ends with the number of those that were left out
LEFT_OUT_TOLD_BYTES_MAX = 256 * 1024  # of what is told of reports that were left out; the next report brings the rest
POLLS_PER_STREAM_MAX = 16_384  # held on one Poll stream; a client with more queues opens several
# Finished ranges that are kept of one queue and group: a hole for each of 4,096 messages in work, four times what a
# client holds of a queue unless it is told otherwise.
RANGES_PER_QUEUE_MAX = 4_096

# Reads of the disk. Clients take turns; a search by key goes in steps, and after each the next client has its turn.
COLD_READS_AT_ONCE_MAX = 4  # the disk's threads for reads; syncs and checkpoints have threads of their own
SEARCH_STEP_ENTRIES_MAX = 256  # index entries that one step of a search by key visits; about 5 ms
SEARCH_STEP_BYTES_MAX = 4 * 1024 * 1024  # of records that one step of a search by key reads, and the last of them
RECALL_ENTRIES_MAX = 1_000_000  # index entries that a recall visits; a search takes some 15 s then and 100 MiB
SEARCH_ENTRIES_MAX = 65_536  # index entries that one query by key visits; then its answer says that it is truncated

# Parsed expressions of subscriptions that are kept, the least recently used ones go.
KEPT_EXPRESSION_CHARACTERS_MAX = 256 * 1024  # of all parsed ones; a parsed condition takes up to 150 bytes a character
KEPT_FILTERS_MAX = 4_096
# Descriptors (core/limits.py divides what the process may have; ADR 100).
DESCRIPTORS_WANTED = 65_536  # the limit is raised to it as far as it may be (the hard limit)
DESCRIPTORS_MIN = 256  # of a broker that starts
KEPT_DESCRIPTORS = (
    128  # for what is neither connection nor log file nor consume queue: state files, index, timer, links
)
REPLICA_CONNECTIONS_MAX = (
    32  # at haListenPort: 8 replicas, each with a link that ends and its successor, and name servers
)
OPEN_FILES_EMBEDDED_MAX = 256  # of a store in a process that has other uses for its descriptors
OPEN_FILES_MAX = 16_384  # of log and consume queues; the kernel keeps about 1 KiB for each

# Memory for responses that wait to be written, or are being written. A response counts RESPONSE_COPIES times: the bytes
# that were read, protobuf's copy, its encoded form and gRPC's copy of that exist together while it is being written.
RESPONSE_COPIES = 4
RESPONSE_MEMORY_BYTES_MAX = 384 * 1024 * 1024  # [responseMemoryBytesMax] of all clients
RESPONSE_MEMORY_BYTES_MIN = 64 * 1024 * 1024  # the least that may be configured: three of the longest responses
CLIENT_RESPONSE_BYTES_MAX = 64 * 1024 * 1024  # of one connection: 16 MiB of records, some seconds of a slow network
RESPONSE_BYTES = RESPONSE_COPIES * (RECORD_BYTES_MAX + 4_096)  # the longest one: a record, which may exceed a pull
SMALL_RESPONSE_BYTES = 512  # what a response takes beside its records, as an object and in a queue
RESULT_BYTES = 256  # what the result of one batch takes, its remark included
STALLED_WRITE_S = 2.0  # a connection that has not taken one response for so long is broken when there is no room left

# Polls that are open: held, or waiting for their turn. About 1.4 KiB each, and their expressions.
POLLS_PER_CLIENT_MAX = 32_768  # of one connection
POLLS_MAX = 65_536  # of all clients
POLL_EXPRESSION_CHARACTERS = 1_024  # a poll whose expression is longer counts once more for each so many
POLLS_SERVED_AT_ONCE_MAX = 64  # in one step of the event loop; about 3 ms
FAILURE_CHARACTERS_MAX = 1_024  # of the sentence that a dead letter keeps; clients send 512


class RejectedError(Exception):
    """A request that is rejected, as an exception: for answers that are more than a code and a sentence.

    The answer is `code` and the sentence. Nothing has changed.
    """

    def __init__(self, code: ResponseCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def first_few(parts: Sequence[object], separator: str = "; ") -> str:
    """The parts as one text: the first ones, and how many there are beyond them."""
    text = separator.join(map(str, parts[:SENTENCES_MAX]))
    more = len(parts) - SENTENCES_MAX
    return f"{text}{separator}and {more} more" if more > 0 else text


class TooManyError(ValueError):
    """A topic or group would be one too many; the message names the limit and its key. Nothing has changed."""


@dataclass(frozen=True, slots=True)
class CountLimits:
    """`total` of one kind, and those that one client may have made; the keys are the configuration's."""

    kind: str
    total: int
    total_key: str
    per_client: int
    per_client_key: str


class Creations:
    """How many topics or groups there may be, and how many of them one client may have made by naming them.

    What clients have made of one kind.

    A client is whatever ends with its connection, so that one program that names ever new topics is stopped long before
    it has used up what all may have; a program that connects anew begins anew, and the total holds for it, too. What
    exists already, also beyond a limit, stays and works.
    """

    def __init__(self, limits: CountLimits) -> None:
        self.limits = limits
        self._by_client: OrderedDict[str, int] = OrderedDict()  # the one that made something last is the last

    def check_total(self, count: int) -> None:
        """Raise TooManyError unless there may be one more than `count`."""
        limits = self.limits
        if count >= limits.total:
            raise TooManyError(
                f"this broker has {count} {limits.kind}s and makes no more: {limits.total_key}={limits.total}; "
                f"delete {limits.kind}s that are not needed, or raise the limit"
            )

    def check(self, count: int, client: str) -> None:
        """Raise TooManyError unless there may be one more than `count`, made by this client."""
        self.check_total(count)
        limits = self.limits
        if client and self._by_client.get(client, 0) >= limits.per_client:
            raise TooManyError(
                f"this connection has made {limits.per_client} {limits.kind}s by naming them and makes no more: "
                f"{limits.per_client_key}={limits.per_client}; an operator can create them (mqadmin)"
            )

    def made(self, client: str) -> None:
        """The client has made one; a client without a name is the broker itself, or an operator."""
        if not client:
            return
        self._by_client[client] = self._by_client.pop(client, 0) + 1
        if len(self._by_client) > COUNTED_CLIENTS_MAX:
            self._by_client.popitem(last=False)


# When the oldest file of the log may go, and when writes have to stop (mechanisms E1, E2, E4).
#
# Invariants: a file goes because it has expired or because the disk is too full, never because it was consumed; once
# writes are rejected they stay rejected until there is room again.

HOUR_MS = 3_600_000


class GuardMode(enum.Enum):
    """The reaction to messages that are to be deleted and that a group has not consumed yet."""

    OFF = "OFF"
    WARN = "WARN"
    REFUSE = "REFUSE"


class Reason(enum.Enum):
    """The reason to delete a file."""

    EXPIRED = "expired"
    FORCED = "the disk is too full"


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    """RocketMQ's settings and defaults; shares of the disk are 0 to 1."""

    reserved_hours: int = 72  # mechanism E1
    delete_hours: frozenset[int] = frozenset({4})  # mechanism E2, deleteWhen
    normal_share: float = 0.75  # mechanism E4: above it expired files go at any hour
    forced_share: float = 0.85  # mechanism E4: from here on files go before they expire; writes resume at or below it
    reject_share: float = 0.90  # mechanism E4: from here on writes are rejected
    clean_forcibly: bool = True
    guard: GuardMode = GuardMode.WARN
    free_bytes_enough: int = 0  # 0: the shares alone count

    def counted_share(self, used_share: float, free_bytes: int) -> float:
        """The used share by which the rules go: 0 on a disk that has enough free bytes, however large it is."""
        return 0.0 if 0 < self.free_bytes_enough <= free_bytes else used_share


def reason_to_delete(
    options: RetentionOptions, *, newest_store_ms: int, now_ms: int, local_hour: int, used_share: float
) -> Reason | None:
    """Why the file whose newest message was stored at `newest_store_ms` goes now, or None when it stays."""
    if options.clean_forcibly and used_share >= options.forced_share:
        return Reason.FORCED
    expired = now_ms - newest_store_ms >= options.reserved_hours * HOUR_MS
    if expired and (local_hour in options.delete_hours or used_share > options.normal_share):
        return Reason.EXPIRED
    return None


def worth_deleting(file_bytes: int, waiting_bytes: Sequence[int]) -> int:
    """How many of the oldest files gain the disk at least as much as is written for that; 0: none do, however many go.

    `waiting_bytes` tells for each file, the oldest first, what has to be written again before it goes. So all that is
    ever written for this is less than what it gains, and no message is written again and again for nothing.
    """
    written = 0
    for count, waiting in enumerate(waiting_bytes, 1):
        written += waiting
        if 2 * written <= count * file_bytes:
            return count
    return 0


def parse_delete_when(text: str) -> frozenset[int]:
    """Hours of the day from RocketMQ's `04` or `04;16`. Raises ValueError."""
    hours = [part.strip() for part in text.split(";")]
    if not all(hour.isascii() and hour.isdigit() and int(hour) < 24 for hour in hours):
        raise ValueError(f"deleteWhen={text!r}: write hours of the day from 00 to 23, separated by ;")
    return frozenset(map(int, hours))


@dataclass(frozen=True, slots=True)
class DescriptorBudget:
    """The uses of a broker's file descriptors.

    Invariant: the shares together never exceed the limit, so that no number of connections, topics or queues can keep
    the store from opening a file.
    """

    connections: int  # of clients and operators, by gRPC
    frames_connections: int  # of clients and operators, by frames
    replica_connections: int
    open_files: int  # of the commit log and of the consume queues

    @classmethod
    def of(cls, limit: int) -> DescriptorBudget:
        """Divide a limit (RLIMIT_NOFILE): half of what is not kept back for files, the rest for connections.

        Raises ValueError when it is too small for a broker.
        """
        if limit < DESCRIPTORS_MIN:
            raise ValueError(
                f"this process may open {limit} files and connections; a broker needs {DESCRIPTORS_MIN} at least, "
                "and one for each client: raise it (ulimit -n, LimitNOFILE of systemd, --ulimit nofile of Docker)"
            )
        shared = limit - KEPT_DESCRIPTORS - REPLICA_CONNECTIONS_MAX
        open_files = min(shared // 2, OPEN_FILES_MAX)
        connections = shared - open_files
        return cls(connections // 2, connections - connections // 2, REPLICA_CONNECTIONS_MAX, open_files)
