"""What a fake broker keeps beside its messages: numbers, offsets and locks, half messages, and messages that wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqproto.names import RETRY_PREFIX
from mqproto.properties import (
    DELAY,
    KEYS,
    PGROUP,
    PRODUCER_SEQUENCE,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
)
from mqproto.record import (
    FLAG_TRANSACTION_COMMIT,
    FLAG_TRANSACTION_MASK,
    FLAG_TRANSACTION_PREPARED,
    Record,
    decode_record,
    encode_record,
    iter_records,
    pack_ip,
)
from osenv import Clock

_Queue = tuple[int, str, int]  # producer id, topic, queue id

Key = tuple[str, str, int]  # group, topic, queue id

LOCK_EXPIRY_S = 60.0

MESSAGES_MAX = 2_000


def new_record(topic: str, queue_id: int, body: bytes, properties: dict[str, str], reconsume_times: int = 0) -> bytes:
    return encode_record(
        topic=topic.encode(),
        body=body,
        properties=encode_properties(properties),
        queue_id=queue_id,
        born_timestamp_ms=0,
        born_ip=pack_ip("127.0.0.1"),
        reconsume_times=reconsume_times,
    )


def rewritten(record: Record, *, without: Collection[str], sys_flag: int | None = None) -> bytes:
    """The same message as a new record, without some of its properties."""
    kept = {name: value for name, value in decode_properties(record.properties).items() if name not in without}
    return encode_record(
        topic=record.topic.encode(),
        body=record.body,
        properties=encode_properties(kept),
        queue_id=record.queue_id,
        born_timestamp_ms=record.born_timestamp_ms,
        born_ip=pack_ip(record.born_host[0]),
        flag=record.flag,
        sys_flag=record.sys_flag if sys_flag is None else sys_flag,
    )


def is_timed(record: Record) -> bool:
    """Whether it waits for a time of its own."""
    return not {TIMER_DELAY_MS, TIMER_DELIVER_MS}.isdisjoint(decode_properties(record.properties))


def keys_of(record: Record) -> set[str]:
    """By what it is found: its keys and its unique id."""
    properties = decode_properties(record.properties)
    return {*properties.get(KEYS, "").split(), properties.get(UNIQ_KEY, "")}


class Place(NamedTuple):
    """Where a record stands."""

    queue_offset: int
    log_offset: int
    size: int


class FakeSequences:
    """The places of all numbered records, the epoch of each producer, and what it needs no answer for any more."""

    def __init__(self) -> None:
        self._places: dict[_Queue, dict[int, Place]] = {}
        self._epochs: dict[int, int] = {}
        self._first_unanswered: dict[_Queue, int] = {}

    def problem(self, request: broker_pb.ProduceRequest, batch: broker_pb.RecordBatch) -> str:
        """Why the batch is rejected; empty when it is not."""
        if not batch.base_sequence:
            return ""
        producer_id, epoch, queue = request.producer_id, request.producer_epoch, _queue(request, batch)
        if epoch < self._epochs.get(producer_id, 0):
            return f"epoch {epoch} comes too late, there is {self._epochs[producer_id]}"
        if batch.base_sequence < self._first_unanswered.get(queue, 0):
            return f"sequence {batch.base_sequence} comes too late: no answer was needed for it any more"
        if not 0 < batch.first_unanswered_sequence <= batch.base_sequence:
            return f"the first unanswered sequence is {batch.first_unanswered_sequence}"
        for sequence, record in enumerate(iter_records(batch.records), batch.base_sequence):
            text = decode_properties(record.properties).get(PRODUCER_SEQUENCE, "")
            id_, _, rest = text.partition(":")
            record_epoch, _, number = rest.partition(":")
            if (id_, number) != (f"{producer_id:016x}", str(sequence)) or not 0 < int(record_epoch) <= epoch:
                return f"record {sequence} of producer {producer_id:016x} and epoch {epoch} says {text!r}"
        self._epochs[producer_id] = epoch
        self._first_unanswered[queue] = max(self._first_unanswered.get(queue, 0), batch.first_unanswered_sequence)
        return ""

    def place(self, request: broker_pb.ProduceRequest, batch: broker_pb.RecordBatch, number: int) -> Place | None:
        """Where the record at `number` in the batch stands already."""
        return self._places.get(_queue(request, batch), {}).get(batch.base_sequence + number)

    def remember(
        self, request: broker_pb.ProduceRequest, batch: broker_pb.RecordBatch, number: int, place: Place
    ) -> None:
        if batch.base_sequence:
            self._places.setdefault(_queue(request, batch), {})[batch.base_sequence + number] = place

    def forget(self, record: bytes) -> None:
        """The record was lost."""
        decoded = decode_record(record)
        for places in self._places.values():
            for sequence in [one for one, place in places.items() if place.log_offset == decoded.log_offset]:
                del places[sequence]


def fill_in(result: broker_pb.BatchResult, places: list[Place]) -> None:
    """Say where the records of a batch stand."""
    stretches: list[broker_pb.StoredStretch] = []
    end = (-1, -1)
    for place in places:
        if end != (place.queue_offset, place.log_offset):
            stretches.append(
                broker_pb.StoredStretch(base_queue_offset=place.queue_offset, base_log_offset=place.log_offset)
            )
        stretches[-1].count += 1
        end = place.queue_offset + 1, place.log_offset + place.size
    result.base_queue_offset, result.base_log_offset = places[0].queue_offset, places[0].log_offset
    if len(stretches) > 1:
        result.stretches.extend(stretches)


def _queue(request: broker_pb.ProduceRequest, batch: broker_pb.RecordBatch) -> _Queue:
    return request.producer_id, batch.topic, batch.queue_id


@dataclass
class FakeProgress:
    """By group and queue. The attributes are the test's to read and to set."""

    offsets: dict[Key, int] = field(default_factory=dict)
    finished: defaultdict[Key, set[int]] = field(default_factory=lambda: defaultdict(set))  # beyond the offset
    versions: defaultdict[Key, int] = field(default_factory=lambda: defaultdict(int))
    commits: list[broker_pb.UpdateConsumerOffsetRequest] = field(default_factory=list)
    reports: list[broker_pb.GroupProgress] = field(default_factory=list)

    def set(self, key: Key, offset: int) -> None:
        """As an operator does."""
        self.offsets[key] = offset
        self.finished[key].clear()
        self.versions[key] += 1

    def copy_from(self, other: FakeProgress) -> None:
        """Know what the other one knows, as master and replica tell each other: the higher version, then the larger."""
        for key, offset in other.offsets.items():
            mine, theirs = self.versions[key], other.versions[key]
            if theirs > mine or (theirs == mine and offset > self.offsets.get(key, -1)):
                self.offsets[key], self.versions[key] = offset, theirs
                self.finished[key] = set(other.finished[key])

    def query(
        self, request: broker_pb.QueryConsumerOffsetRequest, limits: tuple[int, int], at_time: Callable[[int], int]
    ) -> broker_pb.QueryConsumerOffsetResponse:
        """`limits` are the queue's first and next offset, `at_time` searches it."""
        key = (request.group, request.queue.topic, request.queue.queue_id)
        if key not in self.offsets:
            if not request.HasField("begin"):
                return broker_pb.QueryConsumerOffsetResponse(code=common_pb.QUERY_NOT_FOUND)
            where = request.begin.where
            if request.queue.topic.startswith(RETRY_PREFIX) or where == broker_pb.CONSUME_FROM_FIRST_OFFSET:
                self.offsets[key] = limits[0]
            elif where == broker_pb.CONSUME_FROM_LAST_OFFSET:
                self.offsets[key] = limits[1]
            else:
                self.offsets[key] = at_time(request.begin.timestamp_ms)
        now = self._now(key)
        return broker_pb.QueryConsumerOffsetResponse(offset=now.offset, finished=now.finished, version=now.version)

    def update(self, request: broker_pb.UpdateConsumerOffsetRequest) -> broker_pb.UpdateConsumerOffsetResponse:
        self.commits.append(request)
        for one in request.queues:
            if request.set:
                self.set((request.group, one.topic, one.queue_id), one.offset)
            else:
                self._join(request.group, one)
        return broker_pb.UpdateConsumerOffsetResponse(
            queues=[self._now((request.group, one.topic, one.queue_id)) for one in request.queues]
        )

    def report(self, progress: broker_pb.GroupProgress) -> None:
        self.reports.append(progress)
        for one in progress.queues:
            self._join(progress.group, one)

    def _join(self, group: str, one: broker_pb.QueueProgress) -> None:
        key = (group, one.topic, one.queue_id)
        if one.version != self.versions[key]:
            return
        finished = self.finished[key]
        for gap in one.finished:
            finished.update(range(gap.begin, gap.end))
        offset = max(one.offset, self.offsets.get(key, 0))
        while offset in finished:
            offset += 1
        self.finished[key] = {beyond for beyond in finished if beyond > offset}
        self.offsets[key] = offset

    def _now(self, key: Key) -> broker_pb.QueueProgress:
        return broker_pb.QueueProgress(
            topic=key[1],
            queue_id=key[2],
            offset=self.offsets.get(key, 0),
            finished=[broker_pb.OffsetRange(begin=one, end=one + 1) for one in sorted(self.finished[key])],
            version=self.versions[key],
        )


