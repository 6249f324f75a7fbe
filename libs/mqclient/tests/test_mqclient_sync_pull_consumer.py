"""The pull consumer without `await`, against the fakes behind gRPC."""

from __future__ import annotations

import asyncio
import inspect
import threading

import pytest

from mqclient import IllegalStateError, MessageQueue, PullConsumer, PullStatus
from mqclient.sync import SyncPullConsumer
from mqclient.testing.loopback import loopback_server

QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.mark.mechanism("C5")
async def test_a_script_pulls_polls_and_commits() -> None:
    def script(url: str) -> None:
        with SyncPullConsumer("readers", url) as consumer:
            assert len(consumer.fetch_subscribe_message_queues("orders")) == 4
            assert consumer.committed(QUEUE) is None
            found = consumer.pull(QUEUE, 0, max_messages=2)
            assert (found.status, [message.body for message in found.messages]) == (PullStatus.FOUND, [b"0", b"1"])
            consumer.commit(QUEUE, found.next_begin_offset)
            consumer.assign([QUEUE])
            assert [message.body for message in consumer.poll(10)] == [b"2"]
            assert consumer.position(QUEUE) == 3
            consumer.commit_all()
            assert consumer.committed(QUEUE) == 3
            consumer.seek_to_begin(QUEUE)
            assert len(consumer.poll(10)) == 3
            consumer.reset(QUEUE, 1)
        with pytest.raises(IllegalStateError, match="is not running"):
            consumer.poll(0)

    async with loopback_server() as loopback:
        for number in range(3):
            loopback.broker.put("orders", 0, b"%d" % number)
        await asyncio.to_thread(script, loopback.url)
        assert loopback.broker.offsets == {("readers", "orders", 0): 1}
        assert [thread.name for thread in threading.enumerate() if thread.name == "mqclient sync"] == []


def test_it_has_every_method_of_the_asyncio_class() -> None:
    public = {name for name, _ in inspect.getmembers(PullConsumer, inspect.isfunction) if not name.startswith("_")}
    assert public <= set(dir(SyncPullConsumer))
    for name in public - {"start", "shutdown"}:
        wanted = list(inspect.signature(getattr(PullConsumer, name)).parameters.values())[1:]
        assert list(inspect.signature(getattr(SyncPullConsumer, name)).parameters.values())[1:] == wanted
