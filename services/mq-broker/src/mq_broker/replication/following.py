"""The replica's side of one link: it finds where to begin, then takes over what the master sends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from dataclasses import dataclass, field, replace

from mq_broker.core.documents import CONSUMER_OFFSETS
from mq_broker.core.replica_state import Cut, Epoch, EpochHistory, common_end
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
    Probe,
    ProbeAnswer,
    ProgressEntries,
    Rejection,
    ReplicaEvent,
    ReplicaFrame,
    ReplicaHello,
    ReplicaLink,
    Report,
    StateDocument,
)
from mq_broker.replication.node import Node, heard, stop
from mq_broker.store.errors import CopyError
from osenv.clock import rest, timeout

log = logging.getLogger(__name__)

PROGRESS_INTERVAL_S = 0.05
LEAVE_NOTICE_S = 0.5


class Following:
    """One link, from hello to its end. When the log has to be cut, that is written down: the broker is opened anew.

    Invariants: nothing is acknowledged before the log was compared, and cut where it has to be; a frame of another
    epoch than the one that was taken over ends the link; bytes are acknowledged as the replica's flushDiskType says: on
    disk, or written.
    """

    def __init__(self, node: Node, link: ReplicaLink) -> None:
        self._node, self._link = node, link
        self._epoch = node.file.state.epoch
        self._exchange = node.new_exchange()
        self._changed = asyncio.Event()
        self._acknowledged = 0
        self.is_up = self.was_up = False
        self.beat: MasterHeartbeat | None = None
        self._caught_up_at = node.clock.monotonic()
        self._old: MasterHeartbeat | None = None  # it told of files that are deleted at the master, and still here
        self._deleting: asyncio.Task[None] | None = None  # old files; the log grows meanwhile

    async def run(self) -> None:
        """Until the link ends. Raises LinkError with the reason, StoreError and OSError when the store cannot go on."""
        reporting: asyncio.Task[None] | None = None
        try:
            await self._node.store.sync()  # what is reported, and compared, is on disk
            start = await self._reconcile()
            if start is None:
                return
            self._node.states_in.begin()
            self._acknowledged = start
            await self._send(Follow(start))
            self.is_up = self.was_up = True
            reporting = asyncio.create_task(self._report_forever(), name="reports")
            await self._take_forever(reporting)
        except asyncio.CancelledError:
            await stop(reporting)
            await self._send_leave_notice()
            raise
        finally:
            self.is_up = False
            await stop(reporting, self._deleting)
            self._exchange.close()

    async def _send_leave_notice(self) -> None:
        """The master need not wait for this replica, and ends the link; one that is not told notices by itself."""
        if self.is_up:
            with contextlib.suppress(LinkError, TimeoutError):
                async with timeout(self._node.clock, LEAVE_NOTICE_S):
                    await self._send(LeaveNotice())
                    while await self._link.receive() is not None:
                        pass

    def grown(self) -> None:
        """The log, or what is durable of it, has grown."""
        self._changed.set()

    @property
    def lag_seconds(self) -> float:
        """How long ago it had everything that it had heard of; 0.0 while it has. Seconds."""
        if self.beat is None or self.beat.log_end <= self._node.store.log_end:
            return 0.0
        return self._node.clock.monotonic() - self._caught_up_at

    # ------------------------------------------------------------------------------------- reconciling

    async def _reconcile(self) -> int | None:
        """Where to follow from; None when the log has to be cut first."""
        node, store, state = self._node, self._node.store, self._node.file.state
        identity = node.identity
        await self._send(
            ReplicaHello(
                identity.cluster_name,
                identity.broker_name,
                state.replica_id,
                identity.broker_id,
                identity.address,
                store.log_begin,
                store.log_end,
                state.history,
                applies_changes=True,
            )
        )
        frame = await self._receive()
        hello = frame.event
        if not isinstance(hello, MasterHello):
            raise _out_of_place(hello)
        search = Reconciliation(
            state.epoch,
            state.master_id,
            state.replica_id,
            state.history,
            store.log_begin,
            store.log_end,
            state.first_master_id,
        )
        action = search.step(Greeted(frame.epoch, hello))
        while isinstance(action, Compare):
            action = search.step(await self._compare(action))
        match action:
            case Reject(remark):
                raise LinkError(remark)
            case CutLog(cut):
                await self._prepare_cut(cut)
                return None
            case StartFollowing(log_offset):
                node.master_clocks.forget()  # its machine may have started anew since it was last heard
                master = frame.epoch, hello.replica_id, hello.history, hello.renewal_origin, hello.first_master_id
                await node.remember(lambda state: state.following(*master))
                self._epoch = frame.epoch
                log.info("follows the master in epoch %s from %d", frame.epoch, log_offset)
                return log_offset

    async def _compare(self, action: Compare) -> Compared:
        feed = self._node.store.log_feed
        window = await feed.window(action.at_most)
        begin, end = max(window.begin, action.at_least), window.end
        if end <= begin:
            return Compared(end, matches=False)
        crc32 = window.crc32 if begin == window.begin else await feed.crc32(begin, end)
        if crc32 is None:
            raise LinkError(f"the log from {begin} to {end} cannot be read")
        await self._send(Probe(begin, end, crc32))
        answer = (await self._receive()).event
        if not isinstance(answer, ProbeAnswer) or answer.end != end:
            raise _out_of_place(answer)
        return Compared(end, answer.matches)

    async def _prepare_cut(self, cut: Cut) -> None:
        begin, end = self._node.store.log_begin, self._node.store.log_end
        if cut.end < end:
            log.critical(
                "from offset %d on this log is not the master's: %d bytes are cut off, and kept in quarantine/",
                cut.end, end - cut.end,
            )  # fmt: skip
        if cut.begin is not None:
            log.warning("this log, from %d to %d, begins anew at %d, where the master's begins", begin, end, cut.begin)
        await self._node.remember(lambda state: replace(state, cut=cut))

    # --------------------------------------------------------------------------------------- following

    async def _take_forever(self, reporting: asyncio.Task[None]) -> None:
        while True:
            frame = await self._receive()
            if frame.epoch != self._epoch:
                raise LinkError(f"a frame of epoch {frame.epoch} in epoch {self._epoch}")
            await self._take(frame.event)
            for task in (reporting, self._deleting):
                if task is not None and task.done():
                    task.result()

    async def _take(self, event: MasterEvent) -> None:
        store = self._node.store
        try:
            match event:
                case LogBytes(log_offset, data, confirm_offset):
                    store.append_copy(log_offset, data)
                    store.confirmation.advance(confirm_offset, alone=False)
                    self._node.states_in.reach(store.log_end)
                    self._exchange.catch_up()
                    await self._node.states_in.save()
                case MasterHeartbeat():
                    await self._take_beat(event)
                case StateDocument():
                    await self._node.states_in.take(event)
                    await self._node.states_in.save()
                case ProgressEntries():
                    if self._exchange.merge(event):
                        await store.persist(CONSUMER_OFFSETS)
                case _:
                    raise _out_of_place(event)
        except (CopyError, ValueError) as error:
            raise LinkError(f"the master has sent an impossible value: {error}") from error

    async def _take_beat(self, beat: MasterHeartbeat) -> None:
        store = self._node.store
        if beat.log_end <= store.log_end:
            self._caught_up_at = self._node.clock.monotonic()
        self.beat = beat
        await self._hear_clocks(beat)
        store.confirmation.advance(beat.confirm_offset, alone=False)
        if self._old is None and beat.log_begin > store.log_begin:
            self._old = beat
        # What waits in old files stands again further on in the master's log: it has to be here before they go.
        is_idle = self._deleting is None or self._deleting.done()
        if self._old is not None and self._old.log_end <= store.log_end and is_idle:
            self._deleting = asyncio.create_task(store.follow_begin(self._old.log_begin), name="old files")
            self._old = None

    async def _hear_clocks(self, beat: MasterHeartbeat) -> None:
        """What the replica has to know of its master's clocks when that is lost is written down."""
        node, clocks = self._node, self._node.master_clocks
        clocks.hear(beat.wall_ms, beat.broker_time_ms)
        if clocks.has_news():
            log.warning("the wall clock of this machine is %.1f s ahead of the master's", -clocks.ahead_ms / 1_000)
        master_time = node.master_time(exact=False)
        if master_time != node.file.state.master_time:
            with contextlib.suppress(OSError):  # the next beat is soon
                await node.remember(lambda state: replace(state, master_time=master_time))

    async def _report_forever(self) -> None:
        """What there is, whenever it has changed, and as a sign of life."""
        self._exchange.on_change(self._changed.set)
        interval_s = self._node.options.beat_interval_ms / 1000
        told, told_at, progress_at = None, 0.0, 0.0
        while True:
            self._changed.clear()
            now = self._node.clock.monotonic()
            report = self._report()
            if report != told or now - told_at >= interval_s:
                told, told_at = report, now
                await self._send(report)
            elif self._exchange.is_waiting and now - progress_at >= PROGRESS_INTERVAL_S:
                progress_at = now
                while (progress := self._exchange.progress()) is not None:
                    await self._send(progress)
            else:
                progress_due = progress_at + PROGRESS_INTERVAL_S if self._exchange.is_waiting else math.inf
                await rest(self._node.clock, self._changed, min(told_at + interval_s, progress_due) - now)

    def _report(self) -> Report:
        store = self._node.store
        self._acknowledged = max(self._acknowledged, self._node.states_in.vouched(store.stored_end))
        wall_ms = round(self._node.own_wall_ms())
        return Report(store.log_end, store.flusher.durable_end, self._acknowledged, wall_ms)

    # ---------------------------------------------------------------------------------------- plumbing

    async def _send(self, event: ReplicaEvent) -> None:
        await self._link.send(ReplicaFrame(self._epoch, event))

    async def _receive(self) -> MasterFrame:
        frame = await heard(self._node.clock, self._link.receive)
        if frame is None:
            raise LinkError("the master has ended the link")
        if isinstance(frame.event, Rejection):
            raise LinkError(f"the master rejects: {frame.event.remark}")
        if frame.epoch < self._epoch:
            raise LinkError(f"the master is in epoch {frame.epoch}, and epoch {self._epoch} has begun")
        return frame