class FakeLocks:
    """Which client holds which queue; `rejected` are not lent to any."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[Key, tuple[str, float]] = {}
        self.requests: list[broker_pb.LockQueuesRequest] = []
        self.rejected: set[Key] = set()

    def holder(self, group: str, topic: str, queue_id: int) -> str | None:
        """The client id, unless its lock has run out."""
        client_id, expires = self._held.get((group, topic, queue_id), ("", 0.0))
        return client_id if expires > self._clock.monotonic() else None

    def lock(self, request: broker_pb.LockQueuesRequest) -> broker_pb.LockQueuesResponse:
        self.requests.append(request)
        answer = broker_pb.LockQueuesResponse()
        for queue in request.queues:
            key = (request.group, queue.topic, queue.queue_id)
            if key not in self.rejected and self.holder(*key) in {None, request.client_id}:
                self._held[key] = (request.client_id, self._clock.monotonic() + LOCK_EXPIRY_S)
                answer.locked.append(queue)
        return answer

    def unlock(self, request: broker_pb.UnlockQueuesRequest) -> broker_pb.UnlockQueuesResponse:
        for queue in request.queues:
            key = (request.group, queue.topic, queue.queue_id)
            if self.holder(*key) == request.client_id:
                del self._held[key]
        return broker_pb.UnlockQueuesResponse()


class FakeTransactions:
    """By transaction id: the halves that are open, and how the others have ended."""

    def __init__(self) -> None:
        self.open: dict[str, Record] = {}
        self.outcomes: dict[str, int] = {}
        self.requests: list[broker_pb.EndTransactionRequest] = []

    def prepare(self, record: Record) -> None:
        self.open[decode_properties(record.properties)[UNIQ_KEY]] = record

    def end(self, request: broker_pb.EndTransactionRequest) -> tuple[broker_pb.EndTransactionResponse, Record | None]:
        """The answer, and the half if it is committed by this."""
        self.requests.append(request)
        id_, committed = request.transaction_id, None
        if id_ in self.open and request.state != broker_pb.UNKNOW:
            record = self.open.pop(id_)
            self.outcomes[id_] = request.state
            committed = record if request.state == broker_pb.COMMIT_MESSAGE else None
        if id_ not in self.open and id_ not in self.outcomes:
            remark = f"no transaction {id_!r} is known"
            return broker_pb.EndTransactionResponse(code=common_pb.QUERY_NOT_FOUND, remark=remark), None
        outcome = broker_pb.TransactionState.ValueType(self.outcomes.get(id_, broker_pb.UNKNOW))
        return broker_pb.EndTransactionResponse(outcome=outcome), committed

    def check(self, id_: str) -> broker_pb.CheckTransaction:
        """What a member of the half's producer group is asked."""
        record = self.open[id_]
        group = decode_properties(record.properties)[PGROUP]
        return broker_pb.CheckTransaction(producer_group=group, transaction_id=id_, record=committed_record(record))


