"""Configurations as they are written, on other ports and in other folders."""

from __future__ import annotations

from pathlib import Path

from hourglass_local.queue_processes import ConfiguredCluster
from mqproto.config_source import read_properties

ONE_PAIR = Path(__file__).parents[2] / "conf/one-pair"
CHANGED = {"listenPort", "haListenPort", "namesrvAddr", "storePathRootDir"}


def test_only_ports_name_servers_and_folders_are_others_in_the_copies(tmp_path: Path) -> None:
    cluster = ConfiguredCluster(ONE_PAIR, tmp_path)
    assert list(cluster.brokers) == ["broker-a", "broker-a-s"]
    for name, broker in cluster.brokers.items():
        written, copied = (read_properties(folder / f"{name}.conf") for folder in (ONE_PAIR, tmp_path / "conf"))
        assert broker.written == written
        assert written.keys() == copied.keys()
        assert {key for key in written if written[key] != copied[key]} == CHANGED
        assert copied["storePathRootDir"] == str(tmp_path / f"{name}-store")
        assert broker.address == f"127.0.0.1:{copied['listenPort']}"
    ports = [int(read_properties(path)["listenPort"]) for path in (tmp_path / "conf").glob("*.conf")]
    assert len(set(ports)) == 3


def test_the_replica_of_a_master_is_the_one_of_its_name(tmp_path: Path) -> None:
    cluster = ConfiguredCluster(ONE_PAIR.with_name("2m-2s-sync"), tmp_path / "with")
    assert cluster.replica_of("broker-b") is cluster.brokers["broker-b-s"]
    assert [name for name, one in cluster.brokers.items() if one.is_replica] == ["broker-a-s", "broker-b-s"]
    assert ConfiguredCluster(ONE_PAIR.with_name("2m-noslave"), tmp_path / "without").replica_of("broker-b") is None
