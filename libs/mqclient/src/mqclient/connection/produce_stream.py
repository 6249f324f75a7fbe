"""Messages to the master of one broker name: whatever waits when the stream is free goes out at once, with no linger.

It goes out in as many frames as may be unanswered, unless they become too small: then the broker stores the first one
while the client still builds the second, where one large frame would make them wait for each other in turns.

When the stream breaks it is opened again, and what has no answer is sent again first (`failure_of`); the broker
recognises what it has stored. A broker that cannot be reached, or is no master any more (NOT_LEADER_FOR_QUEUE), is
tried with a backoff while messages wait for it, and each time a name server is asked where the master is. When it is
another broker, the stream goes there with all that waits and has no answer.

Invariants: a broker name has one stream and one sequence allocator, as long as a route names it or a message waits for
it, whichever broker is its master, so that a new master recognises what went to the old one without an answer. A
message is in exactly one place, waiting or in one unanswered frame; at most FRAMES_UNANSWERED_MAX frames are
unanswered; the messages of one queue leave in the order of their numbers, on every stream; of the ordered batches of
one queue one is unanswered, and when it fails, those behind it fail too. A message that has not been handed to a stream
fails with a RetryableError, one that has with an OutcomeUnknownError. After a broker has said that it is no master,
nothing more is written to it on that stream, which ends when the rest has its answers.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.config import ClientConfig
from mqclient.connection.frames import Batch, Frame, PendingSend, SendQueue, SequenceAllocator, Stored, failure_of
from mqclient.errors import (
    BrokerUnavailableError,
    BrokerUnreachableError,
    ConnectionLostError,
    EarlierSendFailedError,
    IllegalStateError,
    MQClientError,
    NotSentError,
    RequestTimeoutError,
    broker_answer_error,
)
from mqclient.lifecycle import BackgroundTasks, wait_event
from mqclient.message import STATUS_OF_CODE, MessageQueue
from mqclient.route_table import RouteTable
from mqclient.transport import Channel, Stream, Transport
from mqclient.transport.methods import PRODUCE
from osenv import Timer
from osenv.clock import timeout

logger = logging.getLogger("mqclient.produce_stream")

# Streams in a row that broke without an answer: a broker that takes connections and ends them does not listen either.
FRUITLESS_STREAMS_MAX = 4
_DOUBLINGS_MAX = 32  # far beyond any backoff's maximum

FRAMES_UNANSWERED_MAX = 4
LOOK_PATIENCE_S = 0.5  # how long messages wait for a name server to say where the master is, before they go elsewhere
_TIMER_EARLY_S = 0.001  # a Clock's timer may run this much early
_EXPIRY_STEP_S = 0.005  # deadlines this close to each other are one step of the timer, which looks at every message

ProduceCall = Stream[broker_pb.ProduceRequest, broker_pb.ProduceResponse]

StreamChannel = Callable[[str], Channel]  # the channel for streams to an address


class ReconnectBackoff:
    """What the last streams to one broker have come to, and so when the next one opens. Backoffs are in seconds."""

    def __init__(self, backoff_min_s: float, backoff_max_s: float) -> None:
        self._backoff_min_s = backoff_min_s
        self._backoff_max_s = backoff_max_s
        self._fruitless = 0  # in a row, without an answer
        self._rejected = 0  # in a row, without a connection, or with a broker that is no master
        self.last_error: MQClientError | None = None  # since the last answer

    def opened(self) -> None:
        """A stream begins; it is fruitless until there is an answer."""
        self._fruitless += 1

    def answered(self) -> None:
        """The broker has answered."""
        self._fruitless = self._rejected = 0
        self.last_error = None

    def broke(self, error: MQClientError) -> None:
        """The stream has ended with `error`."""
        self.last_error = error
        self._rejected = (
            self._rejected + 1 if isinstance(error, (BrokerUnreachableError, BrokerUnavailableError)) else 0
        )

    def moved(self) -> None:
        """The next stream goes to another broker, whose history is empty."""
        self._fruitless = self._rejected = 0

    @property
    def broker_is_gone(self) -> bool:
        """Whether messages that may go elsewhere had better do so."""
        return self._rejected > 0 or self._fruitless >= FRUITLESS_STREAMS_MAX

    def pause_s(self, left_s: float) -> float:
        """How long to wait before the next stream, when the next deadline is `left_s` away.

        Not at all the first time that a connection breaks; longer and longer while the broker cannot be reached, but
        never so long that a message is left to its deadline.
        """
        if self._fruitless <= 1 and not self._rejected:
            return 0.0
        pause_s = self._backoff_min_s * float(1 << min(max(0, self._rejected - 1), _DOUBLINGS_MAX))
        return min(pause_s, self._backoff_max_s, max(self._backoff_min_s, left_s / 2))


class Master:
    """The master of `broker_name`, as the routes know it."""

    def __init__(self, broker_name: str, routes: RouteTable, channel_to: StreamChannel) -> None:
        self._broker_name = broker_name
        self._routes = routes
        self._channel_to = channel_to
        self._last_address: str | None = None

    @property
    def address(self) -> str | None:
        """As far as is known now."""
        return self._routes.master_address(self._broker_name)

    def channel(self) -> Channel:
        """To that address, or to the last one that was known. Raises BrokerUnreachableError when there was none.

        A master that no name server knows now may still be there, so it is tried where it was.
        """
        address = self._last_address = self.address or self._last_address
        if address is None:
            raise BrokerUnreachableError(f"no address of the master of broker {self._broker_name!r} is known")
        return self._channel_to(address)

    async def look_again(self) -> None:
        """Ask anew where it is. Raises nothing."""
        await self._routes.refresh_brokers()


class ProduceStream:
    """The Produce stream to `master`. `sequences` has a number for each record that is submitted.

    `address` is where it goes, or went last.
    """

    def __init__(self, master: Master, transport: Transport, config: ClientConfig, tasks: BackgroundTasks) -> None:
        self.sequences = SequenceAllocator(transport.rng)
        self.address = master.address or "nowhere"
        self._master = master
        self._clock = transport.clock
        self._backoff = ReconnectBackoff(config.reconnect_backoff_min_s, config.reconnect_backoff_max_s)
        self._tasks = tasks
        self._create_future = asyncio.get_running_loop().create_future
        self._waiting = SendQueue()
        self._unanswered: dict[int, Frame] = {}  # in the order in which they were first sent
        self._request_ids = itertools.count(1)
        self._wake = asyncio.Event()  # something may be written
        self._hurry = asyncio.Event()  # a message wants to know at once whether the broker can be reached
        self._runner: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._timer_due = float("inf")
        self._stream: ProduceCall | None = None
        self._rejection: MQClientError | None = None  # of the open stream's broker, which is no master
        self._closed = False

    def submit(self, pending: PendingSend) -> asyncio.Future[Stored]:
        """Send it to its queue; the future ends by its deadline (monotonic), with a result or an error.

        Its number has to be the last one that `sequences` gave for its queue.
        """
        pending.future = self._create_future()
        if self._closed:
            pending.fail(BrokerUnreachableError(f"{self.address}: the client has left this broker"))
            return pending.future
        self._waiting.append(pending)
        if len(self._unanswered) < FRAMES_UNANSWERED_MAX:
            self._wake.set()
        if pending.terms.failover:
            self._hurry.set()
        if pending.deadline < self._timer_due:
            self._set_timer(pending.deadline)
        if self._runner is None:
            self._runner = self._tasks.start(self._run(), f"mqclient produce {self.address}")
        return pending.future

    @property
    def is_idle(self) -> bool:
        """Whether no message waits for its answer."""
        sent = (pending for frame in self._unanswered.values() for pending in frame.messages())
        return all(pending.future.done() for pending in itertools.chain(self._waiting, sent))

    def follow_master(self) -> None:
        """The routes have changed: if the master is elsewhere now, go there with everything that has no answer."""
        if self._has_moved:
            logger.info("messages to %s go to %s from now on", self.address, self._master.address)
            self._hurry.set()
            if self._stream is not None:
                self._stream.cancel()

    def close(self) -> None:
        """Fail what has not been answered."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._runner is not None:
            self._runner.cancel()
        for pending in self._waiting:
            pending.fail(BrokerUnreachableError(f"{self.address}: the client left before the message did"))
        for frame in self._unanswered.values():
            for pending in frame.messages():
                pending.fail(ConnectionLostError(f"{self.address}: the client left before the answer came"))
        self._waiting.drop_given_up()
        self._unanswered.clear()

    # ------------------------------------------------------------------------------------------------- the stream

    async def _run(self) -> None:
        """Keep a stream open while there is something to send or to wait for."""
        while True:
            while not (self._unanswered or self._waiting.may_send):
                self._wake.clear()
                await self._wake.wait()
            error = await self._use_stream()
            self._backoff.broke(error)
            if self._backoff.broker_is_gone and not self._has_moved:
                await self._look_for_master()
            if self._has_moved:
                self._backoff.moved()
            self._sort_out(error)
            pause_s = self._backoff.pause_s(self._timer_due - self._clock.monotonic())
            if pause_s and (self._unanswered or self._waiting.may_send):
                self._hurry.clear()
                await wait_event(self._clock, self._hurry, pause_s)

    @property
    def _has_moved(self) -> bool:
        """Whether the master is known to be elsewhere than where this stream went last."""
        return self._master.address not in {None, self.address}

    async def _look_for_master(self) -> None:
        try:
            async with timeout(self._clock, LOOK_PATIENCE_S):
                await self._master.look_again()
        except TimeoutError:
            logger.info("no name server has said in time where the master is that was at %s", self.address)

    async def _use_stream(self) -> MQClientError:
        """Open a stream, write and read until it breaks, and return what broke it."""
        self.address = self._master.address or self.address
        self._backoff.opened()
        self._rejection = None
        try:
            stream = self._stream = self._master.channel().stream(PRODUCE)
        except BrokerUnreachableError as unknown:
            return unknown
        writer = self._tasks.start(self._write(stream), f"mqclient produce writer {self.address}", awaited=True)
        error: MQClientError
        try:
            error = await self._read(stream)
        except MQClientError as caught:
            error = caught
        finally:
            self._stream = None
            writer.cancel()
            stream.cancel()
        await asyncio.wait((writer,))
        if not writer.cancelled() and (first := writer.exception()) is not None:
            if not isinstance(first, MQClientError):
                raise first
            return first
        return error

    async def _read(self, stream: ProduceCall) -> MQClientError:
        """Take the answers until none can follow, and return why. Raises what breaks the stream."""
        while (response := await stream.read()) is not None:
            self._answered(response)
            if self._rejection is not None and not any(frame.written for frame in self._unanswered.values()):
                return self._rejection
        return ConnectionLostError(f"the broker at {self.address} ended the stream")

    async def _write(self, stream: ProduceCall) -> None:
        """Write what has no answer yet, in its order, and then what waits, as it comes."""
        for frame in list(self._unanswered.values()):
            if self._rejection is None:
                await self._write_frame(stream, frame)
        while True:
            while self._rejection is None and self._waiting.may_send and len(self._unanswered) < FRAMES_UNANSWERED_MAX:
                batches = self._waiting.take(sum(frame.message_count for frame in self._unanswered.values()))
                if batches:
                    frame = Frame(next(self._request_ids), batches)
                    self._unanswered[frame.request_id] = frame
                    await self._write_frame(stream, frame)
            self._wake.clear()
            await self._wake.wait()

    async def _write_frame(self, stream: ProduceCall, frame: Frame) -> None:
        first_unanswered: dict[MessageQueue, int] = {}
        for other in self._unanswered.values():
            for batch in other.batches:
                first_unanswered.setdefault(batch.queue, batch.base_sequence)
        frame.written = True
        request = frame.request(self.sequences.producer_id, self.sequences.epoch, first_unanswered)
        try:
            await stream.write(request)
        except MQClientError:
            stream.cancel()  # for the reader
            raise

    def _sort_out(self, error: MQClientError) -> None:
        """The stream broke: what is sent again stays, the callers of the rest hear of it."""
        gone, reached = self._backoff.broker_is_gone, not isinstance(error, BrokerUnreachableError)
        if reached:
            self.sequences.next_epoch()
        for frame in list(self._unanswered.values()):
            frame.left |= frame.written and reached
            frame.written = False
            for batch in list(frame.batches):
                failure = failure_of(batch, left=frame.left, gone=gone, error=error)
                if failure is not None:
                    batch.fail(failure)
                if batch.given_up:
                    frame.batches.remove(batch)
                    self._leave_lane(batch)
            if not frame.batches:
                del self._unanswered[frame.request_id]
        if not self._has_moved:
            self._send_elsewhere(error)
        self._waiting.drop_given_up()

    def _send_elsewhere(self, error: MQClientError) -> None:
        """What has not left yet, and whose senders have another broker, does not wait for this one."""
        for pending in self._waiting:
            if pending.terms.failover and isinstance(error, BrokerUnavailableError):
                pending.fail(error)
            elif pending.terms.failover:
                pending.fail(BrokerUnreachableError(f"{self.address}: the connection broke before the message left"))

    # ------------------------------------------------------------------------------------------------- the answers

    def _answered(self, response: broker_pb.ProduceResponse) -> None:
        frame = self._unanswered.get(response.request_id)
        if frame is None or not frame.written:
            logger.warning("%s answered frame %d, which is not in flight", self.address, response.request_id)
            return
        self._wake.set()
        frame.written = False
        answered, frame.batches = frame.batches, []
        whole = len(response.results) == len(answered)
        for number, batch in enumerate(answered):
            if not whole:
                self._fail_batch(batch, ConnectionLostError(f"{self.address} left a batch of a frame unanswered"))
            elif response.results[number].code == common_pb.NOT_LEADER_FOR_QUEUE:
                frame.batches.append(batch)
                self._rejected(response.results[number], batch)
                continue
            else:
                self._finish(batch, response.results[number], left_before=frame.left)
            self._leave_lane(batch)
        if not frame.batches:
            del self._unanswered[frame.request_id]
        if len(frame.batches) < len(answered):
            self._backoff.answered()

    def _rejected(self, result: broker_pb.BatchResult, batch: Batch) -> None:
        """The broker is no master and has stored nothing of the batch; it is sent again when the stream has ended."""
        if self._rejection is None:
            self._rejection = broker_answer_error(result.code, result.remark, batch.queue.broker_name)
            self._tasks.start(self._master.look_again(), f"mqclient look for the master that was at {self.address}")

    def _finish(self, batch: Batch, result: broker_pb.BatchResult, *, left_before: bool) -> None:
        code = result.code
        if code not in STATUS_OF_CODE:
            error: MQClientError = broker_answer_error(code, result.remark, batch.queue.broker_name)
            if left_before:  # it is rejected now, and may have been stored before
                error = ConnectionLostError(f"{self.address}: the connection broke before the answer, then: {error}")
            self._fail_batch(batch, error)
            return
        batch.stored(result)

    def _fail_batch(self, batch: Batch, error: MQClientError) -> None:
        """Fail the futures of the batch."""
        if not batch.given_up:
            batch.fail(error)
            if batch.terms.ordered:
                self._fail_followers(batch.queue, batch.end, error)

    def _fail_followers(self, queue: MessageQueue, sequence: int, error: MQClientError) -> None:
        """What comes after a failed message of an ordered queue must not be stored."""
        for follower in self._waiting.followers(queue):
            if follower.sequence >= sequence:
                follower.fail(EarlierSendFailedError(f"an earlier message to {queue} failed: {error}"))

    def _leave_lane(self, batch: Batch) -> None:
        if batch.terms.ordered:
            self._waiting.answered(batch.queue)

    # ------------------------------------------------------------------------------------------------ the deadlines

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._clock.call_later(due - self._clock.monotonic(), self._expire)

    def _expire(self) -> None:
        """Fail what is too late; one timer for all messages, because a timer each would cost more than the message."""
        self._timer, self._timer_due = None, float("inf")
        now = self._clock.monotonic() + _TIMER_EARLY_S
        earliest = float("inf")
        sent = ((pending, frame) for frame in self._unanswered.values() for pending in frame.messages())
        for pending, frame in itertools.chain(sent, ((pending, None) for pending in self._waiting)):
            if pending.future.done():
                continue
            if pending.deadline > now:
                earliest = min(earliest, pending.deadline)
                continue
            error = self._too_late(left=frame is not None and (frame.left or frame.written))
            pending.fail(error)
            if pending.terms.ordered:
                self._fail_followers(pending.queue, pending.sequence + 1, error)
        self._waiting.drop_given_up()
        if earliest < float("inf"):
            self._set_timer(max(earliest, self._clock.monotonic() + _EXPIRY_STEP_S))

    def _too_late(self, *, left: bool) -> MQClientError:
        last_error = self._backoff.last_error
        reason = f"; the last connection failed: {last_error}" if last_error is not None else ""
        if left:
            return RequestTimeoutError(f"{self.address} did not answer in time{reason}")
        if last_error is not None:
            return BrokerUnreachableError(f"the message could not leave in time{reason}")
        return NotSentError(f"the message to {self.address} could not leave in time")


