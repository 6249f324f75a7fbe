"""The webhooks: each decision is told until it was taken, in the order and at the moment that the failures say."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from osenv import SimClock
from osenv.sim_clock import settle
from sandbox_gateway.domain import REORDERED_HOLD_MAX_MS, DeliveryError, Failures
from sandbox_gateway.gateway import Behaviour
from sandbox_gateway.testing import RecordingReceiver, RunningGateway, running_gateway
from sandbox_gateway.webhooks import (
    ANSWER_SHOWN_MAX_CHARACTERS,
    ATTEMPT_MAX_S,
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    BATCH_MAX,
    HttpWebhooks,
)
from servicekit.testing import until
from servicekit.testing.databases import NewDatabaseUrl


def events(receiver: RecordingReceiver) -> list[dict[str, Any]]:
    return [json.loads(body) for body in receiver.taken]


def told(receiver: RecordingReceiver) -> list[str]:
    """Type and subject of what was taken, in the order in which it was."""
    return [f"{one['type']} {one['data'].get('refund_id', one['data']['charge_id'])}" for one in events(receiver)]


def quick(**failures: Any) -> Behaviour:
    """Decides at once."""
    return Behaviour(delay_ms=0, declines_above_minor=20_000, failures=Failures(**failures))


async def test_each_decision_is_told_once_with_all_that_has_to_match(new_database_url: NewDatabaseUrl) -> None:
    receiver = RecordingReceiver()
    async with running_gateway(new_database_url("gateway"), behaviour=quick(), receiver=receiver) as gateway:
        await gateway.charge("p1", amount_minor=100)
        await gateway.charge("p2", amount_minor=20_001)
        await gateway.refund("r1", "p1", amount_minor=60)
        now_ms = gateway.clock.wall_ms()
        await gateway.pass_time(60)
    captured, declined, refunded = events(receiver)
    ids = {one.pop("event_id") for one in (captured, declined, refunded)}
    assert len(ids) == 3
    charge = {"charge_id": "p1", "order_id": "order-of-p1", "amount_minor": 100, "currency": "CNY"}
    assert captured == {"type": "charge.captured", "occurred_at_ms": now_ms, "data": charge}
    assert declined["type"] == "charge.declined"
    assert declined["data"]["decline_reason"] == "the amount is over the limit"
    refund = charge | {"amount_minor": 60, "refund_id": "r1"}
    assert refunded == {"type": "refund.refunded", "occurred_at_ms": now_ms, "data": refund}


async def test_what_is_not_taken_is_sent_again_later_and_later_until_it_is(new_database_url: NewDatabaseUrl) -> None:
    receiver = RecordingReceiver(is_away=True)
    async with running_gateway(new_database_url("gateway"), behaviour=quick(), receiver=receiver) as gateway:
        await gateway.charge("p")
        await gateway.pass_time(BACKOFF_FIRST_S)
        assert receiver.rejected == 2
        await gateway.pass_time(600)
        assert 600 / BACKOFF_MAX_S <= receiver.rejected <= 2 * 600 / BACKOFF_MAX_S + 10
        receiver.is_away = False
        await gateway.pass_time(BACKOFF_MAX_S)
        assert told(receiver) == ["charge.captured p"]
        await gateway.pass_time(3600)
        assert len(receiver.taken) == 1


async def test_an_event_waits_for_earlier_ones_of_its_charge_and_for_no_others(
    new_database_url: NewDatabaseUrl,
) -> None:
    class AgainstOne(RecordingReceiver):
        """Rejects what is told of p1's capture."""

        async def deliver(self, body: bytes) -> None:
            if self.is_away and b"charge.captured" in body and b'"p1"' in body:
                raise DeliveryError("not this one")
            self.taken.append(body)

    receiver = AgainstOne(is_away=True)
    async with running_gateway(new_database_url("gateway"), behaviour=quick(), receiver=receiver) as gateway:
        await gateway.charge("p1")
        await gateway.charge("p2")
        await gateway.refund("r1", "p1")
        await gateway.refund("r2", "p2")
        await gateway.pass_time(60)
        assert told(receiver) == ["charge.captured p2", "refund.refunded r2"]
        receiver.is_away = False
        await gateway.pass_time(60)
    assert told(receiver)[2:] == ["charge.captured p1", "refund.refunded r1"]


