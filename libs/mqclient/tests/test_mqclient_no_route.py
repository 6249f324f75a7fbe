"""What a producer says when it finds no queue for its topic."""

from __future__ import annotations

import asyncio

import pytest

from mqclient import Message, NoRouteError, Producer
from mqclient.testing import FakeCluster


async def rejected(cluster: FakeCluster) -> str:
    async with Producer("shop", cluster.url) as producer:
        sending = asyncio.ensure_future(producer.send(Message("orders", b"x")))
        while not sending.done():
            await cluster.clock.advance(0.5)
        with pytest.raises(NoRouteError) as caught:
            sending.result()
    return str(caught.value)


async def test_without_any_broker_it_names_the_name_server_that_knows_none() -> None:
    assert "no broker is registered at the name server name-server-0; brokers register" in await rejected(FakeCluster())


async def test_where_topics_are_not_made_by_themselves_it_says_so_and_how_to_make_one() -> None:
    cluster = FakeCluster()
    cluster.add_broker("broker-a", auto_create=False)
    sentence = await rejected(cluster)
    assert "no registered broker has the topic 'orders'" in sentence
    assert "(autoCreateTopicEnable=false at broker-a); create it: mqadmin updateTopic -t orders" in sentence
