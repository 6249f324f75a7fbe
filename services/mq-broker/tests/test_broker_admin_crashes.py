"""The broker dies at any disk call of an operator's change: it has happened wholly or not at all, and for good once it
was answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.limits import RejectedError
from mq_broker.core.subscription_groups import SubscriptionGroup
from mq_broker.core.topics import TopicConfig
from mq_broker.processor.broker import Broker
from mq_broker.store.message_store import FlushDiskType
from mq_broker.testing import (
    STORE_ROOT,
    RecordingSession,
    client,
    incoming,
    produce,
    read_all,
    running_broker,
    store_options,
)
from mq_broker.tools.dump_log import DumpOptions, dump
from mqproto.codes import ResponseCode
from mqproto.names import retry_topic
from osenv import SeededRng, SimClock, SimDisk

CHANGING_CALLS = {"open", "pwrite", "sync_data", "sync_dir", "truncate", "replace", "unlink", "make_dirs"}

Accident = Callable[[SimDisk], None]
Change = Callable[[Broker], Awaitable[object]]


class _Nothing(SeededRng):
    """Nothing that was not synced survives."""

    def randrange(self, start: int, stop: int) -> int:  # type: ignore[override]
        return start


ACCIDENTS: dict[str, Accident] = {
    "kill": SimDisk.kill,
    "power cut that takes all": lambda disk: disk.crash(_Nothing(0)),
    "power cut": lambda disk: disk.crash(SeededRng(1)),
    "another power cut": lambda disk: disk.crash(SeededRng(2)),
}


async def prepare(broker: Broker) -> None:
    """Three messages of `t` of which `g` has consumed two, one that waits to be tried again, and a group's settings."""
    await produce(broker, incoming("t", [b"0", b"1", b"2"]), incoming("u", [b"u"]))
    session = RecordingSession()
    broker.sessions.heartbeat(session, client("c", "g"))
    await produce(broker, incoming(retry_topic("g"), [b"again"]))
    broker.sessions.ended(session, "c")
    broker.offsets.commit("g", [("t", 0, Progress(2)), ("u", 0, Progress(1)), (retry_topic("g"), 0, Progress(0))])
    await broker.store.checkpoint()


async def moments(change: Change) -> tuple[list[SimDisk], SimDisk]:
    """The disk before and after each call of the change that may change it, and when it was answered."""
    disk, forks = SimDisk(), list[SimDisk]()

    def keep(call: str, path: Path) -> None:
        if call in CHANGING_CALLS:
            forks.append(disk.fork())

    async with running_broker(disk, SimClock(), clean_stop=False) as broker:
        await prepare(broker)
        disk.before = disk.after = keep
        await change(broker)
        disk.before = disk.after = lambda call, path: None
        answered = disk.fork()
    return forks, answered


async def bodies(broker: Broker, topic: str = "t") -> list[bytes]:
    return [record.body for record in await read_all(broker, topic)]


async def is_deleted(disk: SimDisk) -> bool:
    """Whether topic `t` is wholly gone; it is wholly there otherwise."""
    async with running_broker(disk, SimClock()) as broker:
        gone = broker.topics.get("t") is None
        assert await bodies(broker) == ([] if gone else [b"0", b"1", b"2"])
        assert broker.consumer_offsets.query("g", "t", 0) == (None if gone else 2)
        assert broker.consumer_offsets.query("g", "u", 0) == 1
        assert await bodies(broker, "u") == [b"u"]
        (outcome,) = await produce(broker, incoming("t", [b"new"]))
        assert outcome.base_queue_offset == 3
        assert (await bodies(broker))[-1] == b"new"
    lines: list[str] = []
    assert dump(disk, DumpOptions(STORE_ROOT, verify=True, index_slots=64), lines.append) == 0, "\n".join(lines)
    return gone