def committed_record(record: Record) -> bytes:
    """The half message as it is delivered, or waits."""
    flags = record.sys_flag & ~FLAG_TRANSACTION_MASK | FLAG_TRANSACTION_COMMIT
    return rewritten(record, without={TRAN_MSG, PRODUCER_SEQUENCE}, sys_flag=flags)


def is_half(record: Record) -> bool:
    return record.sys_flag & FLAG_TRANSACTION_MASK == FLAG_TRANSACTION_PREPARED


def rejection(batch: broker_pb.RecordBatch) -> str:
    """Why a broker does not take this batch; empty when it does."""
    records = list(iter_records(batch.records))
    properties = [decode_properties(record.properties) for record in records]
    if len(records) != batch.count:
        return f"the batch says {batch.count} records and holds {len(records)}"
    if len({(one.get(DELAY), is_timed(record)) for one, record in zip(properties, records, strict=True)}) > 1:
        return "the batch mixes delays"
    if any(is_half(record) for record in records):
        if len(records) > 1:
            return "a half message travels in a batch of its own"
        if properties[0].get(TRAN_MSG) != "true" or not properties[0].get(UNIQ_KEY) or not properties[0].get(PGROUP):
            return f"a half message has the properties {TRAN_MSG}, {UNIQ_KEY} and {PGROUP}"
    elif any(TRAN_MSG in one for one in properties):
        return f"{TRAN_MSG} without the prepared bit"
    return ""


