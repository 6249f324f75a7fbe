"""A replica: it looks for its master and follows it, until an operator decides otherwise (mechanisms H2, H4)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from mq_broker.core.limits import RejectedError
from mq_broker.core.replica_state import NO_EPOCH, BrokerRole, Epoch, HaStatus
from mq_broker.replication.following import Following
from mq_broker.replication.frames import Connect, LinkError, MasterFrame, MasterLink, Rejection
from mq_broker.replication.node import CONFIRMED_NOTED_S, Node, become_replica, promote, stop
from mq_broker.store.errors import StoreError
from mqproto.codes import ResponseCode

log = logging.getLogger(__name__)

RECONNECT_S = (0.1, 0.2, 0.5, 1.0)


class ReplicaReplication:
    """Of one broker, for one start as a replica. `begin`, `take_up`, `run` until cancelled, `close`.

    Invariants: clients never write to it; a master of an epoch below the newest known one is not followed; which master
    it follows, in which epoch, is on disk before the first byte of that master is in its log.
    """

    def __init__(self, node: Node, connect: Connect) -> None:
        self._node, self._connect = node, connect
        self.role = BrokerRole.SLAVE
        self.reopen = asyncio.Event()
        hints = (node.options.master_ha_address, node.file.state.master_ha_address)
        self._addresses = [one for one in dict.fromkeys(hints) if one]  # those to be tried, the most likely one first
        self._found = asyncio.Event()
        self._allowed = asyncio.Event()
        self._allowed.set()
        self._following: Following | None = None
        self._told_in = NO_EPOCH  # in which a master has told all progress: a beat has come behind it
        self._task: asyncio.Task[bool] | None = None
        self._address = ""
        self._reason = "no master has been found yet"

    # -------------------------------------------------------------------------------------------- life

    async def begin(self) -> None:
        """Have it on disk that this is a replica; its store follows already. Raises OSError."""
        await self._node.remember(lambda state: state)

    def take_up(self) -> None:
        """Only what is confirmed, as far as is known, is visible; nothing that comes behind the log is yet."""
        node = self._node
        node.store.confirm_from(min(node.file.state.confirmed, node.store.log_end))
        node.store.on_grown(self._grown)
        log.info("SLAVE, has seen epoch %s, the log ends at %d", node.file.state.epoch, node.store.log_end)

    async def run(self) -> None:
        """Follow the master, for ever; returns when the broker has to be opened anew."""
        noting = asyncio.create_task(self._note_forever(), name="confirm offset")
        failures = 0
        try:
            while not self.reopen.is_set():
                await self._allowed.wait()
                address = await self._next_address(failures)
                self._task = asyncio.create_task(self._follow(address), name="replication")
                await asyncio.wait([self._task])
                if not self._task.cancelled():
                    failures = 0 if self._task.result() else failures + 1
                    await self._node.clock.sleep(RECONNECT_S[min(failures, len(RECONNECT_S) - 1)])
        finally:
            await stop(self._task, noting)

    async def close(self) -> None:
        """Write down what is confirmed, so that all of it can be read after the next start."""
        with contextlib.suppress(OSError):  # then less of it can, until the master is there
            await self.note_confirmed()

    async def note_confirmed(self) -> None:
        """Write down what is confirmed, for the next start. Raises OSError."""
        store = self._node.store
        await self._node.note_confirmed(min(store.confirmation.end or 0, store.log_end))

    async def _note_forever(self) -> None:
        while True:
            await self._node.clock.sleep(CONFIRMED_NOTED_S)
            with contextlib.suppress(OSError):  # the next time is soon
                await self.note_confirmed()

    # ------------------------------------------------------------------------------------------ master

    async def _next_address(self, failures: int) -> str:
        while not self._addresses:
            self._found.clear()
            await self._found.wait()
        return self._addresses[failures % len(self._addresses)]

    async def _follow(self, address: str) -> bool:
        """One link, until it ends; whether the replica could follow."""
        self._address, following = address, None
        try:
            async with self._connect(address) as link:
                following = self._following = Following(self._node, link)
                await following.run()
        except LinkError as error:
            self._failed(f"master at {address}: {error}")
        except (StoreError, OSError) as error:
            self._failed(f"the log of this replica cannot grow: {error}")
        finally:
            if following is not None and following.beat is not None:
                self._told_in = self.epoch
            self._following = None
            if self._node.file.state.cut is not None:
                self.reopen.set()
        return following is not None and following.was_up

    def _failed(self, reason: str) -> None:
        if reason != self._reason:
            log.warning("%s", reason)
        self._reason = reason

    def _grown(self) -> None:
        if self._following is not None:
            self._following.grown()

    async def serve(self, link: MasterLink) -> None:
        """Replicas feed no other replica."""
        with contextlib.suppress(LinkError):
            await link.send(MasterFrame(self.epoch, Rejection("this broker is a replica itself")))

    def behind(self, _log_offset: int) -> list[str]:
        """A replica has no replicas."""
        return []

    @property
    def is_restored(self) -> bool:
        """A replica's store is what its master says."""
        return False

    async def accepted(self) -> None:
        """A replica is registered like any other."""

    def rejected(self, remark: str) -> None:
        """A replica is no rival."""

    def master_found(self, ha_address: str) -> None:
        """A name server says where the master listens."""
        if ha_address and ha_address != self._node.options.ha_address:
            self._addresses = [ha_address, *(one for one in self._addresses if one != ha_address)][:2]
            self._found.set()

    async def superseded(self, epoch: Epoch, master_ha_address: str) -> None:
        """There is a master with this epoch."""
        self.master_found(master_ha_address)

    # --------------------------------------------------------------------------------------- operators

    async def step_down(self, epoch: Epoch) -> tuple[int, BrokerRole]:
        """Raises RejectedError: it is no master."""
        raise RejectedError(ResponseCode.NOT_LEADER_FOR_QUEUE, "this broker is a replica")

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
        """Be the master from now on.

        `whole`: the log of the master that has stepped down ends at `log_end` for good; `queue_locks` are what it
        has left. Where that master has not told all progress since this broker's start, something may be missing.
        Raises RejectedError when the
        log is too short, the term too low, or `epoch`, of the master that steps down, not the one that this replica has
        followed last; OSError.
        """
        async with self._halted():
            is_whole = whole and self._told_in == epoch
            await promote(self._node, term, log_end, role, epoch, whole=is_whole, queue_locks=queue_locks)
            self.reopen.set()

    async def become_replica(self, broker_id: int, master_ha_address: str, epoch: Epoch) -> None:
        """Be registered with this id, and look for the master there. Raises OSError."""
        if broker_id == self.broker_id:
            self.master_found(master_ha_address)
            return
        async with self._halted():
            await become_replica(self._node, broker_id, master_ha_address)
            self.reopen.set()

    @asynccontextmanager
    async def _halted(self) -> AsyncIterator[None]:
        """Nothing is taken over from the master meanwhile, and afterwards only if the role has not changed."""
        self._allowed.clear()
        try:
            await stop(self._task)
            yield
        finally:
            self._allowed.set()

    # ------------------------------------------------------------------------------------------ status

    @property
    def epoch(self) -> Epoch:
        """The newest that it has accepted."""
        return self._node.file.state.epoch

    @property
    def broker_id(self) -> int:
        """Under which it is registered."""
        return self._node.identity.broker_id

    @property
    def is_connected(self) -> bool:
        """Whether it follows its master now."""
        return self._following is not None and self._following.is_up

    def status(self) -> HaStatus:
        """How replication stands now."""
        following = self._following if self.is_connected else None
        status = replace(self._node.status(self.role), reason="it is a replica" if following else self._reason)
        if following is None:
            return status
        status = replace(status, connected=True, master_ha_address=self._address, lag_seconds=following.lag_seconds)
        if (beat := following.beat) is None:
            return status
        lag_bytes = max(0, beat.log_end - status.log_end)
        return replace(
            status,
            in_sync_version=beat.in_sync_version,
            in_sync=beat.in_sync,
            lag_bytes=lag_bytes,
            clock_ahead_ms=-self._node.master_clocks.ahead_ms,
        )
