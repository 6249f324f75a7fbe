"""`python -m hourglass_local reopen`: the queue that a demonstration or load has left, for as long as a command runs.

A name server and the brokers on the stores that were left, on free ports, with nothing of the shop. Invariants: the
folder is held, so that no demonstration empties it meanwhile; when the command has ended, everything has ended. The
brokers change in a store what any start of a broker changes; they delete nothing, however old it is.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

from hourglass_local.cluster_shop import ORDERS, PAYMENTS
from hourglass_local.demo import held_folder
from hourglass_local.left import LEFT_FILE, Left, read_left
from hourglass_local.ports import LOOPBACK, free_ports
from hourglass_local.process import ManagedProcess
from hourglass_local.queue_processes import broker, name_server, stopped_at_the_end, wait_known
from hourglass_local.waiting import alongside
from osenv.process import stop_event

WATCH_INTERVAL_S = 0.5
COMMAND_STOP_TIMEOUT_S = 60.0
# What has been left is kept, also where its files are older than a broker keeps them (72 hours).
KEEP_ALL = {"fileReservedTime": str(24 * 3650)}
NAMESRV, SOURCE, LATENESS = "{namesrv}", "{source}", "{lateness}"
PLACEHOLDERS = (NAMESRV, SOURCE, "{orders}", "{payments}", LATENESS)


@asynccontextmanager
async def reopened(folder: Path) -> AsyncIterator[tuple[str, list[ManagedProcess]]]:
    """Inside, the name server at this host:port knows the brokers of what was left in `folder`.

    Raises NothingLeftError, FolderError, and ProcessError.
    """
    left = read_left(folder)
    with held_folder(folder):
        server_port, *ports = free_ports(1 + len(left.brokers))
        server, brokers = _processes(folder.absolute(), left, server_port, ports)  # noqa: ASYNC240 - asks no disk
        async with stopped_at_the_end(server, *brokers):
            await server.start()
            for one in brokers:
                await one.start()
            await wait_known(server_port, *ports)
            yield f"{LOOPBACK}:{server_port}", [server, *brokers]


async def run_reopened(folder: Path, command: Sequence[str]) -> int:
    """The command's exit code, 128 + n after signal n. SIGINT and SIGTERM are passed on to it, as SIGTERM.

    In the command {namesrv} is the name server's host:port, {source} a name that only this queue has, {orders} and
    {payments} the URLs of the databases that were left (nothing where there are none), and {lateness} the file with
    what the brokers said of their own lateness.

    Raises NothingLeftError, FolderError, ProcessError, and OSError for a command that cannot be started.
    """
    asked = stop_event()
    async with reopened(folder) as (address, processes):
        values = placeholders(folder, read_left(folder), address)
        return await alongside(_run([_filled(part, values) for part in command], asked), _watch(processes))


def placeholders(folder: Path, left: Left, address: str) -> dict[str, str]:
    """What stands for each of PLACEHOLDERS."""
    urls = {f"{{{service}}}": left.database_url(folder, service) for service in (ORDERS, PAYMENTS)}
    return {NAMESRV: address, SOURCE: left.source, LATENESS: str((folder / LEFT_FILE).absolute()), **urls}


def _processes(
    folder: Path, left: Left, server_port: int, ports: Sequence[int]
) -> tuple[ManagedProcess, list[ManagedProcess]]:
    settings, environment = {**left.settings, **KEEP_ALL}, _silent()
    brokers = [
        broker(folder, name, port, [server_port], settings=settings, environment=environment)
        for name, port in zip(left.brokers, ports, strict=True)
    ]
    return name_server(folder, server_port, environment=environment), brokers


def _silent() -> dict[str, str]:
    """OpenTelemetry's variables are the command's; it may have a page of metrics at a port of its own."""
    return {name: "" for name in os.environ if name.startswith("OTEL_")}


def _filled(part: str, values: dict[str, str]) -> str:
    for placeholder, value in values.items():
        part = part.replace(placeholder, value)
    return part


async def _run(command: Sequence[str], asked: asyncio.Event) -> int:
    # In the group of this process: Ctrl-C reaches both, and the command ends as it does without us.
    process = await asyncio.create_subprocess_exec(*command)
    ended, stopping = asyncio.create_task(process.wait()), asyncio.create_task(asked.wait())
    try:
        await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if process.returncode is None:
            await _end(process)
    code = await ended
    return code if code >= 0 else 128 - code


async def _end(process: asyncio.subprocess.Process) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), COMMAND_STOP_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()


async def _watch(processes: Sequence[ManagedProcess]) -> NoReturn:
    while True:
        for process in processes:
            process.check()
        await asyncio.sleep(WATCH_INTERVAL_S)
