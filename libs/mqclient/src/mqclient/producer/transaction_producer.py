"""Messages that become visible if and only if a local transaction commits.

Invariants: a local transaction runs only after its half message was acknowledged, and at most once; every try to send a
half has a transaction id of its own, so that a half which an earlier try may have left behind is rolled back by its
check and never ends with a later one; a broker that cannot be told how a transaction ended will ask. At most
CHECKS_AT_ONCE listeners answer checks and at most CHECKS_WAITING_MAX checks wait; a transaction waits once, however
often it is asked for; whatever is dropped is logged, and the broker asks for it again.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.client_instance import ClientInstance
from mqclient.config import ClientConfig, ProducerConfig
from mqclient.errors import (
    CheckUnansweredError,
    LocalTransactionRolledBackError,
    MQClientError,
    OutcomeUnknownError,
    TransactionNotBegunError,
    require_success,
)
from mqclient.lifecycle import BackgroundTasks
from mqclient.message import LocalTransactionState, Message, MessageExt, SendResult, SendStatus, TransactionSendResult
from mqclient.observed.operations import check_failed, traced_check, traced_end, traced_transaction
from mqclient.producer.prepared import PreparedHalf
from mqclient.producer.producer import Producer
from mqclient.transport.methods import END_TRANSACTION
from mqproto.properties import PropertiesError
from mqproto.record import RecordError, decode_record
from osenv import Clock
from osenv.clock import timeout as clock_timeout
from telemetry import is_tracing

logger = logging.getLogger("mqclient.transaction_producer")

CHECKS_AT_ONCE = 5
CHECKS_WAITING_MAX = 2_000

Answer = Callable[[MessageExt, LocalTransactionState], Awaitable[None]]

JOIN_TIMEOUT_S = 3.0  # how long `start` waits to be reachable for checks; it goes on without, and becomes so later

END_PATIENCE_S = 3.0  # how long a broker without a master is waited for, before it has to ask

# SLAVE_NOT_AVAILABLE says that the master alone has the half, as the cluster's operator has allowed.
RUNS_LOCAL_TRANSACTION = frozenset({SendStatus.SEND_OK, SendStatus.SLAVE_NOT_AVAILABLE})


class TransactionListener(Protocol):
    """Runs the local transaction, and answers for it later, in any process of the producer group."""

    async def execute_local_transaction(self, message: Message, transaction_id: str, arg: Any) -> LocalTransactionState:
        """Do the local work; the half message is stored. `arg` is what the sender gave.

        An exception goes to the sender, and leaves the state open for a check; where it is certain that nothing was
        committed, raise LocalTransactionRolledBackError instead.
        """

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """The outcome of `message.transaction_id`, which may never have begun, or still be at work.

        Before ROLLBACK_MESSAGE make sure that it cannot commit any more. Raise CheckUnansweredError while what has to
        be asked cannot be reached. Any other exception counts as UNKNOW, of which a broker takes 15
        (transactionCheckMax).
        """


class TransactionProducer(Producer):
    """A producer whose group answers for its half messages; `send` and the rest are as in Producer."""

    def __init__(
        self,
        group: str,
        url: str,
        *,
        transaction_listener: TransactionListener,
        client_config: ClientConfig | None = None,
        producer_config: ProducerConfig | None = None,
    ) -> None:
        """Every member of `group` needs a listener that can answer for all of them. Raises IllegalGroupError."""
        super().__init__(group, url, client_config=client_config, producer_config=producer_config)
        self._listener = transaction_listener
        self._checks: TransactionChecks
        self._ends: BackgroundTasks

    async def start(self) -> None:
        """Join the client instance, and open sessions to all masters so that their checks arrive.

        Returns when they are open, or after a few seconds: needs no server to be there. Raises UnknownTransportError,
        IllegalStateError.
        """
        await super().start()
        try:
            if not await self._join():
                logger.warning("producer %s cannot be asked by every broker yet; it keeps trying", self.group)
        except BaseException:  # a start that is cancelled leaves nothing behind
            await self.shutdown(timeout_s=0.0)
            raise

    async def send_message_in_transaction(
        self,
        message: Message,
        arg: Any = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the budget is shared by several tries
        check_immunity_s: int | None = None,
    ) -> TransactionSendResult:
        """Store the half message within `timeout` seconds, run the local transaction with `arg`, and end both alike.

        The message is delivered when the listener returns COMMIT_MESSAGE, or says so to a later check; the broker is
        told in the background, and asks when it has not heard. A half that is stored less safely than wished
        (FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT) is rolled back, and nothing runs. A message with a delay waits from
        its commit on.

        No check asks how the transaction ended before `check_immunity_s` (0 to 40 days) have passed since the half was
        stored: for local transactions that take longer than the broker's transactionTimeOut (6 s, mechanism T9).

        Raises what the listener raises. Before the local transaction: MessageRejectedError, IllegalArgumentError,
        BrokerRejectedError, or a RetryableError; then it has not run, nothing will be delivered, and a new call is
        safe.
        """
        deadline = self._deadline(timeout)
        outgoing = PreparedHalf(message, self._origin, check_immunity_s)
        delivery = self._observed(outgoing, self._sender.deliver(outgoing, deadline, self._sender.sync_tries))
        self._sending += 1
        try:
            try:
                half = await delivery
            except OutcomeUnknownError as error:
                raise TransactionNotBegunError(f"the half message was not acknowledged: {error}") from error
            state = LocalTransactionState.ROLLBACK_MESSAGE
            if half.send_status in RUNS_LOCAL_TRANSACTION:
                state = await self._execute(outgoing, half, arg)
            else:
                self._end_soon(outgoing, half, state)
        finally:
            self._sent()
        return _result(half, state)

    # -------------------------------------------------------------------------------- what the client instance asks

    @property
    def in_flight(self) -> int:
        """As a Producer's, with transactions whose end is being told, and checks."""
        return super().in_flight + self._ends.count + self._checks.count

    def check_transaction(self, broker_name: str, check: broker_pb.CheckTransaction) -> None:
        """A broker checks a half message of this group."""
        self._checks.submit(broker_name, check)

    # ---------------------------------------------------------------------------------------------------- inside

    def _assemble(self, instance: ClientInstance) -> None:
        super()._assemble(instance)
        self._ends = BackgroundTasks(instance.clock)
        self._checks = TransactionChecks(instance.clock, self._listener, self._answer_check)

    async def _join(self) -> bool:
        """Know all masters, also those that have none of this producer's topics, and have a session with each."""
        try:
            async with clock_timeout(self._instance.clock, JOIN_TIMEOUT_S):
                await self._instance.routes.follow_all_masters()
        except (MQClientError, TimeoutError) as error:
            logger.info("producer %s starts without knowing all masters: %s", self.group, error)
            return False
        return await self._instance.wait_for_sessions(JOIN_TIMEOUT_S)

    async def _finish(self, deadline: float) -> None:
        await self._checks.close(deadline)
        untold = await self._ends.drain(deadline - self._instance.clock.monotonic())
        if untold:
            logger.warning("producer %s is closed with %d transactions that brokers will check", self.group, untold)
        await self._ends.close()

    async def _execute(self, outgoing: PreparedHalf, half: SendResult, arg: Any) -> LocalTransactionState:
        """Run the local transaction, and let the broker know how it went. Raises what the listener raises."""
        try:
            executing = self._listener.execute_local_transaction(outgoing.message, half.message_id, arg)
            if outgoing.span is not None:
                executing = traced_transaction(self.group, outgoing.topic, half.message_id, outgoing.span, executing)
            state = known_state(await executing, half.message_id)
        except LocalTransactionRolledBackError as error:
            self._end_soon(outgoing, half, LocalTransactionState.ROLLBACK_MESSAGE)
            cause = error.cause
        except Exception:
            logger.info("the local transaction of %s raised; a check will ask how it ended", half.message_id)
            raise
        else:
            self._end_soon(outgoing, half, state)
            return state
        raise cause

    def _end_soon(self, outgoing: PreparedHalf, half: SendResult, state: LocalTransactionState) -> None:
        """Tell the broker in the background (mechanism T7)."""
        if state is not LocalTransactionState.UNKNOW:
            broker_name, id_ = half.message_queue.broker_name, half.message_id
            telling = self._tell(broker_name, id_, state, from_check=False)
            if outgoing.span is not None:
                telling = traced_end(self.group, outgoing.topic, id_, state, half=outgoing.span, telling=telling)
            ending = self._end(broker_name, id_, state, telling)
            self._ends.start(ending, f"mqclient end transaction {id_}")

    async def _answer_check(self, message: MessageExt, state: LocalTransactionState) -> None:
        broker_name, id_ = message.broker_name, message.transaction_id
        telling = self._tell(broker_name, id_, state, from_check=True)
        if is_tracing():
            telling = traced_end(self.group, message.topic, id_, state, half=None, telling=telling)
        await self._end(broker_name, id_, state, telling)

    async def _tell(
        self, broker_name: str, id_: str, state: LocalTransactionState, *, from_check: bool
    ) -> broker_pb.TransactionState.ValueType:
        """Tell the broker that holds the half, and return how the transaction ended there. Raises MQClientError."""
        request = broker_pb.EndTransactionRequest(
            producer_group=self.group,
            transaction_id=id_,
            state=broker_pb.TransactionState.Value(state.value),
            from_check=from_check,
        )
        response = await self._instance.calls.to_master(
            broker_name, END_TRANSACTION, request, patience_s=END_PATIENCE_S
        )
        require_success(response.code, response.remark, broker_name)
        return response.outcome

    async def _end(
        self,
        broker_name: str,
        id_: str,
        state: LocalTransactionState,
        telling: Coroutine[Any, Any, broker_pb.TransactionState.ValueType],
    ) -> None:
        """Have the broker told by `telling`. What goes wrong is logged, and left to the next check."""
        try:
            outcome = await telling
        except MQClientError as error:
            logger.warning("transaction %s: broker %s was not told %s: %s", id_, broker_name, state.value, error)
            return
        if state is not LocalTransactionState.UNKNOW and outcome != broker_pb.TransactionState.Value(state.value):
            there = broker_pb.TransactionState.Name(outcome)
            logger.error("transaction %s is %s here and %s at broker %s", id_, state.value, there, broker_name)


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


def _result(half: SendResult, state: LocalTransactionState) -> TransactionSendResult:
    return TransactionSendResult(
        half.send_status,
        half.message_id,
        half.message_queue,
        half.queue_offset,
        half.log_offset,
        half.broker_address,
        state,
    )
