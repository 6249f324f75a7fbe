"""What an operator does in a storm, with mqadmin's calls; and the storm itself, one thing after the other."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replica_node import LAYOUT
from storm_clients import LOOSE, PLAIN, SHORT
from storm_excuses import Again
from storm_faults import Faults
from storm_machines import BROKER_NAME, PACE, STEP_S

from mqadmin.backups import Restore
from mqclient import MessageQueue, MQClientError
from osenv import SimDisk

if TYPE_CHECKING:
    from storm_world import Machine, StormWorld

STORM_S = 100.0
HURRY = 0.4  # of the producers, while much depends on it
SWITCH_S = 10.0
GIVE_UP_S = 30.0
QUEUES_MAX = 7
FOREVER = math.inf
COPY = Path("/copy")


@dataclass(frozen=True)
class Copy:
    """A backup: a disk with the folder COPY, which has all that was acknowledged before `since`."""

    disk: SimDisk
    since: float
    log_end: int
    generation: int  # of the log that was copied


class Operator:
    """Of one history."""

    def __init__(self, world: StormWorld) -> None:
        self._world = world
        self._faults = faults = Faults(world)
        self.trace: list[str] = []
        self._under_way: dict[int, str] = {}  # by lane
        self._copies: list[Copy] = []
        self._lanes: tuple[list[tuple[int, Callable[[], Awaitable[str]]]], ...] = (
            [
                (14, self.switch),
                (14, self.replace),
                (8, faults.kill),
                (6, faults.lose_power),
                (4, self.back_up),
                (4, self.restore),
                (4, self.grow),
                (4, self.renew_topic),
                (3, self.reset),
                (3, self.renew_group),
            ],
            [
                (7, faults.stall),
                (6, faults.part_brokers),
                (4, faults.part_name_server),
                (4, faults.part_clients),
                (3, faults.kill_name_server),
                (5, faults.kill_client),
                (4, faults.more_members),
                (5, faults.step_clock),
            ],
        )

    @property
    def last_events(self) -> str:
        """What has happened last, and what is under way, for people."""
        return "; ".join([*self.trace[-20:], *self._under_way.values()])

    async def storm(self) -> None:
        """Two lanes of it at the same time; in the end everything is up."""
        world = self._world
        await world.advance(6.0)
        lanes = [asyncio.create_task(self._lane(*one)) for one in enumerate(self._lanes)]
        for lane in lanes:
            lane.add_done_callback(world.note_failure)
        while not all(lane.done() for lane in lanes):
            await world.advance(STEP_S)
        for node in world.nodes:
            node.start_again()

    async def _lane(self, lane: int, choices: list[tuple[int, Callable[[], Awaitable[str]]]]) -> None:
        """One thing after the other."""
        world, rng = self._world, self._world.rng
        weights, steps = zip(*choices, strict=True)
        while world.now < STORM_S:
            (step,) = rng.choices(steps, weights)
            begin = world.now
            self._under_way[lane] = f"since {begin:.1f} {step.__name__}"
            told = await step()
            del self._under_way[lane]
            if told:
                world.counts[step.__name__] += 1
                self.trace.append(f"{begin:.1f} to {world.now:.1f} {told}")
            await world.clock.sleep(rng.choice((0.1, 0.5, 2.0, 5.0)))

    async def _ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What an operator's call came to; the error when the cluster rejected or did not answer."""

        async def asked() -> Any:
            try:
                return await work
            except MQClientError as error:
                return error

        return await self._world.operator.run(asked())

    # -------------------------------------------------------------------------------------------------- masters

    async def switch(self) -> str:
        """A planned change of masters."""
        to = self._world.replica
        disturbance = self._world.model.disturbed(Again.SWITCHED, self._world.now, None)
        answer = await self._ask(self._world.admin.switch_master(BROKER_NAME, to.address, timeout_s=SWITCH_S))
        disturbance.end = self._world.now
        if isinstance(answer, Exception):
            self._world.model.disturbed(Again.GIVEN_UP, disturbance.begin, self._world.now)
            self._world.counts["switches rejected"] += 1
        return f"switch to {to.name}: {answer if isinstance(answer, Exception) else 'done'}"

    async def replace(self) -> str:
        """The master is lost in some way, and its replica is made the master; later the old one is back."""
        world, rng = self._world, self._world.rng
        old, new = world.master, world.replica
        if not old.is_up or not self._is_safe(old, new):
            return ""
        fate = rng.choice(("kill", "power", "stop", "cut"))
        before = await self._prelude(old, new)
        if world.master is not old or old.process is None or new.process is None:
            return ""
        begin = world.now
        disturbance = world.model.disturbed(Again.PROMOTED_ALONE, begin, None)
        cut = await self._lose(old, fate)
        done = await self._promote(old, new)
        if rng.random() < 0.5:
            await self._faults.pass_s(rng.choice((1.0, 8.0, 20.0)))
        world.network.heal(*cut, (old.name, new.name))
        if old.process is not None:
            old.process.go_on()
        old.start_again()
        await self._faults.pass_s(2.0)
        disturbance.end = world.now
        return f"{before}{fate} of {old.name}, {new.name} promoted: {done}"

    async def _prelude(self, old: Machine, new: Machine) -> str:
        """What may be so when the master is lost: the replica lags behind, or did a moment ago."""
        world, rng = self._world, self._world.rng
        kind = rng.choice(("", "", "cut", "cut", "slow", "stop"))
        if not kind:
            return ""
        ways = ((old.name, new.name), (new.name, old.name))
        world.pace, process = HURRY, new.process
        assert process is not None
        disturbance = world.model.disturbed(Again.NOT_SENT_BACK, world.now, None)
        if kind == "stop":
            process.stop()
        else:
            world.network.cut(*ways)
        await world.clock.sleep(rng.choice((1.0, 4.0, 7.0)))
        world.network.heal(*ways)
        if kind == "slow":
            world.network.slow(ways[0])
        if kind != "cut" or rng.random() < 0.5:
            process.go_on()
            await world.clock.sleep(rng.choice((0.05, 0.3, 0.8)))
        process.go_on()
        world.pace, disturbance.end = PACE, world.now
        return f"{kind}, "

    async def _lose(self, old: Machine, fate: str) -> list[tuple[str, str]]:
        """Returns the ways that are cut."""
        world = self._world
        if fate == "kill":
            await old.kill()
        elif fate == "power":
            await self._faults.cut_power(old)
        elif fate == "stop":
            assert old.process is not None
            old.process.stop()
        else:
            others = [world.replica.name, "op", "n1", "n2", *world.rng.choice(((), ("c1",), ("c1", "c2", "p")))]
            ways = [way for other in others for way in ((old.name, other), (other, old.name))]
            world.network.cut(*ways)
            return ways
        return []

    async def _promote(self, old: Machine, new: Machine) -> str:
        """By force of the loss, as soon as the replica has noticed it too."""
        world = self._world
        until = world.now + GIVE_UP_S
        answer: Any = "not in sync any more"
        while world.now < until and self._is_safe(old, new):
            world.promoting = new
            answer = await self._ask(
                world.admin.switch_master(
                    BROKER_NAME,
                    new.address,
                    old_master_is_lost=True,
                    role=world.wanted_role,
                    timeout_s=SWITCH_S,
                )
            )
            if not isinstance(answer, Exception) or world.master is new:
                return "done"
            await self._faults.pass_s(2.0)
        return str(answer)

    def _is_safe(self, old: Machine, new: Machine) -> bool:
        """What docs/guides/guarantees.md asks an operator to check: the old master had the replica in its in-sync
        set.
        """
        if new.state is None or old.state is None or new.broker is None or new.loses_tail:
            return False
        return new.state.replica_id in old.state.in_sync.replicas

    # -------------------------------------------------------------------------------------------------- backups

    async def back_up(self) -> str:
        """A copy of the store of either broker's."""
        world = self._world
        node, disk = world.rng.choice(world.nodes), SimDisk()
        since, generation = world.now if world.has_all(node) else 0.0, node.log_generation
        answer = await self._ask(world.admin.backup_store(node.address, COPY, disk=disk))
        if isinstance(answer, Exception):
            return ""
        self._copies.append(Copy(disk, since, answer.log_max_offset, generation))
        return f"backup of {node.name} up to {answer.log_max_offset}"

    async def restore(self) -> str:
        """Both disks are lost, and a copy comes back; perhaps a second time, or one that came back before."""
        world = self._world
        if not self._copies:
            return ""
        copy, told = world.rng.choice(self._copies), ""
        for _ in range(world.rng.choice((1, 2))):
            told += await self._restored(copy)
        return told

    async def _restored(self, copy: Copy) -> str:
        world = self._world
        disturbance = world.model.disturbed(Again.RESTORED, world.now, None)
        for node in world.nodes:
            await node.lose_disk()
        for server in world.name_servers:
            server.kill()
            server.start()
        master, replica = world.rng.sample(world.nodes, 2)
        disk = copy.disk.fork()
        Restore(disk, COPY, LAYOUT.root).run()
        world.restores(master, disk, copy.since, world.model.common_end(copy.generation, copy.log_end))
        replica.broker_id = 1
        master.start()
        await self._faults.pass_s(world.rng.choice((0.5, 3.0)))
        replica.start_again()
        await self._faults.pass_s(world.rng.choice((3.0, 8.0)))
        disturbance.end = world.now
        return f"restored on {master.name} up to {copy.log_end}; "

    # ---------------------------------------------------------------------------------------- topics and groups

    async def grow(self) -> str:
        """Queues are added, and taken from the writers."""
        world = self._world
        write = world.rng.randrange(2, QUEUES_MAX + 1)
        asked_at, weak = world.now, world.is_alone
        update = world.admin.update_topic(PLAIN, read_queue_count=QUEUES_MAX, write_queue_count=write)
        if isinstance(await self._ask(update), Exception):
            world.queues.append((write, None))
            return f"{write} write queues, perhaps"
        world.queues.append((write, world.answer_of_master(asked_at, weak=weak or world.is_alone)))
        return f"{write} write queues"

    async def renew_topic(self) -> str:
        """A topic is deleted with what it holds, and made again."""
        world = self._world
        disturbance = world.model.disturbed(Again.OPERATOR, world.now, None, LOOSE.name)
        world.model.begins[LOOSE.name, SHORT] = FOREVER
        deleted = await self._ask(world.admin.delete_topic(SHORT))
        await self._faults.pass_s(world.rng.choice((0.0, 3.0)))
        await self._ask(world.admin.update_topic(SHORT, read_queue_count=2, write_queue_count=2))
        disturbance.end = world.now
        self._begins(deleted, SHORT)
        return "topic renewed"

    async def reset(self) -> str:
        """A group's offset in one queue is set anew."""
        world = self._world
        queue = MessageQueue(PLAIN, BROKER_NAME, world.rng.randrange(4))
        disturbance = world.model.disturbed(Again.OPERATOR, world.now, None, LOOSE.name)
        world.model.begins[LOOSE.name, PLAIN] = FOREVER
        master = world.master.broker
        end = master.store.queue_end(PLAIN, queue.queue_id) if master is not None else 0
        offset = world.rng.randrange(end + 1)
        done = await self._ask(world.admin.reset_offset_by_queue(LOOSE.name, {queue: offset}))
        disturbance.end = world.now
        self._begins(done, PLAIN)
        return "offset reset"

    async def renew_group(self) -> str:
        """A group is deleted with its offsets, and begins anew."""
        world = self._world
        disturbance = world.model.disturbed(Again.OPERATOR, world.now, None, LOOSE.name)
        for member in [member for member in world.members if member.group is LOOSE]:
            self._faults.end(member)
        await self._faults.pass_s(1.0)
        for topic in LOOSE.topics:
            world.model.begins[LOOSE.name, topic] = FOREVER
        done = await self._ask(world.admin.delete_subscription_group(LOOSE.name, clean_offsets=True))
        world.join(LOOSE, "c2")
        disturbance.end = world.now
        for topic in LOOSE.topics:
            self._begins(done, topic)
        return "group renewed"

    def _begins(self, done: Any, topic: str) -> None:
        """The group has to get what is sent from now on, if it is known what has become of it."""
        if not isinstance(done, Exception):
            self._world.model.begins[LOOSE.name, topic] = self._world.now
