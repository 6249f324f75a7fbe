"""A transactional message that carries a delay waits it from its commit on, and is delivered once (mechanism T1)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mq_broker.core.life import LifeEvent
from mq_broker.processor.broker import Broker
from mq_broker.testing import (
    COMMIT,
    ROLLBACK,
    asking_at_once,
    check_and_answer,
    end,
    half,
    join,
    life_in_words,
    park,
    produce,
    read_all,
    running_broker,
    visible,
)
from mqproto.codes import ResponseCode
from mqproto.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from mqproto.properties import DELAY, PGROUP, TAGS, TIMER_DELAY_MS, TIMER_DELIVER_MS, UNIQ_KEY, decode_properties
from mqproto.record import FLAG_TRANSACTION_COMMIT, FLAG_TRANSACTION_MASK
from osenv import SeededRng, SimClock, SimDisk
from osenv.sim_clock import settle

START_MS = 1_700_000_000_000
PREPARED_S, WAIT_S = 100, 30
DELAYS: dict[str, Mapping[str, str]] = {
    "level": {DELAY: "4"},
    "delay": {TIMER_DELAY_MS: str(WAIT_S * 1_000)},
    "due time": {TIMER_DELIVER_MS: str(START_MS + (PREPARED_S + WAIT_S) * 1_000)},
}
OPTIONS = asking_at_once(check_times_max=3)


async def commit_by(party: str, broker: Broker) -> None:
    if party == "producer":
        assert (await end(broker, "tx", COMMIT)).outcome is COMMIT
    elif party == "check":
        join(broker)
        assert (await check_and_answer(broker, "tx", COMMIT)).outcome is COMMIT
    else:
        await broker.transactions.decide("tx", COMMIT)


@pytest.mark.mechanism("T1")
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("party", ["producer", "check", "operator"])
@pytest.mark.parametrize("delay", DELAYS)
async def test_the_delay_counts_from_the_commit(delay: str, party: str, restart: bool) -> None:
    disk, clock = SimDisk(), SimClock(START_MS)
    async with running_broker(disk, clock, options=OPTIONS, clean_stop=not restart) as broker:
        await produce(broker, half("t", b"x", "tx", properties=DELAYS[delay]))
        await clock.advance(PREPARED_S)
        assert (await visible(broker), await read_all(broker, SCHEDULE_TOPIC, 3)) == ([], [])
        await commit_by(party, broker)
        topic, queue_id = (SCHEDULE_TOPIC, 3) if delay == "level" else (TIMER_TOPIC, 0)
        assert len(await read_all(broker, topic, queue_id)) == 1
        await clock.advance(WAIT_S - 1)
        assert await visible(broker) == []
        offset = (await read_all(broker, HALF_TOPIC))[-1].queue_offset
    disk.kill() if restart else None
    again = SimClock(clock.wall_ms())
    async with running_broker(disk, again, options=OPTIONS) as broker:
        assert (await end(broker, "tx", ROLLBACK)).outcome is COMMIT
        await again.advance(1)
        (record,) = await read_all(broker, "t")
        assert record.sys_flag & FLAG_TRANSACTION_MASK == FLAG_TRANSACTION_COMMIT
        assert record.prepared_transaction_offset == offset
        properties = decode_properties(record.properties)
        own = {name: value for name, value in properties.items() if not name.startswith("__") and name != "WAIT"}
        assert own == {UNIQ_KEY: "tx", PGROUP: "shop", TAGS: "created"}
        await again.advance(3_600)
        assert await visible(broker) == [b"x"]


@pytest.mark.parametrize("delay", DELAYS)
async def test_a_rolled_back_message_waits_for_nothing(delay: str) -> None:
    clock = SimClock(START_MS)
    async with running_broker(SimDisk(), clock) as broker:
        await produce(broker, half("t", b"x", "tx", properties=DELAYS[delay]))
        assert (await end(broker, "tx", ROLLBACK)).outcome is ROLLBACK
        await clock.advance(3_600)
        assert await visible(broker) == []


async def test_a_due_time_that_has_passed_before_the_commit_is_at_once() -> None:
    clock = SimClock(START_MS)
    async with running_broker(SimDisk(), clock) as broker:
        await produce(broker, half("t", b"x", "tx", properties={TIMER_DELIVER_MS: str(START_MS + 1_000)}))
        await clock.advance(50)
        assert await visible(broker) == []
        await end(broker, "tx", COMMIT)
        await clock.advance(0)
        assert await visible(broker) == [b"x"]


@pytest.mark.parametrize(
    "properties",
    [
        {TIMER_DELAY_MS: str(40 * 24 * 3_600_000 + 1)},
        {TIMER_DELIVER_MS: str(START_MS + 40 * 24 * 3_600_000 + 1)},
        {DELAY: "x"},
        {DELAY: "1", TIMER_DELAY_MS: "1"},
    ],
)
async def test_a_delay_that_makes_no_sense_is_rejected_before_the_local_transaction(
    properties: Mapping[str, str],
) -> None:
    async with running_broker(SimDisk(), SimClock(START_MS)) as broker:
        (outcome,) = await produce(broker, half("t", b"x", "tx", properties=properties))
        assert outcome.code is ResponseCode.MESSAGE_ILLEGAL
        assert outcome.remark


async def test_its_life_is_told_from_the_half_to_the_delivery() -> None:
    clock = SimClock(START_MS)

    async def explain(broker: Broker) -> list[LifeEvent]:
        await settle()  # the index follows
        return await broker.explaining.explain("", "tx", max_messages=0)

    async with running_broker(SimDisk(), clock, options=OPTIONS) as broker:
        await park(broker, "tx", properties=DELAYS["delay"])
        await clock.advance(5)
        await broker.transactions.decide("tx", COMMIT)
        await clock.advance(WAIT_S)
        assert life_in_words(await explain(broker), START_MS) == [
            "0s HALF RMQ_SYS_TRANS_HALF_TOPIC:0#0 group shop",
            "0s PARKED TRANS_CHECK_MAX_TIME_TOPIC:0#0 group shop",
            "5s WAITING rmq_sys_wheel_timer:0#0 due 35s",
            "5s COMMITTED TRANS_CHECK_MAX_TIME_TOPIC:0#1 group shop",
            "35s DELIVERED t:0#0 due 35s",
        ]


@pytest.mark.parametrize("seed", range(30))
async def test_whatever_is_cut_off_a_delayed_message_is_delivered_once_if_it_was_committed(seed: int) -> None:
    rng, disk, clock = SeededRng(seed), SimDisk(), SimClock(START_MS)
    committed: list[str] = []
    for life in range(4):
        async with running_broker(disk, clock, options=OPTIONS, clean_stop=rng.random() < 0.2) as broker:
            for number in range(rng.randrange(1, 5)):
                id_ = f"{life}-{number}"
                await produce(broker, half("t", id_.encode(), id_, properties=DELAYS[rng.choice(list(DELAYS))]))
                if rng.random() < 0.7:
                    await end(broker, id_, COMMIT)
                    committed.append(id_)
            await clock.advance(rng.randrange(0, 40))
        disk.crash(rng)
    async with running_broker(disk, clock, options=OPTIONS) as broker:
        await clock.advance(PREPARED_S + WAIT_S)
        assert sorted(body.decode() for body in await visible(broker)) == sorted(committed)