@dataclass
class WaitingMessage:
    """One message; `outcome` is how its wait has ended, unspecified while it lasts."""

    record: Record
    due_timestamp_ms: int
    outcome: broker_pb.RecallOutcome.ValueType = broker_pb.RECALL_OUTCOME_UNSPECIFIED

    @property
    def waits(self) -> bool:
        return self.outcome == broker_pb.RECALL_OUTCOME_UNSPECIFIED


class FakeWaiting:
    """What waits and has waited, in the order of its coming. The attributes without underscore are the test's."""

    def __init__(self, clock: Clock) -> None:
        self.messages: list[WaitingMessage] = []
        self.requests: list[broker_pb.RecallMessageRequest] = []
        self.messages_max = MESSAGES_MAX  # of one request
        self._clock = clock

    def add(self, record: Record) -> None:
        properties = decode_properties(record.properties)
        if TIMER_DELAY_MS in properties:
            due_ms = self._clock.wall_ms() + int(properties[TIMER_DELAY_MS])
        else:
            due_ms = int(properties[TIMER_DELIVER_MS])
        self.messages.append(WaitingMessage(record, due_ms))

    def take_due(self) -> list[Record]:
        """What is due now, in the order of the due times; from now on it has been delivered."""
        due = [one for one in self.messages if one.waits and one.due_timestamp_ms <= self._clock.wall_ms()]
        for message in due:
            message.outcome = broker_pb.ALREADY_DELIVERED
        return [message.record for message in sorted(due, key=lambda one: one.due_timestamp_ms)]

    def recall(self, request: broker_pb.RecallMessageRequest) -> broker_pb.RecallMessageResponse:
        """Answer for all messages with the key; change `messages_max` of those that wait, the newest first."""
        self.requests.append(request)
        response, changed = broker_pb.RecallMessageResponse(), 0
        for message in reversed(self.messages):
            if message.record.topic != request.topic or request.key not in keys_of(message.record):
                continue
            if message.waits:
                changed += 1
                if changed > self.messages_max:
                    response.truncated = True
                    break
                self._change(message, request)
            response.messages.add(
                message_id=decode_properties(message.record.properties)[UNIQ_KEY],
                outcome=message.outcome or broker_pb.RESCHEDULED,
                due_timestamp_ms=message.due_timestamp_ms if message.waits else 0,
            )
        if not response.messages:
            response.code, response.remark = common_pb.QUERY_NOT_FOUND, f"nothing with the key {request.key!r} waits"
        return response

    def _change(self, message: WaitingMessage, request: broker_pb.RecallMessageRequest) -> None:
        match request.WhichOneof("reschedule"):
            case "deliver_timestamp_ms":
                message.due_timestamp_ms = request.deliver_timestamp_ms
            case "delay_ms":
                message.due_timestamp_ms = self._clock.wall_ms() + request.delay_ms
            case _:
                message.outcome = broker_pb.REMOVED


def delivered_record(record: Record) -> bytes:
    """What has waited, as it is delivered."""
    return rewritten(record, without={TIMER_DELAY_MS, TIMER_DELIVER_MS, PRODUCER_SEQUENCE})
