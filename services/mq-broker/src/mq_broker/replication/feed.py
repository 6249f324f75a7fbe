"""The master's side of one link: it compares the logs, then sends bytes, states and heartbeats as the replica can
follow."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from mq_broker.core.replica_state import BrokerRole, Epoch
from mq_broker.replication.frames import (
    PROTOCOL_VERSION,
    Follow,
    LeaveNotice,
    LinkError,
    LogBytes,
    MasterEvent,
    MasterFrame,
    MasterHeartbeat,
    MasterHello,
    MasterLink,
    Probe,
    ProbeAnswer,
    ProgressEntries,
    Rejection,
    ReplicaEvent,
    ReplicaHello,
    Report,
)
from mq_broker.replication.in_sync import Acknowledged, Connected, Disconnected, Event, Left
from mq_broker.replication.node import Node, heard, stop
from osenv.clock import rest, timeout

log = logging.getLogger(__name__)

CHUNK_BYTES = 256 * 1024  # of one frame: on a slow link it has to arrive before the link counts as silent
WINDOW_BYTES = 8 * 1024 * 1024  # sent, and not reported as written yet
STATES_INTERVAL_S, CONFIRM_INTERVAL_S = 0.05, 0.02  # at most so often, unless log bytes go out anyway
FINAL_FRAME_TIMEOUT_S = 1.0  # to tell a replica what is confirmed when its link ends, and as long again to tell it why
NOTHING = Report(0, 0, 0)
ACCEPTED_S = 10.0  # replicas that start at the same time as a restored master register within it
RESTORED = (
    "the store of the master was put back from a backup: it takes nothing, and feeds no replica, until name servers "
    f"have known of no other broker of its name for {ACCEPTED_S:.0f} s. Should a replica have what came after the "
    "backup, promote that one (mqadmin switchMaster --oldMasterIsLost), or take the restored one and lose what only "
    "the other has (mqadmin switchMaster --to the address of the restored one)"
)


class FeedError(Exception):
    """The replica has sent an impossible value; the message goes to it, and the link ends."""


class FeedOwner(Protocol):
    """The master that a feed belongs to."""

    epoch: Epoch

    @property
    def is_restored(self) -> bool:
        """Whether its store was put back from a backup, and it has not been taken as the master yet."""

    def step(self, event: Event) -> None:
        """Something has happened to the replica."""

    def attach(self, feed: ReplicaFeed) -> None:
        """The replica has identified itself."""

    async def superseded(self, epoch: Epoch, master_ha_address: str) -> None:
        """The replica knows of a newer epoch."""


class ReplicaFeed:
    """One link.

    Invariants: nothing is sent before the replica has shown that both logs are the same up to where it asks to follow;
    no more than WINDOW_BYTES are on their way; a document is sent behind the log that it speaks of, and progress with
    the end of the log that it depends on.
    """

    def __init__(self, node: Node, link: MasterLink, master: FeedOwner) -> None:
        self._node, self._link, self._master = node, link, master
        self.wake = asyncio.Event()
        self.replica_id = self.address = ""
        self.broker_id = 0
        self.reported = NOTHING
        self.is_following = False
        self._sending = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._stream: asyncio.Task[None] | None = None
        self._exchange = node.new_exchange()
        self._end_remark = ""
        self.clocks = node.new_heard_clocks()
        self._proven_to = -1  # up to here the replica has shown that its records are the master's
        self._sent_to = 0
        self._told_confirmed = -1
        self._in_sync = (False, 0)
        self._beat_at = self._confirm_at = 0.0
        self._states_at = -STATES_INTERVAL_S  # before the first bytes of the log: replication/states.py says why

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.broker_id} at {self.address}" if self.replica_id else self._link.peer

    @property
    def disconnected(self) -> Disconnected:
        """The event for the ledger when this is over."""
        return Disconnected(self.replica_id)

    def end(self, remark: str) -> None:
        """End the link; the replica hears why."""
        if not self._end_remark and self._task is not None:
            self._end_remark = remark
            self._task.cancel()

    def tell_in_sync(self, in_sync: bool, version: int) -> None:
        """The replica belongs to the set now, or not."""
        self._in_sync, self._beat_at = (in_sync, version), 0.0
        self.wake.set()

    async def run(self) -> None:
        """Until the replica ends the link, breaks it, or sends an impossible value. Raises LinkError."""
        self._task = asyncio.ensure_future(self._run())
        remark = ""
        try:
            await asyncio.shield(self._task)
        except asyncio.CancelledError:
            await stop(self._task, self._stream)  # nothing comes behind what is said now
            await self._tell_confirmed()
            if not (remark := self._end_remark):  # cancelled from outside
                raise
        except FeedError as error:
            remark = str(error)
        finally:
            await stop(self._task, self._stream)
            self._exchange.close()
        if remark:
            level = logging.INFO if remark == RESTORED else logging.WARNING  # the replica comes again every second
            log.log(level, "the link of replica %s ends: %s", self.name, remark)
            await self._reject(remark)

    async def _run(self) -> None:
        await self._greet()
        while True:
            event = await self._receive()
            if event is None:
                return
            match event:
                case Probe():
                    await self._compare(event)
                case Follow(log_offset):
                    self._begin_stream(log_offset)
                case Report():
                    self._take_report(event)
                case ProgressEntries():
                    self._take_progress(event)
                case LeaveNotice():
                    log.info("replica %s stops", self.name)
                    self._master.step(Left(self.replica_id))
                    return
                case ReplicaHello():
                    raise FeedError("a second hello")

    # ---------------------------------------------------------------------------------------- receiving

    async def _greet(self) -> None:
        hello = await self._receive()
        if hello is None:
            raise LinkError("ended before it has said hello")
        if not isinstance(hello, ReplicaHello):
            raise FeedError("the first frame has to be a hello")
        identity, state, store = self._node.identity, self._node.file.state, self._node.store
        self.replica_id, self.broker_id, self.address = hello.replica_id, hello.broker_id, hello.address
        if hello.protocol_version > PROTOCOL_VERSION:
            raise FeedError(f"protocol version {hello.protocol_version}; this master speaks {PROTOCOL_VERSION}")
        if (hello.cluster_name, hello.broker_name) != (identity.cluster_name, identity.broker_name):
            raise FeedError(
                f"a replica of {hello.broker_name} in {hello.cluster_name}; this is {identity.broker_name} in "
                f"{identity.cluster_name}: brokerName and brokerClusterName have to be the same"
            )
        if self._master.is_restored:  # a new replica that followed it would know an epoch
            raise FeedError(RESTORED)
        if hello.replica_id == state.replica_id:
            raise FeedError("it has the master's own replica id: its store is a copy; remove its config/replica.json")
        self._exchange.needs_changes(not hello.applies_changes)
        self._master.attach(self)
        self._in_sync = (self.replica_id in state.in_sync.replicas, state.in_sync.version)
        synchronous = state.role is BrokerRole.SYNC_MASTER
        await self._send(
            MasterHello(
                state.replica_id,
                store.log_begin,
                store.log_end,
                state.history,
                synchronous,
                renewal_origin=state.renewal_origin,
                first_master_id=state.first_master_id,
            )
        )

    async def _receive(self) -> ReplicaEvent | None:
        frame = await heard(self._node.clock, self._link.receive)
        if frame is None:
            return None
        if frame.epoch > self._master.epoch:
            await self._master.superseded(frame.epoch, "")
            raise FeedError(
                f"it has seen epoch {frame.epoch}; this master is in epoch {self._master.epoch}, of the past"
            )
        if self.is_following and frame.epoch != self._master.epoch:
            raise FeedError(f"a frame of epoch {frame.epoch} in epoch {self._master.epoch}")
        return frame.event

    async def _compare(self, probe: Probe) -> None:
        try:
            crc32 = await self._node.store.log_feed.crc32(probe.begin, probe.end)
        except ValueError as error:
            raise FeedError(f"the probe from {probe.begin} to {probe.end}: {error}") from error
        matches = crc32 == probe.crc32
        if matches and probe.begin < probe.end:
            self._proven_to = probe.end
        await self._send(ProbeAnswer(probe.end, matches))

    def _begin_stream(self, log_offset: int) -> None:
        store = self._node.store
        if self._stream is not None:
            raise FeedError("it follows already")
        if not store.log_begin <= log_offset <= store.log_end:
            raise FeedError(f"it follows from {log_offset}; the log runs from {store.log_begin} to {store.log_end}")
        if log_offset not in (store.log_begin, self._proven_to):
            raise FeedError(f"it follows from {log_offset}, and has not shown that its log is the same up to there")
        self.is_following = True
        self._exchange.follows_from(log_offset)
        self.reported = Report(log_offset, log_offset, log_offset)
        self._master.step(Connected(self.replica_id, log_offset))
        log.info("replica %s follows from %d, %d bytes behind", self.name, log_offset, store.log_end - log_offset)
        self._stream = asyncio.create_task(self._stream_from(log_offset), name=f"feed of {self.name}")
        self._stream.add_done_callback(self._stream_ended)

    def _take_report(self, report: Report) -> None:
        if not self.is_following:
            raise FeedError("a report before it follows")
        end = self._node.store.log_end
        if not max(report.acknowledged_offset, report.durable_offset) <= report.written_offset <= end:
            raise FeedError(
                f"it has written up to {report.written_offset}, has {report.durable_offset} on disk and acknowledges "
                f"{report.acknowledged_offset}; the log ends at {end}"
            )
        self.reported = report
        self.clocks.hear(report.wall_ms)
        if self.clocks.has_news():
            ahead_s = self.clocks.ahead_ms / 1_000
            log.warning("the wall clock of replica %s is %.1f s ahead of this machine's", self.name, ahead_s)
        self._master.step(Acknowledged(self.replica_id, report.acknowledged_offset))
        self.wake.set()

    def _take_progress(self, progress: ProgressEntries) -> None:
        try:
            self._exchange.merge(progress)
        except ValueError as error:
            raise FeedError(f"progress of groups: {error}") from error

    # ------------------------------------------------------------------------------------------ sending

    async def _stream_from(self, offset: int) -> None:
        store, clock = self._node.store, self._node.clock
        self._sent_to = offset
        self._exchange.on_change(self.wake.set)
        while True:
            self.wake.clear()
            now = clock.monotonic()
            if now - self._states_at >= STATES_INTERVAL_S:
                self._states_at = now
                await self._send_states()
            if self._sent_to < store.log_end and self._sent_to - self.reported.written_offset < WINDOW_BYTES:
                await self._send_log()
            elif now - self._beat_at >= self._node.options.beat_interval_ms / 1000 or self._may_tell_confirmed(now):
                self._beat_at = self._confirm_at = now
                await self._send(self._beat())
            else:
                await self._rest(now)

    async def _send_log(self) -> None:
        store = self._node.store
        data, end = await store.log_feed.read(self._sent_to, CHUNK_BYTES)
        self._told_confirmed = store.readable_end
        await self._send(LogBytes(self._sent_to, data, self._told_confirmed))
        self._sent_to = end

    async def _send_states(self) -> None:
        while self._exchange.is_waiting:
            for document in await self._exchange.documents():
                await self._send(document)
            if (progress := self._exchange.progress()) is not None:
                await self._send(progress)

    def _may_tell_confirmed(self, now: float) -> bool:
        return self._told_confirmed < self._node.store.readable_end and now - self._confirm_at >= CONFIRM_INTERVAL_S

    def _beat(self) -> MasterHeartbeat:
        store = self._node.store
        self._told_confirmed = store.readable_end
        is_prompt = self._sent_to - self.reported.written_offset <= CHUNK_BYTES  # it would be late behind more bytes
        time, wall_ms = self._node.time, round(self._node.time.wall_ms()) if is_prompt else 0
        return MasterHeartbeat(
            store.log_begin, store.log_end, self._told_confirmed, time.now_ms(), *self._in_sync, wall_ms
        )

    async def _rest(self, now: float) -> None:
        """Until something has changed that the replica has to hear, or it is time for a beat."""
        until = self._beat_at + self._node.options.beat_interval_ms / 1000
        if self._told_confirmed < self._node.store.readable_end:
            until = min(until, self._confirm_at + CONFIRM_INTERVAL_S)
        if self._exchange.is_waiting:
            until = min(until, self._states_at + STATES_INTERVAL_S)
        await rest(self._node.clock, self.wake, until - now)

    async def _send(self, event: MasterEvent) -> None:
        async with self._sending:
            await self._link.send(MasterFrame(self._master.epoch, event))

    async def _tell_confirmed(self) -> None:
        """At the end, for a replica that will be read without its master. It need not wait for CONFIRM_INTERVAL_S."""
        if self.is_following:
            await self._say_last(self._beat())

    async def _reject(self, remark: str) -> None:
        await self._say_last(Rejection(remark))

    async def _say_last(self, event: MasterEvent) -> None:
        try:
            async with timeout(self._node.clock, FINAL_FRAME_TIMEOUT_S):
                await self._send(event)
        except (LinkError, TimeoutError) as error:
            log.info("replica %s was not told: %s", self.name, error)

    def _stream_ended(self, task: asyncio.Task[None]) -> None:
        """It ends by an error only, and then the link is over."""
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, LinkError):
                log.error("feed of %s", self.name, exc_info=error)
            self.end(f"the master cannot go on: {error}")
