"""A name server and two brokers that replicate, each a process in its own namespace (netns_network.py).

This runs inside the namespace of the clients, from where all others can be reached. Which broker is the master changes
in the course of a round: the configuration says what each begins as, and what was switched since stands in its store.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from netns_history import Reign, Together
from netns_network import CLIENT, HOSTS, NODES, Places

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from hourglass.mq.v1 import admin_service_pb2_grpc as admin_pb_grpc
from hourglass.mq.v1 import common_pb2 as common_pb
from hourglass_local.process import ManagedProcess, grpc_serving, replica_status
from hourglass_local.waiting import eventually
from mq_broker.core.replica_state import ReplicaState
from mq_broker.replication.node import REPLICA
from mq_broker.store.state_files import decode_document

NAME_SERVER_PORT, BROKER_PORT, HA_PORT = 9_876, 10_911, 10_912
NAME_SERVER_ADDRESS = f"{HOSTS[CLIENT]}:{NAME_SERVER_PORT}"
BROKER, SYNC_MASTER, SLAVE = "broker-a", "SYNC_MASTER", "SLAVE"
COMMIT_LOG_FILE_BYTES = 1 << 20  # the log rolls over every few seconds
REPLICA_TIMEOUT_S, NOT_CATCHUP_S = 0.8, 1.5
SETTINGS = {
    "brokerName": BROKER,
    "listenPort": str(BROKER_PORT),
    "haListenPort": str(HA_PORT),
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": str(COMMIT_LOG_FILE_BYTES),
    "slaveTimeout": str(int(REPLICA_TIMEOUT_S * 1_000)),
    "haMaxTimeSlaveNotCatchup": str(int(NOT_CATCHUP_S * 1_000)),
    "haSendHeartbeatInterval": "200",
    "registerNameServerPeriod": "300",
    "flushConsumerOffsetInterval": "500",
}
WHOLE_TIMEOUT_S = 45.0
WATCH_INTERVAL_S, ASK_TIMEOUT_S = 0.2, 5.0
Status = admin_pb.GetReplicaStatusResponse


class Node:
    """One broker: its place, its store, its process."""

    def __init__(self, name: str, folder: Path, places: Places, min_in_sync: int, role: str) -> None:
        self.name, self.store = name, folder / f"store-{name}"
        self.address, self.ha_address = f"{HOSTS[name]}:{BROKER_PORT}", f"{HOSTS[name]}:{HA_PORT}"
        self._folder, self._places, self._min_in_sync, self._role = folder, places, min_in_sync, role
        self.process = self._make_process()

    def lose_disk(self) -> None:
        """All of the store is gone, and from now on broker.conf makes a replica of what starts there."""
        shutil.rmtree(self.store)
        self._role = SLAVE
        self.process = self._make_process()

    @property
    def quarantine(self) -> bytes:
        """Everything that the store has put aside."""
        return b"".join(path.read_bytes() for path in sorted(self.store.glob("quarantine/*")) if path.is_file())

    def epochs(self) -> list[tuple[tuple[int, int], int]]:
        """(epoch, log offset from which on it was written), as on its disk."""
        document = (self.store / "config" / REPLICA).read_bytes()
        history = ReplicaState.from_json(decode_document(document)).history
        return [((begin.epoch.term, begin.epoch.start), begin.log_offset) for begin in history.begins]

    def _make_process(self) -> ManagedProcess:
        settings = SETTINGS | {
            "brokerRole": self._role,
            "brokerId": "1" if self._role == SLAVE else "0",
            "minInSyncReplicas": str(self._min_in_sync),
            "bindAddress": HOSTS[self.name],
            "storePathRootDir": str(self.store),
        }

        async def ready() -> bool:
            return await grpc_serving(self.address)

        return ManagedProcess(
            f"broker-{self.name}",
            "mq_broker",
            ["-n", NAME_SERVER_ADDRESS, *(f"{key}={value}" for key, value in settings.items())],
            ready=ready,
            log_path=self._folder / "logs" / f"broker-{self.name}.log",
            prefix=self._places.command(self.name),
        )


async def progress_of(address: str, group: str, topic: str) -> dict[int, int] | None:
    """How far the group is in each queue, as the broker there has it; None when it does not say."""
    async with grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        stub = admin_pb_grpc.AdminServiceStub(channel)
        try:
            answer = await stub.GetConsumeStats(
                admin_pb.GetConsumeStatsRequest(group=group, topic=topic), timeout=ASK_TIMEOUT_S
            )
        except grpc.aio.AioRpcError:
            return None
    return {one.queue_id: one.consumer_offset for one in answer.queues} if answer.code == common_pb.SUCCESS else None


@dataclass
class Pair:
    """The three processes, and what was seen of the two brokers."""

    folder: Path
    places: Places
    min_in_sync: int
    reigns: set[Reign] = field(default_factory=set)
    seen: dict[str, Status | None] = field(default_factory=dict)  # by node, the last time that it was asked

    def __post_init__(self) -> None:
        roles = (SYNC_MASTER, SLAVE)
        self.nodes = {
            name: Node(name, self.folder, self.places, self.min_in_sync, role)
            for name, role in zip(NODES, roles, strict=True)
        }
        self.url = f"mq://{NAME_SERVER_ADDRESS}"

        async def ready() -> bool:
            return await grpc_serving(NAME_SERVER_ADDRESS)

        self.name_server = ManagedProcess(
            "name-server",
            "mq_namesrv",
            [f"bindAddress={HOSTS[CLIENT]}", f"listenPort={NAME_SERVER_PORT}"],
            ready=ready,
            log_path=self.folder / "logs" / "name-server.log",
        )

    async def start(self) -> None:
        """Start all, the master before its replica."""
        await self.name_server.start()
        for node in self.nodes.values():
            await node.process.start()

    async def stop(self) -> list[str]:
        """Stop all; what did not stop well."""
        processes = [node.process for node in reversed(self.nodes.values())]
        wrong = []
        for process in [*processes, self.name_server]:
            process.resume()
            process.check()
            await process.terminate()
            if process.was_killed_to_stop or process.exit_code != 0:
                wrong.append(f"{process.name} did not stop well, code {process.exit_code}: {process.tail(3)}")
        return wrong

    def check(self) -> None:
        """Raises ProcessDiedError when a process has ended by itself."""
        for process in [self.name_server, *(node.process for node in self.nodes.values())]:
            process.check()

    async def watch(self) -> None:
        """Ask both again and again who they are, until cancelled."""
        while True:
            await asyncio.gather(*(self.status(name) for name in self.nodes))
            await asyncio.sleep(WATCH_INTERVAL_S)

    async def status(self, name: str) -> Status | None:
        """What the node says of itself, None when it does not answer."""
        node = self.nodes[name]
        status = self.seen[name] = await replica_status(node.address)
        if status is not None and status.role != admin_pb.SLAVE and status.writable:
            self.reigns.add(Reign((status.epoch.term, status.epoch.start), status.replica_id, node.address))
        return status

    async def master(self) -> str:
        """The one node that is a writable master. Raises NotInTimeError when for long there is none, or two."""

        async def only_one() -> str | None:
            self.check()
            statuses = {name: await self.status(name) for name in self.nodes}
            masters = [name for name, one in statuses.items() if one and one.role != admin_pb.SLAVE and one.writable]
            return masters[0] if len(masters) == 1 else None

        return await eventually(only_one, WHOLE_TIMEOUT_S, "one writable master") or ""

    def other(self, name: str) -> str:
        """The node that is not this one."""
        return next(one for one in self.nodes if one != name)

    async def wait_role(self, name: str, *, master: bool) -> None:
        """Return when the node says that it is a master, or a replica. Raises NotInTimeError."""

        async def is_so() -> bool:
            self.check()
            status = await self.status(name)
            return status is not None and (status.role != admin_pb.SLAVE) == master

        await eventually(is_so, WHOLE_TIMEOUT_S, f"{name} is a {'master' if master else 'replica'}")

    async def whole(self) -> Together:
        """Return when there is a master with a replica in sync that has all that the master had when this was asked.

        Raises NotInTimeError.
        """
        master = await self.master()
        first = await self.status(master)
        mark = first.log_end if first is not None else 0

        async def caught_up() -> bool:
            self.check()
            status = await self.status(master)
            return status is not None and any(
                one.connected and one.in_sync and one.durable_offset >= mark for one in status.replicas
            )

        await eventually(caught_up, WHOLE_TIMEOUT_S, f"{master} has its replica in sync up to {mark}")
        return Together(time.monotonic(), mark)
