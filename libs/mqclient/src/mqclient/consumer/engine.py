"""A started push consumer: its parts, put together for its configuration.

    Rebalance -> QueueAssignment -> PullLoop, one for each queue -> ProcessQueue -> ConsumeService -> ListenerInvoker
                                                                        |
                                            ProgressReports, OffsetStore: what is finished, to the brokers

Invariants: a message is finished when the listener has consumed it or the broker has taken it back; offsets never pass
an unfinished message, so every message is delivered at least once. What was finished leaves for its broker at most
REPORT_DELAY_S later, as long as there is a connection; what was pulled before an offset was set is not reported after
it, so that a report names each queue once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.client_instance import ClientInstance
from mqclient.config import ConsumerConfig
from mqclient.connection.broker_connections import BrokerConnection
from mqclient.consumer.assignment import LOCK_INTERVAL_S, PullContext, PullLoop, QueueAssignment, QueueLocks
from mqclient.consumer.broadcast_offsets import BroadcastOffsetStore, LocalFileOffsetStore
from mqclient.consumer.consume_service import (
    BY_RECONSUME_TIMES,
    TO_DEAD_LETTERS,
    ConcurrencyControl,
    ConsumerStats,
    ConsumeService,
    GiveBack,
    ProcessQueue,
)
from mqclient.consumer.consuming import ConsumeMessageConcurrentlyService, ConsumeMessageOrderlyService
from mqclient.consumer.listener import (
    ConsumeFromWhere,
    ConsumeHooks,
    ConsumeOrderlyStatus,
    ConsumeStatus,
    Listener,
    ListenerInvoker,
    MessageModel,
)
from mqclient.consumer.offsets import OffsetStore, Progress, RemoteBrokerOffsetStore, to_wire
from mqclient.consumer.pulling import PullFromWhichNode, Subscription
from mqclient.consumer.rebalance import AllocateMessageQueueStrategy, Rebalance
from mqclient.errors import BrokerUnreachableError, require_success
from mqclient.lifecycle import BackgroundTasks, wait_event
from mqclient.message import MessageExt, MessageQueue
from mqclient.observed.operations import traced_give_back
from mqclient.transport.methods import CONSUMER_SEND_BACK
from osenv.clock import timeout
from telemetry import is_tracing

logger = logging.getLogger("mqclient.engine")

FAILURE_CHARACTERS_MAX = 512
GROUPS_OWN = 0  # number of tries

REPORT_DELAY_S = 0.05  # half of the 100 ms within which a broker is to know

COMMIT_SHARE = 0.2  # of the time for a shutdown: what is kept back for the last offsets
COMMIT_S_MAX = 1.0
TIMESTAMP_BACK_MS = 30 * 60 * 1000  # CONSUME_FROM_TIMESTAMP without a time: half an hour ago, as in RocketMQ


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """The specification of a consumer. `subscriptions` by topic, the group's retry topic included."""

    group: str
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    strategy: AllocateMessageQueueStrategy
    config: ConsumerConfig
    subscriptions: Mapping[str, Subscription]
    listener: Listener
    orderly: bool
    hooks: ConsumeHooks

    @property
    def is_broadcasting(self) -> bool:
        return self.message_model is MessageModel.BROADCASTING


