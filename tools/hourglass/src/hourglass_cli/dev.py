"""`hourglass dev`: a name server and a broker in one process, for developers of applications.

Both are the production servers on one event loop. The store is a temporary folder that ends with the process, or the
folder of --store, which stays.

Invariant: what is printed as ready can be used: the name server serves, and it knows the broker.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read on import; a port in use is explained by us, in one sentence

import grpc

import telemetry
from hourglass.mq.v1 import name_service_pb2, name_service_pb2_grpc
from mq_broker.app import serve as serve_broker
from mq_broker.config import FORMAT, BrokerConfig
from mq_namesrv.app import NameServer, StartError
from mq_namesrv.config import NamesrvConfig
from mqproto.conf import ConfigError
from mqproto.config_source import EXIT_BAD_CONFIGURATION, ConfigSource, Started, parse_assignments
from mqproto.names import Address
from osenv import RealClock

if sys.platform == "win32":
    from asyncio import run
else:
    from uvloop import run

SERVICE = "hourglass-dev"
NAME_SERVER_PORT, BROKER_PORT = 9876, 10911
EXIT_STOPPED, EXIT_FAILED = 0, 1
READY_TIMEOUT_S, READY_INTERVAL_S = 30.0, 0.01
# What differs from a broker of its own: no replica, small files, and a disk that others fill too. key=value wins.
SETTINGS: Mapping[str, str] = {
    "haListenPort": "0",
    "mappedFileSizeCommitLog": str(64 * 1024 * 1024),  # 1 GiB by default, allocated at every start
    "diskFreeBytesEnough": str(256 * 1024 * 1024),  # a broker that has a disk for itself deletes messages at 85 %
    "diskSpaceCleanForciblyRatio": "97",
    "diskSpaceWarningLevelRatio": "98",
    "logLevel": "WARNING",
}


class NotReadyError(RuntimeError):
    """The broker has not registered in time; the message says so."""


def main(arguments: list[str] | None = None) -> int:
    """Serve until Ctrl-C or SIGTERM; returns 0 stopped as asked, 1 failed, 2 bad configuration, 3 the disk failed."""
    options = _parser().parse_args(arguments)
    with _store(options.store) as store:
        try:
            settings = {
                "listenPort": str(options.broker_port),
                "storePathRootDir": str(store),
                **SETTINGS,
                **parse_assignments(options.settings),
            }
            NamesrvConfig(listen_port=options.port)
            telemetry.configure(SERVICE, _started(settings).config.log_level)
        except (ConfigError, telemetry.TelemetryConfigError) as error:
            print(f"{SERVICE}: {error}", file=sys.stderr)
            return EXIT_BAD_CONFIGURATION
        try:
            return run(_serve(options, settings))
        except (StartError, NotReadyError) as error:
            print(f"{SERVICE}: {error}", file=sys.stderr)
            return EXIT_FAILED
        finally:
            telemetry.shutdown()


def _started(settings: Mapping[str, str]) -> Started[BrokerConfig]:
    """Raises ConfigError."""
    source = ConfigSource(FORMAT, options=settings)
    return Started(source, *source.read())


async def _serve(options: argparse.Namespace, settings: Mapping[str, str]) -> int:
    """The broker's exit code. Raises StartError, NotReadyError."""
    async with _name_server(options.port) as (address, scan):
        broker = asyncio.create_task(serve_broker(_started({**settings, "namesrvAddr": str(address)})), name="broker")
        try:
            if await _is_ready(address, broker):
                print(_first_steps(address, settings, options.store), flush=True)
            await asyncio.wait((broker, scan), return_when=asyncio.FIRST_COMPLETED)
            if scan.done():
                scan.result()  # it never returns, so this raises
        finally:
            if not broker.done():
                broker.cancel()
                await asyncio.gather(broker, return_exceptions=True)
        return broker.result()


@contextlib.asynccontextmanager
async def _name_server(port: int) -> AsyncIterator[tuple[Address, asyncio.Task[None]]]:
    """Its address, and its search for silent brokers. Raises StartError."""
    server = NameServer(NamesrvConfig(listen_port=port), RealClock())
    address = await server.start()
    scan = asyncio.create_task(server.scan(), name="scan for silent brokers")
    try:
        yield address, scan
    finally:
        scan.cancel()
        await asyncio.gather(scan, return_exceptions=True)
        await server.stop()


async def _is_ready(name_server: Address, broker: asyncio.Task[int]) -> bool:
    """True when the name server knows the broker, False when it has ended before. Raises NotReadyError."""
    clock = RealClock()
    deadline = clock.monotonic() + READY_TIMEOUT_S
    async with grpc.aio.insecure_channel(str(name_server)) as channel:
        stub = name_service_pb2_grpc.NameServiceStub(channel)
        while not broker.done():
            if (await stub.ListClusters(name_service_pb2.ListClustersRequest())).brokers:
                return True
            if clock.monotonic() > deadline:
                raise NotReadyError(f"the broker has not registered within {READY_TIMEOUT_S:g} s")
            await asyncio.wait((broker,), timeout=READY_INTERVAL_S)
    return False


@contextlib.contextmanager
def _store(folder: Path | None) -> Iterator[Path]:
    """The folder of messages: `folder`, or one that ends with the block."""
    if folder is not None:
        yield folder.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="hourglass-dev-") as name:
        yield Path(name)


def _first_steps(address: Address, settings: Mapping[str, str], kept: Path | None) -> str:
    url, store = f"mq://{address}", settings["storePathRootDir"]
    return (
        f"The queue is at {url}\n"
        f"  send       async with Producer('writers', '{url}') as producer:\n"
        "                 await producer.send(Message('greetings', b'in 5 s', delay_level=2))\n"
        f"  look       hourglass admin topicList -n {address}   (package hourglass-mqadmin)\n"
        f"  messages   {store}   {'stay' if kept else 'are deleted at the end; --store FOLDER keeps them'}\n"
        "Topics are created when they are first sent to. Ctrl-C stops it."
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hourglass dev", description="A name server and a broker in one process, on the loopback interface."
    )
    parser.add_argument("--store", type=Path, metavar="FOLDER", help="keeps messages; a temporary folder without it")
    parser.add_argument("--port", type=int, default=NAME_SERVER_PORT, help="the URL's; 0: a free one (%(default)s)")
    parser.add_argument("--broker-port", type=int, default=BROKER_PORT, help="0: a free one (%(default)s)")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="of the broker: messageDelayLevel='1s 5s 10s'")
    return parser


if __name__ == "__main__":
    sys.exit(main())
