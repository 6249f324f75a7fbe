"""The shared parts of master and replica: one broker's store, its replication state, and its small states."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from mq_broker.core.broker_time import BrokerTime, HeardClocks, MasterTime
from mq_broker.core.consumer_offsets import ConsumerOffsets
from mq_broker.core.documents import QUEUE_LOCKS
from mq_broker.core.limits import RejectedError
from mq_broker.core.members import QueueLocks
from mq_broker.core.replica_state import (
    NO_EPOCH,
    BrokerIdentity,
    BrokerRole,
    Epoch,
    HaStatus,
    ReplicaState,
    ReplicationOptions,
)
from mq_broker.core.topics import TopicTable
from mq_broker.replication.frames import LinkError, ProgressEntries, StateDocument
from mq_broker.replication.states import ProgressIn, ProgressOut, StatesIn, StatesOut
from mq_broker.store.durability import finish_despite_cancellation
from mq_broker.store.errors import StoreDamagedError
from mq_broker.store.layout import StoreLayout
from mq_broker.store.message_store import MessageStore
from mq_broker.store.state_files import decode_document, encode_document
from mqproto.codes import ResponseCode
from osenv import Clock, Disk, Rng, SyncError, replace_file
from osenv.clock import timeout
from osenv.disk import read_file

log = logging.getLogger(__name__)

FrameT = TypeVar("FrameT")

CONFIRMED_NOTED_S = 10.0  # how often the confirm offset is written down, beside a clean stop
SILENCE_S = 5.0  # a link on which nothing has come for so long is given up


@dataclass
class Node:
    """`new_exchange` makes what one link needs to bring small states across; `states_in` takes over documents."""

    store: MessageStore
    file: ReplicaFile
    options: ReplicationOptions
    identity: BrokerIdentity
    time: BrokerTime
    clock: Clock
    new_exchange: Callable[[], StateExchange]
    states_in: StatesIn
    locks: QueueLocks
    boot_id: str  # of the machine, for which its monotonic clock counts

    def __post_init__(self) -> None:
        self.master_clocks = self.new_heard_clocks()  # of a replica

    def new_heard_clocks(self) -> HeardClocks:
        """For what one other broker says of its clocks."""
        return HeardClocks(self.own_wall_ms, self.clock.monotonic)

    def own_wall_ms(self) -> float:
        """This machine's wall clock, whatever `time` follows."""
        return self.clock.wall_us() / 1_000

    def master_time(self, *, exact: bool) -> MasterTime | None:
        """What to remember of the newest master's clocks; unless `exact`, only what matters changes it."""
        before, now = self.file.state.master_time, self.master_clocks.master_time(self.boot_id)
        if now is None:
            return before
        if not now.differs:
            return None
        return before if before is not None and before.is_near(now) and not exact else now

    def status(self, role: BrokerRole) -> HaStatus:
        """The fields that master and replica share; the rest is as of a broker that is alone and takes nothing."""
        store, state = self.store, self.file.state
        return HaStatus(
            role=role,
            writable=False,
            reason="",
            epoch=state.epoch,
            broker_id=self.identity.broker_id,
            replica_id=state.replica_id,
            log_begin=store.log_begin,
            log_end=store.log_end,
            durable_end=store.flusher.durable_end,
            confirm_offset=store.readable_end,
            min_in_sync_replicas=self.options.min_in_sync_replicas,
            in_sync_version=0,
            in_sync_replicas=0,
            in_sync=False,
            connected=False,
            master_ha_address="",
            lag_bytes=0,
            lag_seconds=0.0,
        )

    async def remember(self, change: Callable[[ReplicaState], ReplicaState]) -> None:
        """Have the changed state on disk, on return. A sync that fails is the end of the store. Raises OSError."""
        try:
            await self.file.change(change)
        except SyncError as error:
            self.store.fence(error)
            raise

    async def note_confirmed(self, confirmed: int) -> None:
        """Write down what is confirmed, for the next start. Raises OSError."""
        await self.remember(lambda state: replace(state, confirmed=max(state.confirmed, confirmed)))


def begin_time(disk: Disk, clock: Clock, state: ReplicaState, newest_store_ms: int) -> BrokerTime:
    """The broker's time. A promoted replica goes on with its master's clocks, as long as its machine runs."""
    master = state.master_time if state.role.is_master else None
    if master is not None and master.boot_id != disk.boot_id():
        master = None
    if master is not None:
        log.warning(
            "goes on with the clocks of the master before it: deliver_at follows one that is %.1f s ahead of this "
            "machine's, until this is set, or is the same as a replica's",
            (master.wall - master.own_wall) / 1_000,
        )
    return BrokerTime(
        wall_ms=clock.wall_us() / 1000,
        monotonic=clock.monotonic,
        newest_store_ms=newest_store_ms,
        wall=lambda: clock.wall_us() / 1000,
        master=master,
    )


