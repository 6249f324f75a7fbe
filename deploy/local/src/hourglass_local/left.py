"""The folder of a demonstration or a load: held by one program at a time, what is left in it, and its queue reopened.

Emptied at the start of a run, kept afterwards. `left.json` says how its brokers can be started again: written as soon
as everything runs, so that an interrupted run can be looked at too, and once more at the end, with what the brokers
have measured of their own lateness. Paths in it are relative: the folder may be moved.

`python -m hourglass_local reopen` runs a name server and the brokers on these stores, on free ports, with nothing of
the shop, for as long as a command runs. Invariants: nothing is deleted in a folder that does not have our mark, so that
a mistyped path deletes no files; no demonstration empties a folder that is open; when the command has ended, everything
has ended. The brokers change in a store what any start of a broker changes; they delete nothing, however old it is.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

from hourglass_local.cluster import Cluster
from hourglass_local.cluster_shop import ORDERS, PAYMENTS, SQLITE
from hourglass_local.ports import LOOPBACK, free_ports
from hourglass_local.process import ManagedProcess
from hourglass_local.queue_processes import broker, name_server, stopped_at_the_end, wait_known
from hourglass_local.waiting import NotInTimeError, alongside, eventually
from mqclient import Admin
from orders.domain.delay_levels import PAYMENT_WINDOW_LEVEL
from osenv import RealDisk
from osenv.process import stop_event

MARK = ".hourglass-demo"
LEFT_FILE = "left.json"
DELIVERY_MAX_S = 5.0  # of what is due
WATCH_INTERVAL_S = 0.5
COMMAND_STOP_TIMEOUT_S = 60.0
NAMESRV, SOURCE, LATENESS = "{namesrv}", "{source}", "{lateness}"

# What has been left is kept, also where its files are older than a broker keeps them (72 hours).
KEEP_ALL = {"fileReservedTime": str(24 * 3650)}

PLACEHOLDERS = (NAMESRV, SOURCE, "{orders}", "{payments}", LATENESS)


class FolderError(RuntimeError):
    """The folder cannot be used; the message says why."""


@contextmanager
def empty_folder(folder: Path) -> Iterator[None]:
    """Empty `folder` and hold it. Raises FolderError."""
    mark = folder / MARK
    try:
        if folder.exists() and any(folder.iterdir()) and not mark.exists():
            raise FolderError(f"{folder} is not empty and not the folder of an earlier demonstration; choose another")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(f"{folder} cannot be used: {error}") from error
    with held_folder(folder):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path != mark:
                path.unlink()
        yield


@contextmanager
def held_folder(folder: Path) -> Iterator[None]:
    """Hold `folder` as it is, so that no other process empties or opens it. Raises FolderError."""
    try:
        lock = RealDisk().lock(folder / MARK)
    except OSError as error:
        raise FolderError(f"{folder} is being used by another demonstration") from error
    try:
        yield
    finally:
        lock.release()


class NothingLeftError(RuntimeError):
    """The folder has nothing that could be opened again; the message says why."""


@dataclass(frozen=True, slots=True)
class LevelLateness:
    """Delivered minus due of one delay level in milliseconds, by the broker's own count since it started.

    Quantiles are upper bounds, at most an eighth too high.
    """

    delivered: int
    p50: int
    p99: int
    max: int


@dataclass(frozen=True, slots=True)
class Left:
    """`source` is the name of this queue, which no other has. `brokers` are names of masters, whose stores lie beside
    the file; `settings` are those of all of them. `databases` are SQLite files by service; none where they were on a
    PostgreSQL server, which has gone.
    """

    source: str
    brokers: Sequence[str]
    settings: Mapping[str, str]
    databases: Mapping[str, str] = field(default_factory=dict)
    lateness_ms_by_level: Mapping[str, LevelLateness] = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: Cluster) -> Left:
        """What this cluster leaves. A store can only be read with the size of its log's files, and the level of a
        waiting message only with the table of levels.
        """
        files = {name: url.removeprefix(SQLITE) for name, url in cluster.shop.database_urls.items()}
        return cls(
            source=uuid.uuid4().hex,
            brokers=[broker.name for broker in cluster.brokers],
            settings={
                "messageDelayLevel": cluster.delay_levels,
                "mapedFileSizeCommitLog": str(cluster.commit_log_file_bytes),
            },
            databases={name: Path(file).name for name, file in files.items() if _is_in(cluster.folder, file)},
        )

    def write(self, folder: Path) -> None:
        """Raises OSError."""
        (folder / LEFT_FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    def database_url(self, folder: Path, service: str) -> str:
        """Of the service's database; empty when it was not left."""
        return f"{SQLITE}{folder.absolute() / self.databases[service]}" if service in self.databases else ""


def read_left(folder: Path) -> Left:
    """What was left in `folder`. Raises NothingLeftError."""
    path = folder / LEFT_FILE
    if not folder.is_dir():
        raise NothingLeftError(f"{folder} is not there; `make demo` or `make load` leaves one")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        levels = document["lateness_ms_by_level"]
        left = Left(
            source=document["source"],
            brokers=document["brokers"],
            settings=document["settings"],
            databases=document["databases"],
            lateness_ms_by_level={level: LevelLateness(**lateness) for level, lateness in levels.items()},
        )
    except FileNotFoundError:
        raise NothingLeftError(
            f"{folder} has no {LEFT_FILE}: no demonstration or load has got as far as to leave something there"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NothingLeftError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    for name in left.brokers:
        if not (folder / f"{name}-store").is_dir():
            raise NothingLeftError(f"{folder} has no {name}-store any more: the broker's messages are not there")
    return left


async def lateness_by_level(queue_url: str, timeouts_within_s: float) -> dict[str, LevelLateness]:
    """Of each delay level from which something was delivered; "-1" is the timer. Raises MQClientError.

    Asked when no timeout of an order waits any more, those of paid orders included, or after `timeouts_within_s`: what
    is delivered afterwards would be in the messages and not in the count. Of several brokers, those of the one that
    delivered most.
    """
    found: dict[str, LevelLateness] = {}
    async with Admin(queue_url) as admin:
        with suppress(NotInTimeError):
            await eventually(partial(_nothing_waits, admin, PAYMENT_WINDOW_LEVEL), timeouts_within_s)
        for status in await admin.broker_statuses():
            for one in status.delay_levels:
                name, before = str(one.level), found.get(str(one.level))
                if one.delivered > (0 if before is None else before.delivered):
                    found[name] = LevelLateness(
                        one.delivered, one.lateness_p50_ms, one.lateness_p99_ms, one.lateness_max_ms
                    )
    return found


async def measured_lateness(cluster: Cluster) -> dict[str, LevelLateness]:
    """As `lateness_by_level`, of a cluster without further orders."""
    return await lateness_by_level(cluster.url, cluster.payment_window_ms / 1000 + DELIVERY_MAX_S)


async def _nothing_waits(admin: Admin, level: int) -> bool:
    return not any(
        one.waiting for status in await admin.broker_statuses() for one in status.delay_levels if one.level == level
    )


def _is_in(folder: Path, file: str) -> bool:
    return Path(file).parent == folder


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
