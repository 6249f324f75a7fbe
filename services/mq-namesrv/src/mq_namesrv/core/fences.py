"""Which master of a broker name is the present one: epochs, and the memory that keeps older masters out.

A fence is the highest epoch with which a master of its broker name has registered. It stands as long as anybody of that
name is registered, and then for another expiry time (120 s), so that a master that was replaced and comes back to an
empty table is still told so. After that it is forgotten, and memory stays bounded. It keeps out no process at the
address of the one that set it, unless others of the name are registered: that process has begun with another store, an
empty one or one that was put back from a backup. A fence spares clients the wrong master; that nothing acknowledged is
lost does not rest on it, for name servers forget whatever they knew when they restart.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple


class Epoch(NamedTuple):
    """In which a master writes; compared by term, then by start."""

    term: int
    start: int

    def __str__(self) -> str:
        return f"{self.term}.{self.start}"


NO_EPOCH = Epoch(0, 0)  # of a broker of an older version


class NotLeaderError(Exception):
    """The master that asks has been replaced. `epoch` is the highest that is known, `ha_address` the present master's,
    "" when there is none.
    """

    def __init__(self, sentence: str, epoch: Epoch, ha_address: str) -> None:
        super().__init__(sentence)
        self.epoch = epoch
        self.ha_address = ha_address


@dataclass(frozen=True, slots=True)
class Fence:
    """`holder` is the address of the master that had this epoch last. `vacant_since`: when a scan first found nobody of
    the name (monotonic seconds); None while somebody is there.
    """

    epoch: Epoch
    holder: str
    vacant_since: float | None = None


class Fences(dict[str, Fence]):
    """By broker name."""

    def epoch(self, broker_name: str) -> Epoch:
        """The highest that a master of this name has registered with, as far as it is remembered."""
        fence = self.get(broker_name)
        return NO_EPOCH if fence is None else fence.epoch

    def raise_for(self, broker_name: str, master_epoch: Epoch, holder: str) -> None:
        """A master has registered, from this address; one that knows of no epochs needs no fence."""
        if master_epoch == NO_EPOCH:
            self.pop(broker_name, None)
        else:
            self[broker_name] = Fence(master_epoch, holder)

    def keep(self, broker_name: str) -> None:
        """A slave has registered."""
        if (fence := self.get(broker_name)) is not None:
            self[broker_name] = replace(fence, vacant_since=None)

    def expire(self, occupied: Collection[str], now: float, timeout: float) -> None:
        """Forget what has been vacant for more than `timeout` seconds; `occupied` has the names that are not."""
        for name, fence in list(self.items()):
            if name in occupied:
                continue
            if fence.vacant_since is None:
                self[name] = replace(fence, vacant_since=now)
            elif now - fence.vacant_since > timeout:
                del self[name]
