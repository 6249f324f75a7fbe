"""A master: it feeds its replicas, confirms what they have, and detects that it was superseded (mechanisms H1, H2)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace

from mq_broker.core.limits import RejectedError
from mq_broker.core.replica_state import (
    FORMER_MASTER_ID,
    NO_EPOCH,
    BrokerRole,
    Epoch,
    HaStatus,
    InSyncSet,
    ReplicaState,
    ReplicaStatus,
)
from mq_broker.replication.feed import ACCEPTED_S, RESTORED, ReplicaFeed
from mq_broker.replication.frames import LinkError, MasterLink
from mq_broker.replication.in_sync import (
    Confirm,
    Decide,
    Decided,
    Event,
    InSyncLedger,
    Passed,
    Reject,
    ReplicaView,
    Stored,
)
from mq_broker.replication.node import CONFIRMED_NOTED_S, Node, become_replica, promote
from mqproto.codes import ResponseCode
from osenv.clock import timeout

log = logging.getLogger(__name__)

PAST_MAX = 16  # replicas whose link is gone that are remembered, for operators


class MasterReplication:
    """Of one broker, for one start as a master. `begin`, `take_up`, `run` until cancelled, `close`.

    Invariants: nothing is accepted before the epoch of this start is on disk; a decision about the in-sync set is on
    disk before it counts; a master that has stepped down, or has heard of a newer epoch, accepts nothing more, whatever
    happens.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.role = node.file.state.role
        self.epoch = node.file.state.epoch  # in which it writes, from `begin` on
        self.reopen = asyncio.Event()
        self._feeds: dict[str, ReplicaFeed] = {}
        self._past: dict[str, ReplicaFeed] = {}  # the last one of each replica whose link is gone
        self._wake = asyncio.Event()
        self._decide: InSyncSet | None = None
        self._reason = ""
        self._is_synchronous = self.role is BrokerRole.SYNC_MASTER
        self._accepted_since: float | None = None  # of a restored one: by all name servers that have answered
        options = node.options
        self._ledger = InSyncLedger(
            node.file.state.replica_id,
            self._is_synchronous,
            options.min_in_sync_replicas,
            options.replica_not_catchup_ms / 1000,
            node.file.state.in_sync,
            node.file.state.confirmed,
        )

    # -------------------------------------------------------------------------------------------- life

    async def begin(self) -> None:
        """Begin an epoch; from then on the log may be written. What it holds is on disk already. Raises OSError."""
        node = self._node
        await node.remember(lambda state: state.begun(node.store.log_end, node.store.log_begin))
        state = node.file.state
        self.epoch = state.epoch
        self._ledger.begin(state.in_sync, state.confirmed, node.clock.monotonic())
        log.info("%s in epoch %s, the log ends at %d", self.role.name, state.epoch, node.store.log_end)

    def take_up(self) -> None:
        """The broker has read what it needs of its log: from now on only what is confirmed is visible."""
        node = self._node
        if self._is_synchronous:
            node.store.confirm_from(self._ledger.confirmed, timeout_s=node.options.replica_timeout_ms / 1000)
            self._look_at_replicas()
        node.store.on_grown(self._grown)
        if self.is_restored:
            log.warning("%s", RESTORED)
            self._stop_writes(RESTORED)
        self.step(Stored(node.store.stored_end))

    async def run(self) -> None:
        """Decide what has to be decided, for ever."""
        node, noted_at = self._node, self._node.clock.monotonic()
        while True:
            if self._has_to_look:
                with contextlib.suppress(TimeoutError):
                    async with timeout(node.clock, node.options.beat_interval_ms / 1000):
                        await self._wake.wait()
            else:
                await self._wake.wait()
            self._wake.clear()
            if self._decide is not None:
                await self._make_durable(self._decide)
            self.step(Passed())
            await self._look_at_clocks()
            if node.clock.monotonic() - noted_at >= CONFIRMED_NOTED_S:
                noted_at = node.clock.monotonic()
                with contextlib.suppress(OSError):  # the next time is soon
                    await self.note_confirmed()

    async def _look_at_clocks(self) -> None:
        """Two machines that show the same time are right against a former master; broker time goes on as it is."""
        node = self._node
        if node.time.follows_master_wall and any(feed.clocks.agrees() for feed in self._feeds.values()):
            log.warning("deliver_at follows the wall clock of this machine from now on: that of a replica is the same")
            node.time.follow_own_wall()
            with contextlib.suppress(OSError):  # a restart finds out again
                await node.remember(ReplicaState.with_own_wall)

    @property
    def _has_to_look(self) -> bool:
        """Whether something may have to be decided only because time passes. `attach` wakes the waiting task without
        this."""
        return self._is_synchronous or bool(self._feeds) or not self._ledger.is_alone

    async def note_confirmed(self) -> None:
        """Write down what is confirmed, for the next start. Raises OSError."""
        if self._is_synchronous:
            await self._node.note_confirmed(self._ledger.confirmed)

    async def close(self) -> None:
        """End all links."""
        for feed in list(self._feeds.values()):
            feed.end("the master stops")
        with contextlib.suppress(OSError):  # then the next start confirms anew what it finds
            await self.note_confirmed()

    # ------------------------------------------------------------------------------------------ replicas

    async def serve(self, link: MasterLink) -> None:
        """One replica's link, until it ends."""
        feed = ReplicaFeed(self._node, link, self)
        try:
            await feed.run()
        except LinkError as error:
            log.warning("replica %s: %s", feed.name, error)
        finally:
            if self._feeds.get(feed.replica_id) is feed:
                self._past[feed.replica_id] = self._feeds.pop(feed.replica_id)
                while len(self._past) > PAST_MAX:
                    self._past.pop(next(iter(self._past)))
                self._step_if_following(feed)

    def _step_if_following(self, feed: ReplicaFeed) -> None:
        if feed.is_following:
            self.step(feed.disconnected)

    def attach(self, feed: ReplicaFeed) -> None:
        """The newest link of a replica is the one that counts."""
        earlier = self._feeds.pop(feed.replica_id, None)
        if earlier is not None:
            earlier.end("the replica has a newer link")
            self._step_if_following(earlier)
        self._past.pop(feed.replica_id, None)
        self._feeds[feed.replica_id] = feed
        self._wake.set()

    def _grown(self) -> None:
        for feed in self._feeds.values():
            feed.wake.set()
        if self._is_synchronous and self._ledger.stored != (stored := self._node.store.stored_end):
            self.step(Stored(stored))

    def step(self, event: Event) -> None:
        """Do what the ledger says now that this has happened."""
        node = self._node
        for action in self._ledger.step(event, node.clock.monotonic(), node.store.log_end):
            match action:
                case Confirm(log_offset, alone):
                    node.store.confirmation.advance(log_offset, alone=alone)
                    for feed in self._feeds.values():
                        feed.wake.set()
                case Decide(in_sync):
                    self._decide = in_sync
                    self._wake.set()
                case Reject(replica_id, remark):
                    self._feeds[replica_id].end(remark)

    async def _make_durable(self, in_sync: InSyncSet) -> None:
        self._decide = None
        names = ", ".join(sorted(self._name(one) for one in in_sync.replicas))
        try:
            await self._node.remember(lambda state: replace(state, in_sync=in_sync))
        except OSError as error:
            log.warning("the in-sync set cannot be written down, and stays as it is: %s", error)
            await self._node.clock.sleep(self._node.options.beat_interval_ms / 1000)
            self.step(Decided(in_sync, durable=False))
            return
        log.warning("in-sync set %d: %s", in_sync.version, names)
        self.step(Decided(in_sync))
        for feed in self._feeds.values():
            feed.tell_in_sync(feed.replica_id in in_sync.replicas, in_sync.version)
        self._look_at_replicas()

    def _name(self, replica_id: str) -> str:
        if replica_id == self._ledger.me:
            return "the master"
        feed = self._feeds.get(replica_id) or self._past.get(replica_id)
        return feed.name if feed else replica_id

    def _look_at_replicas(self) -> None:
        have, need = len(self._ledger.in_sync.replicas), self._node.options.min_in_sync_replicas
        self._node.store.count_replicas(
            "" if self._ledger.is_sufficient else f"{have} of {need} replicas are in sync (minInSyncReplicas={need})"
        )

    # --------------------------------------------------------------------------------------- operators

    async def step_down(self, epoch: Epoch) -> tuple[int, BrokerRole]:
        """Accept nothing more, durably, and go on feeding replicas: where the log ends now, and the role until now.

        Raises RejectedError when `epoch` is not the present one; OSError: then the outcome is unknown, ask again.
        """
        if epoch != self.epoch:
            raise RejectedError(ResponseCode.SYSTEM_ERROR, f"this broker is in epoch {self.epoch}, not {epoch}")
        self._stop_writes("it has stepped down for another master")
        await self._node.store.sync()
        await self._node.remember(lambda state: state.stepped_down())
        return self._node.store.log_end, self.role

    async def promote(
        self,
        term: int,
        log_end: int,
        role: BrokerRole,
        epoch: Epoch = NO_EPOCH,
        *,
        whole: bool = False,
        queue_locks: bytes = b"",
    ) -> None:
        """Be the master, again after it has stepped down. Raises RejectedError, OSError."""
        if self._node.file.state.role.is_master and not self.is_restored:
            if term == self.epoch.term:
                return
            raise RejectedError(ResponseCode.SYSTEM_ERROR, f"this broker is the master, in epoch {self.epoch}")
        await promote(self._node, term, log_end, role, epoch, whole=whole, queue_locks=queue_locks)
        self.reopen.set()

    def behind(self, log_offset: int) -> list[str]:
        """The connected replicas that have not written everything below this offset."""
        feeds = self._feeds.values()
        return [feed.name for feed in feeds if feed.is_following and feed.reported.written_offset < log_offset]

    async def become_replica(self, broker_id: int, master_ha_address: str, epoch: Epoch) -> None:
        """Follow this master from now on. Raises RejectedError when it has not stepped down, OSError."""
        if self._node.file.state.role.is_master and epoch <= self.epoch:
            sentence = f"this broker is the master in epoch {self.epoch}: have it step down first"
            raise RejectedError(ResponseCode.SYSTEM_ERROR, sentence)
        self._stop_writes(f"a master in epoch {epoch} has taken over")
        await become_replica(self._node, broker_id, master_ha_address)
        self.reopen.set()

    async def superseded(self, epoch: Epoch, master_ha_address: str) -> None:
        """There is a master with this epoch. Raises OSError; writes are rejected all the same.

        A restored one becomes the replica of a master that is running, and otherwise waits for an operator.
        """
        if epoch <= self.epoch or (self.is_restored and not master_ha_address):
            return
        log.critical("a master in epoch %s has taken over from this one, in epoch %s", epoch, self.epoch)
        self._stop_writes(f"a master in epoch {epoch} has taken over")
        await become_replica(self._node, FORMER_MASTER_ID, master_ha_address)
        self.reopen.set()

    @property
    def is_restored(self) -> bool:
        """Whether its store was put back from a backup, and it waits until name servers know of no other broker."""
        return self._node.file.state.is_restored and self._node.options.is_registered

    async def accepted(self) -> None:
        """A name server knows this broker as the master. Raises OSError."""
        if not self.is_restored or self.reopen.is_set():
            return
        now = self._node.clock.monotonic()
        if self._accepted_since is None:
            self._accepted_since = now
        if now - self._accepted_since >= ACCEPTED_S:
            log.warning(
                "no other broker of the name is registered: this broker is the master, with the store that was restored"
            )
            await self._node.remember(lambda state: replace(state, is_restored=False))
            self.reopen.set()

    def rejected(self, remark: str) -> None:
        """A name server does not take this broker as the master."""
        if self.is_restored:
            self._accepted_since, self._reason = None, remark

    def master_found(self, ha_address: str) -> None:
        """A master follows no other."""

    def _stop_writes(self, reason: str) -> None:
        self._node.store.follows = True
        self._reason = reason

    # ------------------------------------------------------------------------------------------ status

    @property
    def broker_id(self) -> int:
        """Under which it is registered."""
        return self._node.identity.broker_id

    @property
    def is_connected(self) -> bool:
        """Whether a replica follows."""
        return any(feed.is_following for feed in self._feeds.values())

    def status(self) -> HaStatus:
        """How replication stands now."""
        store, in_sync = self._node.store, self._ledger.in_sync
        replicas = {**self._past, **self._feeds}
        return replace(
            self._node.status(self.role),
            writable=not store.follows,
            reason=self._reason or store.too_few_replicas,
            epoch=self.epoch,
            in_sync_version=in_sync.version,
            in_sync_replicas=len(in_sync.replicas),
            in_sync=True,
            replicas=tuple(self._replica_status(feed) for feed in replicas.values()),
        )

    def _replica_status(self, feed: ReplicaFeed) -> ReplicaStatus:
        view = self._ledger.views.get(feed.replica_id, ReplicaView())
        lag = max(0, self._node.store.log_end - view.acknowledged)
        is_up_to_date = lag == 0 and view.connected
        return ReplicaStatus(
            replica_id=feed.replica_id,
            broker_id=feed.broker_id,
            address=feed.address,
            connected=view.connected,
            in_sync=feed.replica_id in self._ledger.in_sync.replicas,
            written_offset=feed.reported.written_offset,
            durable_offset=feed.reported.durable_offset,
            acknowledged_offset=view.acknowledged,
            lag_bytes=lag,
            clock_ahead_ms=feed.clocks.ahead_ms,
            lag_seconds=0.0 if is_up_to_date else max(0.0, self._node.clock.monotonic() - view.caught_up_at),
        )
