"""A simulated network between brokers that replicate: what TCP may do to a stream of frames, and nothing else.

Frames take their time, by a clock that only the test moves. A direction between two nodes can be cut: what is sent then
stands still, and goes on when it is mended, or never does, though neither end is told. A link can break at any moment,
and a node can die with what it had sent still on its way.

Invariants: within one link frames arrive in the order in which they were sent, without a gap, each once, or the link
has ended for its reader; two links know nothing of each other, so what an old one carries may arrive after what a newer
one does. A node that is dead gets nothing, and one that stands still gets nothing before it goes on.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from mq_broker.replication.frames import LinkError, LogBytes, MasterFrame, MasterLink, ReplicaFrame, ReplicaLink
from osenv import SeededRng, SimClock

F = TypeVar("F")

WINDOW_BYTES = 16 * 1024  # on the way or not read yet; then the sender has to wait
FRAME_BYTES = 100
FAST_S, SLOW_S = 0.001, 0.15  # one way
CONNECT_S = 0.4  # the timeout of a connect without an answer
STALLED_FOR_GOOD = 0.3  # of the links that a cut has held up: both ends believe in them, and nothing arrives any more


class Process(Protocol):
    """One life of a broker, as the network sees it."""

    @property
    def node(self) -> str:
        """The machine's name."""

    @property
    def is_alive(self) -> bool:
        """False once it has ended."""

    def wake(self, callback: Callable[[], None]) -> None:
        """Run this in the process: now, when it goes on, or never."""


