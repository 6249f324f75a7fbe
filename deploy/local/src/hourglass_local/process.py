"""One managed child process: started, watched, measured, asked whether it serves, and stopped by its own process id.

Invariants: at most one process runs at a time; `was_killed_to_stop` is set only when SIGTERM was not enough, never for
a kill on purpose; the usage counts every run since the first start.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
import httpx
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from hourglass.mq.v1 import admin_service_pb2, admin_service_pb2_grpc, name_service_pb2, name_service_pb2_grpc
from hourglass_local.waiting import NotInTimeError, eventually

READY_TIMEOUT_S = 120.0  # patience with a busy machine: a start takes five seconds on an idle one
STOP_TIMEOUT_S = 15.0  # orders takes ten seconds at the most, and the others less
READY_INTERVAL_S = 0.05
TAIL_LINES = 15
MIB = 1024 * 1024
PROBE_TIMEOUT_S = 1.0
# A subchannel shared with other channels would share their back-off, and a server that is back would seem away.
_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)
# Of a connection that outlives one question: a broker that is not there yet is tried again at once.
_QUICK_RECONNECT = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 100))

Check = Callable[[], Awaitable[bool]]


class ProcessError(RuntimeError):
    """A process is not as it has to be; the message has the end of its log."""


class ProcessDiedError(ProcessError):
    """The process has ended by itself."""


class ProcessNotReadyError(ProcessError):
    """The process runs, and is not ready in time."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used: the largest resident memory that was seen, and processor time."""

    rss_peak_bytes: int = 0
    cpu_seconds: float = 0.0


class ManagedProcess:
    """`python -m module *arguments` in a session of its own; standard output and error go to `log_path`."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str] = (),
        *,
        ready: Check,
        log_path: Path,
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """`environment` is added to this process's own. `ready` says whether the process can be used. `prefix` is a
        command that runs it, by becoming it: `ip netns exec NAME`.
        """
        self.name = name
        self.log_path = log_path
        self.pids: list[int] = []
        self.was_killed_to_stop = False
        self._command = [*prefix, sys.executable, "-m", "hourglass_local.child", module, *arguments]
        self._environment = dict(environment or {})
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None
        self._meter: psutil.Process | None = None
        self._rss_peak_bytes = 0
        self._cpu_seconds_before = 0.0
        self._cpu_seconds = 0.0
        self._is_end_expected = True

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Of the last run; -n after signal n, None while it runs and before the first start."""
        return None if self._process is None else self._process.poll()

    @property
    def pid(self) -> int:
        """Raises ProcessError unless the process has been started."""
        if not self.pids:
            raise ProcessError(f"{self.name} has not been started")
        return self.pids[-1]

    @property
    def usage(self) -> Usage:
        """As of the last sample."""
        return Usage(self._rss_peak_bytes, self._cpu_seconds_before + self._cpu_seconds)

    async def start(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start, also after an end, and wait until it is ready. Raises ProcessDiedError, ProcessNotReadyError."""
        self.launch()
        await self.wait_ready(timeout_s)

    def launch(self) -> None:
        """Start without waiting. Raises ProcessError when it runs already."""
        if self.running:
            raise ProcessError(f"{self.name} runs already, as process {self.pid}")
        self._release()
        self._cpu_seconds_before, self._cpu_seconds = self._cpu_seconds_before + self._cpu_seconds, 0.0
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,  # the leash, see child.py
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | self._environment,
                start_new_session=True,  # Ctrl-C in the terminal is ours alone; the order of stopping is ours too
            )
        self.pids.append(self._process.pid)
        self._is_end_expected = False
        self._meter = psutil.Process(self._process.pid)

    async def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when the ready check says so. Raises ProcessDiedError at once, ProcessNotReadyError in the end."""

        async def check() -> bool:
            self.check()
            return await self._ready()

        try:
            await eventually(check, timeout_s, interval_s=READY_INTERVAL_S)
        except NotInTimeError as error:
            raise ProcessNotReadyError(f"{self.name} is not ready after {timeout_s:g} s; {self._log_end()}") from error

    def check(self) -> None:
        """Raises ProcessDiedError when the process has ended by itself."""
        if not self._is_end_expected and not self.running:
            self._release()
            raise ProcessDiedError(f"{self.name} has ended with code {self.exit_code}; {self._log_end()}")

    def sample(self) -> None:
        """Take a measurement, if it runs."""
        if self._meter is None:
            return
        try:
            with self._meter.oneshot():
                memory, times = self._meter.memory_info(), self._meter.cpu_times()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            return  # it has ended: the last measurement stands
        self._rss_peak_bytes = max(self._rss_peak_bytes, memory.rss)
        self._cpu_seconds = times.user + times.system

    def give_up(self) -> None:
        """Its end is known: `check` raises no more until it is started again. Harmless when it runs."""
        self._is_end_expected = not self.running

    async def terminate(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Ask it to stop and wait; kill it when it does not, which is then on record. Harmless when it has ended."""
        self.sample()
        if self.running:
            self._is_end_expected = True
            self._signal(signal.SIGTERM)
            if not await self._ended_within(timeout_s):
                self.was_killed_to_stop = True
                await self.kill()
        self._release()

    async def kill(self) -> None:
        """SIGKILL, on purpose, and wait for the end."""
        self.sample()
        self._is_end_expected = True
        self._signal(signal.SIGKILL)
        if not await self._ended_within(STOP_TIMEOUT_S):
            raise ProcessError(f"{self.name} is still there {STOP_TIMEOUT_S:g} s after SIGKILL, as process {self.pid}")
        self._release()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing, until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def hang_up(self) -> None:
        """SIGHUP: it reads its configuration again, if it is one that does."""
        self._signal(signal.SIGHUP)

    def tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines of the log."""
        try:
            text = self.log_path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)  # does nothing when the process has ended, so no other pid is ever met

    async def _ended_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.running:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.01)
        return True

    def _release(self) -> None:
        """Give the leash back once the process has ended."""
        if self._process is not None and self._process.stdin is not None and not self.running:
            self._process.stdin.close()

    def _log_end(self) -> str:
        tail = self.tail()
        return f"the end of {self.log_path}:\n{tail}" if tail else f"its log {self.log_path} is empty"


