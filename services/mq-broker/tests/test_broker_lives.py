"""The lives of a broker in one process: a change of its role begins another one, on the same ports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from hourglass.mq.v1 import admin_service_pb2 as pb
from hourglass.mq.v1 import admin_service_pb2_grpc, broker_service_pb2, broker_service_pb2_grpc, common_pb2
from hourglass.mq.v1.replication_service_pb2 import Epoch
from mq_broker.app import BrokerProcess, ExitReason, StartError, run_until_stopped
from mq_broker.config import FORMAT, parse_config
from mq_broker.core.limits import DescriptorBudget
from mq_broker.telemetry import BrokerMetrics
from mq_broker.testing import incoming
from mqproto.config_source import ConfigSource
from osenv import RealClock, RealDisk

TIMEOUT_S = 30


class Process:
    """One process, and how each of its lives has ended so far."""

    def __init__(self, process: BrokerProcess, channel: Callable[[], grpc.aio.Channel]) -> None:
        self.process, self.channel = process, channel
        self.ends: list[ExitReason] = []
        self.stop = asyncio.Event()

    async def run(self) -> None:
        """As `app.serve` does."""
        stop = asyncio.create_task(self.stop.wait())
        try:
            while not self.ends or self.ends[-1] is ExitReason.REOPEN:
                self.ends.append(await run_until_stopped(self.process, stop))
        finally:
            stop.cancel()

    async def status(self) -> pb.GetReplicaStatusResponse:
        """How its replication stands."""
        async with self.channel() as channel:
            stub: Any = admin_service_pb2_grpc.AdminServiceStub(channel)
            response: pb.GetReplicaStatusResponse = await stub.GetReplicaStatus(pb.GetReplicaStatusRequest())
            return response


def settings(folder: Path, **more: str) -> dict[str, str]:
    return {
        "storePathRootDir": str(folder),
        "listenPort": "0",
        "mappedFileSizeCommitLog": "1000000",
        "advertisedAddressCheck": "OFF",
        **more,
    }


@asynccontextmanager
async def running(folder: Path, **more: str) -> AsyncIterator[Process]:
    with contextlib.closing(RealDisk()) as disk:
        pairs = settings(folder, **more)
        process = BrokerProcess(
            ConfigSource(FORMAT, options=pairs),
            parse_config(pairs),
            disk,
            RealClock(),
            BrokerMetrics(),
            asyncio.Event(),
            DescriptorBudget.of(1_024),
        )
        one = Process(process, lambda: grpc.aio.insecure_channel(f"127.0.0.1:{process.port}"))
        task = asyncio.create_task(one.run())
        async with asyncio.timeout(TIMEOUT_S):
            await answered(one.status, task)
            yield one
            one.stop.set()
            await task


async def answered(ask: Callable[[], Awaitable[Any]], task: asyncio.Task[None]) -> Any:
    """What `ask` gives as soon as there is an answer; while nothing listens it is asked again."""
    while True:
        if task.done():
            task.result()
        with contextlib.suppress(grpc.aio.AioRpcError):
            return await ask()
        await asyncio.sleep(0.02)  # the wire has no event for it


async def until(process: Process, is_so: Callable[[pb.GetReplicaStatusResponse], bool]) -> pb.GetReplicaStatusResponse:
    while True:
        with contextlib.suppress(grpc.aio.AioRpcError):
            if is_so(status := await process.status()):
                return status
        await asyncio.sleep(0.02)  # as above


async def send(process: Process, body: bytes) -> common_pb2.ResponseCode.ValueType:
    batch = incoming("t", [body])
    async with process.channel() as channel:
        stub: Any = broker_service_pb2_grpc.BrokerServiceStub(channel)
        record = broker_service_pb2.RecordBatch(topic="t", queue_id=0, count=1, records=batch.records)
        response = await stub.Send(broker_service_pb2.SendRequest(batch=record))
        code: common_pb2.ResponseCode.ValueType = response.result.code
        return code


async def test_a_change_of_masters_begins_new_lives_on_the_same_ports_and_loses_nothing(tmp_path: Path) -> None:
    async with running(tmp_path / "m", brokerRole="SYNC_MASTER") as one:
        address = f"127.0.0.1:{one.process.ha_port}"
        replica = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": address}
        async with running(tmp_path / "s", **replica) as two:
            before = await until(one, lambda status: status.in_sync_replicas == 2)
            assert await send(one, b"before") == common_pb2.SUCCESS
            ports = (one.process.port, two.process.port, two.process.ha_port)

            async with one.channel() as old, two.channel() as new:
                old_admin: Any = admin_service_pb2_grpc.AdminServiceStub(old)
                new_admin: Any = admin_service_pb2_grpc.AdminServiceStub(new)
                down = await old_admin.StepDown(pb.StepDownRequest(epoch=before.epoch))
                assert (down.code, down.role) == (common_pb2.SUCCESS, pb.SYNC_MASTER)
                assert await send(one, b"rejected") == common_pb2.NOT_LEADER_FOR_QUEUE
                await until(two, lambda status: status.durable_end == down.log_end)
                promote = pb.PromoteRequest(term=before.epoch.term + 1, log_end=down.log_end, role=down.role)
                assert (await new_admin.Promote(promote)).code == common_pb2.SUCCESS
                after = await until(two, lambda status: status.writable)
                assert (after.role, after.epoch.term, after.broker_id) == (pb.SYNC_MASTER, before.epoch.term + 1, 0)
                become = pb.BecomeSlaveRequest(broker_id=1, master_ha_address=after.ha_address, epoch=after.epoch)
                assert (await old_admin.BecomeSlave(become)).code == common_pb2.SUCCESS

            await until(two, lambda status: status.in_sync_replicas == 2)
            assert await send(two, b"after") == common_pb2.SUCCESS
            now = await until(one, lambda status: status.role == pb.SLAVE)
            assert (now.writable, now.broker_id) == (False, 1)
            assert (one.process.port, two.process.port, two.process.ha_port) == ports
            async with one.channel() as channel:
                check: Any = health_pb2_grpc.HealthStub(channel)
                health = await check.Check(health_pb2.HealthCheckRequest())
                assert health.status == health_pb2.HealthCheckResponse.SERVING
    assert two.ends == [ExitReason.REOPEN, ExitReason.STOPPED]
    # Its successor may have told it before it was asked to become a replica, which is then another change.
    assert one.ends in (
        [ExitReason.REOPEN, ExitReason.STOPPED],
        [ExitReason.REOPEN, ExitReason.REOPEN, ExitReason.STOPPED],
    )


async def test_what_makes_no_sense_is_rejected_with_a_code(tmp_path: Path) -> None:
    async with running(tmp_path / "m") as one, one.channel() as channel:
        admin: Any = admin_service_pb2_grpc.AdminServiceStub(channel)
        status = await one.status()
        assert (status.role, status.writable, status.ha_address) == (
            pb.ASYNC_MASTER,
            True,
            f"127.0.0.1:{one.process.ha_port}",
        )
        other = Epoch(term=status.epoch.term + 1)
        requests = [
            (admin.StepDown, pb.StepDownRequest(epoch=other), common_pb2.SYSTEM_ERROR),
            (admin.StepDown, pb.StepDownRequest(epoch=Epoch(term=-1)), common_pb2.MESSAGE_ILLEGAL),
            (admin.Promote, pb.PromoteRequest(term=9), common_pb2.MESSAGE_ILLEGAL),
            (admin.Promote, pb.PromoteRequest(term=9, role=pb.SYNC_MASTER), common_pb2.SYSTEM_ERROR),
            (admin.BecomeSlave, pb.BecomeSlaveRequest(broker_id=1, epoch=status.epoch), common_pb2.SYSTEM_ERROR),
            (admin.BecomeSlave, pb.BecomeSlaveRequest(broker_id=0, epoch=other), common_pb2.MESSAGE_ILLEGAL),
            (
                admin.BecomeSlave,
                pb.BecomeSlaveRequest(broker_id=1, master_ha_address="nowhere", epoch=other),
                common_pb2.MESSAGE_ILLEGAL,
            ),
        ]
        for call, request, code in requests:
            answer = await call(request)
            assert (answer.code, answer.remark != "") == (code, True), request
        assert (await one.status()).writable
    assert one.ends == [ExitReason.STOPPED]


async def test_a_broker_without_name_servers_says_that_no_client_finds_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path):
        pass
    assert "registers nowhere, so that no client finds it" in caplog.text


async def test_a_port_for_replicas_that_is_in_use_ends_the_start_with_a_sentence(tmp_path: Path) -> None:
    async with running(tmp_path / "one") as one:
        port = str(one.process.ha_port)
        with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{port}: the port is in use"):
            async with running(tmp_path / "two", haListenPort=port):
                pass
