"""Commands to active consumers: the target, rejections, and the time for an answer (mechanisms L11, L13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from mq_broker.core.limits import RejectedError
from mq_broker.core.members import Connection, Consumer, Subscription
from mq_broker.processor.broker import Broker
from mq_broker.processor.group_administration import CommandAnswer
from mq_broker.testing import RecordingSession, client, half, incoming, produce, read_all, running_broker
from mqproto.codes import ResponseCode
from mqproto.names import HALF_TOPIC, SCHEDULE_TOPIC, dlq_topic, retry_topic
from mqproto.record import decode_record
from osenv import SimClock, SimDisk
from osenv.sim_clock import settle

START_MS = 1_700_000_000_000
ANSWER = CommandAnswer(ResponseCode.SUCCESS, "", "the result")


@dataclass
class Group:
    """A broker, and the member a of the group g, which subscribes to t."""

    broker: Broker
    clock: SimClock
    session: RecordingSession

    async def begun(self, command: Coroutine[None, None, object]) -> tuple[asyncio.Task[object], int, bytes]:
        """The command under way, its id and its record."""
        task = asyncio.ensure_future(command)
        async with asyncio.timeout(10):
            while not self.session.commands:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0)
        command_id, group, record = self.session.commands.pop()
        assert group == "g"
        return task, command_id, record

    def running_info(self) -> Coroutine[None, None, object]:
        return self.broker.client_commands.running_info("g", "a")

    def answer(self, command_id: int, answer: CommandAnswer = ANSWER, session: RecordingSession | None = None) -> None:
        self.broker.client_commands.answered(session or self.session, command_id, answer)

    async def stored(self, topic: str = "t", *, delay_level: int = 0) -> int:
        """The place of a new message in the log."""
        (outcome,) = await produce(self.broker, incoming(topic, [b"body"], delay_level=delay_level))
        return outcome.base_log_offset


@asynccontextmanager
async def group() -> AsyncIterator[Group]:
    clock = SimClock(START_MS)
    async with running_broker(SimDisk(), clock) as broker:
        session = RecordingSession()
        broker.sessions.heartbeat(session, client("a", "g", topics={"t": "*"}))
        yield Group(broker, clock, session)


async def rejected(command: Coroutine[None, None, object]) -> tuple[ResponseCode, str]:
    with pytest.raises(RejectedError) as error:
        await command
    return error.value.code, str(error.value)


class TestAnswers:
    async def test_the_answer_is_passed_on_as_it_came(self) -> None:
        async with group() as one:
            task, command_id, _ = await one.begun(one.running_info())
            one.answer(command_id)
            assert await task == "the result"

    async def test_what_the_client_rejects_is_rejected(self) -> None:
        async with group() as one:
            task, command_id, _ = await one.begun(one.running_info())
            one.answer(command_id, CommandAnswer(ResponseCode.CONSUMER_NOT_ONLINE, "it has left", None))
            assert await rejected(_awaited(task)) == (ResponseCode.CONSUMER_NOT_ONLINE, "it has left")

    async def test_two_commands_get_each_its_own_answer(self) -> None:
        async with group() as one:
            first, first_id, _ = await one.begun(one.running_info())
            second, second_id, _ = await one.begun(one.running_info())
            one.answer(second_id, CommandAnswer(ResponseCode.SUCCESS, "", 2))
            one.answer(first_id, CommandAnswer(ResponseCode.SUCCESS, "", 1))
            assert [await first, await second] == [1, 2]

    async def test_only_the_session_that_was_asked_can_answer_and_only_once(self) -> None:
        async with group() as one:
            task, command_id, _ = await one.begun(one.running_info())
            one.answer(command_id, session=RecordingSession())
            one.answer(command_id + 1)
            await settle()
            assert not task.done()
            one.answer(command_id)
            one.answer(command_id, CommandAnswer(ResponseCode.SUCCESS, "", "late"))
            assert await task == "the result"
            one.answer(command_id)

    @pytest.mark.parametrize(("directly", "seconds"), [(False, 5), (True, 30)])
    async def test_a_silent_client_is_waited_for_so_long(self, *, directly: bool, seconds: int) -> None:
        async with group() as one:
            at = await one.stored()
            commands = one.broker.client_commands
            task, _, _ = await one.begun(commands.consume_directly("g", "a", at) if directly else one.running_info())
            await one.clock.advance(seconds - 0.001)
            assert not task.done()
            await one.clock.advance(0.001)
            code, sentence = await rejected(_awaited(task))
            assert (code, sentence) == (ResponseCode.CONSUMER_NOT_ONLINE, f"'a' has not answered within {seconds} s")

    @pytest.mark.mechanism("L11")
    async def test_the_end_of_the_session_is_told_at_once(self) -> None:
        async with group() as one:
            task, _, _ = await one.begun(one.running_info())
            one.broker.client_commands.ended(RecordingSession())
            await settle()
            assert not task.done()
            one.broker.client_commands.ended(one.session)
            code, sentence = await rejected(_awaited(task))
            assert (code, "session has ended" in sentence) == (ResponseCode.CONSUMER_NOT_ONLINE, True)

    @pytest.mark.parametrize(
        ("group_", "code"),
        [("g", ResponseCode.CONSUMER_NOT_ONLINE), ("unknown", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)],
    )
    async def test_who_is_not_there_is_not_asked(self, group_: str, code: ResponseCode) -> None:
        async with group() as one:
            at = await one.stored()
            commands = one.broker.client_commands
            client_id = "b" if group_ == "g" else "a"
            assert (await rejected(commands.running_info(group_, client_id)))[0] is code
            assert (await rejected(commands.consume_directly(group_, client_id, at)))[0] is code
            assert one.session.commands == []


class TestConnections:
    async def test_each_member_with_what_it_said_and_when(self) -> None:
        async with group() as one:
            await one.clock.advance(7)
            one.broker.sessions.heartbeat(RecordingSession(), client("b", "g", topics={"t": ""}))
            assert one.broker.client_commands.connections("g") == [
                Connection("a", Consumer("g", (Subscription("t", "*"),)), START_MS),
                Connection("b", Consumer("g", (Subscription("t", ""),)), START_MS + 7_000),
            ]

    async def test_a_group_without_members_has_none_and_an_unknown_one_is_rejected(self) -> None:
        async with group() as one:
            one.broker.sessions.ended(one.session, "a")
            assert one.broker.client_commands.connections("g") == []
            with pytest.raises(RejectedError, match="group 'unknown' does not exist"):
                one.broker.client_commands.connections("unknown")


class TestConsumingDirectly:
    async def consumed(self, one: Group, at: int) -> bytes:
        """The record that the member got, after it has answered."""
        task, command_id, record = await one.begun(one.broker.client_commands.consume_directly("g", "a", at))
        one.answer(command_id)
        assert await task == "the result"
        return record

    async def test_the_member_gets_the_record_and_no_offset_moves(self) -> None:
        async with group() as one:
            at = await one.stored()
            record = decode_record(await self.consumed(one, at))
            assert (record.topic, record.body, record.log_offset) == ("t", b"body", at)
            assert one.broker.consumer_offsets.query("g", "t", 0) is None

    @pytest.mark.parametrize("level", [0, -1])
    async def test_what_the_group_has_to_try_again_or_has_given_up_is_allowed(self, level: int) -> None:
        async with group() as one:
            await one.broker.send_back.send_back("g", await one.stored(), delay_level=level, max_reconsume_times=0)
            await one.clock.advance(11)
            topic = dlq_topic("g") if level else retry_topic("g")
            (record,) = await read_all(one.broker, topic)
            assert decode_record(await self.consumed(one, record.log_offset)).topic == topic

    async def test_what_still_waits_is_rejected(self) -> None:
        async with group() as one:
            await one.stored(delay_level=3)
            (record,) = await read_all(one.broker, SCHEDULE_TOPIC, 2)
            code, sentence = await rejected(one.broker.client_commands.consume_directly("g", "a", record.log_offset))
            assert (code, "still waits for its delivery" in sentence) == (ResponseCode.MESSAGE_ILLEGAL, True)

    @pytest.mark.parametrize("topic", ["other", dlq_topic("h"), HALF_TOPIC])
    async def test_what_the_member_does_not_subscribe_to_is_rejected(self, topic: str) -> None:
        async with group() as one:
            at = await one.stored("other")
            await one.broker.send_back.send_back("h", at, delay_level=-1, max_reconsume_times=0)
            await produce(one.broker, half("t", b"body", "id"))
            (record,) = await read_all(one.broker, topic)
            code, sentence = await rejected(one.broker.client_commands.consume_directly("g", "a", record.log_offset))
            assert (code, repr(topic) in sentence) == (ResponseCode.MESSAGE_ILLEGAL, True)

    async def test_a_place_without_a_message_is_not_found(self) -> None:
        async with group() as one:
            at = await one.stored()
            for nowhere in (at + 4, 1 << 40, -1):
                code, _ = await rejected(one.broker.client_commands.consume_directly("g", "a", nowhere))
                assert code is ResponseCode.QUERY_NOT_FOUND


async def _awaited(task: asyncio.Task[object]) -> object:
    return await task
