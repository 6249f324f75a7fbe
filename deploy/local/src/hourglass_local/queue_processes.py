"""Name servers and brokers in another order or with other settings than a `Cluster` has: one by one, or from files.

A `ConfiguredCluster` comes from a folder such as those in deploy/conf: `namesrv.conf`, and a file for each broker. The
processes get copies, in which ports, name servers and store folders are others, so that they can run beside anything
else; what else is written there, stands.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from hourglass_local.ports import LOOPBACK, free_ports
from hourglass_local.process import ManagedProcess, grpc_serving, is_in_sync, registered_brokers
from hourglass_local.waiting import eventually
from mqproto.config_source import read_properties

LOG_FILE_BYTES = 16 * 1024 * 1024  # RocketMQ's 1 GiB would be allocated at every start
KNOWN_TIMEOUT_S = 20.0
NAME_SERVER_FILE = "namesrv.conf"
IN_SYNC_TIMEOUT_S = 30.0

_LINE = re.compile(r"^(\w+) *=.*$", re.MULTILINE)


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


@dataclass(frozen=True, slots=True)
class ConfiguredBroker:
    """One broker; `written` is what its file says, before anything was changed."""

    process: ManagedProcess
    port: int
    store: Path
    written: Mapping[str, str]

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def is_replica(self) -> bool:
        return self.written.get("brokerRole") == "SLAVE"


class ConfiguredCluster:
    """An async context manager; inside, all brokers are known to the name server, and all replicas are in sync."""

    def __init__(self, source: Path, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        """The files in `source`; everything on disk goes to `folder`. `settings` win over the files of all brokers.

        Raises OSError and ConfigError for files that cannot be read.
        """
        self._folder = folder.absolute()
        self._settings = dict(settings or {})
        paths = [path for path in source.glob("*.conf") if path.name != NAME_SERVER_FILE]
        paths.sort(key=lambda path: path.stem)
        self._name_server_port, *ports = free_ports(1 + 2 * len(paths))
        file = self._copied(source / NAME_SERVER_FILE, {"listenPort": str(self._name_server_port)})
        self.name_server = self._process("name-server", "mq_namesrv", file, self._name_server_port, {})
        self.brokers = {
            path.stem: self._broker(path, port, ha_port)
            for path, port, ha_port in zip(paths, ports[::2], ports[1::2], strict=True)
        }

    @property
    def name_server_address(self) -> str:
        """host:port."""
        return f"{LOOPBACK}:{self._name_server_port}"

    @property
    def url(self) -> str:
        """For mqclient."""
        return f"mq://{self.name_server_address}"

    def replica_of(self, name: str) -> ConfiguredBroker | None:
        """Of the broker of this file name, which is a master's."""
        master = self.brokers[name].written["brokerName"]
        replicas = [one for one in self.brokers.values() if one.is_replica and one.written["brokerName"] == master]
        return replicas[0] if replicas else None

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _start(self) -> None:
        await self.name_server.start()
        for broker in self.brokers.values():
            broker.process.launch()
        for broker in self.brokers.values():
            await broker.process.wait_ready()
        await wait_known(self._name_server_port, *(broker.port for broker in self.brokers.values()))
        for name, broker in self.brokers.items():
            if broker.is_replica:
                await eventually(partial(is_in_sync, broker.address), IN_SYNC_TIMEOUT_S, f"{name} is in sync")

    async def _stop(self) -> None:
        for broker in reversed(self.brokers.values()):
            await broker.process.terminate()
        await self.name_server.terminate()

    def _broker(self, path: Path, port: int, ha_port: int) -> ConfiguredBroker:
        store = self._folder / f"{path.stem}-store"
        changed = {
            "listenPort": str(port),
            "haListenPort": str(ha_port),
            "namesrvAddr": self.name_server_address,
            "storePathRootDir": str(store),
        }
        process = self._process(path.stem, "mq_broker", self._copied(path, changed), port, self._settings)
        return ConfiguredBroker(process, port, store, read_properties(path))

    def _copied(self, path: Path, changed: Mapping[str, str]) -> Path:
        text = path.read_text(encoding="utf-8")
        copy = self._folder / "conf" / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(_LINE.sub(lambda line: _changed(line, changed), text), encoding="utf-8")
        return copy

    def _process(self, name: str, module: str, file: Path, port: int, settings: Mapping[str, str]) -> ManagedProcess:
        async def ready() -> bool:
            return await grpc_serving(f"{LOOPBACK}:{port}")

        overrides = [f"{key}={value}" for key, value in settings.items()]
        log_path = self._folder / "logs" / f"{name}.log"
        return ManagedProcess(name, module, ["-c", str(file), *overrides], ready=ready, log_path=log_path)


def _changed(line: re.Match[str], changed: Mapping[str, str]) -> str:
    return f"{line[1]} = {changed[line[1]]}" if line[1] in changed else line[0]