async def heard(clock: Clock, receive: Callable[[], Awaitable[FrameT]]) -> FrameT:
    """What comes next over a link. Raises LinkError, also when nothing comes for SILENCE_S."""
    try:
        async with timeout(clock, SILENCE_S):
            return await receive()
    except TimeoutError:
        raise LinkError(f"nothing has come for {SILENCE_S:.0f} s") from None


async def stop(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel them and wait until they have ended; their errors are handled elsewhere."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


class StateExchange:
    """The small states of one link: documents down, what groups have finished both ways.

    One end of a link; a replica has no documents to send.

    Invariant: what groups have finished is never told ahead of a document that was changed before it.
    """

    def __init__(
        self, store: MessageStore, topics: TopicTable, offsets: ConsumerOffsets, states: StatesOut | None
    ) -> None:
        self._store, self._topics, self._offsets, self._states = store, topics, offsets, states
        self._out = ProgressOut(offsets)
        self._in = ProgressIn(store, topics, offsets, self._out)
        self._unlisten: list[Callable[[], None]] = []

    @property
    def is_waiting(self) -> bool:
        """Whether there is something that the other side has not been sent yet."""
        return self._out.is_waiting or self._has_documents

    def needs_changes(self, needs: bool) -> None:
        """Whether the replica does not find changes of documents in the log."""
        if self._states is not None:
            self._states.needs_changes = needs

    def follows_from(self, log_offset: int) -> None:
        """The replica's log and this one are the same up to there."""
        if self._states is not None:
            self._states.follows_from = log_offset

    def on_change(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when there is something more to send, but for groups: of these the next look tells."""
        self._unlisten.append(self._offsets.on_change(lambda _group, _topic, _queue_id: wake()))
        if self._states is not None:
            self._unlisten.append(self._topics.on_change(wake))

    async def documents(self) -> list[StateDocument]:
        """What the replica has to take over, to be sent before any `progress` that is taken later."""
        return [] if self._states is None else await self._states.take()

    def progress(self) -> ProgressEntries | None:
        """What groups have finished that the other side has to hear; None when there is nothing.

        Also while there are documents to be sent before: a group may have begun a topic anew of which the replica has
        still to hear the deletion.
        """
        entries = b"" if self._has_documents else self._out.take()
        return ProgressEntries(entries, self._store.log_end) if entries else None

    def merge(self, progress: ProgressEntries) -> bool:
        """Take over what the other side says. Raises ValueError; then nothing has changed.

        Returns whether a replica has to have that on disk before it takes more of the log.
        """
        return self._in.merge(progress)

    def catch_up(self) -> None:
        """The log has grown: take over what was reported ahead of it."""
        self._in.catch_up()

    def close(self) -> None:
        """The link has ended."""
        self._out.close()
        for unlisten in self._unlisten:
            unlisten()
        self._unlisten = []

    @property
    def _has_documents(self) -> bool:
        return self._states is not None and self._states.is_waiting


# A change of the role, written down; the broker takes it up when it is opened anew.


async def promote(
    node: Node, term: int, log_end: int, role: BrokerRole, epoch: Epoch, *, whole: bool, queue_locks: bytes
) -> None:
    """Write down that this broker is the master. Raises RejectedError, StoreFencedError, OSError.

    `whole`: the master of `epoch` has stepped down, and its log ends at `log_end`. `queue_locks`: what it has answered.
    """
    seen = node.file.state.epoch
    if not role.is_master:
        raise RejectedError(ResponseCode.SYSTEM_ERROR, f"{role.name} is no role of a master")
    if term <= seen.term:
        sentence = f"term {term}; this broker has seen epoch {seen}, so it has to be a greater one"
        raise RejectedError(ResponseCode.SYSTEM_ERROR, sentence)
    if epoch not in (NO_EPOCH, seen):
        sentence = f"this broker has followed the master of epoch {seen}, and not that of epoch {epoch}"
        raise RejectedError(ResponseCode.SYSTEM_ERROR, sentence)
    if node.file.state.cut is not None:
        sentence = "the log of this broker is about to be cut to what its master has; ask again in a moment"
        raise RejectedError(ResponseCode.SYSTEM_BUSY, sentence)
    await node.store.sync()
    if node.store.log_end < log_end:
        sentence = f"the log of this broker ends at {node.store.log_end}, and has to reach {log_end}"
        raise RejectedError(ResponseCode.SYSTEM_ERROR, sentence)
    has_all = whole and epoch == seen and node.store.log_end == log_end
    _take_over_locks(node, term, queue_locks if epoch == seen else b"")
    await node.store.persist(QUEUE_LOCKS)
    try:
        master_time = node.master_time(exact=True)
        await node.remember(lambda state: replace(state.promoted(term, role, has_all=has_all), master_time=master_time))
    except OSError:
        node.locks.succeed(None, seen.term, seen.term)  # another one may be promoted, and lend queues
        raise


def _take_over_locks(node: Node, term: int, document: bytes) -> None:
    try:
        node.locks.succeed(decode_document(document) if document else None, node.file.state.epoch.term, term)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        sentence = f"queue_locks is not what a master that steps down answers: {error!r}"
        raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, sentence) from error


async def become_replica(node: Node, broker_id: int, master_ha_address: str) -> None:
    """Write down that this broker is a replica. Raises OSError."""

    def changed(state: ReplicaState) -> ReplicaState:
        return replace(
            state,
            role=BrokerRole.SLAVE,
            broker_id=broker_id,
            master_ha_address=master_ha_address or state.master_ha_address,
        )

    await node.remember(changed)


REPLICA = "replica.json"
REPLICA_ID_BYTES = 16


class ReplicaFile:
    """config/replica.json: what a broker remembers of replication, durable before anything follows from it.

    The file of one store, and what it says.

    There is no previous version to fall back to: an older epoch or in-sync set would be believed, and a fence that had
    been put up would be gone. So the newest one stands there twice, in replica.json and replica.json.bak, one written
    after the other: a crash leaves a whole one, and damage to one of them is repaired from the other.

    Invariant: what `change` has returned from stands in both.
    """

    def __init__(self, disk: Disk, layout: StoreLayout, rng: Rng, role: BrokerRole, broker_id: int) -> None:
        """Read it; a store that has none begins as configured. Nothing is written yet.

        Raises StoreDamagedError, NewerFormatError, OSError.
        """
        path = layout.config / REPLICA
        self._disk, self._paths = disk, (path, path.with_name(path.name + ".bak"))
        self._changing = asyncio.Lock()
        found = self._read()
        self.is_new = found is None
        if found is None:
            found = ReplicaState(rng.randbytes(REPLICA_ID_BYTES).hex(), role, role, broker_id)
        self.state = found.started(role, broker_id)
        if self.state.role is not role:
            log.warning("broker.conf says %s; an operator's switch has made it %s", role.name, self.state.role.name)

    def draw_origin(self, renewals: int) -> None:
        """Of a restored store, which has no such file: versions of progress are counted from here. The next `change`
        writes it.
        """
        self.state = replace(self.state, renewal_origin=renewals, is_restored=True)

    async def change(self, change: Callable[[ReplicaState], ReplicaState]) -> None:
        """Have the changed state on disk, on return; one change after the other.

        Raises OSError (SyncError): then `state` is what it was before.
        """
        async with self._changing:
            changed = change(self.state)
            if changed != self.state or not self._is_whole:
                await finish_despite_cancellation(self._write(changed))

    async def _write(self, state: ReplicaState) -> None:
        content = encode_document(state.to_json(), state.confirmed)
        self._is_whole = False
        for path in self._paths:
            await self._disk.offload(replace_file, self._disk, path, content, keep_previous=False)
        self.state, self._is_whole = state, True

    def _read(self) -> ReplicaState | None:
        """What the first of the two says that is whole, which is the newest; None when neither is there."""
        states, problems = list[ReplicaState](), list[str]()
        for path in self._paths:
            try:
                states.append(ReplicaState.from_json(decode_document(read_file(self._disk, path))))
            except FileNotFoundError:
                continue
            except (KeyError, TypeError, ValueError) as error:
                problems.append(f"{path} is damaged ({error!r})")
        self._is_whole = len(states) == len(self._paths) and states[0] == states[1]
        if problems and not states:
            raise StoreDamagedError(
                f"{' and '.join(problems)}: it says in which epoch this broker may write, and what it says cannot be "
                "guessed. If another broker of this name is the master, start this one as its replica with an empty "
                "storePathRootDir; if this is the only one, remove the file"
            )
        for problem in problems:
            log.error("%s; the other one is taken", problem)
        return states[0] if states else None
