"""Notices of changed topics: which clients get them, and when: after the name servers know."""

from __future__ import annotations

import asyncio

from mq_broker.core.topics import TopicConfig
from mq_broker.testing import RecordingSession, client, incoming, produce, running_broker
from mqproto.names import retry_topic
from osenv import SimClock, SimDisk
from osenv.sim_clock import settle


async def test_only_subscribers_hear_of_topics_that_are_made_changed_and_deleted() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        subscriber, stranger = RecordingSession(), RecordingSession()
        broker.sessions.heartbeat(subscriber, client("a", "g", topics={"t": "*", retry_topic("g"): "*"}))
        broker.sessions.heartbeat(stranger, client("b", "h", topics={"u": "*"}))
        await settle()
        await produce(broker, incoming("t", [b"x"], queue_id=0))
        await settle()
        await broker.topic_administration.update(TopicConfig("t", 8, 8))
        await settle()
        await broker.topic_administration.update(TopicConfig("t", 8, 8))
        await settle()
        await broker.topic_administration.delete("t")
        await settle()
        assert (subscriber.routes, stranger.routes) == (["t"] * 3, [])


async def test_no_client_hears_of_a_change_before_the_name_servers_do() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        subscriber, registered = RecordingSession(), asyncio.Event()

        async def announce() -> None:
            await registered.wait()

        broker.route_notices.announce = announce
        broker.sessions.heartbeat(subscriber, client("a", "g", topics={"t": "*", "u": "*", "v": "*"}))
        await produce(broker, incoming("t", [b"x"]))
        await settle()
        await produce(broker, incoming("v", [b"x"]), incoming("u", [b"x"]))
        await settle()
        assert subscriber.routes == []
        registered.set()
        await settle()
        assert subscriber.routes == ["t", "u", "v"]