class ProduceStreams:
    """By broker name; made at first use."""

    def __init__(
        self, transport: Transport, config: ClientConfig, routes: RouteTable, channel_to: StreamChannel
    ) -> None:
        self._transport = transport
        self._config = config
        self._routes = routes
        self._channel_to = channel_to
        self._tasks = BackgroundTasks(transport.clock)
        self._streams: dict[str, ProduceStream] = {}
        self._closed = False

    def to(self, broker_name: str) -> ProduceStream:
        """The stream to the master of this name, wherever it is and will be.

        Raises BrokerUnreachableError when no route names the broker, IllegalStateError after `close`.
        """
        stream = self._streams.get(broker_name)
        if stream is None:
            if self._closed:
                raise IllegalStateError(f"the client has been shut down and sends nothing to {broker_name}")
            if not self._routes.addresses(broker_name):
                raise BrokerUnreachableError(f"no address of the master of broker {broker_name!r} is known")
            master = Master(broker_name, self._routes, self._channel_to)
            stream = ProduceStream(master, self._transport, self._config, self._tasks)
            self._streams[broker_name] = stream
        return stream

    def follow_masters(self) -> None:
        """The routes have changed."""
        for stream in self._streams.values():
            stream.follow_master()

    def clean(self) -> None:
        """Close what goes to a broker that no route names, and for which no message waits."""
        for broker_name, stream in list(self._streams.items()):
            if stream.is_idle and not self._routes.addresses(broker_name):
                del self._streams[broker_name]
                stream.close()

    def use(self, address: str) -> bool:
        """Whether a message waits for its answer from there."""
        return any(stream.address == address and not stream.is_idle for stream in self._streams.values())

    async def close(self) -> None:
        """Fail what has not been answered, leave nothing behind."""
        self._closed = True
        streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            stream.close()
        await self._tasks.close()
