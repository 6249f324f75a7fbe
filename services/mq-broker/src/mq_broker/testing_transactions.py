"""Ready-made parts for tests of transactions: members that are asked and answer, and a broker that asks at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from mq_broker.core.transactions import Phase, TransactionOptions, TransactionState
from mq_broker.processor.broker import Broker, BrokerOptions
from mq_broker.processor.transactions import Ended
from mq_broker.testing import NO_PROPERTIES, RecordingSession, broker_options, client, half, produce, read_all
from mqproto.record import Record

if TYPE_CHECKING:
    import pytest

COMMIT, ROLLBACK, UNKNOW = (
    TransactionState.COMMIT_MESSAGE,
    TransactionState.ROLLBACK_MESSAGE,
    TransactionState.UNKNOW,
)


def asking_at_once(**changes: int) -> BrokerOptions:
    """A broker whose halves have no immunity."""
    return replace(broker_options(), transactions=replace(TransactionOptions(immunity_ms=0), **changes))


async def end(
    broker: Broker, id_: str, state: TransactionState, *, from_check: bool = False, group: str = "shop"
) -> Ended:
    """What a member of the group says."""
    return await broker.transactions.end(group, id_, state, from_check=from_check)


async def visible(broker: Broker, topic: str = "t") -> list[bytes]:
    """The bodies that consumers can read."""
    return [record.body for record in await read_all(broker, topic)]


def beat(broker: Broker, session: RecordingSession, group: str = "shop", client_id: str = "client") -> None:
    """A member of the producer group lives, with this session."""
    broker.sessions.heartbeat(session, client(client_id, producer=group))


def join(broker: Broker, group: str = "shop", client_id: str = "client") -> RecordingSession:
    """A new member of the producer group."""
    session = RecordingSession()
    beat(broker, session, group, client_id)
    return session


def let_others_in(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, others have their turn while a record is read, as on a real disk."""
    read = broker.store.reader.read_record

    async def read_slowly(log_offset: int) -> Record:
        await asyncio.sleep(0)
        return await read(log_offset)

    monkeypatch.setattr(broker.store.reader, "read_record", read_slowly)


async def check_and_answer(broker: Broker, id_: str, state: TransactionState = UNKNOW) -> Ended:
    """One round of checks, and the answer of whoever was asked for this transaction."""
    await broker.transactions.checks.check_all()
    return await end(broker, id_, state, from_check=True)


async def park(broker: Broker, id_: str, *, body: bytes = b"x", properties: Mapping[str, str] = NO_PROPERTIES) -> None:
    """A transaction that nobody could answer for. Of a broker that asks at once."""
    session = join(broker)
    await produce(broker, half("t", body, id_, properties=properties))
    while broker.transaction_table.phase(id_) is Phase.PREPARED:
        await check_and_answer(broker, id_)
    broker.sessions.ended(session, "client")
