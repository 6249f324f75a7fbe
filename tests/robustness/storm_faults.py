"""What happens to the machines of a storm and to the network between them. Each method is one fault, from its beginning
to its end; what it excuses is told to the model when it begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim_process import SimProcess
from storm_clients import GROUPS, Client, Member, Sender
from storm_excuses import Again

from mq_broker.store.message_store import FlushDiskType

if TYPE_CHECKING:
    from storm_world import Machine, StormWorld

SHORT_S, LONG_S = (0.3, 1.0, 3.0), (6.0, 12.0, 28.0)
STALL_S_MAX = 12.0  # of an orderly member: its lock lasts
CLIENTS = ("c1", "c2", "p")
BROKERS = ("a", "b")


class Faults:
    """Of one history."""

    def __init__(self, world: StormWorld) -> None:
        self._world = world

    def _seconds(self) -> float:
        rng = self._world.rng
        return rng.choice(SHORT_S if rng.random() < 0.6 else LONG_S) * (0.5 + rng.random())

    async def pass_s(self, seconds: float) -> None:
        await self._world.clock.sleep(seconds)

    # -------------------------------------------------------------------------------------------------- brokers

    async def kill(self) -> str:
        """kill -9 of one broker or of both, and a start a while later."""
        world = self._world
        nodes = world.nodes if world.rng.random() < 0.25 else [world.rng.choice(world.nodes)]
        begin = world.now
        for node in nodes:
            await node.kill()
        await self.pass_s(self._seconds())
        for node in world.rng.sample(nodes, len(nodes)):
            node.start_again()
        world.model.disturbed(Again.NOT_SENT_BACK, begin, world.now)
        return f"kill of {_names(nodes)}"

    async def lose_power(self) -> str:
        """A power cut of one machine, or of both."""
        world = self._world
        nodes = world.nodes if world.rng.random() < 0.3 else [world.rng.choice(world.nodes)]
        begin, of_master = world.now, world.master in nodes
        for node in nodes:
            await self.cut_power(node)
        await self.pass_s(self._seconds())
        for node in world.rng.sample(nodes, len(nodes)):
            node.start_again()
        self._excuse_power(begin, of_master=of_master or world.master in nodes)
        return f"power cut of {_names(nodes)}"

    async def cut_power(self, node: Machine) -> None:
        """Of one machine."""
        since = None if node.process is None else node.process.stopped_since
        node.power_cut_at = self._world.now if since is None else since  # a stopped process flushes nothing
        await node.lose_power()

    def _excuse_power(self, begin: float, *, of_master: bool) -> None:
        """A replica that comes back has no member ask anew: its master lacks nothing."""
        world = self._world
        world.model.disturbed(Again.NOT_SENT_BACK, begin, world.now)
        if of_master and world.settings.flush is FlushDiskType.ASYNC_FLUSH:
            world.model.disturbed(Again.POWER_CUT, begin, world.now)

    async def stall(self) -> str:
        """A process stands still: a broker, a name server, a member or the producers."""
        world = self._world
        who = world.rng.choice(("broker", "broker", "name server", "member", "sender"))
        seconds, why = self._seconds(), Again.NOT_SENT_BACK
        groups: tuple[str, ...] = ()
        process: SimProcess | None
        if who == "broker":
            process = world.rng.choice(world.nodes).process
        elif who == "name server":
            process = world.rng.choice(world.name_servers).process
        elif who == "sender":
            process = world.sender.process
        else:
            member = world.rng.choice(world.members)
            seconds, why, groups = min(seconds, STALL_S_MAX), Again.CUT_OFF, (member.group.name,)
            process = member.process
        if process is None:
            return ""
        disturbance = world.model.disturbed(why, world.now, None, *groups)
        process.stop()
        await self.pass_s(seconds)
        process.go_on()
        disturbance.end = world.now
        return f"{process.name} stands still for {seconds:.1f} s"

    # -------------------------------------------------------------------------------------------------- network

    async def part_brokers(self) -> str:
        """Master and replica do not hear each other, or only one the other, or slowly."""
        return await self._part("brokers", (BROKERS[0],), (BROKERS[1],))

    async def part_name_server(self) -> str:
        """A name server is cut off from brokers or clients."""
        rng = self._world.rng
        server = rng.choice(self._world.name_servers).address.host
        return await self._part("name server", (server,), rng.choice((BROKERS, ("a",), ("b",), CLIENTS)))

    async def part_clients(self) -> str:
        """A machine with clients is cut off from one broker or from both."""
        rng = self._world.rng
        host = rng.choice(CLIENTS)
        return await self._part("clients", (host,), rng.choice((BROKERS, ("a",), ("b",))))

    async def _part(self, what: str, ones: tuple[str, ...], others: tuple[str, ...]) -> str:
        world = self._world
        ways = [(one, other) for one in ones for other in others]
        kind = world.rng.choice(("both", "there", "back", "slow"))
        back = [(other, one) for one, other in ways]
        ways = {"both": ways + back, "there": ways, "back": back, "slow": ways + back}[kind]
        why = Again.NOT_SENT_BACK
        groups: tuple[str, ...] = ()
        if what == "clients":
            why, groups = Again.CUT_OFF, tuple({member.group.name for member in world.members})
        disturbance = world.model.disturbed(why, world.now, None, *groups)
        if kind == "slow":
            for way in ways:
                world.network.slow(way)
        else:
            world.network.cut(*ways)
        await self.pass_s(self._seconds())
        world.network.heal(*ways)
        disturbance.end = world.now
        return f"{what} {kind}: {'+'.join(ones)} and {'+'.join(others)}"

    async def kill_name_server(self) -> str:
        """It forgets all."""
        server = self._world.rng.choice(self._world.name_servers)
        server.kill()
        await self.pass_s(self._seconds())
        server.start()
        return f"name server {server.address.host} killed"

    # -------------------------------------------------------------------------------------------------- clients

    async def kill_client(self) -> str:
        """A member or the producers die, and others come."""
        world = self._world
        client: Client = world.rng.choice((*world.members, world.sender))
        if isinstance(client, Sender):
            client.die()
            await self.pass_s(self._seconds())
            world.sender = Sender(world, client.host)
            world.sender.start()
            return "producers killed"
        assert isinstance(client, Member)
        disturbance = world.model.disturbed(Again.MEMBER_ENDED, world.now, None, client.group.name)
        self.end(client)
        await self.pass_s(self._seconds())
        world.join(client.group, client.host)
        disturbance.end = world.now
        return f"a member of {client.group.name} killed"

    def end(self, member: Member) -> None:
        """As by SIGKILL."""
        member.die()
        self._world.members.remove(member)

    async def more_members(self) -> str:
        """One more member of a group, for a while; it leaves in order."""
        world = self._world
        group = world.rng.choice(GROUPS)
        disturbance = world.model.disturbed(Again.REBALANCE, world.now, None, group.name)
        member = world.join(group, world.rng.choice(("c1", "c2")))
        await self.pass_s(self._seconds() + 3.0)
        if member in world.members:
            world.members.remove(member)
            await member.leave()
        disturbance.end = world.now
        return f"one more member of {group.name}"

    # --------------------------------------------------------------------------------------------------- clocks

    async def step_clock(self) -> str:
        """Set the wall clock of a machine, wrongly or rightly."""
        world = self._world
        if not world.clocks_step:
            return ""
        node = world.rng.choice(world.nodes)
        node.set_clock(world.rng.choice((0, 0, -20_000, 20_000)))
        return f"the clock of {node.name} is {node.skew_ms} ms ahead"


def _names(nodes: list[Machine]) -> str:
    return " and ".join(node.name for node in nodes)
