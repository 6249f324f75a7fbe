"""What master and slave work with: one broker's store, what it remembers of replication, and its small states."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from mq_broker.core.broker_time import BrokerTime, HeardClocks, MasterTime
from mq_broker.core.identity import BrokerIdentity
from mq_broker.core.queue_locks import QueueLocks
from mq_broker.core.replication.options import ReplicationOptions
from mq_broker.core.replication.replica_state import ReplicaState
from mq_broker.core.replication.roles import BrokerRole
from mq_broker.core.replication.status import HaStatus
from mq_broker.ha.exchange import Exchange
from mq_broker.ha.links import LinkError
from mq_broker.ha.states import StatesIn
from mq_broker.store.message_store import MessageStore
from mq_broker.store.replica_file import ReplicaFile
from osenv import Clock, SyncError
from osenv.clock import timeout

FrameT = TypeVar("FrameT")

CONFIRMED_NOTED_S = 10.0  # how often the confirm offset is written down, beside a clean stop
REST_MIN_S = 0.001  # a shorter wait may be none at all for a timer, and then a loop
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
    new_exchange: Callable[[], Exchange]
    states_in: StatesIn
    locks: QueueLocks
    boot_id: str  # of the machine, for which its monotonic clock counts

    def __post_init__(self) -> None:
        self.master_clocks = self.new_heard_clocks()  # of a slave

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
        """What is so of a master and of a slave; the rest is as of one that is alone and takes nothing."""
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
            master_address="",
            lag_bytes=0,
            lag_s=0.0,
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


async def rest(clock: Clock, event: asyncio.Event, seconds: float) -> None:
    """Until the event, or for so long."""
    timer = clock.call_later(max(REST_MIN_S, seconds), event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()


async def heard(clock: Clock, receive: Callable[[], Awaitable[FrameT]]) -> FrameT:
    """What comes next over a link. Raises LinkError, also when nothing comes for SILENCE_S."""
    try:
        async with timeout(clock, SILENCE_S):
            return await receive()
    except TimeoutError:
        raise LinkError(f"nothing has come for {SILENCE_S:.0f} s") from None


async def stop(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel them and wait until they have ended; what they failed with has been heard by somebody else."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
