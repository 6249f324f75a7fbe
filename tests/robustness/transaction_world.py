"""Transactions on a real broker in memory and a real database, and everything that may happen to them.

One topic, one producer group whose members come, go and die, a broker that dies in every gap of the protocol, senders
that hang and buyers that try again. `transaction_model.py` says what must stay true; this file makes it happen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

from client_tasks import ClientTasks
from sqlalchemy.exc import OperationalError
from transaction_broker import GapBroker
from transaction_client import GROUP, TOPIC, Client
from transaction_database import TRANSACTIONS, ShopDatabase
from transaction_gaps import Crash, Gap, Gaps, Stop
from transaction_model import (
    IMMUNITY_MS,
    LONG_IMMUNITY_S,
    Attempt,
    Ending,
    InvariantError,
    Plan,
    TransactionModel,
    Visible,
)

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from hourglass.mq.v1 import broker_service_pb2 as pb
from hourglass.mq.v1 import common_pb2
from mq_broker.core.topics import TopicConfig
from mq_broker.core.transactions import TransactionOptions
from mq_broker.store.message_store import FlushDiskType
from mq_broker.testing import read_all
from mqclient import LocalTransactionState, MessageExt
from mqclient.transport.methods import DECIDE_TRANSACTION, END_TRANSACTION
from mqproto.properties import UNIQ_KEY, decode_properties

QUEUES = 2
CLIENTS_MAX = 3
CHECK_INTERVAL_MS, CHECKS_MAX = 5_000, 5
STEP_S = 0.25
REACHED_S_MAX = 200.0  # a check may go to members that died silently, until they are dropped after 120 s
SETTLED_S_MAX = 400.0
LATE_S = LONG_IMMUNITY_S + 2 * CHECK_INTERVAL_MS / 1_000


class Departure(Enum):
    """How a member leaves when it is at nothing that matters here."""

    IN_ORDER = "leave"
    DEATH = "death of a member"
    SILENT_DEATH = "death of a member's machine"


class Restart(Enum):
    """How the broker ends before it starts again."""

    IN_ORDER = "stop of the broker"
    KILL = "kill of the broker"
    POWER_CUT = "power cut"


class TransactionWorld:
    """The history of one broker and one producer group. Every method is one thing that happens."""

    def __init__(self, database: ShopDatabase, seed: int, flush: FlushDiskType) -> None:
        self.gaps = Gaps()
        self.model = TransactionModel()
        self.clients: list[Client] = []
        self.stalled: list[Stop] = []
        self._flush_is_sync = flush is FlushDiskType.SYNC_FLUSH
        self.broker = GapBroker(
            self.gaps,
            flush=flush,
            transactions=TransactionOptions(CHECK_INTERVAL_MS, IMMUNITY_MS, CHECKS_MAX),
            seed=seed,
        )
        self.clock = self.broker.clock
        self._database = database
        self._tasks = ClientTasks()
        self._sending: dict[asyncio.Task[None], Attempt] = {}
        self._violations: list[InvariantError] = []
        self._orders = self._numbers = 0

    async def open(self) -> None:
        self._tasks.install()
        self._database.clear()
        await self.broker.start()
        await self.broker.broker.topic_administration.update(TopicConfig(TOPIC, QUEUES, QUEUES))
        await self.join()

    # ---------------------------------------------------------------------------------------------- transactions

    async def transact(self, plan: Plan, order: int | None = None) -> None:
        """A transaction, from its beginning to its end unless something stands in its way."""
        await self._need_client()
        task = self._begin(plan, order)
        await self._until(task.done, 4.0)

    async def stall(self, gap: Gap, plan: Plan) -> None:
        """A transaction whose sender stands still in a gap, until `release`."""
        await self._need_client()
        if gap is Gap.INSIDE:
            await self.release()  # no other task comes so far while the database is locked
        stop = self.gaps.arm(gap)
        self._begin(plan)
        await self._until_reached(stop)
        self.stalled.append(stop)

    async def be_late(self, plan: Plan) -> None:
        """A sender begins its local transaction only when it has been asked for it, and buried."""
        await self._need_client()
        stop = self.gaps.arm(Gap.HALF_ANSWERED)
        self._begin(plan)
        await self._until_reached(stop)
        await self.clock.advance(LATE_S)
        stop.release()
        await self.clock.advance(0.0)

    async def park(self, plan: Plan) -> None:
        """A sender locks the database for so long that listeners say UNKNOW to all checks, as the sender's own does."""
        await self.transact(plan)
        await self.stall(Gap.INSIDE, Plan(Ending.COMMITS))
        self.gaps.unanswered_is_unknown = True
        await self.clock.advance(IMMUNITY_MS / 1_000 + (CHECKS_MAX + 1) * CHECK_INTERVAL_MS / 1_000)
        self.gaps.unanswered_is_unknown = False
        await self.release()

    async def release(self) -> None:
        """What stands still goes on."""
        for stop in self.stalled:
            stop.release()
        self.stalled.clear()
        await self.clock.advance(0.0)

    async def cross(
        self, gap: Gap, crash: Crash, plan: Plan, *, down_s: float, silently: bool, comes_back: bool
    ) -> None:
        """A transaction comes into the gap, and then a process dies. The broker is there again after `down_s`."""
        await self._need_client()
        if gap.needs_database:
            await self.release()
        stop = self.gaps.arm(gap)
        self._begin(plan)
        await self._until_reached(stop)
        self._count_crash()
        if crash.of_client:
            self._client(stop.client).die(silently=silently)
        if crash is Crash.CONNECTIONS:
            self.broker.break_connections()
        if crash.of_broker:
            await self._end_broker(power=crash.cuts_power)
        stop.release()
        self.broker.go_on()
        await self.clock.advance(0.0)
        if crash.of_broker:
            await self.clock.advance(down_s)
            await self._start_broker(power=crash.cuts_power)
        self._bury()
        if crash.of_client and comes_back:
            await self.join()

    async def decide(self) -> None:
        """An operator looks at what is parked, and decides as the database says, if it says something."""
        for id_ in self.parked_ids:
            try:
                async with self._database.begin() as connection:
                    state = await TRANSACTIONS.answer_check(connection, id_, self.clock.wall_ms())
            except OperationalError:
                continue  # a sender that stands still has the database locked
            request = admin_pb.DecideTransactionRequest(
                transaction_id=id_, state=pb.TransactionState.Value(state.value)
            )
            answer = await self._answer(self.broker.call(DECIDE_TRANSACTION.path, request, None))
            committed = state is LocalTransactionState.COMMIT_MESSAGE
            wanted = admin_pb.TP_COMMITTED if committed else admin_pb.TP_ROLLED_BACK
            if (answer.code, answer.phase) != (common_pb2.SUCCESS, wanted):
                raise InvariantError(f"the operator has said {state} of {id_}, and the broker says {answer}")
            self.model.counts[f"parked and then {'committed' if committed else 'rolled back'}"] += 1

    # ---------------------------------------------------------------------------------------- members and broker

    async def join(self) -> None:
        if len(self.clients) < CLIENTS_MAX:
            self._numbers += 1
            name = f"shop-{self._numbers}"
            client = Client(name, self.broker, self._tasks, self._database, self.gaps, self._asked)
            self.clients.append(client)
            await self._until(client.start().done, 10.0)

    async def depart(self, number: int, how: Departure) -> None:
        client = self.clients.pop(number % len(self.clients))
        if how is Departure.IN_ORDER:
            await self._until(client.leave().done, 10.0)
        client.die(silently=how is Departure.SILENT_DEATH)
        await self.clock.advance(0.0)

    async def be_away(self, seconds: float) -> None:
        """No member for so long: nothing is decided."""
        for client in self.clients:
            client.die()
        self.clients.clear()
        await self.clock.advance(1.0)
        before = self.open_ids, self.parked_ids
        await self.clock.advance(seconds)
        after = self.open_ids, self.parked_ids
        if after != before:
            raise InvariantError(f"open and parked were {before}, and after {seconds:.0f} s without a member {after}")

    async def restart(self, how: Restart, *, again: bool) -> None:
        """The broker ends, once or twice in a row, and is there again at once."""
        for _ in range(1 + again):
            if how is Restart.IN_ORDER:
                await self.broker.stop()
            else:
                await self._end_broker(power=how is Restart.POWER_CUT)
            await self._start_broker(power=how is Restart.POWER_CUT)

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    # --------------------------------------------------------------------------------------------------- looks

    @property
    def open_ids(self) -> list[str]:
        """Of the half messages that wait for their end."""
        return [half.transaction_id for half in self.broker.broker.transaction_table.all_open()]

    @property
    def parked_ids(self) -> list[str]:
        """Of those that wait for an operator."""
        return [half.transaction_id for half in self.broker.broker.transaction_table.in_parking]

    async def look(self) -> None:
        """Compare what consumers see with the database."""
        if self._violations:
            raise self._violations[0]
        visible = await self._visible()
        self.model.look(self.clock.wall_ms(), visible, self._database.orders(), self._database.outcomes())

    async def finish(self) -> None:
        """All faults are over: in the end every transaction has ended as its local transaction has."""
        await self.release()
        await self._need_client()
        waited_s = 0.0
        while unsettled := await self._unsettled():
            if waited_s >= SETTLED_S_MAX:
                raise InvariantError(f"not settled after {waited_s:.0f} s: {unsettled}")
            await self.clock.advance(1.0)
            waited_s += 1.0
        self.model.check_end()
        await self._end_all_again()
        await self.look()

    async def close(self) -> None:
        for client in self.clients:
            client.die()
        await self.broker.kill()
        self._tasks.uninstall()

    # -------------------------------------------------------------------------------------------------- inside

    def _begin(self, plan: Plan, order: int | None = None) -> asyncio.Task[None]:
        """Begin an attempt for a new order, or for one that was tried before."""
        if order is None or not self._orders:
            self._orders += 1
            order = self._orders
        else:
            order = 1 + order % self._orders
        attempt = self.model.begin(f"order-{order}", plan, self.clock.wall_ms())
        client = self.clients[len(self.model.attempts) % len(self.clients)]
        task = client.send(attempt)
        self._sending[task] = attempt
        return task

    async def _visible(self) -> list[Visible]:
        broker = self.broker.broker
        return [
            Visible(record.body.decode(), decode_properties(record.properties)[UNIQ_KEY])
            for queue_id in range(QUEUES)
            for record in await read_all(broker, TOPIC, queue_id)
        ]

    async def _end_all_again(self) -> None:
        """Whatever is said of a transaction that has ended, it has ended as it has."""
        for id_, committed in sorted(self.model.ended_transactions(self._database.outcomes()).items()):
            for state in (pb.COMMIT_MESSAGE, pb.ROLLBACK_MESSAGE):
                request = pb.EndTransactionRequest(producer_group=GROUP, transaction_id=id_, state=state)
                answer = await self._answer(self.broker.call(END_TRANSACTION.path, request, None))
                wanted = pb.COMMIT_MESSAGE if committed else pb.ROLLBACK_MESSAGE
                if (answer.code, answer.outcome) != (common_pb2.SUCCESS, wanted):
                    raise InvariantError(f"{id_} has ended as {wanted}, and the broker says {answer}")

    async def _answer(self, call: Awaitable[Any]) -> Any:
        task = asyncio.ensure_future(call)
        await self._until(task.done, 4.0)
        return await task

    async def _need_client(self) -> None:
        if not self.clients:
            await self.join()

    async def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether the condition came true within `seconds`."""
        await self.clock.advance(0.0)
        waited_s = 0.0
        while not condition() and waited_s < seconds:
            await self.clock.advance(STEP_S)
            waited_s += STEP_S
        return condition()

    async def _until_reached(self, stop: Stop) -> None:
        if not await self._until(lambda: stop.reached, REACHED_S_MAX):
            raise InvariantError(f"no task came to this gap in {REACHED_S_MAX:.0f} s: {stop.gap.value}")

    def _client(self, name: str) -> Client:
        """The client of this name, which is not one of the living any more."""
        (client,) = (client for client in self.clients if client.name == name)
        self.clients.remove(client)
        return client

    def _asked(self, message: MessageExt) -> None:
        try:
            self.model.asked(message.body.decode(), self.clock.wall_ms())
        except InvariantError as error:  # the client takes it for a failure of the listener
            self._violations.append(error)
            raise

    async def _end_broker(self, *, power: bool) -> None:
        await (self.broker.lose_power() if power else self.broker.kill())

    async def _start_broker(self, *, power: bool) -> None:
        await self.broker.start()
        await self.clock.advance(0.0)
        if power:
            table = self.broker.broker.transaction_table
            ids = {attempt.transaction_id for attempt in self.model.attempts.values()}
            known = [id_ for id_ in ids if table.phase(id_) is not None]
            self.model.power_was_cut(known, flush_is_sync=self._flush_is_sync)

    async def _unsettled(self) -> list[str]:
        self._bury()
        if not self._sending:
            await self.decide()
        await self.look()
        found = [f"{attempt.body} does not end" for attempt in self._sending.values()]
        found += [f"{id_} is open" for id_ in self.open_ids]
        found += [f"{id_} is parked" for id_ in self.parked_ids]
        return found + [f"{body} is not visible" for body in self.model.missing(self._database.orders())]

    def _count_crash(self) -> None:
        """Of every attempt that is not over, as its sender or as the broker sees it."""
        concerned = {*self._sending.values()}
        open_ids = {*self.open_ids, *self.parked_ids}
        for attempt in self.model.attempts.values():
            attempt.crashes += attempt in concerned or attempt.transaction_id in open_ids

    def _bury(self) -> None:
        """Forget the attempts that have ended, and raise their unexpected errors."""
        for task in [task for task in self._sending if task.done()]:
            del self._sending[task]
            if not task.cancelled():
                task.result()