Serve = Callable[[MasterLink], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _End:
    """The last thing that comes out of a pipe; without a reason the sender has ended it in order."""

    reason: str = ""


class Pipe(Generic[F]):
    """One direction of one link."""

    def __init__(self, network: Network, sender: str, receiver: Process) -> None:
        self._network, self._receiver = network, receiver
        self.way = (sender, receiver.node)
        self._on_the_way: deque[tuple[float, F | _End]] = deque()
        self._arrived: deque[F] = deque()
        self._unread_bytes = 0
        self._last_due = 0.0
        self._end: _End | None = None  # has arrived
        self._is_closed = False  # nothing more is sent
        self.is_lost = False  # nothing more arrives, silently
        self._changed: list[asyncio.Future[None]] = []
        self.twin: Pipe[Any] = self  # the other direction

    async def send(self, frame: F) -> None:
        """Send, once there is room. Raises LinkError."""
        while self._unread_bytes >= WINDOW_BYTES and not self._is_closed:
            await self._change()
        if self._is_closed:
            raise LinkError("this link has ended")
        self._unread_bytes += _size(frame)
        self._push(frame)

    async def receive(self) -> F | None:
        """The next frame; None at an orderly end. Raises LinkError."""
        while not self._arrived:
            if self._end is not None:
                if self._end.reason:
                    raise LinkError(self._end.reason)
                return None
            await self._change()
        frame = self._arrived.popleft()
        self._unread_bytes -= _size(frame)
        self._wake_up()
        return frame

    def inject(self, frame: F) -> bool:
        """Have the receiver read this frame, of which the sender knows nothing, after those that are there already.

        False when it would not be read.
        """
        if self._is_closed or self.is_lost or self._end is not None or not self._receiver.is_alive:
            return False
        self._unread_bytes += _size(frame)
        self._arrived.append(frame)
        self._receiver.wake(self._wake_up)
        return True

    def close(self) -> None:
        """End it in order: what was sent arrives before the end does."""
        self._finish(_End())

    def break_off(self, reason: str) -> None:
        """The sender is gone: what is on its way is lost."""
        self._on_the_way.clear()
        self._finish(_End(reason))

    def drop(self) -> None:
        """The sender is gone, and with it all that is on its way, silently."""
        self._on_the_way.clear()
        self.is_lost = self._is_closed = True
        self._wake_up()

    def told_at_last(self, reason: str) -> None:
        """The machine that was gone is there again, and knows nothing of this link."""
        self.is_lost = False
        self._send_end(_End(reason))

    def shut(self) -> None:
        """The receiver reads no more; the sender hears of it when the other direction tells."""
        self._end = self._end or _End("this link was ended here")
        self._wake_up()

    def reset(self) -> None:
        """The sender has heard that there is no reader any more."""
        self._is_closed = True
        self._wake_up()

    def mended(self) -> None:
        """The way is free again: what stood still comes after all, or never."""
        if self._on_the_way and self._on_the_way[0][0] <= self._network.now:
            if self._network.rng.random() < STALLED_FOR_GOOD:
                self.is_lost = True
            else:
                self._network.clock.call_later(self._network.delay_s(self.way), self._arrive)

    def _finish(self, end: _End) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._send_end(end)
            self._wake_up()

    def _send_end(self, end: _End) -> None:
        if not self.is_lost:
            self._push(end)

    def _push(self, item: F | _End) -> None:
        due = max(self._last_due, self._network.now + self._network.delay_s(self.way))
        self._last_due = due
        self._on_the_way.append((due, item))
        self._network.clock.call_later(due - self._network.now, self._arrive)

    def _arrive(self) -> None:
        while self._on_the_way and self._on_the_way[0][0] <= self._network.now + 1e-9:
            if self.is_lost or self._network.is_cut(self.way):
                self._network.counts["frames that stood still"] += 1
                return
            _, item = self._on_the_way.popleft()
            self._receiver.wake(lambda item=item: self._deliver(item))  # type: ignore[misc]

    def _deliver(self, item: F | _End) -> None:
        if isinstance(item, _End):
            self._end = self._end or item
            self.twin.reset()
        else:
            self._arrived.append(item)
        self._wake_up()

    async def _change(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed.append(future)
        await future

    def _wake_up(self) -> None:
        waiting, self._changed = self._changed, []
        for future in waiting:
            settle_future(future)


def settle_future(future: asyncio.Future[None]) -> None:
    """The task that waits for it goes on, unless it has been cancelled."""
    if not future.done():
        future.set_result(None)


def _size(frame: Any) -> int:
    event = getattr(frame, "event", None)
    return FRAME_BYTES + (len(event.data) if isinstance(event, LogBytes) else 0)


class Link:
    """A replica's connection to a master."""

    def __init__(self, network: Network, replica: Process, master: Process) -> None:
        self.replica, self.master = replica, master
        self.up: Pipe[ReplicaFrame] = Pipe(network, replica.node, master)
        self.down: Pipe[MasterFrame] = Pipe(network, master.node, replica)
        self.up.twin, self.down.twin = self.down, self.up
        self.ended_by: set[str] = set()

    def end(self, process: Process, reason: str = "") -> None:
        """One side reads and sends no more; with a reason because it broke there."""
        self.ended_by.add(process.node)
        outward, inward = self._pipes(process)
        inward.shut()
        if reason:
            outward.break_off(reason)
        else:
            outward.close()

    def vanish(self, process: Process) -> None:
        """The machine of one side is without power."""
        self.ended_by.add(process.node)
        outward, _ = self._pipes(process)
        outward.drop()

    def back(self, node: str) -> None:
        """That machine has power again."""
        outward = self.up if node == self.replica.node else self.down
        outward.told_at_last(f"{node} was without power")

    @property
    def is_over(self) -> bool:
        """Both sides have left it."""
        return self.ended_by == {self.replica.node, self.master.node}

    def _pipes(self, process: Process) -> tuple[Pipe[Any], Pipe[Any]]:
        return (self.up, self.down) if process is self.replica else (self.down, self.up)


class _ReplicaEnd:
    """Implements ReplicaLink."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def send(self, frame: ReplicaFrame) -> None:
        await self._link.up.send(frame)

    async def receive(self) -> MasterFrame | None:
        return await self._link.down.receive()


class _MasterEnd:
    """Implements MasterLink."""

    def __init__(self, link: Link) -> None:
        self._link, self.peer = link, link.replica.node

    async def send(self, frame: MasterFrame) -> None:
        await self._link.down.send(frame)

    async def receive(self) -> ReplicaFrame | None:
        return await self._link.up.receive()


class Network:
    """All nodes of one test. `counts` tells what has happened."""

    def __init__(self, clock: SimClock, rng: SeededRng) -> None:
        self.clock, self.rng = clock, rng
        self.links: list[Link] = []
        self.counts: Counter[str] = Counter()
        self.errors: list[Exception] = []
        self._servers: dict[str, tuple[Process, Serve]] = {}
        self._serving: list[tuple[Process, asyncio.Task[None]]] = []
        self._cut: set[tuple[str, str]] = set()
        self._delays: dict[tuple[str, str], float] = defaultdict(lambda: FAST_S)

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    # ------------------------------------------------------------------------------------------- what nodes do

    def listen(self, address: str, process: Process, serve: Serve) -> None:
        """Replicas that connect to this address are served by the process from now on."""
        self._servers[address] = (process, serve)

    @asynccontextmanager
    async def connect(self, process: Process, address: str) -> AsyncIterator[ReplicaLink]:
        """A link from the process to the listener at the address. Raises LinkError."""
        link = await self.open(process, address)
        try:
            yield _ReplicaEnd(link)
        finally:
            if process.is_alive:
                link.end(process)

    def died(self, process: Process, *, silently: bool) -> None:
        """The process has ended, or, silently, its machine is without power."""
        self._unlisten(process)
        for link in self.links:
            if process in (link.replica, link.master) and process.node not in link.ended_by:
                if silently:
                    link.vanish(process)
                else:
                    link.end(process, f"{process.node} has died")

    async def deaf(self, process: Process) -> None:
        """It listens no more, and what it serves ends."""
        self._unlisten(process)
        serving = [task for server, task in self._serving if server is process]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    def _unlisten(self, process: Process) -> None:
        self._servers = {address: one for address, one in self._servers.items() if one[0] is not process}

    def back(self, node: str) -> None:
        """A machine that was without power answers again."""
        for link in self.links:
            if node in (link.replica.node, link.master.node) and not link.is_over:
                dead = link.replica if link.replica.node == node else link.master
                if not dead.is_alive:
                    link.back(node)
        self.links = [link for link in self.links if not link.is_over]

    async def open(self, process: Process, address: str) -> Link:
        """A link that the process ends itself. Raises LinkError."""
        await self._pause(process, 2 * FAST_S)
        server = self._servers.get(address)
        node = server[0].node if server else address.partition(":")[0]
        there, back = (process.node, node), (node, process.node)
        await self._pause(process, self.delay_s(there) + self.delay_s(back))
        if self.is_cut(there) or self.is_cut(back):
            await self._pause(process, CONNECT_S)
            raise LinkError(f"{address} does not answer")
        server = self._servers.get(address)
        if server is None or not server[0].is_alive:
            raise LinkError(f"nothing listens at {address}")
        master, serve = server
        link = Link(self, process, master)
        self.links = [one for one in self.links if not one.is_over] + [link]
        self.counts["links"] += 1
        master.wake(lambda: self._accept(link, serve))
        return link

    def _accept(self, link: Link, serve: Serve) -> None:
        async def serving() -> None:
            try:
                await serve(_MasterEnd(link))
            except LinkError:
                self.counts["links that ended by an error"] += 1
            except Exception as error:  # what is served may not raise anything else
                self.errors.append(error)
            finally:
                if link.master.is_alive:
                    link.end(link.master)

        task = asyncio.get_running_loop().create_task(serving(), name=f"serving {link.replica.node}")
        self._serving = [one for one in self._serving if not one[1].done()] + [(link.master, task)]

    async def _pause(self, process: Process, seconds: float) -> None:
        """Of the connecting process: one that is dead or stands still does not go on."""
        passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.clock.call_later(seconds, lambda: process.wake(lambda: settle_future(passed)))
        await passed

    # ---------------------------------------------------------------------------------------- what happens to it

    def delay_s(self, way: tuple[str, str]) -> float:
        """How long a frame takes that is sent now."""
        return self._delays[way] * (0.5 + self.rng.random())

    def is_cut(self, way: tuple[str, str]) -> bool:
        """Whether nothing comes through in this direction."""
        return way in self._cut

    def cut(self, *ways: tuple[str, str]) -> None:
        """From now on nothing comes through in these directions."""
        self._cut.update(ways)

    def mend(self) -> None:
        """Everything comes through again, as fast as ever."""
        self._delays.clear()
        ways, self._cut = self._cut, set()
        self._go_on(ways)

    def _go_on(self, ways: Collection[tuple[str, str]]) -> None:
        for link in self.links:
            for pipe in (link.up, link.down):
                if pipe.way in ways:
                    pipe.mended()

    def heal(self, *ways: tuple[str, str]) -> None:
        """Everything comes through again in these directions, as fast as ever."""
        for way in ways:
            self._delays.pop(way, None)
        self._cut.difference_update(ways)
        self._go_on(ways)

    def slow(self, way: tuple[str, str]) -> None:
        """Frames take long in this direction from now on."""
        self._delays[way] = SLOW_S

    def break_links(self, reason: str = "the link broke") -> int:
        """All links break, with what is on its way. How many there were."""
        living = [link for link in self.links if not link.ended_by]
        for link in living:
            for pipe in (link.up, link.down):
                pipe.break_off(reason)
        return len(living)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is cut or slow."""
        return not self._cut and not self._delays
