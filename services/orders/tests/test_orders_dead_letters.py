"""The shop's dead letters, on a broker with a real store in memory."""

from __future__ import annotations

import asyncio
import socket

import pytest

from mq_broker.embedded import EmbeddedBroker
from mqclient import Message
from mqclient.testing.recording import send_dead_letters
from orders.adapters.outside import LETTERS_MAX, MqDeadLetters
from orders.service.payments import UnknownDeadLetterError
from orders.service.queries import SHOP_GROUPS
from osenv import RealClock, SimClock
from servicekit.errors import QueueUnreachableError
from servicekit.process.queue import ANSWER_MAX_S

GROUPS = ("order-timeout-handler", "refund-handler")


async def test_letters_are_found_by_group_read_and_delivered_again(request: pytest.FixtureRequest) -> None:
    async with EmbeddedBroker(request.node.name, clock=SimClock(1_700_000_000_000)) as broker:
        message = Message("order-timeouts", b'{"order_id":"o-1"}', tag="expire", keys=["o-1"])
        await send_dead_letters(broker.url, GROUPS[0], [message, Message("order-timeouts", b"\xff")])
        letters = MqDeadLetters(broker.url, GROUPS, RealClock())
        with_some, without = await letters.open_letters()
        assert (without.group, without.letters, without.has_more) == ("refund-handler", (), False)
        first, second = with_some.letters
        assert (first.group, first.tag, first.keys, first.body) == (GROUPS[0], "expire", ("o-1",), '{"order_id":"o-1"}')
        assert second.body == "\N{REPLACEMENT CHARACTER}"
        await letters.replay(first.group, first.letter_id)
        for group, letter_id in ((first.group, first.letter_id), (first.group, "nothing"), ("others", "nothing")):
            with pytest.raises(UnknownDeadLetterError):
                await letters.replay(group, letter_id)
        (with_one, _) = await letters.open_letters()
        assert with_one.letters == (second,)


async def test_a_page_is_all_that_is_read_of_many(request: pytest.FixtureRequest) -> None:
    async with EmbeddedBroker(request.node.name, clock=SimClock(1_700_000_000_000)) as broker:
        many = [Message("order-timeouts", b"x") for _ in range(LETTERS_MAX + 1)]
        await send_dead_letters(broker.url, GROUPS[0], many)
        (found, _) = await MqDeadLetters(broker.url, GROUPS, RealClock()).open_letters()
        assert (len(found.letters), found.has_more) == (LETTERS_MAX, True)


async def test_a_queue_that_is_away_is_said_to_be(request: pytest.FixtureRequest) -> None:
    with pytest.raises(QueueUnreachableError):
        await MqDeadLetters("memory://unknown", GROUPS, RealClock()).open_letters()


async def test_a_queue_that_says_nothing_is_not_waited_for_for_ever() -> None:
    clock = SimClock()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections are made, and no answer comes
        url = f"mq://127.0.0.1:{silent.getsockname()[1]}"
        asking = asyncio.ensure_future(MqDeadLetters(url, GROUPS, clock).open_letters())
        while not asking.done():
            await clock.advance(ANSWER_MAX_S)
        with pytest.raises(QueueUnreachableError):
            await asking


def test_every_group_of_the_shop_is_looked_after() -> None:
    assert len(set(SHOP_GROUPS)) == 8
