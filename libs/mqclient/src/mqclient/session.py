"""The session with one broker: heartbeats go up, commands come down (MISSION L8, L11).

Invariants: the first thing on every opened stream is a whole heartbeat; a broken stream is opened again until the
session is closed, with a backoff that doubles and starts anew once the broker has answered.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.background import BackgroundTasks, wait_event
from mqclient.client_config import ClientConfig
from mqclient.errors import ConnectionLostError, MQClientError, code_name
from mqclient.transport import Channel, Stream
from mqclient.transport.methods import SESSION
from osenv import Clock

logger = logging.getLogger("mqclient.session")

SessionStream = Stream[broker_pb.SessionRequest, broker_pb.SessionResponse]

GOODBYE_TIMEOUT_S = 1.0  # how long the broker may take to end the stream after the client has


class SessionHandler(Protocol):
    """Who says what the heartbeat holds, and who carries the commands out."""

    def heartbeat(self) -> broker_pb.Heartbeat: ...

    def session_ready(self, address: str) -> None: ...

    def consumer_ids_changed(self, group: str) -> None: ...

    def check_transaction(self, address: str, check: broker_pb.CheckTransaction) -> None: ...


class Session:
    """Keeps one Session stream to `address` open."""

    def __init__(
        self, address: str, channel: Channel, handler: SessionHandler, config: ClientConfig, clock: Clock
    ) -> None:
        self._address = address
        self._channel = channel
        self._handler = handler
        self._config = config
        self._clock = clock
        self._tasks = BackgroundTasks(clock)
        self._heartbeat_due = asyncio.Event()
        self._stream: SessionStream | None = None
        self._ended = asyncio.Event()
        self._closing = False
        self.ready = asyncio.Event()

    def start(self) -> None:
        self._tasks.start(self._run(), f"mqclient session {self._address}")

    def heartbeat_now(self) -> None:
        """Something of the heartbeat has changed."""
        self._heartbeat_due.set()

    async def close(self) -> None:
        """End the stream in order, so that the broker sees the client leave at once."""
        self._closing = True
        if self._stream is not None and self.ready.is_set():
            await self._stream.done_writing()
            await wait_event(self._clock, self._ended, GOODBYE_TIMEOUT_S)
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
            if self.ready.is_set():
                backoff_s = self._config.reconnect_backoff_min_s
            self.ready.clear()
            self._ended.set()
            if not self._closing:
                await self._clock.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, self._config.reconnect_backoff_max_s)

    async def _run_stream(self) -> None:
        stream = self._stream = self._channel.stream(SESSION)
        self._ended.clear()
        writer = self._tasks.start(self._write_heartbeats(stream), f"mqclient heartbeat {self._address}")
        try:
            while (response := await stream.read()) is not None:
                self._handle(response)
        finally:
            writer.cancel()
            stream.cancel()
        if not self._closing:
            raise ConnectionLostError(f"the broker at {self._address} ended the session")

    async def _write_heartbeats(self, stream: SessionStream) -> None:
        try:
            while not self._closing:
                self._heartbeat_due.clear()
                await stream.write(broker_pb.SessionRequest(heartbeat=self._handler.heartbeat()))
                await wait_event(self._clock, self._heartbeat_due, self._config.heartbeat_interval_s)
        except MQClientError as error:
            logger.debug("the heartbeat to %s was not written, the reader reopens: %s", self._address, error)
            stream.cancel()

    def _handle(self, response: broker_pb.SessionResponse) -> None:
        command = response.WhichOneof("command")
        if command == "consumer_ids_changed":
            self._handler.consumer_ids_changed(response.consumer_ids_changed.group)
        elif command == "check_transaction":
            self._handler.check_transaction(self._address, response.check_transaction)
        elif command == "heartbeat_ack":
            ack = response.heartbeat_ack
            if ack.code != common_pb.SUCCESS:
                logger.warning("%s refused a heartbeat: %s: %s", self._address, code_name(ack.code), ack.remark)
            elif not self.ready.is_set():
                self.ready.set()
                self._handler.session_ready(self._address)
        else:
            logger.warning("%s sent a command that this version does not know", self._address)