async def test_a_late_event_waits_as_long_as_was_said(new_database_url: NewDatabaseUrl) -> None:
    receiver = RecordingReceiver()
    behaviour = quick(late=1, late_ms=3_000)
    async with running_gateway(new_database_url("gateway"), behaviour=behaviour, receiver=receiver) as gateway:
        await gateway.charge("p")
        await gateway.pass_time(2.999)
        assert receiver.taken == []
        assert (await gateway.charge("p")).json()["status"] == "captured", "a request shows it before"
        await gateway.pass_time(0.001)
    assert told(receiver) == ["charge.captured p"]


async def test_a_duplicated_event_is_the_very_same_twice(new_database_url: NewDatabaseUrl) -> None:
    receiver = RecordingReceiver()
    async with running_gateway(
        new_database_url("gateway"), behaviour=quick(duplicated=1), receiver=receiver
    ) as gateway:
        await gateway.charge("p")
        await gateway.pass_time(60)
    assert len(receiver.taken) == 2
    assert receiver.taken[0] == receiver.taken[1]


async def test_reordered_events_overtake_each_other(new_database_url: NewDatabaseUrl) -> None:
    receiver = RecordingReceiver()
    async with running_gateway(new_database_url("gateway"), behaviour=quick(reordered=1), receiver=receiver) as gateway:
        await gateway.charge("p")
        for number in range(8):
            await gateway.refund(f"r{number}", "p", amount_minor=1)
        await gateway.pass_time(REORDERED_HOLD_MAX_MS / 1000)
    in_order = ["charge.captured p", *(f"refund.refunded r{number}" for number in range(8))]
    assert sorted(told(receiver)) == in_order
    assert told(receiver) != in_order


async def test_what_is_never_told_is_known_on_request(new_database_url: NewDatabaseUrl) -> None:
    receiver = RecordingReceiver()
    async with running_gateway(new_database_url("gateway"), behaviour=quick(never=1), receiver=receiver) as gateway:
        await gateway.charge("p")
        await gateway.refund("r", "p")
        await gateway.pass_time(3600)
        assert receiver.taken == []
        assert (await gateway.http.get("/v1/charges/p")).json()["status"] == "captured"
        assert (await gateway.http.get("/v1/refunds/r")).json()["status"] == "refunded"


async def test_after_a_restart_everything_is_decided_and_sent_that_was_not(new_database_url: NewDatabaseUrl) -> None:
    url, clock, receiver = new_database_url("gateway"), SimClock(), RecordingReceiver(is_away=True)
    async with running_gateway(url, receiver=receiver, clock=clock) as gateway:
        await gateway.charge("told-not-taken")
        await gateway.pass_time(1)
        await gateway.charge("not-decided")
    receiver.is_away = False
    async with running_gateway(url, receiver=receiver, clock=clock) as gateway:
        await gateway.pass_time(BACKOFF_MAX_S)
        assert told(receiver) == ["charge.captured not-decided", "charge.captured told-not-taken"]
        assert (await gateway.http.get("/v1/book")).json()["captures"] == 2


async def test_more_than_a_batch_is_told(new_database_url: NewDatabaseUrl) -> None:
    receiver, count = RecordingReceiver(), 2 * BATCH_MAX + 10
    async with running_gateway(new_database_url("gateway"), receiver=receiver) as gateway:
        for number in range(count):
            await gateway.charge(f"p{number}")
        await gateway.pass_time(1)
    assert len(set(receiver.taken)) == len(receiver.taken) == count


class HangingReceiver:
    """Implements `WebhookReceiver`; never answers."""

    def __init__(self) -> None:
        self.asked = 0

    async def deliver(self, body: bytes) -> None:
        self.asked += 1
        await asyncio.Event().wait()