class ConsumerEngine:
    """The parts of one consumer; used from its start to its end."""

    def __init__(self, instance: ClientInstance, spec: ConsumerSpec) -> None:
        self._instance = instance
        self._spec = spec
        self.stats = ConsumerStats()
        self.resumed = asyncio.Event()
        self.resumed.set()
        self.concurrency = ConcurrencyControl(
            spec.config.consume_thread_min,
            spec.config.consume_thread_max,
            spec.config.adjust_thread_pool_nums_threshold,
        )
        self.started_ms = instance.clock.wall_ms()
        success = ConsumeOrderlyStatus.SUCCESS if spec.orderly else ConsumeStatus.CONSUME_SUCCESS
        self.listening = ListenerInvoker(
            instance.clock, spec.group, spec.listener, success, hooks=spec.hooks, stats=self.stats
        )
        self._tasks = BackgroundTasks(instance.clock)
        self._renewing = BackgroundTasks(instance.clock)  # of locks, until the last listener has ended
        self._finished = False
        self._nodes = PullFromWhichNode(instance)
        self._reports = ProgressReports(instance, self._nodes, spec.group)
        self._offset_store = self._make_offset_store()
        self._consume_service = self._make_consume_service()
        self._pulling = self._make_pull_context()
        self._topics = list(spec.subscriptions)  # that it still subscribes to
        self._rebalance = Rebalance(
            instance,
            spec.group,
            topics=self._topics,
            strategy=None if spec.is_broadcasting else spec.strategy,
        )
        self.assigned = QueueAssignment(
            instance.clock,
            offset_store=self._offset_store,
            consume_service=self._consume_service,
            flow_control=spec.config.flow_control(orderly=spec.orderly),
            locks=QueueLocks(instance, spec.group) if spec.orderly and not spec.is_broadcasting else None,
            make_pull_loop=self._make_pull_loop,
            freed=self._rebalance.rebalance_now,
        )

    # ------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Begin with what needs no broker: listeners, reports, periodic work (mechanism C11)."""
        config = self._spec.config
        await self._offset_store.open()
        self._consume_service.start()
        if not self._spec.is_broadcasting:
            self._tasks.start(self._reports.run(), f"mqclient reports {self._spec.group}")
        interval_s = config.adjust_thread_pool_interval_s
        self._periodically(self._tasks, self._adjust_concurrency, interval_s, "consume concurrency")
        if self._spec.orderly:
            self._periodically(self._renewing, self.assigned.renew_locks, LOCK_INTERVAL_S, "queue locks")

    async def join(self, timeout_s: float) -> bool:
        """Begin to balance and to pull; says whether the first share was known within `timeout_s`."""
        self._tasks.start(self._rebalance.run(self.assigned), f"mqclient rebalance {self._spec.group}")
        return await wait_event(self._instance.clock, self._rebalance.done_once, timeout_s)

    async def finish(self, until: float) -> None:
        """Let listeners finish and commit the last offsets until the monotonic time `until`; then break off."""
        clock = self._instance.clock
        left_s = max(0.0, until - clock.monotonic())
        commit_s = min(COMMIT_SHARE * left_s, COMMIT_S_MAX)
        await self._tasks.close()
        await self.assigned.stop()
        all_ended = await self._consume_service.close(left_s - commit_s)
        self._finished = True
        await self._renewing.close()
        self.listening.close(0.0)
        try:
            if commit_s:
                async with timeout(clock, commit_s):
                    await self.assigned.commit()
                    if all_ended:  # else a listener may still be at work in its thread, and the lock has to run out
                        await self.assigned.unlock()
        except TimeoutError:
            logger.warning("consumer %s leaves, and not every broker has its last offsets", self._spec.group)
        finally:
            await self._offset_store.close()

    # ------------------------------------------------------------------------------------------ what happens to it

    @property
    def listeners_running(self) -> int:
        """How many listeners have messages that are neither finished nor given back."""
        return self._consume_service.running

    def rebalance_now(self) -> None:
        """The group or the queues may have changed."""
        self._rebalance.rebalance_now()

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from the topic, and give up its queues."""
        if topic in self._topics:
            self._topics.remove(topic)
            self.assigned.drop([queue for queue in self.assigned.queues if queue.topic == topic])
            self._instance.subscriptions_changed()
            self._rebalance.rebalance_now()

    async def wait_assigned(self) -> None:
        """Return when the member has its share of every topic."""
        await self._rebalance.assigned.wait()

    def session_opened(self) -> None:
        """A broker knows this client, perhaps again: offsets may have been set meanwhile, and members have come.

        It may have become the master just now, and know nothing of the locks that its predecessor gave.
        """
        self._offset_store.invalidate()
        if self._spec.orderly and not self._finished:
            self._renewing.start(self.assigned.renew_locks(), f"mqclient queue locks again {self._spec.group}")
        self._rebalance.rebalance_now()

    def consumer_data(self) -> broker_pb.ConsumerData:
        """This consumer's part of the heartbeat."""
        return broker_pb.ConsumerData(
            group=self._spec.group,
            message_model=broker_pb.MessageModel.Value(self._spec.message_model.value),
            consume_from_where=broker_pb.ConsumeFromWhere.Value(self._spec.consume_from_where.value),
            subscriptions=[
                broker_pb.Subscription(
                    topic=one.topic, expression=one.expression, expression_type=one.expression_type.value
                )
                for one in map(self._spec.subscriptions.__getitem__, self._topics)
            ],
            orderly=self._spec.orderly,
        )

    # ---------------------------------------------------------------------------------------------------- inside

    def _make_offset_store(self) -> OffsetStore:
        spec, instance = self._spec, self._instance
        where = broker_pb.ConsumeFromWhere.Value(spec.consume_from_where.value)
        begin = broker_pb.ConsumeBegin(where=where)
        if spec.consume_from_where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            given = spec.config.consume_timestamp_ms
            begin.timestamp_ms = instance.clock.wall_ms() - TIMESTAMP_BACK_MS if given is None else given
        if spec.is_broadcasting:
            return BroadcastOffsetStore(instance, begin, self._make_offset_file())
        return RemoteBrokerOffsetStore(instance, spec.group, begin, self._reset_offsets)

    def _make_offset_file(self) -> LocalFileOffsetStore | None:
        config, instance = self._spec.config, self._instance
        if not config.keep_local_offsets:
            return None
        name, folder = instance.config.instance_name, config.local_offset_store_dir
        return LocalFileOffsetStore(self._spec.group, name, instance.local_ip, folder)

    def _make_consume_service(self) -> ConsumeService:
        spec, config, clock = self._spec, self._spec.config, self._instance.clock
        give_back: GiveBack = SendBack(self._instance, spec.group, config.max_reconsume_times)
        if spec.is_broadcasting:
            give_back = Discard()
        if spec.orderly:
            return ConsumeMessageOrderlyService(
                clock,
                self.listening,
                give_back,
                self._finish,
                may_consume=self._may_consume,
                concurrency=self.concurrency.count,
                batch_size_max=config.consume_message_batch_max_size,
                reconsume_times_max=config.max_reconsume_times,
                suspend_s=config.suspend_current_queue_time_s,
            )
        return ConsumeMessageConcurrentlyService(
            clock,
            self.listening,
            give_back,
            self._finish,
            concurrency=self.concurrency.count,
            batch_size_max=config.consume_message_batch_max_size,
            timeout_s=config.consume_timeout_s,
        )

    def _make_pull_context(self) -> PullContext:
        config = self._spec.config
        return PullContext(
            self._instance,
            self._nodes,
            self._spec.group,
            self._consume_service,
            self._offset_store,
            self.stats,
            self.resumed,
            self._topic_gone,
            None if self._spec.is_broadcasting else self._reset_offsets,
            config.pull_batch_size,
            config.pull_interval_s,
        )

    def _make_pull_loop(self, process_queue: ProcessQueue) -> PullLoop:
        return PullLoop(self._pulling, self._spec.subscriptions[process_queue.queue.topic], process_queue)

    def _topic_gone(self, queue: MessageQueue) -> None:
        """It may come back, with other queues: the next rebalance sees."""
        self.assigned.drop([queue])
        self._rebalance.gone(queue)

    def _finish(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        process_queue.remove(messages)
        if not self._spec.is_broadcasting:
            self._reports.finished_some(process_queue)

    def _reset_offsets(self, queues: Mapping[MessageQueue, Progress]) -> None:
        self.assigned.reset_offsets(queues)

    def _may_consume(self, process_queue: ProcessQueue) -> bool:
        return self.assigned.may_consume(process_queue)

    async def _adjust_concurrency(self) -> None:
        before = self.concurrency.count
        waiting = sum(process_queue.lag for process_queue in self.assigned.process_queues)
        if self.concurrency.adjusted(waiting) != before:
            logger.info("consumer %s: %d listeners at a time", self._spec.group, self.concurrency.count)
            self._consume_service.set_concurrency(self.concurrency.count)

    def _periodically(
        self, tasks: BackgroundTasks, action: Callable[[], Awaitable[None]], interval_s: float, what: str
    ) -> None:
        tasks.start_periodic(
            action, first_delay_s=interval_s, interval_s=interval_s, name=f"mqclient {what} {self._spec.group}"
        )


class SendBack:
    """Back to the master of its broker, which stores it anew: to be tried again, or with the dead letters."""

    def __init__(self, instance: ClientInstance, group: str, reconsume_times_max: int | None) -> None:
        self._instance = instance
        self._group = group
        self._reconsume_times_max = reconsume_times_max

    async def __call__(
        self,
        process_queue: ProcessQueue,
        message: MessageExt,
        *,
        failure: object,
        delay_level: int = BY_RECONSUME_TIMES,
    ) -> None:
        """Raises MQClientError."""
        if self._reconsume_times_max == 0:
            delay_level = TO_DEAD_LETTERS
        sending, dead = self._send(process_queue, message, delay_level, failure), delay_level < 0
        await (traced_give_back(self._group, message, dead=dead, sending=sending) if is_tracing() else sending)

    async def _send(self, process_queue: ProcessQueue, message: MessageExt, delay_level: int, failure: object) -> None:
        request = broker_pb.ConsumerSendBackRequest(
            group=self._group,
            log_offset=message.log_offset,
            delay_level=delay_level,
            max_reconsume_times=self._reconsume_times_max or GROUPS_OWN,
            failure=failure_text(failure),
            client_id=self._instance.client_id,
            version=process_queue.version,
        )
        response = await self._instance.calls.to_master(message.broker_name, CONSUMER_SEND_BACK, request)
        require_success(response.code, response.remark, message.broker_name)
        process_queue.sent_back(response.log_end)


class Discard:
    """In broadcasting a message that could not be consumed is not tried again (mechanism C2)."""

    async def __call__(
        self,
        process_queue: ProcessQueue,
        message: MessageExt,
        *,
        failure: object,
        delay_level: int = BY_RECONSUME_TIMES,
    ) -> None:
        """Raises nothing."""
        del process_queue, failure, delay_level
        logger.warning("%r was not consumed, and in broadcasting it does not come again", message)


def failure_text(failure: object) -> str:
    """What a listener answered or raised, or a sentence about it, as a dead letter keeps it."""
    if isinstance(failure, BaseException):
        kind = type(failure)
        failure = f"{kind.__module__}.{kind.__qualname__}: {failure}".removeprefix("builtins.")
    elif isinstance(failure, Enum):
        failure = f"the listener answered {failure.name}"
    elif not isinstance(failure, str):
        failure = f"the listener answered {type(failure).__name__}, no status"
    text = " ".join(str(failure).encode(errors="replace").decode().split())
    return text if len(text) <= FAILURE_CHARACTERS_MAX else f"{text[: FAILURE_CHARACTERS_MAX - 3]}..."


class ProgressReports:
    """Tells the brokers what one consumer has finished, a moment after it was.

    A report rides the next poll to the broker that serves the queue, master or replica, or goes alone when none goes.
    It has no answer, unless the broker leaves it out because the offset has been set. What is lost with a connection
    comes with the next report, or with the commit every 5 s.
    """

    def __init__(self, instance: ClientInstance, nodes: PullFromWhichNode, group: str) -> None:
        self._instance = instance
        self._nodes = nodes
        self._group = group
        self._changed: dict[ProcessQueue, None] = {}  # in the order of their first change
        self._due = asyncio.Event()

    def finished_some(self, process_queue: ProcessQueue) -> None:
        """Messages of this queue have been finished."""
        if not self._changed:
            self._due.set()
        self._changed[process_queue] = None

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self._due.wait()
            await self._instance.clock.sleep(REPORT_DELAY_S)
            self.report()

    def report(self) -> None:
        """Send off what has changed."""
        self._due.clear()
        changed, self._changed = self._changed, {}
        by_broker: dict[BrokerConnection, list[broker_pb.QueueProgress]] = defaultdict(list)
        for process_queue in changed:
            if process_queue.outdated:
                continue
            queue = process_queue.queue
            try:
                by_broker[self._nodes.reader(queue)[1]].append(to_wire(queue, process_queue.progress))
            except BrokerUnreachableError as error:
                logger.debug("no report of %s: %s", queue, error)
        for connection, queues in by_broker.items():
            report = broker_pb.GroupProgress(group=self._group, client_id=self._instance.client_id, queues=queues)
            connection.poll.report(report)
