"""The upgrade with real name servers and brokers in the place of containers, under the load of a producer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from docker_files import module_of
from typer.testing import CliRunner

from hourglass_local.ports import LOOPBACK, free_ports
from hourglass_local.process import ManagedProcess, is_in_sync
from hourglass_local.queue_processes import broker, name_server, stopped_at_the_end, wait_known
from hourglass_local.testing_traffic import QUICK, load, stored_bodies
from hourglass_local.waiting import eventually
from mqadmin.__main__ import app
from mqclient import Admin, MessageQueue, Producer, SendStatus

UPGRADE = module_of("upgrade")
TOPIC, QUEUES, TIMEOUT_S = "flights", 4, 60.0
NAMES = (*UPGRADE.NAME_SERVERS, *UPGRADE.BROKERS)

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


@dataclass(frozen=True, slots=True)
class Processes:
    """Engine of an upgrade: to replace a container is to stop a process and to start it again, in the loop's thread."""

    loop: asyncio.AbstractEventLoop
    processes: dict[str, ManagedProcess]
    addresses: dict[str, str]

    def compose(self, *words: str) -> str:
        match words:
            case ("ps", "--all", "--quiet"):
                return "\n".join((*NAMES, UPGRADE.SECRETS))
            case ("up", "--detach", "--no-build", "--no-deps", service) if service in self.processes:
                self._wait(self._replace(self.processes[service]))
            case ("exec", "-T", _, "python", "-m", "mqadmin", *command):
                return self._mqadmin("\n".join(command))
            case _:
                assert words[0] in ("build", "up")
        return ""

    def _mqadmin(self, command: str) -> str:
        """In this process; a program of its own takes a second of processor time to begin."""
        for name, address in self.addresses.items():
            command = command.replace(name, address)
        outcome = CliRunner().invoke(app, command.split("\n"))
        if outcome.exit_code:
            raise UPGRADE.CommandError(outcome.output)
        return outcome.stdout

    def docker(self, *words: str) -> str:
        return json.dumps([self._inspected(name) for name in words[1:]])

    def _inspected(self, name: str) -> dict[str, Any]:
        state: dict[str, Any] = {"Status": "running", "Health": {"Status": "healthy"}}
        if name == UPGRADE.SECRETS:
            state = {"Status": "exited", "ExitCode": 0}
        return {"Config": {"Labels": {"com.docker.compose.service": name}}, "State": state}

    async def _replace(self, process: ManagedProcess) -> None:
        await process.terminate()
        await process.start()

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self.loop).result(TIMEOUT_S)


@asynccontextmanager
async def stack(folder: Path) -> AsyncIterator[Processes]:
    """Two name servers and a pair in sync."""
    ports = free_ports(6)
    processes = {name: name_server(folder, port) for name, port in zip(NAMES[:2], ports, strict=False)}
    roles = ({"brokerRole": "SYNC_MASTER"}, {"brokerRole": "SLAVE", "brokerId": "1"})
    for name, role, port, ha_port in zip(NAMES[2:], roles, ports[2:4], ports[4:], strict=True):
        settings = role | {"haListenPort": str(ha_port)}
        processes[name] = broker(folder / name, UPGRADE.BROKER_NAME, port, ports[:2], settings=settings)
    published = (9876, 9876, UPGRADE.BROKER_PORT, UPGRADE.BROKER_PORT)
    addresses = {
        f"{name}:{number}": f"{LOOPBACK}:{port}" for name, number, port in zip(NAMES, published, ports, strict=False)
    }
    async with stopped_at_the_end(*processes.values()):
        for process in processes.values():
            await process.start()
        for port in ports[:2]:
            await wait_known(port, *ports[2:4])
        await eventually(lambda: is_in_sync(f"{LOOPBACK}:{ports[3]}"), TIMEOUT_S, "the replica is in sync")
        yield Processes(asyncio.get_running_loop(), processes, addresses)


async def test_no_send_fails_and_each_is_stored_once(tmp_path: Path) -> None:
    async with stack(tmp_path) as engine:
        before = {name: process.pid for name, process in engine.processes.items()}
        url = "mq://" + ";".join(engine.addresses[f"{name}:9876"] for name in UPGRADE.NAME_SERVERS)
        async with (
            Admin(url, client_config=QUICK) as admin,
            Producer("senders", url, client_config=QUICK) as producer,
        ):
            await admin.update_topic(TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES)
            async with load(producer, TOPIC) as running:
                await running.some(status=SendStatus.SEND_OK)
                await asyncio.to_thread(UPGRADE.Upgrade(engine, say=lambda _: None).run)
                await running.some(status=SendStatus.SEND_OK)
            assert running.failures == []
            queues = [MessageQueue(TOPIC, UPGRADE.BROKER_NAME, number) for number in range(QUEUES)]
            stored = await stored_bodies(admin, queues)
            assert {body: stored[body] for body in running.bodies if stored[body] != 1} == {}
        assert [name for name, process in engine.processes.items() if process.pid == before[name]] == []
