"""Single name servers and brokers, for those who want another order or other settings than a `Cluster` has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from hourglass_local.ports import LOOPBACK
from hourglass_local.probes import grpc_serving, registered_brokers
from hourglass_local.process import ManagedProcess
from hourglass_local.waiting import eventually

LOG_FILE_BYTES = 16 * 1024 * 1024  # RocketMQ's 1 GiB would be allocated at every start
KNOWN_TIMEOUT_S = 20.0


def name_server(
    folder: Path, port: int, *arguments: str, environment: Mapping[str, str] | None = None
) -> ManagedProcess:
    """A name server at 127.0.0.1:port; not started. `arguments` are its command line."""
    command = [*arguments, f"listenPort={port}"]
    return _process(folder, f"name-server-{port}", "mq_namesrv", port, command, environment=environment)


def broker(
    folder: Path,
    name: str,
    port: int,
    name_servers: Sequence[int] = (),
    *arguments: str,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ManagedProcess:
    """A broker that listens on 127.0.0.1:port; not started. Ready means that it serves, registered or not.

    `name_servers` are their ports; `arguments` and `settings` are its command line.
    """
    pairs = {
        "brokerName": name,
        "listenPort": str(port),
        "haListenPort": "0",
        "storePathRootDir": str(folder / f"{name}-store"),
        "mapedFileSizeCommitLog": str(LOG_FILE_BYTES),
        **(settings or {}),
    }
    addresses = ["-n", ";".join(f"{LOOPBACK}:{one}" for one in name_servers)] if name_servers else []
    command = [*arguments, *addresses, *(f"{key}={value}" for key, value in pairs.items())]
    return _process(folder, name, "mq_broker", port, command, environment=environment)


async def wait_known(name_server_port: int, *broker_ports: int) -> None:
    """Return when the name server knows these brokers, and no other. Raises NotInTimeError."""
    wanted = {f"{LOOPBACK}:{port}" for port in broker_ports}

    async def as_wanted() -> bool:
        return await registered_brokers(f"{LOOPBACK}:{name_server_port}") == wanted

    what = f"the name server at {name_server_port} knows {', '.join(sorted(wanted)) or 'no broker'}"
    await eventually(as_wanted, KNOWN_TIMEOUT_S, what)


@asynccontextmanager
async def stopped_at_the_end(*processes: ManagedProcess) -> AsyncIterator[None]:
    """Whatever happens in the block: afterwards none of them runs, the last one stopped first."""
    try:
        yield
    finally:
        for process in reversed(processes):
            await process.terminate()


def _process(
    folder: Path,
    name: str,
    module: str,
    port: int,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
) -> ManagedProcess:
    async def ready() -> bool:
        return await grpc_serving(f"{LOOPBACK}:{port}")

    log_path = folder / "logs" / f"{name}.log"
    return ManagedProcess(name, module, arguments, ready=ready, log_path=log_path, environment=environment)
