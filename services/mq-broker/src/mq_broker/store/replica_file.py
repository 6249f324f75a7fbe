"""config/replica.json: what a broker remembers of replication, durable before anything follows from it.

There is no previous version to fall back to: an older epoch or in-sync set would be believed, and a fence that had been
put up would be gone. So the newest one stands there twice, in replica.json and replica.json.bak, one written after the
other: a crash leaves a whole one, and damage to one of them is mended from the other.

Invariant: what `change` has returned from stands in both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from mq_broker.core.replication.replica_state import ReplicaState
from mq_broker.core.replication.roles import BrokerRole
from mq_broker.store.durability import uninterrupted
from mq_broker.store.errors import StoreDamagedError
from mq_broker.store.layout import StoreLayout
from mq_broker.store.state_files import decode_document, encode_document
from osenv import Disk, Rng, replace_file
from osenv.disk import read_file

log = logging.getLogger(__name__)

REPLICA = "replica.json"
REPLICA_ID_BYTES = 16


class ReplicaFile:
    """The file of one store, and what it says."""

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
                await uninterrupted(self._write(changed))

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
                "guessed. If another broker of this name is the master, start this one as its slave with an empty "
                "storePathRootDir; if this is the only one, remove the file"
            )
        for problem in problems:
            log.error("%s; the other one is taken", problem)
        return states[0] if states else None
