"""Messages to one broker: whatever waits when the stream is free goes out at once, with no linger.

It goes out in as many frames as may be unanswered, unless they become too small: then the broker stores the first one
while the client still builds the second, where one large frame would make them wait for each other in turns.

Plain messages of one queue share a batch of the frame. A delayed message and a half message are batches of their own:
the broker writes them under another topic and with another size, so only the offset of a batch's first record is known.

Invariants: a message is in exactly one place, waiting or in one unanswered frame; at most FRAMES_UNANSWERED_MAX frames
are unanswered; plain messages of one queue leave in the order in which they were submitted, and so do its delayed ones.
A message that has not been handed to the stream fails with a RetryableError, one that has with an OutcomeUnknownError.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from functools import partial

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.background import BackgroundTasks
from mqclient.errors import (
    BrokerUnreachableError,
    ConnectionLostError,
    NotSentError,
    RequestTimeoutError,
    broker_answer_error,
)
from mqclient.message_queue import MessageQueue
from mqclient.producer.send_result import STATUS_OF_CODE
from mqclient.request_stream import RequestStream
from mqclient.transport import Channel
from mqclient.transport.methods import PRODUCE
from mqproto.grpc_options import FRAME_BYTES_TARGET
from osenv import Clock, Timer

FRAMES_UNANSWERED_MAX = 4
FRAME_BATCHES_MAX = 1_024  # the broker refuses a frame with more
FRAME_MESSAGES_MIN = 32  # below this, what a frame itself costs outweighs the gain of having more of them
FRAMES_IN_STEP = 2  # while the broker works on one frame the client makes the next; more of them cost more
_TIMER_EARLY_S = 0.001  # a Clock's timer may run this much early


# Response code (one of those that mean "stored"), queue offset, log offset: a plain tuple, because one is made for each
# message.
Stored = tuple[int, int, int]


class PendingSend:
    """A message between `submit` and its answer."""

    __slots__ = ("alone", "deadline", "future", "queue", "record", "written")

    def __init__(
        self, queue: MessageQueue, record: bytes, deadline: float, future: asyncio.Future[Stored], alone: bool
    ) -> None:
        self.queue = queue
        self.record = record
        self.alone = alone
        self.deadline = deadline
        self.future = future
        self.written = False


Frame = list[list[PendingSend]]  # its batches; none is empty, and all messages of one have the same queue


class ProduceStream:
    """The Produce stream to `address`."""

    def __init__(self, address: str, channel: Channel, clock: Clock, tasks: BackgroundTasks) -> None:
        self._address = address
        self._clock = clock
        self._tasks = tasks
        self._stream = RequestStream(address, channel, PRODUCE, lambda response: response.request_id, tasks)
        self._waiting: deque[PendingSend] = deque()
        self._flying: dict[int, Frame] = {}
        self._request_ids = itertools.count(1)
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._frame_slots = asyncio.Semaphore(FRAMES_UNANSWERED_MAX)
        self._writer: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._timer_due = float("inf")

    def submit(
        self, queue: MessageQueue, record: bytes, deadline: float, *, alone: bool = False
    ) -> asyncio.Future[Stored]:
        """Send `record` to `queue`; the future ends by `deadline` (monotonic), with a result or an error.

        `alone` has to be true for a delayed and for a half message.
        """
        future: asyncio.Future[Stored] = self._loop.create_future()
        self._waiting.append(PendingSend(queue, record, deadline, future, alone))
        self._wake.set()
        if deadline < self._timer_due:
            self._set_timer(deadline)
        if self._writer is None:
            self._writer = self._tasks.start(self._write_frames(), f"mqclient produce {self._address}")
        return future

    def close(self) -> None:
        """Fail what has not been answered."""
        if self._timer is not None:
            self._timer.cancel()
        self._stream.close()
        self._fail_waiting(f"{self._address}: the client was shut down before the message left")

    async def _write_frames(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._frame_slots.acquire()
                frame = self._take_frame()
                if not frame:
                    self._frame_slots.release()
                    continue
                request = broker_pb.ProduceRequest(request_id=next(self._request_ids))
                for pendings in frame:
                    queue = pendings[0].queue
                    records = b"".join([pending.record for pending in pendings])
                    request.batches.add(
                        topic=queue.topic, queue_id=queue.queue_id, count=len(pendings), records=records
                    )
                self._flying[request.request_id] = frame
                answer = await self._stream.send(request.request_id, request)
                answer.add_done_callback(partial(self._answered, request.request_id))

    def _take_frame(self) -> Frame:
        """Move messages from waiting into a frame: its share of them up to the target size, or one larger message."""
        frame: Frame = []
        plain: dict[MessageQueue, list[PendingSend]] = {}
        waiting = self._waiting
        flying = sum(len(pendings) for other in self._flying.values() for pendings in other)
        left = max(FRAME_MESSAGES_MIN, -(-(len(waiting) + flying) // FRAMES_IN_STEP))
        size = 0
        while waiting and left and len(frame) < FRAME_BATCHES_MAX:
            if size and size + len(waiting[0].record) > FRAME_BYTES_TARGET:
                break
            pending = waiting.popleft()
            if pending.future.done():  # cancelled by its caller, or too late
                continue
            pending.written = True
            left -= 1
            size += len(pending.record)
            pendings = None if pending.alone else plain.get(pending.queue)
            if pendings is not None:
                pendings.append(pending)
                continue
            frame.append([pending])
            if not pending.alone:
                plain[pending.queue] = frame[-1]
        return frame

    def _answered(self, request_id: int, answer: asyncio.Future[broker_pb.ProduceResponse]) -> None:
        self._frame_slots.release()
        frame = self._flying.pop(request_id)
        error = answer.exception()
        if error is None and len(answer.result().results) != len(frame):
            error = ConnectionLostError(f"{self._address} answered a frame with the wrong number of results")
        if error is not None:
            self._fail_frame(frame, error)
            return
        for pendings, result in zip(frame, answer.result().results, strict=True):
            self._finish_batch(pendings, result)

    def _finish_batch(self, pendings: list[PendingSend], result: broker_pb.BatchResult) -> None:
        code = result.code
        if code not in STATUS_OF_CODE:
            for pending in pendings:
                if not pending.future.done():
                    pending.future.set_exception(broker_answer_error(code, result.remark, pending.queue.broker_name))
            return
        queue_offset, log_offset = result.base_queue_offset, result.base_log_offset
        for pending in pendings:
            if not pending.future.done():
                pending.future.set_result((code, queue_offset, log_offset))
            queue_offset += 1
            log_offset += len(pending.record)  # a batch is stored without a gap

    def _fail_frame(self, frame: Frame, error: BaseException) -> None:
        """The stream broke. What waits behind the frame has not left, and may go to another broker at once."""
        kind = BrokerUnreachableError if isinstance(error, BrokerUnreachableError) else ConnectionLostError
        for pendings in frame:
            for pending in pendings:
                if not pending.future.done():
                    pending.future.set_exception(kind(str(error)))
        self._fail_waiting(f"{self._address}: the connection broke before the message left")

    def _fail_waiting(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        for pending in waiting:
            if not pending.future.done():
                pending.future.set_exception(BrokerUnreachableError(reason))

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._clock.call_later(due - self._clock.monotonic(), self._expire)

    def _expire(self) -> None:
        """Fail what is too late; one timer for all messages, because a timer each would cost more than the message."""
        self._timer, self._timer_due = None, float("inf")
        now = self._clock.monotonic() + _TIMER_EARLY_S
        frames = [pending for frame in self._flying.values() for pendings in frame for pending in pendings]
        earliest = float("inf")
        for pending in (*self._waiting, *frames):
            if pending.future.done():
                continue
            if pending.deadline > now:
                earliest = min(earliest, pending.deadline)
            elif pending.written:
                pending.future.set_exception(RequestTimeoutError(f"{self._address} did not answer in time"))
            else:
                pending.future.set_exception(NotSentError(f"the message to {self._address} could not leave in time"))
        self._waiting = deque(pending for pending in self._waiting if not pending.future.done())
        if earliest < float("inf"):
            self._set_timer(earliest)
