"""The advertised address: it leads to this very process, to another one, to something else, or to nothing."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health, health_pb2_grpc  # type: ignore[import-untyped]

from mq_broker.rpc import registration
from mq_broker.rpc.registration import SelfCheck
from mqproto.grpc_options import SERVER_OPTIONS
from mqproto.names import Address
from osenv import SystemRng


@asynccontextmanager
async def process(*, with_health: bool = True) -> AsyncIterator[tuple[SelfCheck, Address]]:
    """A process that has left its mark, and where it listens."""
    check, server, service = (
        SelfCheck(SystemRng()),
        grpc.aio.server(options=SERVER_OPTIONS),
        health.aio.HealthServicer(),
    )
    await check.leave_mark(service)
    if with_health:
        health_pb2_grpc.add_HealthServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield check, Address("127.0.0.1", port)
    await server.stop(None)


async def test_an_address_that_leads_here_is_no_problem() -> None:
    async with process() as (check, address):
        assert await check.problem(address) is None
        assert await check.problem(Address("localhost", address.port)) is None


async def test_another_process_of_the_same_kind_is_not_taken_for_this_one() -> None:
    async with process() as (check, _), process() as (_, address_of_the_other):
        assert await check.problem(address_of_the_other) == "another process answers there"


async def test_a_server_without_health_checks_is_something_else() -> None:
    async with process() as (check, _), process(with_health=False) as (_, address):
        assert await check.problem(address) == "something else than a broker answers there"


async def test_no_listener_is_told_with_the_reason() -> None:
    async with process() as (check, address):
        unused = Address("127.0.0.2", address.port)
        assert "Connection refused" in str(await check.problem(unused))


async def test_a_peer_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and does not read from them
        async with process() as (check, _):
            problem = await check.problem(Address("127.0.0.1", silent.getsockname()[1]))
    assert problem == "nothing answers there within 0.2 s"
