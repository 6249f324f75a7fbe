"""The life of a message, told back: what was done to it is what the broker tells, and nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.life import LifeEvent
from mq_broker.core.transactions import TransactionState
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import IncomingBatch
from mq_broker.testing import (
    BORN_IP,
    RecordingSession,
    client,
    half,
    keyed,
    life_in_words,
    produce,
    read_all,
    running_broker,
)
from mqproto.names import HALF_TOPIC, retry_topic
from mqproto.record import encode_record
from osenv import SimClock, SimDisk
from osenv.sim_clock import settle

START_MS = 1_700_000_000_000
MINUTE_S = 60
COMMIT, ROLLBACK, UNKNOW = (
    TransactionState.COMMIT_MESSAGE,
    TransactionState.ROLLBACK_MESSAGE,
    TransactionState.UNKNOW,
)
RETRY = retry_topic("g")


async def end(broker: Broker, state: TransactionState, *, from_check: bool = False) -> None:
    await broker.transactions.end("shop", "m", state, from_check=from_check)


async def give_back(broker: Broker, topic: str = "t", *, delay_level: int = 1, times_max: int = 0) -> None:
    """Group g gives back the newest message of the topic."""
    newest = (await read_all(broker, topic))[-1]
    await broker.send_back.send_back("g", newest.log_offset, delay_level=delay_level, max_reconsume_times=times_max)


async def commit_offset(broker: Broker, group: str, offset: int, topic: str = "t", queue_id: int = 0) -> None:
    assert broker.offsets.commit(group, [(topic, queue_id, Progress(offset))]) == ""


async def explain(broker: Broker, key: str = "k", topic: str = "", max_messages: int = 0) -> list[LifeEvent]:
    await settle()  # the index follows
    return await broker.explaining.explain(topic, key, max_messages=max_messages)


def in_words(events: list[LifeEvent]) -> list[str]:
    return life_in_words(events, START_MS)


# ------------------------------------------------------------------------------------------------------- histories

Story = Callable[[Broker, SimClock], Awaitable[object]]


async def plain(broker: Broker, _: SimClock) -> None:
    await produce(broker, keyed())


async def delayed_and_waiting(broker: Broker, clock: SimClock) -> None:
    await produce(broker, keyed(delay_level=3))
    await clock.advance(9)


async def delayed_and_delivered(broker: Broker, clock: SimClock) -> None:
    await produce(broker, keyed(delay_level=3))
    await clock.advance(11)


async def half_and_open(broker: Broker, clock: SimClock) -> None:
    await produce(broker, half("t", b"x", "m"))
    broker.sessions.heartbeat(RecordingSession(), client("c", producer="shop"))
    await clock.advance(MINUTE_S + 1)  # checked once: the log has it twice
    assert len(await read_all(broker, HALF_TOPIC)) == 2


async def committed(broker: Broker, clock: SimClock) -> None:
    await produce(broker, half("t", b"x", "m", queue_id=2))
    await clock.advance(1)
    await end(broker, COMMIT)


async def rolled_back(broker: Broker, clock: SimClock) -> None:
    await produce(broker, half("t", b"x", "m"))
    await clock.advance(1)
    await end(broker, ROLLBACK)


async def parked(broker: Broker, clock: SimClock) -> None:
    broker.sessions.heartbeat(RecordingSession(), client("member", producer="shop"))
    await produce(broker, half("t", b"x", "m"))
    await clock.advance(6)
    for _ in range(15):
        await broker.transactions.checks.check_all()
        await end(broker, UNKNOW, from_check=True)


async def retried_twice_then_dead(broker: Broker, clock: SimClock) -> None:
    await produce(broker, keyed())
    await commit_offset(broker, "g", 1)
    await give_back(broker)
    await clock.advance(1)
    await commit_offset(broker, "g", 1, RETRY)
    await give_back(broker, RETRY, delay_level=2)
    await clock.advance(6)
    await give_back(broker, RETRY, times_max=2)
    await commit_offset(broker, "g", 2, RETRY)


async def retried_and_waiting(broker: Broker, _: SimClock) -> None:
    await produce(broker, keyed())
    await commit_offset(broker, "g", 1)
    await commit_offset(broker, "other", 1)
    await give_back(broker, delay_level=0)


async def retried_and_come_back(broker: Broker, clock: SimClock) -> None:
    await retried_and_waiting(broker, clock)
    await clock.advance(10)


async def retried_and_read_again(broker: Broker, clock: SimClock) -> None:
    await retried_and_come_back(broker, clock)
    await commit_offset(broker, "g", 1, RETRY)


async def consumed_by_one_of_three(broker: Broker, _: SimClock) -> None:
    await produce(broker, keyed(unique_id="before"), keyed())
    await commit_offset(broker, "done", 2)
    await commit_offset(broker, "next", 1)
    await commit_offset(broker, "elsewhere", 0, queue_id=3)
    await produce(broker, keyed("u", unique_id="another"))
    await commit_offset(broker, "stranger", 1, "u")


async def sent_twice(broker: Broker, clock: SimClock) -> None:
    await produce(broker, keyed())
    await clock.advance(1)
    await produce(broker, keyed(queue_id=1))


HISTORIES: dict[Story, list[str]] = {
    plain: ["0s SENT t:0#0"],
    delayed_and_waiting: ["0s WAITING SCHEDULE_TOPIC_XXXX:2#0 due 10s"],
    delayed_and_delivered: ["0s WAITING SCHEDULE_TOPIC_XXXX:2#0 due 10s", "10s DELIVERED t:0#0 due 10s"],
    half_and_open: ["0s HALF RMQ_SYS_TRANS_HALF_TOPIC:0#0 group shop"],
    committed: ["0s HALF RMQ_SYS_TRANS_HALF_TOPIC:0#0 group shop", "1s COMMITTED t:2#0 group shop"],
    rolled_back: [
        "0s HALF RMQ_SYS_TRANS_HALF_TOPIC:0#0 group shop",
        "1s ROLLED_BACK RMQ_SYS_TRANS_OP_HALF_TOPIC:0#0 group shop",
    ],
    parked: [
        "0s HALF RMQ_SYS_TRANS_HALF_TOPIC:0#0 group shop",
        "6s PARKED TRANS_CHECK_MAX_TIME_TOPIC:0#0 group shop",
    ],
    retried_twice_then_dead: [
        "0s SENT t:0#0",
        "0s RETRIED SCHEDULE_TOPIC_XXXX:0#0 group g due 1s try 1",
        "1s DELIVERED %RETRY%g:0#0 group g due 1s try 1",
        "1s RETRIED SCHEDULE_TOPIC_XXXX:1#0 group g due 6s try 2",
        "6s DELIVERED %RETRY%g:0#1 group g due 6s try 2",
        "7s DEAD %DLQ%g:0#0 group g try 3",
    ],
    retried_and_waiting: [
        "0s SENT t:0#0",
        "0s RETRIED SCHEDULE_TOPIC_XXXX:2#0 group g due 10s try 1",
        "CONSUMED t:0#0 group other",
    ],
    retried_and_come_back: [
        "0s SENT t:0#0",
        "0s RETRIED SCHEDULE_TOPIC_XXXX:2#0 group g due 10s try 1",
        "10s DELIVERED %RETRY%g:0#0 group g due 10s try 1",
        "CONSUMED t:0#0 group other",
        "UNCONSUMED %RETRY%g:0#0 group g try 1",
    ],
    retried_and_read_again: [
        "0s SENT t:0#0",
        "0s RETRIED SCHEDULE_TOPIC_XXXX:2#0 group g due 10s try 1",
        "10s DELIVERED %RETRY%g:0#0 group g due 10s try 1",
        "CONSUMED t:0#0 group other",
        "CONSUMED %RETRY%g:0#0 group g try 1",
    ],
    consumed_by_one_of_three: [
        "0s SENT t:0#1",
        "CONSUMED t:0#1 group done",
        "UNCONSUMED t:0#1 group elsewhere",
        "UNCONSUMED t:0#1 group next",
    ],
    sent_twice: ["0s SENT t:0#0", "1s SENT t:1#0"],
}


@pytest.mark.parametrize("restart", [False, True], ids=["running", "after a restart"])
@pytest.mark.parametrize("story", HISTORIES, ids=lambda story: story.__name__)
async def test_what_happened_to_a_message_is_what_is_told(story: Story, restart: bool) -> None:
    disk, clock = SimDisk(), SimClock(START_MS)
    async with running_broker(disk, clock) as broker:
        await story(broker, clock)
        events = await explain(broker, "m")
    if restart:  # from the disk, and with tables that were rebuilt
        async with running_broker(disk, SimClock(clock.wall_ms())) as broker:
            events = await explain(broker, "m")
    assert in_words(events) == HISTORIES[story]
    assert {event.message_id for event in events} == {"m"}


class TestFound:
    async def test_an_unknown_key_has_no_events(self) -> None:
        async with running_broker(SimDisk(), SimClock(START_MS)) as broker:
            await produce(broker, keyed())
            assert await explain(broker, "K") == []
            assert await explain(broker, "k", topic="u") == []

    @pytest.mark.parametrize("story", HISTORIES, ids=lambda story: story.__name__)
    async def test_naming_the_topic_tells_the_same(self, story: Story) -> None:
        clock = SimClock(START_MS)
        async with running_broker(SimDisk(), clock) as broker:
            await story(broker, clock)
            assert await explain(broker, "m", topic="t") == await explain(broker, "m")
            assert await explain(broker, "m", topic="u") == []

    async def test_two_messages_with_one_key_are_told_by_time(self) -> None:
        clock = SimClock(START_MS)
        async with running_broker(SimDisk(), clock) as broker:
            await produce(broker, keyed("u", unique_id="later", delay_level=3))
            await produce(broker, keyed("t", unique_id="at-once"))
            await commit_offset(broker, "g", 0)
            await clock.advance(10)
            events = await explain(broker)
        assert [(event.message_id, event.kind.name) for event in events] == [
            ("later", "WAITING"),
            ("at-once", "SENT"),
            ("later", "DELIVERED"),
            ("at-once", "UNCONSUMED"),
        ]

    async def test_of_many_messages_the_newest_are_told(self) -> None:
        clock = SimClock(START_MS)
        async with running_broker(SimDisk(), clock) as broker:
            for number in range(40):
                await produce(broker, keyed(["t", "u"][number % 2], unique_id=f"m{number}", delay_level=number % 3))
            await clock.advance(10)
            newest: dict[str, int] = {}
            for event in await explain(broker, max_messages=2_000):
                newest[event.message_id] = max(event.log_offset, newest.get(event.message_id, 0))
            by_age = sorted(newest, key=newest.__getitem__, reverse=True)
            for asked, told in ((1, 1), (5, 5), (0, 32), (2_000, 40)):
                events = await explain(broker, max_messages=asked)
                assert {event.message_id for event in events} == set(by_age[:told])

    async def test_a_message_without_a_unique_id_is_told_by_its_records(self) -> None:
        clock = SimClock(START_MS)
        async with running_broker(SimDisk(), clock) as broker:
            for delay in ("", "DELAY\x013\x02"):
                properties = f"KEYS\x01k\x02{delay}".encode()
                record = encode_record(
                    topic=b"t", body=b"x", properties=properties, queue_id=0, born_timestamp_ms=1, born_ip=BORN_IP
                )
                await produce(broker, IncomingBatch("t", 0, 1, record))
            await clock.advance(10)
            assert in_words(await explain(broker)) == [
                "0s SENT t:0#0",
                "0s WAITING SCHEDULE_TOPIC_XXXX:2#0 due 10s",
                "10s DELIVERED t:0#1",
            ]

    async def test_a_key_that_is_another_message_s_id_is_told_of_both(self) -> None:
        async with running_broker(SimDisk(), SimClock(START_MS)) as broker:
            await produce(broker, keyed(unique_id="m", key="a"), keyed(unique_id="n", key="m"))
            events = await explain(broker, "m")
            assert [(event.message_id, event.queue_offset) for event in events] == [("m", 0), ("n", 1)]
