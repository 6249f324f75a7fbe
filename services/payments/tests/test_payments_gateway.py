"""The contract of PaymentGateway, kept by the gateway of the tests; tests/contract holds the real one against it.
And how long a gateway is waited for.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from osenv import SimClock
from payments.domain.errors import GatewayRejectedError, GatewayUnavailableError
from payments.domain.payment import PaymentMethod
from payments.service.gateway import (
    PATIENCE_S,
    Captured,
    ChargeRequest,
    Declined,
    GatewayBook,
    PatientGateway,
    Pending,
    Refunded,
    RefundOrder,
)
from payments.testing import NO_MONEY, ScriptedGateway, Step

CHARGE = ChargeRequest("p", "o", 100, "CNY", PaymentMethod.CARD)
REFUND = RefundOrder("r", "p", 60, "CNY")


async def test_a_charge_happens_once_however_often_it_is_asked_for() -> None:
    clock = SimClock()
    gateway = ScriptedGateway(clock)
    assert await gateway.find_charge(CHARGE) is None
    first = await gateway.charge(CHARGE)
    assert first == Captured(clock.wall_ms())
    await clock.advance(5)
    assert set(await asyncio.gather(*(gateway.charge(CHARGE) for _ in range(5)))) == {first}
    assert await gateway.find_charge(CHARGE) == first
    assert await gateway.book() == GatewayBook(100, 0, 1, 0)


async def test_a_decline_is_for_ever_and_moves_no_money() -> None:
    gateway = ScriptedGateway(SimClock(), Step.DECLINE)
    for _ in range(2):
        assert await gateway.charge(CHARGE) == await gateway.find_charge(CHARGE) == Declined(NO_MONEY)
    with pytest.raises(GatewayRejectedError):
        await gateway.refund(REFUND)
    assert await gateway.book() == GatewayBook(0, 0, 0, 0)


async def test_what_is_decided_later_pends_until_then() -> None:
    clock = SimClock()
    gateway = ScriptedGateway(clock, otherwise=Step.PEND)
    assert await gateway.charge(CHARGE) == await gateway.find_charge(CHARGE) == Pending()
    with pytest.raises(GatewayRejectedError):
        await gateway.refund(REFUND)  # there is no money yet
    with pytest.raises(ValueError, match="not decided"):
        gateway.event_of("p")
    await clock.advance(5)
    told = gateway.decide("p")
    assert await gateway.charge(CHARGE) == await gateway.find_charge(CHARGE) == Captured(told["occurred_at_ms"])
    assert await gateway.refund(REFUND) == await gateway.find_refund(REFUND) == Pending()
    assert await gateway.book() == GatewayBook(100, 0, 1, 0)
    told = gateway.decide("r")
    assert await gateway.refund(REFUND) == await gateway.find_refund(REFUND) == Refunded(told["occurred_at_ms"])
    assert gateway.event_of("r") == told
    assert await gateway.book() == GatewayBook(100, 60, 1, 1)


async def test_no_charge_gives_back_more_than_it_took() -> None:
    gateway = ScriptedGateway(SimClock())
    await gateway.charge(CHARGE)
    await gateway.refund(REFUND)
    second = replace(REFUND, refund_id="r2", amount_minor=40)
    for wrong in ({"amount_minor": 41}, {"currency": "EUR"}, {"payment_id": "ghost"}):
        with pytest.raises(GatewayRejectedError):
            await gateway.refund(replace(second, **wrong))
    await gateway.refund(second)
    assert await gateway.book() == GatewayBook(100, 100, 1, 2)


async def test_an_id_names_one_thing_for_ever() -> None:
    gateway = ScriptedGateway(SimClock())
    await gateway.charge(CHARGE)
    await gateway.charge(replace(CHARGE, payment_id="p2"))
    await gateway.refund(REFUND)
    for wrong in ({"amount_minor": 99}, {"currency": "EUR"}, {"order_id": "o2"}, {"method": PaymentMethod.WALLET}):
        with pytest.raises(GatewayRejectedError):
            await gateway.charge(replace(CHARGE, **wrong))
    for wrong_refund in ({"payment_id": "p2"}, {"amount_minor": 59}, {"currency": "EUR"}):
        with pytest.raises(GatewayRejectedError):
            await gateway.refund(replace(REFUND, **wrong_refund))
    assert await gateway.book() == GatewayBook(200, 60, 2, 1)


async def test_a_gateway_is_waited_for_only_so_long() -> None:
    clock = SimClock()
    gateway = ScriptedGateway(clock, otherwise=Step.HOLD)
    patient = PatientGateway(gateway, clock)
    for asking in (patient.charge(CHARGE), patient.refund(REFUND)):
        task = asyncio.create_task(asking)
        await clock.advance(PATIENCE_S)
        with pytest.raises(GatewayUnavailableError, match="within 10 s"):
            await task


async def test_the_gateways_book_is_waited_for_only_so_long() -> None:
    clock = SimClock()
    gateway = ScriptedGateway(clock)
    patient = PatientGateway(gateway, clock)
    assert await patient.book() == GatewayBook(0, 0, 0, 0)
    assert (await patient.find_charge(CHARGE), await patient.find_refund(REFUND)) == (None, None)
    gateway.book = asyncio.Event().wait  # type: ignore[assignment]  # never answers
    asking = asyncio.create_task(patient.book())
    await clock.advance(PATIENCE_S)
    with pytest.raises(GatewayUnavailableError, match="within 10 s"):
        await asking