async def grpc_serving(address: str) -> bool:
    """Whether the server at host:port says SERVING for all that it does."""
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=PROBE_TIMEOUT_S
            )
        except grpc.aio.AioRpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def registered_brokers(name_server: str) -> set[str]:
    """Addresses of the brokers that the name server at host:port knows; none when it does not answer."""
    async with grpc.aio.insecure_channel(name_server, options=_OPTIONS) as channel:
        try:
            answer = await name_service_pb2_grpc.NameServiceStub(channel).ListClusters(
                name_service_pb2.ListClustersRequest(), timeout=PROBE_TIMEOUT_S
            )
        except grpc.aio.AioRpcError:
            return set()
    return {address for broker in answer.brokers for address in broker.addresses.values()}


class ReplicaProbe:
    """Asks the broker at host:port again and again; an async context manager, which holds the connection."""

    def __init__(self, broker: str) -> None:
        self._channel = grpc.aio.insecure_channel(broker, options=(*_OPTIONS, *_QUICK_RECONNECT))
        self._stub = admin_service_pb2_grpc.AdminServiceStub(self._channel)

    async def status(self) -> admin_service_pb2.GetReplicaStatusResponse | None:
        """What it says of its replication; None when it does not answer."""
        request = admin_service_pb2.GetReplicaStatusRequest()
        try:
            return await self._stub.GetReplicaStatus(request, timeout=PROBE_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()


async def replica_status(broker: str) -> admin_service_pb2.GetReplicaStatusResponse | None:
    """What the broker at host:port says of its replication; None when it does not answer."""
    async with ReplicaProbe(broker) as probe:
        return await probe.status()


async def is_in_sync(replica: str) -> bool:
    """Whether the replica at host:port has heard from its master that it has everything."""
    status = await replica_status(replica)
    return status is not None and status.connected and status.in_sync


async def http_ready(client: httpx.AsyncClient, url: str) -> bool:
    """Whether GET `url` answers 200."""
    try:
        answer = await client.get(url, timeout=PROBE_TIMEOUT_S)
    except httpx.TransportError:
        return False
    return answer.status_code == httpx.codes.OK
