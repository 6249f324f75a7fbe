"""The sample configurations of the four cluster modes (mechanism H5): each runs as it is written, but for its ports.

In each: the route has all masters and replicas, every master is written and read; replicas have their master's log byte
for byte, and are read when the master is away.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from hourglass_local.cluster import ASYNC_MASTER, SYNC_MASTER
from hourglass_local.pair import PairLogs, first_difference, settled_logs
from hourglass_local.process import replica_status
from hourglass_local.queue_processes import ConfiguredBroker, ConfiguredCluster
from hourglass_local.testing_traffic import QUICK, consuming
from hourglass_local.waiting import eventually
from mqclient import Admin, Message, MessageQueue, Producer, SendStatus
from mqproto.config_source import read_properties

CONF = Path(__file__).parents[2] / "deploy/conf"
MODES = {
    "one-pair": {"broker-a": SYNC_MASTER},
    "2m-noslave": {"broker-a": ASYNC_MASTER, "broker-b": ASYNC_MASTER},
    "2m-2s-async": {"broker-a": ASYNC_MASTER, "broker-b": ASYNC_MASTER},
    "2m-2s-sync": {"broker-a": SYNC_MASTER, "broker-b": SYNC_MASTER},
}
REPLICA_ID = 1
SMALL = {"mappedFileSizeCommitLog": str(4 * 1024 * 1024)}  # 1 GiB would be allocated four times at every start
TOPIC, QUEUES, EACH = "flights", 2, 20
TIMEOUT_S = 60

pytestmark = pytest.mark.processes


async def send_to_every_master(cluster: ConfiguredCluster, masters: dict[str, str]) -> set[bytes]:
    """The bodies, each acknowledged with SEND_OK."""
    sent = set()
    async with Producer("senders", cluster.url, client_config=QUICK) as producer:
        for name in masters:
            for number in range(EACH):
                body = f"{name} {number}".encode()
                queue = MessageQueue(TOPIC, name, number % QUEUES)
                assert (await producer.send(Message(TOPIC, body), queue=queue)).send_status is SendStatus.SEND_OK
                sent.add(body)
    return sent


async def wait_route(admin: Admin, wanted: dict[str, dict[int, str]]) -> None:
    """Return when the topic's route has exactly these brokers: name -> id -> address."""

    async def as_wanted() -> bool:
        route = await admin.topic_route(TOPIC)
        return {name: dict(addresses) for name, addresses in route.brokers.items()} == wanted

    await eventually(as_wanted, TIMEOUT_S, f"the route {wanted}")


def brokers_of(cluster: ConfiguredCluster, master: str) -> dict[int, str]:
    """Id -> address of the master of this name, and of its replica if it has one."""
    replica = cluster.replica_of(master)
    return {0: cluster.brokers[master].address} | ({REPLICA_ID: replica.address} if replica else {})


async def in_sync_logs(master: ConfiguredBroker, replica: ConfiguredBroker) -> PairLogs:
    """Of a pair that is at rest."""
    logs = await settled_logs(master.address, replica.address)
    assert logs.are_the_same, logs
    status = await replica_status(master.address)
    assert status is not None
    assert [(one.broker_id, one.connected, one.in_sync, one.lag_bytes) for one in status.replicas] == [
        (REPLICA_ID, True, True, 0)
    ]
    return logs


def test_every_folder_of_configurations_is_one_of_the_modes() -> None:
    assert {path.name for path in CONF.iterdir() if path.is_dir()} == MODES.keys()


@pytest.mark.parametrize("mode", MODES)
def test_brokers_of_a_mode_do_not_meet_on_one_machine(mode: str) -> None:
    files = [read_properties(path) for path in sorted((CONF / mode).glob("*.conf"))]
    ports = [file[key] for file in files for key in ("listenPort", "haListenPort") if key in file]
    stores = [file["storePathRootDir"] for file in files if "storePathRootDir" in file]
    assert len(set(ports)) == len(ports) >= 3
    assert len(set(stores)) == len(stores) == len(files) - 1


@pytest.mark.mechanism("N12", "H5")
@pytest.mark.parametrize(("mode", "masters"), MODES.items(), ids=MODES)
async def test_sample_configuration_is_a_cluster_that_works(tmp_path: Path, mode: str, masters: dict[str, str]) -> None:
    async with ConfiguredCluster(CONF / mode, tmp_path, SMALL) as cluster:
        roles = {name: one.written["brokerRole"] for name, one in cluster.brokers.items() if not one.is_replica}
        assert roles == masters
        async with Admin(cluster.url, client_config=QUICK) as admin:
            await admin.update_topic(TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES)
            await wait_route(admin, {name: brokers_of(cluster, name) for name in masters})
            sent = await send_to_every_master(cluster, masters)
            async with consuming(cluster.url, TOPIC, "all-alive") as inbox:
                await inbox.wait(len(sent))
            assert inbox.bodies == Counter(sent)
            pairs = [(cluster.brokers[name], replica) for name in masters if (replica := cluster.replica_of(name))]
            logs = [await in_sync_logs(*pair) for pair in pairs]
            if pairs:
                await pairs[0][0].process.terminate()
                async with consuming(cluster.url, TOPIC, "without-a-master") as inbox:
                    await inbox.wait(len(sent))
                assert inbox.bodies == Counter(sent)
    for (master, replica), log in zip(pairs, logs, strict=True):
        assert first_difference(master.store, replica.store, log.master_end) is None
    ended = [one.process for one in cluster.brokers.values()]
    assert [(process.exit_code, process.was_killed_to_stop) for process in ended] == [(0, False)] * len(ended)
