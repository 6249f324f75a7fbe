"""Producers that number what they send and repeat it until it is stored, and consumers that read wherever they can."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from replica_model import BODY, Commit, InvariantError, Message, Promise, Transaction, number_of

from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.halves import transaction_id
from mq_broker.core.limits import RejectedError
from mq_broker.core.producer_sequences import BatchSequence
from mq_broker.core.pulling import PullQuery, PullResult
from mq_broker.core.replica_state import BrokerRole
from mq_broker.core.transactions import TransactionState
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import BatchOutcome, IncomingBatch
from mq_broker.processor.transactions import Ended
from mq_broker.store.log_scan import scan_log
from mq_broker.testing import half, numbered
from mqproto.codes import PullStatus, ResponseCode
from mqproto.names import OP_HALF_TOPIC
from mqproto.record import Record, iter_records

if TYPE_CHECKING:
    from replica_node import Node, Process
    from replica_world import ReplicaWorld

TOPIC, QUEUES, GROUP = "t", 2, "g"
PRODUCERS = 4
PRODUCER_GROUP = "shop"
ANSWER_S = 1.5  # so long a producer waits before it asks again
BATCH_MAX = 4
STORED = frozenset({ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT})
NOT_STORED = frozenset(
    {ResponseCode.NOT_LEADER_FOR_QUEUE, ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE}
)


@dataclass
class Sending:
    """One batch, from the first try to the acknowledgement."""

    batch: IncomingBatch
    messages: list[Message]
    process: Process | None = None  # that has been asked
    until: float = 0.0
    tries: int = 0


@dataclass
class Producer:
    """One at a time: the next batch follows when this one is stored."""

    id: int
    numbers: dict[int, int] = field(default_factory=lambda: defaultdict(lambda: 1))  # by queue
    sending: Sending | None = None


class Producers:
    """All producers of a history."""

    def __init__(self, world: ReplicaWorld) -> None:
        self._world = world
        self._all = [Producer(number + 1) for number in range(PRODUCERS)]

    async def send(self) -> bool:
        """Send, or send again what was not answered."""
        world = self._world
        producer = world.rng.choice(self._all)
        node = world.route() if world.rng.random() < 0.95 else world.rng.choice(world.nodes)
        if node is None or node.broker is None or node.process is None or node.process.is_stopped:
            return False
        sending = producer.sending
        if sending is None:
            sending = producer.sending = self._new(producer)
        elif sending.process is not None and sending.process.is_alive and world.clock.monotonic() < sending.until:
            return False
        self._try(producer, sending, node, node.broker, node.process)
        return True

    def _new(self, producer: Producer) -> Sending:
        world, rng = self._world, self._world.rng
        queue_id = rng.randrange(0, QUEUES)
        kind = rng.choice(("plain", "plain", "plain", "plain", "delayed", "half"))
        count = 1 if kind == "half" else rng.randrange(1, BATCH_MAX + 1)
        level = rng.randrange(1, 4) if kind == "delayed" else 0
        base = producer.numbers[queue_id]
        producer.numbers[queue_id] += count
        batch_sequence = BatchSequence(producer.id, 1, base, base)
        if kind == "half":
            id_ = f"tx{len(world.model.transactions)}"
            message = world.model.message(producer.id, queue_id, transaction=id_)
            world.model.transactions[id_] = Transaction(id_, message.number, rng.random() < 0.7)
            batch = half(
                TOPIC,
                BODY % message.number,
                id_,
                group=PRODUCER_GROUP,
                queue_id=queue_id,
                batch_sequence=batch_sequence,
            )
            return Sending(batch, [message])
        messages = [world.model.message(producer.id, queue_id, level=level) for _ in range(count)]
        bodies = [BODY % message.number for message in messages]
        return Sending(numbered(TOPIC, bodies, batch_sequence, queue_id=queue_id, delay_level=level), messages)

    def _try(self, producer: Producer, sending: Sending, node: Node, broker: Broker, process: Process) -> None:
        world = self._world
        sending.process, sending.until = process, world.clock.monotonic() + ANSWER_S
        sending.tries += 1
        world.counts["batches sent"] += 1
        world.counts["batches sent again"] += sending.tries > 1
        outcomes = process.run(lambda: broker.producing.put([sending.batch]))
        end, tries = broker.store.log_end, sending.tries

        def told(answers: list[BatchOutcome]) -> None:
            if producer.sending is sending and sending.tries == tries:
                self._told(producer, sending, node, broker, answers[0], end)

        world.ask(process, broker.producing.acknowledge(outcomes, end), told)

    def _told(
        self, producer: Producer, sending: Sending, node: Node, broker: Broker, outcome: BatchOutcome, end: int
    ) -> None:
        world = self._world
        sending.process = None
        if outcome.code not in STORED:
            if outcome.code not in NOT_STORED:
                raise AssertionError(f"a batch was rejected: {outcome}")
            world.counts[f"rejected: {outcome.code.name}"] += 1
            return
        world.counts[f"{outcome.code.name} of {broker.replication.role.name}"] += 1
        is_in_time = outcome.code is not ResponseCode.FLUSH_SLAVE_TIMEOUT
        numbers = [message.number for message in sending.messages]
        promise = self._promise("acknowledgements", node, broker, end, numbers, is_in_time=is_in_time)
        promise.begin = outcome.base_log_offset
        for message in sending.messages:
            message.promise = promise
        producer.sending = None

    async def end_transaction(self) -> bool:
        """Commit or roll back."""
        world = self._world
        waiting = [
            message
            for message in world.model.messages[-200:]
            if message.transaction
            and message.promise is not None
            and world.model.transactions[message.transaction].told is None
        ]
        node = world.route()
        if not waiting or node is None or node.broker is None or node.process is None or node.process.is_stopped:
            return False
        transaction = world.model.transactions[world.rng.choice(waiting).transaction]
        broker, end = node.broker, node.broker.store.log_end
        transaction.begin = min(transaction.begin, end) if transaction.is_tried else end
        transaction.is_tried = True
        state = TransactionState.COMMIT_MESSAGE if transaction.commits else TransactionState.ROLLBACK_MESSAGE
        work = broker.transactions.end(PRODUCER_GROUP, transaction.id, state, from_check=False)

        def told(ended: Ended | Exception) -> None:
            if isinstance(ended, Ended) and ended.code is ResponseCode.SUCCESS and transaction.told is None:
                transaction.told = self._promise_end(transaction, node, broker)

        world.ask(node.process, work, told)
        world.counts["ends of transactions tried"] += 1
        return True

    def _promise_end(self, transaction: Transaction, node: Node, broker: Broker) -> Promise | None:
        """Up to the op message; others may have written behind it, and wait still. None when it was deleted since."""
        store = broker.store
        for found in scan_log(store.log.files, max(transaction.begin, store.log_begin), store.log_end):
            if not isinstance(found, Record) or found.topic != OP_HALF_TOPIC or transaction_id(found) != transaction.id:
                continue
            kind, end = "commits" if transaction.commits else "roll-backs", found.log_offset + found.size
            return self._promise(kind, node, broker, end, [transaction.number], is_in_time=True)
        if transaction.begin >= store.log_begin:
            raise InvariantError(f"{node.name} answers that {transaction} has ended, and has no op message of it")
        return None

    def _promise(
        self, what: str, node: Node, broker: Broker, end: int, numbers: list[int], *, is_in_time: bool
    ) -> Promise:
        """`is_in_time`: a synchronous master has answered with nothing less than what its in-sync set asks for."""
        confirmed = is_in_time and broker.replication.role is BrokerRole.SYNC_MASTER
        if confirmed:
            self._world.check_confirmed(node, end)
        promise = self._world.promise(what, node, broker, end, confirmed=confirmed, numbers=numbers)
        self._world.model.promised(promise)
        return promise


class Consumers:
    """One group, whose members read from master and replicas, and report to either."""

    def __init__(self, world: ReplicaWorld) -> None:
        self._world = world
        self._read_to: dict[int, int] = {}

    async def read(self) -> bool:
        """The next messages of one queue, from any broker."""
        world = self._world
        node, queue_id = world.rng.choice(world.nodes), world.rng.randrange(0, QUEUES)
        broker, process = node.broker, node.process
        if broker is None or process is None or broker.topics.get(TOPIC) is None:
            return False
        begin = self._read_to.get(queue_id, 0)
        if world.rng.random() < 0.2:
            begin = world.rng.randrange(0, begin + 1)
        query = PullQuery(GROUP, TOPIC, queue_id, begin, 8, 1 << 16, "*")

        def got(result: PullResult | Exception) -> None:
            if isinstance(result, PullResult):
                self._got(node, broker, queue_id, result)

        world.ask(process, self._pull(broker, query), got)
        world.counts["reads at the master" if node is world.leader.node else "reads at a replica"] += 1
        return True

    async def _pull(self, broker: Broker, query: PullQuery) -> PullResult:
        hot = broker.pulling.pull_hot(query)
        return await broker.pulling.pull(query) if hot is None else hot

    def _got(self, node: Node, broker: Broker, queue_id: int, result: PullResult) -> None:
        world = self._world
        if result.status is PullStatus.OFFSET_ILLEGAL:
            self._read_to[queue_id] = result.next_begin_offset
            return
        synchronous = world.settings.master_role is BrokerRole.SYNC_MASTER
        for record in iter_records(result.records):
            number = number_of(record.body)
            known = world.model.seen.get((queue_id, record.queue_offset))
            if number is None or (known is not None and known[0] == number and known[1].holds):
                continue
            end = record.log_offset + record.size
            promise = world.promise("messages seen", node, broker, end, confirmed=synchronous, numbers=[number])
            is_settled = world.leader.is_open or not world.leader.may_lose
            world.model.saw(queue_id, record.queue_offset, number, promise, is_settled=is_settled)
        if result.status is PullStatus.FOUND:
            self._read_to[queue_id] = max(self._read_to.get(queue_id, 0), result.next_begin_offset)

    async def commit(self) -> bool:
        """A member reports, to any broker, what it has finished."""
        world = self._world
        node, queue_id = world.rng.choice(world.nodes), world.rng.randrange(0, QUEUES)
        broker, process = node.broker, node.process
        read_to = self._read_to.get(queue_id, 0)
        if broker is None or process is None or not read_to or broker.topics.get(TOPIC) is None:
            return False
        known = broker.offsets.query(GROUP, TOPIC, queue_id) or Progress(0)
        end = min(read_to, broker.store.queue_end(TOPIC, queue_id))
        if end <= known.offset + 1:
            return False
        progress = self._progress(known, end)
        world.model.tried[(GROUP, queue_id), progress.version].append(progress)
        try:
            left_out = process.run(lambda: broker.offsets.commit(GROUP, [(TOPIC, queue_id, progress)]))
        except RejectedError:
            return False
        if not left_out:
            world.counts[
                "progress told to a master" if node is world.leader.node else "progress told to a replica"
            ] += 1
            self._note(node, process, broker, queue_id, progress, is_reset=False)
        return True

    def _progress(self, known: Progress, end: int) -> Progress:
        offset = self._world.rng.randrange(known.offset, end + 1)
        if offset + 1 < end and self._world.rng.random() < 0.3:
            begin = self._world.rng.randrange(offset + 1, end)
            return Progress(offset, ((begin, end),), known.version)
        return Progress(offset, (), known.version)

    async def reset(self) -> bool:
        """An operator sets the group's offset anew, at the master."""
        world = self._world
        node, queue_id = world.leader.node, world.rng.randrange(0, QUEUES)
        broker, process = node.broker, node.process
        if broker is None or process is None or broker.topics.get(TOPIC) is None:
            return False
        offset = world.rng.randrange(0, broker.store.queue_end(TOPIC, queue_id) + 1)
        world.model.resets_tried[GROUP, queue_id] += 1
        work = broker.offsets.set(GROUP, [(TOPIC, queue_id, offset)])
        answer = await world.answer(process, self._then_known(broker, work, queue_id))
        if isinstance(answer, Progress):
            world.counts["resets"] += 1
            self._read_to[queue_id] = offset
            self._note(node, process, broker, queue_id, Progress(offset, (), answer.version), is_reset=True)
        return True

    async def _then_known(self, broker: Broker, work: object, queue_id: int) -> Progress | None:
        await work  # type: ignore[misc]
        return broker.offsets.query(GROUP, TOPIC, queue_id)

    def _note(
        self, node: Node, process: Process, broker: Broker, queue_id: int, progress: Progress, *, is_reset: bool
    ) -> None:
        """It counts once it is in the journal."""
        commits = self._world.model.commits[GROUP, queue_id]

        def durable(flushed: bool) -> None:
            if flushed is True:
                commits.append(Commit(node.name, progress, is_reset))

        self._world.ask(process, self._flushed(process, broker), durable)

    async def _flushed(self, process: Process, broker: Broker) -> bool:
        await process.clock.sleep(0.2)
        await asyncio.sleep(0)
        return await broker.offset_journal.flush()
