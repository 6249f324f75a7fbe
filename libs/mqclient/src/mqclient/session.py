"""The session with one broker: heartbeats go up, commands come down (MISSION L8, L11).

Invariants: the first thing on every opened stream is a whole heartbeat; a broken stream is opened again until the
session is closed, with a backoff that doubles and starts anew once the broker has accepted a heartbeat; `answer` is
what the broker says to the newest heartbeat, and None while it has not said anything to that one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.background import BackgroundTasks
from mqclient.client_config import ClientConfig
from mqclient.errors import ConnectionLostError, MQClientError, code_name
from mqclient.transport import Channel, Stream
from mqclient.transport.methods import SESSION
from osenv import Clock

logger = logging.getLogger("mqclient.session")

SessionStream = Stream[broker_pb.SessionRequest, broker_pb.SessionResponse]


class SessionHandler(Protocol):
    """Who says what the heartbeat holds, and who carries the commands out."""

    def heartbeat(self) -> broker_pb.Heartbeat:
        """The whole truth about this client."""

    def session_opened(self, address: str) -> None:
        """The broker has accepted the first heartbeat of a stream."""

    def heartbeat_answered(self) -> None:
        """`answer` has changed."""

    def command(self, address: str, response: broker_pb.SessionResponse) -> None:
        """The broker wants something of this client. Raises nothing."""


class Session:
    """Keeps one Session stream to `address` open."""

    def __init__(
        self, address: str, channel: Channel, handler: SessionHandler, config: ClientConfig, clock: Clock
    ) -> None:
        self.answer: broker_pb.HeartbeatAck | None = None
        self._address = address
        self._channel = channel
        self._handler = handler
        self._config = config
        self._clock = clock
        self._tasks = BackgroundTasks(clock)
        self._heartbeat_due = asyncio.Event()
        self._unanswered = 0  # heartbeats of the stream that is open
        self._stream: SessionStream | None = None
        self._accepted = False  # a heartbeat of the stream that is open
        self._ended = asyncio.Event()
        self._closing = False

    def start(self) -> None:
        self._tasks.start(self._run(), f"mqclient session {self._address}")

    def heartbeat_now(self) -> None:
        """Something of the heartbeat has changed, or it is time for the next one."""
        self.answer = None
        self._heartbeat_due.set()

    async def say_goodbye(self) -> None:
        """End the stream in order, so that the broker sees the client leave at once; return when it has ended.

        A silent broker ends nothing: the caller limits the time.
        """
        self._closing = True
        if self._stream is not None and self._accepted:
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
            if self._accepted:
                backoff_s = self._config.reconnect_backoff_min_s
            self._accepted = False
            self.answer = None
            self._ended.set()
            if not self._closing:
                await self._clock.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, self._config.reconnect_backoff_max_s)

    async def _run_stream(self) -> None:
        stream = self._stream = self._channel.stream(SESSION)
        self._ended.clear()
        self._unanswered = 0
        writer = self._tasks.start(self._write_heartbeats(stream), f"mqclient heartbeat {self._address}")
        try:
            while (response := await stream.read()) is not None:
                if response.WhichOneof("command") == "heartbeat_ack":
                    self._answered(response.heartbeat_ack)
                else:
                    self._handler.command(self._address, response)
        finally:
            writer.cancel()
            stream.cancel()
        if not self._closing:
            raise ConnectionLostError(f"the broker at {self._address} ended the session")

    async def _write_heartbeats(self, stream: SessionStream) -> None:
        try:
            while not self._closing:
                self._heartbeat_due.clear()
                self._unanswered += 1
                await stream.write(broker_pb.SessionRequest(heartbeat=self._handler.heartbeat()))
                await self._heartbeat_due.wait()
        except MQClientError as error:
            logger.debug("the heartbeat to %s was not written, the reader reopens: %s", self._address, error)
            stream.cancel()

    def _answered(self, ack: broker_pb.HeartbeatAck) -> None:
        self._unanswered -= 1
        if self._unanswered <= 0 and not self._heartbeat_due.is_set():
            self.answer = ack
        if ack.code != common_pb.SUCCESS:
            logger.warning("%s refused a heartbeat: %s: %s", self._address, code_name(ack.code), ack.remark)
        elif not self._accepted:
            self._accepted = True
            self._handler.session_opened(self._address)
        self._handler.heartbeat_answered()