async def test_an_answer_is_waited_for_only_so_long(new_database_url: NewDatabaseUrl) -> None:
    receiver = HangingReceiver()
    async with running_gateway(new_database_url("gateway"), behaviour=quick(), receiver=receiver) as gateway:
        await gateway.charge("p")
        sending = asyncio.create_task(gateway.application.sender.send_due())
        await until(lambda: receiver.asked == 1)
        await gateway.clock.advance(ATTEMPT_MAX_S)
        await sending
        assert await rows(gateway) == [("charge.captured", 1, 0, 1, f"no answer within {ATTEMPT_MAX_S:.0f} s")]
        sending = asyncio.create_task(gateway.pass_time(BACKOFF_FIRST_S))
        await until(lambda: receiver.asked == 2)
        sending.cancel()
        await asyncio.wait({sending})


async def test_the_background_work_decides_and_tells_by_itself(new_database_url: NewDatabaseUrl) -> None:
    receiver = RecordingReceiver()
    async with running_gateway(new_database_url("gateway"), receiver=receiver, runs_background=True) as gateway:
        for number in range(3):
            await gateway.charge(f"p{number}")
            taken = number + 1

            def is_told(count: int = taken) -> bool:
                return len(receiver.taken) == count

            # Time passes only while the loops wait for it.
            while not is_told():
                await until(lambda: is_told() or gateway.clock.timers >= 2)
                await gateway.clock.advance(0.01)
                await settle()
        for work in gateway.application.background:
            work.stop()
    assert told(receiver) == ["charge.captured p0", "charge.captured p1", "charge.captured p2"]


# ------------------------------------------------------------------------------------------------------- over HTTP

SECRETS = ("s" * 32, "o" * 32)


def http_webhooks(answer: Callable[[httpx.Request], httpx.Response]) -> HttpWebhooks:
    return HttpWebhooks("http://payments/webhooks/gateway", SECRETS, SimClock(), httpx.MockTransport(answer))


async def test_a_webhook_is_signed_with_every_secret_over_its_moment_and_its_raw_body() -> None:
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(204)

    webhooks = http_webhooks(answer)
    await webhooks.deliver(b'{"event_id":"e"}')
    await webhooks.close()
    (request,) = requests
    assert (request.method, request.url.path, request.content) == ("POST", "/webhooks/gateway", b'{"event_id":"e"}')
    assert request.headers["Content-Type"] == "application/json"
    expected = [hmac.new(key.encode(), b'1700000000.{"event_id":"e"}', hashlib.sha256).hexdigest() for key in SECRETS]
    assert request.headers["Gateway-Signature"] == f"t=1700000000,v1={expected[0]},v1={expected[1]}"


@pytest.mark.parametrize("status", [302, 400, 401, 404, 422, 500, 503])
async def test_whatever_is_not_2xx_was_not_taken(status: int) -> None:
    webhooks = http_webhooks(lambda _: httpx.Response(status, headers={"Location": "/else"}, text="no" * 1000))
    with pytest.raises(DeliveryError, match=f"answered {status}: no") as caught:
        await webhooks.deliver(b"{}")
    await webhooks.close()
    assert len(str(caught.value)) < ANSWER_SHOWN_MAX_CHARACTERS + 100


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), httpx.ReadError("reset")])
async def test_a_receiver_that_does_not_answer_has_taken_nothing(error: httpx.TransportError) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise error

    webhooks = http_webhooks(answer)
    with pytest.raises(DeliveryError, match="does not answer"):
        await webhooks.deliver(b"{}")
    await webhooks.close()


async def test_what_is_sent_is_what_is_written(new_database_url: NewDatabaseUrl) -> None:
    """One row for each event, with what became of it: the invariants read it."""
    receiver = RecordingReceiver(is_away=True)
    async with running_gateway(new_database_url("gateway"), behaviour=quick(), receiver=receiver) as gateway:
        await gateway.charge("p")
        await gateway.pass_time(0)
        assert await rows(gateway) == [("charge.captured", 1, 0, 1, "the receiver is away")]
        receiver.is_away = False
        await gateway.pass_time(1)
        assert await rows(gateway) == [("charge.captured", 1, 1, 2, None)]


async def rows(gateway: RunningGateway) -> list[tuple[Any, ...]]:
    async with gateway.database.snapshot() as connection:
        found = await connection.exec_driver_sql(
            "SELECT type, copies_wanted, copies_sent, attempts, last_error FROM webhooks ORDER BY webhook_id"
        )
        return [tuple(row) for row in found]