def _out_of_place(event: MasterEvent) -> LinkError:
    return LinkError(f"the master sends a {type(event).__name__}, which has no place here")


@dataclass(frozen=True, slots=True)
class Greeted:
    """The master has answered the hello."""

    epoch: Epoch
    hello: MasterHello


@dataclass(frozen=True, slots=True)
class Compared:
    """The records before `end`, a boundary of records or the beginning of the log, are the same or are not."""

    end: int
    matches: bool


Event = Greeted | Compared


@dataclass(frozen=True, slots=True)
class Compare:
    """Have the last records compared that end at `at_most` or before it, and that begin at `at_least` or behind it."""

    at_most: int
    at_least: int


@dataclass(frozen=True, slots=True)
class CutLog:
    """Cut the log, durably, then say hello again."""

    cut: Cut


@dataclass(frozen=True, slots=True)
class StartFollowing:
    """Take over the master's epoch and history, durably, then ask for everything from this offset on."""

    log_offset: int


@dataclass(frozen=True, slots=True)
class Reject:
    """This is no master to follow; the remark is a sentence for an operator."""

    remark: str


TWO_WAYS_OUT = (  # the other one is at work: a master that waits after a restore feeds no replica
    "to go on with what this broker has, stop the other one and promote this one (mqadmin switchMaster "
    "--oldMasterIsLost); to go on with the other one, start this one with an empty storePathRootDir, and keep the old "
    "folder: it has what the other one lacks"
)

