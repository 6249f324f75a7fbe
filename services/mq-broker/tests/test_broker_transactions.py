"""Transactions: visible if and only if they were committed, whatever dies in between."""

from __future__ import annotations

import pytest

from mq_broker.core.transactions import TransactionState
from mq_broker.processor import half_messages
from mq_broker.processor.transactions import Ended
from mq_broker.store.layout import StoreLayout
from mq_broker.testing import (
    COMMIT,
    ROLLBACK,
    STORE_ROOT,
    UNKNOW,
    end,
    half,
    incoming,
    produce,
    read_all,
    running_broker,
    visible,
)
from mqproto.codes import ResponseCode
from mqproto.names import HALF_TOPIC, OP_HALF_TOPIC
from mqproto.properties import PGROUP, REAL_TOPIC, TAGS, UNIQ_KEY, decode_properties
from mqproto.record import FLAG_TRANSACTION_COMMIT, FLAG_TRANSACTION_MASK
from osenv import SeededRng, SimClock, SimDisk


@pytest.mark.mechanism("T2", "T3")
async def test_a_half_message_is_seen_when_it_is_committed_and_not_before() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        (outcome,) = await produce(broker, half("t", b"x", "tx"))
        assert outcome.code is ResponseCode.SUCCESS
        assert await visible(broker) == []
        (prepared,) = await read_all(broker, HALF_TOPIC)
        assert prepared.sys_flag & FLAG_TRANSACTION_MASK == 0
        assert decode_properties(prepared.properties)[REAL_TOPIC] == "t"
        assert await end(broker, "tx", COMMIT) == Ended(ResponseCode.SUCCESS, outcome=COMMIT)
        (record,) = await read_all(broker, "t", expression="created")
        assert (record.body, record.sys_flag & FLAG_TRANSACTION_MASK) == (b"x", FLAG_TRANSACTION_COMMIT)
        properties = decode_properties(record.properties)
        assert properties == {UNIQ_KEY: "tx", PGROUP: "shop", TAGS: "created"}
        (op,) = await read_all(broker, OP_HALF_TOPIC)
        assert (op.body, decode_properties(op.properties)[TAGS]) == (b"0", "d")
        assert record.log_offset < op.log_offset


async def test_a_rolled_back_message_is_never_seen() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        await produce(broker, half("t", b"x", "tx"))
        assert (await end(broker, "tx", ROLLBACK)).outcome is ROLLBACK
        assert await visible(broker) == []


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("again", [COMMIT, ROLLBACK, UNKNOW])
async def test_ending_it_again_tells_the_first_outcome_and_delivers_nothing_twice(
    first: TransactionState, again: TransactionState, restart: bool
) -> None:
    disk = SimDisk()
    async with running_broker(disk, SimClock()) as broker:
        await produce(broker, half("t", b"x", "tx"))
        await end(broker, "tx", first)
        if not restart:
            assert await end(broker, "tx", again) == Ended(ResponseCode.SUCCESS, outcome=first)
            assert len(await visible(broker)) == (first is COMMIT)
    async with running_broker(disk, SimClock()) as broker:
        assert await end(broker, "tx", again) == Ended(ResponseCode.SUCCESS, outcome=first)
        assert len(await visible(broker)) == (first is COMMIT)


@pytest.mark.mechanism("P17")
async def test_a_made_up_id_and_a_stranger_are_rejected() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        await produce(broker, half("t", b"x", "tx"))
        ended = await end(broker, "made up", COMMIT)
        assert (ended.code, "made up" in ended.remark) == (ResponseCode.QUERY_NOT_FOUND, True)
        ended = await end(broker, "tx", COMMIT, group="stranger")
        assert (ended.code, "belongs to" in ended.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
        assert await visible(broker) == []


async def test_half_messages_that_make_no_sense_are_rejected() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        two = half("t", b"x", "a"), half("t", b"y", "b")
        joined = type(two[0])("t", 0, 2, two[0].records + two[1].records)
        for batch, sentence in (
            (joined, "batch of its own"),
            (half("t", b"x", ""), UNIQ_KEY),
            (half("t", b"x", "tx", group=""), PGROUP),
        ):
            (outcome,) = await produce(broker, batch)
            assert outcome.code is ResponseCode.MESSAGE_ILLEGAL
            assert sentence in outcome.remark


@pytest.mark.mechanism("T3", "T11")
async def test_a_start_reads_op_and_half_queue_in_blocks_and_finds_what_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(half_messages, "RECORDS_AT_ONCE", 3)
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock) as broker:
        for number in range(20):
            await produce(broker, half("t", b"x", f"tx-{number}"))
        for number in range(0, 20, 2):
            await end(broker, f"tx-{number}", ROLLBACK)
    async with running_broker(disk, clock) as broker:
        assert [one.transaction_id for one in broker.transaction_table.all_open()] == [
            f"tx-{number}" for number in range(1, 20, 2)
        ]
        assert (await end(broker, "tx-0", COMMIT)).outcome is ROLLBACK


@pytest.mark.mechanism("T1")
@pytest.mark.parametrize("seed", range(80))
async def test_whatever_is_cut_off_in_between_a_message_is_seen_if_and_only_if_it_was_committed(seed: int) -> None:
    rng, disk, clock = SeededRng(seed), SimDisk(), SimClock()
    wish: dict[str, TransactionState] = {}
    answered: dict[str, TransactionState] = {}
    number = 0
    for _ in range(4):
        async with running_broker(disk, clock, clean_stop=rng.random() < 0.2) as broker:
            for id_, outcome in answered.items():  # what was answered before the crash is still so
                assert (await end(broker, id_, rng.choice([COMMIT, ROLLBACK]))).outcome is outcome
            for _ in range(rng.randrange(1, 10)):
                id_ = f"tx-{number}"
                number += 1
                await produce(broker, half("t", id_.encode(), id_), incoming("noise", [b"n" * rng.randrange(1, 999)]))
                wish[id_] = rng.choice([COMMIT, ROLLBACK])
                if rng.random() < 0.6:
                    answered[id_] = (await end(broker, id_, wish[id_])).outcome
            if rng.random() < 0.3:
                await broker.store.checkpoint()
            if rng.random() < 0.5:  # one more that may or may not reach the disk
                id_ = f"tx-{number}"
                number += 1
                broker.producing.put([half("t", id_.encode(), id_)])
                wish[id_] = ROLLBACK
        disk.crash(rng)
        if rng.random() < 0.2:
            disk.remove_tree(StoreLayout(STORE_ROOT).config / "transactionOffset.json")
            disk.remove_tree(StoreLayout(STORE_ROOT).config / "transactionOffset.json.bak")
    async with running_broker(disk, clock) as broker:
        for half_ in broker.transaction_table.all_open():  # what is still open gets its answer by a check
            await end(broker, half_.transaction_id, wish[half_.transaction_id], from_check=True)
        committed = {id_ for id_, state in (wish | answered).items() if state is COMMIT}
        assert sorted(body.decode() for body in await visible(broker)) == sorted(committed)
