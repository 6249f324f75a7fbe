"""The session with one broker: heartbeats and answers go up, commands come down (MISSION L8, L11).

Invariants: the first thing on every opened stream is a whole heartbeat; one task writes to a stream; a command is
answered on the stream that it came by, or not at all; a broken stream is opened again until the session is closed, with
a backoff that doubles and starts anew once the broker has answered a heartbeat; `answer` is what the broker says to the
newest heartbeat, and None while it has not said anything to that one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.config import ClientConfig
from mqclient.errors import ConnectionLostError, MQClientError, code_name
from mqclient.lifecycle import BackgroundTasks
from mqclient.transport import Channel, Stream
from mqclient.transport.methods import SESSION
from osenv import Clock

logger = logging.getLogger("mqclient.session")

SessionStream = Stream[broker_pb.SessionRequest, broker_pb.SessionResponse]
Reply = Callable[[broker_pb.CommandAnswer], None]


class SessionHandler(Protocol):
    """Who says what the heartbeat holds, and who carries the commands out."""

    def heartbeat(self, address: str) -> broker_pb.Heartbeat:
        """The whole truth about this client, as far as it concerns the broker there."""

    def session_opened(self, address: str) -> None:
        """The broker has answered the first heartbeat of a stream: it knows the groups that it has not refused."""

    def session_broke(self, address: str) -> None:
        """The stream has ended, and the client did not end it; it will be opened again."""

    def heartbeat_answered(self) -> None:
        """`answer` has changed."""

    def command(self, address: str, response: broker_pb.SessionResponse, reply: Reply) -> None:
        """The broker wants something of this client, and, perhaps, an answer by `reply`, now or later. Raises nothing.

        An answer whose stream is gone is dropped: nobody waits for it any more.
        """


class Session:
    """Keeps one Session stream to `address` open."""

    def __init__(
        self, address: str, channel: Channel, handler: SessionHandler, config: ClientConfig, clock: Clock
    ) -> None:
        self.answer: broker_pb.HeartbeatAck | None = None
        self.id_in_use: broker_pb.HeartbeatAck | None = None  # the last answer, while it says so
        self._address = address
        self._channel = channel
        self._handler = handler
        self._config = config
        self._clock = clock
        self._tasks = BackgroundTasks(clock)
        self._heartbeat_due = False
        self._replies: deque[broker_pb.CommandAnswer] = deque()  # of the stream that is open
        self._something_due = asyncio.Event()
        self._unanswered = 0  # heartbeats of the stream that is open
        self._stream: SessionStream | None = None
        self._is_known = False  # to the broker, by a heartbeat of the stream that is open
        self._ended = asyncio.Event()
        self._closing = False

    def start(self) -> None:
        self._tasks.start(self._run(), f"mqclient session {self._address}")

    def heartbeat_now(self) -> None:
        """Something of the heartbeat has changed, or it is time for the next one."""
        self.answer = None
        self._heartbeat_due = True
        self._something_due.set()

    async def say_goodbye(self) -> None:
        """End the stream in order, so that the broker sees the client leave at once; return when it has ended.

        A silent broker ends nothing: the caller limits the time.
        """
        self._closing = True
        if self._stream is not None and self._is_known:
            await self._stream.done_writing()
            await self._ended.wait()

    async def close(self) -> None:
        """Break off what is open, and leave nothing behind."""
        self._closing = True
        if self._stream is not None:
            self._stream.cancel()
        await self._tasks.close()

    async def _run(self) -> None:
        backoff_s = self._config.reconnect_backoff_min_s
        while not self._closing:
            try:
                await self._run_stream()
            except MQClientError as error:
                logger.info("the session with %s broke: %s", self._address, error)
            if self._is_known:
                backoff_s = self._config.reconnect_backoff_min_s
            self._is_known = False
            self.answer = None
            self._ended.set()
            if not self._closing:
                self._handler.session_broke(self._address)
                await self._clock.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, self._config.reconnect_backoff_max_s)

    async def _run_stream(self) -> None:
        stream = self._stream = self._channel.stream(SESSION)
        self._ended.clear()
        self._unanswered = 0
        self._heartbeat_due = True
        self._replies.clear()
        reply = partial(self._reply, stream)
        writer = self._tasks.start(self._write(stream), f"mqclient session writer {self._address}")
        try:
            while (response := await stream.read()) is not None:
                if response.WhichOneof("command") == "heartbeat_ack":
                    self._answered(response.heartbeat_ack)
                else:
                    self._handler.command(self._address, response, reply)
        finally:
            writer.cancel()
            stream.cancel()
        if not self._closing:
            raise ConnectionLostError(f"the broker at {self._address} ended the session")

    def _reply(self, stream: SessionStream, answer: broker_pb.CommandAnswer) -> None:
        if stream is self._stream:
            self._replies.append(answer)
            self._something_due.set()
        else:
            logger.info("the answer to command %d of %s comes too late", answer.command_id, self._address)

    async def _write(self, stream: SessionStream) -> None:
        try:
            while not self._closing:
                self._something_due.clear()
                if self._heartbeat_due:
                    self._heartbeat_due = False
                    self._unanswered += 1
                    await stream.write(broker_pb.SessionRequest(heartbeat=self._handler.heartbeat(self._address)))
                while self._replies:
                    await stream.write(broker_pb.SessionRequest(command_answer=self._replies.popleft()))
                await self._something_due.wait()
        except MQClientError as error:
            logger.debug("nothing can be written to %s, the reader reopens: %s", self._address, error)
            stream.cancel()

    def _answered(self, ack: broker_pb.HeartbeatAck) -> None:
        self._unanswered -= 1
        self.id_in_use = ack if ack.code == common_pb.CLIENT_ID_IN_USE else None
        if self._unanswered <= 0 and not self._heartbeat_due:
            self.answer = ack
        if ack.code != common_pb.SUCCESS:
            logger.warning("%s refused a heartbeat: %s: %s", self._address, code_name(ack.code), ack.remark)
        if not self._is_known:
            self._is_known = True
            self._handler.session_opened(self._address)
        self._handler.heartbeat_answered()
