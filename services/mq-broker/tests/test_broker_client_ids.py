"""Two processes with one client id: the first one has it while it lives, and the other one hears why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mq_broker.core.limits import RejectedError
from mq_broker.core.members import HEARTBEAT_EXPIRY_MS, LOCK_EXPIRY_MS, ClientGroups, LockedQueue
from mq_broker.core.topics import TopicConfig
from mq_broker.processor.broker import Broker
from mq_broker.testing import RecordingSession, client, running_broker
from mqproto.codes import ResponseCode
from osenv import SimClock, SimDisk

ID = "172.17.0.2@till"
QUEUE = LockedQueue("t", 0)


def of(process: str, address: str = "") -> ClientGroups:
    return replace(client(ID, "g"), incarnation=process, connection=address)


def beat(broker: Broker, process: str, session: RecordingSession | None = None) -> tuple[ResponseCode, str]:
    said = of(process, f"ipv4:10.0.0.{len(process)}:40000")
    return broker.sessions.heartbeat(session or RecordingSession(), said)


async def test_another_process_is_rejected_while_the_first_lives_and_told_which_it_is() -> None:
    clock = SimClock()
    async with running_broker(SimDisk(), clock) as broker:
        first = RecordingSession()
        assert beat(broker, "1#a", first)[0] is ResponseCode.SUCCESS
        await clock.advance(7)
        code, sentence = beat(broker, "1#other")
        assert code is ResponseCode.CLIENT_ID_IN_USE
        assert f"{ID!r} is in use by process 1#a at ipv4:10.0.0.3:40000" in sentence
        assert "sent its last heartbeat 7 s ago; give each process an instance_name of its own" in sentence
        assert broker.sessions.members.session_of(ID, "g") is first


async def test_a_new_session_of_the_same_process_replaces_a_half_open_one_at_once() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        half_open, again = RecordingSession(), RecordingSession()
        beat(broker, "1#a", half_open)
        assert beat(broker, "1#a", again)[0] is ResponseCode.SUCCESS
        broker.sessions.ended(half_open, ID)
        assert broker.sessions.members.session_of(ID, "g") is again


@pytest.mark.parametrize("how", ["left", "silent"])
async def test_the_id_is_free_when_its_process_has_left_or_is_silent(how: str) -> None:
    clock = SimClock()
    async with running_broker(SimDisk(), clock) as broker:
        first, second = RecordingSession(), RecordingSession()
        beat(broker, "1#a", first)
        if how == "left":
            broker.sessions.ended(first, ID)
        else:
            await clock.advance(HEARTBEAT_EXPIRY_MS / 1_000 + 1)
        assert beat(broker, "1#b", second)[0] is ResponseCode.SUCCESS
        assert beat(broker, "1#a", first)[0] is ResponseCode.CLIENT_ID_IN_USE


@pytest.mark.parametrize("processes", [("", "1#b"), ("1#a", ""), ("", "")])
async def test_a_client_that_does_not_name_its_process_is_replaced_and_replaces_as_before(
    processes: tuple[str, str],
) -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        assert [beat(broker, process)[0] for process in processes] == [ResponseCode.SUCCESS] * 2


async def test_a_lock_belongs_to_the_process_and_not_to_its_client_id() -> None:
    clock = SimClock()
    async with running_broker(SimDisk(), clock) as broker:
        broker.topics.update(TopicConfig("t", 1, 1))
        first = RecordingSession()
        beat(broker, "1#a", first)
        assert await broker.queue_locking.lock("g", ID, [QUEUE], "1#a") == [QUEUE]
        with pytest.raises(RejectedError) as rejected:
            await broker.queue_locking.lock("g", ID, [QUEUE], "1#b")
        assert rejected.value.code is ResponseCode.CONSUMER_NOT_ONLINE
        broker.sessions.ended(first, ID)
        beat(broker, "1#b")
        broker.queue_locking.unlock("g", ID, [QUEUE], "1#b")
        assert await broker.queue_locking.lock("g", ID, [QUEUE], "1#b") == []
        await clock.advance(LOCK_EXPIRY_MS / 1_000)
        assert await broker.queue_locking.lock("g", ID, [QUEUE], "1#b") == [QUEUE]