@pytest.mark.parametrize("accident", ACCIDENTS)
class TestDeleteTopic:
    async def test_death_at_any_call_leaves_all_of_it_or_nothing(self, accident: str) -> None:
        forks, _ = await moments(lambda broker: broker.topic_administration.delete("t"))
        assert len(forks) > 10
        fates = []
        for fork in forks:
            ACCIDENTS[accident](fork)
            fates.append(await is_deleted(fork))
        assert not fates[0]
        assert fates[-1]

    async def test_once_answered_it_is_gone(self, accident: str) -> None:
        _, answered = await moments(lambda broker: broker.topic_administration.delete("t"))
        ACCIDENTS[accident](answered)
        assert await is_deleted(answered)

    async def test_what_was_not_on_disk_yet_hides_nothing_that_comes_later(self, accident: str) -> None:
        disk = SimDisk()
        lazy = store_options(flush=FlushDiskType.ASYNC_FLUSH)
        async with running_broker(disk, SimClock(), store=lazy, clean_stop=False) as broker:
            await produce(broker, incoming("t", [b"0", b"1", b"2"]))
            await broker.topic_administration.delete("t")
        ACCIDENTS[accident](disk)
        async with running_broker(disk, SimClock(), store=lazy, clean_stop=False) as broker:
            assert broker.topics.get("t") is None
            await produce(broker, incoming("t", [b"new"]))
            assert await bodies(broker) == [b"new"]
            await broker.store.flusher.flush()
        disk.kill()
        async with running_broker(disk, SimClock(), store=lazy) as broker:
            assert await bodies(broker) == [b"new"]


CHANGES: dict[str, tuple[Change, Callable[[Broker], object]]] = {
    "a topic is made": (
        lambda broker: broker.topic_administration.update(TopicConfig("v", 3, 2, 4)),
        lambda broker: broker.topics.get("v"),
    ),
    "a group is changed": (
        lambda broker: broker.group_administration.update(SubscriptionGroup("g", 3, consume_enable=False)),
        lambda broker: broker.groups.get("g"),
    ),
    "a group is deleted": (
        lambda broker: broker.group_administration.delete("g", clean_offsets=False),
        lambda broker: broker.groups.get("g"),
    ),
    "a group is deleted with its offsets": (
        lambda broker: broker.group_administration.delete("g", clean_offsets=True),
        lambda broker: (broker.groups.get("g"), broker.offsets.query("g", "u", 0), broker.topics.get(retry_topic("g"))),
    ),
    "offsets are reset": (
        lambda broker: broker.consume_progress.reset("g", "t", 0, force=True),
        lambda broker: broker.consumer_offsets.query("g", "t", 0),
    ),
}


@pytest.mark.parametrize("accident", ACCIDENTS)
@pytest.mark.parametrize("change", CHANGES)
async def test_what_was_answered_survives(change: str, accident: str) -> None:
    make, look = CHANGES[change]
    seen: list[object] = []

    async def made(broker: Broker) -> None:
        before = look(broker)
        await make(broker)
        seen.append(look(broker))
        assert seen[0] != before

    _, answered = await moments(made)
    ACCIDENTS[accident](answered)
    async with running_broker(answered, SimClock()) as broker:
        assert look(broker) == seen[0]


@pytest.mark.parametrize("accident", ACCIDENTS)
async def test_a_group_s_deletion_that_was_cut_short_can_be_asked_for_again(accident: str) -> None:
    forks, _ = await moments(lambda broker: broker.group_administration.delete("g", clean_offsets=True))
    rejections = set()
    for fork in forks:
        ACCIDENTS[accident](fork)
        async with running_broker(fork, SimClock()) as broker:
            try:
                await broker.group_administration.delete("g", clean_offsets=True)
            except RejectedError as error:
                rejections.add(error.code)
            assert broker.groups.get("g") is None
            assert [one for one in broker.consumer_offsets.all() if one[0] == "g"] == []
            assert broker.topics.get(retry_topic("g")) is None
            assert await bodies(broker) == [b"0", b"1", b"2"]
    assert rejections == {ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST}
