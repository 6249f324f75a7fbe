"""The broker without its wire: store, states, processors, and background work.

The same object runs behind gRPC, and inside a test on a simulated disk and clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from mq_broker.core.consumer_offsets import RESTORED_RENEWALS_MAX, ConsumerOffsets
from mq_broker.core.delays import DelayLevels, DelayProgress
from mq_broker.core.documents import (
    CONSUMER_OFFSETS,
    DELAY_OFFSETS,
    PRODUCER_SEQUENCES,
    QUEUE_LOCKS,
    SUBSCRIPTION_GROUPS,
    TOPICS,
    TRANSACTION_OFFSETS,
)
from mq_broker.core.life import NO_SPANS, Spans
from mq_broker.core.limits import RESPONSE_MEMORY_BYTES_MAX, CountLimits, RetentionOptions
from mq_broker.core.members import GroupMembers, QueueLocks
from mq_broker.core.producer_sequences import JoinedRecords, ProducerSequences
from mq_broker.core.pulling import MessageFilters, ReplicaReads
from mq_broker.core.replica_state import BrokerIdentity, ReplicaState, ReplicationOptions
from mq_broker.core.rewrite import promised_queue, schedule_position
from mq_broker.core.subscription_groups import GROUP_LIMITS, SubscriptionGroups
from mq_broker.core.topics import TOPIC_LIMITS, TopicTable
from mq_broker.core.transactions import TransactionOptions, TransactionScan, TransactionTable
from mq_broker.processor.backup import Backup
from mq_broker.processor.consuming import Offsets, Pulling
from mq_broker.processor.group_administration import ClientCommands, ConsumeProgress, GroupAdministration
from mq_broker.processor.long_polling import LongPolling, ResponseMemory
from mq_broker.processor.producing import Producing, SendBack
from mq_broker.processor.querying import Explaining, Querying
from mq_broker.processor.recalling import Recalling
from mq_broker.processor.sessions import MembershipRules, QueueLocking, RouteNotices, Session, Sessions
from mq_broker.processor.topic_administration import Changing, TopicAdministration
from mq_broker.processor.transactions import TransactionAdministration, Transactions
from mq_broker.replication import replication_of
from mq_broker.replication.frames import Connect
from mq_broker.replication.node import Node, ReplicaFile, StateExchange, begin_time, stop
from mq_broker.replication.states import StatesIn, StatesOut
from mq_broker.schedule.delay_service import DelayService
from mq_broker.store.changes import Changes
from mq_broker.store.errors import StoreWriteError
from mq_broker.store.message_store import MessageStore, StoreOptions
from mq_broker.store.progress_journal import ProgressJournal
from mq_broker.store.recovery import RecoveryReport, note_boot
from mq_broker.store.retention import Retention
from mqproto.names import CHANGES_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, group_of_retries
from mqproto.record import BODY_BYTES_MAX, Record
from osenv import Clock, Disk, Rng, SyncError, SystemRng
from osenv.clock import rest
from osenv.process import machine_memory_bytes

log = logging.getLogger(__name__)

CHECKPOINT_INTERVAL_S = 10


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """The broker's options, without the store's."""

    identity: BrokerIdentity
    delay_levels: DelayLevels
    auto_create_topics: bool = True
    auto_create_groups: bool = True
    topic_limits: CountLimits = TOPIC_LIMITS
    group_limits: CountLimits = GROUP_LIMITS
    default_topic_queue_count: int = 4
    body_size_max: int = BODY_BYTES_MAX
    property_filter_enabled: bool = False
    response_memory_bytes_max: int = RESPONSE_MEMORY_BYTES_MAX
    flush_consumer_offset_interval_ms: int = 5_000
    transactions: TransactionOptions = field(default_factory=TransactionOptions)
    replication: ReplicationOptions = field(default_factory=ReplicationOptions)


class Broker:
    """One broker. Create, `open`, `run` until it is cancelled, `close`; all on one event loop."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        options: BrokerOptions,
        store_options: StoreOptions,
        rng: Rng | None = None,
        *,
        connect: Connect | None = None,
        spans: Spans = NO_SPANS,
    ) -> None:
        """`connect` opens a link to a master; without it the broker can be no replica. `spans` records what the broker
        does with sampled messages. Raises StoreError, OSError.
        """
        self.options = options
        self._spans = spans
        self._connect = connect
        self._rng = rng or SystemRng()
        self._clock, self._disk = clock, disk
        self.response_memory = ResponseMemory(clock, options.response_memory_bytes_max)
        self.boot_timestamp_ms = clock.wall_ms()
        self.topics = TopicTable(
            auto_create=options.auto_create_topics,
            default_queue_count=options.default_topic_queue_count,
            delay_level_count=options.delay_levels.highest,
        )
        self.groups = SubscriptionGroups(auto_create=options.auto_create_groups)
        self._limit_counts(options)
        self.filters = MessageFilters(options.property_filter_enabled)
        self.consumer_offsets = ConsumerOffsets()
        self.offset_journal = ProgressJournal(disk, clock, store_options.layout.config, self.consumer_offsets)
        self.delay_progress = DelayProgress()
        self.producer_sequences = ProducerSequences()
        self._joined = JoinedRecords(self.producer_sequences)
        self.queue_locks = QueueLocks()
        self._topics_changed = asyncio.Event()
        self.topics.on_change(self._topics_changed.set)
        self.transaction_table = TransactionTable(check_times_max=options.transactions.check_times_max)
        self.transaction_scan = TransactionScan(self.transaction_table)
        self._newest_recovered: Record | None = None
        self._is_restored = False
        self.store = MessageStore(
            disk,
            clock,
            store_options,
            {
                TOPICS: self.topics,
                SUBSCRIPTION_GROUPS: self.groups,
                CONSUMER_OFFSETS: self.consumer_offsets,
                DELAY_OFFSETS: self.delay_progress,
                TRANSACTION_OFFSETS: self.transaction_scan,
                PRODUCER_SEQUENCES: self.producer_sequences,
                QUEUE_LOCKS: self.queue_locks,
            },
            rebuilt_from_log=frozenset({TOPICS, SUBSCRIPTION_GROUPS, DELAY_OFFSETS}),
            optional=frozenset({PRODUCER_SEQUENCES, QUEUE_LOCKS}),
        )
        self.store.states.keep_journal(CONSUMER_OFFSETS, self.offset_journal)
        self.topics.follows = self.groups.follows = lambda: self.store.follows
        self.consumer_offsets.first_resets = self.groups.first_resets
        self.changes = Changes(self.store, self.topics, self.groups, self.consumer_offsets)
        self.states_in = StatesIn(
            self.store, self.topics, self.groups, self.consumer_offsets, self.changes, sequences=self.producer_sequences
        )
        self.store.on_copied = self._copied
        self._replica_file = ReplicaFile(
            disk, store_options.layout, self._rng, options.replication.role, options.identity.broker_id
        )
        self.transaction_scan.ends = lambda: (
            self.store.queue_end(HALF_TOPIC, 0),
            self.store.queue_end(OP_HALF_TOPIC, 0),
        )

    async def open(self) -> None:
        """Recover, put the processors together, and make sure of what was found. Raises StoreDamagedError, OSError."""
        report = self.store.open(self._recovered, self._replica_file.state.cut)
        self._joined.end()
        self._forget_what_is_lost(report)
        log.info("log ends at %d; read again: %d records from %d", report.log_end, report.records, report.scanned_from)
        self.time = begin_time(self._disk, self._clock, self._replica_file.state, report.newest_store_ms)
        self.store.follows = self.transaction_scan.follows = not self._replica_file.state.role.is_master
        self._open_membership()
        await self.store.flusher.flush()  # what was found becomes readable
        self.replication = replication_of(self._node(), self._connect)
        await self.replication.begin()
        await self._open_transactions()
        self._open_producing_and_pulling()
        self._open_administration()
        await self._open_delay()
        self._open_retention()
        self.replication.take_up()
        await self.store.checkpoint()
        await self._finish_cut()
        await self._note_boot()

    @property
    def identity(self) -> BrokerIdentity:
        """The identity of this broker in its role: an operator may have given it another id than broker.conf."""
        return replace(self.options.identity, broker_id=self._replica_file.state.broker_id)

    @property
    def is_master(self) -> bool:
        """Whether it has begun as a master."""
        return self.replication.role.is_master

    def _node(self) -> Node:
        return Node(
            self.store,
            self._replica_file,
            self.options.replication,
            self.identity,
            self.time,
            self._clock,
            self._exchange,
            self.states_in,
            self.queue_locks,
            self._disk.boot_id(),
        )

    def _exchange(self) -> StateExchange:
        """What one link of replication brings across; documents go from the master to its replicas."""
        states = StatesOut(self.store, self.topics, self.groups, self.producer_sequences) if self.is_master else None
        return StateExchange(self.store, self.topics, self.consumer_offsets, states)

    def reconfigure(self, options: BrokerOptions, retention: RetentionOptions) -> None:
        """Follow other options from now on; identity, delay levels and filters stay as they are until a restart."""
        now = self.options
        self.options = replace(
            options,
            identity=now.identity,
            delay_levels=now.delay_levels,
            property_filter_enabled=now.property_filter_enabled,
        )
        self.topics.reconfigure(
            auto_create=options.auto_create_topics, default_queue_count=options.default_topic_queue_count
        )
        self.groups.reconfigure(auto_create=options.auto_create_groups)
        self._limit_counts(options)
        self.producing.body_size_max = options.body_size_max
        self.response_memory.bytes_max = options.response_memory_bytes_max
        self.transactions.reconfigure(options.transactions)
        self.store.gate.options = retention

    def _limit_counts(self, options: BrokerOptions) -> None:
        self.topics.creations.limits, self.groups.creations.limits = options.topic_limits, options.group_limits

    def _forget_what_is_lost(self, report: RecoveryReport) -> None:
        """Nothing has been finished, and nothing sent, that the log does not hold any more."""
        # A restored copy has a log, and neither a checkpoint nor a memory of replication.
        self._is_restored = self._replica_file.is_new and not self.store.is_new and not report.has_checkpoint
        lost = self.consumer_offsets.clamp(self.store.queue_end)
        for group, topic, queue_id, before, now in lost:
            where = f"progress of {group} in queue {queue_id} of {topic}"
            log.warning(
                "%s: the committed offset %d is beyond the recovered log; it is reset to %d", where, before.end, now.end
            )
        state = self._replica_file.state
        all_is_there = report.clean or self.store.is_sync_flush or (report.same_boot and not lost)
        # A replica gives no numbers; it has its master's versions before the bytes that they speak of.
        if state.role.is_master and (state.cut is not None or not all_is_there):
            self.consumer_offsets.renew_versions()
        if self._is_restored:  # a replica as well: it may still follow or be promoted
            drawn = self._rng.randrange(1, RESTORED_RENEWALS_MAX + 1)
            self._replica_file.draw_origin(self.consumer_offsets.renew_restored(drawn))
        if state.role.is_master:
            state = self._replica_file.state
            self.consumer_offsets.begin_term(state.epoch.term, state.renewal_term, state.renewal_origin)
        self.producer_sequences.clamp(self.store.queue_end)

    async def _note_boot(self) -> None:
        """Should only this process die, nothing is lost: then members need not ask anew what is finished (ADR 91).

        Not before the versions that this start has renewed are written: they would have to be renewed again.
        """
        if self.store.failure is not None:
            return
        try:
            if not self.store.is_sync_flush:
                await self.store.rewrite(CONSUMER_OFFSETS)
            note_boot(self.store, self._disk.boot_id())
        except OSError as error:
            log.warning("the boot of this machine is not noted, so that a crash renews all versions: %s", error)

    async def _finish_cut(self) -> None:
        """What had to be cut from the log is gone for good once a checkpoint does not speak of it any more."""
        if self._replica_file.state.cut is not None:
            if self.store.checkpointed_end < 0:
                raise StoreWriteError("the disk takes no checkpoint, so that the log cannot be cut for good")
            await self._replica_file.change(ReplicaState.after_cut)

    def _open_membership(self) -> None:
        members = GroupMembers[Session]()
        self.sessions = Sessions(
            self.topics,
            self.groups,
            self.time,
            self._clock,
            members,
            MembershipRules(self.groups, members, self.filters.parse),
        )
        self.route_notices = RouteNotices(self.topics, self.sessions)
        self.queue_locking = QueueLocking(
            self.store, self.queue_locks, self.topics, self.groups, self.sessions, self._clock
        )
        is_lost = QUEUE_LOCKS in self.store.states.not_current and not self.store.is_new
        self.queue_locking.begin(lost=is_lost or self._is_restored, term=max(self._replica_file.state.epoch.term, 1))

    async def _open_transactions(self) -> None:
        self.transactions = Transactions(
            self.store,
            self.transaction_table,
            self.sessions,
            self.topics,
            self.options.delay_levels,
            self.time,
            self._clock,
            self._rng,
            self.options.transactions,
            self._spans,
        )
        if self.is_master:
            # Of a commit that a replica has taken over in part, the rest may never have come.
            newest = self._newest_recovered or await self.store.log_feed.newest()
            await self.transactions.rebuild(self.transaction_scan, newest)

    def _open_producing_and_pulling(self) -> None:
        self.producing = Producing(
            self.store,
            self.topics,
            self.options.delay_levels,
            self.transactions,
            self.time,
            self.options.body_size_max,
            self.producer_sequences,
        )
        self.pulling = Pulling(
            self.store,
            self.topics,
            self.groups,
            self.filters,
            self.consumer_offsets,
            self.sessions.members.is_broadcasting,
            ReplicaReads.of(
                self.options.replication,
                machine_memory_bytes(),
                lambda: self.store.follows or self.replication.is_connected,
            ),
        )
        self.long_polling = LongPolling(self.pulling, self._clock, self.response_memory)
        self.send_back = SendBack(self.producing, self.topics, self.groups, self.consumer_offsets, self._spans)
        # Polls for messages of a topic or a group that is gone are answered.
        self.changes.on_change = lambda: self.long_polling.answer_all(self.pulling.rejects)
        self.querying = Querying(self.store)
        self.changing = Changing(self.changes, self.consumer_offsets, self.time)
        self.offsets = Offsets(
            self.store, self.topics, self.groups, self.consumer_offsets, self.querying, self.changing
        )

    def _open_administration(self) -> None:
        self.topic_administration = TopicAdministration(
            self.store, self.topics, self.consumer_offsets, self.querying, self.changing
        )
        self.topic_administration.recover()
        self.group_administration = GroupAdministration(
            self.store, self.groups, self.consumer_offsets, self.sessions, self.topic_administration
        )
        self.group_administration.recover()
        self.consume_progress = ConsumeProgress(
            self.store, self.topics, self.groups, self.consumer_offsets, self.sessions, self.querying, self.changing
        )
        self.transaction_administration = TransactionAdministration(
            self.store, self.transaction_table, self.transactions
        )
        self.backup = Backup(self.store, self.time, self.options.identity.broker_name)
        self.client_commands = ClientCommands(
            self.groups, self.consumer_offsets, self.sessions, self.querying, self._clock
        )

    async def _open_delay(self) -> None:
        self.delay = DelayService(
            self.store,
            self.options.delay_levels,
            self.delay_progress,
            self.time,
            self._clock,
            self._disk,
            self.producing.forward,
            lambda topic, log_offset: self.groups.is_past(group_of_retries(topic), log_offset),
            self._spans,
        )
        if self.is_master:
            await self.delay.open()
        self.recalling = Recalling(self.store, self.querying, self.delay_progress, self.time)
        self.explaining = Explaining(
            self.store, self.topics, self.consumer_offsets, self.transaction_table, self.querying, self.delay
        )

    def _open_retention(self) -> None:
        self.retention = Retention(
            self.store,
            self._disk,
            self._clock,
            self.time,
            carriers=(self.delay.carry_over, self.transactions.copies.carry_over),
            unconsumed=self.consume_progress.unconsumed_below,
            behind=self.replication.behind,
            waiting=(self.delay.waiting_below, self.transactions.copies.waiting_below),
        )

    async def run(self) -> None:
        """All background work. Cancelled to stop; returns when the disk has failed, or when the broker has to be closed
        and opened anew, in another role or to cut its log (`replication.reopen`).
        """
        jobs: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (
            self.replication.run,
            self.sessions.expire_forever,
            self.route_notices.run,
            self._checkpoint_forever,
            self._journal_offsets_forever,
            self._rewrite_offsets_forever,
            self._persist_topics_forever,
        )
        if self.is_master:
            jobs += (self.delay.run, self.delay.keep_index, self.transactions.checks.run, self.retention.run)
        else:
            jobs += (self.retention.watch,)
        tasks = [asyncio.create_task(job(), name=job.__qualname__) for job in jobs]
        flusher = asyncio.create_task(self.store.run(), name="flusher")
        reopen = asyncio.create_task(self.replication.reopen.wait(), name="reopen")
        try:
            done, _ = await asyncio.wait([flusher, reopen, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if self.store.failure is None:
                    task.result()  # a job that ends by an error ends the broker with it
        finally:
            if reopen.done():  # waiting requests are answered before the end of this
                await self.store.flusher.flush()
                self.store.confirmation.give_up()
            await stop(flusher, reopen, *tasks)

    async def close(self) -> None:
        """Stop cleanly: after this nothing has to be recovered, unless the disk has failed."""
        self.retention.close()
        if self.is_master:
            await self.delay.close()
        await self.replication.close()
        await self.store.close()

    def _copied(self, record: Record) -> None:
        self.states_in.copied(record)
        self._follow_record(record)
        self.producer_sequences.recovered(record)

    def _recovered(self, record: Record) -> None:
        if record.topic == CHANGES_TOPIC:
            self.changes.recovered(record)
        promised = self._follow_record(record)
        self._joined.add(record, promised)

    def _follow_record(self, record: Record) -> tuple[str, int] | None:
        """Returns the queue that the record is going to, if that is another one than its own."""
        self.topics.recovered(record.topic, record.queue_id, record.queue_offset)
        if (promised := promised_queue(record)) is not None:
            self.topics.promised(*promised)
        position = schedule_position(record)
        if position is not None:
            self.delay_progress.done(*position)
        self._newest_recovered = record
        return promised

    async def _persist_topics_forever(self) -> None:
        """A topic that was made on the way is on disk a moment later; a crash before that finds it in the log."""
        while True:
            await self._topics_changed.wait()
            self._topics_changed.clear()
            await self._try_to_write(TOPICS, self.store.persist(TOPICS))

    async def _checkpoint_forever(self) -> None:
        while True:
            await rest(self._clock, self.store.checkpoint_due, CHECKPOINT_INTERVAL_S)
            if self.is_master:  # a replica forgets what its master has forgotten
                self.producer_sequences.expire(self.time.now_ms())
            await self.store.checkpoint()

    async def _journal_offsets_forever(self) -> None:
        """What members report is on disk a moment later (mechanism C21)."""
        try:
            await self.offset_journal.run()
        except SyncError as error:
            self.store.fence(error)

    async def _rewrite_offsets_forever(self) -> None:
        """The document that RocketMQ reads, too; what is newer stands in the journal (mechanism C22)."""
        written = -1
        while True:
            await self._clock.sleep(self.options.flush_consumer_offset_interval_ms / 1000)
            if written != (version := self.consumer_offsets.data_version):
                await self._try_to_write(CONSUMER_OFFSETS, self.store.rewrite(CONSUMER_OFFSETS))
                written = version

    async def _try_to_write(self, name: str, writing: Awaitable[None]) -> None:
        try:
            await writing
        except OSError as error:
            log.warning("%s could not be written: %s; the next checkpoint tries again", name, error)
