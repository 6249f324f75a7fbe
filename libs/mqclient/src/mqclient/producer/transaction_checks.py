"""Answers brokers that ask what has become of a half message (MISSION T12, T13).

Invariants: at most CHECKS_AT_ONCE listeners run and at most CHECKS_WAITING_MAX checks wait; a transaction waits once,
however often it is asked for; whatever is dropped is logged, and the broker asks for it again.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.lifecycle import BackgroundTasks
from mqclient.message import LocalTransactionState, MessageExt
from mqclient.observed.transactions import check_failed, traced_check
from mqclient.producer.transaction_listener import CheckUnansweredError, TransactionListener
from mqproto.properties import PropertiesError
from mqproto.record import RecordError, decode_record
from osenv import Clock
from telemetry import is_tracing

logger = logging.getLogger("mqclient.transaction_checks")

CHECKS_AT_ONCE = 5
CHECKS_WAITING_MAX = 2_000

Answer = Callable[[MessageExt, LocalTransactionState], Awaitable[None]]


class TransactionChecks:
    """The checks of one producer. `answer` tells the broker that holds the message, and raises nothing."""

    def __init__(self, clock: Clock, listener: TransactionListener, answer: Answer) -> None:
        self._clock = clock
        self._listener = listener
        self._answer = answer
        self._tasks = BackgroundTasks(clock)
        self._waiting: OrderedDict[str, tuple[str, bytes]] = OrderedDict()  # broker name and record
        self._running = 0
        self._closing = False

    def submit(self, broker_name: str, check: broker_pb.CheckTransaction) -> None:
        """Answer `check` as soon as a listener is free."""
        id_ = check.transaction_id
        if self._closing or (id_ not in self._waiting and len(self._waiting) >= CHECKS_WAITING_MAX):
            reason = "the producer is leaving" if self._closing else f"{CHECKS_WAITING_MAX:,} others are waiting"
            logger.warning("the check of transaction %s is dropped, it will come again: %s", id_, reason)
            return
        self._waiting[id_] = (broker_name, check.record)
        if self._running < CHECKS_AT_ONCE:
            self._running += 1
            self._tasks.start(self._work(), "mqclient transaction checks")

    @property
    def count(self) -> int:
        """How many are at work."""
        return self._running

    async def close(self, deadline: float) -> None:
        """Begin no more checks, and give those that run until `deadline` (monotonic)."""
        self._closing = True
        self._waiting.clear()
        unfinished = await self._tasks.drain(deadline - self._clock.monotonic())
        if unfinished:
            logger.warning("%d transaction checks did not finish in time; they will come again", unfinished)
        await self._tasks.close()

    async def _work(self) -> None:
        try:
            while self._waiting:
                id_, (broker_name, record) = self._waiting.popitem(last=False)
                await self._check(id_, broker_name, record)
        finally:
            self._running -= 1

    async def _check(self, id_: str, broker_name: str, record: bytes) -> None:
        try:
            message = MessageExt(decode_record(record), broker_name)
            asked_for = message.transaction_id
        except (RecordError, PropertiesError):
            logger.exception("broker %s asks for transaction %s with a broken record", broker_name, id_)
            return
        if asked_for != id_:
            logger.error("broker %s asks for transaction %s with the record of %s", broker_name, id_, asked_for)
            return
        asking = self._ask_and_answer(message)
        await (traced_check(message, message.topic, asking) if is_tracing() else asking)

    async def _ask_and_answer(self, message: MessageExt) -> LocalTransactionState | None:
        state = await self._ask_listener(message)
        if state is not None:
            await self._answer(message, state)
        return state

    async def _ask_listener(self, message: MessageExt) -> LocalTransactionState | None:
        """None when the listener has no answer now."""
        try:
            state: object = await self._listener.check_local_transaction(message)
        except Exception as error:
            if is_tracing():
                check_failed(error)
            if isinstance(error, CheckUnansweredError):
                logger.warning("no answer to the check of transaction %s: %s", message.transaction_id, error)
                return None
            logger.exception("the listener failed to check transaction %s", message.transaction_id)
            return LocalTransactionState.UNKNOW
        return known_state(state, message.transaction_id)


def known_state(state: object, transaction_id: str) -> LocalTransactionState:
    """What a listener returned; UNKNOW for anything that is no LocalTransactionState."""
    if isinstance(state, LocalTransactionState):
        return state
    logger.error("the listener returned %r for %s, not a LocalTransactionState: UNKNOW", state, transaction_id)
    return LocalTransactionState.UNKNOW
