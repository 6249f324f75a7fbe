"""Several messages of one transaction: told together or not at all, whatever dies in between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from osenv import SimClock
from servicekit.errors import PublishError, TransactionGivenUpError
from servicekit.message import OutgoingMessage
from servicekit.sql.units import LocalOutcome, TransactionalPublisher
from servicekit.testing import ProcessDeathError, RecordingPublisher, die

MESSAGES = [OutgoingMessage("things", tag, "thing-1", b"{}") for tag in ("closed", "refund", "third")]
IN_ANY_ORDER = sorted(message.tag for message in MESSAGES)


class Unit:
    """A unit of work over sets; it is its own TransactionRows."""

    def __init__(self, units: Units) -> None:
        self._units = units
        self._recorded: set[str] = set()
        self._things: list[str] = []
        self.transactions = self

    def begin(self, transaction_ids: Sequence[str], _at_ms: int) -> None:
        self._recorded = set(transaction_ids)

    async def record(self) -> None:
        for transaction_id in self._recorded & self._units.ended.keys():
            raise TransactionGivenUpError(transaction_id)

    async def answer_check(self, transaction_id: str, _at_ms: int) -> LocalOutcome:
        return self._units.ended.setdefault(transaction_id, LocalOutcome.ROLLED_BACK)

    async def add(self, name: str) -> str:
        self._things.append(name)
        return name.upper()

    async def commit(self) -> None:
        self._units.ended |= dict.fromkeys(self._recorded, LocalOutcome.COMMITTED)
        self._units.things += self._things


class Units:
    def __init__(self) -> None:
        self.ended: dict[str, LocalOutcome] = {}
        self.things: list[str] = []

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Unit]:
        yield Unit(self)


class Rig:
    def __init__(self) -> None:
        self.units = Units()
        self.queue = RecordingPublisher()
        self.publisher: TransactionalPublisher[Unit] = TransactionalPublisher(self.units, self.queue, SimClock())

    async def publish(self) -> str:
        return await self.publisher.publish_all(MESSAGES, lambda unit: unit.add("thing"))

    async def check_back(self) -> None:
        await self.queue.check_back(self.publisher.check)

    def told(self) -> list[str]:
        return sorted(message.tag for message in self.queue.messages)

    def is_as_before(self) -> bool:
        return (self.told(), self.queue.halves, self.units.things) == ([], {}, [])


async def test_all_messages_come_after_the_one_commit() -> None:
    rig = Rig()
    assert await rig.publish() == "THING"
    assert (rig.told(), rig.queue.halves, rig.units.things) == (IN_ANY_ORDER, {}, ["thing"])
    assert len(rig.units.ended) == len(MESSAGES)  # a row for each


async def test_an_error_comes_out_and_none_of_them_is_delivered() -> None:
    rig = Rig()

    async def fail(_unit: Unit) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await rig.publisher.publish_all(MESSAGES, fail)
    assert rig.is_as_before()


@pytest.mark.parametrize("taken", range(len(MESSAGES)))
async def test_a_queue_that_takes_only_some_of_them_is_told_to_drop_those(taken: int) -> None:
    rig = Rig()
    if taken == 0:
        rig.queue.is_down = True

    async def break_down(_transaction_id: str) -> None:
        rig.queue.is_down = len(rig.queue.halves) == taken

    rig.queue.before_local = break_down
    with pytest.raises(PublishError):
        await rig.publish()
    assert rig.is_as_before()


async def test_a_process_that_dies_after_the_commit_is_answered_for_all_of_them() -> None:
    rig = Rig()
    rig.queue.after_local = die
    with pytest.raises(ProcessDeathError):
        await rig.publish()
    assert rig.told() == []
    await rig.check_back()
    assert (rig.told(), rig.queue.halves, rig.units.things) == (IN_ANY_ORDER, {}, ["thing"])


@pytest.mark.parametrize("begun", range(1, len(MESSAGES) + 1))
async def test_a_process_that_dies_before_the_commit_leaves_none_of_them(begun: int) -> None:
    rig = Rig()

    async def die_then(transaction_id: str) -> None:
        if len(rig.queue.halves) == begun:
            await die(transaction_id)

    rig.queue.before_local = die_then
    with pytest.raises(ProcessDeathError):
        await rig.publish()
    await rig.check_back()
    assert rig.is_as_before()


async def test_a_check_of_one_of_them_that_comes_first_gives_all_of_them_up() -> None:
    rig = Rig()

    async def be_asked(_transaction_id: str) -> None:
        if len(rig.queue.halves) == 1:  # the first one, before the others are sent
            await rig.check_back()

    rig.queue.before_local = be_asked
    with pytest.raises(TransactionGivenUpError):
        await rig.publish()
    assert rig.is_as_before()
