"""Members and producers of a storm: mqclient in processes that can die, stand still and be cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sim_process import SimProcess
from storm_machines import BROKER_NAME
from storm_model import Answer, Group, InvariantError, Message

from mqclient import (
    ClientConfig,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    ConsumerConfig,
    ConsumeStatus,
    LocalTransactionState,
    MessageExt,
    MessageQueue,
    MQClientError,
    Producer,
    PushConsumer,
    RecallOutcome,
    SendStatus,
    TransactionProducer,
)
from mqclient import Message as Wire
from mqclient.producer.idempotent_producer import PRODUCER_IDS, IdempotentProducer

if TYPE_CHECKING:
    from storm_world import StormWorld

PLAIN, ORDERED, SHORT = "plain", "ordered", "short"
ORDERED_QUEUES = 3
CONCURRENT = Group("concurrent", frozenset({PLAIN}), tries=2)
ORDERLY = Group("orderly", frozenset({ORDERED}), orderly=True)
LOOSE = Group("loose", frozenset({PLAIN, SHORT}), strict=False, tries=2)
GROUPS = (CONCURRENT, ORDERLY, LOOSE)
SUSPEND_S = 0.5
WORK_S = (0.0, 0.0, 0.01, 0.05, 0.3)  # of a listener
PAUSE_S = (0.1, 0.3, 0.6, 1.0)  # between two sends of one loop
DELAYS_S = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)  # storm_machines.LEVELS
RESCHEDULED_S = 2.0
FOR_GOOD = 1_000_000  # failures: also of a message that losses bring back again and again
RECALLED_MAX = 40  # keys that are remembered to be recalled


class Client:
    """One process of an application, on a machine of its own."""

    def __init__(self, world: StormWorld, host: str) -> None:
        self.world, self.host = world, host
        name = world.new_name(host)
        self.process = SimProcess(host, name, world.clock)
        world.network.processes[name] = self.process
        self.url = f"storm://{name}"
        self.config = ClientConfig(instance_name=name.replace("#", "-"))

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """As a task of this process. What it raises is a violation."""
        task = self.process.run(lambda: asyncio.get_running_loop().create_task(coroutine))
        task.add_done_callback(self.world.note_failure)
        return task

    def die(self) -> None:
        """As by SIGKILL."""
        self.world.network.died(self.process, silently=False)
        self.process.is_alive = False
        self.world.tasks.kill(self.process.name)


class Member(Client):
    """A consumer of one group."""

    def __init__(self, world: StormWorld, host: str, group: Group) -> None:
        super().__init__(world, host)
        self.group = group
        config = ConsumerConfig(
            consume_thread_min=4,
            consume_thread_max=4,
            pull_batch_size=8,
            suspend_current_queue_time_s=SUSPEND_S,
            max_reconsume_times=group.tries,
        )
        self.consumer = PushConsumer(
            group.name,
            self.url,
            client_config=self.config,
            consumer_config=config,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
        for topic in sorted(group.topics):
            self.consumer.subscribe(topic)
        if group.orderly:
            self.consumer.register_message_listener_orderly(self._consume_orderly)
        else:
            self.consumer.register_message_listener(self._consume)
        self._runs: set[int] = set()
        self.is_started = False

    def start(self) -> None:
        self.run(self._start())

    async def _start(self) -> None:
        while not self.is_started:
            try:
                await self.consumer.start()
                self.is_started = True
            except MQClientError:
                await self.process.clock.sleep(1.0)

    def die(self) -> None:
        super().die()
        for number in self._runs:
            self.world.model.broken_off(number, self.world.now)
        self._runs.clear()

    async def leave(self) -> None:
        """In order, as far as its listeners end; one that has not started yet is killed."""
        if self.is_started:
            await self.run(self.consumer.shutdown(timeout_s=2.0))
        self.die()

    async def _consume(self, messages: list[MessageExt]) -> ConsumeStatus:
        fails = await self._listen(messages[0])
        return ConsumeStatus.RECONSUME_LATER if fails else ConsumeStatus.CONSUME_SUCCESS

    async def _consume_orderly(self, messages: list[MessageExt]) -> ConsumeOrderlyStatus:
        fails = await self._listen(messages[0])
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT if fails else ConsumeOrderlyStatus.SUCCESS

    async def _listen(self, message: MessageExt) -> bool:
        """Whether it fails."""
        world, model, group = self.world, self.world.model, self.group.name
        try:
            number = model.begun(group, self.process.name, message.body, world.now)
        except InvariantError as error:
            world.violations.append(error)
            raise
        self._runs.add(number)
        known = model.messages[message.body]
        work_s = world.rng.choice(WORK_S)
        try:
            if work_s:
                await self.process.clock.sleep(work_s)
        except asyncio.CancelledError:
            if number in self._runs:
                self._runs.discard(number)
                model.broken_off(number, world.now)
            raise
        self._runs.discard(number)
        fails = known.failed[group] < known.failures
        model.ended(number, world.now, fails=fails)
        return fails


class TransactionListener:
    """Its database is the model: what a process has decided outlives it."""

    def __init__(self, world: StormWorld) -> None:
        self._world = world

    async def execute_local_transaction(self, message: Wire, transaction_id: str, arg: Any) -> LocalTransactionState:
        known, ending = arg
        if known.commits is None:
            known.commits = ending in {"commits", "commits late"}
        if ending in {"commits late", "rolls back late"}:
            return LocalTransactionState.UNKNOW
        return _state(known)

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        known = self._world.model.messages[message.body]
        if known.commits is None:
            known.commits = False  # it has not begun, and will not
        self._world.counts["check-backs"] += 1
        return _state(known)


def _state(known: Message) -> LocalTransactionState:
    return LocalTransactionState.COMMIT_MESSAGE if known.commits else LocalTransactionState.ROLLBACK_MESSAGE


class Sender(Client):
    """One process with producers of every kind, each loop at its own pace until `quiet`."""

    def __init__(self, world: StormWorld, host: str) -> None:
        super().__init__(world, host)
        self.producer = Producer("senders", self.url, client_config=self.config)
        self.transactions = TransactionProducer(
            "shop", self.url, transaction_listener=TransactionListener(world), client_config=self.config
        )
        self.loops: list[asyncio.Task[Any]] = []

    def start(self) -> None:
        self.run(self._start())

    async def _start(self) -> None:
        await self.producer.start()
        await self.transactions.start()
        loops: list[Callable[[], Coroutine[Any, Any, None]]] = [self.plain, self.transact, self.recall, self.numbered]
        self.loops = [self.run(self._forever(loop)) for loop in loops]
        self.loops += [self.run(self._forever(lambda q=q: self.ordered(q))) for q in range(ORDERED_QUEUES)]  # type: ignore[misc]

    async def _forever(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        rng = self.world.rng
        while not self.world.is_quiet:
            try:
                await step()
            except MQClientError as error:
                self.world.counts[f"not sent: {type(error).__name__}"] += 1
            await self.process.clock.sleep(rng.choice(PAUSE_S) * self.world.pace)

    # -------------------------------------------------------------------------------------------------- kinds

    async def plain(self) -> None:
        """At once, after a level's delay, at a time; some fail, and some for good."""
        world, rng = self.world, self.world.rng
        topic = SHORT if rng.random() < 0.15 else PLAIN
        failures = rng.choice((0, 0, 0, 0, 0, 0, 1, 1, 2, FOR_GOOD))
        kind = rng.choice(("now", "now", "now", "now", "level", "delay", "deliver at"))
        if kind == "now" or topic == SHORT:
            known = world.model.message(topic, world.now, failures=failures)
            wire = Wire(topic, known.body)
        elif kind == "level":
            level = rng.randrange(1, len(DELAYS_S) + 1)
            known = world.model.message(topic, world.now, failures=failures, delay_s=DELAYS_S[level - 1])
            wire = Wire(topic, known.body, delay_level=level)
        else:
            known, wire = self._to_wait(failures, kind)
        await self._send(known, wire)

    def _to_wait(self, failures: int, kind: str) -> tuple[Message, Wire]:
        """For longer, so that it can be recalled."""
        world, seconds = self.world, self.world.rng.choice((2.0, 5.0, 12.0, 25.0))
        if kind == "delay":
            known = world.model.message(PLAIN, world.now, failures=failures, delay_s=seconds)
            wire = Wire(PLAIN, known.body, delay_ms=int(seconds * 1_000), keys=known.body.decode())
        else:
            due_ms = int((world.wall_s + seconds) * 1_000)
            known = world.model.message(PLAIN, world.now, failures=failures, due_wall_s=due_ms / 1_000 - world.epoch_s)
            due = datetime.fromtimestamp(due_ms / 1_000, UTC)
            wire = Wire(PLAIN, known.body, deliver_at=due, keys=known.body.decode())
        world.waiting.append(known)
        del world.waiting[:-RECALLED_MAX]
        return known, wire

    async def ordered(self, queue_id: int) -> None:
        """The next one of an ordered queue; it fails now and then."""
        world = self.world
        failures = world.rng.choice((0,) * 12 + (1, 2))
        known = world.model.message(ORDERED, world.now, failures=failures, queue=queue_id)
        await self._send(known, Wire(ORDERED, known.body), queue=MessageQueue(ORDERED, BROKER_NAME, queue_id))

    async def _send(self, known: Message, wire: Wire, queue: MessageQueue | None = None) -> None:
        result = await self.producer.send(wire, queue=queue, timeout=self.world.rng.choice((3.0, 10.0)))
        self._answered(known, result)

    def _answered(self, known: Message, result: Any) -> None:
        world, status = self.world, result.send_status
        strong = status is SendStatus.SEND_OK and world.is_synchronous
        generation = world.generation_of(result.broker_address, known.sent_at)
        answer = Answer(world.now, result.log_offset, generation, strong)
        world.model.answered(known, answer, status.value)

    async def transact(self) -> None:
        """A transaction: committed, rolled back, or left to a check-back."""
        world = self.world
        ending = world.rng.choice(("commits", "commits", "commits late", "rolls back", "rolls back late"))
        known = world.model.message(PLAIN, world.now, is_transaction=True)
        world.counts[f"transactions: {ending}"] += 1
        result = await self.transactions.send_message_in_transaction(Wire(PLAIN, known.body), (known, ending))
        self._answered(known, result)

    async def recall(self) -> None:
        """Take back, or put off, what may still wait."""
        world = self.world
        if not world.waiting:
            return
        known = world.waiting.pop(world.rng.randrange(len(world.waiting)))
        known.may_be_removed = True
        weak_before, asked_at = world.is_alone, world.now
        if world.rng.random() < 0.4:
            await self._reschedule(known)
            return
        result = await self.producer.recall(PLAIN, key=known.body.decode())
        if result.outcome is RecallOutcome.REMOVED:
            answer = world.answer_of_master(asked_at, weak=weak_before or world.is_alone)
            world.model.removed(known, answer)
        elif result.outcome is RecallOutcome.ALREADY_DELIVERED:
            known.may_be_removed = False

    async def _reschedule(self, known: Message) -> None:
        """Sooner as a rule; nothing is removed by that."""
        world = self.world
        known.may_be_removed = False
        before, asked_at = (known.delay_s, known.due_wall_s), world.now
        known.delay_s, known.due_wall_s = 0.0, 0.0  # while it is not known which of both times counts
        result = await self.producer.reschedule(PLAIN, key=known.body.decode(), delay_ms=int(RESCHEDULED_S * 1_000))
        world.counts[f"reschedules: {result.outcome.value}"] += 1
        if result.outcome is not RecallOutcome.RESCHEDULED:
            known.delay_s, known.due_wall_s = before
        elif before[0]:  # either of both times, should the change be lost
            known.delay_s = min(before[0], asked_at + RESCHEDULED_S - known.sent_at)

    async def numbered(self) -> None:
        """A producer that its application has numbered sends a batch, and another process of it the same again."""
        world, rng = self.world, self.world.rng
        for repeat in range(2):
            async with IdempotentProducer(
                self.url,
                PRODUCER_IDS.start + 7,
                client_config=ClientConfig(instance_name=f"{self.config.instance_name}-n"),
            ) as producer:
                if not repeat:
                    base, known = world.next_number, [world.model.message(PLAIN, world.now) for _ in range(3)]
                    world.next_number += 3
                messages = [producer.checked(Wire(PLAIN, one.body)) for one in known]
                for one, message in zip(known, messages, strict=True):
                    message.unique_id = one.body.hex().rjust(32, "0").upper()
                queue = MessageQueue(PLAIN, BROKER_NAME, 0)
                await producer.send(queue, messages, base, first_unanswered=base, timeout=20.0)
            world.counts["numbered batches"] += 1
            await self.process.clock.sleep(rng.choice((0.2, 2.0, 8.0)))
