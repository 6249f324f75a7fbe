"""What a queue has to offer to be measured: a server in a scratch folder, and connections to it.

Invariants: `start` leaves nothing running when it raises; `stop` ends every process that `start` has started, by its
id, and may be called at any time; every server listens on loopback alone.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from hourglass_local.ports import LOOPBACK
from hourglass_local.waiting import NotInTimeError, eventually

QUEUE = "bench"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
LOG_END_CHARACTERS = 1_500
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/lib/rabbitmq/bin")

Deliver = Callable[[Sequence[bytes]], None]


class PeerError(RuntimeError):
    """A server or a connection did not do what it should; the message says what."""


class Connection(Protocol):
    """A client of the queue. One is used for producing, and another one for consuming."""

    async def produce(self, body: bytes) -> None:
        """Return when the server has acknowledged the message."""

    async def produce_together(self, bodies: Sequence[bytes]) -> None:
        """The same for several in one request; of peers whose window is TOGETHER."""

    async def produce_delayed(self, body: bytes, delay_ms: int) -> None:
        """Return when the server has acknowledged a message for later; of peers that delay."""

    async def consume(self, deliver: Deliver) -> None:
        """Hand on the bodies that the server delivers, and acknowledge each message, until cancelled."""

    async def close(self) -> None:
        """End the connection."""


Connect = Callable[[str], Awaitable[Connection]]

CALLS, TOGETHER = "calls", "together"  # how several messages are in flight: calls under way at once, or one request


class Peer(Protocol):
    """One queue with one set of settings."""

    name: str
    durable: bool  # on disk before the answer
    window: str
    delays: bool
    settings: Mapping[str, str]

    def missing(self) -> str | None:
        """Why it cannot be run on this machine, or None."""

    async def start(self, folder: Path) -> str:
        """Start the server with its files below `folder`; the address for `client`. Raises PeerError."""

    def pids(self) -> list[int]:
        """Of the processes that were started; those that they started are not listed."""

    async def stop(self) -> None:
        """End them. Harmless when they have ended."""

    def client(self, address: str, seconds: float) -> list[str]:
        """The command that measures; it writes the events of load.py."""

    def versions(self) -> dict[str, str]:
        """Of server and client."""


def which(program: str) -> str | None:
    """Its path, also where only root's PATH looks."""
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS]))


def missing_programs(*programs: str) -> str | None:
    """For `Peer.missing`."""
    missing = [program for program in programs if which(program) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def output_of(*command: str) -> str:
    """The first line of what a program prints. Raises PeerError."""
    program = which(command[0])
    if program is None:
        raise PeerError(f"not installed: {command[0]}")
    run = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False, timeout=START_TIMEOUT_S)
    return (run.stdout or run.stderr).strip().partition("\n")[0]


class Program:
    """One process of a server, in a session of its own; its output goes to `folder`/`name`.log.

    The kernel asks it to stop when this process dies, however it dies.
    """

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        program = which(command[0])
        if program is None:
            raise PeerError(f"not installed: {command[0]}")
        self._name = name
        self._log = folder / f"{name}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", program, *command[1:]],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=os.environ | dict(environment or {}), start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raises PeerError when it has ended."""
        if (code := self._process.poll()) is not None:
            end = self._log.read_text(errors="replace")[-LOG_END_CHARACTERS:]
            raise PeerError(f"{self._name} ended with code {code}: {end}")

    async def ready(self, check: Callable[[], Awaitable[bool]]) -> None:
        """Return when `check` says so. Raises PeerError when it ends before, or is not ready in time."""

        async def still() -> bool:
            self.check()
            return await check()

        try:
            await eventually(still, START_TIMEOUT_S, f"{self._name} is ready", interval_s=0.1)
        except NotInTimeError as error:
            end = self._log.read_text(errors="replace")[-LOG_END_CHARACTERS:]
            raise PeerError(f"{error}: {end}") from error

    async def ended(self) -> None:
        """Return when it has ended well. Raises PeerError when it has not, or not in time."""
        try:
            await eventually(lambda: self._process.poll() is not None, START_TIMEOUT_S, f"{self._name} has ended")
        except NotInTimeError as error:
            raise PeerError(str(error)) from error
        finally:
            await self.stop()
        if self._process.returncode:
            self.check()

    async def stop(self) -> None:
        """SIGTERM to it, and SIGKILL to its session when that is not enough."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                await asyncio.to_thread(self._process.wait, STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                await asyncio.to_thread(self._process.wait)


async def listens(port: int) -> bool:
    """Whether a connection to the port of this machine is taken."""
    try:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return False
    writer.close()
    return True
