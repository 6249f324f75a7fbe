"""What is done to a pair (docs/reference/faults.md#replication), and which seed does what.

Three seeds in a row, of which the first is one more than a multiple of three, do everything once.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from netns_history import Promotion
from netns_network import CLIENT, Faults
from netns_pair import BROKER, NAME_SERVER_ADDRESS, NAME_SERVER_PORT, NOT_CATCHUP_S, Pair

from hourglass_local.waiting import eventually
from osenv import SeededRng

log = logging.getLogger(__name__)

BLIPS_S, LONG_S = (0.2, 0.6 * NOT_CATCHUP_S), (NOT_CATCHUP_S + 0.7, NOT_CATCHUP_S + 1.7)
RATES = ("200kbit", "1mbit", "8mbit")
SWITCH_TIMEOUT_S = 30.0
SWITCH_BROKEN_OFF_S = (0.5, 2.5)  # it takes a second to begin
DISTURBED_WITHIN_S = 1.0


class Fault(enum.Enum):
    """Everything that happens to a pair."""

    PARTITION = "partition"
    REPLICA_IS_DEAF = "one-way partition: the replica does not hear the master"
    MASTER_IS_DEAF = "one-way partition: the master does not hear the replica"
    REPLICA_KILLED = "replica killed"
    MASTER_KILLED = "master killed"
    BOTH_KILLED = "both killed"
    REPLICA_PAUSED = "replica paused"
    SLOW_LINK = "slow link"
    DISK_LOST = "master killed and its disk gone"
    STALE_ISOLATED = "replica promoted while the master is isolated"
    STALE_PAUSED = "replica promoted while the master is paused"
    SWITCHED = "controlled change of masters"


ROUNDS_FOR_ALL = 3


def plan(seed: int) -> list[Fault]:
    """What a round of this seed does, in its order."""
    block, part = divmod(seed - 1, ROUNDS_FOR_ALL)
    deck = list(Fault)
    SeededRng(block).shuffle(deck)
    return deck[part::ROUNDS_FOR_ALL]


def min_in_sync_of(seed: int) -> int:
    """minInSyncReplicas of a round: each kind of fault meets both in time."""
    block, part = divmod(seed - 1, ROUNDS_FOR_ALL)
    return 1 + (block + part + 1) % 2


@dataclass
class Attack:
    """Does it to the pair, and leaves it so that it heals by itself. `promotions` are those by force."""

    pair: Pair
    network: Faults
    rng: SeededRng
    promotions: list[Promotion] = field(default_factory=list)
    kept: list[bytes] = field(default_factory=list)  # what was in the quarantine of a disk that is gone
    counts: Counter[str] = field(default_factory=Counter)

    async def begin(self, fault: Fault) -> None:
        """Do it and undo it; the pair is not yet whole again. Raises what shows that it did not take place."""
        master = await self.pair.master()
        replica = self.pair.other(master)
        deeds: dict[Fault, Callable[[str, str], Awaitable[None]]] = {
            Fault.PARTITION: self._partition,
            Fault.REPLICA_IS_DEAF: self._replica_is_deaf,
            Fault.MASTER_IS_DEAF: self._master_is_deaf,
            Fault.REPLICA_KILLED: self._replica_killed,
            Fault.MASTER_KILLED: self._master_killed,
            Fault.BOTH_KILLED: self._both_killed,
            Fault.REPLICA_PAUSED: self._replica_paused,
            Fault.SLOW_LINK: self._slow_link,
            Fault.DISK_LOST: self._disk_lost,
            Fault.STALE_ISOLATED: self._stale_isolated,
            Fault.STALE_PAUSED: self._stale_paused,
            Fault.SWITCHED: self._switched,
        }
        log.info("%s; the master is %s", fault.value, master)
        await deeds[fault](master, replica)
        log.info("undone")
        await self._disturb(self.rng.choice((master, replica)))
        self.counts[fault.value] += 1

    # ------------------------------------------------------------------------------------------- the network

    async def _partition(self, master: str, replica: str) -> None:
        self.network.cut(master, replica)
        await self._hold()
        self._heal()

    async def _replica_is_deaf(self, master: str, replica: str) -> None:
        self.network.silence(master, replica)
        await self._hold()
        self._heal()

    async def _master_is_deaf(self, master: str, replica: str) -> None:
        self.network.silence(replica, master)
        await self._hold()
        self._heal()

    async def _slow_link(self, _master: str, replica: str) -> None:
        self.network.slow_down(replica, self.rng.choice(RATES))
        await self._hold()
        self._heal()

    def _heal(self) -> None:
        met = self.network.heal()
        if not met:
            raise AssertionError("no packet has met the fault in the network")
        self.counts["packets stopped or held up"] += met

    # ------------------------------------------------------------------------------------------- the processes

    async def _replica_killed(self, _master: str, replica: str) -> None:
        await self.pair.nodes[replica].process.kill()
        await self._hold()
        await self.pair.nodes[replica].process.start()

    async def _master_killed(self, master: str, _replica: str) -> None:
        await self.pair.nodes[master].process.kill()
        await self._hold()
        await self.pair.nodes[master].process.start()

    async def _both_killed(self, master: str, replica: str) -> None:
        order = [self.pair.nodes[name].process for name in (master, replica)]
        self.rng.shuffle(order)
        for process in order:
            await process.kill()
        self.rng.shuffle(order)
        for process in order:
            process.launch()
        for process in order:
            await process.wait_ready()

    async def _replica_paused(self, _master: str, replica: str) -> None:
        self.pair.nodes[replica].process.pause()
        await self._hold()
        self.pair.nodes[replica].process.resume()

    # ------------------------------------------------------------------------------------------- changes of masters

    async def _disk_lost(self, master: str, replica: str) -> None:
        old = self.pair.nodes[master]
        await old.process.kill()
        self.kept.append(old.quarantine)
        old.lose_disk()
        began = time.monotonic()
        await self._promote(replica)
        await old.process.start()
        await self._is_over(master, began, keeps_tail=False)

    async def _stale_isolated(self, master: str, replica: str) -> None:
        """From its replica and the name server, and sometimes from clients too."""
        self.network.cut(master, replica)
        if self.rng.random() < 0.5:
            self.network.cut(master, CLIENT)
        else:
            self.network.silence(CLIENT, master, from_port=NAME_SERVER_PORT)
            self.network.silence(master, CLIENT, to_port=NAME_SERVER_PORT)
        await self._hold()
        began = time.monotonic()
        await self._promote(replica)
        await self._hold()
        self._heal()
        await self._is_over(master, began)

    async def _stale_paused(self, master: str, replica: str) -> None:
        self.pair.nodes[master].process.pause()
        began = time.monotonic()
        await self._promote(replica)
        await self._hold()
        self.pair.nodes[master].process.resume()
        await self._is_over(master, began)

    async def _switched(self, master: str, replica: str) -> None:
        if self.rng.random() < 0.5:
            await self._switch_broken_off(replica)
        await self._switch(CLIENT, replica)
        await self.pair.wait_role(replica, master=True)
        await self.pair.wait_role(master, master=False)

    async def _promote(self, replica: str) -> None:
        """From beside the replica, where the old master does not answer: else there would be no need for force."""
        await self._switch(replica, replica, "--oldMasterIsLost")
        await self.pair.wait_role(replica, master=True)

    async def _switch(self, place: str, replica: str, *options: str) -> None:
        """As an operator does it at this place: again when it was rejected, for each of its steps may be repeated."""

        async def switched() -> bool:
            admin = await self._mqadmin(place, replica, *options)
            said, _ = await admin.communicate()
            log.info("mqadmin, code %d: %s", admin.returncode, " ".join(said.decode().split()))
            self.counts["changes of masters rejected"] += admin.returncode != 0
            return admin.returncode == 0

        await eventually(switched, SWITCH_TIMEOUT_S, f"{replica} is made master", interval_s=0.5)

    async def _switch_broken_off(self, replica: str) -> None:
        """The operator's terminal is gone before, between or behind the steps."""
        admin = await self._mqadmin(CLIENT, replica)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.rng.uniform(*SWITCH_BROKEN_OFF_S)):
                await admin.wait()
        if admin.returncode is None:
            admin.kill()
            self.counts["changes of masters broken off"] += 1
        await admin.communicate()

    async def _mqadmin(self, place: str, replica: str, *options: str) -> Process:
        command = [*self.pair.places.command(place), sys.executable, "-m", "mqadmin", "switchMaster", "--yes"]
        target = ["-n", NAME_SERVER_ADDRESS, "-b", BROKER, "--to", self.pair.nodes[replica].address]
        return await asyncio.create_subprocess_exec(*command, *target, *options, stdout=PIPE, stderr=STDOUT)

    async def _is_over(self, old_master: str, began: float, *, keeps_tail: bool = True) -> None:
        await self._disturb(old_master)
        await self.pair.wait_role(old_master, master=False)
        self.promotions.append(Promotion(began, time.monotonic(), keeps_tail))

    async def _disturb(self, name: str) -> None:
        """Perhaps kill it while it does what comes after a fault."""
        if self.rng.random() < 0.5:
            await asyncio.sleep(self.rng.uniform(0.0, DISTURBED_WITHIN_S))
            await self.pair.nodes[name].process.kill()
            await self.pair.nodes[name].process.start()
            self.counts["killed while it healed"] += 1

    async def _hold(self) -> None:
        """For a moment, or for so long that the replica leaves the in-sync set."""
        is_long = self.rng.random() < 0.6
        self.counts["long" if is_long else "short"] += 1
        await asyncio.sleep(self.rng.uniform(*(LONG_S if is_long else BLIPS_S)))
