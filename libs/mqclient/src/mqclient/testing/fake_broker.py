"""A broker that keeps its messages in lists and does what the test says.

It follows the protocol as far as the client can see it; delay levels are not waited for: what is sent with one, and
what is sent back, comes at once. What has a time of its own comes when it is due and the test says `deliver_due`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from enum import Enum, auto
from typing import Any

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.errors import MQClientError
from mqclient.testing.fake_admin import FakeAdmin
from mqclient.testing.fake_channel import FakeSessions, FakeStream
from mqclient.testing.fake_state import (
    FakeLocks,
    FakeProgress,
    FakeSequences,
    FakeTransactions,
    FakeWaiting,
    Place,
    committed_record,
    delivered_record,
    fill_in,
    is_half,
    is_timed,
    keys_of,
    new_record,
    rejection,
)
from mqclient.transport import methods
from mqproto.names import retry_topic
from mqproto.properties import DELAY, RETRY_TOPIC, decode_properties
from mqproto.record import OFFSETS, OFFSETS_AT, STORE, STORE_AT, decode_record, iter_records, pack_ip, seal
from osenv import Clock

_Queue = tuple[str, int]

FRAME_BATCHES_MAX = 1_024
QUERY_MESSAGES_DEFAULT = 32
# What a replica leaves to its master, as does a master that has stepped down.
MASTERS_ONLY = {
    method.path: method.response_type
    for method in (
        methods.CONSUMER_SEND_BACK,
        methods.LOCK_QUEUES,
        methods.UNLOCK_QUEUES,
        methods.END_TRANSACTION,
        methods.RECALL_MESSAGE,
    )
}
DELAYED_EXTRA_BYTES = 37  # a delayed record takes more in the log than on the wire


class FrameFault(Enum):
    """How the connection fails around a produce frame."""

    NONE = auto()
    BREAK_BEFORE_STORE = auto()
    BREAK_AFTER_STORE = auto()


class FakeBroker:
    """A master, or with another `broker_id` than 0 a replica. The attributes without underscore are the test's to read
    and to set.

    A replica has what it had when the test last said `copy_from`. To an offset beyond its end it answers as a real one:
    nothing yet, and that the master should be asked; unless it `judges_offsets` as only a master may.
    """

    def __init__(self, name: str, address: str, clock: Clock, *, auto_create: bool) -> None:
        self.name = name
        self.address = address
        self.addresses: dict[int, str] = {}  # when set, name servers tell these by broker id; 0 is the master
        self.registered = True  # whether name servers know it
        self.auto_create = auto_create
        self.broker_id = 0
        self.term = 1  # of the epoch that it registers with
        self.stepped_down = False  # a master that takes no writes any more
        self.write_rejection = ""  # told in its status only: what it does with messages is for `next_codes`
        self.suggest_broker_id = 0  # in every answer to a pull
        self.judges_offsets = False
        self.down = False
        self.silent = False  # takes everything, answers no frame, no poll and no heartbeat
        self.topics: dict[str, common_pb.TopicConfig] = {}
        self.queues: defaultdict[_Queue, list[bytes]] = defaultdict(list)
        self.min_offsets: defaultdict[_Queue, int] = defaultdict(int)
        self.progress = FakeProgress()
        self.offsets, self.commits = self.progress.offsets, self.progress.commits
        self.locks = FakeLocks(clock)
        self.frames: list[broker_pb.ProduceRequest] = []
        self.send_backs: list[broker_pb.ConsumerSendBackRequest] = []
        self.polled_offsets: list[int] = []
        self.cancelled_polls: list[int] = []
        self.next_codes: list[int] = []  # of the batches to come, before everything is SUCCESS again
        self.frame_faults: list[FrameFault] = []  # of the frames to come, before every one is answered again
        self.transactions = FakeTransactions()
        self.waiting = FakeWaiting(clock)
        self.unary_errors: defaultdict[str, list[MQClientError]] = defaultdict(list)
        self.unary_paths: list[str] = []  # of the calls that came
        self.unary_gate: asyncio.Event | None = None  # unary calls wait for it
        self.streams: list[FakeStream] = []
        self.sessions = FakeSessions()
        self._clock = clock
        self.log_end = 0
        self._log: dict[int, bytes] = {}
        self._sequences = FakeSequences()
        self._polls: dict[tuple[int, int], tuple[FakeStream, broker_pb.PollRequest]] = {}
        self.admin = FakeAdmin(self)
        self._unary: dict[str, Callable[[Any], Any]] = {
            **self.admin.methods,
            methods.PULL.path: self._pull_now,
            methods.CONSUMER_SEND_BACK.path: self._consumer_send_back,
            methods.GET_CONSUMER_LIST.path: self._get_consumer_list,
            methods.QUERY_CONSUMER_OFFSET.path: self._query_consumer_offset,
            methods.UPDATE_CONSUMER_OFFSET.path: self.progress.update,
            methods.LOCK_QUEUES.path: self.locks.lock,
            methods.UNLOCK_QUEUES.path: self._unlock_queues,
            methods.GET_QUEUE_OFFSETS.path: self._get_queue_offsets,
            methods.END_TRANSACTION.path: self._end_transaction,
            methods.RECALL_MESSAGE.path: self.waiting.recall,
            methods.QUERY_MESSAGE.path: self._query_message,
            methods.VIEW_MESSAGE.path: self._view_message,
            methods.SEARCH_OFFSET.path: self._search_offset,
        }

    # ------------------------------------------------------------------------------------------------ for the test

    def create_topic(self, topic: str, queue_count: int = 4, perm: int = 6) -> None:
        self.topics[topic] = common_pb.TopicConfig(
            topic=topic, read_queue_count=queue_count, write_queue_count=queue_count, perm=perm
        )

    def put(self, topic: str, queue_id: int, body: bytes, properties: dict[str, str] | None = None) -> None:
        """Store a message as if a producer had sent it."""
        self._append(topic, queue_id, new_record(topic, queue_id, body, properties or {}))
        self._answer_polls()

    @property
    def takes_writes(self) -> bool:
        return self.broker_id == 0 and not self.stepped_down

    def copy_from(self, master: FakeBroker) -> None:
        """Have what the master has, as a replica that has caught up with it."""
        self.topics = dict(master.topics)
        self.queues = deepcopy(master.queues)
        self._log, self.log_end = dict(master._log), master.log_end
        self._sequences = deepcopy(master._sequences)
        self.transactions = deepcopy(master.transactions)
        self.progress.copy_from(master.progress)
        self.waiting.messages = deepcopy(master.waiting.messages)
        self._answer_polls()

    def break_streams(self) -> None:
        """Break every connection; new ones are accepted unless `down` says otherwise."""
        for stream in list(self.streams):
            stream.break_off()

    def restart(self, *, lost_records: int = 0) -> None:
        """Break everything off, and lose the newest records as a power cut would before they are on disk."""
        self.break_streams()
        for log_offset in sorted(self._log)[len(self._log) - lost_records :]:
            record = self._log.pop(log_offset)
            decoded = decode_record(record)
            self.queues[decoded.topic, decoded.queue_id].remove(record)
            self._sequences.forget(record)
            self.log_end = log_offset

    @property
    def produce_stream(self) -> FakeStream:
        return next(stream for stream in self.streams if stream.path == methods.PRODUCE.path)

    def answer_frame(self, frame: broker_pb.ProduceRequest) -> None:
        """Answer a frame that came while the broker was silent."""
        self.produce_stream.answer(self.produce(frame))

    def record_at(self, log_offset: int) -> bytes:
        return self._log[log_offset]

    def members(self, group: str) -> list[str]:
        return self.sessions.consumers(group)

    def producer_groups(self) -> list[str]:
        return self.sessions.producer_groups()

    def check(self, transaction_id: str, *, member: int = 0) -> None:
        """Ask a member of the half's producer group what has become of it."""
        command = self.transactions.check(transaction_id)
        sessions = self.sessions.producer_streams(command.producer_group)
        sessions[member].answer(broker_pb.SessionResponse(check_transaction=command))

    def deliver_due(self) -> None:
        """Let go what is due by the cluster's clock."""
        for record in self.waiting.take_due():
            self._append(record.topic, record.queue_id, delivered_record(record))
        self._answer_polls()

    @property
    def bodies(self) -> list[bytes]:
        """Every stored body, queue by queue."""
        return [decode_record(record).body for _, records in sorted(self.queues.items()) for record in records]

    # ------------------------------------------------------------------------------------------ what channels call

    async def unary(self, path: str, request: Any) -> Any:
        await asyncio.sleep(0)
        if self.unary_gate is not None:
            await self.unary_gate.wait()
        if self.unary_errors[path]:
            raise self.unary_errors[path].pop(0)
        self.unary_paths.append(path)
        if not self.takes_writes and (path in MASTERS_ONLY or getattr(request, "set", False)):
            response_type = MASTERS_ONLY.get(path, broker_pb.UpdateConsumerOffsetResponse)
            return response_type(code=common_pb.NOT_LEADER_FOR_QUEUE, remark="this is no master")
        return self._unary[path](request)

    def stream_request(self, stream: FakeStream, request: Any) -> None:
        if stream not in self.streams:
            self.streams.append(stream)
        if stream.path == methods.PRODUCE.path:
            self.frames.append(request)
            if not self.silent:
                self._answer_or_break(stream, request)
        elif stream.path == methods.SESSION.path:
            self.sessions.request(stream, request, silent=self.silent)
        else:
            self._poll_request(stream, request)

    def _poll_request(self, stream: FakeStream, request: broker_pb.PollRequest) -> None:
        for progress in request.progress:
            self.progress.report(progress)
        action = request.WhichOneof("action")
        if action == "cancel":
            self.cancelled_polls.append(request.poll_id)
            self._polls.pop((id(stream), request.poll_id), None)
        elif action == "pull":
            self.polled_offsets.append(request.pull.queue_offset)
            self._polls[id(stream), request.poll_id] = (stream, request)
            self._answer_polls()

    def stream_ended(self, stream: FakeStream) -> None:
        if stream in self.streams:
            self.streams.remove(stream)
        self._polls = {key: poll for key, poll in self._polls.items() if poll[0] is not stream}
        self.sessions.ended(stream)

    # ------------------------------------------------------------------------------------------------------ produce

    def produce(self, request: broker_pb.ProduceRequest) -> broker_pb.ProduceResponse:
        """The answer to a frame."""
        response = broker_pb.ProduceResponse(request_id=request.request_id)
        too_many = len(request.batches) > FRAME_BATCHES_MAX
        for batch in request.batches:
            code = self._next_code()
            if batch.topic not in self.topics and self.takes_writes:
                if not self.auto_create:
                    code = common_pb.TOPIC_NOT_EXIST
                else:
                    self.create_topic(batch.topic)
            remark = "the frame has too many batches" if too_many else rejection(batch)
            if code != common_pb.NOT_LEADER_FOR_QUEUE:
                remark = remark or self._sequences.problem(request, batch)
            if remark:
                code = common_pb.MESSAGE_ILLEGAL
            result = response.results.add(code=common_pb.ResponseCode.ValueType(code))
            if code in {0, 10, 11, 12}:
                fill_in(result, self._store_batch(request, batch))
            else:
                result.remark = remark or f"{batch.topic} is rejected"
        self.deliver_due()
        return response

    def _next_code(self) -> int:
        if not self.takes_writes:
            return int(common_pb.NOT_LEADER_FOR_QUEUE)
        return self.next_codes.pop(0) if self.next_codes else int(common_pb.SUCCESS)

    def _answer_or_break(self, stream: FakeStream, request: broker_pb.ProduceRequest) -> None:
        fault = self.frame_faults.pop(0) if self.frame_faults else FrameFault.NONE
        if fault is FrameFault.BREAK_BEFORE_STORE:
            stream.break_off()
            return
        response = self.produce(request)
        if fault is FrameFault.BREAK_AFTER_STORE:
            stream.break_off()
        else:
            stream.answer(response)

    def _store_batch(self, request: broker_pb.ProduceRequest, batch: broker_pb.RecordBatch) -> list[Place]:
        """Where the records stand; those that are there already stay where they are."""
        places, at = [], 0
        for number, record in enumerate(iter_records(batch.records)):
            place = self._sequences.place(request, batch, number)
            if place is None:
                place = Place(len(self.queues[batch.topic, batch.queue_id]), self.log_end, record.size)
                self._sequences.remember(request, batch, number, place)
                if is_half(record) or is_timed(record):
                    (self.transactions.prepare if is_half(record) else self.waiting.add)(record)
                    self.log_end += record.size
                else:
                    self._append(batch.topic, batch.queue_id, batch.records[at : at + record.size])
                if DELAY in decode_properties(record.properties):
                    self.log_end += DELAYED_EXTRA_BYTES
            places.append(place)
            at += record.size
        return places

    def _end_transaction(self, request: broker_pb.EndTransactionRequest) -> broker_pb.EndTransactionResponse:
        response, committed = self.transactions.end(request)
        if committed is not None:
            record = committed_record(committed)
            if is_timed(committed):
                self.waiting.add(decode_record(record))
            else:
                self._append(committed.topic, committed.queue_id, record)
            self.deliver_due()
        return response

    def _append(self, topic: str, queue_id: int, record: bytes) -> None:
        if topic not in self.topics:
            self.create_topic(topic, 1 if topic.startswith("%") else 4)
        data = bytearray(record)
        OFFSETS.pack_into(data, OFFSETS_AT, len(self.queues[topic, queue_id]), self.log_end)
        STORE.pack_into(data, STORE_AT, self._clock.wall_ms(), pack_ip("127.0.0.1"), 10911)
        seal(data, 0, len(data))
        self.queues[topic, queue_id].append(bytes(data))
        self._log[self.log_end] = bytes(data)
        self.log_end += len(data)

    # ------------------------------------------------------------------------------------------------------ consume

    def _answer_polls(self) -> None:
        if self.silent:
            return
        for key, (stream, poll) in list(self._polls.items()):
            response = self._pull(poll.pull)
            if response is not None:
                del self._polls[key]
                stream.answer(broker_pb.PollResponse(poll_id=poll.poll_id, pull=response))

    def _pull(self, request: broker_pb.PullRequest) -> broker_pb.PullResponse | None:
        """None while there is nothing to say. The tag filter is the client's here."""
        queue = (request.topic, request.queue_id)
        records, minimum = self.queues[queue], self.min_offsets[queue]
        response = broker_pb.PullResponse(
            min_offset=minimum, max_offset=len(records), suggest_broker_id=self.suggest_broker_id
        )
        beyond = request.queue_offset > len(records)
        if request.topic not in self.topics:
            response.code = common_pb.TOPIC_NOT_EXIST
        elif beyond and self.broker_id and not self.judges_offsets:
            response.status, response.next_begin_offset = broker_pb.NO_NEW_MSG, request.queue_offset
            response.suggest_broker_id = 0
        elif not minimum <= request.queue_offset <= len(records):
            response.status = broker_pb.OFFSET_ILLEGAL
            response.next_begin_offset = min(max(request.queue_offset, minimum), len(records))
        elif request.queue_offset == len(records):
            return None
        else:
            found = records[request.queue_offset : request.queue_offset + request.max_messages]
            response.status = broker_pb.FOUND
            response.count = len(found)
            response.records = b"".join(found)
            response.next_begin_offset = request.queue_offset + len(found)
        return response

    def _pull_now(self, request: broker_pb.PullRequest) -> broker_pb.PullResponse:
        end = len(self.queues[request.topic, request.queue_id])
        nothing = broker_pb.PullResponse(status=broker_pb.NO_NEW_MSG, next_begin_offset=end, max_offset=end)
        return self._pull(request) or nothing

    def _consumer_send_back(self, request: broker_pb.ConsumerSendBackRequest) -> broker_pb.ConsumerSendBackResponse:
        self.send_backs.append(request)
        record = decode_record(self._log[request.log_offset])
        properties = decode_properties(record.properties)
        properties.setdefault(RETRY_TOPIC, record.topic)
        topic = retry_topic(request.group)
        self._append(topic, 0, new_record(topic, 0, record.body, properties, record.reconsume_times + 1))
        self._answer_polls()
        return broker_pb.ConsumerSendBackResponse(log_end=self.log_end)

    def _query_consumer_offset(
        self, request: broker_pb.QueryConsumerOffsetRequest
    ) -> broker_pb.QueryConsumerOffsetResponse:
        topic, queue_id = request.queue.topic, request.queue.queue_id
        if topic not in self.topics:
            code = common_pb.TOPIC_NOT_EXIST if request.HasField("begin") else common_pb.QUERY_NOT_FOUND
            return broker_pb.QueryConsumerOffsetResponse(code=code, remark="no such topic")
        if request.begin.whole_topic and (request.group, topic, queue_id) not in self.offsets:
            others = range(self.topics[topic].read_queue_count)
            if any((request.group, topic, other) in self.offsets for other in others):
                request.begin.where = broker_pb.CONSUME_FROM_FIRST_OFFSET
            request.begin.whole_topic = False
            for other in others if request.begin.where != broker_pb.CONSUME_FROM_FIRST_OFFSET else ():
                one = broker_pb.QueryConsumerOffsetRequest()
                one.CopyFrom(request)
                one.queue.queue_id = other
                self._query_consumer_offset(one)
        limits = (self.min_offsets[topic, queue_id], len(self.queues[topic, queue_id]))
        answer = self.progress.query(request, limits, lambda ms: self._offset_at(topic, queue_id, ms))
        answer.log_end = self.log_end
        return answer

    def _unlock_queues(self, request: broker_pb.UnlockQueuesRequest) -> broker_pb.UnlockQueuesResponse:
        response = self.locks.unlock(request)
        self.sessions.notify({request.group})
        return response

    def _get_queue_offsets(self, request: broker_pb.GetQueueOffsetsRequest) -> broker_pb.GetQueueOffsetsResponse:
        queue = (request.queue.topic, request.queue.queue_id)
        return broker_pb.GetQueueOffsetsResponse(min_offset=self.min_offsets[queue], max_offset=len(self.queues[queue]))

    # ------------------------------------------------------------------------------------------------------ members

    def _get_consumer_list(self, request: broker_pb.GetConsumerListRequest) -> broker_pb.GetConsumerListResponse:
        return broker_pb.GetConsumerListResponse(client_ids=self.members(request.group))

    # --------------------------------------------------------------------------------------------------------- find

    def _query_message(self, request: broker_pb.QueryMessageRequest) -> broker_pb.QueryMessageResponse:
        wanted = request.max_messages or QUERY_MESSAGES_DEFAULT
        end_ms = request.end_timestamp_ms or 1 << 63
        found = []
        for _, data in sorted(self._log.items(), reverse=True):
            record = decode_record(data)
            in_time = request.begin_timestamp_ms <= record.store_timestamp_ms <= end_ms
            if in_time and record.topic == request.topic and request.key in keys_of(record):
                found.append(data)
        response = broker_pb.QueryMessageResponse(truncated=len(found) > wanted, indexed_log_offset=self.log_end)
        response.records = b"".join(found[:wanted])
        response.count = len(found[:wanted])
        return response

    def _view_message(self, request: broker_pb.ViewMessageRequest) -> broker_pb.ViewMessageResponse:
        record = self._log.get(request.log_offset)
        if record is None:
            remark = f"no record begins at offset {request.log_offset}"
            return broker_pb.ViewMessageResponse(code=common_pb.QUERY_NOT_FOUND, remark=remark)
        return broker_pb.ViewMessageResponse(record=record)

    def _search_offset(self, request: broker_pb.SearchOffsetRequest) -> broker_pb.SearchOffsetResponse:
        offset = self._offset_at(request.queue.topic, request.queue.queue_id, request.timestamp_ms)
        return broker_pb.SearchOffsetResponse(offset=offset)

    def _offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        stored = [decode_record(data).store_timestamp_ms for data in self.queues[topic, queue_id]]
        offset = next((at for at, ms in enumerate(stored) if ms >= timestamp_ms), len(stored))
        return max(offset, self.min_offsets[topic, queue_id])
