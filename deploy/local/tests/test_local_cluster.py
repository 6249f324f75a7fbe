"""Clusters of several sizes: they start in order, know each other, and leave nothing behind."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import psutil
import pytest

from hourglass_local.cluster import QUICK_CHECKS, SYNC_MASTER, Cluster
from hourglass_local.cluster_shop import ShopSettings, payment_window_ms, with_payment_window
from hourglass_local.pair import first_difference, settled_logs
from hourglass_local.plan import NOBODY_PAYS, make_plan
from hourglass_local.ports import ClusterPorts, PortInUseError, check_free, free_ports
from hourglass_local.process import ProcessDiedError
from hourglass_local.shop import CAPTURED, GatewayBook, PaymentDesk, Shop
from mqclient import Admin, Message, Producer, SendStatus


@pytest.mark.processes
async def test_three_brokers_and_two_name_servers_run_as_processes(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, name_servers=2, brokers=3, orders=False)
    names = ["name-server-1", "name-server-2", "broker-a", "broker-b", "broker-c"]
    assert [process.name for process in cluster.processes] == names
    async with cluster:
        pids = [process.pid for process in cluster.processes]
        async with Admin(cluster.url) as admin:
            assert [status.broker_name for status in await admin.broker_statuses()] == names[2:]
        async with Admin(f"mq://{cluster.name_server_addresses[1]}") as admin:
            assert [status.address for status in await admin.broker_statuses()] == cluster.broker_addresses
        report = await cluster.stop()
    assert (report.killed, report.failed, report.leftover) == ((), (), ())
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.processes
async def test_pair_that_has_started_is_in_sync_and_stops_by_itself(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, replicas_of=SYNC_MASTER, orders=False)
    assert [process.name for process in cluster.processes] == ["name-server", "broker-a", "broker-a-s"]
    (master,), (replica,) = cluster.broker_addresses, cluster.replica_addresses
    async with cluster:
        async with Producer("senders", cluster.url) as producer:
            assert (await producer.send(Message("flights", b"G1"))).send_status is SendStatus.SEND_OK
        logs = await settled_logs(master, replica)
        report = await cluster.stop()
    assert (report.killed, report.failed, report.leftover) == ((), (), ())
    folders = [cluster.store_folder(process) for process in (*cluster.brokers, *cluster.replicas)]
    assert logs.are_the_same
    assert logs.master_end > 0
    assert first_difference(folders[0], folders[1], logs.master_end) is None


@pytest.mark.processes
async def test_cluster_that_cannot_start_leaves_nothing_behind(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, orders=False, broker_settings={"brokerNam": "x"})
    with pytest.raises(ProcessDiedError, match=r"(?s)broker-a has ended with code 2.*did you mean brokerName"):
        await cluster.start()
    assert not any(process.running for process in cluster.processes)
    assert cluster.leftover() == ()


async def test_port_in_use_is_rejected_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cluster = Cluster(tmp_path, brokers=0, orders=False, ports=[port])
        with pytest.raises(PortInUseError, match=f"port {port} is in use"):
            await cluster.start()
    assert cluster.name_servers[0].pids == []


@pytest.mark.processes
async def test_shop_starts_orders_before_payments_and_stops_in_reverse(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, broker_settings=QUICK_CHECKS)
    services = ["orders", "gateway", "payments"]
    assert [process.name for process in cluster.processes] == ["name-server", "broker-a", *services]
    async with cluster, httpx.AsyncClient() as client:
        for url, title in ((cluster.orders_url, "Hourglass orders"), (cluster.payments_url, "Hourglass payments")):
            assert (await client.get(f"{url}/health/ready")).status_code == 200
            assert (await client.get(f"{url}/openapi.json")).json()["info"]["title"] == title
        assert (await client.get(f"{cluster.gateway_url}/health/ready")).status_code == 200
        assert (await client.get(f"{cluster.orders_url}/orders")).status_code == 401
        async with PaymentDesk(cluster.payments_url, cluster.badges) as desk:
            gateway = (await desk.statistics()).gateway
        secrets = [path for path in cluster.shop.secrets.folder.iterdir() if path.stat().st_mode & 0o077]
        report = await cluster.stop()
    assert gateway == GatewayBook(captured_minor=0, refunded_minor=0, captures=0, refunds=0)
    assert secrets == []  # only their owner can read them
    assert (report.killed, report.failed, report.leftover) == ((), (), ())


@pytest.mark.processes
@pytest.mark.system
@pytest.mark.needs("postgresql")
async def test_two_processes_of_each_service_share_a_database_and_either_may_be_away(tmp_path: Path) -> None:
    settings = ShopSettings(orders=2, payments=2, postgresql=True, gateway_silence_ms=3_600_000)
    cluster = Cluster(tmp_path, shop=settings, broker_settings=QUICK_CHECKS)
    names = ["name-server", "broker-a", "orders", "orders-2", "gateway", "payments", "payments-2"]
    assert [process.name for process in cluster.processes] == names
    plan = make_plan(1, 1, seed=1, habits=NOBODY_PAYS)
    async with cluster:
        urls = cluster.shop.urls_of("orders")
        async with Shop(urls[0], cluster.badges) as first, Shop(urls[1], cluster.badges) as second:
            for product in plan.products:
                await first.add_product(product)
            (planned,) = plan.orders
            order = await second.place_order(planned.buyer_id, planned.items, planned.key)
            assert await first.place_order(planned.buyer_id, planned.items, planned.key) == order
            assert (await first.orders()).keys() == (await second.orders()).keys() == {order.order_id}
            await cluster.orders.kill()
            await cluster.payments.kill()
            async with PaymentDesk(cluster.shop.urls_of("payments")[1], cluster.badges) as desk:
                receipt = await desk.pay(order, "key")  # decided by the gateway's webhook alone
            assert receipt.payment.status == CAPTURED
        assert cluster.shop.postgresql is not None
        folder = cluster.shop.postgresql.folder
        report = await cluster.stop()
    assert not folder.exists()
    assert "ready to accept connections" in (tmp_path / "logs/postgresql.log").read_text()
    assert (report.killed, report.failed, report.leftover) == ((), (), ())


def test_several_processes_of_a_service_need_postgresql() -> None:
    with pytest.raises(ValueError, match="need a PostgreSQL server"):
        ShopSettings(orders=2)
    with pytest.raises(ValueError, match="1 to 9 processes of payments, not 10"):
        ShopSettings(payments=10, postgresql=True)


@pytest.mark.parametrize(
    ("services", "names"),
    [
        ({"orders": False}, []),
        ({"payments": False}, ["orders"]),
        ({"orders": False, "payments": True}, ["gateway", "payments"]),
        ({}, ["orders", "gateway", "payments"]),
    ],
)
def test_services_that_are_not_wanted_are_left_out(tmp_path: Path, services: dict[str, bool], names: list[str]) -> None:
    cluster = Cluster(tmp_path, **services)  # type: ignore[arg-type]
    assert [process.name for process in cluster.processes] == ["name-server", "broker-a", *names]


def test_ports_are_dealt_to_name_servers_brokers_services_replicas_and_their_replication() -> None:
    dealt = ClusterPorts.dealt(range(1, 11), name_servers=1, brokers=1, services=1, replicas=2, balancers=1)
    assert dealt == ClusterPorts([1], [2], [3], [4, 5], [6, 7, 8, 9], [10])
    assert dealt.all == list(range(1, 11))
    with pytest.raises(ValueError, match="this cluster needs 5 ports, not 4"):
        ClusterPorts.dealt([1, 2, 3, 4], name_servers=1, brokers=1, services=0, replicas=1)


def test_ports_that_are_dealt_can_be_listened_on() -> None:
    check_free(free_ports(20))


@pytest.mark.parametrize(
    "wrong",
    [{"name_servers": 0}, {"brokers": 27}, {"replicas_of": "SLAVE"}, {"ports": [1]}, {"delay_levels": "1s"}],
)
def test_cluster_that_makes_no_sense_is_rejected(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"cluster has at least|replicas_of is 'SLAVE'|ports, not 1|levels"):
        Cluster(tmp_path, **wrong)  # type: ignore[arg-type]


def test_only_level_16_becomes_the_payment_window() -> None:
    assert with_payment_window("10s") == "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 10s 1h 2h"
    assert payment_window_ms(with_payment_window("10s")) == 10_000
