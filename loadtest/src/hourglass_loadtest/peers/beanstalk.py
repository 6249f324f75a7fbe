"""beanstalkd by its text protocol, a few lines of which do for this: put, reserve, delete, many under way.

It answers the commands of a connection in their order. Its delays are whole seconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from hourglass_loadtest.peers.hourglass_queue import python_client
from hourglass_loadtest.peers.peer import (
    CALLS,
    QUEUE,
    Connection,
    Deliver,
    PeerError,
    Program,
    listens,
    missing_programs,
    output_of,
)
from hourglass_local.ports import LOOPBACK, free_ports

TIME_TO_RUN_S = 120
RESERVED_MAX = 64
NOW = b"reserve-with-timeout 0\r\n"


class BeanstalkPeer:
    """One server with a log, which it syncs every 50 ms as it does by default, or with every write."""

    window, delays = CALLS, True

    def __init__(self, name: str, *, durable: bool) -> None:
        self.name, self.durable = name, durable
        self.settings: Mapping[str, str] = {"log": "yes", "sync": "every write (-f0)" if durable else "every 50 ms"}
        self._program: Program | None = None

    def missing(self) -> str | None:
        return missing_programs("beanstalkd")

    async def start(self, folder: Path) -> str:
        (port,) = free_ports(1)
        command = [
            "beanstalkd",
            "-l",
            LOOPBACK,
            "-p",
            str(port),
            "-b",
            str(folder),
            "-f",
            "0" if self.durable else "50",
        ]
        self._program = Program("beanstalkd", command, folder)
        await self._program.ready(lambda: listens(port))
        return f"{LOOPBACK}:{port}"

    def pids(self) -> list[int]:
        return [self._program.pid] if self._program else []

    async def stop(self) -> None:
        if self._program is not None:
            await self._program.stop()

    def client(self, address: str, seconds: float) -> list[str]:
        return python_client(self.name, address, seconds)

    def versions(self) -> dict[str, str]:
        return {"server": output_of("beanstalkd", "-v"), "client": "of this benchmark, on asyncio"}


class BeanstalkProtocol(asyncio.Protocol):
    """Commands and their answers, in order. An answer is its first line, and the body that some have."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._waiting: deque[asyncio.Future[tuple[list[bytes], bytes]]] = deque()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without being a subclass

    def connection_lost(self, error: Exception | None) -> None:
        while self._waiting:
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(PeerError(f"beanstalkd closed the connection: {error}"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        start = 0
        while (end := self._buffer.find(b"\r\n", start)) >= 0:
            words, body = bytes(self._buffer[start:end]).split(b" "), b""
            end += 2
            if words[0] == b"RESERVED":
                size = int(words[2])
                if len(self._buffer) < end + size + 2:
                    break
                body = bytes(self._buffer[end : end + size])
                end += size + 2
            start = end
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_result((words, body))
        del self._buffer[:start]

    def call(self, command: bytes) -> asyncio.Future[tuple[list[bytes], bytes]]:
        """The answer to come."""
        if self._transport is None or self._transport.is_closing():
            raise PeerError("the connection to beanstalkd is closed")
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._transport.write(command)
        return answer

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()


class _Connection:
    def __init__(self, protocol: BeanstalkProtocol) -> None:
        self._protocol = protocol

    async def produce(self, body: bytes) -> None:
        await self._put(body, 0)

    async def produce_together(self, bodies: Sequence[bytes]) -> None:
        raise PeerError("beanstalkd takes messages one by one")

    async def produce_delayed(self, body: bytes, delay_ms: int) -> None:
        await self._put(body, round(delay_ms / 1000))

    async def _put(self, body: bytes, delay_s: int) -> None:
        words, _ = await self._protocol.call(b"put 0 %d %d %d\r\n%b\r\n" % (delay_s, TIME_TO_RUN_S, len(body), body))
        if words[0] != b"INSERTED":
            raise PeerError(f"beanstalkd answered {words}")

    async def consume(self, deliver: Deliver) -> None:
        """A request that waits holds up its connection: only one waits, and more are under way while more is there."""
        wanted = RESERVED_MAX
        while True:
            answers = await asyncio.gather(*(self._protocol.call(NOW) for _ in range(wanted)))
            taken = [answer for answer in answers if answer[0][0] == b"RESERVED"]
            if not taken:
                taken = [await self._protocol.call(b"reserve\r\n")]
            deliver([body for _, body in taken])
            deletes = await asyncio.gather(*(self._protocol.call(b"delete %b\r\n" % words[1]) for words, _ in taken))
            if any(words != [b"DELETED"] for words, _ in deletes):
                raise PeerError(f"beanstalkd answered {deletes}")
            wanted = min(RESERVED_MAX, 2 * len(taken))

    async def close(self) -> None:
        self._protocol.close()


async def connect(address: str) -> Connection:
    """One connection, which uses and watches the tube."""
    host, _, port = address.partition(":")
    _, protocol = await asyncio.get_running_loop().create_connection(BeanstalkProtocol, host, int(port))
    for command in (b"use %b\r\n", b"watch %b\r\n"):
        await protocol.call(command % QUEUE.encode())
    return _Connection(protocol)
