"""What travels on a produce stream: messages in batches, batches in frames, and the messages that have not left yet.

A batch is what the broker stores whole, or not at all, and what is sent again whole after its outcome became unknown.
Each message has a number, by which the broker recognises what it has stored (broker_service.proto, RecordBatch).

Invariants: the messages of a batch belong to one queue, travel on the same terms and have numbers without a gap; in a
frame, and from one frame to the next, the numbers of a queue only rise, and messages leave in the order of their
numbers. The numbers of one (topic, queue id) go from 1 up and each is given once, also when its message fails; the
epoch never goes back, and no two streams that may have reached the broker share one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.errors import BrokerUnavailableError, BrokerUnreachableError, ConnectionLostError, MQClientError
from mqclient.message import MessageQueue
from mqproto.grpc_options import FRAME_BYTES_TARGET
from mqproto.properties import EPOCH_DIGITS_MAX, PRODUCER_SEQUENCE, SEQUENCE_DIGITS_MAX, producer_sequence_start
from osenv import Rng

FRAME_BATCHES_MAX = 1_024  # the broker rejects a frame with more

# Response code (one of those that mean "stored"), queue offset, log offset: a plain tuple, because one is made for each
# message.
Stored = tuple[int, int, int]
Place = tuple[int, int]  # queue offset, log offset

FRAME_MESSAGES_MIN = 32  # below this, what a frame itself costs outweighs the gain of having more of them
FRAMES_IN_STEP = 2  # while the broker works on one frame the client makes the next; more of them cost more

PRODUCER_ID_BITS = 62  # what is above comes back (RETURNING_PRODUCERS_FROM)
SEQUENCE_PROPERTY_BYTES_MAX = (
    len(f"{PRODUCER_SEQUENCE}\x01{producer_sequence_start(0, 10 ** (EPOCH_DIGITS_MAX - 1))}\x02") + SEQUENCE_DIGITS_MAX
)

_Counters = partial(defaultdict[int, Iterator[int]], partial(count, 1))  # of one topic, by queue id


class SendOptions(NamedTuple):
    """How a message travels. Batches are made of messages whose options are the same object.

    `own_batch`: it is not put together with others, because the broker writes it under another topic and with another
    size (delayed and half messages). `ordered`: its caller has chosen the queue, so it may not overtake another one of
    that queue. `failover`: when the broker is unreachable, the sender tries another one. `failover_on_timeout`: the
    same when its deadline passes.
    """

    own_batch: bool = False
    ordered: bool = False
    failover: bool = False
    failover_on_timeout: bool = False


class PendingSend:
    """A message on one try; `sequence` is its number, which its record has as well. `submit` gives it its future."""

    __slots__ = ("count", "deadline", "future", "queue", "record", "sequence", "terms")

    def __init__(self, queue: MessageQueue, sequence: int, record: bytes, deadline: float, terms: SendOptions) -> None:
        self.queue = queue
        self.sequence = sequence
        self.record = record
        self.deadline = deadline
        self.terms = terms
        self.count = 1
        self.future: asyncio.Future[Stored]

    @property
    def record_sizes(self) -> Sequence[int]:
        return (len(self.record),)

    def places(self, stored: Stored) -> Sequence[Place]:
        """Where each of its records is, when the future has ended with `stored`."""
        return (stored[1:],)

    def fail(self, error: Exception) -> None:
        """Fail the future unless it is done already."""
        if not self.future.done():
            self.future.set_exception(error)

    def stored_at(self, code: int, places: Sequence[Place]) -> None:
        """Tell the caller where the broker has it: one place for each record."""
        if not self.future.done():
            self.future.set_result((code, *places[0]))


class PendingBatch(PendingSend):
    """Several messages that their caller wants stored together."""

    __slots__ = ("_pieces", "_sizes")

    def __init__(
        self, queue: MessageQueue, sequence: int, records: Sequence[bytes], deadline: float, terms: SendOptions
    ) -> None:
        super().__init__(queue, sequence, b"".join(records), deadline, terms)
        self.count = len(records)
        self._sizes = [len(record) for record in records]
        self._pieces: Sequence[Place] = ()

    @property
    def record_sizes(self) -> Sequence[int]:
        return self._sizes

    def stored_at(self, code: int, places: Sequence[Place]) -> None:
        self._pieces = places
        super().stored_at(code, places)

    def places(self, stored: Stored) -> Sequence[Place]:
        if self._pieces:
            return self._pieces
        _, queue_offset, log_offset = stored
        return list(_in_one_piece(queue_offset, log_offset, self._sizes))


class Batch:
    """Messages of one queue whose numbers follow each other."""

    __slots__ = ("base_sequence", "end", "messages", "queue", "terms")

    def __init__(self, first: PendingSend) -> None:
        self.queue = first.queue
        self.terms = first.terms
        self.base_sequence = first.sequence
        self.end = first.sequence + first.count
        self.messages = [first]

    @property
    def given_up(self) -> bool:
        """Whether no caller waits for it any more."""
        return all(pending.future.done() for pending in self.messages)

    @property
    def moved(self) -> bool:
        """Whether the sender of one of its messages has gone to another broker."""
        return self.terms.failover_on_timeout and any(
            pending.future.done() and not pending.future.cancelled() for pending in self.messages
        )

    def fail(self, error: Exception) -> None:
        for pending in self.messages:
            pending.fail(error)

    def stored(self, result: broker_pb.BatchResult) -> None:
        """Tell the callers where their messages stand."""
        code = result.code
        if result.stretches:
            places = _places(result.stretches, (size for one in self.messages for size in one.record_sizes))
            for pending in self.messages:
                own = list(itertools.islice(places, pending.count))
                if len(own) == pending.count:
                    pending.stored_at(code, own)
                else:
                    pending.fail(ConnectionLostError(f"{self.queue} has stored a batch and not said where all of it"))
            return
        queue_offset, log_offset = result.base_queue_offset, result.base_log_offset
        for pending in self.messages:
            if not pending.future.done():
                pending.future.set_result((code, queue_offset, log_offset))
            queue_offset += pending.count
            log_offset += len(pending.record)  # a batch is stored without a gap


def _places(stretches: Iterable[broker_pb.StoredStretch], sizes: Iterable[int]) -> Iterator[Place]:
    """Where the records of these sizes stand."""
    left = iter(sizes)
    for stretch in stretches:
        own = itertools.islice(left, stretch.count)
        yield from _in_one_piece(stretch.base_queue_offset, stretch.base_log_offset, own)


def _in_one_piece(queue_offset: int, log_offset: int, sizes: Iterable[int]) -> Iterator[Place]:
    """A log offset of -1 says that this part of the log is gone."""
    for number, size in enumerate(sizes):
        yield queue_offset + number, log_offset
        if log_offset >= 0:
            log_offset += size


class Frame:
    """Batches that are sent together and answered together.

    `written`: on the stream that is open now. `left`: on an earlier one, so that the broker may have stored it.
    """

    __slots__ = ("batches", "left", "request_id", "written")

    def __init__(self, request_id: int, batches: list[Batch]) -> None:
        self.request_id = request_id
        self.batches = batches
        self.written = False
        self.left = False

    def messages(self) -> Iterator[PendingSend]:
        for batch in self.batches:
            yield from batch.messages

    @property
    def message_count(self) -> int:
        return sum(len(batch.messages) for batch in self.batches)

    def request(
        self, producer_id: int, epoch: int, first_unanswered: dict[MessageQueue, int]
    ) -> broker_pb.ProduceRequest:
        """The frame on the wire; for the same batches always the same records."""
        request = broker_pb.ProduceRequest(request_id=self.request_id, producer_id=producer_id, producer_epoch=epoch)
        for batch in self.batches:
            queue = batch.queue
            request.batches.add(
                topic=queue.topic,
                queue_id=queue.queue_id,
                count=batch.end - batch.base_sequence,
                records=b"".join([pending.record for pending in batch.messages]),
                base_sequence=batch.base_sequence,
                first_unanswered_sequence=first_unanswered[queue],
            )
        return request


class FrameDraft:
    """Batches of a frame that is being filled: up to `message_count_max` messages and the target size."""

    def __init__(self, message_count_max: int) -> None:
        self.batches: list[Batch] = []
        self._left = message_count_max
        self._size = 0
        self._last: dict[MessageQueue, Batch] = {}

    def fill_from(self, line: deque[Any]) -> Batch | None:
        """Move messages from the front of `line` into the frame: up to one that does not fit, or something else.

        After the first ordered message only its own batch takes more; it is returned. An empty frame takes any message.
        """
        last, batches, size, left, ordered = self._last, self.batches, self._size, self._left, None
        while line and isinstance(line[0], PendingSend):
            pending = line[0]
            if pending.future.done():  # cancelled by its caller, or too late
                line.popleft()
                continue
            grown = size + len(pending.record)
            if size and (grown > FRAME_BYTES_TARGET or not left):
                break
            batch = last.get(pending.queue)
            if batch is not None and batch.end == pending.sequence and batch.terms is pending.terms:
                batch.messages.append(pending)
                batch.end += pending.count
            elif ordered is not None or len(batches) == FRAME_BATCHES_MAX:
                break
            else:
                batch = Batch(pending)
                batches.append(batch)
                last[pending.queue] = batch
                if pending.terms.own_batch:
                    del last[pending.queue]
                if pending.terms.ordered:
                    ordered = batch
            size = grown
            left -= 1
            line.popleft()
        self._size, self._left = size, left
        return ordered


class _OrderedSends:
    """The messages of one queue."""

    __slots__ = ("busy", "messages", "queue")

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.busy = False
        self.messages: deque[PendingSend] = deque()


class SendQueue:
    """Messages for one broker that have not left yet, and which of them go next.

    Most stand in one line, first come, first served. A message whose caller has chosen the queue waits in the lane of
    that queue, and with it whatever is sent to the queue after it: at most one such batch of a queue is unanswered at a
    time.

    Invariants: a lane exists while it has messages or while an ordered batch of its queue is unanswered (it is busy
    then); it stands in line if and only if it is not busy.
    """

    def __init__(self) -> None:
        self._line: deque[PendingSend | _OrderedSends] = deque()
        self._lanes: dict[MessageQueue, _OrderedSends] = {}
        self.count = 0  # those that were given up count until they are met

    def __iter__(self) -> Iterator[PendingSend]:
        for one in self._line:
            if isinstance(one, PendingSend):
                yield one
        for lane in self._lanes.values():
            yield from lane.messages

    @property
    def may_send(self) -> bool:
        """Whether `take` is worth calling."""
        return bool(self._line)

    def append(self, pending: PendingSend) -> None:
        self.count += 1
        lane = self._lanes.get(pending.queue) if self._lanes else None
        if lane is None:
            if not pending.terms.ordered:
                self._line.append(pending)
                return
            lane = self._lanes[pending.queue] = _OrderedSends(pending.queue)
            self._line.append(lane)
        lane.messages.append(pending)

    def take(self, unanswered_count: int) -> list[Batch]:
        """The batches of the next frame: its share of what waits and is unanswered. Empty when all were given up."""
        draft = FrameDraft(max(FRAME_MESSAGES_MIN, -(-(self.count + unanswered_count) // FRAMES_IN_STEP)))
        line = self._line
        while line:
            before = len(line)
            draft.fill_from(line)
            self.count -= before - len(line)
            if not line or not isinstance(line[0], _OrderedSends) or not self._take_from_lane(line[0], draft):
                break
            line.popleft()
        return draft.batches

    def answered(self, queue: MessageQueue) -> None:
        """The ordered batch of this queue has its answer, or will not be sent again: the next one may follow."""
        lane = self._lanes[queue]
        lane.busy = False
        if lane.messages:
            self._line.append(lane)
        else:
            del self._lanes[queue]

    def followers(self, queue: MessageQueue) -> list[PendingSend]:
        """The messages that must not be stored when an earlier one of their queue was not."""
        lane = self._lanes.get(queue)
        return [pending for pending in lane.messages if pending.terms.ordered] if lane is not None else []

    def drop_given_up(self) -> None:
        """Forget the messages that no caller waits for any more."""
        self._line = deque(one for one in self._line if isinstance(one, _OrderedSends) or not one.future.done())
        for lane in self._lanes.values():
            lane.messages = deque(pending for pending in lane.messages if not pending.future.done())
        self.count = sum(1 for _ in self)

    def _take_from_lane(self, lane: _OrderedSends, draft: FrameDraft) -> bool:
        """Move what may go into the draft; False when the lane could send more and the frame is full."""
        before = len(lane.messages)
        lane.busy = draft.fill_from(lane.messages) is not None
        self.count -= before - len(lane.messages)
        if lane.messages and not lane.busy:
            return False
        if not lane.busy:
            del self._lanes[lane.queue]
        return True


class SequenceAllocator:
    """The producer id of one client and broker, its epoch, and the next number of each queue."""

    def __init__(self, rng: Rng) -> None:
        self.producer_id = rng.randrange(1, 1 << PRODUCER_ID_BITS)
        self.epoch = 0
        self._counters: defaultdict[str, defaultdict[int, Iterator[int]]] = defaultdict(_Counters)
        self.property_start = ""
        self.next_epoch()

    def next_epoch(self) -> None:
        """A new stream is about to be opened, and the last one may have reached the broker."""
        self.epoch += 1
        self.property_start = f"{PRODUCER_SEQUENCE}\x01{producer_sequence_start(self.producer_id, self.epoch)}"

    def next(self, queue: MessageQueue) -> int:
        """The next number of the queue. Its record says it as the property `property_start`, number, \\x02."""
        return next(self._counters[queue.topic][queue.queue_id])


def failure_of(batch: Batch, *, left: bool, gone: bool, error: MQClientError) -> MQClientError | None:
    """The outcome of an unanswered batch when its stream breaks: the error for its callers, None to send it again.

    `left`: the broker may have stored it. `gone`: it takes nothing, and no other broker has taken its place yet.

    | may the broker have stored it? | it is gone (ReconnectBackoff) | it is no master (NOT_LEADER_FOR_QUEUE) | else |
    |---|---|---|---|
    | no caller waits for it any more | dropped | dropped | dropped |
    | a sender of it went elsewhere | fails: unknown outcome | fails: unknown outcome | fails: unknown outcome |
    | yes, and it may move | fails: unknown outcome | sent again | sent again |
    | yes, and it may not move | sent again | sent again | sent again |
    | no, and it may move | fails: not stored | fails: not stored | sent again |
    | no, and it may not move | sent again | sent again | sent again |

    Sent again means: the same records with the same numbers to the master of the same broker name, before anything new,
    until the deadlines of its messages. That master recognises what it has stored, also when it was a replica before,
    because the numbers are in the log that it has copied; so only a move to another broker name can store a message
    twice. A broker whose name has another master by now, as the route says, counts as "else".
    """
    if batch.moved:
        return ConnectionLostError(str(error))
    if not gone or not batch.terms.failover:
        return None
    if isinstance(error, BrokerUnavailableError):
        return None if left else error
    return ConnectionLostError(str(error)) if left else BrokerUnreachableError(str(error))