Action = Compare | CutLog | StartFollowing | Reject


@dataclass
class Reconciliation:
    """Where a replica has to begin: finding out up to where its log and its master's are the same, as a step function.

    One replica's search, from one hello to the decision. Offsets are of the log; `end` is on disk.

    The epochs of both logs say up to where they can be the same; that they are is shown by the CRC of the last records
    before that place. Where it does not match, the place is halved until it does. What the replica has beyond it is its
    own alone, and has to be cut off; only then it follows. A log of which no record matches is cut off whole where both
    were begun by the same master (docs/adr/0140), and kept otherwise: then it is another broker's. Where there is no
    record to compare, an epoch that both have decides (docs/adr/0142).

    Invariant: a replica follows from the end of its log, and from nowhere else, and only after the records before it
    have been found to be the master's, unless there are none.
    """

    epoch: Epoch
    master_id: str
    replica_id: str
    history: EpochHistory
    begin: int
    end: int
    first_master_id: str = ""
    _anew_at: int | None = field(default=None, init=False)  # where to begin if no record matches; None: another broker
    _floor: int = field(default=0, init=False)  # below it one of the logs has nothing
    _at: int = field(default=0, init=False)  # where the records are that are being compared
    _low: int = field(default=0, init=False)  # no boundary of records above the floor and up to here is known to differ
    _high: int = field(default=0, init=False)  # the records before this boundary, and before every later one, do
    _same: int = field(default=-1, init=False)  # the largest boundary that is known to match

    def step(self, event: Event) -> Action:
        """The next step."""
        match event:
            case Greeted(epoch, hello):
                return self._rejection(epoch, hello) or self._first(hello)
            case Compared(end, matches):
                return self._next(end, matches=matches)

    def _rejection(self, epoch: Epoch, hello: MasterHello) -> Reject | None:
        if hello.protocol_version > PROTOCOL_VERSION:
            return Reject(f"the master speaks version {hello.protocol_version}; this broker knows {PROTOCOL_VERSION}")
        if hello.replica_id == self.replica_id:
            return Reject("the master has this broker's own replica id: one store is a copy of the other")
        if epoch < self.epoch:
            return Reject(f"the master is in epoch {epoch}, and epoch {self.epoch} has begun: it has been superseded")
        if epoch.term == self.epoch.term and self.master_id not in ("", hello.replica_id):  # a successor begins a term
            return Reject(
                f"there are two masters in term {epoch.term}: {self.master_id}, which this broker has followed in "
                f"epoch {self.epoch}, and {hello.replica_id} in {epoch}, with another store, as after a restore; "
                f"{TWO_WAYS_OUT}"
            )
        return None

    def _first(self, hello: MasterHello) -> Action:
        if self.first_master_id and self.first_master_id == hello.first_master_id:
            self._anew_at = hello.log_begin
        candidate = common_end(self.history, self.end, hello.history, hello.log_end)
        # Every first master begins epoch 1.1 at offset 0: between the logs of two of them epochs tell nothing.
        are_strangers = self._anew_at is None and self.first_master_id != "" != hello.first_master_id
        is_related = not are_strangers and not set(hello.history.begins).isdisjoint(self.history.begins)
        if self.begin == self.end:
            if hello.log_begin == self.end == candidate and (is_related or not self.history.begins):
                return StartFollowing(self.end)
            # Its queues may have other numbers than the master's, and it has nothing to show for any other place.
            return CutLog(Cut(self.end, begin=hello.log_begin))
        if self.end < hello.log_begin:  # what comes next is not to be had any more
            is_prefix = candidate == self.end and not are_strangers and self.master_id not in ("", self.replica_id)
            return CutLog(Cut(candidate, begin=hello.log_begin)) if is_related or is_prefix else self._without_match()
        self._low = self._floor = max(self.begin, hello.log_begin)
        if candidate < self._floor:
            return CutLog(Cut(candidate)) if is_related and candidate > self.begin else self._without_match()
        if candidate == self._floor == self.end and is_related:
            return StartFollowing(self.end)  # both had it, and the master has it no more: the epochs have to do
        self._at, self._high = candidate, candidate + 1
        return Compare(candidate, self._floor)

    def _next(self, end: int, *, matches: bool) -> Action:
        if end <= self._low:
            self._low = self._at  # no record ends in between
        elif matches:
            self._same, self._low = end, self._at
        else:
            self._high = end
        if self._high - self._low > 1:
            self._at = (self._low + self._high) // 2
            return Compare(self._at, self._floor)
        if self._same < 0:
            return self._without_match()
        return StartFollowing(self.end) if self._same == self.end else CutLog(Cut(self._same))

    def _without_match(self) -> CutLog | Reject:
        if self._anew_at is not None:
            return CutLog(Cut(self.begin, self._anew_at))
        return Reject(
            f"no record of this log, from {self.begin} to {self.end}, is in the master's: they are different brokers' "
            "stores, or this one is of another time; start the replica with an empty storePathRootDir"
        )
